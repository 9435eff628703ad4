"""Restricted problems solved to their optimum by this package's own model.

The best plan that only recomputes is the question of Jain et al., "Checkmate: Breaking the Memory Wall with
Optimal Tensor Rematerialization" (MLSys 2020); their integer program has one binary per pair of op and stage
and takes longer. The best plan that only pages, every op running once, is what integer programs for
offloading ask, and what Huang et al., "SwapAdvisor" (ASPLOS 2020) approach by search.
"""

from __future__ import annotations

from dataclasses import replace

from poet.problem import Limits, Problem
from poet.problem.solution import Solution, SolveOptions
from poet.solvers.search.least_energy import solve


def checkmate(problem: Problem, limits: Limits, options: SolveOptions | None = None) -> Solution:
    """The best plan without paging that the options' time allows, and whether it is proven to be."""
    return solve(problem, replace(limits, paging=False), options)


def optimal_paging(problem: Problem, limits: Limits, options: SolveOptions | None = None) -> Solution:
    """The best plan without recomputation that the options' time allows, and whether it is proven to be."""
    return solve(problem, replace(limits, recompute=False), options)
