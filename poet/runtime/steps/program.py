"""A plan's schedule, compiled once into instructions that are bound to what they work on.

Everything an operator may be given (values, constants, the optimizer's per-step scalars) stands in a
numbered cell. An instruction knows its kernel and its cell numbers; running it fetches its
arguments, calls, and puts the results into their cells. A value's tensor lives as long as its
buffer's cells hold it: emptying them gives the memory back.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch

from poet.errors import PlanError, ReplayError
from poet.ir.graph import Argument, Call, Graph, Op, Ref, Symbol, TensorType
from poet.memory.demand import MadeMove
from poet.plans.training_plan import Plan
from poet.problem import Place
from poet.problem.schedule import Compute, Free, PageOut, Step
from poet.runtime import kernels
from poet.runtime.kernels import arguments
from poet.runtime.kernels.cells import Cells, new_buffer, resolved, view_of
from poet.runtime.kernels.tables import StoredTable
from poet.runtime.steps.gradient_taps import BoundStrips, gradient_taps
from poet.runtime.steps.instructions import (
    Fetch,
    Instruction,
    Moving,
    Output,
    Program,
    TableInPages,
    no_arguments,
    no_kernel,
    page_in,
    page_out,
)
from poet.runtime.storage.background import Pager
from poet.runtime.system.process import OpThreads


def bound_call(
    call: Call, cells: Cells, generator: torch.Generator | None, table: StoredTable | None = None
) -> tuple[Callable[..., Any], Fetch]:
    """The kernel, and what fetches its arguments in one go."""
    kernel = kernels.kernel(call.target, generator, table)
    fixed = {key: resolved(item) for key, item in call.kwargs if not _is_fetched(item)}
    if fixed:
        kernel = functools.partial(kernel, **fixed)
    fetched = [(key, cells.argument(item)) for key, item in call.kwargs if _is_fetched(item)]
    lists = {
        place: [cells.argument(item) for item in argument]
        for place, argument in enumerate(call.args)
        if isinstance(argument, tuple) and any(map(_is_fetched, argument))
    }
    numbers = [
        cells.constant(None) if place in lists else cells.argument(argument)
        for place, argument in enumerate(call.args)
    ]
    if fetched:
        kernel = functools.partial(_with_keywords, kernel, len(numbers), [key for key, _ in fetched])
        numbers += [number for _, number in fetched]
    if lists:

        def general(contents: list[Any]) -> list[Any]:
            given = [contents[number] for number in numbers]
            for place, items in lists.items():
                given[place] = [contents[number] for number in items]
            return given

        return kernel, general
    if len(numbers) == 1:
        only = numbers[0]
        return kernel, lambda contents: (contents[only],)
    return kernel, operator.itemgetter(*numbers) if numbers else no_arguments


def _with_keywords(kernel: Callable[..., Any], count: int, keys: Sequence[str], *given: Any) -> Any:
    """What ``kernel`` gives of ``count`` arguments by their places, and the rest by their names."""
    return kernel(*given[:count], **dict(zip(keys, given[count:], strict=True)))


def _is_fetched(argument: Argument) -> bool:
    return isinstance(argument, Ref) or (isinstance(argument, Symbol) and argument.kind == "hyperparameter")


def outputs_of(op: Op, new: Sequence[str], cells: Cells, graph: Graph) -> tuple[Output, ...]:
    """The op's results that go into cells: those whose buffers are ``new`` in RAM."""
    found = []
    for place, name in enumerate(op.outputs):
        if name is None or graph.buffer_of(name) not in new or not cells.of_buffer[graph.buffer_of(name)]:
            continue
        number, dtype = cells.value(name), cells.types[name].dtype
        others = [item for item in cells.of_buffer[graph.buffer_of(name)] if item[0] != number]
        views = tuple(
            (cell, kind.shape, kind.strides, kind.offset) for cell, kind in others if kind.dtype == dtype
        )
        of_other_types = tuple(item for item in others if item[1].dtype != dtype)
        found.append(Output(place, number, views, of_other_types))
    return tuple(found)


def with_checks(
    kernel: Callable[..., Any], op: Op, call: Call, cells: Cells, graph: Graph, oversized: set[str]
) -> Callable[..., Any]:
    """``kernel``, its results held against the graph: type, strides, size, no shared memory."""
    read = [cells.value(name) for name in call.refs()]

    def checked(*given: Any) -> Any:
        results = list(kernels.outputs_of(kernel(*given)))
        if len(results) < len(op.outputs):
            raise ReplayError(f"op {op.name} gave {len(results)} tensors, the plan says {len(op.outputs)}")
        taken = {cells.contents[number].untyped_storage().data_ptr() for number in read}
        for place, name in enumerate(op.outputs):
            if name is None:
                continue
            result = _checked_result(op, name, results[place], cells.types[name])
            storage = result.untyped_storage()
            if storage.nbytes() > cells.sizes_bytes[graph.buffer_of(name)]:
                oversized.add(name)
                results[place] = _compact(result, cells.types[name])
            elif storage.nbytes() and storage.data_ptr() in taken:
                raise ReplayError(f"op {op.name}: {name} shares its memory with another tensor")
            taken.add(storage.data_ptr())
        return results

    return checked


def _checked_result(op: Op, name: str, result: torch.Tensor | None, kind: TensorType) -> torch.Tensor:
    if result is None:
        raise ReplayError(f"op {op.name}: {name} did not come out as a tensor")
    found = (result.dtype, tuple(result.shape), result.stride(), result.storage_offset())
    if found != (arguments.dtype(kind.dtype), kind.shape, kind.strides, kind.offset):
        raise ReplayError(
            f"op {op.name}: {name} came out as {result.dtype}{list(result.shape)} with strides "
            f"{result.stride()}, the plan says {kind} with strides {kind.strides}; "
            "solve again with this version of torch"
        )
    return result


def compacting(kernel: Callable[..., Any], op: Op, cells: Cells, oversized: set[str]) -> Callable[..., Any]:
    """``kernel``, with results that are small parts of a temporary of its moved into their own memory."""
    places = [
        (place, cells.types[name])
        for place, name in enumerate(op.outputs)
        if name is not None and name in oversized
    ]

    def compacted(*given: Any) -> Any:
        results = list(kernels.outputs_of(kernel(*given)))
        for place, kind in places:
            results[place] = _compact(results[place], kind)
        return results

    return compacted


def _compact(result: torch.Tensor | None, kind: TensorType) -> torch.Tensor:
    """A copy of ``result`` in a storage of just its size."""
    assert result is not None
    copy = view_of(new_buffer(kind.extent_bytes).untyped_storage(), kind)
    return copy.copy_(result)


# --- schedules ------------------------------------------------------------------------------------


class UnderWay:
    """Which buffers have transfers that nothing has waited for, while a schedule is compiled."""

    def __init__(self, graph: Graph) -> None:
        self._reads = {
            op.name: (graph.reads(op.call), graph.reads(op.recall) if op.recall is not None else ())
            for op in graph.ops
        }
        self._updates = {op.name: op.updates for op in graph.ops}
        self._in: set[str] = set()
        self._out: set[str] = set()

    def before(self, step: Step, *, is_first: bool) -> tuple[str, ...]:
        """Buffers that ``step`` must wait for: what it reads has arrived, what it changes has left."""
        waits: set[str] = set()
        if isinstance(step, Compute):
            first, again = self._reads[step.op]
            waits = self._in.intersection(first if is_first else again)
            if is_first:
                waits |= (self._in | self._out).intersection(self._updates[step.op])
        elif isinstance(step, Free):
            waits = (self._in | self._out) & {step.tensor}
        else:
            (self._out if isinstance(step, PageOut) else self._in).add(step.tensor)
        return self._waited(waits)

    def before_moves(self, moves: Sequence[MadeMove]) -> tuple[str, ...]:
        """Buffers that ``moves`` must wait for: those that they move."""
        return self._waited((self._in | self._out).intersection(move.tensor for move in moves))

    def _waited(self, waits: set[str]) -> tuple[str, ...]:
        self._in -= waits
        self._out -= waits
        return tuple(sorted(waits))


def compile_plan(
    plan: Plan,
    cells: Cells,
    *,
    pages: Pager | None,
    generator: torch.Generator | None = None,
    oversized: set[str] | None = None,
    moving: Moving | None = None,
) -> Program:
    """Bind the schedule of ``plan`` to kernels and ``cells``.

    Args:
        plan: whose schedule the simulator accepted.
        cells: of its graph.
        pages: where buffers are paged; ``None`` where none is. Where transfers run in the background, an
            instruction waits for those of the buffers that it reads, overwrites or frees, and the last
            one for all.
        generator: that random ops draw from; ``None``: torch's default one.
        oversized: of the program that ran the first step. Without it, each result is compared with what
            the graph says about it.
        moving: who makes the plan's moves within the arena; ``None``: nobody.

    Raises:
        PlanError: the plan asks for an operator or an argument that this runtime does not have.
    """
    return _Compiler(plan, cells, pages, generator, oversized, moving).program()


class _Compiler:
    """The instructions so far, while a schedule is read; see `compile_plan`."""

    def __init__(
        self,
        plan: Plan,
        cells: Cells,
        pages: Pager | None,
        generator: torch.Generator | None,
        oversized: set[str] | None,
        moving: Moving | None,
    ) -> None:
        self.plan, self.graph, self.cells, self.moving = plan, plan.graph, cells, moving
        self.pages, self.generator = pages, generator
        self.background = pages if pages is not None and pages.is_background else None
        self.checks = oversized is None
        self.oversized: set[str] = set() if oversized is None else oversized
        self.ops = {op.name: op for op in self.graph.ops}
        self.forms = {tensor.name: tensor.page_form for tensor in plan.problem.tensors}
        self.persistent = self.graph.persistent()
        self.strips = BoundStrips(self.graph, cells)
        self.under_way = UnderWay(self.graph)
        self.threads, self.own_threads = OpThreads(), plan.own_threads()
        self.moves: dict[int, list[MadeMove]] = {}  # by the step before which they are made
        for move in plan.places.moves if moving is not None and plan.places is not None else ():
            self.moves.setdefault(move.step, []).append(move)
        self.in_ram = set(initially_in_ram(plan))
        self.ran: set[str] = set()
        self.first_update = len(plan.schedule)
        self.made: list[Instruction] = []

    def program(self) -> Program:
        """The whole schedule's."""
        for index, step in enumerate(self.plan.schedule):
            self.add(index, step)
        steps = len(self.plan.schedule)
        if moved := self.moves.get(steps):
            self.put(Instruction(steps, no_kernel, no_arguments), self.under_way.before_moves(moved), moved)
        return Program(
            self.made,
            first_update=self.first_update,
            gradients=gradient_taps(self.plan, self.cells, self.strips),
            oversized=self.oversized,
            background=self.background,
            threads=self.threads,
        )

    def add(self, index: int, step: Step) -> None:
        moved = self.moves.get(index, [])
        waits = self.under_way.before_moves(moved)
        waits += self.under_way.before(step, is_first=isinstance(step, Compute) and step.op not in self.ran)
        if not isinstance(step, Free):
            self.put(self.instruction(index, step), waits, moved)
            return
        if not self.made or moved or (waits and self.background is not None):
            self.put(Instruction(index, no_kernel, no_arguments), waits, moved)
        self.made[-1].frees += (number for number, _ in self.cells.of_buffer[step.tensor])
        self.in_ram.remove(step.tensor)

    def put(self, item: Instruction, waits: Sequence[str], moved: Sequence[MadeMove]) -> None:
        """Add ``item``, which first waits for transfers, then has tensors moved."""
        if moved and self.moving is not None:
            item.run_after(functools.partial(self.moving.make, moved, self.cells))
        if waits and self.background is not None:
            item.run_after(functools.partial(_wait, waits, self.background))
        self.made.append(item)

    def instruction(self, index: int, step: Step) -> Instruction:
        if isinstance(step, Compute):
            return self.compute(index, step)
        if self.pages is None:
            raise PlanError(f"{self.plan.model.name}: the plan pages but no page file is open")
        if not isinstance(step, PageOut):
            self.in_ram.add(step.tensor)
        transfer = page_out if isinstance(step, PageOut) else page_in
        return Instruction(
            index,
            functools.partial(transfer, step.tensor, self.cells, self.pages, self.forms[step.tensor]),
            no_arguments,
        )

    def table_of(self, op: Op) -> StoredTable | None:
        """The table in storage of which ``op`` reads or updates rows; ``None``: there is none."""
        if not op.stored:
            return None
        if self.pages is None:
            raise PlanError(f"{self.plan.model.name}: op {op.name} reads storage but no page file is open")
        return TableInPages(op, self.graph, self.pages)

    def compute(self, index: int, step: Compute) -> Instruction:
        op, cells, graph = self.ops[step.op], self.cells, self.graph
        new = [name for name in graph.writes(op) if name not in self.in_ram]
        call = op.recall if op.name in self.ran and op.recall is not None else op.call
        if op.strip is None:
            kernel, fetch = bound_call(call, cells, self.generator, self.table_of(op))
        else:
            kernel, fetch = self.strips.of(op).bound, no_arguments
        if self.checks:
            kernel = with_checks(kernel, op, call, cells, graph, self.oversized)
        elif self.oversized.intersection(filter(None, op.outputs)):
            kernel = compacting(kernel, op, cells, self.oversized)
        if op.name not in self.ran and self.persistent.intersection(op.updates):
            self.first_update = min(self.first_update, index)
        self.in_ram.update(new)
        self.ran.add(op.name)
        made = Instruction(index, kernel, fetch, outputs_of(op, new, cells, graph))
        if self.own_threads:
            made.run_after(functools.partial(self.threads.use, self.own_threads.get(op.name)))
        return made


def _wait(buffers: Sequence[str], pages: Pager) -> None:
    for buffer in buffers:
        pages.wait(buffer)


def initially_in_ram(plan: Plan) -> tuple[str, ...]:
    """Buffers that are in RAM when a step begins."""
    produced = {name for op in plan.graph.ops for name in plan.graph.writes(op)}
    return tuple(
        tensor.name
        for tensor in plan.problem.tensors
        if tensor.name not in produced and tensor.initially is not Place.STORAGE
    )
