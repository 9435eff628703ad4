"""Moves of tensors within the arena of a step, where steps lie at the plan's places.

A move asks for memory as any step does, and the allocator gives it at the planned place. The two places may
overlap: then the old one is released first, and its bytes, which nobody else can have been given meanwhile,
are copied as memmove copies. Every view of the tensor that the step knows follows it. A place that is taken,
by something that the caller kept, costs a copy to the heap and no bits.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable

from poet.memory.places import MadeMove
from poet.runtime.kernels.cells import Cells, new_buffer
from poet.runtime.native import ArenaMemory


class Moving:
    """Who makes the moves of a plan; makes none while no arena is open."""

    def __init__(self) -> None:
        self._first = self._last = 0  # addresses

    def open(self, arena: ArenaMemory) -> None:
        """Move from now on, in ``arena``."""
        self._first, self._last = arena.address, arena.address + arena.size_bytes

    def close(self) -> None:
        """Move nothing any more."""
        self._first = self._last = 0

    def make(self, moves: Iterable[MadeMove], cells: Cells) -> None:
        """Copy each tensor to its next place, one after the other.

        Raises:
            ReplayError: there is no memory for one.
        """
        if self._last:
            for move in moves:
                self._move(move, cells)

    def _move(self, move: MadeMove, cells: Cells) -> None:
        buffer, size_bytes = move.tensor, cells.sizes_bytes[move.tensor]
        old = cells.raw(buffer)
        address = old.data_ptr()
        if abs(move.to_bytes - move.from_bytes) < size_bytes and self._first <= address < self._last:
            del old
            cells.clear(buffer)
        new = new_buffer(size_bytes)
        ctypes.memmove(new.data_ptr(), address, size_bytes)
        cells.install(buffer, new)
