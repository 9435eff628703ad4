"""Run each op once, free every tensor right after its last use, page nothing that need not move."""

from __future__ import annotations

from dataclasses import replace

from poet.problem import Limits, Problem
from poet.schedule import Schedule
from poet.solvers.heuristics.judged import cheapest_walk
from poet.solvers.heuristics.list_scheduler import Policy


def keep_everything(problem: Problem, limits: Limits) -> Schedule | None:
    """What plain training does; ``None`` where that is not within ``limits``."""
    return cheapest_walk(problem, limits, [Policy()], allowed=replace(limits, paging=False, recompute=False))
