"""Online recomputation: Kirisame et al., "Dynamic Tensor Rematerialization" (ICLR 2021).

When memory runs out, the tensor of least cost / (size × staleness) goes: the cost is of remaking
it together with what else would have to be remade for it, the staleness the time since its last
use. Nothing is planned ahead.
"""

from __future__ import annotations

from dataclasses import replace

from poet.problem import Limits, Problem
from poet.problem.schedule import Schedule
from poet.solvers.heuristics.gap_arrays import Way
from poet.solvers.heuristics.policies import ByStaleness, cheapest_walk


def dtr(problem: Problem, limits: Limits) -> Schedule | None:
    """Recomputation alone, decided when room is needed; ``None`` where it runs out of memory."""
    return cheapest_walk(problem, limits, [ByStaleness(Way.REMAKE)], allowed=replace(limits, paging=False))
