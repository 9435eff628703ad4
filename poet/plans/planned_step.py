"""One schedule of a graph that is ready to replay, with what it was asked for and what it takes.

A `PlannedStep` that exists is consistent: its problem is that of its graph, the simulator accepted its
schedule inside the limits asked for, its predictions are the simulator's, and its page slots lie
apart. `poet.plans.training_plan` has the plan, with its auxiliary schedules.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from poet.errors import InvalidSchedule, PlanError
from poet.graph import Graph, TensorType
from poet.homes import DecidedProblem
from poet.kernel_facts import KernelFacts
from poet.memory.demand import BEFORE, Demand, demand_of
from poet.memory.layout import Layout, check_layout, lower_bound_bytes
from poet.memory.places import Places, replayed
from poet.optimizer import OptimizerSpec
from poet.plans.page_slots import check_slots
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
    Model,
    PageSlot,
    Prediction,
    Request,
    SearchOutcome,
)
from poet.schedule import Schedule
from poet.simulator import Trace, judge
from poet.version import __version__


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
