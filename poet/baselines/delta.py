"""Online paging and recomputation: Tang et al., "DELTA: Dynamically Optimizing GPU Memory beyond
Tensor Recomputation" (2022).

A filter picks the tensor to drop as DTR does, a director then pages or recomputes it, whichever
costs less.
"""

from __future__ import annotations

from poet.problem import Limits, Problem
from poet.problem.schedule import Schedule
from poet.solvers.heuristics.gap_arrays import Way
from poet.solvers.heuristics.policies import ByStaleness, cheapest_walk


def delta(problem: Problem, limits: Limits) -> Schedule | None:
    """Both ways, decided when room is needed; ``None`` where it runs out of memory."""
    return cheapest_walk(problem, limits, [ByStaleness(Way.CHEAPER)])
