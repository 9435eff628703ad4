"""A plan's schedule, compiled once into instructions that are bound to what they work on.

Everything an operator may be given (values, constants, the optimizer's per-step scalars) stands in a
numbered cell. An instruction knows its kernel and its cell numbers; running it fetches its
arguments, calls, and puts the results into their cells. A value's tensor lives as long as its
buffer's cells hold it: emptying them gives the memory back.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from poet.errors import PlanError, ReplayError
from poet.ir.graph import Call, Graph, Op, TensorType
from poet.memory.demand import MadeMove
from poet.plans.training_plan import Plan
from poet.problem import Place
from poet.problem.schedule import Compute, Free, PageOut, Step
from poet.runtime import kernels
from poet.runtime.kernels import arguments
from poet.runtime.kernels.cells import Cells, new_buffer, view_of
from poet.runtime.kernels.tables import StoredTable
from poet.runtime.steps.gradient_taps import BoundStrips, GradientTap, gradient_taps
from poet.runtime.steps.instructions import (
    Fetch,
    Instruction,
    Moving,
    Straight,
    TableInPages,
    bound_call,
    cells_of,
    computing,
    freeing,
    moved_before,
    page_in,
    page_out,
    settling_after,
    waiting_for,
)
from poet.runtime.storage.background import Pager


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


def with_checks(
    run: Callable[[], Any], op: Op, call: Call, cells: Cells, graph: Graph, oversized: set[str]
) -> Callable[[], Any]:
    """``run``, its results held against the graph: type, strides, size, no shared memory."""
    given = [cells.value(name) for name in call.refs()]

    def checked() -> Any:
        results = list(kernels.outputs_of(run()))
        if len(results) < len(op.outputs):
            raise ReplayError(f"op {op.name} gave {len(results)} tensors, the plan says {len(op.outputs)}")
        taken = {cells.contents[number].untyped_storage().data_ptr() for number in given}
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


def compacting(run: Callable[[], Any], op: Op, cells: Cells, oversized: set[str]) -> Callable[[], Any]:
    """``run``, with results that are small parts of a kernel's temporary moved into their own memory."""
    places = [
        (place, cells.types[name])
        for place, name in enumerate(op.outputs)
        if name is not None and name in oversized
    ]

    def compacted() -> Any:
        results = list(kernels.outputs_of(run()))
        for place, kind in places:
            results[place] = _compact(results[place], kind)
        return results

    return compacted


def _compact(result: torch.Tensor | None, kind: TensorType) -> torch.Tensor:
    """A copy of ``result`` in a storage of just its size."""
    assert result is not None
    copy = view_of(new_buffer(kind.extent_bytes).untyped_storage(), kind)
    return copy.copy_(result)


Mark = Callable[[int], object] | None
"""Called with 1 + the number of each instruction's step before it runs, where memory is placed."""


@dataclass(slots=True)
class Program:
    """A compiled schedule.

    Attributes:
        instructions: each with the index of its step in the plan's schedule; frees in a row are one,
            with the first's. Moves within the arena are made with the step before which they stand, those
            after the last one as one more.
        first_update: index of the first step that overwrites what lives across steps.
        gradients: taps by the index of the step that makes what they give.
        oversized: outputs whose kernels leave them in more memory than they need; filled by the run
            of a program that checks.
        reached: the index of the step that `run` made last, or at which it failed.
    """

    instructions: tuple[tuple[int, Instruction], ...]
    first_update: int
    gradients: Mapping[int, tuple[GradientTap, ...]]
    oversized: set[str]
    reached: int = -1
    _flat: list[tuple[int, Callable[..., Any], Fetch | None, int]] = field(init=False)

    def __post_init__(self) -> None:
        self._flat = [
            (index, run.kernel, run.fetch, run.cell) if isinstance(run, Straight) else (index, run, None, 0)
            for index, run in self.instructions
        ]

    def run(self, contents: list[Any], mark: Mark) -> None:
        """Make every instruction on the ``contents`` of the cells, in one flat loop."""
        mark = mark or _ignore
        for index, run, fetch, cell in self._flat:
            self.reached = index
            mark(index + 1)
            if fetch is None:
                run()
            else:
                result = run(*fetch(contents))
                contents[cell] = result if isinstance(result, torch.Tensor) else result[0]
                del result  # its place may be planned for the next one


def _ignore(_: int) -> None:
    """No memory is placed."""


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
        self.persistent = self.graph.persistent()
        self.strips = BoundStrips(self.graph, cells)
        self.under_way = UnderWay(self.graph)
        self.moves = _moves_by_step(plan, moving)
        self.in_ram = set(initially_in_ram(plan))
        self.ran: set[str] = set()
        self.first_update = len(plan.schedule)
        self.frees: list[int] = []  # cells that the last instruction empties, if it frees
        self.numbered: list[tuple[int, Instruction]] = []

    def program(self) -> Program:
        """The whole schedule's."""
        for index, step in enumerate(self.plan.schedule):
            self.add(index, step)
        self.end()
        taps = gradient_taps(self.plan, self.cells, self.strips)
        return Program(tuple(self.numbered), self.first_update, taps, self.oversized)

    def add(self, index: int, step: Step) -> None:
        moved = self.moves.get(index, [])
        waits = self.under_way.before_moves(moved)
        is_first = isinstance(step, Compute) and step.op not in self.ran
        waits += self.under_way.before(step, is_first=is_first)
        if isinstance(step, Free) and self.frees and not waits and not moved:
            self.frees += cells_of(step.tensor, self.cells)
            self.in_ram.remove(step.tensor)
            return
        self.frees = cells_of(step.tensor, self.cells) if isinstance(step, Free) else []
        run = self.instruction(index, step)
        if moved and self.moving is not None:
            run = moved_before(run, moved, self.cells, self.moving)
        self.put(index, run, waits)

    def put(self, index: int, run: Instruction, waits: Sequence[str]) -> None:
        if waits and self.background is not None:
            run = waiting_for(run, waits, self.background)
        self.numbered.append((index, run))

    def instruction(self, index: int, step: Step) -> Instruction:
        if isinstance(step, Compute):
            return self.compute(index, step)
        if isinstance(step, Free):
            self.in_ram.remove(step.tensor)
            return freeing(self.frees, self.cells)
        if self.pages is None:
            raise PlanError(f"{self.plan.model.name}: the plan pages but no page file is open")
        if isinstance(step, PageOut):
            return functools.partial(page_out, step.tensor, self.cells, self.pages)
        self.in_ram.add(step.tensor)
        return functools.partial(page_in, step.tensor, self.cells, self.pages)

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
            run = bound_call(call, cells, self.generator, self.table_of(op))
        else:
            run = self.strips.of(op).bound
        if self.checks:
            run = with_checks(run, op, call, cells, graph, self.oversized)
        elif self.oversized.intersection(filter(None, op.outputs)):
            run = compacting(run, op, cells, self.oversized)
        if op.name not in self.ran and self.persistent.intersection(op.updates):
            self.first_update = min(self.first_update, index)
        self.in_ram.update(new)
        self.ran.add(op.name)
        return computing(run, op, new, cells, graph)

    def end(self) -> None:
        """What is moved after the last step, and the end of all transfers."""
        steps = len(self.plan.schedule)
        if self.moving is not None and (moved := self.moves.get(steps, [])):
            run = functools.partial(self.moving.make, moved, self.cells)
            self.put(steps, run, self.under_way.before_moves(moved))
        if self.numbered and self.background is not None:
            index, last = self.numbered[-1]
            self.numbered[-1] = index, settling_after(last, self.background)


def _moves_by_step(plan: Plan, moving: Moving | None) -> dict[int, list[MadeMove]]:
    """The moves within the arena, by the step before which they are made."""
    found: dict[int, list[MadeMove]] = {}
    for move in plan.places.moves if moving is not None and plan.places is not None else ():
        found.setdefault(move.step, []).append(move)
    return found


def initially_in_ram(plan: Plan) -> tuple[str, ...]:
    """Buffers that are in RAM when a step begins."""
    produced = {name for op in plan.graph.ops for name in plan.graph.writes(op)}
    return tuple(
        tensor.name
        for tensor in plan.problem.tensors
        if tensor.name not in produced and tensor.initially is not Place.STORAGE
    )
