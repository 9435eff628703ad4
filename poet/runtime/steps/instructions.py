"""The instructions of a compiled schedule: a function for each kind, bound to the cells it works on."""

from __future__ import annotations

import bisect
import ctypes
import functools
import itertools
import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from poet.ir.graph import Argument, Call, Graph, Op, Ref, Symbol, TensorType, stored_row_of
from poet.memory.demand import MadeMove
from poet.runtime import kernels
from poet.runtime.kernels.cells import Cells, memory_of, new_buffer, resolved, view_of
from poet.runtime.kernels.tables import StoredTable
from poet.runtime.native import ArenaMemory
from poet.runtime.storage.background import Pager


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


Instruction = Callable[[], None]


Fetch = Callable[[list[Any]], tuple[Any, ...]]
"""Takes what a kernel is given out of the contents of the cells."""


@dataclass(frozen=True, slots=True)
class Fetching:
    """A kernel that is given what several cells hold."""

    kernel: Callable[..., Any]
    fetch: Fetch
    contents: list[Any]

    def __call__(self) -> Any:
        return self.kernel(*self.fetch(self.contents))


@dataclass(frozen=True, slots=True)
class Straight:
    """An instruction that a replay makes in its own loop: fetch, run, put the first result into a cell."""

    kernel: Callable[..., Any]
    fetch: Fetch
    contents: list[Any]
    cell: int

    def __call__(self) -> None:
        result = self.kernel(*self.fetch(self.contents))
        self.contents[self.cell] = result if isinstance(result, torch.Tensor) else result[0]


def page_out(buffer: str, cells: Cells, pages: Pager) -> None:
    """Copy a buffer's bytes to its slot."""
    pages.write(buffer, memory_of(cells.raw(buffer)))


def page_in(buffer: str, cells: Cells, pages: Pager) -> None:
    """Allocate a buffer and fill it from its slot."""
    raw = new_buffer(cells.sizes_bytes[buffer])
    pages.read_into(buffer, memory_of(raw))
    cells.install(buffer, raw)


def moved_before(after: Instruction, moves: Sequence[MadeMove], cells: Cells, moving: Moving) -> Instruction:
    """``after``, once tensors have their next places."""

    def moved() -> None:
        moving.make(moves, cells)
        after()

    return moved


def computing(run: Callable[[], Any], op: Op, new: Sequence[str], cells: Cells, graph: Graph) -> Instruction:
    """Run, and put those outputs into their cells whose buffers are not in RAM."""
    contents = cells.contents
    places = [
        (place, name)
        for place, name in enumerate(op.outputs)
        if name is not None and graph.buffer_of(name) in new and cells.of_buffer[graph.buffer_of(name)]
    ]
    bound = [(place, *_output_cells(cells, graph, name)) for place, name in places]

    def compute() -> None:
        results = run()
        if isinstance(results, torch.Tensor):
            results = (results,)
        for place, number, views in bound:
            result = results[place]
            contents[number] = result
            for cell, kind, is_alike in views:
                contents[cell] = (
                    result.as_strided(kind.shape, kind.strides, kind.offset)
                    if is_alike
                    else view_of(result.untyped_storage(), kind)
                )

    if len(bound) != 1 or bound[0][0] or bound[0][2]:
        return compute
    number = bound[0][1]
    if isinstance(run, Fetching):
        return Straight(run.kernel, run.fetch, contents, number)

    def compute_one() -> None:
        results = run()
        contents[number] = results if isinstance(results, torch.Tensor) else results[0]

    return compute_one


def _output_cells(cells: Cells, graph: Graph, output: str) -> tuple[int, list[tuple[int, TensorType, bool]]]:
    """The output's own cell and those of the views of its buffer: whether each has its element type."""
    number, dtype = cells.value(output), cells.types[output].dtype
    views = cells.of_buffer[graph.buffer_of(output)]
    return number, [(cell, kind, kind.dtype == dtype) for cell, kind in views if cell != number]


def cells_of(buffer: str, cells: Cells) -> list[int]:
    """The numbers of the cells of all values on ``buffer``."""
    return [number for number, _ in cells.of_buffer[buffer]]


def freeing(numbers: list[int], cells: Cells) -> Instruction:
    """Empty the cells in ``numbers``, to which more may still be added."""
    contents = cells.contents

    def free() -> None:
        for number in numbers:
            contents[number] = None

    return free


def waiting_for(run: Instruction, buffers: Sequence[str], pages: Pager) -> Instruction:
    """``run``, once the transfers of ``buffers`` are done."""

    def waiting() -> None:
        for buffer in buffers:
            pages.wait(buffer)
        run()

    return waiting


def settling_after(run: Instruction, pages: Pager) -> Instruction:
    """``run``, and then every transfer to its end."""

    def settling() -> None:
        run()
        pages.drain()

    return settling


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


def bound_call(
    call: Call, cells: Cells, generator: torch.Generator | None, table: StoredTable | None = None
) -> Callable[[], Any]:
    """The kernel with its arguments' cells; each run fetches them in one go."""
    contents = cells.contents
    kernel = kernels.kernel(call.target, generator, table)
    fixed, fetched = {}, {}
    for key, argument in call.kwargs:
        if isinstance(argument, Ref | Symbol) and _is_fetched(argument):
            fetched[key] = cells.argument(argument)
        else:
            fixed[key] = resolved(argument)
    if fixed:
        kernel = functools.partial(kernel, **fixed)
    lists = {
        place: [cells.argument(item) for item in argument]
        for place, argument in enumerate(call.args)
        if isinstance(argument, tuple) and any(_is_fetched(item) for item in argument)
    }
    numbers = [
        cells.constant(None) if place in lists else cells.argument(argument)
        for place, argument in enumerate(call.args)
    ]
    if lists or fetched:

        def general() -> Any:
            given = [contents[number] for number in numbers]
            for place, items in lists.items():
                given[place] = [contents[number] for number in items]
            return kernel(*given, **{key: contents[number] for key, number in fetched.items()})

        return general
    if len(numbers) == 1:
        only = numbers[0]
        return lambda: kernel(contents[only])
    if not numbers:
        return kernel
    return Fetching(kernel, operator.itemgetter(*numbers), contents)


def _is_fetched(argument: Argument) -> bool:
    return isinstance(argument, Ref) or (isinstance(argument, Symbol) and argument.kind == "hyperparameter")
