"""Models of the search on large problems: no larger than memory and time allow, given up where they stall."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Self

import pytest
from helpers.conducts import listening
from helpers.pace import with_slow
from helpers.random_problems import dear_storage, training_like

from poet.clock import WorkClock
from poet.problem import Limits, Problem
from poet.ram_survey import budget_between, keep_everything_bytes
from poet.solvers import minimum_ram_bytes
from poet.solvers.bounds.played import Played
from poet.solvers.bounds.refinement import priced_bound
from poet.solvers.bounds.windows_bound import Bound
from poet.solvers.engines.highs_process import HighsProcess, News
from poet.solvers.engines.matrix import Matrix
from poet.solvers.heuristics.greedy import greedy
from poet.solvers.instance.incumbent import Incumbent
from poet.solvers.instance.instance import Instance, instance_of
from poet.solvers.search import large
from poet.solvers.search.large import _LargeSearch
from poet.solvers.search.neighbourhood import Rounds
from poet.solvers.search.slots_of_plans import merged, reruns_of
from poet.solvers.search.slots_of_relaxation import Offer
from poet.tuning import DEFAULT, Tuning

STEP = training_like(30, seed=3, momentum=True)
LIMITS = Limits(
    ram_budget_bytes=budget_between(minimum_ram_bytes(STEP, Limits()).bytes, keep_everything_bytes(STEP), 0.1)
)
LONG = Offer(4, 12)


def searching(
    tuning: Tuning = DEFAULT,
    seconds: float = 1000.0,
    *,
    step: Problem = STEP,
    limits: Limits = LIMITS,
    bounds: list[float] | None = None,
) -> tuple[_LargeSearch, Bound]:
    """A search that has a greedy plan, with so many seconds of work left, and a bound to be guided by.

    ``bounds``: to which those that it finds are added.
    """
    clock = WorkClock()
    instance = instance_of(step, limits, tuning=tuning)
    best = Incumbent(step, limits, None, clock=clock)
    best.consider(greedy(step, limits))
    assert best.schedule is not None
    conduct = listening(clock, seconds=seconds, bounds=bounds)
    return _LargeSearch(instance, instance, best, conduct), guiding(instance)


def listened(child: HighsProcess) -> bool:
    return child.listen(0.05)


def guiding(instance: Instance) -> Bound:
    bound = priced_bound(instance, seconds=100.0, watcher=lambda bound: None, clock=WorkClock())
    assert bound.answer.done
    return bound


def slots(rounds: Rounds | None) -> int:
    """For reruns, in the model."""
    assert rounds is not None
    return sum(not slot.mandatory for slot in rounds.arrays.model.timeline.slots)


def own_slots(search: _LargeSearch) -> int:
    """That the best plan needs."""
    assert search.best.schedule is not None
    return sum(map(len, merged(reruns_of(search.planned, search.best.schedule)).values()))


@pytest.mark.parametrize("share", with_slow([0.0, 0.5, 1.0], {0.0, 1.0}))
def test_a_model_that_memory_has_no_room_for_is_offered_shorter_chains(share: float) -> None:
    search, guide = searching()
    most, own = slots(search._rounds(guide, LONG)), own_slots(search)
    assert 0 < own < most - 1
    few = own + int(share * (most - 1 - own))
    search, guide = searching(DEFAULT.having("large.most_reruns", few))
    assert own <= slots(search._rounds(guide, LONG)) <= few


@pytest.mark.slow
def test_none_is_built_where_the_plans_own_reruns_are_too_many() -> None:
    own = own_slots(searching()[0])
    search, guide = searching(DEFAULT.having("large.most_reruns", own - 1))
    assert search._rounds(guide, LONG) is None


@pytest.mark.slow
def test_what_the_last_model_took_tells_how_large_the_next_may_be() -> None:
    search, guide = searching()
    most, ops = slots(search._rounds(guide, LONG)), len(STEP.ops)
    search, guide = searching(seconds=100.0)
    enough = own_slots(search) + 5
    search.building_seconds, search.built_slots = 10.0, int(10.0 * (ops + enough) / 50.0)
    assert slots(search._rounds(guide, LONG)) <= enough < most
    search.building_seconds = 51.0  # twice that is more than is left
    assert search._rounds(guide, LONG) is None


class Stalling:
    """A child whose bound rises with its seconds as it is told to, and that never ends by itself."""

    shares: Sequence[float] = ()
    listened = 0
    plan_joules = 0.0

    def __init__(self, tuning: Tuning, clock: WorkClock) -> None:
        self.clock, self.news = clock, News()
        type(self).listened = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def begin(self, matrix: Matrix, seconds: float, **_: Any) -> None:
        assert matrix.start is not None
        type(self).plan_joules = matrix.joules(matrix.start)

    def listen(self, seconds: float) -> bool:
        number = min(self.listened, len(self.shares) - 1)
        type(self).listened += 1
        self.clock.spend(engine_seconds=1.0)
        self.news.bound_joules = self.shares[number] * self.plan_joules
        return False


@pytest.mark.parametrize(
    ("shares", "least", "most"),
    [
        ((0.5,), 301, 303),  # three tenths of the 1,000 s
        ([0.0003 * number for number in range(1000)], 301, 303),  # less than a tenth of the gap in that
        ([1.0 - 0.998**number for number in range(1000)], 900, 1001),  # it closes
        ((-math.inf,), 900, 1001),  # its root takes long, which is no stalling
    ],
)
def test_a_class_whose_gap_does_not_close_leaves_its_time_to_others(
    shares: Sequence[float], least: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    search, guide = searching()
    rounds = search._rounds(guide, LONG)
    assert rounds is not None
    monkeypatch.setattr(large, "HighsProcess", Stalling)
    monkeypatch.setattr(Stalling, "shares", shares)
    assert not search._solve_as_a_whole(rounds)
    assert least <= Stalling.listened <= most


@pytest.mark.parametrize(
    ("columns", "small_share", "share"), [(10**9, 0.2, 0.2), (1, 0.2, 0.1), (10**9, 0.0, 0.1)]
)
def test_a_small_program_of_blocks_alike_has_more_of_the_time(
    columns: int, small_share: float, share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = list[float]()

    class Ending(Stalling):
        def begin(self, matrix: Matrix, seconds: float, **_: Any) -> None:
            given.append(seconds / search.conduct.seconds_left())
            self.news.ended = True

    tuning = DEFAULT.having("large.alike_share", 0.1).having("large.small_alike_share", small_share)
    search, guide = searching(tuning.having("large.small_alike_columns", columns))
    monkeypatch.setattr(large, "HighsProcess", Ending)
    monkeypatch.setattr(large, "repeats", lambda instance: True)
    search._decide_alike(guide)
    assert given == [pytest.approx(share)]


def test_copies_in_whole_numbers_raise_the_bound_where_fractions_of_them_were_cheap() -> None:
    step, bounds = dear_storage(1, layers=6), list[float]()
    budget = budget_between(minimum_ram_bytes(step).bytes, keep_everything_bytes(step), 0.05)
    search, guide = searching(step=step, limits=Limits(ram_budget_bytes=budget), bounds=bounds)
    copies = guide.relaxation.copies
    search.whole.bounded(guide, 500.0, listened, copies)
    assert search.best.trace is not None
    plan_joules = search.best.trace.joules - step.compute_joules
    assert guide.overhead_joules * 1.01 < max(bounds) <= plan_joules * (1.0 + 1e-9)
    bounds.clear()
    assert search.whole.bounded(guide, 500.0, listened, ()) == (guide, False), "nothing is asked to be whole"
    assert not bounds


@pytest.mark.parametrize("share", [0.0, 1e9])
def test_whole_numbers_have_more_moments_where_these_raise_the_bound(
    share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    tuning = DEFAULT.having("large.moments_share", share).without("large.copies_share")
    search, guide = searching(tuning, seconds=20.0)
    begun = list[Bound]()

    def begin(bound: Bound, *_: object) -> Bound:
        begun.append(bound)
        return bound

    monkeypatch.setattr(search.whole, "tightened", begin)
    assert search._bound_in_whole_numbers(guide, None) is begun[0], "there was no solution"
    assert search.followed is None
    assert search.heard is not None
    assert guide.moments < search.heard.moments
    assert (guide.moments < begun[0].moments) is (share == 0.0)
    assert (begun[0] is guide) is (share > 0.0)


@pytest.mark.parametrize(("share", "is_offered"), [(0.0, False), (1e9, True)])
def test_a_solution_that_lacks_much_ram_is_not_offered(
    share: float, is_offered: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    tuning = DEFAULT.having("large.lacking_share", share).having("large.lacking_for_reruns_share", share)
    tuning = tuning.without("large.copies_share")
    search, guide = searching(tuning, seconds=20.0)
    found = replace(guide, overhead_joules=guide.overhead_joules)
    monkeypatch.setattr(search.whole, "tightened", lambda *_: found)
    assert search._bound_in_whole_numbers(guide, None) is found
    assert (search.followed is found) is is_offered
    assert max(Played(search.bounded, found).bytes) > (LIMITS.ram_budget_bytes or 0)


def test_a_class_may_rerun_what_a_solution_in_whole_numbers_does() -> None:
    search, guide = searching(seconds=60.0)
    found = search.whole.tightened(guide, 20.0, listened)
    again = Played(search.bounded, found).reruns()
    least = Offer(0, 0)
    alone, search.followed = search._affordable(found, least), found
    offered = search._affordable(found, least)
    assert found is not guide
    assert alone is not None
    assert offered is not None
    assert again
    assert all(tasks <= {*offered[stage]} for stage, tasks in again.items())
    assert any(not tasks <= {*alone.get(stage, ())} for stage, tasks in again.items())
    assert search._affordable(guide, least) != offered
