"""Neighbourhood search: judged plans, never worse than the start, near the optimum where it is known."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from helpers.clocks import Given
from helpers.oracle import least_joules
from helpers.pace import few_or_many
from helpers.random_problems import mixed_problem, random_limits, training_like

from poet.clock import WorkClock
from poet.problem import Limits, Problem
from poet.schedule import Schedule
from poet.simulator import simulate
from poet.solvers.bounds.refinement import priced_bound
from poet.solvers.bounds.windows_bound import Bound, bound_overhead
from poet.solvers.heuristics.greedy import greedy
from poet.solvers.instance.incumbent import Incumbent
from poet.solvers.instance.instance import instance_of
from poet.solvers.instance.ram_bound import minimum_ram_bytes
from poet.solvers.search.neighbourhood import Rounds, offering
from poet.solvers.search.slots_of_plans import merged, reruns_of
from poet.solvers.search.slots_of_relaxation import Offer, offered_by

_OFFER = Offer(chain=4, depth=12)


def improve(
    problem: Problem,
    limits: Limits,
    schedule: Schedule | None,
    *,
    seconds: float,
    seed: int = 0,
    guide: Bound | None = None,
    stop: Callable[[Schedule], bool] | None = None,
) -> Schedule | None:
    """The best schedule found in ``seconds``, at least as good as ``schedule``; ``None``: none found.

    Args:
        problem: what to plan.
        limits: what to stay within.
        schedule: a valid one to begin with, if there is any.
        seconds: of counted work.
        seed: of every random choice.
        guide: the relaxation's answer, if it is known already.
        stop: called with each better schedule; true ends the search.
    """
    clock = WorkClock()
    instance, best = instance_of(problem, limits), Incumbent(problem, limits, clock=clock)
    best.consider(schedule)
    guide = guide or priced_bound(instance, seconds=seconds, clock=clock)
    stop = stop or (lambda better: False)
    while clock.now() < seconds:
        before = best.trace
        own = {} if best.schedule is None else reruns_of(instance, best.schedule)
        arrays = offering(instance, merged(offered_by(instance, guide, _OFFER), own))
        rounds = Rounds(arrays, guide, best, seed=seed)
        if not rounds.begin(seconds) or not rounds.run(seconds, stop) or best.trace is before:
            break
    return best.schedule


def tight(problem: Problem, share: float) -> Limits:
    least = minimum_ram_bytes(problem, Limits()).bytes
    most = sum(tensor.bytes for tensor in problem.tensors)
    return Limits(ram_budget_bytes=least + round(share * (most - least)))


@pytest.mark.slow
@few_or_many("problems", 5, 14)
def test_small_problems_come_out_optimal_or_near_and_never_worse(problems: int) -> None:
    optimal = total = 0
    for seed in range(problems):
        problem = mixed_problem(seed, largest=6)
        limits = random_limits(problem, seed)
        start = greedy(problem, limits)
        found = improve(problem, limits, start, seconds=0.5)
        assert (found is not None) or start is None
        if found is None or start is None:
            continue
        joules = simulate(problem, found, limits).joules
        assert joules <= simulate(problem, start, limits).joules
        best = least_joules(problem, limits)
        assert best is not None
        least = simulate(problem, best, limits).joules
        assert joules >= least - 1e-9 * least
        total += 1
        optimal += joules <= least * (1 + 1e-6) + 1e-9
    assert total > problems // 2
    assert optimal >= 0.9 * total


@pytest.mark.slow
def test_a_training_step_gets_cheaper() -> None:
    problem = training_like(12, seed=3, momentum=True)
    limits = tight(problem, 0.08)
    start = greedy(problem, limits)
    assert start is not None
    found = improve(problem, limits, start, seconds=3.0)
    assert found is not None
    bound = problem.compute_joules + bound_overhead(instance_of(problem, limits)).overhead_joules
    before, after = (simulate(problem, plan, limits).joules for plan in (start, found))
    assert bound <= after
    assert after - problem.compute_joules < 0.98 * (before - problem.compute_joules)


@pytest.mark.slow
def test_a_plan_from_nothing() -> None:
    problem = training_like(8, seed=2, momentum=True)
    limits = tight(problem, 0.15)
    found = improve(problem, limits, None, seconds=3.0)
    assert found is not None
    assert simulate(problem, found, limits).peak_ram_bytes <= (limits.ram_budget_bytes or 0)


@pytest.mark.slow
def test_it_stops_when_told() -> None:
    problem = training_like(12, seed=3, momentum=True)
    limits = tight(problem, 0.08)
    seen: list[Schedule] = []

    def stop(better: Schedule) -> bool:
        seen.append(better)
        return True

    found = improve(problem, limits, greedy(problem, limits), seconds=30.0, stop=stop)
    assert len(seen) == 1
    assert found == seen[0]


def rounds_of(problem: Problem, limits: Limits, clock: WorkClock) -> Rounds:
    instance, best = instance_of(problem, limits), Incumbent(problem, limits, clock=clock)
    best.consider(greedy(problem, limits))
    guide = priced_bound(instance, clock=clock)
    assert best.schedule is not None
    arrays = offering(
        instance, merged(offered_by(instance, guide, _OFFER), reruns_of(instance, best.schedule))
    )
    rounds = Rounds(arrays, guide, best)
    assert rounds.begin(math.inf)
    return rounds


@pytest.mark.parametrize("share", [0.3, 1.0])
def test_it_ends_when_a_round_has_solved_the_whole_class(share: float) -> None:
    """Also where there is nothing to decide at all, as with RAM for everything."""
    clock = Given()
    rounds = rounds_of(problem := training_like(2, seed=1), tight(problem, share), clock)
    assert share < 1.0 or not rounds.arrays.decided.any()
    begun = len(clock.given)
    assert rounds.run(math.inf, lambda better: False, patience=1000)
    assert rounds.exhausted
    assert len(clock.given) - begun <= 4


def test_easy_rounds_that_find_nothing_are_not_in_vain() -> None:
    """They make the next one larger: of those that do not, one is enough here."""
    problem = training_like(12, seed=3, momentum=True)
    rounds = rounds_of(problem, tight(problem, 0.08), WorkClock())
    made, one = list[tuple[bool, bool]](), rounds.round

    def noted(seconds: float, *, disputed: bool = False, late: bool = False) -> bool:
        before = rounds.size
        better = one(seconds, disputed=disputed, late=late)
        made.append((better, rounds.size > before))
        return better

    rounds.round = noted  # type: ignore[method-assign]
    assert rounds.run(math.inf, lambda better: False, patience=1)
    assert (False, True) in made[:-1]
    assert (False, False) not in made[:-1]
    assert rounds.exhausted or made[-1] == (False, False)


def test_it_looks_before_each_round_whether_to_stop() -> None:
    rounds = rounds_of(problem := training_like(12, seed=3, momentum=True), tight(problem, 0.08), WorkClock())
    looks = iter([False, True])
    assert not rounds.run(math.inf, lambda better: False, finished=lambda: next(looks))
    assert next(looks, None) is None


def test_no_time_is_no_harm() -> None:
    problem = training_like(4, seed=1)
    limits = tight(problem, 0.3)
    start = greedy(problem, limits)
    assert improve(problem, limits, start, seconds=0.0) == start
