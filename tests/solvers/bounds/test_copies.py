"""The search over copies: no bound above the optimum, equal to it where everything is followed."""

from __future__ import annotations

import dataclasses
import itertools
import math
import random

import pytest
from helpers.copies_bounds import EACH_SIZE, MASTER, QUICK, TOLERANCE, bounds, case, check, tight_overhead
from helpers.oracle import least_joules
from helpers.pace import few_or_many, with_slow
from helpers.weights import tight_weights, weights_in_turn

from poet.clock import WALL, WorkClock
from poet.problem import Limits, Problem, ProblemOp, Tensor, Transfer
from poet.simulator import simulate
from poet.solvers import minimum_ram_bytes
from poet.solvers.bounds.copies import copies_bounds
from poet.solvers.bounds.copies_levels import Levels
from poet.solvers.bounds.copies_master import MasterSearch
from poet.solvers.bounds.followed import Followed
from poet.solvers.bounds.ram_program import RamProgram
from poet.solvers.engines.small_programs import SmallPrograms
from poet.solvers.instance.instance import instance_of
from poet.tuning import DEFAULT, Tuning
from poet.tuning.models import EnginesTuning


@pytest.mark.parametrize("block", with_slow(range(4), {1, 3}))
def test_no_bound_is_above_the_optimum_and_the_last_reaches_it(block: int) -> None:
    """Limits beside RAM are none of the search's: with them it is a bound, without them the optimum."""
    assert check(range(30 * block, 30 * block + 30), EACH_SIZE) > 5


def test_a_master_program_in_place_of_the_list_reaches_the_optimum() -> None:
    assert check(range(8), MASTER) > 1
    check(range(8), MASTER.without("copies.most_residents").having("copies.listed_divisor", 1))
    overhead, instance = tight_overhead(), instance_of(*tight_weights(), tuning=EACH_SIZE)
    found = bounds(instance, 2.0 * overhead)
    assert any(not bound.proven for bound in found)  # weights that leave are too many sets for a list alone
    assert found[-1].overhead_joules == pytest.approx(overhead, rel=1e-5)


@few_or_many("seeds", range(12), range(1000, 1200))
@pytest.mark.parametrize("tuning", [EACH_SIZE, MASTER, MASTER.having("copies.listed_divisor", 2)])
def test_homes_that_the_plan_chooses_are_no_bound_above_the_optimum(seeds: range, tuning: Tuning) -> None:
    """Where nothing but RAM is short, the last bound reaches it: homes are copies like others."""
    reached = check(seeds, tuning, homes=True)
    assert tuning not in (EACH_SIZE, MASTER) or reached > len(seeds) / 6


@few_or_many("seeds", range(30, 42), range(5000, 5200))
def test_levels_of_few_transitions_come_at_once_and_leave_copies_to_the_next_one(seeds: range) -> None:
    """The default, on steps where every level has few."""
    assert check(seeds, QUICK) > len(seeds) / 10
    check(seeds, QUICK.having("copies.most_sets", 2), homes=True)


@few_or_many("seeds", range(400, 410), range(3400, 3500))
def test_nor_where_homes_are_followed_in_part(seeds: range) -> None:
    """All contents of a tensor are followed, or none is."""
    for most_arcs in (24, 60, 150):
        few = EACH_SIZE.having("copies.most_arcs", most_arcs).having("copies.alike_factor", 1e9)
        check(seeds, few.having("copies.most_short_arcs", most_arcs), homes=True)


@few_or_many("seeds", range(5), range(4000, 4150))
@pytest.mark.parametrize("homes", [False, True])
def test_levels_that_give_way_before_they_are_over_end_where_they_would_have(
    seeds: range, *, homes: bool
) -> None:
    """After each round: to the next level, then to whichever is highest."""
    compared = 0
    for seed, tuning in itertools.product(seeds, (EACH_SIZE, MASTER)):
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


@pytest.mark.slow
def test_no_bound_of_a_master_program_is_above_the_optimum_of_many() -> None:
    assert check(range(2000, 2200), MASTER) > 25


@pytest.mark.parametrize("divisor", [1, 2])
def test_listed_residents_and_steps_are_no_bound_above_the_optimum(divisor: int) -> None:
    """Whatever size is listed by itself, and whatever is left for steps."""
    instance = instance_of(*tight_weights(), tuning=EACH_SIZE.having("copies.listed_divisor", divisor))
    joules = [bound.overhead_joules for bound in bounds(instance, 9.0)]
    assert max(joules) == pytest.approx(tight_overhead(), rel=1e-5)
    assert max(joules) <= tight_overhead() * (1.0 + 1e-9)


@few_or_many("seeds", range(5), range(5, 60))
def test_weights_that_leave_in_turn_are_proven_with_every_way_to_count_them(seeds: range) -> None:
    """Large ones by themselves, small ones in steps of joules, and the RAM that they leave as rows."""
    divisors, by_a_master = (1, 2, 32), 0
    for seed in seeds:
        problem, limits = weights_in_turn(seed)
        best = least_joules(problem, limits)
        assert best is not None
        overhead = simulate(problem, best, limits).joules - problem.compute_joules
        tuning = EACH_SIZE.having("copies.listed_divisor", divisors[seed % 3])
        found = bounds(instance_of(problem, limits, tuning=tuning), 1.5 * overhead + 1.0)
        assert max(bound.overhead_joules for bound in found) <= overhead * (1.0 + TOLERANCE), seed
        assert found[-1].overhead_joules >= overhead * (1.0 - TOLERANCE), seed
        by_a_master += any(not bound.proven for bound in found)
    assert by_a_master > len(seeds) / 2


def test_before_any_cut_is_known_the_master_program_knows_what_must_leave_for_an_op() -> None:
    problem, limits = tight_weights()
    instance = instance_of(problem, limits, tuning=EACH_SIZE)
    assert limits.ram_budget_bytes is not None
    of, below, tuning = Followed(instance, 8, limits.ram_budget_bytes), 9.0, instance.tuning.copies
    program = RamProgram(
        of, most_joules=below, most_arcs=tuning.most_arcs, parts=tuning.parts, finished=lambda: False
    )
    with SmallPrograms(WALL, EnginesTuning()) as programs:
        search = MasterSearch(
            program, below, tuning, [], step_joules=0.0, listed_bytes=0, programs=programs,
            seconds_left=lambda: math.inf,
        )  # fmt: skip
        with_all_copies = search.bound_joules
        assert search.round()
    # 12 bytes of weights beside two of the three results, 16 bytes, in 23: at least one of 5 bytes leaves
    assert search.bound_joules >= with_all_copies + 1.0 - 1e-3


@pytest.mark.parametrize(
    ("field", "value"),
    with_slow([("most_sets", 3), ("columns", 1), ("most_values", 1)], {("columns", 1), ("most_values", 1)}),
)
def test_with_fewer_sets_and_columns_no_bound_is_above_the_optimum(field: str, value: int) -> None:
    check(range(200, 225), EACH_SIZE.having(f"copies.{field}", value))


@few_or_many("seeds", range(400, 410), range(2400, 2600))
def test_where_all_of_a_size_are_too_many_those_that_live_shortly_are_followed(seeds: range) -> None:
    """No bound is above the optimum by it, and some are above what whole sizes alone tell."""
    higher = 0
    for most_arcs, factor in ((24, 1.0), (60, 1e9), (150, 1e9)):
        few = EACH_SIZE.having("copies.most_arcs", most_arcs).having("copies.alike_factor", factor)
        check(seeds, few.having("copies.most_short_arcs", most_arcs))
        few = few.having("copies.room_factor", 0.0)
        for seed in seeds:
            told = []
            for short_arcs in (0, most_arcs):
                instance, overhead = case(seed, few.having("copies.most_short_arcs", short_arcs))
                if overhead:
                    found = bounds(instance, 2.0 * overhead)
                    told.append(max((bound.overhead_joules for bound in found), default=0.0))
            higher += bool(told) and told[1] > told[0] + TOLERANCE
    assert higher > 3


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
    tuning = DEFAULT.having("copies.most_arcs", 1).having("copies.most_short_arcs", 1)
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


@few_or_many("seeds", range(3), range(3, 60))
def test_layers_behind_each_other_are_bounded_by_what_their_sums_are_made_of(seeds: range) -> None:
    """The sums alone are made again from small outputs that are in no bytes; these matter as well."""
    higher = 0
    few = DEFAULT.having("copies.alike_factor", 1e9).having("copies.most_arcs", 900)
    few = few.having("copies.most_short_arcs", 100).having("copies.short_factor", 3.0)
    few = few.having("copies.most_quick_arcs", 1)
    for seed in seeds:
        problem, limits = concats(3, seed)
        best = least_joules(problem, limits)
        assert best is not None
        overhead = simulate(problem, best, limits).joules - problem.compute_joules
        told = []
        for share in (0.0, 0.3):
            tuning = few.having("copies.built_upon_share", share)
            found = bounds(instance_of(problem, limits, tuning=tuning), 2.0 * overhead + 1.0)
            assert found[-1].overhead_joules <= overhead + TOLERANCE * problem.compute_joules, seed
            told.append(found[-1].overhead_joules)
        higher += told[1] > told[0] + TOLERANCE
    assert higher >= len(seeds) / 4


def test_when_the_search_of_a_part_is_over_more_is_followed() -> None:
    problem, limits = concats(4, 1)
    few = DEFAULT.having("copies.alike_factor", 1e9)
    few = few.having("copies.most_arcs", 3000).having("copies.most_short_arcs", 60)

    def followed(part_factor: float) -> list[int]:
        instance = instance_of(problem, limits, tuning=few.having("copies.part_factor", part_factor))
        levels = Levels(instance, limits.ram_budget_bytes or 0, 100.0, lambda: False)
        return [len(program.of.followed) for program in levels.programs()]

    grown, once = followed(3.0), followed(1.0)
    assert grown[: len(once)] == once
    assert len(grown) > len(once)
    assert grown == sorted(set(grown))


@few_or_many("seeds", range(600, 615), range(2600, 2800))
def test_part_of_a_first_level_is_no_bound_above_the_optimum(seeds: range) -> None:
    for most_arcs in (40, 100, 250):
        few = DEFAULT.having("copies.most_arcs", most_arcs).having("copies.alike_factor", 1e9)
        few = few.having("copies.most_short_arcs", max(1, most_arcs // 3)).having("copies.short_factor", 3.0)
        check(seeds, few)
