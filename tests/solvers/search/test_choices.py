"""With each choice switched on in turn, a plan costs what the oracle's does and no bound is above it."""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Callable
from typing import Any

import pytest
from helpers.clocks import counted
from helpers.oracle import least_joules, least_ram_bytes
from helpers.random_problems import mixed_problem, random_limits, random_pins, random_problem, with_homes

from poet.problem import Limits, Objective, Problem, Transfer
from poet.problem.pins import permitted
from poet.problem.simulator import simulate
from poet.problem.solution import Solution, SolveOptions, Status, amount_of
from poet.solvers import solve
from poet.solvers.engines import available_engines

Case = tuple[Problem, Limits]

SEEDS_EACH = 100
"""Ten choices of a hundred problems each."""

OPTIONS = SolveOptions(relative_gap=1e-9, overhead_gap=1e-9)  # with a limit of the test's own


def until_proven(seconds: float = 2.0, **options: Any) -> SolveOptions:
    """Options of a search that is proven, or cut after ``seconds`` of counted work: some never are."""
    return counted(seconds, relative_gap=1e-9, overhead_gap=1e-9, **options)


def blocking(seed: int, *features: str) -> Problem:
    """A random problem with ``features`` and a random mix of others, transfers blocking."""
    if features:
        return random_problem(seed, ops=4 + seed % 2, features=features)
    return dataclasses.replace(mixed_problem(seed, largest=5), background_storage=False)


def pins(seed: int) -> Case:
    of = blocking(seed)
    return of, random_pins(of, random_limits(of, seed), seed)


def homes(seed: int) -> Case:
    of = with_homes(blocking(seed), seed)
    return of, random_limits(of, seed)


def homes_and_pins(seed: int) -> Case:
    of = with_homes(blocking(seed, "updates", "outputs"), seed)
    return of, random_pins(of, random_limits(of, seed), seed)


def wear(seed: int) -> Case:
    of = blocking(seed)
    written = random.Random(seed).randint(0, 12)
    return of, dataclasses.replace(random_limits(of, seed), written_budget_bytes=written)


def capacity(seed: int) -> Case:
    of = blocking(seed, "capacity", "outputs")
    return of, random_limits(of, seed)


def deadline(seed: int) -> Case:
    of = blocking(seed)
    return of, random_limits(of, seed, deadline=True)


def energy_budget(seed: int) -> Case:
    of = blocking(seed)
    share = random.Random(seed).uniform(1.0, 1.6)
    return of, dataclasses.replace(random_limits(of, seed), joules_budget=share * of.compute_joules + 1e-9)


def shapes(seed: int) -> Case:
    of = blocking(seed, "workspace", "outputs", "updates", "recompute_inputs")
    return of, random_limits(of, seed)


def ends(seed: int) -> Case:
    of = blocking(seed, "initially", "finally", "unpageable")
    return of, random_limits(of, seed)


def units(seed: int) -> Case:
    """Joules from micro to kilo."""
    of, factor = blocking(seed), 10.0 ** random.Random(seed).randint(-6, 3)

    def scaled(cost: Transfer | None) -> Transfer | None:
        return None if cost is None else Transfer(cost.seconds, factor * cost.joules)

    ops = tuple(dataclasses.replace(op, joules=factor * op.joules) for op in of.ops)
    tensors = tuple(
        dataclasses.replace(t, page_in=scaled(t.page_in), page_out=scaled(t.page_out)) for t in of.tensors
    )
    other = dataclasses.replace(of, ops=ops, tensors=tensors, idle_watts=factor * of.idle_watts)
    return other, random_limits(of, seed)


CHOICES: tuple[Callable[[int], Case], ...] = (
    pins, homes, homes_and_pins, wear, capacity, deadline, energy_budget, shapes, ends, units,
)  # fmt: skip


def least_energy(of: Problem, limits: Limits) -> float | None:
    """By the oracle, the energy budget included."""
    best = least_joules(permitted(of, limits), dataclasses.replace(limits, joules_budget=None))
    if best is None:
        return None
    joules = simulate(of, best, dataclasses.replace(limits, joules_budget=None)).joules
    budget = limits.joules_budget
    return joules if budget is None or joules <= budget * (1 + 1e-9) else None


def assert_honest(of: Problem, limits: Limits, solution: Solution, expected: float | None) -> None:
    """The judge confirms the plan; neither the plan nor the bound contradicts the oracle."""
    if expected is None:
        assert solution.schedule is None
        return
    assert solution.status is not Status.INFEASIBLE
    assert solution.bound is not None
    assert solution.bound <= expected * (1 + 1e-9) + 1e-12
    if solution.schedule is not None:
        assert solution.trace is not None
        trace = simulate(of, solution.schedule, limits)
        assert amount_of(solution.objective, trace) == solution.amount
        assert (solution.amount or 0.0) >= expected * (1 - 1e-9) - 1e-12


def check(choice: Callable[[int], Case], seeds: range) -> None:
    for seed in seeds:
        of, limits = choice(seed)
        expected = least_energy(of, limits)
        solution = solve(of, limits, until_proven())
        assert_honest(of, limits, solution, expected)
        if expected is not None:
            assert solution.joules == pytest.approx(expected, rel=1e-6), seed


def check_interrupted(choice: Callable[[int], Case], seeds: range) -> None:
    for seed in seeds:
        of, limits = choice(seed)
        solution = solve(of, limits, dataclasses.replace(OPTIONS, time_limit_seconds=0.005))
        assert_honest(of, limits, solution, least_energy(of, limits))


@pytest.mark.parametrize("choice", CHOICES)
def test_each_choice_equals_the_oracle_on_a_few(choice: Callable[[int], Case]) -> None:
    check(choice, range(3))


@pytest.mark.slow
@pytest.mark.parametrize("choice", CHOICES)
def test_each_choice_equals_the_oracle(choice: Callable[[int], Case]) -> None:
    check(choice, range(3, SEEDS_EACH))


@pytest.mark.slow
@pytest.mark.parametrize("engine", available_engines())
def test_no_engine_gives_a_bound_above_the_oracle(engine: str) -> None:
    for choice in CHOICES:
        for seed in range(300, 303):
            of, limits = choice(seed)
            for seconds in (4.0, 0.05):
                asked = dataclasses.replace(OPTIONS, engine=engine, time_limit_seconds=seconds)
                assert_honest(of, limits, solve(of, limits, asked), least_energy(of, limits))


@pytest.mark.slow
@pytest.mark.parametrize("choice", CHOICES)
def test_interrupted_bounds_hold(choice: Callable[[int], Case]) -> None:
    check_interrupted(choice, range(200, 220))


def background(seed: int) -> Case:
    """Transfers beside compute, with a deadline, or idle power to save, or both."""
    idle = ("idle",) if seed % 2 else ()
    of = random_problem(seed, ops=4 + seed % 2, features=("background", "outputs", *idle))
    limits = random_limits(of, seed)
    if seed % 3:
        seconds = of.compute_seconds * (1.0 + (seed % 7) / 7)
        limits = dataclasses.replace(limits, deadline_seconds=seconds)
    return of, limits


def above_the_oracle(seeds: range) -> list[int]:
    """The seeds at which a plan beside background transfers is not the best; bounds always hold."""
    above = []
    for seed in seeds:
        of, limits = background(seed)
        expected = least_energy(of, limits)
        solution = solve(of, limits, until_proven())
        assert_honest(of, limits, solution, expected)
        if expected is not None and (solution.joules or math.inf) > expected * (1 + 1e-6):
            above.append(seed)
    return above


def test_beside_background_transfers_plans_equal_the_oracle_on_a_few() -> None:
    assert above_the_oracle(range(8)) == []


@pytest.mark.slow
def test_beside_background_transfers_few_plans_are_above_the_oracle() -> None:
    assert len(above_the_oracle(range(8, 150))) <= 2


@pytest.mark.slow
@pytest.mark.parametrize("objective", [Objective.RAM, Objective.TIME, Objective.WRITES])
def test_bounds_of_objectives_hold_beside_background_transfers(objective: Objective) -> None:
    for seed in range(60):
        of = random_problem(seed, ops=4 + seed % 2, features=("background", "idle", "outputs"))
        limits = random_limits(of, seed)
        solution = solve(of, limits, until_proven(objective=objective))
        if objective is Objective.RAM:
            free = dataclasses.replace(limits, ram_budget_bytes=None)
            least = least_ram_bytes(of, free)
            within = least is not None and least <= (limits.ram_budget_bytes or 0)
            assert_honest(of, limits, solution, float(least) if least is not None and within else None)
        elif objective is Objective.TIME:
            hurry = dataclasses.replace(
                of,
                idle_watts=1.0,
                ops=tuple(dataclasses.replace(op, joules=0.0) for op in of.ops),
                tensors=tuple(
                    dataclasses.replace(t, page_in=_free(t.page_in), page_out=_free(t.page_out))
                    for t in of.tensors
                ),
            )
            best = least_joules(hurry, limits)
            assert_honest(of, limits, solution, None if best is None else simulate(of, best).seconds)
        elif solution.trace is not None:
            assert (solution.bound or 0.0) <= solution.trace.written_bytes


def _free(cost: Transfer | None) -> Transfer | None:
    return None if cost is None else Transfer(cost.seconds, 0.0)
