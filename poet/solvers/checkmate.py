"""The best plan that only recomputes: the question of Jain et al., "Checkmate" (MLSys 2020).

Their integer program asks for it with one binary per pair of op and stage; here the same question
goes to this package's own model with paging forbidden, which answers it sooner.
"""

from __future__ import annotations

from dataclasses import replace

from poet.problem import Limits, Problem
from poet.schedule import Schedule
from poet.solution import SolveOptions
from poet.solvers.search import solve


def checkmate(problem: Problem, limits: Limits, options: SolveOptions | None = None) -> Schedule | None:
    """The best plan without paging found within the options' time; ``None`` if there is none."""
    return solve(problem, replace(limits, paging=False), options).schedule
