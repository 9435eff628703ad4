"""Memory of the process: giving freed bytes back, and measuring the peak.

glibc keeps freed blocks for itself unless they were mapped one by one; a training step that frees
and recomputes would then show the sum of its moments as its peak. With a mapping threshold of 64 KiB
freed tensors go back to the system at once.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from poet.util.units import format_bytes

MMAP_THRESHOLD_BYTES = 64 * 1024

SMALL_HEAP_BYTES = 128 * 1024
"""What glibc keeps at the end of its heap once `return_freed_memory` was called."""

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8  # malloc.h
_MARK_MARGIN_BYTES = 4 << 20  # results/runtime.json: the kernel's view of 50 steps was within that, or 1 %


def return_freed_memory() -> bool:
    """Make glibc give freed tensors back to the system, for the whole process.

    Returns:
        Whether the C library here can be set so.
    """
    if not sys.platform.startswith("linux"):
        return False
    mallopt = _mallopt()
    if mallopt is None:
        return False
    settings = ((_M_MMAP_THRESHOLD, MMAP_THRESHOLD_BYTES), (_M_TRIM_THRESHOLD, SMALL_HEAP_BYTES))
    accepted = [mallopt(option, value) == 1 for option, value in settings]
    return all(accepted)


def use_one_heap() -> None:
    """Make all threads that start from now on allocate from one heap, so that what one frees all can use."""
    mallopt = _mallopt()
    if mallopt is not None:
        mallopt(_M_ARENA_MAX, 1)


def _mallopt() -> Callable[[int, int], int] | None:
    """The C library's, if it is glibc."""
    try:
        return ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return None


@dataclass(frozen=True, slots=True)
class Peak:
    """The most memory that was held in a span of time.

    Attributes:
        bytes: ``None`` where it is not measured.
        is_counted: to the byte. The kernel's mark has pages in it that are no tensor's.
    """

    bytes: int | None
    is_counted: bool = False

    def above(self, budget_bytes: int) -> int:
        """Bytes of tensors above a budget; 0 where those measured may be others."""
        above_bytes = (self.bytes or 0) - budget_bytes
        margin_bytes = 0 if self.is_counted else max(_MARK_MARGIN_BYTES, budget_bytes // 100)
        return above_bytes if above_bytes > margin_bytes else 0

    def __str__(self) -> str:
        return "not measured" if self.bytes is None else format_bytes(self.bytes)


class PeakMeter:
    """Measures the most tensor memory that a block of training steps holds.

    Linux keeps a high-water mark of a process's resident memory that can be cleared. The peak is that
    mark minus what is resident when the block begins, plus ``held_bytes``: the tensors that are part
    of the peak but resident already. Run a step before, so that libraries have loaded their code
    and made their own tables; what a library allocates and keeps in the first step is no tensor.

    Use as a context manager; `peak` is there when the block has ended.
    """

    def __init__(self, held_bytes: int, *, process: Path = Path("/proc/self")) -> None:
        self._process, self._held_bytes = process, held_bytes
        self._resident_bytes: int | None = None
        self.peak = Peak(None)

    def __enter__(self) -> Self:
        try:
            (self._process / "clear_refs").write_text("5")  # proc(5): resets the high-water mark
            self._resident_bytes = self._status_bytes("VmRSS")
        except (OSError, ValueError):
            self._resident_bytes = None
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._resident_bytes is None:
            return
        try:
            mark_bytes = self._status_bytes("VmHWM")
        except (OSError, ValueError):
            return
        self.peak = Peak(mark_bytes - self._resident_bytes + self._held_bytes)

    def _status_bytes(self, key: str) -> int:
        for line in (self._process / "status").read_text().splitlines():
            if line.startswith(f"{key}:"):
                return int(line.split()[1]) * 1024
        raise ValueError(f"no {key}")


def available_bytes() -> float:
    """RAM that can be had without swapping; none where the system does not report it."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) * 1024.0 for line in lines if line.startswith("MemAvailable:")), 0.0)
