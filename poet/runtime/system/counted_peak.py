"""The peak of tensor memory by torch's allocator, to the byte; the kernel's mark knows a process's pages."""

from __future__ import annotations

import contextlib
from types import TracebackType
from typing import Self

from poet.runtime.native import NativeAllocator
from poet.runtime.system.memory import Peak


class CountedPeak:
    """Counts the most tensor memory that a block of training steps holds, where they lie in an arena.

    That is every byte that torch is given, tensors and hidden temporaries, and the whole arena, used or not.
    `poet.runtime.system.memory.PeakMeter` sees what the process takes instead, and with it objects of the
    interpreter, code, and tables of libraries: some pages more or less, which no schedule plans.

    Use as a context manager; `peak` is there when the block has ended.
    """

    def __init__(self, allocator: NativeAllocator, held_bytes: int) -> None:
        self._tracking, self._held_bytes = allocator.tracking(), held_bytes
        self._scope = contextlib.ExitStack()
        self.peak = Peak(None)

    def __enter__(self) -> Self:
        self._tracked = self._scope.enter_context(self._tracking)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._scope.close()
        self.peak = Peak(self._held_bytes + max(self._tracked.footprint_growth_bytes, 0))
