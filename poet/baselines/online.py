"""Decided when memory runs out, with nothing planned ahead: DTR and DELTA.

Kirisame et al., "Dynamic Tensor Rematerialization" (ICLR 2021), drop the tensor of least
cost / (size × staleness): the cost is of remaking it together with what else would have to be remade for it,
the staleness the time since its last use. Tang et al., "DELTA: Dynamically Optimizing GPU Memory beyond
Tensor Recomputation" (2022), pick the tensor in the same way; a director then pages or recomputes it,
whichever costs less.
"""

from __future__ import annotations

from dataclasses import replace

from poet.problem import Limits, Problem
from poet.problem.schedule import Schedule
from poet.solvers.heuristics.gap_arrays import Way
from poet.solvers.heuristics.policies import ByStaleness, cheapest_walk


def dtr(problem: Problem, limits: Limits) -> Schedule | None:
    """Recomputation alone; ``None`` where it runs out of memory."""
    return cheapest_walk(problem, limits, [ByStaleness(Way.REMAKE)], allowed=replace(limits, paging=False))


def delta(problem: Problem, limits: Limits) -> Schedule | None:
    """Recomputation and paging; ``None`` where it runs out of memory."""
    return cheapest_walk(problem, limits, [ByStaleness(Way.CHEAPER)])
