"""The windows relaxation: linear on finer and finer grids, then in whole numbers with counterexamples.

Two members, both after the dynamic discretisation discovery of Boland, Hewitt, Marshall and Savelsbergh
(2017). Both give bounds, and list schedules along each solution. A solution in whole numbers is simulated as
a step (`poet.solvers.bounds.refinement`): the moments over capacity go on the grids, and the program is
solved again. A solution that RAM is enough for is a plan, and the best one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from poet.solvers.bounds.refinement import ExtractedStep, refined_bounds, undercounted_moments
from poet.solvers.bounds.relaxation import Bound, bound_overhead, taken_up
from poet.solvers.engines.process import EngineProcess
from poet.solvers.engines.program import Effort, Matrix, Outcome
from poet.solvers.heuristics.lp_guided import walks_along
from poet.solvers.instance.incumbent import Incumbent
from poet.solvers.portfolio.best_bound import LINEAR, WALKS, WHOLE
from poet.solvers.portfolio.state import GOES_ON, Claim, SearchState, Steps

LISTEN_SECONDS = 0.05
"""Between two looks at an engine's process; a turn may end at each."""

COUNTEREXAMPLES = 8
"""Moments that go on the grids at once; one at a time solves as many programs."""

SOLVED_SHARE = 1e-4
"""Of a program's joules, at which it counts as solved: what grids still lack is more."""


def linear_relaxation(state: SearchState) -> Steps:
    """Raise the bound grid by grid; where a program has no solution, there is no plan."""
    for bound in refined_bounds(state.instance, state.turn_left, clock=state.clock):
        if bound.overhead_joules == math.inf:
            state.refuted = True
            return
        state.take_bound(bound.overhead_joules, LINEAR)
        if bound.answer.values is not None:
            state.guide = bound
            yield from _followed(state, bound)
        yield GOES_ON


def _followed(state: SearchState, solution: Bound) -> Steps:
    """The list schedules along a solution, as plans."""
    for schedule in walks_along(state.planned, solution):
        state.consider(schedule, WALKS)
        yield GOES_ON


def whole_relaxation(state: SearchState) -> Steps:
    """Solve program after program, each with the counterexamples of the one before."""
    instance, guide = state.instance, state.guide
    moments = frozenset[int]() if guide is None else _most_expensive_moment(guide)
    while True:
        program = bound_overhead(instance, seconds=state.turn_left(), moments=moments, clock=state.clock)
        while not program.answer.done and program.answer.go_on is not None:
            yield GOES_ON
            program = taken_up(program, seconds=state.turn_left(), clock=state.clock)
        if program.overhead_joules == math.inf:
            state.refuted = True
            return
        state.take_bound(program.overhead_joules, LINEAR)
        relaxation, last, is_solved = program.relaxation, program, False
        matrix = relaxation.program.matrix()
        claim = Claim(relaxation.program.matrix, "highs", relaxation.fixed_joules)
        for known, better in solved(state, matrix):
            if known.bound_joules > 0.0:
                state.take_bound(relaxation.fixed_joules + known.bound_joules, WHOLE, claim)
            if better and known.values is not None:
                values = np.array(known.values)
                last = replace(program, answer=replace(program.answer, values=values))
                if relaxation.fixed_joules + matrix.joules(values) < state.overhead_joules():
                    state.guide = last
                    yield from _played(state, last)
            if known.infeasible:
                state.empty, state.refuted = claim, True
                return
            is_solved = known.done
            yield GOES_ON
        if not is_solved or last is program:
            return
        lacking = ExtractedStep(instance, last).over_capacity_moments(COUNTEREXAMPLES)
        more = (lacking | undercounted_moments(instance, last)) - moments
        if not more:
            return
        moments |= more


def solved(state: SearchState, matrix: Matrix) -> Iterator[tuple[Outcome, bool]]:
    """What the engine says of a program, and at each look whether there is a better solution.

    Its process works only while it is looked at, so that a turn may end at any look and go on there. By a
    clock that counts work, a program that a turn's work does not solve begins again in the next one.
    """
    counts = state.clock.counts_work
    with EngineProcess("highs", suspends=not counts) as child:
        while True:
            seconds = state.turn_left() if counts else None
            child.begin(matrix, Effort(seconds, relative_gap=SOLVED_SHARE, clock=state.clock))
            while not child.ended:
                better = child.listen(LISTEN_SECONDS)
                yield child.known, better
            if child.known.done or child.known.infeasible or not counts:
                return


def _most_expensive_moment(guide: Bound) -> frozenset[int]:
    """The moment at which RAM has the highest price."""
    rows, prices = guide.relaxation.moments, guide.answer.prices
    if not rows or not len(prices):
        return guide.moments
    return frozenset({rows[int(prices[: len(rows)].argmax())]})


def _played(state: SearchState, solution: Bound) -> Steps:
    """The solution as a schedule, where RAM is enough for it, and the list schedules along it."""
    checked = Incumbent(state.problem, state.limits, state.metered, clock=state.clock)
    checked.consider(ExtractedStep(state.instance, solution).schedule(), WHOLE, is_ours=False)
    if checked.schedule is not None:
        state.consider(checked.schedule, WHOLE)
    yield GOES_ON
    yield from _followed(state, solution)
