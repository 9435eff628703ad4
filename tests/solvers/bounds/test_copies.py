"""The search over copies: no bound above the optimum, equal to it where everything is followed."""

from __future__ import annotations

import dataclasses
import itertools
import random

import pytest
from helpers.copies_bounds import EACH_SIZE, TOLERANCE, bounds, case, check
from helpers.pace import few_or_many, with_slow

from poet.clock import WALL, WorkClock
from poet.problem import Limits, Problem, ProblemOp, Tensor, Transfer
from poet.solvers import minimum_ram_bytes
from poet.solvers.bounds.copies import copies_bounds
from poet.tuning import DEFAULT, Tuning


@pytest.mark.parametrize("block", with_slow(range(4), {1, 3}))
def test_no_bound_is_above_the_optimum_and_the_last_reaches_it(block: int) -> None:
    """Limits beside RAM are none of the search's: with them it is a bound, without them the optimum."""
    assert check(range(30 * block, 30 * block + 30), EACH_SIZE) > 5


@few_or_many("seeds", range(12), range(1000, 1200))
@pytest.mark.parametrize("tuning", [EACH_SIZE])
def test_homes_that_the_plan_chooses_are_no_bound_above_the_optimum(seeds: range, tuning: Tuning) -> None:
    """Where nothing but RAM is short, the last bound reaches it: homes are copies like others."""
    reached = check(seeds, tuning, homes=True)
    assert reached > len(seeds) / 6


@few_or_many("seeds", range(400, 410), range(3400, 3500))
def test_nor_where_homes_are_followed_in_part(seeds: range) -> None:
    """All contents of a tensor are followed, or none is."""
    for most_arcs in (24, 60, 150):
        few = EACH_SIZE.having("copies.most_arcs", most_arcs).having("copies.alike_factor", 1e9)
        check(seeds, few, homes=True)


@few_or_many("seeds", range(5), range(4000, 4150))
@pytest.mark.parametrize("homes", [False, True])
def test_levels_that_give_way_before_they_are_over_end_where_they_would_have(
    seeds: range, *, homes: bool
) -> None:
    """After each round: to the next level, then to whichever is highest."""
    compared = 0
    for seed, tuning in itertools.product(seeds, (EACH_SIZE,)):
        instance, overhead = case(seed, tuning, homes=homes)
        if overhead is None:
            continue
        below = 1.01 * overhead + 1e-3 * instance.problem.compute_joules
        hasty = case(seed, tuning.having("copies.patience_seconds", 0.0), homes=homes)[0]
        joules = [bound.overhead_joules for bound in bounds(hasty, below)]
        last = max((bound.overhead_joules for bound in bounds(instance, below)), default=0.0)
        assert max(joules, default=0.0) <= overhead + TOLERANCE * below, seed
        assert max(joules, default=0.0) >= last - TOLERANCE * below, seed
        compared += 0.0 < last < below
    assert compared > len(seeds) / 12


@pytest.mark.parametrize(
    ("field", "value"),
    with_slow([("most_sets", 3), ("columns", 1), ("most_values", 1)], {("columns", 1), ("most_values", 1)}),
)
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
    assert not below.step


def test_too_many_sets_are_no_bound_and_work_is_counted() -> None:
    instance, overhead = next((of, joules) for of, joules in map(case, range(100)) if joules)
    assert overhead is not None
    tuning = DEFAULT.having("copies.most_arcs", 1)
    few = dataclasses.replace(instance, tuning=tuning)
    assert not bounds(few, overhead)
    clock = WorkClock()
    assert list(copies_bounds(instance, below_joules=overhead, clock=clock))
    assert clock.now() > 0.0


def test_it_stops_when_it_is_asked_to() -> None:
    instance, overhead = next((of, joules) for of, joules in map(case, range(100)) if joules)
    assert overhead is not None
    assert not list(copies_bounds(instance, below_joules=overhead, clock=WALL, finished=lambda: True))


def concats(layers: int, seed: int) -> tuple[Problem, Limits]:
    """Each layer's small output is put behind its input; ways back read the sums, the last one first."""
    draw = random.Random(seed)
    sizes = {"x0": draw.randint(3, 5)} | {f"x{n}": 4 + 2 * n for n in range(1, layers + 1)}
    sizes |= {f"y{n}": draw.randint(1, 2) for n in range(1, layers + 1)} | {
        f"g{n}": 6 for n in range(layers + 1)
    }
    page_in, page_out = Transfer(0.5, draw.uniform(0.2, 1.0)), Transfer(2.0, draw.uniform(0.5, 3.0))
    tensors = tuple(Tensor(name, size, page_in, page_out) for name, size in sizes.items())
    ops = [ProblemOp("stem", (), ("x0",), 1.0, 1.0)]
    for n in range(1, layers + 1):
        ops.append(ProblemOp(f"layer{n}", (f"x{n - 1}",), (f"y{n}",), 1.0, draw.uniform(0.5, 2.0)))
        ops.append(ProblemOp(f"cat{n}", (f"x{n - 1}", f"y{n}"), (f"x{n}",), 0.5, draw.uniform(0.1, 0.4)))
    ops.append(ProblemOp("loss", (f"x{layers}",), (f"g{layers}",), 1.0, 0.5))
    ops += [
        ProblemOp(f"back{n}", (f"g{n}", f"x{n - 1}"), (f"g{n - 1}",), 1.0, 0.5) for n in range(layers, 0, -1)
    ]
    problem = Problem("concats", tensors, tuple(ops))
    least = minimum_ram_bytes(problem, Limits()).bytes
    return problem, Limits(ram_budget_bytes=least + draw.randint(0, 3))
