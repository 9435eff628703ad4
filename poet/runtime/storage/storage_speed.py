"""How fast the storage behind a page file is, by trying it with the page file's own transfers.

As a training step uses it: between transfers the processor works on other memory, so that the device has
gone idle and what is moved has left the caches, and each transfer has another place in RAM and file. What a
transfer waited for a processor that other programs had is not the storage's time and does not count.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from poet.devices.host import HostStorage, Line
from poet.plans.plan_parts import PageSlot
from poet.runtime.storage.page_file import PageFile
from poet.runtime.system.processor_wait import UndisturbedClock

_SMALL_BYTES, _LARGE_BYTES = 64 * 1024, 1024 * 1024
_PLACES = 8
_TRIALS = 9
_PAUSE_SECONDS = 0.005


def measure_storage(folder: Path, *, buffer_bytes: int) -> HostStorage:
    """Times of small and large transfers to an unnamed page file in ``folder``, the median of a few.

    Takes a third of a second on an SSD, and 16 MiB of RAM and 8 MiB of storage meanwhile.

    Args:
        folder: on the storage in question.
        buffer_bytes: of the page file; see `PageFile`.

    Raises:
        PageFileError: the storage cannot be used.
    """
    slots = [PageSlot(str(place), place * _LARGE_BYTES, _LARGE_BYTES) for place in range(_PLACES)]
    pages = PageFile(slots, path=None, folder=folder, buffer_bytes=buffer_bytes)
    try:
        times = {
            size_bytes: _median_seconds(pages, size_bytes) for size_bytes in (_SMALL_BYTES, _LARGE_BYTES)
        }
    finally:
        pages.close()
    small, large = times[_SMALL_BYTES], times[_LARGE_BYTES]
    return HostStorage(read=_line(small[1], large[1]), write=_line(small[0], large[0]))


def _median_seconds(pages: PageFile, size_bytes: int) -> tuple[float, float]:
    """Of a write and a read."""
    memory = memoryview(bytearray(_PLACES * _LARGE_BYTES))
    other = memoryview(bytearray(len(memory)))
    writes, reads = [], []
    with UndisturbedClock() as clock:
        for trial in range(_TRIALS):
            place = trial % _PLACES
            part = memory[place * _LARGE_BYTES :][:size_bytes]
            _work_on(other)
            writes.append(clock.seconds(partial(pages.write, str(place), part)))
            _work_on(other)
            reads.append(clock.seconds(partial(pages.read_into, str(place), part)))
    return statistics.median(writes), statistics.median(reads)


def transfer_seconds(
    folder: Path, *, buffer_bytes: int, counts: Mapping[int, int]
) -> tuple[dict[int, tuple[list[float], list[float]]], str]:
    """Seconds of every write and of every read, without waits for a processor, by size; the page file's mode.

    Sizes take turns, so that what disturbs the storage for a while disturbs all of them.

    Args:
        folder: on the storage in question.
        buffer_bytes: of the page file; see `PageFile`.
        counts: how many of each size in bytes.

    Raises:
        PageFileError: the storage cannot be used.
    """
    largest_bytes = max(counts)
    slots = [PageSlot(str(place), place * largest_bytes, largest_bytes) for place in range(_PLACES)]
    memory = memoryview(bytearray(_PLACES * largest_bytes))
    other = memoryview(bytearray(2 * _LARGE_BYTES))
    taken: dict[int, tuple[list[float], list[float]]] = {size_bytes: ([], []) for size_bytes in counts}
    pages = PageFile(slots, path=None, folder=folder, buffer_bytes=buffer_bytes)
    try:
        with UndisturbedClock() as clock:
            for trial in range(max(counts.values())):
                place = trial % _PLACES
                for size_bytes, (writes, reads) in taken.items():
                    if trial >= counts[size_bytes]:
                        continue
                    part = memory[place * largest_bytes :][:size_bytes]
                    part[:8] = trial.to_bytes(8, "little")
                    _work_on(other)
                    writes.append(clock.seconds(partial(pages.write, str(place), part)))
                    _work_on(other)
                    reads.append(clock.seconds(partial(pages.read_into, str(place), part)))
        return taken, pages.mode
    finally:
        pages.close()


def keep_transferring(folder: Path, *, buffer_bytes: int, writes: bool, seconds: float) -> None:
    """Write, or read, transfer after transfer for so many seconds, for the power that it takes.

    Raises:
        PageFileError: the storage cannot be used.
    """
    slots = [PageSlot(str(place), place * _LARGE_BYTES, _LARGE_BYTES) for place in range(_PLACES)]
    part = memoryview(bytearray(_LARGE_BYTES))
    pages = PageFile(slots, path=None, folder=folder, buffer_bytes=buffer_bytes)
    try:
        for place in range(_PLACES):
            pages.write(str(place), part)
        move, trial, end = (pages.write if writes else pages.read_into), 0, time.perf_counter() + seconds
        while time.perf_counter() < end:
            move(str(trial % _PLACES), part)
            trial += 1
    finally:
        pages.close()


def _work_on(memory: memoryview) -> None:
    half = len(memory) // 2
    end = time.perf_counter() + _PAUSE_SECONDS
    while time.perf_counter() < end:
        memory[:half] = memory[half:]


def _line(small_seconds: float, large_seconds: float) -> Line:
    """Through both points, neither part below zero."""
    per_byte = max(0.0, (large_seconds - small_seconds) / (_LARGE_BYTES - _SMALL_BYTES))
    return Line(max(0.0, small_seconds - _SMALL_BYTES * per_byte), per_byte)
