"""An arena for one schedule: at fixed places, or with tensors that are moved between steps.

A training step has an arena of its own in what the RAM budget leaves beside the page buffer. An auxiliary
schedule (an evaluation, a step that sums gradients) lies in the same arena: what lives across steps is where
the training step leaves it, all else goes between. `poet.plans.training_plan` judges these.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from poet.errors import InvalidSchedule
from poet.ir.kernel_facts import KernelFacts
from poet.memory.compaction import compact
from poet.memory.demand import BEFORE, PAGE_BYTES, Demand, demand_of, whole_pages_bytes
from poet.memory.layout import Layout, lay_out, lay_out_around, lower_bound_bytes
from poet.memory.places import replayed
from poet.plans.page_slots import is_paged, least_page_buffer_bytes
from poet.plans.plan_parts import Arena
from poet.plans.planned_step import LARGEST_BYTES
from poet.plans.training_plan import Plan
from poet.problem import Limits, Objective
from poet.problem.homes import DecidedProblem
from poet.problem.schedule import Schedule
from poet.problem.simulator import Trace, judge


@dataclass(frozen=True, slots=True)
class Placed:
    """A schedule at fixed places.

    Attributes:
        demand: what it asks for.
        layout: where that lies.
        room_bytes: how large the arena may be.
        missing_bytes: of RAM, for this arena; 0 or less: it fits.
    """

    demand: Demand
    layout: Layout
    room_bytes: int
    missing_bytes: int

    @property
    def arena(self) -> Arena:
        """As a plan has it."""
        return Arena(self.layout.arena_bytes, self.layout.offsets_bytes)

    @property
    def excess_bytes(self) -> int:
        """By how much what is live at once exceeds the room, so that moves do not help; 0: only gaps do."""
        return max(0, self.layout.lower_bound_bytes - self.room_bytes)


def is_mapped(kernels: KernelFacts | None) -> bool:
    """Whether steps with these kernels run here, in an arena that the system maps in whole pages."""
    return kernels is not None and kernels.threads is not None


def placed(
    problem: DecidedProblem,
    schedule: Schedule,
    ram_budget_bytes: int | None,
    kernels: KernelFacts | None,
    *,
    time_limit_seconds: float,
) -> Placed:
    """Fixed places for what ``schedule`` asks for, in what the budget leaves beside the page buffer.

    Where the system maps the arena, each of its two parts takes whole pages.
    """
    demand = demand_of(problem, schedule, kernels)
    mapped, left_bytes = is_mapped(kernels), 0
    if ram_budget_bytes is not None:
        buffer_bytes = least_page_buffer_bytes(ram_budget_bytes) if is_paged(schedule) else 0
        left_bytes = ram_budget_bytes - buffer_bytes
    room_bytes = left_bytes
    if mapped and ram_budget_bytes is not None:
        standing_bytes = sum(demand.blocks[number].size_bytes for number in demand.standing)
        rest_bytes = left_bytes - whole_pages_bytes(standing_bytes)
        room_bytes = rest_bytes // PAGE_BYTES * PAGE_BYTES + standing_bytes
    enough_bytes = max(room_bytes, 0)
    layout = lay_out(demand.blocks, enough_bytes=enough_bytes, time_limit_seconds=time_limit_seconds)
    arena_bytes = layout.arena_bytes
    ram_bytes = demand.mapped_bytes(layout.offsets_bytes, arena_bytes) if mapped else arena_bytes
    missing_bytes = 0 if ram_budget_bytes is None else ram_bytes - left_bytes
    return Placed(demand, layout, room_bytes, missing_bytes)


def may_move(problem: DecidedProblem) -> bool:
    """Whether anything may be moved within the arena."""
    return any(tensor.move for tensor in problem.tensors)


def with_moves(
    problem: DecidedProblem,
    schedule: Schedule,
    demand: Demand,
    below_bytes: int,
    *,
    limits: Limits | None = None,
    guide_bytes: Sequence[int] = (),
    fixed_bytes: Mapping[int, int] | None = None,
    objective: Objective = Objective.ENERGY,
    time_limit_seconds: float,
) -> tuple[Arena, Trace] | None:
    """Places with the cheapest moves that are found, and what a step takes with them.

    Args:
        problem: whose tensors say what a move takes.
        schedule: a solution of it.
        demand: what it asks for.
        below_bytes: what the arena may take, see `poet.memory.compaction.compact`, as for what follows.
        limits: of the step with its moves.
        guide_bytes: the offsets of a layout that is too large.
        fixed_bytes: of a step beside another: the place of each block that has one when it begins.
        objective: that moves take the least of: seconds, else joules, idle power included.
        time_limit_seconds: of the search.

    Returns:
        ``None`` where no places are found, or the simulated step with its moves is late or too expensive.
    """
    if not may_move(problem):
        return None
    costs = {tensor.name: tensor.move for tensor in problem.tensors}

    def price(tensor: str) -> float:
        cost = costs[tensor]
        if cost is None:
            return math.inf
        joules = cost.joules + problem.idle_watts * cost.seconds + 1e-12
        return cost.seconds + 1e-6 * joules if objective is Objective.TIME else joules

    found = compact(
        demand,
        below_bytes,
        guide_bytes=guide_bytes,
        fixed_bytes=fixed_bytes,
        weights=price,
        time_limit_seconds=time_limit_seconds,
    )
    if found is None:
        return None
    try:
        trace = judge(problem, schedule, limits, found.places.moved())
    except InvalidSchedule:
        return None
    return Arena(found.arena_bytes, found.offsets_bytes, found.moves), trace


def arena_around(
    plan: Plan,
    problem: DecidedProblem,
    schedule: Schedule,
    demand: Demand,
    *,
    known_bytes: Mapping[int, int] | None = None,
    time_limit_seconds: float = 1.0,
) -> Arena | None:
    """The arena of ``plan`` with places for ``demand``; ``None``: it has no fitting one, or there are none.

    Only what the training step itself never moves must stay where it is; all else that is moved is brought
    back.

    Args:
        plan: beside whose training step the schedule stands.
        problem: that the schedule solves.
        schedule: whose memory is placed.
        demand: what it asks for.
        known_bytes: places of some blocks, which they have where nothing must be moved.
        time_limit_seconds: of a search for moves; a pass or two are made in any case.
    """
    layout = plan.layout
    if layout is None or not plan.has_fitting_arena:
        return None
    divide_bytes, _ = plan.demand.parts_bytes(layout.offsets_bytes, layout.arena_bytes)
    persistent = plan.graph.persistent()
    begun = places_begun(demand, {name: at for name, at in plan.begun_bytes.items() if name in persistent})
    offsets = lay_out_around(demand.blocks, {**(known_bytes or {}), **begun}, below_bytes=divide_bytes)
    if offsets is not None:
        return Arena(layout.arena_bytes, offsets)
    if lower_bound_bytes(demand.blocks) > layout.arena_bytes or not may_move(problem):
        return None
    moved = with_moves(
        problem,
        schedule,
        demand,
        divide_bytes,
        guide_bytes=lay_out_around(demand.blocks, begun, below_bytes=LARGEST_BYTES) or (),
        fixed_bytes=begun,
        time_limit_seconds=time_limit_seconds,
    )
    return None if moved is None else Arena(layout.arena_bytes, moved[0].offsets_bytes, moved[0].moves)


def arena_like(plan: Plan, near: Plan, demand: Demand) -> Arena | None:
    """The arena of ``near``, which is ``plan`` or auxiliary to it, for ``demand``: the same blocks.

    ``None``: it has none that lies in the plan's, or a block is too large for its place there.
    """
    arena = near.arena
    if arena is None or plan.arena is None or not plan.has_fitting_arena:
        return None
    if [block.owner for block in near.demand.blocks] != [block.owner for block in demand.blocks]:
        return None
    if arena.size_bytes > plan.arena.size_bytes:
        return None
    try:
        replayed(demand, arena.offsets_bytes, arena.size_bytes, arena.moves)
    except InvalidSchedule:
        return None
    return arena


def places_begun(demand: Demand, begun_bytes: Mapping[str, int]) -> dict[int, int]:
    """The place of each block that holds one of the tensors ``begun_bytes`` before the first step."""
    before = [
        (item.block, demand.blocks[item.block].tensor) for item in demand.requests if item.step == BEFORE
    ]
    return {block: begun_bytes[name] for block, name in before if name is not None and name in begun_bytes}
