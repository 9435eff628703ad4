"""The relaxation of large steps in whole numbers: sound bounds, more moments, solutions that are plans."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pytest
from helpers.clocks import Given, Ticking
from helpers.conducts import listening
from helpers.oracle import least_joules
from helpers.pace import with_slow
from helpers.random_problems import mixed_problem, random_limits, training_like

from poet.closing import Closing
from poet.problem import Limits, Problem
from poet.simulator import simulate
from poet.solvers import minimum_ram_bytes
from poet.solvers.bounds.played import Played
from poet.solvers.bounds.windows_bound import Bound, bound_overhead
from poet.solvers.engines.highs_process import News
from poet.solvers.engines.matrix import Matrix, Numbers
from poet.solvers.heuristics.greedy import greedy
from poet.solvers.instance.incumbent import Incumbent
from poet.solvers.instance.instance import instance_of
from poet.solvers.search.finders import WHOLE
from poet.solvers.search.slots_of_plans import reruns_of
from poet.solvers.search.whole_relaxation import WholeRelaxation
from poet.tuning import DEFAULT, Tuning

ONCE = DEFAULT.without("discretisation.counterexamples")


class Heard(NamedTuple):
    """Of one run: the last solution, all bounds, the best plan, solutions to follow, joules of plans told."""

    whole: WholeRelaxation
    solution: Bound
    bounds: list[float]
    best: Incumbent
    followed: list[Bound]
    told: list[float]


def tightened(problem: Problem, limits: Limits, seconds: float = 60.0, *, tuning: Tuning = DEFAULT) -> Heard:
    bounds, followed, told = list[float](), list[Bound](), list[float]()

    def hear(joules: float, proven: bool) -> bool:
        assert not proven
        bounds.append(joules)
        return True

    def tell() -> None:
        assert best.trace is not None
        told.append(best.trace.joules)

    conduct = replace(listening(Given(), seconds=seconds), bounded=hear)
    instance, best = instance_of(problem, limits, tuning=tuning), Incumbent(problem, limits)
    best.consider(greedy(problem, limits))
    whole = WholeRelaxation(instance, best, conduct, followed.append, tell)
    solution = whole.tightened(bound_overhead(instance), seconds, lambda child: child.listen(0.05))
    return Heard(whole, solution, bounds, best, followed, told)


def chain(layers: int) -> tuple[Problem, Limits]:
    problem = training_like(layers, seed=3)
    least_bytes = minimum_ram_bytes(problem, Limits()).bytes
    most_bytes = sum(tensor.bytes for tensor in problem.tensors)
    return problem, Limits(ram_budget_bytes=least_bytes + (most_bytes - least_bytes) // 10, paging=False)


@pytest.mark.parametrize("seed", with_slow(range(40), set(range(4, 40))))
def test_bounds_hold_and_plans_are_judged(seed: int) -> None:
    problem = mixed_problem(seed, largest=6)
    limits = random_limits(problem, seed)
    oracle, heard = least_joules(problem, limits), tightened(problem, limits)
    if oracle is None:
        assert heard.best.schedule is None
        return
    least = simulate(problem, oracle, limits).joules
    assert all(bound <= least - problem.compute_joules + 1e-9 * least for bound in heard.bounds)
    assert all(joules >= least * (1.0 - 1e-9) for joules in heard.told)


@pytest.mark.parametrize("layers", with_slow([7, 13], {13}))
def test_what_lacks_ram_is_counted_until_a_solution_is_a_plan(layers: int) -> None:
    problem, limits = chain(layers)
    without, heard = tightened(problem, limits, tuning=ONCE), tightened(problem, limits)
    assert not without.solution.moments
    assert heard.solution.moments
    assert max(heard.bounds) > 1.01 * max(without.bounds)
    assert heard.best.found_by == WHOLE
    assert heard.best.trace is not None
    assert heard.told[-1] == heard.best.trace.joules
    overhead = heard.best.trace.joules - problem.compute_joules
    assert overhead == pytest.approx(max(heard.bounds), rel=1e-3)
    assert heard.followed[-1] is heard.solution
    played = Played(instance_of(problem, limits), heard.solution)
    assert heard.best.schedule is not None
    assert played.schedule() == heard.best.schedule
    assert played.reruns() == reruns_of(instance_of(problem, limits), heard.best.schedule)
    assert played.reruns()


@pytest.mark.parametrize(
    ("paging", "mine", "other"),
    [
        (False, "lacking_for_reruns_share", "lacking_share"),
        (True, "lacking_share", "lacking_for_reruns_share"),
    ],
)
def test_how_much_ram_may_lack_is_another_thing_where_reruns_take_the_joules(
    paging: bool, mine: str, other: str
) -> None:
    problem, limits = chain(7)
    limits = replace(limits, paging=paging)
    solution = tightened(problem, limits, tuning=ONCE).solution
    played = Played(instance_of(problem, limits), solution)
    assert solution.answer.values is not None
    joules = solution.relaxation.program.matrix().joules(solution.answer.values)
    assert solution.relaxation.fixed_joules == 0.0
    assert (played.rerun_joules == pytest.approx(joules)) is not paging
    lacking_share = max(played.bytes) / (limits.ram_budget_bytes or 0) - 1.0
    for share in (0.9 * lacking_share, 1.1 * lacking_share):
        for others in (0.0, 1e9):
            tuning = ONCE.having(f"large.{mine}", share).having(f"large.{other}", others)
            heard = tightened(problem, limits, tuning=tuning)
            assert heard.whole.is_nearly_a_plan(heard.solution) is (share > lacking_share)


def test_without_time_there_is_no_solution() -> None:
    problem, limits = chain(6)
    heard = tightened(problem, limits, seconds=0.0)
    assert not heard.bounds
    assert heard.solution.overhead_joules == bound_overhead(instance_of(problem, limits)).overhead_joules
    assert math.isfinite(heard.solution.overhead_joules)


class Scripted(Closing):
    """In an engine's place: tells of bounds and solutions, a second after the other."""

    def __init__(self, clock: Ticking, told: list[tuple[float, Numbers | None]]) -> None:
        self.clock, self.told, self.news = clock, told, News()

    def close(self) -> None:
        """There is no process."""

    def begin(self, matrix: Matrix, seconds: float) -> None:
        """It tells what it was made with, whatever the program."""

    def tell(self) -> bool:
        self.clock.seconds += 1.0
        self.news.bound_joules, values = self.told.pop(0)
        self.news.values, self.news.ended = values, not self.told
        return values is not None


def heard_of(
    monkeypatch: pytest.MonkeyPatch, tell: Callable[[Bound, float], list[tuple[float, Numbers | None]]]
) -> tuple[Bound, Bound, list[float], list[Bound]]:
    """Of a program with 50 s left of which an engine tells what is made of the linear program's solution and
    the best plan's joules: that solution, the one after it, all bounds, what was followed.
    """
    problem, limits = chain(7)
    instance, best, clock = instance_of(problem, limits), Incumbent(problem, limits), Ticking()
    best.consider(greedy(problem, limits))
    begin, bounds, followed = bound_overhead(instance), list[float](), list[Bound]()
    assert best.trace is not None
    told = tell(begin, best.trace.joules - problem.compute_joules)
    monkeypatch.setattr(
        "poet.solvers.search.whole_relaxation.HighsProcess", lambda tuning, clock: Scripted(clock, told)
    )
    conduct = listening(clock, seconds=50.0, bounds=bounds)
    whole = WholeRelaxation(instance, best, conduct, followed.append, lambda: None)
    found, solved = whole.bounded(begin, 40.0, lambda child: child.tell())  # type: ignore[attr-defined]
    assert not solved
    return begin, found, bounds, followed


@pytest.mark.parametrize(("closed_share", "heard"), [(0.5, 12), (0.005, 10), (0.0, 10)])
def test_a_bound_that_creeps_is_given_up(
    closed_share: float, heard: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two seconds close a tenth each of the gap to the plan; its patience is 7.5 s of the 50 left."""

    def tell(begin: Bound, plan_joules: float) -> list[tuple[float, Numbers | None]]:
        open_joules = [0.9 * plan_joules]
        while len(open_joules) < 12:
            share = 0.1 if len(open_joules) < 2 else closed_share
            open_joules.append((1.0 - share) * open_joules[-1])
        return [(plan_joules - left_joules, None) for left_joules in open_joules]

    begin, found, bounds, followed = heard_of(monkeypatch, tell)
    assert len(bounds) == heard
    assert found is begin
    assert not followed


def test_the_gap_is_that_of_the_cheapest_solution_where_it_is_below_the_plans(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What would be a twentieth of the gap to the plan is half of the one to that solution."""

    def tell(begin: Bound, plan_joules: float) -> list[tuple[float, Numbers | None]]:
        assert begin.answer.values is not None
        joules = begin.overhead_joules
        return [(joules * (1.0 - 2.0**-n), None if n else begin.answer.values) for n in range(12)]

    begin, found, bounds, followed = heard_of(monkeypatch, tell)
    assert len(bounds) == 11  # and at first 0, which is no bound
    assert followed == [found]
    assert found is not begin


def test_a_solution_that_is_dearer_than_the_plan_is_no_guide(monkeypatch: pytest.MonkeyPatch) -> None:
    def tell(begin: Bound, plan_joules: float) -> list[tuple[float, Numbers | None]]:
        return [(-math.inf, np.ones(len(begin.relaxation.program.matrix().costs)))]

    begin, found, bounds, followed = heard_of(monkeypatch, tell)
    assert found is begin
    assert not bounds
    assert not followed
