"""The plan: what was asked, how it was answered, and what to replay, as one record.

A `Plan` is a consistent `poet.plans.planned_step.PlannedStep`, and its auxiliary schedules are plans that
go with it. `poet.plans.plan_file` writes and reads it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields, replace
from typing import Any

from poet.errors import PlanError
from poet.ir.graph import Graph
from poet.ir.kernel_facts import KernelFacts
from poet.ir.optimizer import OptimizerSpec
from poet.plans.page_slots import Wear, lay_out_slots, page_buffer_of, step_wear
from poet.plans.plan_parts import (
    Arena,
    Device,
    MeasuredShare,
    Model,
    Prediction,
    PriceRange,
    Request,
    SearchOutcome,
)
from poet.plans.planned_step import LARGEST_BYTES, PlannedStep, lasting_values, moved_in
from poet.problem import Place
from poet.problem.homes import DecidedProblem, as_decided
from poet.problem.schedule import Free, Schedule
from poet.problem.simulator import judge
from poet.util import codec
from poet.util.brief import shortened, told
from poet.util.units import format_bytes, format_joules, format_seconds

EVALUATION, ACCUMULATION = "evaluation/", "accumulation/"


@dataclass(frozen=True, slots=True)
class Auxiliary:
    """An auxiliary schedule of a plan: on the training step's tensors, inside the same RAM.

    Attributes:
        name: begins the names of the page slots that it alone has: ``"evaluation/"``, ``"accumulation/"``,
            ``"shape0/"``, ``"shape0/evaluation/"``.
        plan: the schedule, as a plan of its own.
        shape: number of the plan's other shape that it is for; ``None``: that of the training step.
    """

    name: str
    plan: Plan
    shape: int | None = None

    @property
    def is_evaluation(self) -> bool:
        """Whether it is the forward pass in evaluation mode, which changes nothing."""
        return self.name.endswith(EVALUATION)

    @property
    def what(self) -> str:
        """For people."""
        kind = "evaluation" if self.is_evaluation else "step"
        if self.shape is not None:
            return f"{kind} of another shape"
        return kind if self.is_evaluation else "accumulating step"


def shape_called(number: int) -> str:
    """The name of the training step of ``plan.shapes[number]``."""
    return f"shape{number}/"


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
class Plan(PlannedStep):
    """A training step that is ready to replay, with its auxiliary schedules; see `PlannedStep` for its parts.

    Attributes:
        evaluation: the forward pass and the loss in evaluation mode, as a plan of its own on the same
            tensors, inside the same RAM; ``None``: there is none.
        accumulation: what all micro-batches of a step but the last do, likewise: it sums gradients and
            updates no parameter; ``None``: a step is made of its whole batch.
        shapes: training steps for batches of other shapes, likewise, each with the same updates.
        budgets: the same training inside less RAM, each a plan of its own that a trainer may go to between
            steps, in any order.
    """

    evaluation: Plan | None = None
    accumulation: Plan | None = None
    shapes: tuple[Shape, ...] = ()
    budgets: tuple[Plan, ...] = ()

    def __post_init__(self) -> None:
        PlannedStep.__post_init__(self)  # super() would name the class before it had slots
        micro = self.request.micro
        if (micro is None) != (self.accumulation is None):
            raise PlanError("a plan has micro-batches and a step that accumulates, or neither")
        if self.shapes and micro is not None:
            raise PlanError("a plan has micro-batches or several shapes, not both")
        _check_auxiliaries(self)
        _check_budgets(self)

    @property
    def auxiliaries(self) -> tuple[Auxiliary, ...]:
        """Every auxiliary schedule; an evaluation follows the step whose shape it has."""
        return tuple(self._auxiliaries())

    def _auxiliaries(self) -> Iterator[Auxiliary]:
        if self.evaluation is not None:
            yield Auxiliary(EVALUATION, self.evaluation)
        if self.accumulation is not None:
            yield Auxiliary(ACCUMULATION, self.accumulation)
        for number, shape in enumerate(self.shapes):
            yield Auxiliary(shape_called(number), shape.step, number)
            if shape.evaluation is not None:
                yield Auxiliary(shape_called(number) + EVALUATION, shape.evaluation, number)

    def with_auxiliaries(self, others: Iterable[Auxiliary], *, request: Request | None = None) -> Plan:
        """The plan with ``others`` as its auxiliary schedules, and another ``request`` if one is given."""
        found = {other.name: other.plan for other in others}
        shapes = itertools.takewhile(lambda name: name in found, map(shape_called, itertools.count()))
        return replace(
            self,
            request=request or self.request,
            evaluation=found.get(EVALUATION),
            accumulation=found.get(ACCUMULATION),
            shapes=tuple(Shape(found[name], found.get(name + EVALUATION)) for name in shapes),
        )

    def __repr__(self) -> str:
        made = self.prediction
        takes = f"{format_bytes(made.peak_ram_bytes)} of RAM, {format_joules(made.joules)}"
        where = f"{shortened(self.model.name)} on {shortened(self.device.name)}"
        return told(
            self, f"for {where}: {takes}, {format_seconds(made.seconds)} per step; {self.outcome.status}"
        )

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
    def step_wear(self) -> Wear:
        """What a whole step takes of the life of storage."""
        runs = ((part.problem, part.schedule, times) for part, times in self.runs)
        return step_wear(runs, self.device.endurance.block_bytes)

    @property
    def step_peak_ram_bytes(self) -> int:
        """The most RAM that any part of a step holds."""
        return max(plan.prediction.peak_ram_bytes for plan, _ in self.runs)

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

    def with_whole_pages(self) -> Plan:
        """The same schedules at the same costs, with nothing rounded in storage: what verification runs."""
        problem = replace(
            self.problem,
            tensors=tuple(
                replace(tensor, page_form=None, stored_bytes=tensor.storage_bytes)
                for tensor in self.problem.tensors
            ),
        )
        return replace(
            self,
            problem=as_decided(problem),
            slots=lay_out_slots(problem, self.schedule),
            budgets=tuple(other.with_whole_pages() for other in self.budgets),
        )

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


# --- what must hold between a training step and its auxiliary schedules ---------------------------


def _check_auxiliaries(plan: Plan) -> None:
    """Every auxiliary schedule goes with the training step, and has none of its own.

    Raises:
        PlanError: one does not.
    """
    seen = [plan.given_types]
    for other in plan.auxiliaries:
        step, what = other.plan, other.what
        if step.auxiliaries or step.budgets:
            raise PlanError(f"the {what} is not that of the plan's model")
        _check_beside(plan, step, what, has_other_inputs=other.shape is not None)
        if other.is_evaluation:
            if changed := {name for op in step.graph.ops for name in op.updates}:
                raise PlanError(f"the {what} changes {min(changed)}")
        else:
            _check_outputs(plan, step, what)
        if other.shape is None:
            if not other.is_evaluation:
                _check_accumulation(plan, step)
        elif not other.is_evaluation:
            if _updated(plan) != _updated(step):
                raise PlanError("a step of another shape updates other tensors than the training step")
            if step.given_types in seen:
                raise PlanError("two steps of a plan take batches of the same shape")
            seen.append(step.given_types)
        elif step.given_types != seen[-1]:
            raise PlanError("the evaluation of another shape takes other inputs than its training step")
        elif plan.evaluation is not None:
            _check_outputs(plan.evaluation, step, what)


def _check_budgets(plan: Plan) -> None:
    """Each plan for another budget is the same training inside less RAM.

    Raises:
        PlanError: one is not, or two are for the same.
    """
    largest_bytes = plan.request.limits.ram_budget_bytes
    seen = {largest_bytes}
    for other in plan.budgets:
        budget_bytes = other.request.limits.ram_budget_bytes
        if budget_bytes is None or (largest_bytes is not None and budget_bytes > largest_bytes):
            raise PlanError("a plan for another budget has a larger one than the plan's own")
        if budget_bytes in seen:
            raise PlanError(f"two plans in one are for {format_bytes(budget_bytes)}")
        seen.add(budget_bytes)
        if _training(other) != _training(plan) or other.budgets:
            raise PlanError(f"the plan for {format_bytes(budget_bytes)} is not of the same training")


def _training(plan: Plan) -> tuple[object, ...]:
    """What ``plan`` computes, whatever its schedules."""
    graphs: list[tuple[str, Graph]] = [(each.name, each.plan.graph) for each in plan.auxiliaries]
    request = plan.request
    return plan.model.sha256, plan.optimizer, request.micro, request.loss, plan.graph, graphs


def _updated(step: PlannedStep) -> frozenset[str]:
    """What lives across steps and is changed by this one."""
    return step.graph.persistent().intersection(name for op in step.graph.ops for name in op.updates)


def _check_accumulation(plan: PlannedStep, accumulation: PlannedStep) -> None:
    """It changes the sums of gradients and module state alone."""
    summed = [item.accumulator for item in plan.graph.parameters if item.accumulator is not None]
    sums = {plan.graph.buffer_of(value) for value in summed}
    changed = _updated(accumulation)
    allowed = sums | {plan.graph.buffer_of(value) for _, value in plan.graph.states}
    if not sums <= changed or not changed <= allowed:
        wrong = (sums - changed) or (changed - allowed)
        raise PlanError(f"the accumulating step should not leave out or change {min(wrong)}")
    if not changed <= {name for op in plan.graph.ops for name in op.updates}:
        raise PlanError("the accumulating step changes what the updating step does not")


def _check_beside(
    plan: PlannedStep, other: PlannedStep, what: str, *, has_other_inputs: bool = False
) -> None:
    """It takes the same inputs, works on what the plan keeps, where it is kept, and fits beside it.

    Inputs may be of other shapes where it ``has_other_inputs``.
    """
    graph, beside = other.graph, plan.graph
    types, theirs = ({item.name: item.type for item in each.values} for each in (graph, beside))
    if other.model.sha256 != plan.model.sha256:
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
        if other.arena.size_bytes > plan.arena.size_bytes:
            raise PlanError(f"the {what} needs a larger arena than the training step")
        _check_places(plan, plan.arena, other, what)


def _check_places(plan: PlannedStep, arena: Arena, other: PlannedStep, what: str) -> None:
    """What the training step never moves is not moved here either, and all else stays below it.

    That nothing shares a byte with it, and that everything comes back, a planned step has checked itself.
    """
    divide_bytes, _ = plan.demand.parts_bytes(arena.offsets_bytes, arena.size_bytes)
    places, blocks = other.places, other.demand.blocks
    assert places is not None  # as there is an arena
    moved = {move.tensor for move in places.moves} & plan.standing
    if moved:
        raise PlanError(f"the {what} moves {min(moved)} within the arena, which has its place throughout")
    ends = [
        offset + item.size_bytes
        for item, offset in zip(other.demand.requests, places.requests_bytes, strict=True)
        if blocks[item.block].tensor not in plan.standing
    ]
    if max(ends, default=0) > divide_bytes or any(
        move.to_bytes + move.size_bytes > divide_bytes for move in places.moves
    ):
        raise PlanError(f"the {what} has something where the training step has what stays throughout")


def _check_outputs(plan: PlannedStep, other: PlannedStep, what: str) -> None:
    """It gives as many outputs as ``plan``, each with as many dims and of the same element type."""

    def kinds(of: PlannedStep) -> list[tuple[str, int]]:
        types = {value.name: value.type for value in of.graph.values}
        return [(types[name].dtype, len(types[name].shape)) for name in of.graph.predictions]

    if kinds(other) != kinds(plan):
        raise PlanError(f"the {what} gives other outputs than that of the plan's own shape")


def _check_homes(plan: PlannedStep, other: PlannedStep, what: str) -> None:
    """Each persistent tensor begins the other step where it is between steps; what stands is not moved."""
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
