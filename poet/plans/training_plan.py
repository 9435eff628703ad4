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

from poet import codec
from poet.brief import shortened, told
from poet.errors import PlanError
from poet.graph import Graph
from poet.homes import DecidedProblem
from poet.kernel_facts import KernelFacts
from poet.optimizer import OptimizerSpec
from poet.plans.auxiliary import (
    ACCUMULATION,
    EVALUATION,
    Auxiliary,
    check_auxiliaries,
    check_budgets,
    shape_called,
)
from poet.plans.page_slots import lay_out_slots, page_buffer_of
from poet.plans.plan_checks import LARGEST_BYTES
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
from poet.plans.planned_step import PlannedStep, moved_in
from poet.schedule import Schedule
from poet.simulator import judge
from poet.units import format_bytes, format_joules, format_seconds


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
        check_auxiliaries(self)
        check_budgets(self)

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
