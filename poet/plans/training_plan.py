"""The plan: what was asked, how it was answered, and what to replay, as one record.

A `Plan` that exists is consistent: its problem is that of its graph, the simulator accepted its
schedule inside the limits asked for, its predictions are the simulator's, and its page slots lie
apart. `poet.plans.plan_file` writes and reads it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from typing import Any

from poet import codec
from poet.brief import shortened, told
from poet.errors import InvalidSchedule, PlanError
from poet.graph import Graph, TensorType
from poet.homes import DecidedProblem
from poet.kernel_facts import KernelFacts
from poet.memory.demand import BEFORE, Demand, demand_of
from poet.memory.layout import Layout, check_layout, lower_bound_bytes
from poet.memory.places import Places, replayed
from poet.optimizer import OptimizerSpec
from poet.plans.lasting_values import lasting_values
from poet.plans.page_slots import check_slots, lay_out_slots, page_buffer_of
from poet.plans.plan_checks import (
    LARGEST_BYTES,
    check_ends,
    check_kernels,
    check_outcome,
    check_prediction,
    check_problem,
)
from poet.plans.plan_parts import (
    Arena,
    Device,
    MeasuredShare,
    Model,
    PageSlot,
    Prediction,
    PriceRange,
    Request,
    SearchOutcome,
)
from poet.problem import Place
from poet.schedule import Free, Schedule
from poet.simulator import Trace, judge
from poet.units import format_bytes, format_joules, format_seconds
from poet.version import __version__


@dataclass(frozen=True, slots=True)
class Shape:
    """What a plan does with batches of another shape, on the same tensors.

    Attributes:
        step: a training step, as a plan of its own.
        evaluation: the forward pass in evaluation mode, likewise; ``None``: there is none.
    """

    step: Plan
    evaluation: Plan | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """A training step that is ready to replay; consistent, or it could not be made.

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
        evaluation: the forward pass and the loss in evaluation mode, as a plan of its own on the same
            tensors, inside the same RAM; ``None``: there is none.
        accumulation: what all micro-batches of a step but the last do, likewise: it sums gradients and
            updates no parameter; ``None``: a step is made of its whole batch.
        shapes: training steps for batches of other shapes, likewise, each with the same updates.
        budgets: the same training inside less RAM, each a plan of its own that a trainer may go to between
            steps, in any order.
        trace: the simulator's account of the schedule, made anew whenever a plan is.
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
    evaluation: Plan | None = None
    accumulation: Plan | None = None
    shapes: tuple[Shape, ...] = ()
    budgets: tuple[Plan, ...] = ()
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
        if self.evaluation is not None:
            _check_evaluation(self, self.evaluation)
        if (self.request.micro is None) != (self.accumulation is None):
            raise PlanError("a plan has micro-batches and a step that accumulates, or neither")
        if self.accumulation is not None:
            _check_accumulation(self, self.accumulation)
        _check_shapes(self)
        _check_budgets(self)

    def __repr__(self) -> str:
        made = self.prediction
        takes = f"{format_bytes(made.peak_ram_bytes)} of RAM, {format_joules(made.joules)}"
        where = f"{shortened(self.model.name)} on {shortened(self.device.name)}"
        return told(
            self, f"for {where}: {takes}, {format_seconds(made.seconds)} per step; {self.outcome.status}"
        )

    @property
    def replayed_kernels(self) -> KernelFacts:
        """The facts of torch's kernels, which replay the plan, as the machine that planned measured them."""
        return self.kernels if self.host_kernels is None else self.host_kernels

    @property
    def moved(self) -> dict[int, tuple[str, ...]]:
        """The tensors that are moved within the arena, by the step before which that is done."""
        return {} if self.places is None else self.places.moved()

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
    def runs(self) -> tuple[tuple[Plan, int], ...]:
        """What a step is made of: schedules, each with how often it runs."""
        if self.accumulation is None or self.request.micro is None:
            return ((self, 1),)
        return ((self.accumulation, self.request.micro.count - 1), (self, 1))

    @property
    def step_joules(self) -> float:
        """Of a whole step, all its micro-batches."""
        return math.fsum(plan.prediction.joules * times for plan, times in self.runs)

    @property
    def step_seconds(self) -> float:
        """Likewise, on the device."""
        return math.fsum(plan.prediction.seconds * times for plan, times in self.runs)

    @property
    def step_written_bytes(self) -> int:
        """What a whole step writes to storage."""
        return sum(plan.trace.written_bytes * times for plan, times in self.runs)

    @property
    def step_peak_ram_bytes(self) -> int:
        """The most RAM that any part of a step holds."""
        return max(plan.prediction.peak_ram_bytes for plan, _ in self.runs)

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

    @property
    def held_bytes(self) -> int:
        """What tensors and workspaces take together: the arena that fits, else the schedule's peak."""
        if self.arena is not None and self.has_fitting_arena:
            return max(self.arena_ram_bytes, self.step_peak_ram_bytes)
        return self.step_peak_ram_bytes

    @property
    def page_buffer_bytes(self) -> int:
        """RAM for the buffer of direct transfers: what the budget leaves beside `held_bytes`, within reason.

        0 where nothing is paged or too little is left; transfers then go through the page cache. Without
        a layout half of it is left for the gaps between tensors.
        """
        budget_bytes = self.request.limits.ram_budget_bytes
        spare_bytes = LARGEST_BYTES if budget_bytes is None else budget_bytes - self.held_bytes
        spare_bytes = spare_bytes if self.has_fitting_arena else spare_bytes // 2
        return page_buffer_of(spare_bytes) if self.slots else 0

    def to_json(self) -> dict[str, Any]:
        """JSON-ready form; `from_json` gives an equal plan back."""
        return {item.name: codec.encode(getattr(self, item.name)) for item in fields(self) if item.init}

    @staticmethod
    def from_json(data: object, *, where: str = "plan") -> Plan:
        """The plan that `to_json` wrote.

        Raises:
            PlanError: a field too many or missing, or parts that contradict each other.
        """
        return codec.decode(Plan, data, where=where, error=PlanError)


def shape_words(graph: Graph, model: Model) -> str:
    """For people: the sizes of a file's dimensions that were chosen, else the type of the first input."""
    if model.binding:
        return ", ".join(f"{name}={size}" for name, size in model.binding)
    types = {value.name: value.type for value in graph.values}
    return f"{graph.inputs[0]} {types[graph.inputs[0]]}" if graph.inputs else graph.name


def make_plan(
    *,
    model: Model,
    request: Request,
    device: Device,
    outcome: SearchOutcome,
    graph: Graph,
    kernels: KernelFacts,
    optimizer: OptimizerSpec,
    problem: DecidedProblem,
    schedule: Schedule,
    plain_peak_ram_bytes: int | None = None,
    lower_bound_ram_bytes: int | None = None,
    arena: Arena | None = None,
    host_kernels: KernelFacts | None = None,
    price_range: PriceRange | None = None,
    measured: MeasuredShare | None = None,
) -> Plan:
    """A plan with its predictions and page slots worked out; see `Plan` for the parts.

    Raises:
        PlanError: the parts contradict each other, or the schedule leaves the limits asked for.
        InvalidSchedule: the schedule breaks another rule.
    """
    trace = judge(problem, schedule, request.limits, moved_in(arena, problem, schedule, kernels))
    return Plan(
        model=model,
        request=request,
        device=device,
        outcome=outcome,
        graph=graph,
        kernels=kernels,
        optimizer=optimizer,
        problem=problem,
        schedule=schedule,
        slots=lay_out_slots(problem, schedule),
        prediction=Prediction(
            peak_ram_bytes=trace.peak_ram_bytes,
            seconds=trace.seconds,
            joules=trace.joules,
            plain_peak_ram_bytes=plain_peak_ram_bytes,
            lower_bound_ram_bytes=lower_bound_ram_bytes,
            range=price_range,
            measured=measured,
        ),
        arena=arena,
        host_kernels=None if host_kernels == kernels else host_kernels,
    )


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


# --- checks -----------------------------------------------------------------------------------


def _checked_places(plan: Plan) -> Places | None:
    """Everything has a place in the arena, aligned, and nothing shares bytes while both are needed.

    Fixed places are judged block against block; where tensors move, all births, moves and deaths are
    replayed.
    """
    layout = plan.layout
    if plan.arena is None or layout is None:
        return None
    if len(layout.offsets_bytes) != len(layout.blocks) or layout.arena_bytes > LARGEST_BYTES:
        raise PlanError(
            f"the arena has {len(layout.offsets_bytes)} places, the schedule asks for {len(layout.blocks)}"
        )
    try:
        if not plan.arena.moves:
            check_layout(layout)
        return replayed(plan.demand, layout.offsets_bytes, layout.arena_bytes, plan.arena.moves)
    except InvalidSchedule as error:
        raise PlanError(f"the arena's layout is wrong: {error}") from None


def _check_evaluation(plan: Plan, evaluation: Plan, *, has_other_inputs: bool = False) -> None:
    """It stands beside the plan and changes nothing that lives across steps."""
    _check_beside(plan, evaluation, "evaluation", has_other_inputs=has_other_inputs)
    changed = {name for op in evaluation.graph.ops for name in op.updates}
    if changed:
        raise PlanError(f"the evaluation changes {min(changed)}")


def _check_accumulation(plan: Plan, accumulation: Plan) -> None:
    """It stands beside the plan, and changes the sums of gradients and module state alone."""
    _check_beside(plan, accumulation, "accumulating step")
    _check_outputs(plan, accumulation, "accumulating step")
    summed = [item.accumulator for item in plan.graph.parameters if item.accumulator is not None]
    sums = {plan.graph.buffer_of(value) for value in summed}
    graph = accumulation.graph
    changed = graph.persistent().intersection(name for op in graph.ops for name in op.updates)
    allowed = sums | {plan.graph.buffer_of(value) for _, value in plan.graph.states}
    if not sums <= changed or not changed <= allowed:
        wrong = (sums - changed) or (changed - allowed)
        raise PlanError(f"the accumulating step should not leave out or change {min(wrong)}")
    if not changed <= {name for op in plan.graph.ops for name in op.updates}:
        raise PlanError("the accumulating step changes what the updating step does not")


def _check_shapes(plan: Plan) -> None:
    """Each takes batches of a shape of its own and updates what the plan's step updates."""
    if plan.shapes and plan.accumulation is not None:
        raise PlanError("a plan has micro-batches or several shapes, not both")
    persistent = plan.graph.persistent()
    changed = persistent.intersection(name for op in plan.graph.ops for name in op.updates)
    seen = [plan.given_types]
    for shape in plan.shapes:
        step = shape.step
        _check_beside(plan, step, "step of another shape", has_other_inputs=True)
        _check_outputs(plan, step, "step of another shape")
        if changed != persistent.intersection(name for op in step.graph.ops for name in op.updates):
            raise PlanError("a step of another shape updates other tensors than the training step")
        if step.given_types in seen:
            raise PlanError("two steps of a plan take batches of the same shape")
        seen.append(step.given_types)
        if shape.evaluation is not None:
            _check_evaluation(plan, shape.evaluation, has_other_inputs=True)
            if shape.evaluation.given_types != step.given_types:
                raise PlanError("the evaluation of another shape takes other inputs than its training step")
            if plan.evaluation is not None:
                _check_outputs(plan.evaluation, shape.evaluation, "evaluation of another shape")


def _check_budgets(plan: Plan) -> None:
    """Each is the same training inside another, smaller budget."""
    seen = {plan.request.limits.ram_budget_bytes}
    largest_bytes = plan.request.limits.ram_budget_bytes
    for other in plan.budgets:
        budget_bytes = other.request.limits.ram_budget_bytes
        if budget_bytes is None or (largest_bytes is not None and budget_bytes > largest_bytes):
            raise PlanError("a plan for another budget has a larger one than the plan's own")
        if budget_bytes in seen:
            raise PlanError(f"two plans in one are for {format_bytes(budget_bytes)}")
        seen.add(budget_bytes)
        same = (
            other.model.sha256 == plan.model.sha256
            and other.optimizer == plan.optimizer
            and other.request.micro == plan.request.micro
            and other.request.loss == plan.request.loss
            and _graphs(other) == _graphs(plan)
        )
        if not same or other.budgets:
            raise PlanError(f"the plan for {format_bytes(budget_bytes)} is not of the same training")


def _graphs(plan: Plan) -> list[Graph | None]:
    """What is computed by the step of ``plan`` and by all that stands beside it; ``None``: that is not."""
    beside = (
        plan.evaluation,
        plan.accumulation,
        *(each for item in plan.shapes for each in (item.step, item.evaluation)),
    )
    return [plan.graph, *(None if part is None else part.graph for part in beside)]


def _check_beside(plan: Plan, other: Plan, what: str, *, has_other_inputs: bool = False) -> None:
    """It takes the same inputs, works on what the plan keeps, where it is kept, and fits beside it.

    Inputs may be of other shapes where it ``has_other_inputs``.
    """
    graph, beside = other.graph, plan.graph
    types, theirs = ({item.name: item.type for item in each.values} for each in (graph, beside))
    is_simple = (
        other.evaluation is None and other.accumulation is None and not other.shapes and not other.budgets
    )
    if not is_simple or other.model.sha256 != plan.model.sha256:
        raise PlanError(f"the {what} is not that of the plan's model")
    if other.optimizer != plan.optimizer:
        raise PlanError(f"the {what} has another optimizer than the training step")
    persistent = beside.persistent()
    same_inputs = graph.inputs == beside.inputs and graph.targets == beside.targets
    pairs = [(types[name], theirs[name]) for name in graph.inputs] if same_inputs else []
    if has_other_inputs:
        is_alike = all((one.dtype, len(one.shape)) == (their.dtype, len(their.shape)) for one, their in pairs)
    else:
        is_alike = all(one == their for one, their in pairs)
    if not same_inputs or not is_alike:
        raise PlanError(f"the {what} takes other inputs than the training step")
    if lasting_values(graph) != lasting_values(beside) or graph.persistent() != beside.persistent():
        raise PlanError(f"the {what} has other tensors that live across steps than the training step")
    bytes_of = {buffer.name: buffer.size_bytes for buffer in beside.buffers}
    if any(
        bytes_of[item.name] != item.size_bytes for item in graph.buffers if item.name in graph.persistent()
    ):
        raise PlanError(f"the {what} has other tensors that live across steps than the training step")
    asked_bytes = other.request.limits.ram_budget_bytes
    allowed_bytes = plan.request.limits.ram_budget_bytes
    if allowed_bytes is not None and (asked_bytes is None or asked_bytes > allowed_bytes):
        raise PlanError(f"the {what} has a larger budget than the training step")
    _check_homes(plan, other, what)
    if plan.has_fitting_arena:
        begun = {name: at for name, at in plan.begun_bytes.items() if name in persistent}
        found = {name: at for name, at in other.begun_bytes.items() if name in persistent}
        if other.arena is None or plan.arena is None or begun != found:
            raise PlanError(f"the {what} does not lie in the plan's arena, where the plan's tensors lie")
        if other.arena.moves:
            raise PlanError(f"the {what} moves tensors within the arena")
        if other.arena.size_bytes > plan.arena.size_bytes:
            raise PlanError(f"the {what} needs a larger arena than the training step")


def _check_outputs(plan: Plan, other: Plan, what: str) -> None:
    """It gives as many outputs as ``plan``, each with as many dims and of the same element type."""

    def kinds(of: Plan) -> list[tuple[str, int]]:
        types = {value.name: value.type for value in of.graph.values}
        return [(types[name].dtype, len(types[name].shape)) for name in of.graph.predictions]

    if kinds(other) != kinds(plan):
        raise PlanError(f"the {what} gives other outputs than that of the plan's own shape")


def _check_homes(plan: Plan, other: Plan, what: str) -> None:
    """Each lasting tensor begins the other step where it is between steps; what stands is not moved."""
    at_home = {tensor.name: tensor.initially or Place.RAM for tensor in plan.problem.tensors}
    slotted = {slot.tensor for slot in plan.slots}
    persistent = plan.graph.persistent()
    for tensor in other.problem.tensors:
        begins = tensor.initially or Place.RAM
        if tensor.name not in persistent:
            continue
        in_storage = (at_home[tensor.name] is Place.STORAGE, begins is Place.STORAGE)
        copied = begins is not Place.BOTH or (at_home[tensor.name] is Place.BOTH and tensor.name in slotted)
        if in_storage[0] != in_storage[1] or not copied:
            raise PlanError(f"the {what} does not find {tensor.name} where the training step leaves it")
    moved = {step.tensor for step in other.schedule if isinstance(step, Free)} & plan.standing
    if moved:
        raise PlanError(f"the {what} moves {min(moved)}, which has its place throughout")
