"""How fast the storage behind a page file is, by trying it with the page file's own transfers."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from pathlib import Path

from poet.host import HostStorage, Line
from poet.runtime.page_file import PageFile
from poet.training_plan import Slot

_SMALL_BYTES, _LARGE_BYTES = 64 * 1024, 1024 * 1024
_TRIALS = 5


def measure_storage(folder: Path, *, buffer_bytes: int) -> HostStorage:
    """Times of small and large transfers to an unnamed page file in ``folder``, the median of a few.

    Takes 1 MiB of RAM meanwhile.

    Args:
        folder: on the storage in question.
        buffer_bytes: of the page file; see `PageFile`.

    Raises:
        PageFileError: the storage cannot be used.
    """
    slot = Slot("trial", 0, _LARGE_BYTES)
    pages = PageFile([slot], path=None, folder=folder, buffer_bytes=buffer_bytes)
    try:
        memory = memoryview(bytearray(_LARGE_BYTES))
        times: dict[tuple[str, int], float] = {}
        for size_bytes in (_SMALL_BYTES, _LARGE_BYTES):
            for way, transfer in (("write", pages.write), ("read", pages.read_into)):
                move = functools.partial(transfer, "trial", memory[:size_bytes])
                times[way, size_bytes] = _median_seconds(move)
    finally:
        pages.close()
    read, write = (_line(times[way, _SMALL_BYTES], times[way, _LARGE_BYTES]) for way in ("read", "write"))
    return HostStorage(read, write)


def _median_seconds(transfer: Callable[[], object]) -> float:
    seconds = []
    for _ in range(_TRIALS):
        begin = time.perf_counter()
        transfer()
        seconds.append(time.perf_counter() - begin)
    return sorted(seconds)[_TRIALS // 2]


def _line(small_seconds: float, large_seconds: float) -> Line:
    """Through both points, neither part below zero."""
    per_byte = max(0.0, (large_seconds - small_seconds) / (_LARGE_BYTES - _SMALL_BYTES))
    return Line(max(0.0, small_seconds - _SMALL_BYTES * per_byte), per_byte)
