"""The instructions of a compiled schedule, bound to the cells they work on, and the loop that makes them."""

from __future__ import annotations

import bisect
import ctypes
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from poet.ir.graph import Graph, Op, TensorType, stored_row_of
from poet.memory.demand import MadeMove
from poet.problem import PageForm
from poet.runtime.kernels.cells import Cells, memory_of, new_buffer, view_of
from poet.runtime.native.allocator import BETWEEN_STEPS, ArenaMemory
from poet.runtime.steps.gradient_taps import GradientTap
from poet.runtime.storage.background import Pager
from poet.runtime.system.process import OpThreads

Fetch = Callable[[list[Any]], Sequence[Any]]
"""Takes what a kernel is given out of the contents of the cells."""
Mark = Callable[[int], object] | None
"""Called with 1 + the number of each instruction's step before it runs, where memory is placed."""
Tap = Callable[[str, torch.Tensor], None]
"""Called with a parameter's name and its gradient, which is only there during the call."""


@dataclass(frozen=True, slots=True)
class Output:
    """Where a result goes.

    Attributes:
        place: among what the kernel gives.
        cell: of its value.
        views: of the same element type on its memory: their cells, shapes, strides and offsets.
        others: views of other element types: their cells and types.
    """

    place: int
    cell: int
    views: tuple[tuple[int, tuple[int, ...], tuple[int, ...], int], ...]
    others: tuple[tuple[int, TensorType], ...]


@dataclass(slots=True)
class Instruction:
    """A kernel, what it is given, and where its results go; cells that are emptied afterwards.

    Attributes:
        index: of its step in the schedule.
    """

    index: int
    kernel: Callable[..., Any]
    fetch: Fetch
    outputs: tuple[Output, ...] = ()
    frees: list[int] = field(default_factory=list)

    def run(self, contents: list[Any]) -> None:
        """Make it, without emptying cells."""
        _put(contents, self.kernel(*self.fetch(contents)), self.outputs)

    def free(self, contents: list[Any]) -> None:
        """Empty its cells."""
        for cell in self.frees:
            contents[cell] = None

    def run_after(self, before: Callable[[], None]) -> None:
        """Have ``before`` done each time, before anything is fetched."""
        fetch = self.fetch

        def late(contents: list[Any]) -> Sequence[Any]:
            before()
            return fetch(contents)

        self.fetch = late


def _put(contents: list[Any], results: Any, outputs: Sequence[Output]) -> None:
    if isinstance(results, torch.Tensor):
        results = (results,)
    for output in outputs:
        result = contents[output.cell] = results[output.place]
        for cell, shape, strides, offset in output.views:
            contents[cell] = result.as_strided(shape, strides, offset)
        for cell, kind in output.others:
            contents[cell] = view_of(result.untyped_storage(), kind)


def no_kernel() -> None:
    """The kernel of what is only waited for, moved or freed."""


def no_arguments(contents: list[Any]) -> tuple[()]:
    """What a kernel without arguments is given."""
    return ()


def _ignore(_: int) -> None:
    """No memory is placed, or nobody listens."""


class Program:
    """A compiled schedule.

    Attributes:
        instructions: in order. Frees belong to the instruction before them. Moves within the arena are made
            with the step before which they stand, those after the last one as one more.
        first_update: index of the first step that overwrites what lives across steps.
        oversized: outputs whose kernels leave them in more memory than they need; filled by the run
            of a program that checks.
        reached: the index of the step that was made last, or at which it failed.
        is_in_tap: whether it is the caller who has a gradient.
        threads: the block in which it runs.
    """

    def __init__(
        self,
        instructions: Sequence[Instruction],
        *,
        first_update: int,
        gradients: Mapping[int, tuple[GradientTap, ...]],
        oversized: set[str],
        background: Pager | None,
        threads: OpThreads | None = None,
    ) -> None:
        """Take the instructions over; ``gradients``: taps by the step that makes what they give."""
        self.threads = OpThreads() if threads is None else threads
        self.instructions, self.first_update = instructions, first_update
        self.oversized = oversized
        self.reached, self.is_in_tap = -1, False
        self._gradients, self._background = gradients, background
        self._flat = [_flat(item) for item in instructions]

    def part(self, begin: int, end: int) -> Program:
        """The instructions of some steps of the schedule."""
        return Program(
            [item for item in self.instructions if begin <= item.index < end],
            first_update=self.first_update,
            gradients=self._gradients,
            oversized=self.oversized,
            background=self._background,
            threads=self.threads,
        )

    def run(self, contents: list[Any], mark: Mark) -> None:
        """Make every instruction on the ``contents`` of the cells, in one flat loop."""
        mark = mark or _ignore
        number = 0
        try:
            for number, kernel, fetch, cell, views, outputs, frees in self._flat:
                mark(number)
                if cell >= 0:
                    result = kernel(*fetch(contents))
                    if not isinstance(result, torch.Tensor):
                        result = result[0]
                    contents[cell] = result
                    for view, shape, strides, offset in views:
                        contents[view] = result.as_strided(shape, strides, offset)
                    del result  # its place may be planned for the next one
                elif outputs:
                    _put(contents, kernel(*fetch(contents)), outputs)
                else:
                    kernel(*fetch(contents))
                for freed in frees:
                    contents[freed] = None
        finally:
            self.reached = number - 1
        self._settle()

    def run_told(
        self,
        contents: list[Any],
        mark: Mark,
        on_gradient: Tap | None,
        on_instruction: Callable[[int], object] | None,
    ) -> None:
        """Likewise, for a caller who sees each gradient as it is made, or hears of each instruction."""
        mark, on_instruction = mark or _ignore, on_instruction or _ignore
        self.reached, self.is_in_tap = -1, False
        for item in self.instructions:
            self.reached = item.index
            mark(item.index + 1)
            on_instruction(item.index)
            taps = () if on_gradient is None else self._gradients.get(item.index, ())
            if taps:
                mark(BETWEEN_STEPS)  # what is allocated for the caller is not the step's
                for tap in taps:
                    tap.open()
                mark(item.index + 1)
            item.run(contents)
            if on_gradient is not None and taps:
                self.is_in_tap = True
                mark(BETWEEN_STEPS)
                for tap in taps:
                    on_gradient(tap.name, tap.take())
                self.is_in_tap = False
                mark(item.index + 1)  # whose memory is given back
            item.free(contents)
        self._settle()

    def _settle(self) -> None:
        """Every transfer to its end."""
        if self._background is not None:
            self._background.drain()


def _flat(item: Instruction) -> tuple[Any, ...]:
    """What `Program.run` reads: with a cell, if the first result alone is kept in it."""
    is_alone = len(item.outputs) == 1 and not item.outputs[0].place and not item.outputs[0].others
    cell, views = (item.outputs[0].cell, item.outputs[0].views) if is_alone else (-1, ())
    return item.index + 1, item.kernel, item.fetch, cell, views, item.outputs, tuple(item.frees)


# --- what instructions do beside calling kernels --------------------------------------------------


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


def page_out(buffer: str, cells: Cells, pages: Pager, form: PageForm | None = None) -> None:
    """Copy a buffer's bytes to its slot, in ``form``."""
    pages.write(buffer, memory_of(cells.raw(buffer)), form)


def page_in(buffer: str, cells: Cells, pages: Pager, form: PageForm | None = None) -> None:
    """Allocate a buffer and fill it from its slot, where it is in ``form``."""
    raw = new_buffer(cells.sizes_bytes[buffer])
    pages.read_into(buffer, memory_of(raw), form)
    cells.install(buffer, raw)


class TableInPages:
    """The table of which ``op`` reads or updates rows in storage: some of its buffers, in order."""

    def __init__(self, op: Op, graph: Graph, pages: Pager) -> None:
        row_bytes, _ = stored_row_of(op)
        sizes_bytes = {buffer.name: buffer.size_bytes for buffer in graph.buffers}
        self._pages, self._parts = pages, op.stored
        self._firsts = [0, *itertools.accumulate(sizes_bytes[name] // row_bytes for name in op.stored)]

    def read(self, row: int, memory: memoryview) -> None:
        """See `StoredTable`."""
        self._pages.read_row(*self._place_of(row), memory)

    def change(self, row: int, change: Callable[[memoryview], None]) -> None:
        """See `StoredTable`."""
        self._pages.change_row(*self._place_of(row), change)

    def _place_of(self, row: int) -> tuple[str, int]:
        part = bisect.bisect_right(self._firsts, row) - 1
        return self._parts[part], row - self._firsts[part]
