"""One schedule of a graph that is ready to replay, with what it was asked for and what it takes.

A `PlannedStep` that exists is consistent: its problem is that of its graph, the simulator accepted its
schedule inside the limits asked for, its predictions are the simulator's, and its page slots lie
apart. `poet.plans.training_plan` has the plan, with its auxiliary schedules.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from poet.errors import InvalidSchedule, PlanError
from poet.ir.graph import Graph, TensorType, floats_within
from poet.ir.kernel_facts import KernelFacts
from poet.ir.optimizer import OptimizerSpec
from poet.memory.demand import BEFORE, Demand, Places, demand_of, replayed
from poet.memory.layout import Layout, check_layout, lower_bound_bytes
from poet.plans.page_slots import check_slots
from poet.plans.plan_parts import (
    Arena,
    Device,
    Model,
    PageSlot,
    Prediction,
    PriceEnds,
    Request,
    SearchOutcome,
)
from poet.problem import PageForm, Place, Problem
from poet.problem.homes import DecidedProblem
from poet.problem.rounded import rounded_pages
from poet.problem.schedule import Schedule
from poet.problem.simulator import Trace, judge
from poet.version import __version__


def stored_values(graph: Graph) -> dict[str, TensorType]:
    """Values that live across steps, by name: parameters, optimizer state, module state, constants."""
    types = {value.name: value.type for value in graph.values}
    names = [parameter.value for parameter in graph.parameters]
    names += [value for parameter in graph.parameters for _, value in parameter.optimizer_state]
    names += [value for _, value in (*graph.states, *graph.constants)]
    return {name: types[name] for name in names}


def lasting_values(graph: Graph) -> dict[str, TensorType]:
    """`stored_values`, and the sums of gradients, which no file holds: a step starts them over."""
    types = {value.name: value.type for value in graph.values}
    sums = [item.accumulator for item in graph.parameters if item.accumulator is not None]
    return stored_values(graph) | {name: types[name] for name in sums}


LARGEST_BYTES = 1 << 48
"""No buffer, and nothing in one, is larger."""

_ROUNDING = 1e-6  # of a plan's joules, that a bound may be above them


def check_problem(graph: Graph, problem: Problem, kernels: KernelFacts) -> None:
    """The problem's tensors are the graph's buffers, its ops the graph's ops, with the same effects."""
    sizes = {buffer.name: buffer.size_bytes for buffer in graph.buffers}
    sizes |= dict.fromkeys(graph.in_flash(kernels.library), 0)
    if sizes != {tensor.name: tensor.bytes for tensor in problem.tensors}:
        raise PlanError("the problem's tensors are not the graph's buffers")
    rough = {tensor.name for tensor in problem.tensors if tensor.page_form is not None}
    if rough and not rough <= floats_within(graph):
        raise PlanError(f"{min(rough - floats_within(graph))} is not to be rounded when it is paged")
    if any(buffer.size_bytes > LARGEST_BYTES for buffer in graph.buffers):
        raise PlanError(f"a buffer is larger than {LARGEST_BYTES} bytes")
    for value in graph.values:
        if max((*value.type.shape, *value.type.strides, value.type.offset)) > LARGEST_BYTES:
            raise PlanError(f"value {value.name} has a size, stride or offset above {LARGEST_BYTES}")
    if [op.name for op in graph.ops] != [op.name for op in problem.ops]:
        raise PlanError("the problem's ops are not the graph's ops")
    for op, costed in zip(graph.ops, problem.ops, strict=True):
        recall = op.recall
        agree = (
            set(costed.inputs) == set(graph.reads(op.call))
            and costed.outputs == graph.writes(op)
            and {*costed.updates, *costed.stored_updates} == set(op.updates)
            and (recall is not None or not costed.recomputable)
            and (recall is None or set(costed.rerun_inputs) >= set(graph.reads(recall)))
            and costed.random == op.random
            and costed.stored == op.stored
            and set(costed.stored_updates) == {*op.updates} & {*op.stored}
        )
        if not agree:
            raise PlanError(f"op {op.name} of the problem contradicts the graph")
        if costed.workspace_bytes < kernels.of(op.name).workspace_bytes:
            raise PlanError(f"op {op.name} of the problem has a smaller workspace than its kernel")
    if problem.kernels != kernels.library:
        raise PlanError(f"the problem counts kernels {problem.kernels!r}, the plan's are {kernels.library!r}")


def check_kernels(graph: Graph, kernels: KernelFacts) -> None:
    """What is said about kernels is about ops of the graph and the buffers that they allocate."""
    ops = {op.name: op for op in graph.ops}
    for facts in kernels.ops:
        if facts.name not in ops:
            raise PlanError(f"kernels {kernels.library}: there is no op {facts.name!r}")
        if facts.outputs > len(graph.writes(ops[facts.name])):
            raise PlanError(f"op {facts.name}: its kernel's allocations do not become its outputs")


def check_ends(graph: Graph, problem: Problem) -> None:
    """Every step can follow the one before, and its results are there to be handed over."""
    tensors = {tensor.name: tensor for tensor in problem.tensors}
    loss = next(value.type for value in graph.values if value.name == graph.loss)
    if loss.elements != 1:
        raise PlanError(f"the loss {graph.loss} is {loss}; a step minimises a single number")
    produced = {name for op in graph.ops for name in graph.writes(op)}
    inputs = {graph.buffer_of(name) for name in graph.inputs}
    updated = {name for op in graph.ops for name in op.updates}
    persistent = graph.persistent()
    for name in (graph.loss, *graph.predictions):
        if tensors[graph.buffer_of(name)].finally_ is not Place.RAM:
            raise PlanError(f"{name} is handed to the caller but need not end in RAM")
    for name, tensor in tensors.items():
        if name in produced:
            continue
        if (name in inputs) == (name in persistent):
            raise PlanError(f"buffer {name} must be either an input or live across steps")
        if name in inputs and tensor.initially not in (None, Place.RAM):
            raise PlanError(f"input {name} must begin in RAM")
        if name in inputs:
            continue
        ends = {
            Place.STORAGE: name not in updated or tensor.finally_ is Place.STORAGE,
            Place.BOTH: name not in updated and tensor.finally_ is Place.RAM,
        }
        if not ends.get(tensor.initially or Place.RAM, tensor.finally_ is Place.RAM):
            raise PlanError(f"buffer {name} lives across steps but does not end where it begins")


def check_prediction(prediction: Prediction, graph: Graph, trace: Trace) -> None:
    """Of a step it says what the simulator says; of measured ops, what can be true of the graph."""
    said = (prediction.seconds, prediction.joules)
    judged = (trace.seconds, trace.joules)
    close = all(math.isclose(a, b, rel_tol=1e-9) for a, b in zip(said, judged, strict=True))
    if not close or prediction.peak_ram_bytes != trace.peak_ram_bytes:
        raise PlanError("the predictions are not what the simulator says about the schedule")
    measured = prediction.measured
    if measured is not None:
        names, others = {op.name for op in graph.ops}, set(measured.extrapolated)
        counted = len(measured.extrapolated) == len(others) == len(names) - measured.ops
        if not counted or not others <= names or not 0.0 <= measured.seconds_share <= 1 + _ROUNDING:
            raise PlanError("what it says of measured ops is not of its graph")
    ends = prediction.range
    if ends is not None:
        _check_between(ends, trace)
        if ends.likely is not None:
            _check_between(ends.likely, trace)


def _check_between(ends: PriceEnds, trace: Trace) -> None:
    for good, stated, bad in (
        (ends.good_seconds, trace.seconds, ends.bad_seconds),
        (ends.good_joules, trace.joules, ends.bad_joules),
    ):
        if not 0.0 <= good <= (1 + _ROUNDING) * stated or not stated <= (1 + _ROUNDING) * bad < math.inf:
            raise PlanError("the range of the predictions does not contain them")


def check_outcome(outcome: SearchOutcome, trace: Trace) -> None:
    """What is said of all other plans does not contradict this one."""
    if outcome.bound_joules > (1 + _ROUNDING) * trace.joules:
        raise PlanError(
            f"its bound of {outcome.bound_joules:g} J is above the {trace.joules:g} J of its own schedule"
        )


@dataclass(frozen=True, slots=True)
class PlannedStep:
    """A schedule that is ready to replay; consistent, or it could not be made.

    Attributes:
        model, request, device, outcome: where it comes from, for reports.
        graph, optimizer: what is computed.
        kernels: whose workspaces and allocations the plan counts: those of the device.
        host_kernels: torch's, as the machine that planned measured them; ``None``: those are ``kernels``.
        problem: what it costs, in the terms of the planner.
        schedule: what happens, in order.
        slots: places in the page file of the tensors that are paged.
        prediction: what a step takes.
        arena: where everything lies; ``None``: the plan says nothing about it.
        poet_version: that made the plan.
        trace: the simulator's account of the schedule, made again whenever a plan is.
        demand: what the schedule asks for, likewise.
        places: what happens in the arena, likewise; ``None`` without one.
    """

    model: Model
    request: Request
    device: Device
    outcome: SearchOutcome
    graph: Graph
    kernels: KernelFacts
    optimizer: OptimizerSpec
    problem: DecidedProblem
    schedule: Schedule
    slots: tuple[PageSlot, ...]
    prediction: Prediction
    arena: Arena | None = None
    host_kernels: KernelFacts | None = None
    poet_version: str = __version__
    trace: Trace = field(init=False, repr=False, compare=False)
    demand: Demand = field(init=False, repr=False, compare=False)
    places: Places | None = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_problem(self.graph, self.problem, self.kernels)
        for kernels in filter(None, (self.kernels, self.host_kernels)):
            check_kernels(self.graph, kernels)
        check_ends(self.graph, self.problem)
        try:
            trace = judge(self.problem, self.schedule, self.request.limits)
            object.__setattr__(self, "demand", demand_of(self.problem, self.schedule, self.kernels))
            object.__setattr__(self, "places", _checked_places(self))
            if self.moved:
                trace = judge(self.problem, self.schedule, self.request.limits, self.moved)
        except InvalidSchedule as error:
            raise PlanError(f"the schedule breaks the rule {error.rule!r} at {error}") from None
        object.__setattr__(self, "trace", trace)
        check_prediction(self.prediction, self.graph, trace)
        check_outcome(self.outcome, trace)
        check_slots(self.slots, self.problem, self.schedule)

    @property
    def rounded(self) -> dict[str, PageForm]:
        """Tensors that come back rounded from storage, and their forms there; empty: nothing is rounded."""
        return rounded_pages(self.problem, self.schedule)

    @property
    def replayed_kernels(self) -> KernelFacts:
        """The facts of torch's kernels, which replay the plan, as the machine that planned measured them."""
        return self.kernels if self.host_kernels is None else self.host_kernels

    @property
    def moved(self) -> dict[int, tuple[str, ...]]:
        """The tensors that are moved within the arena, by the step before which that is done."""
        return {} if self.places is None else self.places.moved()

    def own_threads(self) -> dict[str, int]:
        """By op, with how many threads it runs, where its unit says so."""
        threads = {unit.name: unit.threads for unit in self.problem.units}
        return {op.name: count for op in self.problem.ops if op.unit and (count := threads[op.unit])}

    @property
    def begun_bytes(self) -> dict[str, int]:
        """Where in the arena each tensor lies that begins the step in RAM."""
        layout = self.layout
        if layout is None:
            return {}
        return {
            tensor: layout.offsets_bytes[item.block]
            for item in self.demand.requests
            if item.step == BEFORE and (tensor := layout.blocks[item.block].tensor) is not None
        }

    @property
    def given_types(self) -> tuple[TensorType, ...]:
        """What a step takes: the model's inputs, then the targets."""
        types = {value.name: value.type for value in self.graph.values}
        return tuple(types[name] for name in self.graph.inputs)

    @property
    def standing(self) -> frozenset[str]:
        """Tensors that lie in a part of the arena of their own, which no step changes."""
        if not self.has_fitting_arena:
            return frozenset()
        named = (self.demand.blocks[number].tensor for number in self.demand.standing)
        return frozenset(name for name in named if name is not None)

    @property
    def layout(self) -> Layout | None:
        """The arena with its blocks, where the plan has one."""
        if self.arena is None:
            return None
        blocks = self.demand.blocks
        return Layout(blocks, self.arena.offsets_bytes, self.arena.size_bytes, lower_bound_bytes(blocks))

    @property
    def has_fitting_arena(self) -> bool:
        """Whether everything can lie in an arena inside the budget."""
        budget_bytes = self.request.limits.ram_budget_bytes
        return self.arena is not None and (budget_bytes is None or self.arena_ram_bytes <= budget_bytes)

    @property
    def arena_ram_bytes(self) -> int:
        """What the arena takes of RAM, in whole pages where this machine's kernels fill it; 0 without one."""
        if self.arena is None:
            return 0
        if self.kernels.threads is None:  # the facts are not of kernels that were measured on a machine
            return self.arena.size_bytes
        return self.demand.mapped_bytes(self.arena.offsets_bytes, self.arena.size_bytes)


def moved_in(
    arena: Arena | None, problem: DecidedProblem, schedule: Schedule, kernels: KernelFacts
) -> dict[int, tuple[str, ...]]:
    """The tensors that ``schedule`` moves within ``arena``, by the step before which that is done.

    Raises:
        InvalidSchedule: its places are wrong.
    """
    if arena is None or not arena.moves:
        return {}
    demand = demand_of(problem, schedule, kernels)
    return replayed(demand, arena.offsets_bytes, arena.size_bytes, arena.moves).moved()


def _checked_places(step: PlannedStep) -> Places | None:
    """Everything has a place in the arena, aligned, and nothing shares bytes while both are needed.

    Fixed places are judged block against block; where tensors move, all births, moves and deaths are
    replayed.
    """
    layout = step.layout
    if step.arena is None or layout is None:
        return None
    if len(layout.offsets_bytes) != len(layout.blocks) or layout.arena_bytes > LARGEST_BYTES:
        raise PlanError(
            f"the arena has {len(layout.offsets_bytes)} places, the schedule asks for {len(layout.blocks)}"
        )
    try:
        if not step.arena.moves:
            check_layout(layout)
        return replayed(step.demand, layout.offsets_bytes, layout.arena_bytes, step.arena.moves)
    except InvalidSchedule as error:
        raise PlanError(f"the arena's layout is wrong: {error}") from None
