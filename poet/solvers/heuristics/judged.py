"""List schedules of several policies: the one of least energy among those that the judge accepts."""

from __future__ import annotations

import math
from collections.abc import Iterable

from poet.problem import Limits, Problem
from poet.schedule import Schedule
from poet.solvers.heuristics.list_scheduler import Policy, Stuck, Walk, Weights
from poet.solvers.instance.incumbent import Incumbent
from poet.solvers.instance.instance import Facts


def walked(
    facts: Facts,
    limits: Limits,
    policy: Policy,
    weights: Weights | None = None,
    *,
    most_joules: float = math.inf,
) -> Schedule | None:
    """The list schedule of ``policy``; ``None`` where it got stuck or takes more than ``most_joules``."""
    try:
        return Walk(facts, limits, policy, weights or Weights(), most_joules=most_joules).run()
    except Stuck:
        return None


def cheapest_walk(
    problem: Problem, limits: Limits, policies: Iterable[Policy], *, allowed: Limits | None = None
) -> Schedule | None:
    """The best list schedule of several policies within ``limits``.

    Args:
        problem: what to plan.
        limits: what the result must be within.
        policies: one schedule each.
        allowed: narrower limits for the list scheduler, where a policy forgoes paging or recomputation.
    """
    facts, best = Facts(problem), Incumbent(problem, limits)
    for policy in policies:
        best.consider(walked(facts, allowed or limits, policy))
    return best.schedule
