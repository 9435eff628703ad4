"""Places of a schedule whose tensors may move within the arena, at the prices of its problem."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from poet.errors import InvalidSchedule
from poet.homes import DecidedProblem
from poet.memory.compaction import Compacted, compact
from poet.memory.demand import Demand
from poet.problem import Limits
from poet.schedule import Schedule
from poet.simulator import Trace, judge


def moved_places(
    problem: DecidedProblem,
    schedule: Schedule,
    demand: Demand,
    below_bytes: int,
    *,
    limits: Limits | None = None,
    guide_bytes: Sequence[int] = (),
    fixed_bytes: Mapping[int, int] | None = None,
    less_than_joules: float = math.inf,
    time_limit_seconds: float,
) -> tuple[Compacted, Trace] | None:
    """Places with the cheapest moves that are found, and what a step takes with them.

    Args:
        problem: whose tensors say what a move takes.
        schedule: a solution of it.
        demand: what it asks for.
        below_bytes: what the arena may take, see `poet.memory.compaction.compact`, as for what follows.
        limits: of the step with its moves.
        guide_bytes: the offsets of a layout that is too large.
        fixed_bytes: of a step beside another: the place of each block that has one when it begins.
        less_than_joules: what the moves may take, idle power included.
        time_limit_seconds: of the search.

    Returns:
        ``None`` where no places are found, or the judge finds the step too late or too dear with its moves.
    """
    costs = {tensor.name: tensor.move for tensor in problem.tensors}

    def price_joules(tensor: str) -> float:
        cost = costs[tensor]
        return math.inf if cost is None else cost.joules + problem.idle_watts * cost.seconds + 1e-12

    found = compact(
        demand,
        below_bytes,
        guide_bytes=guide_bytes,
        fixed_bytes=fixed_bytes,
        weights=price_joules,
        less_than=less_than_joules,
        time_limit_seconds=time_limit_seconds,
    )
    if found is None:
        return None
    try:
        return found, judge(problem, schedule, limits, found.places.moved())
    except InvalidSchedule:
        return None
