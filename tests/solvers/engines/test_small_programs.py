"""Small programs in whole numbers, by HiGHS and by CP-SAT in one child, beside all values there are."""

from __future__ import annotations

import itertools
import math
import os
import random
import signal

import pytest
from helpers.cpsat_children import cpsat_children

from poet.clock import WALL
from poet.solvers.engines.integers import IntegerProgram
from poet.solvers.engines.small_programs import Answer, SmallPrograms
from poet.tuning import DEFAULT

LARGE = 1 << 28
BY = {"highs": 1e9, "cpsat": 0.0}
"""By engine, the seconds of HiGHS after which CP-SAT goes on."""


def programs(by: str) -> SmallPrograms:
    solver = SmallPrograms(WALL, DEFAULT.having("engines.cpsat_start_seconds", BY[by]).engines)
    if by == "cpsat":
        solver.solve(covering(0), 10.0)  # HiGHS has the first one
    return solver


def covering(seed: int) -> IntegerProgram:
    """Cheapest of seven things that cover rows, or pay for what is missing by a column of many values."""
    rng = random.Random(seed)
    things, rest = range(7), 7
    costs = tuple((thing, rng.randrange(1, LARGE // 8)) for thing in things)
    rows: list[tuple[tuple[int, ...], tuple[int, ...], int]] = []
    for _ in range(rng.randrange(2, 9)):
        chosen = tuple(sorted(rng.sample(things, rng.randrange(1, 4))))
        if rng.random() < 0.5:
            rows.append((chosen, (-1,) * len(chosen), -1))
        else:
            more = rng.randrange(1, LARGE // 4)
            rows.append(((*chosen, rest), (*(-more for _ in chosen), -1), -more))
    return IntegerProgram((1,) * 7 + (LARGE,), (*costs, (rest, 1)), tuple(rows), 1.0, 0.0)


def cost(program: IntegerProgram, values: tuple[int, ...]) -> float:
    """Infinite where a row is broken."""
    for columns, factors, right in program.rows:
        if sum(f * values[c] for c, f in zip(columns, factors, strict=True)) > right:
            return math.inf
    return float(sum(factor * values[column] for column, factor in program.costs))


def least(program: IntegerProgram) -> float:
    """Over all choices of things; the last column is what its rows then ask for."""
    found = math.inf
    for chosen in itertools.product((0, 1), repeat=7):
        rest = 0
        for columns, factors, right in program.rows:
            if columns[-1] == 7:
                lacking = sum(f * chosen[c] for c, f in zip(columns[:-1], factors, strict=False)) - right
                rest = max(rest, lacking)
        found = min(found, cost(program, (*chosen, rest)))
    return found


@pytest.mark.parametrize("by", BY)
def test_the_cheapest_values_are_found_and_the_bound_is_theirs(by: str) -> None:
    with programs(by) as solver:
        for seed in range(30):
            program, optimum = covering(seed), least(covering(seed))
            answer = solver.solve(program, 10.0)
            assert answer.exhausted
            assert answer.values is not None
            assert cost(program, answer.values) == pytest.approx(optimum, abs=2.0 + 1e-6 * optimum), seed
            assert optimum * (1.0 - 1e-6) - 2.0 <= answer.bound_units <= optimum * (1.0 + 1e-6) + 2.0, seed


@pytest.mark.parametrize("by", BY)
def test_within_a_gap_values_are_no_further_off_and_no_bound_is_above_the_optimum(by: str) -> None:
    with programs(by) as solver:
        for seed in range(30, 60):
            program, optimum = covering(seed), least(covering(seed))
            answer = solver.solve(program, 10.0, gap_units=LARGE // 16)
            assert answer.values is not None
            assert cost(program, answer.values) <= optimum + LARGE // 16 + 2.0, seed
            assert answer.bound_units <= optimum * (1.0 + 1e-6) + 2.0, seed


@pytest.mark.parametrize("by", BY)
def test_where_there_is_no_solution_the_bound_is_out_of_reach(by: str) -> None:
    impossible = IntegerProgram((1, 1), ((0, 5),), (((0, 1), (-1, -1), -3),), 1.0, 0.0)
    with programs(by) as solver:
        assert solver.solve(impossible, 10.0) == Answer(None, math.inf, exhausted=True)


def test_one_child_solves_all_of_them_and_is_ended_with_the_context() -> None:
    with programs("cpsat") as solver:
        for seed in range(3):
            solver.solve(covering(seed), 10.0)
            (child,) = cpsat_children()
            assert child == (cpsat_children() or [0])[0]
    assert not cpsat_children()


def test_where_little_is_to_be_solved_there_is_no_child() -> None:
    with programs("highs") as solver:
        for seed in range(3):
            solver.solve(covering(seed), 10.0)
        assert not cpsat_children()


def test_after_a_child_that_dies_the_other_engine_answers() -> None:
    with programs("cpsat") as solver:
        solver.solve(covering(1), 10.0)
        (child,) = cpsat_children()
        os.kill(child, signal.SIGKILL)
        for seed in (2, 3):
            answer = solver.solve(covering(seed), 10.0)
            assert answer.values is not None
            assert cost(covering(seed), answer.values) == pytest.approx(least(covering(seed)), abs=2.0)
        assert not cpsat_children()
