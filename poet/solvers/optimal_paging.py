"""The best plan that only pages, every op running once."""

from __future__ import annotations

from dataclasses import replace

from poet.problem import Limits, Problem
from poet.schedule import Schedule
from poet.solution import SolveOptions
from poet.solvers.search import solve


def optimal_paging(problem: Problem, limits: Limits, options: SolveOptions | None = None) -> Schedule | None:
    """The best plan without recomputation found within the options' time; ``None`` if there is none."""
    return solve(problem, replace(limits, recompute=False), options).schedule
