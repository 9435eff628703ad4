"""How long transfers between RAM and the storage under a folder take, by a page file's own.

As a training step uses it: between transfers the processor works on other memory, so that the device has
gone idle and what is moved has left the caches, and each transfer has another place in RAM and file. What a
transfer waited for a processor that other programs had is not the storage's time and does not count.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

from poet.plans.plan_parts import PageSlot
from poet.runtime.storage.page_file import PageFile

_LARGE_BYTES = 1024 * 1024
_PLACES = 8
_PAUSE_SECONDS = 0.005

_SCHEDULED = Path("/proc/thread-self/schedstat")
"""Nanoseconds on a processor, nanoseconds waiting for one while ready to run, and turns; Linux's
Documentation/scheduler/sched-stats.rst."""


class UndisturbedClock:
    """Seconds of calls of the thread that made it; where its waits are not told, by the wall clock."""

    def __init__(self, path: Path = _SCHEDULED) -> None:
        try:
            self._file: int | None = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._file = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def seconds(self, call: Callable[[], object]) -> float:
        """Of ``call``: what it waited for storage counts, what it waited for a processor does not."""
        begin = time.perf_counter()
        waited = self._waited_seconds()
        call()
        waited = self._waited_seconds() - waited
        return max(time.perf_counter() - begin - waited, 0.0)

    def _waited_seconds(self) -> float:
        if self._file is None:
            return 0.0
        try:
            return int(os.pread(self._file, 96, 0).split()[1]) * 1e-9
        except (OSError, ValueError, IndexError):
            return 0.0


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
