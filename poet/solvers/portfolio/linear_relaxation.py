"""The linear program of the windows relaxation on finer and finer grids, and list schedules along it."""

from __future__ import annotations

import math

from poet.solvers.bounds.refinement import refined_bounds
from poet.solvers.bounds.relaxation import Bound
from poet.solvers.heuristics.lp_guided import walks_along
from poet.solvers.portfolio.finders import LINEAR, WALKS
from poet.solvers.portfolio.state import GOES_ON, SearchState, Steps


def linear_relaxation(state: SearchState) -> Steps:
    """Raise the bound grid by grid; where a program has no solution, there is no plan.

    The grids are refined after Boland, Hewitt, Marshall and Savelsbergh (2017).
    """
    for bound in refined_bounds(state.instance, state.turn_left, clock=state.clock):
        yield from heard(state, bound)
        if state.refuted:
            return
        yield GOES_ON


def heard(state: SearchState, bound: Bound) -> Steps:
    """Take a bound of the linear program, and the schedules along its solution."""
    if bound.overhead_joules == math.inf:
        state.refuted = True
        return
    state.take_bound(bound.overhead_joules, LINEAR)
    if bound.answer.values is not None:
        state.guide = bound
        yield from followed(state, bound)


def followed(state: SearchState, solution: Bound) -> Steps:
    """The list schedules along a solution of the relaxation, as plans."""
    for schedule in walks_along(state.planned, solution):
        state.consider(schedule, WALKS)
        yield GOES_ON
