"""Members that raise the bound: the windows relaxation in fractions and in whole numbers, and resident sets.

The windows relaxation is solved on finer and finer grids, after the dynamic discretisation discovery of
Boland, Hewitt, Marshall and Savelsbergh (2017); list schedules follow each solution. One in whole numbers is
simulated as a step (`poet.solvers.bounds.refinement`): the moments over capacity go on the grids, and the
program is solved again. A solution that RAM is enough for is a plan, and the best one.

The prover (`poet.solvers.bounds.resident_sets`) has the best bounds where page-outs take most.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from poet.problem.homes import decide
from poet.problem.schedule import Schedule
from poet.solvers.bounds.refinement import ExtractedStep, refined_bounds
from poet.solvers.bounds.relaxation import Bound, Segment, bound_overhead, taken_up
from poet.solvers.bounds.resident_sets import MOST_ARCS, resident_sets_bounds
from poet.solvers.engines.process import EngineProcess
from poet.solvers.engines.program import Effort, Matrix, Numbers, Outcome, value
from poet.solvers.heuristics.gap_arrays import Way
from poet.solvers.heuristics.policies import PRICE_EXPONENTS, Planned, Weights, walked
from poet.solvers.instance.instance import Facts, Instance
from poet.solvers.portfolio.state import (
    COPIES,
    GOES_ON,
    LINEAR,
    WAITS,
    WALKS,
    WHOLE,
    Claim,
    SearchState,
    Steps,
)

LISTEN_SECONDS = 0.05
"""Between two looks at an engine's process; a turn may end at each."""

COUNTEREXAMPLES = 8
"""Moments that go on the grids at once; one at a time solves as many programs."""

SOLVED_SHARE = 1e-4
"""Of a program's joules, at which it counts as solved: what grids still lack is more."""

AGAIN_SHARE = 0.05
"""Of the overhead, by which a better plan has the prover begin again: what it rules out was too coarse."""


SURE_SHARES = (0.5, 0.99)
"""Of a version, from which on it counts as kept, schedules for each; with one, fractions are read one way."""

BACK_SHARE = 0.3
"""Of a version, above which it counts as made again or paged in; at 0, spread fractions show no place."""


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


def walks_along(instance: Instance, bound: Bound) -> Iterator[Schedule]:
    """Schedules that follow the solution of ``bound``; none without a solution.

    One for each pair of a threshold in ``SURE_SHARES`` and an exponent in ``PRICE_EXPONENTS``. Where the plan
    chooses homes, they are where the solution has the larger part of each.
    """
    values = bound.answer.values
    if values is None:
        return
    at_home = bound.relaxation.at_home
    in_storage = frozenset(tensor for tensor, column in at_home.items() if value(column, values) < 0.5)
    problem = decide(instance.problem, in_storage)
    facts, idle = Facts(problem), problem.idle_watts
    weights = Weights(idle, 0.0 if problem.background_storage else idle)
    stretches, marked = bound.relaxation.segments + bound.relaxation.tails, list[dict[tuple[int, int], Way]]()
    for surely in SURE_SHARES:
        marks = _absences(facts, instance, stretches, values, surely)
        if marks in marked:  # a solution in whole numbers gives the same for all thresholds
            continue
        marked.append(marks)
        for exponent in PRICE_EXPONENTS:
            schedule = walked(facts, instance.limits, Planned(marks, exponent), weights)
            if schedule is not None:
                yield schedule


def _absences(
    facts: Facts, instance: Instance, segments: tuple[Segment, ...], values: Numbers, surely: float
) -> dict[tuple[int, int], Way]:
    """Per tensor and op after which the solution keeps less than ``surely`` of it, how it comes back."""
    number = {tensor.name: index for index, tensor in enumerate(facts.problem.tensors)}
    return {
        (number[instance.contents[segment.content].tensor], segment.moments[window]): _way_back(
            segment, window, values
        )
        for segment in segments
        for window, kept in enumerate(segment.kept)
        if value(kept, values) < surely
    }


def _way_back(segment: Segment, window: int, values: Numbers) -> Way:
    """How the version first comes back after it was dropped in ``window``."""
    for paged, made in zip(segment.paged[window:], segment.made[window:], strict=True):
        in_pages, in_runs = value(paged, values), value(made, values)
        if in_pages + in_runs > BACK_SHARE:
            return Way.REMAKE if in_runs > in_pages else Way.PAGE
    return Way.CHEAPER


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
        for known, better in _solved(state, matrix):
            if known.bound_joules > 0.0:
                state.take_bound(relaxation.fixed_joules + known.bound_joules, WHOLE, claim)
            if better and known.values is not None:
                values = np.array(known.values)
                last = replace(program, answer=replace(program.answer, values=values))
                if relaxation.fixed_joules + matrix.joules(values) < state.overhead_joules():
                    state.guide = last
                    state.consider(ExtractedStep(instance, last).schedule(), WHOLE, is_ours=False)
                    yield GOES_ON
                    yield from _followed(state, last)
            if known.infeasible:
                state.empty, state.refuted = claim, True
                return
            is_solved = known.done
            yield GOES_ON
        if not is_solved or last is program:
            return
        more = ExtractedStep(instance, last).over_capacity_moments(COUNTEREXAMPLES)
        if not more:
            return
        moments |= more


def _solved(state: SearchState, matrix: Matrix) -> Iterator[tuple[Outcome, bool]]:
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


def resident_sets(state: SearchState) -> Steps:
    """Bounds below the best plan; where nothing may be written and none is known, a proof that there is none.

    *Proposition.* A program that has no step below N * J joules has none, where N is more than its
    transitions and contents together, and J the most expensive rerun or page-in. *Proof*: a cheapest step
    takes no transition twice, and beside them it may have to page each content in once.
    """
    while True:
        below, proves_none = state.overhead_joules(), False
        if math.isinf(below):
            below, proves_none = _beyond_any_step(state), True
        if math.isinf(below):
            if state.alone:
                return
            yield WAITS
            continue
        bounds = resident_sets_bounds(
            state.instance,
            below_joules=below,
            clock=state.clock,
            finished=state.finished,
            seconds_left=state.seconds_left,
        )
        for overhead_joules in bounds:
            if proves_none and overhead_joules >= below:
                state.refuted = True
                return
            if not proves_none:
                state.take_bound(overhead_joules, COPIES)
            yield GOES_ON
            if state.overhead_joules() < (1.0 - AGAIN_SHARE) * below:
                break
        else:
            return


def _beyond_any_step(state: SearchState) -> float:
    """Joules that no step of the program takes, by the proposition; infinite where tensors may be written."""
    instance = state.instance
    if any(content.page_out is not None for content in instance.contents):
        return math.inf
    moves = [task.cost for task in instance.tasks]
    moves += [content.page_in for content in instance.contents if content.page_in is not None]
    most_moves = MOST_ARCS + len(instance.contents) + 1
    return most_moves * max((cost.joules for cost in moves), default=0.0)
