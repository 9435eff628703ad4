"""Exact models over retention intervals, for plans, and of small problems for bounds.

The intervals are those of MOCCASIN (Bartan, Li, Teague, Lott and Dilkina 2023). Models are offered the reruns
of the best plan, and all chains of reruns of some length, longer and longer; the last are offered every rerun
that may pay, and in each stage p times in order.

*Proposition.* Where the overhead of the best plan is below (p + 1) times the least joules of a rerun, the
least of such a model bounds all schedules that take less than the best plan. *Proof*: they have at most p
reruns, and those of a stage are a part of p times all reruns in order.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial

from poet.solvers.engines import Effort, Outcome, run_engine
from poet.solvers.event_model.decisions import EventModel
from poet.solvers.event_model.model import build, matrix_of, schedule_of, values_of
from poet.solvers.instance.candidates import candidates, merged, reruns_of, worth_rerunning
from poet.solvers.instance.instance import Instance, timeline_of
from poet.solvers.portfolio.state import GOES_ON, Claim, SearchState, Steps, model_by

FIRST_CHAIN, LONGEST_CHAIN = 2, 64
"""Reruns that lead to one tensor version; with 1, most plans of little RAM are none of the first model's."""

MOST_RERUNS = 2500
"""That a model is offered; with more, an engine finds no plan in minutes."""

MOST_PASSES = 3
"""How often a stage may go through every rerun in order, in the last models."""

ENGINE_GAP_SHARE = 0.3
"""Of the gap that is allowed in the end, at which an engine may stop: rounding needs the rest."""


def retention_intervals(state: SearchState) -> Steps:
    """Model after model, a turn each; one that is not solved in its turn gets a longer one later."""
    open_models, ended = list(_offers(state.instance)), set[tuple[object, bool]]()
    while open_models:
        offered, passes = model = open_models.pop(0)
        if not passes and state.best.schedule is not None:
            offered = merged(offered, reruns_of(state.instance, state.best.schedule))
        has_all = _most_reruns(state) < passes + 1
        key = frozenset(offered.items()), has_all
        if key in ended or _is_solved(state, offered, has_all=has_all):
            ended.add(key)
        else:
            open_models.append(model)
        yield GOES_ON


def _is_solved(state: SearchState, offered: dict[int, tuple[int, ...]], *, has_all: bool) -> bool:
    """Look for the best plan whose reruns all have a slot in ``offered``; whether all was searched."""
    outcome = _run(state, build(timeline_of(state.instance, offered)), has_all=has_all)
    is_solved = outcome.done or outcome.infeasible
    if state.planned is not state.instance and not state.finished():
        outcome = _run(state, build(timeline_of(state.planned, offered)))
        is_solved &= outcome.done or outcome.infeasible
    return is_solved


def _most_reruns(state: SearchState) -> float:
    """That a schedule can have no more of, if it takes less than the best plan."""
    tasks, overhead = state.instance.tasks, state.overhead_joules()
    least = min((tasks[number].cost.joules for number in worth_rerunning(state.instance)), default=math.inf)
    return overhead / least if least > 0.0 else math.inf


def _run(state: SearchState, model: EventModel, *, has_all: bool = False) -> Outcome:
    """Solve one model by the search's engine; takes over its plans, and its bound where it ``has_all``."""
    schedule, found_by = state.best.schedule, model_by(state.engine)
    matrix = matrix_of(model, None if schedule is None else values_of(model, schedule))
    most_joules, claim = state.overhead_joules(), Claim(partial(matrix_of, model), state.engine)

    def watch(values: Sequence[float] | None, bound_joules: float) -> bool:
        if values is not None:
            state.consider(schedule_of(model, values), found_by)
        if has_all:
            state.take_bound(min(bound_joules, most_joules), found_by, claim)
        state.report()
        return state.enough()

    outcome = run_engine(state.engine, matrix, effort_of(state, state.turn_left()), watcher=watch)
    watch(outcome.values, outcome.bound_joules)
    state.stopped = state.stopped or outcome.interrupted
    return outcome


def effort_of(state: SearchState, seconds: float, most_seconds: float | None = None) -> Effort:
    """For an engine; ``most_seconds`` not given: all that is left."""
    allowed_joules = state.options.allowed_gap_joules(state.bound.joules, state.baseline_joules)
    return Effort(
        seconds=seconds,
        threads=state.options.threads,
        seed=state.options.seed,
        absolute_joules=ENGINE_GAP_SHARE * allowed_joules,
        most_seconds=state.seconds_left() if most_seconds is None else most_seconds,
        clock=state.clock,
    )


def _offers(instance: Instance) -> Iterator[tuple[dict[int, tuple[int, ...]], int]]:
    """The reruns that models are offered, and how often every one that may pay; at most `MOST_RERUNS`."""
    before: dict[int, tuple[int, ...]] | None = None
    chain = FIRST_CHAIN
    while chain <= LONGEST_CHAIN:
        offered = candidates(instance, chain)
        if sum(map(len, offered.values())) > MOST_RERUNS:
            return
        if offered != before:
            yield offered, 0
        before, chain = offered, 2 * chain
    for passes in range(1, MOST_PASSES + 1):
        every = candidates(instance, None, passes=passes)
        if sum(map(len, every.values())) > MOST_RERUNS:
            return
        yield every, passes
