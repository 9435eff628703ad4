"""The search over copies: no bound above the optimum, equal to it where everything is followed."""

from __future__ import annotations

import dataclasses
from itertools import pairwise

import pytest
from helpers.oracle import least_joules
from helpers.random_problems import mixed_problem, random_limits

from poet.clock import WALL, WorkClock
from poet.problem import Limits, Problem
from poet.simulator import simulate
from poet.solvers.bounds.copies import CopiesBound, copies_bounds
from poet.solvers.instance.instance import Instance, instance_of
from poet.tuning import DEFAULT, Tuning

EACH_SIZE = DEFAULT.having("copies.alike_factor", 1.0)
TOLERANCE = 1e-6  # of a step's joules; costs are rounded down to 2^-28 of what is asked for


def case(seed: int, tuning: Tuning = EACH_SIZE) -> tuple[Instance, float | None]:
    """A random instance and the least overhead by exhaustive search."""
    problem = dataclasses.replace(mixed_problem(seed, largest=5), background_storage=False)
    limits = random_limits(problem, seed, deadline=seed % 3 == 0)
    best = least_joules(problem, limits)
    overhead = None if best is None else simulate(problem, best, limits).joules - problem.compute_joules
    return instance_of(problem, limits, tuning=tuning), overhead


def bounds(instance: Instance, below_joules: float) -> list[CopiesBound]:
    return list(copies_bounds(instance, below_joules=below_joules, clock=WALL))


def only_ram(problem: Problem, limits: Limits) -> bool:
    alone = Limits(limits.ram_budget_bytes, recompute=limits.recompute, paging=limits.paging)
    return problem.storage_capacity_bytes is None and limits == alone


def check(seeds: range, tuning: Tuning) -> int:
    """How many problems whose least overhead the last bound must equal, and equals."""
    reached = 0
    for seed in seeds:
        instance, overhead = case(seed, tuning)
        if overhead is None:
            continue
        scale = instance.problem.compute_joules
        for below in (100.0 * scale + 2.0 * overhead, 1.01 * overhead + 1e-3 * scale):
            joules = [bound.overhead_joules for bound in bounds(instance, below)]
            assert max(joules, default=0.0) <= overhead + TOLERANCE * scale, seed
            assert all(after >= before - TOLERANCE * scale for before, after in pairwise(joules)), seed
            if joules and tuning is EACH_SIZE and only_ram(instance.problem, instance.limits):
                assert joules[-1] >= overhead - TOLERANCE * max(scale, below), seed
                reached += 1
    return reached


@pytest.mark.parametrize("block", range(4))
def test_no_bound_is_above_the_optimum_and_the_last_reaches_it(block: int) -> None:
    """Limits beside RAM are none of the search's: with them it is a bound, without them the optimum."""
    assert check(range(30 * block, 30 * block + 30), EACH_SIZE) > 5


@pytest.mark.parametrize(("field", "value"), [("most_sets", 3), ("columns", 1), ("most_values", 1)])
def test_with_fewer_sets_and_columns_no_bound_is_above_the_optimum(field: str, value: int) -> None:
    check(range(200, 225), EACH_SIZE.having(f"copies.{field}", value))


@pytest.mark.slow
def test_no_bound_is_above_the_optimum_of_many() -> None:
    assert check(range(1000, 1400), EACH_SIZE) > 50


def test_what_is_not_below_is_a_proof_of_what_was_asked_for() -> None:
    instance, overhead = next((of, joules) for of, joules in map(case, range(100)) if joules)
    assert overhead is not None
    below = bounds(instance, 0.9 * overhead)[-1]
    assert below.overhead_joules == pytest.approx(0.9 * overhead)
    assert below.ended
    assert not below.reruns


def test_too_many_sets_are_no_bound_and_work_is_counted() -> None:
    instance, overhead = next((of, joules) for of, joules in map(case, range(100)) if joules)
    assert overhead is not None
    few = dataclasses.replace(instance, tuning=DEFAULT.having("copies.most_arcs", 1))
    assert not bounds(few, overhead)
    clock = WorkClock()
    assert list(copies_bounds(instance, below_joules=overhead, clock=clock))
    assert clock.now() > 0.0


def test_it_stops_when_it_is_asked_to() -> None:
    instance, overhead = next((of, joules) for of, joules in map(case, range(100)) if joules)
    assert overhead is not None
    assert not list(copies_bounds(instance, below_joules=overhead, clock=WALL, finished=lambda: True))
