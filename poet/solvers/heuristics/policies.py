"""List schedules of simple policies, and the best of several that the simulator accepts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from poet.problem import Limits, Problem
from poet.schedule import Schedule
from poet.solvers.heuristics.list_scheduler import Policy, Stuck, Tensors, Values, Walk, Way, Weights
from poet.solvers.instance.incumbent import Incumbent
from poet.solvers.instance.instance import Facts


def walked(facts: Facts, limits: Limits, policy: Policy, weights: Weights | None = None) -> Schedule | None:
    """The list schedule of ``policy``; ``None`` where it got stuck."""
    try:
        return Walk(facts, limits, policy, weights or Weights()).run()
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


def keep_everything(problem: Problem, limits: Limits) -> Schedule | None:
    """Plain training: each op once, tensors freed right after their last use, nothing paged that need not be.

    ``None`` where that is not within ``limits``.
    """
    return cheapest_walk(problem, limits, [Policy()], allowed=replace(limits, paging=False, recompute=False))


class ByStaleness(Policy):
    """Drops what is large, was not used for long, and is cheap to have back (Kirisame et al., ICLR 2021)."""

    def __init__(self, way: Way) -> None:
        self.unplanned = way

    def values(self, walk: Walk, tensors: Tensors) -> Values:
        """Bytes × seconds since the last use, per joule."""
        stale_seconds = walk.seconds - walk.used_at[tensors]
        prices = walk.return_prices(tensors) + 1e-30
        return walk.facts.sizes[tensors] * (stale_seconds + 1e-12) / prices


class ByDistance(Policy):
    """Drops what is large, is needed late, and is cheap to have back (after Belady 1966).

    Args:
        exponent: of the joules of coming back; above 1 it prefers cheap returns to long gaps.
    """

    def __init__(self, exponent: float = 1.0) -> None:
        self.exponent = exponent

    def values(self, walk: Walk, tensors: Tensors) -> Values:
        """Bytes × ops until the next use, per joule of coming back to the power of the exponent."""
        # one by one: numpy's power differs in the last bit with what the processor can do, and so would plans
        prices = np.array([price**self.exponent for price in walk.return_prices(tensors).tolist()])
        return walk.facts.sizes[tensors] * walk.distances(tensors) / (prices + 1e-30)
