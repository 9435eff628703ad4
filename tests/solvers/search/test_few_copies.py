"""Exact models in which few tensors may be written: what they allow, what they find, and when they end."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
from helpers.random_problems import dear_storage, training_like, with_homes

from poet.clock import WorkClock
from poet.homes import stored_between_steps, undecided
from poet.problem import Limits, Place, Problem
from poet.ram_survey import budget_between, keep_everything_bytes
from poet.schedule import PageOut, Schedule
from poet.simulator import simulate
from poet.solution import Solution, SolveOptions, Status
from poet.solvers import minimum_ram_bytes, solve
from poet.solvers.bounds.relaxation import laid_out
from poet.solvers.bounds.windows_bound import bound_overhead
from poet.solvers.engines import Outcome
from poet.solvers.engines.linear import Diving, minimise
from poet.solvers.heuristics.judged import walked
from poet.solvers.heuristics.list_scheduler import Way
from poet.solvers.heuristics.policies import ByStaleness
from poet.solvers.heuristics.rounded_copies import rounded_copies
from poet.solvers.instance.indexed import Facts
from poet.solvers.instance.instance import instance_of
from poet.solvers.search.few_copies import FewCopies, storing_only
from poet.solvers.search.model_runs import ModelRuns
from poet.solvers.search.standing import Standing
from poet.tuning import DEFAULT

PHASE = "exact event models, few copies"
TUNING = DEFAULT.having("few_copies.fewest_ops", 1)
SHORT = TUNING.having("few_copies.most_slots", 60)


def tight(problem: Problem, share: float = 0.2) -> Limits:
    least, most = minimum_ram_bytes(problem).bytes, keep_everything_bytes(problem)
    return Limits(ram_budget_bytes=budget_between(least, most, share))


def planned(problem: Problem, limits: Limits, *, seconds: float = 20.0) -> Solution:
    return solve(problem, limits, SolveOptions(time_limit_seconds=seconds, clock=WorkClock()))


def written(schedule: Schedule) -> set[str]:
    return {step.tensor for step in schedule if isinstance(step, PageOut)}


@pytest.mark.parametrize("seed", range(2))
def test_what_may_not_be_written_is_not_and_the_plan_is_one_of_the_whole_problem(seed: int) -> None:
    problem = with_homes(dear_storage(seed, layers=2), seed)
    limits = tight(problem, 0.5)
    best = planned(problem, limits)
    assert best.schedule is not None
    away = stored_between_steps(problem, best.schedule, undecided(problem))
    names = frozenset(written(best.schedule) | away)
    few = storing_only(problem, names)
    again = planned(few, limits)
    assert again.schedule is not None
    assert again.status is best.status is Status.OPTIMAL
    assert again.joules == pytest.approx(best.joules, rel=1e-6)
    assert simulate(problem, again.schedule, limits).joules == pytest.approx(again.joules)
    must = {t.name for t in problem.tensors if Place.STORAGE in (t.initially, t.finally_)}
    assert written(again.schedule) <= names | must
    assert set(undecided(few)) == set(undecided(problem)) & names


def searching(problem: Problem, limits: Limits, start: Schedule) -> tuple[FewCopies, Standing]:
    options = SolveOptions(time_limit_seconds=60.0, clock=WorkClock(), tuning=SHORT)
    standing = Standing(problem, limits, options, "highs", None)
    standing.consider(start, "a test")
    return FewCopies(ModelRuns(standing, "highs")), standing


def walk(problem: Problem, limits: Limits) -> Schedule:
    schedule = walked(Facts(problem), limits, ByStaleness(Way.PAGE))
    assert schedule is not None
    return schedule


@pytest.mark.parametrize("seed", range(3))
def test_a_turn_finds_better_plans_and_the_same_ones_again(seed: int) -> None:
    problem = dear_storage(seed, layers=4)
    limits = tight(problem)
    start = walk(problem, limits)
    found = []
    for _ in range(2):
        few, standing = searching(problem, limits, start)
        few.turn(1.0, {})
        assert few.leads
        found.append(standing.best.schedule)
        assert standing.empty is None, "that few copies leave no better plan says nothing of all plans"
        assert standing.recorder.record().phases[-1].name == PHASE
    assert found[0] == found[1] != start
    assert found[0] is not None
    assert simulate(problem, found[0], limits).joules < simulate(problem, start, limits).joules


def test_where_page_outs_take_little_or_may_not_be_there_is_no_turn() -> None:
    cheap, dear = training_like(4, seed=0), dear_storage(0, layers=4)
    free = dataclasses.replace(
        cheap,
        tensors=tuple(
            t
            if t.page_out is None
            else dataclasses.replace(t, page_out=dataclasses.replace(t.page_out, joules=0.0))
            for t in cheap.tensors
        ),
    )
    for problem in (free, dear):
        limits = tight(problem)
        start = walk(problem, limits)
        few, standing = searching(problem, limits, start)
        few.turn(1.0 if problem is free else 0.0, {})
        assert not few.leads
        assert not standing.recorder.record().phases


@pytest.mark.slow
def test_it_is_off_where_the_tuning_says_so() -> None:
    problem = dear_storage(1, layers=5)
    limits = tight(problem)
    off = TUNING.without("few_copies.round_share").without("few_copies.restart_share")
    names = []
    for tuning in (TUNING, off, DEFAULT):
        options = SolveOptions(time_limit_seconds=2.0, clock=WorkClock(), tuning=tuning)
        names.append([phase.name for phase in solve(problem, limits, options).record.phases])
    assert PHASE in names[0]
    assert PHASE not in names[1]
    assert PHASE not in names[2], "a tiny step"


@pytest.mark.parametrize(("share", "less"), [(0.2, 0.0), (0.3, 0.03)])
@pytest.mark.parametrize("seed", range(4))
def test_what_the_relaxation_writes_is_enough_for_it(seed: int, share: float, less: float) -> None:
    """With these tensors alone the program has a solution at that budget; with none of them a dearer one."""
    problem = dear_storage(seed, layers=4)
    limits, clock = tight(problem, share), WorkClock()
    names = rounded_copies(
        instance_of(problem, limits), less, clock=clock, end=math.inf, finished=lambda: False
    )
    assert names or share > 0.2, "so little RAM is not enough without writing"
    assert limits.ram_budget_bytes is not None
    lacking = Limits(ram_budget_bytes=int((1.0 - less) * limits.ram_budget_bytes))
    some, none, all_ = (
        bound_overhead(instance_of(storing_only(problem, each), lacking)).overhead_joules
        for each in (names, frozenset[str](), frozenset(t.name for t in problem.tensors))
    )
    assert all_ - 1e-9 <= some < math.inf
    assert some <= none


def test_without_a_budget_or_time_nothing_is_written() -> None:
    problem = dear_storage(0, layers=4)
    for limits, end in ((Limits(), math.inf), (tight(problem), 0.0)):
        instance, clock = instance_of(problem, limits), WorkClock()
        clock.spend(programs=100)
        assert not rounded_copies(instance, 0.0, clock=clock, end=end, finished=lambda: False)


def test_columns_that_are_fixed_are_what_was_said() -> None:
    """As the same program with rows that say so; and back."""
    problem = dear_storage(2, layers=4)
    layout = laid_out(instance_of(problem, tight(problem)))
    diving = Diving(layout.program.matrix())
    copies = [column for column in layout.stored if column >= 0]
    free = diving.solve(seconds=10.0)
    assert free is not None
    assert free[0] == pytest.approx(minimise(layout.program.matrix(), seconds=10.0).bound)
    for column in copies[:3]:
        diving.fix([column], 1.0)
        layout.program.row([(-1.0, column)], -1.0)
        found = diving.solve(seconds=10.0)
        assert found is not None
        assert found[1][column] == pytest.approx(1.0)
        assert found[0] == pytest.approx(minimise(layout.program.matrix(), seconds=10.0).bound)
    diving.fix(copies, 0.0)
    without = diving.solve(seconds=10.0)
    assert without is None or without[0] > free[0]


def test_a_walk_is_given_up_when_its_joules_are_used_up() -> None:
    problem = dear_storage(3, layers=4)
    limits = tight(problem)
    facts, policy = Facts(problem), ByStaleness(Way.PAGE)
    schedule = walked(facts, limits, policy)
    assert schedule is not None
    assert problem.idle_watts == 0.0
    joules = simulate(problem, schedule, limits).joules
    assert walked(facts, limits, policy, most_joules=joules * (1.0 + 1e-9)) == schedule
    assert walked(facts, limits, policy, most_joules=joules * (1.0 - 1e-6)) is None


@pytest.mark.parametrize("seed", range(3))
def test_where_a_step_writes_too_little_for_a_plan_what_the_best_plan_writes_is_allowed_too(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    problem = dear_storage(seed, layers=4)
    limits = tight(problem)
    start = walk(problem, limits)
    few, standing = searching(problem, limits, start)
    improve, told = few.runs.improve, list[tuple[bool, bool]]()

    def watched(*arguments: Any, contains_best: bool) -> Outcome:
        outcome = improve(*arguments, contains_best=contains_best)
        told.append((contains_best, outcome.infeasible))
        return outcome

    monkeypatch.setattr(few.runs, "improve", watched)
    smallest = min((t for t in problem.tensors if t.page_out and t.page_in), key=lambda t: t.bytes)
    few.follow(frozenset({smallest.name}), {})
    assert told == [(False, True), (True, False)]
    assert standing.best.schedule is not None
    assert standing.best.schedule != start
    assert written(standing.best.schedule) <= written(start) | {smallest.name}
    told.clear()
    for stages in ({1: (0,)}, {2: (0,)}):
        few.follow(frozenset({smallest.name}), stages)
    assert [contains for contains, _ in told].count(True) <= 1, "both together are tried once"


def test_no_model_takes_longer_than_the_search_has_left(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = dear_storage(0, layers=4)
    limits = tight(problem)
    few, standing = searching(problem, limits, walk(problem, limits))
    standing.clock.spend(engine_seconds=standing.seconds_left() - 1.5)
    given = list[float]()

    def improve(*arguments: object, contains_best: bool) -> Outcome:
        given.append(float(str(arguments[2])))
        return Outcome(None, -math.inf, False, True, False)

    monkeypatch.setattr(few.runs, "improve", improve)
    few.follow(frozenset({problem.tensors[0].name}), {})
    assert len(given) == 2
    assert max(given) <= 1.5
