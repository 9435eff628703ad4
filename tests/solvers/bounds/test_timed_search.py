"""Label-setting with two clocks: the optimum of the exhaustive search; interrupted, never above it."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator

import pytest
from helpers.clocks import counted
from helpers.oracle import least_joules
from helpers.pace import with_slow
from helpers.random_problems import mixed_problem, random_limits, random_pins, random_problem, with_homes

from poet.clock import WALL, WorkClock
from poet.homes import decide, undecided
from poet.problem import Limits, Problem
from poet.simulator import simulate
from poet.solution import Status
from poet.solvers import solve
from poet.solvers.bounds.timed_search import TimedBound, timed_bound
from poet.solvers.instance.instance import instance_of
from poet.solvers.search.finders import CLOCKS
from poet.tuning import DEFAULT

TIMED = ("background", "idle", "finally", "updates", "outputs", "workspace")


def bound(problem: Problem, limits: Limits, *, below: float = math.inf, most: int = 20_000) -> TimedBound:
    instance = instance_of(problem, limits)
    found = timed_bound(instance, below_joules=below, most_labels=most, clock=WALL)
    assert found is not None
    return found


def problems(seeds: range, *, background: bool = True) -> Iterator[tuple[int, Problem, Limits]]:
    """Small ones, each with some of the features."""
    for seed in seeds:
        problem = dataclasses.replace(mixed_problem(seed, largest=5), background_storage=background)
        yield seed, problem, random_limits(problem, seed, deadline=seed % 3 == 0)


@pytest.mark.parametrize("background", [True, False])
@pytest.mark.parametrize("block", with_slow(range(6), set(range(1, 6))))
def test_equals_the_exhaustive_search(block: int, background: bool) -> None:
    compared = impossible = 0
    seeds = range(2000 + 30 * block, 2030 + 30 * block)
    for seed, problem, limits in problems(seeds, background=background):
        best, found = least_joules(problem, limits), bound(problem, limits)
        assert found.ended, seed
        if best is None:
            impossible += 1
            assert (found.overhead_joules, found.schedule) == (math.inf, None), seed
            continue
        compared += 1
        least = simulate(problem, best, limits).joules
        assert found.overhead_joules == pytest.approx(least - problem.compute_joules, abs=1e-9 * least), seed
        assert found.schedule is not None, seed
        assert simulate(problem, found.schedule, limits).joules == pytest.approx(least, rel=1e-9), seed
    assert compared > 15
    assert impossible > 0


def test_homes_are_a_choice_of_the_plan() -> None:
    chosen = 0
    for seed in range(12):
        problem = with_homes(random_problem(seed, ops=4, features=TIMED), seed)
        limits, names = random_limits(problem, seed), undecided(problem)
        found, least = bound(problem, limits), math.inf
        for stored in itertools.product((False, True), repeat=len(names)):
            at_home = decide(problem, list(itertools.compress(names, stored)))
            best = least_joules(at_home, limits)
            least = min(least, simulate(at_home, best, limits).joules if best is not None else math.inf)
        assert (least == math.inf) == (found.schedule is None), seed
        if found.schedule is not None:
            assert simulate(problem, found.schedule, limits).joules == pytest.approx(least, rel=1e-9), seed
            assert found.overhead_joules == pytest.approx(least - problem.compute_joules, abs=1e-9 * least)
            chosen += bool(names)
    assert chosen > 4


@pytest.mark.parametrize(
    ("seed", "ops", "features"),
    [
        (681, 2, ("background", "finally", "free")),
        (848, 4, ("background", "finally", "once", "alignment")),
        (887, 3, ("background", "updates", "recompute_inputs")),
        (1130, 4, ("background", "capacity", "free")),
    ],
)
def test_a_home_in_ram_that_does_not_fit_at_the_start_is_no_choice(
    seed: int, ops: int, features: tuple[str, ...]
) -> None:
    """What no op reads is there at the start as well: only the judge had looked at it."""
    problem = with_homes(random_problem(seed, ops=ops, features=features), seed)
    limits = random_limits(problem, seed)
    found, best = bound(problem, limits), least_joules(problem, limits)
    assert (best is None) == (found.schedule is None)
    if best is not None and found.schedule is not None:
        least = simulate(problem, best, limits).joules
        assert simulate(problem, found.schedule, limits).joules == pytest.approx(least, rel=1e-9)
        assert found.overhead_joules == pytest.approx(least - problem.compute_joules, abs=1e-9 * least)


def test_no_interrupted_search_is_above_the_optimum() -> None:
    above_zero = 0
    for seed, problem, limits in problems(range(300, 325)):
        whole = bound(problem, limits)
        for most in (0, 1, 3, 10, 30):
            found = bound(problem, limits, most=most)
            assert found.overhead_joules <= whole.overhead_joules + 1e-9 * problem.compute_joules, (
                seed,
                most,
            )
            assert found.ended or found.schedule is None, (seed, most)
            above_zero += not found.ended and found.overhead_joules > 0.0
    assert above_zero > 10


def test_nothing_below_what_was_asked_for_is_a_proof_and_work_is_counted() -> None:
    problem, limits = waiting()
    exact, clock = bound(problem, limits), WorkClock()
    below = 0.9 * exact.overhead_joules
    less = timed_bound(instance_of(problem, limits), below_joules=below, most_labels=9_999, clock=clock)
    assert less is not None
    assert (less.ended, less.schedule, less.overhead_joules) == (True, None, below)
    assert clock.now() == pytest.approx(less.labels * DEFAULT.timed.label_seconds)
    assert less.labels < exact.labels


def test_what_it_does_not_know_it_leaves_alone() -> None:
    problem, limits = waiting()
    pinned = next(pins for seed in range(9) if (pins := random_pins(problem, limits, seed)).pins.keep)
    many = DEFAULT.having("timed.most_contents", 0)
    for instance in (
        instance_of(problem, pinned),
        instance_of(problem, limits, tuning=many),
    ):
        assert timed_bound(instance, below_joules=math.inf, most_labels=9, clock=WALL) is None


@pytest.mark.parametrize("seed", with_slow((57, 519, 118, 716), {118, 716}))
def test_the_search_proves_by_it_what_stayed_open(seed: int) -> None:
    """Storage is in the background in 57 and 118; 519 has no plan within its deadline."""
    problem = mixed_problem(seed)
    limits = random_limits(problem, seed, deadline=seed % 3 == 0)
    best = least_joules(problem, limits)
    found = solve(problem, limits, counted(20.0, engine="highs"))
    assert found.status is (Status.INFEASIBLE if best is None else Status.OPTIMAL)
    assert any(phase.name == "search with two clocks" for phase in found.record.phases)
    if best is not None:
        assert found.joules == pytest.approx(simulate(problem, best, limits).joules, rel=1e-9)
        assert any(bound.by == CLOCKS for bound in found.record.bounds)


def waiting() -> tuple[Problem, Limits]:
    """A step in which some transfer holds up compute, which draws idle power meanwhile."""
    problem = mixed_problem(118)
    assert problem.background_storage
    assert problem.idle_watts > 0.0
    return problem, random_limits(problem, 118)
