"""The best plan that only pages, every op running once: what integer programs for offloading ask,
such as that of Huang et al., "SwapAdvisor" (ASPLOS 2020) approaches by search, solved to its optimum.
"""

from __future__ import annotations

from dataclasses import replace

from poet.problem import Limits, Problem
from poet.problem.solution import Solution, SolveOptions
from poet.solvers.search.least_energy import solve


def optimal_paging(problem: Problem, limits: Limits, options: SolveOptions | None = None) -> Solution:
    """The best plan without recomputation that the options' time allows, and whether it is proven to be."""
    return solve(problem, replace(limits, recompute=False), options)
