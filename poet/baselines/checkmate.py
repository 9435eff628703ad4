"""The best plan that only recomputes: the question of Jain et al., "Checkmate: Breaking the Memory
Wall with Optimal Tensor Rematerialization" (MLSys 2020).

Their integer program has one binary per pair of op and stage; here the same problem is solved by
this package's own model with paging forbidden, which takes less time.
"""

from __future__ import annotations

from dataclasses import replace

from poet.problem import Limits, Problem
from poet.problem.solution import Solution, SolveOptions
from poet.solvers.search.least_energy import solve


def checkmate(problem: Problem, limits: Limits, options: SolveOptions | None = None) -> Solution:
    """The best plan without paging that the options' time allows, and whether it is proven to be."""
    return solve(problem, replace(limits, paging=False), options)
