"""A plan beside those of the literature's planners, on the same problem and by the same judge.

A new planner is a file and a row of `BASELINES` or `EXACT_BASELINES`.
"""

from __future__ import annotations

import dataclasses
import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass

from poet.baselines.capuchin import capuchin
from poet.baselines.chen import chen
from poet.baselines.exact import checkmate, optimal_paging
from poet.baselines.nothing_kept import page_everything, recompute_all
from poet.baselines.online import delta, dtr
from poet.baselines.rotor import pofo, rotor
from poet.baselines.vdnn import vdnn
from poet.errors import InvalidSchedule
from poet.problem import Limits, Objective, Problem
from poet.problem.alternatives import leanest, taken_by, with_names
from poet.problem.pins import permitted
from poet.problem.schedule import Schedule
from poet.problem.simulator import Trace, simulate
from poet.problem.solution import Solution, SolveOptions, Start, Status, amount_of
from poet.solvers import solve
from poet.solvers.heuristics.greedy import greedy
from poet.solvers.heuristics.policies import keep_everything
from poet.util.brief import brief

Baseline = Callable[[Problem, Limits], Schedule | None]
"""A schedule within the limits, best over the baseline's own knob, or ``None`` where it finds none."""

ExactBaseline = Callable[[Problem, Limits, SolveOptions | None], Solution]
"""The answer to a restricted problem, with its own bound."""

BASELINES: dict[str, Baseline] = {
    "keep-everything": keep_everything,
    "recompute-all": recompute_all,
    "chen": chen,
    "page-everything": page_everything,
    "rotor": rotor,
    "pofo": pofo,
    "vdnn": vdnn,
    "capuchin": capuchin,
    "dtr": dtr,
    "delta": delta,
    "greedy": greedy,
}
"""Quick ones: each answers a graph of some thousand ops in seconds."""

EXACT_BASELINES: dict[str, ExactBaseline] = {"checkmate": checkmate, "optimal-paging": optimal_paging}
"""Restricted problems solved by the model, each up to the time limit of `SolveOptions`."""

_log = logging.getLogger(__name__)

AGAIN_SECONDS = 10.0
"""Of searching on from another planner's better plan; without, ours may be the more expensive one."""


@dataclass(frozen=True, slots=True)
class Rival:
    """What another planner made of the problem.

    Attributes:
        name: its key in the registry of baselines.
        status: ``None`` where the planner proves nothing, as most do.
        schedule, trace: its plan and the simulator's account of it; ``None``: it has none inside the limits.
        solve_seconds: wall clock.
    """

    name: str
    status: Status | None
    schedule: Schedule | None
    trace: Trace | None
    solve_seconds: float


@dataclass(frozen=True, slots=True)
class Comparison:
    """Our answer and the others'.

    Attributes:
        ours: takes no more of its objective than any of ``rivals``.
        rivals: in the order of the registry, quick ones first.
        started_from: the rival whose plan was better than what our search had found alone, and from
            which it went on; ``None``: there was none.
    """

    ours: Solution
    rivals: tuple[Rival, ...]
    started_from: str | None = None

    __repr__ = brief


def compare(problem: Problem, limits: Limits, options: SolveOptions, ours: Solution) -> Comparison:
    """``ours`` beside every baseline, each exact one within the time limit of ``options``.

    Should a rival's plan take less of the objective, our search goes on from it, so that ours never
    takes more. The baselines know no alternatives and plan with the choice of ours; they
    minimise energy only, and are judged by all of ``limits``.
    """
    quiet = dataclasses.replace(options, progress=None)
    taken = leanest(problem) if ours.schedule is None else taken_by(problem, ours.schedule)
    allowed = permitted(problem.resolved(taken) if problem.alternatives else problem, limits)
    rivals = [_quick(name, allowed, limits) for name in BASELINES]
    rivals += [_exact(name, allowed, limits, quiet) for name in EXACT_BASELINES]

    for rival in rivals:
        joules = "no plan" if rival.trace is None else f"{rival.trace.joules:.6g} J"
        _log.info("%s: %s in %.3g s", rival.name, joules, rival.solve_seconds)

    def amount(trace: Trace | None) -> float:
        return math.inf if trace is None else amount_of(ours.objective, trace)

    best = min(rivals, key=lambda rival: amount(rival.trace))
    if amount(ours.trace) <= amount(best.trace):
        return Comparison(ours, tuple(rivals))
    _log.info("%s has the better plan: the search goes on from it", best.name)
    start = Start(best.schedule and with_names(problem, taken, best.schedule), best.name)
    again = dataclasses.replace(quiet, start=start, time_limit_seconds=AGAIN_SECONDS)
    better = solve(problem, limits, again)
    spent = ours.solve_seconds + better.solve_seconds
    return Comparison(dataclasses.replace(better, solve_seconds=spent), tuple(rivals), best.name)


def _quick(name: str, problem: Problem, limits: Limits) -> Rival:
    started = time.monotonic()
    schedule = BASELINES[name](problem, limits)
    seconds = time.monotonic() - started
    trace = None if schedule is None else simulate(problem, schedule, limits)
    return Rival(name, None, schedule, trace, seconds)


def _exact(name: str, problem: Problem, limits: Limits, options: SolveOptions) -> Rival:
    energy = dataclasses.replace(options, objective=Objective.ENERGY)
    answer = EXACT_BASELINES[name](problem, limits, energy)
    try:
        trace = None if answer.schedule is None else simulate(problem, answer.schedule, limits)
    except InvalidSchedule:  # the energy budget and the pins are no concern of theirs
        return Rival(name, None, None, None, answer.solve_seconds)
    return Rival(name, answer.status, answer.schedule, trace, answer.solve_seconds)
