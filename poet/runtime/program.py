"""A plan's schedule, compiled once into instructions that are bound to what they work on.

Everything an operator may be given (values, constants, the optimizer's per-step scalars) stands in a
numbered cell. An instruction knows its kernel and its cell numbers; running it fetches its
arguments, calls, and puts the results into their cells. A value's tensor lives as long as its
buffer's cells hold it: emptying them gives the memory back.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from poet.errors import PlanError, ReplayError
from poet.graph import Argument, Call, Graph, Op, Ref, Symbol, TensorType
from poet.places import MadeMove
from poet.problem import Place
from poet.runtime import kernels
from poet.runtime.background import Pager
from poet.runtime.cells import Cells, memory_of, new_buffer, resolved, view_of
from poet.runtime.moving import Moving
from poet.runtime.strips import StripRun
from poet.schedule import Compute, Free, PageOut, Step
from poet.training_plan import Plan

Instruction = Callable[[], None]
Mark = Callable[[int], object] | None
"""Called with 1 + the number of each instruction's step before it runs, where memory is placed."""


@dataclass(frozen=True, slots=True)
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
    """

    instructions: tuple[tuple[int, Instruction], ...]
    first_update: int
    gradients: Mapping[int, tuple[GradientTap, ...]]
    oversized: set[str]


def compile_plan(
    plan: Plan,
    cells: Cells,
    *,
    pages: Pager | None,
    generator: torch.Generator | None = None,
    after: Program | None = None,
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
        after: the program that ran the first step. Without it, each result is compared with what the
            graph says about it.
        moving: who makes the plan's moves within the arena; ``None``: nobody.

    Raises:
        PlanError: the plan asks for an operator or an argument that this runtime does not have.
    """
    graph = plan.graph
    ops = {op.name: op for op in graph.ops}
    persistent = graph.persistent()
    in_ram = set(initially_in_ram(plan))
    ran: set[str] = set()
    instructions: list[Instruction] = []
    oversized: set[str] = set() if after is None else after.oversized
    first_update = len(plan.schedule)
    under_way = _UnderWay(graph)
    strips = _Strips(graph, cells)
    begins: list[int] = []  # of the instructions, in the schedule
    frees: list[int] = []  # cells that the last instruction empties, if it frees
    moves = _moves_by_step(plan, moving)
    for index, step in enumerate(plan.schedule):
        moved = moves.get(index, [])
        waits = under_way.before_moves(moved)
        waits += under_way.before(step, is_first=isinstance(step, Compute) and step.op not in ran)
        if isinstance(step, Free) and frees and not waits and not moved:
            frees += _cells_of(step.tensor, cells)
            in_ram.remove(step.tensor)
            continue
        begins.append(index)
        frees = _cells_of(step.tensor, cells) if isinstance(step, Free) else []
        if isinstance(step, Compute):
            op = ops[step.op]
            new = [name for name in graph.writes(op) if name not in in_ram]
            call = op.recall if op.name in ran and op.recall is not None else op.call
            run = _bind_call(call, cells, generator) if op.strip is None else strips.of(op).bound
            if after is None:
                run = _with_checks(run, op, call, cells, graph, oversized)
            elif oversized.intersection(filter(None, op.outputs)):
                run = _compacting(run, op, cells, oversized)
            instructions.append(_compute(run, op, new, cells, graph))
            if op.name not in ran and persistent.intersection(op.updates):
                first_update = min(first_update, index)
            in_ram.update(new)
            ran.add(op.name)
        elif isinstance(step, Free):
            instructions.append(_free(frees, cells))
            in_ram.remove(step.tensor)
        elif pages is None:
            raise PlanError(f"{plan.model.name}: the plan pages but no page file is open")
        elif isinstance(step, PageOut):
            instructions.append(functools.partial(page_out, step.tensor, cells, pages))
        else:
            instructions.append(functools.partial(page_in, step.tensor, cells, pages))
            in_ram.add(step.tensor)
        if moved and moving is not None:
            instructions[-1] = _moving(instructions[-1], moved, cells, moving)
        if waits and pages is not None and pages.is_background:
            instructions[-1] = _waiting(instructions[-1], waits, pages)
    if moving is not None and (moved := moves.get(len(plan.schedule), [])):
        begins.append(len(plan.schedule))
        instructions.append(functools.partial(moving.make, moved, cells))
        if pages is not None and pages.is_background:
            instructions[-1] = _waiting(instructions[-1], under_way.before_moves(moved), pages)
    if instructions and pages is not None and pages.is_background:
        instructions[-1] = _settling(instructions[-1], pages)
    numbered = tuple(zip(begins, instructions, strict=True))
    return Program(numbered, first_update, _gradient_taps(plan, cells, strips), oversized)


def _moves_by_step(plan: Plan, moving: Moving | None) -> dict[int, list[MadeMove]]:
    """The moves within the arena, by the step before which they are made."""
    found: dict[int, list[MadeMove]] = {}
    for move in plan.places.moves if moving is not None and plan.places is not None else ():
        found.setdefault(move.step, []).append(move)
    return found


def _gradient_taps(plan: Plan, cells: Cells, strips: _Strips) -> dict[int, tuple[GradientTap, ...]]:
    """A tap per gradient by the index of the step that first makes it."""
    graph = plan.graph
    inner = {value.name: op for op in graph.ops if op.strip is not None for value in op.strip.inner}
    tapped: dict[str, list[GradientTap]] = {}
    within: dict[str, list[GradientTap]] = {}
    summed: dict[str, list[GradientTap]] = {}
    for parameter in graph.parameters:
        if parameter.gradient is None:
            continue
        if parameter.accumulator is not None:  # what a loop of one's own finds in .grad before its step
            tap = _CellTap(parameter.name, cells.contents, cells.value(parameter.accumulator))
            summed.setdefault(graph.buffer_of(parameter.accumulator), []).append(tap)
        elif parameter.gradient in inner:
            op = inner[parameter.gradient]
            within.setdefault(op.name, []).append(
                _BlockTap(parameter.name, strips.of(op), parameter.gradient)
            )
        else:
            tap = _CellTap(parameter.name, cells.contents, cells.value(parameter.gradient))
            tapped.setdefault(graph.buffer_of(parameter.gradient), []).append(tap)
    first_runs: dict[str, int] = {}
    for index, step in enumerate(plan.schedule):
        if isinstance(step, Compute):
            first_runs.setdefault(step.op, index)
    taps = {}
    for op in graph.ops:
        made = [tap for name in graph.writes(op) for tap in tapped.get(name, ())]
        made += within.get(op.name, ())
        made += [tap for name in op.updates for tap in summed.get(name, ())]
        if made:
            taps[first_runs[op.name]] = tuple(made)
    return taps


class GradientTap(Protocol):
    """Gives one gradient to a caller who asked to see it.

    Attributes:
        name: of the parameter.
    """

    @property
    def name(self) -> str: ...

    def open(self) -> None:
        """To be called before the step that makes it; what is allocated is not the step's."""

    def take(self) -> torch.Tensor:
        """The gradient, after that step."""


@dataclass(frozen=True, slots=True)
class _CellTap:
    """Of a gradient that exists whole."""

    name: str
    contents: list[Any]
    cell: int

    def open(self) -> None:
        pass

    def take(self) -> torch.Tensor:
        gradient: torch.Tensor = self.contents[self.cell]
        return gradient


@dataclass(frozen=True, slots=True)
class _BlockTap:
    """Of a gradient that exists one block at a time: it is put together beside the step."""

    name: str
    strip: BoundStrip
    value: str

    def open(self) -> None:
        self.strip.gather(self.value)

    def take(self) -> torch.Tensor:
        return self.strip.gathered(self.value)


class BoundStrip:
    """A strip with its kernels and cells; `bound` makes it once."""

    def __init__(self, op: Op, cells: Cells) -> None:
        assert op.strip is not None
        self._run = StripRun(op.strip, op.outputs, cells.types)
        self._cells = {name: cells.value(name) for name in op.strip.call.refs()}
        self._scalars = {
            argument.name: cells.argument(argument)
            for link in op.strip.links
            for argument in (*link.call.args, *(item for _, item in link.call.kwargs))
            if isinstance(argument, Symbol) and argument.kind == "hyperparameter"
        }
        self._contents = cells.contents
        self._inner = {value.name: value for value in op.strip.inner}
        self._targets: dict[str, torch.Tensor] = {}  # by inner output

    def bound(self) -> tuple[torch.Tensor | None, ...]:
        """Run every block."""
        see = self._see if self._targets else None
        return self._run.run(self._tensor, self._scalar, see)

    def gather(self, value: str) -> None:
        """Make memory for all of an inner value, which the next run fills."""
        whole = self._inner[self._inner[value].buffer]
        raw = new_buffer(whole.type.extent_bytes)
        self._targets[whole.name] = view_of(raw.untyped_storage(), whole.type)

    def gathered(self, value: str) -> torch.Tensor:
        """What was gathered of it since; it is given up here."""
        wanted = self._inner[value]
        whole = self._targets.pop(wanted.buffer)
        return view_of(whole.untyped_storage(), wanted.type)

    def _see(self, name: str, dim: int, block: torch.Tensor, start: int) -> None:
        if name in self._targets:
            self._targets[name].narrow(dim, start, block.shape[dim]).copy_(block)

    def _tensor(self, name: str) -> torch.Tensor:
        tensor: torch.Tensor = self._contents[self._cells[name]]
        return tensor

    def _scalar(self, name: str) -> float:
        amount: float = self._contents[self._scalars[name]]
        return amount


class _Strips:
    """The bound strips of a graph, each made once."""

    def __init__(self, graph: Graph, cells: Cells) -> None:
        self._bound = {op.name: BoundStrip(op, cells) for op in graph.ops if op.strip is not None}

    def of(self, op: Op) -> BoundStrip:
        return self._bound[op.name]


def initially_in_ram(plan: Plan) -> tuple[str, ...]:
    """Buffers that are in RAM when a step begins."""
    produced = {name for op in plan.graph.ops for name in plan.graph.writes(op)}
    return tuple(
        tensor.name
        for tensor in plan.problem.tensors
        if tensor.name not in produced and tensor.initially is not Place.STORAGE
    )


class _UnderWay:
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


def page_out(buffer: str, cells: Cells, pages: Pager) -> None:
    """Copy a buffer's bytes to its slot."""
    pages.write(buffer, memory_of(cells.raw(buffer)))


def page_in(buffer: str, cells: Cells, pages: Pager) -> None:
    """Allocate a buffer and fill it from its slot."""
    raw = new_buffer(cells.sizes_bytes[buffer])
    pages.read_into(buffer, memory_of(raw))
    cells.install(buffer, raw)


def _moving(after: Instruction, moves: Sequence[MadeMove], cells: Cells, moving: Moving) -> Instruction:
    """``after``, once tensors have their next places."""

    def moved() -> None:
        moving.make(moves, cells)
        after()

    return moved


# --- one instruction each -----------------------------------------------------------------------


def _compute(run: Callable[[], Any], op: Op, new: Sequence[str], cells: Cells, graph: Graph) -> Instruction:
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
            for cell, kind in views:
                contents[cell] = view_of(result.untyped_storage(), kind)

    if len(bound) != 1 or bound[0][0] or bound[0][2]:
        return compute
    number = bound[0][1]

    def compute_one() -> None:
        results = run()
        contents[number] = results if isinstance(results, torch.Tensor) else results[0]

    return compute_one


def _output_cells(cells: Cells, graph: Graph, output: str) -> tuple[int, list[tuple[int, TensorType]]]:
    """The output's own cell and those of the views of its buffer."""
    number = cells.value(output)
    return number, [item for item in cells.of_buffer[graph.buffer_of(output)] if item[0] != number]


def _cells_of(buffer: str, cells: Cells) -> list[int]:
    return [number for number, _ in cells.of_buffer[buffer]]


def _free(numbers: list[int], cells: Cells) -> Instruction:
    """Empty the cells in ``numbers``, to which more may still be added."""
    contents = cells.contents

    def free() -> None:
        for number in numbers:
            contents[number] = None

    return free


def _waiting(run: Instruction, buffers: Sequence[str], pages: Pager) -> Instruction:
    """``run``, once the transfers of ``buffers`` are done."""

    def waiting() -> None:
        for buffer in buffers:
            pages.wait(buffer)
        run()

    return waiting


def _settling(run: Instruction, pages: Pager) -> Instruction:
    """``run``, and then every transfer to its end."""

    def settling() -> None:
        run()
        pages.drain()

    return settling


def _bind_call(call: Call, cells: Cells, generator: torch.Generator | None) -> Callable[[], Any]:
    """The kernel with its arguments' cells; each run fetches them in one go."""
    contents = cells.contents
    kernel = kernels.kernel(call.target, generator)
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
    fetch = operator.itemgetter(*numbers)
    return lambda: kernel(*fetch(contents))


# --- checks of a first run ----------------------------------------------------------------------


def _with_checks(
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
    if found != (kernels.dtype(kind.dtype), kind.shape, kind.strides, kind.offset):
        raise ReplayError(
            f"op {op.name}: {name} came out as {result.dtype}{list(result.shape)} with strides "
            f"{result.stride()}, the plan says {kind} with strides {kind.strides}; "
            "solve again with this version of torch"
        )
    return result


def _compacting(run: Callable[[], Any], op: Op, cells: Cells, oversized: set[str]) -> Callable[[], Any]:
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


def _is_fetched(argument: Argument) -> bool:
    return isinstance(argument, Ref) or (isinstance(argument, Symbol) and argument.kind == "hyperparameter")
