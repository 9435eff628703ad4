"""From proposals to one answer: the judge accepts, the cheapest wins."""

from __future__ import annotations

from collections.abc import Iterable

from poet.errors import InvalidSchedule
from poet.problem import Limits, Problem
from poet.schedule import Schedule
from poet.simulator import Trace, simulate
from poet.solvers.facts import Facts
from poet.solvers.overlap import overlap
from poet.solvers.walk import Policy, Stuck, Walk, Weights

_ASKED_OF_THE_WHOLE = frozenset({"deadline", "energy", "pin"})
"""Rules that a walk does not look after, step by step."""


class Cheapest:
    """Keeps the schedule of least energy among those it is shown.

    Attributes:
        schedule, trace: the best so far, ``None`` before the first.
    """

    def __init__(self, problem: Problem, limits: Limits) -> None:
        self.problem, self.limits = problem, limits
        self.schedule: Schedule | None = None
        self.trace: Trace | None = None

    def consider(self, schedule: Schedule | None) -> bool:
        """Judge ``schedule``; whether it is the best so far. One that takes too much is passed over.

        Raises:
            InvalidSchedule: it breaks another rule, which no heuristic should.
        """
        if schedule is None:
            return False
        if self.problem.background_storage:
            schedule = overlap(self.problem, schedule, self.limits.ram_budget_bytes)
        try:
            trace = simulate(self.problem, schedule, self.limits)
        except InvalidSchedule as verdict:
            if verdict.rule not in _ASKED_OF_THE_WHOLE:
                raise
            return False
        if self.trace is not None and trace.joules >= self.trace.joules:
            return False
        self.schedule, self.trace = schedule, trace
        return True


def walked(facts: Facts, limits: Limits, policy: Policy, weights: Weights | None = None) -> Schedule | None:
    """The schedule of one walk, or ``None`` where the policy got stuck."""
    try:
        return Walk(facts, limits, policy, weights or Weights()).run()
    except Stuck:
        return None


def cheapest_walk(
    problem: Problem, limits: Limits, policies: Iterable[Policy], *, allowed: Limits | None = None
) -> Schedule | None:
    """The best schedule of the walks of several policies within ``limits``.

    Args:
        problem: what to plan.
        limits: what the result must be within.
        policies: one walk each.
        allowed: narrower limits for the walks, where a policy forgoes paging or recomputation.
    """
    facts, best = Facts(problem), Cheapest(problem, limits)
    for policy in policies:
        best.consider(walked(facts, allowed or limits, policy))
    return best.schedule
