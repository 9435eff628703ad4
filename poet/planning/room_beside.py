"""Places in a plan's arena for a schedule that stands beside its training step.

What lives across steps lies where the training step leaves it, all else goes between. Where that leaves gaps
that are too small, tensors are moved within the arena, and what lives across steps is brought back; only what
the training step itself never moves stays where it is. `poet.plans.companion_checks` is the judge.
"""

from __future__ import annotations

from collections.abc import Mapping

from poet.errors import InvalidSchedule
from poet.homes import DecidedProblem
from poet.memory.demand import BEFORE, Demand
from poet.memory.layout import lay_out_around, lower_bound_bytes
from poet.memory.places import replayed
from poet.planning.moved_places import moved_places
from poet.plans.plan_checks import LARGEST_BYTES
from poet.plans.plan_parts import Arena
from poet.plans.training_plan import Plan
from poet.schedule import Schedule

MOVING_SHARE = 0.1
"""Of the time of a search, that one for moves takes, within `MOVING_SECONDS`."""
MOVING_SECONDS = 0.05, 1.0  # moves make a schedule fit at all


def arena_around(
    plan: Plan,
    problem: DecidedProblem,
    schedule: Schedule,
    demand: Demand,
    *,
    known_bytes: Mapping[int, int] | None = None,
    time_limit_seconds: float | None = None,
) -> Arena | None:
    """The arena of ``plan`` with places for ``demand``; ``None``: it has no fitting one, or there are none.

    Args:
        plan: beside whose training step the schedule stands.
        problem: that the schedule solves.
        schedule: whose memory is placed.
        demand: what it asks for.
        known_bytes: places of some blocks, which they have where nothing must be moved.
        time_limit_seconds: of the search for the schedule, see `MOVING_SHARE`; ``None``: there is none.
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
    may_move = any(tensor.move for tensor in problem.tensors)
    if not may_move or lower_bound_bytes(demand.blocks) > layout.arena_bytes:
        return None
    least, seconds = MOVING_SECONDS
    if time_limit_seconds is not None:
        seconds = max(least, min(seconds, MOVING_SHARE * time_limit_seconds))
    moved = moved_places(
        problem,
        schedule,
        demand,
        divide_bytes,
        guide_bytes=lay_out_around(demand.blocks, begun, below_bytes=LARGEST_BYTES) or (),
        fixed_bytes=begun,
        time_limit_seconds=seconds,
    )
    if moved is None:
        return None
    found, _ = moved
    return Arena(layout.arena_bytes, found.offsets_bytes, found.moves)


def arena_like(plan: Plan, near: Plan, demand: Demand) -> Arena | None:
    """The arena of ``near``, which is ``plan`` or stands beside it, for ``demand``: the same blocks.

    ``None``: it has none that lies in the plan's, or a block is too large for its place there.
    """
    arena = near.arena
    if arena is None or plan.arena is None or not plan.has_fitting_arena:
        return None
    theirs = near.demand.blocks
    if [block.owner for block in theirs] != [block.owner for block in demand.blocks]:
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
