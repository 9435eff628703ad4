"""Plans near a plan: other copies in storage, each judged, each better than the last."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from itertools import pairwise

import pytest
from helpers.random_problems import dear_storage, training_like, with_homes

from poet.clock import WorkClock
from poet.homes import decide, stored_between_steps, undecided
from poet.problem import Limits, Problem
from poet.ram_survey import budget_between, keep_everything_bytes
from poet.schedule import PageOut, Schedule
from poet.simulator import simulate
from poet.solution import Solution, SolveOptions
from poet.solvers import minimum_ram_bytes, solve
from poet.solvers.heuristics.copies_search import better_copies
from poet.solvers.heuristics.greedy import greedy
from poet.solvers.literature.page_everything import page_everything
from poet.solvers.search.finders import GREEDY
from poet.solvers.search.standing import Standing
from poet.solvers.search.varied_copies import VariedCopies
from poet.tuning import DEFAULT, Tuning

TUNING = dataclasses.replace(DEFAULT.copies_search, patience_tries=60, return_tries=20)


def tight(problem: Problem) -> Limits:
    least, most = minimum_ram_bytes(problem).bytes, keep_everything_bytes(problem)
    return Limits(ram_budget_bytes=budget_between(least, most, 0.2))


def found(problem: Problem, limits: Limits, *, seed: int = 0, patience_tries: int = 60) -> Iterator[Schedule]:
    start = page_everything(problem, limits)
    assert start is not None
    tuning = dataclasses.replace(TUNING, patience_tries=patience_tries)
    clock = WorkClock()
    return better_copies(
        problem, limits, start, tuning, seed=seed, clock=clock, finished=lambda: False, anew=False
    )


@pytest.mark.parametrize("seed", range(4))
def test_each_plan_is_valid_and_better_than_the_last(seed: int) -> None:
    problem = dear_storage(seed)
    limits = tight(problem)
    start = page_everything(problem, limits)
    assert start is not None
    joules = [simulate(problem, plan, limits).joules for plan in (start, *found(problem, limits, seed=seed))]
    assert len(joules) > 2
    assert all(after < before for before, after in pairwise(joules))


def test_the_same_seed_finds_the_same_plans() -> None:
    problem = dear_storage(1)
    limits = tight(problem)
    assert list(found(problem, limits, seed=3)) == list(found(problem, limits, seed=3))


def test_it_ends_when_it_is_told_to_and_counts_its_tries() -> None:
    problem, clock, looks = dear_storage(2), WorkClock(), iter(range(100))
    limits = tight(problem)
    start = page_everything(problem, limits)
    assert start is not None
    list(
        better_copies(problem, limits, start, TUNING, seed=0, clock=clock, finished=lambda: next(looks) >= 5)
    )
    assert clock.now() == pytest.approx(5 * TUNING.try_schedules * clock.schedule_seconds)


def test_where_nothing_may_be_written_it_leaves_the_plan_alone() -> None:
    problem = dear_storage(0)
    assert not list(found(problem, tight(problem), patience_tries=0))
    start = page_everything(problem, tight(problem))
    assert start is not None
    stays = dataclasses.replace(tight(problem), paging=False)
    plans = better_copies(problem, stays, start, TUNING, seed=0, clock=WorkClock(), finished=lambda: False)
    assert not list(plans)


@pytest.mark.parametrize("in_storage", [False, True])
def test_homes_that_the_plan_chooses_are_part_of_the_search(in_storage: bool) -> None:
    """From all of them in RAM as from all in storage, which is dear: better plans, and soon not all there."""
    problem = with_homes(dear_storage(1), 1)
    limits, names = tight(problem), undecided(problem)
    start = page_everything(decide(problem, names if in_storage else ()), limits)
    assert start is not None
    plans = list(
        better_copies(problem, limits, start, TUNING, seed=0, clock=WorkClock(), finished=lambda: False)
    )
    assert plans
    joules = [simulate(problem, plan, limits).joules for plan in (start, *plans)]
    assert all(after < before for before, after in pairwise(joules))
    assert stored_between_steps(problem, plans[-1], names) < frozenset(names)


def test_sets_by_size_come_first_and_are_better_than_many_tries_from_a_bad_start() -> None:
    """Of parameters alone; a search that goes on, or has none of them, begins at the plan it is given."""
    problem = dear_storage(1)
    limits, tuning = tight(problem), dataclasses.replace(TUNING, patience_tries=1)
    start = page_everything(problem, limits)
    assert start is not None
    made = {tensor for op in problem.ops for tensor in op.outputs}

    def first(*, anew: bool, exponents: tuple[float, ...] = tuning.first_exponents) -> list[Schedule]:
        few = dataclasses.replace(tuning, first_exponents=exponents)
        return list(
            better_copies(
                problem, limits, start, few, seed=0, clock=WorkClock(), finished=lambda: False, anew=anew
            )
        )

    by_size = first(anew=True)
    assert by_size
    assert simulate(problem, by_size[-1], limits).joules < simulate(problem, start, limits).joules
    assert first(anew=False) == first(anew=True, exponents=()) != by_size
    assert any(isinstance(step, PageOut) and step.tensor not in made for step in by_size[-1])


@pytest.mark.slow
def test_a_large_step_begins_with_it_where_a_plan_takes_many_times_what_ops_alone_do() -> None:
    """Neither where it takes less, nor where the tuning has it off."""
    dear, as_large = dear_storage(1), DEFAULT.having("search.large_ops", 1)
    cheaper = (dataclasses.replace(op, joules=0.1 * op.joules) for op in dear.ops)
    dear = dataclasses.replace(dear, ops=tuple(cheaper))
    off = as_large.without("copies_search.large_steps")
    phases = [
        [phase.name for phase in searched(problem, tuning).record.phases]
        for problem, tuning in ((dear, as_large), (dear, off), (training_like(3, seed=1), as_large))
    ]
    assert [names.count("local search over copies") for names in phases] == [1, 0, 0]
    assert phases[0][:2] == ["greedy plans", "local search over copies"]


def test_a_turn_goes_on_as_long_again_as_its_last_better_plan_took() -> None:
    """Up to a share of the time left; without one for its own share alone."""
    problem = dear_storage(1)
    limits = tight(problem)
    start = page_everything(problem, limits)
    assert start is not None
    lasted, joules = list[float](), list[float]()
    for share, most_share in ((0.03, 0.0), (0.03, 0.05), (0.03, 0.9), (0.9, 0.0)):
        clock = WorkClock()
        tuning = DEFAULT.having("copies_search.patience_tries", 100_000)
        tuning = tuning.without("copies_search.first_exponents")  # a walk from set to set alone
        options = SolveOptions(time_limit_seconds=2.0, clock=clock, tuning=tuning)
        standing = Standing(problem, limits, options, "highs", None)
        standing.consider(start, GREEDY)
        begun = clock.now()
        VariedCopies(standing).turn(share, most_share=most_share)
        lasted.append(clock.now() - begun)
        assert standing.best.trace is not None
        joules.append(standing.best.trace.joules)
    alone, little, longer, most = lasted
    assert alone < little < 0.05 * 2.0 + 0.03
    assert little < longer < most
    assert joules[2] < joules[0]


def test_whether_transfers_decide_is_seen_by_how_long_they_take() -> None:
    problem = dear_storage(1)
    options = SolveOptions(tuning=DEFAULT.having("copies_search.large_steps", 0.0))
    paging, rerunning = tight(problem), dataclasses.replace(tight(problem), paging=False)
    for limits, start in (
        (paging, page_everything(problem, paging)),
        (rerunning, greedy(problem, rerunning)),
        (paging, None),
    ):
        standing = Standing(problem, limits, options, "highs", None)
        if start is not None:
            standing.consider(start, GREEDY)
        assert VariedCopies(standing).transfers_decide() is (limits is paging and start is not None)
        trace = standing.best.trace
        assert trace is None or trace.recomputed_runs or trace.read_bytes


def searched(problem: Problem, tuning: Tuning) -> Solution:
    options = SolveOptions(time_limit_seconds=2.0, clock=WorkClock(), tuning=tuning)
    return solve(problem, tight(problem), options)
