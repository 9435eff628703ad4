"""The search over copies: no bound above the optimum, equal to it where everything is followed."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import random
from collections.abc import Sequence
from itertools import pairwise

import pytest
from helpers.oracle import least_joules
from helpers.pace import few_or_many, with_slow
from helpers.random_problems import mixed_problem, random_limits, with_homes
from helpers.weights import tight_weights, weights_in_turn

from poet.clock import WALL, WorkClock
from poet.problem import Limits, Place, Problem, ProblemOp, Tensor, Transfer
from poet.ram_survey import keep_everything_bytes
from poet.simulator import simulate
from poet.solvers import minimum_ram_bytes
from poet.solvers.bounds.copies import CopiesBound, copies_bounds
from poet.solvers.bounds.copies_levels import Levels
from poet.solvers.bounds.copies_master import MasterSearch
from poet.solvers.bounds.followed import Followed
from poet.solvers.bounds.ram_program import RamProgram
from poet.solvers.bounds.residents import too_dear
from poet.solvers.engines.small_programs import SmallPrograms
from poet.solvers.instance.instance import Instance, instance_of
from poet.tuning import DEFAULT, Tuning
from poet.tuning.models import EnginesTuning

EACH_SIZE = DEFAULT.having("copies.alike_factor", 1.0).having("copies.most_quick_arcs", 1)
QUICK = EACH_SIZE.having("copies.most_quick_arcs", DEFAULT.copies.most_quick_arcs)
MASTER = EACH_SIZE.having("copies.most_sets", 2)  # no list tells all copies apart
TOLERANCE = 1e-6  # of a step's joules; costs are rounded down to 2^-28 of what is asked for


def case(seed: int, tuning: Tuning = EACH_SIZE, *, homes: bool = False) -> tuple[Instance, float | None]:
    """A random instance, perhaps with homes to choose, and the least overhead by exhaustive search."""
    problem = dataclasses.replace(mixed_problem(seed, largest=5), background_storage=False)
    problem = with_homes(problem, seed) if homes else problem
    limits = random_limits(problem, seed, deadline=seed % 3 == 0)
    best = least_joules(problem, limits)
    overhead = None if best is None else simulate(problem, best, limits).joules - problem.compute_joules
    return instance_of(problem, limits, tuning=tuning), overhead


@functools.cache
def tight_overhead() -> float:
    """Of ``tight_weights``, by exhaustive search."""
    problem, limits = tight_weights()
    best = least_joules(problem, limits)
    assert best is not None
    return simulate(problem, best, limits).joules - problem.compute_joules


def bounds(instance: Instance, below_joules: float) -> list[CopiesBound]:
    return list(copies_bounds(instance, below_joules=below_joules, clock=WALL))


def only_ram(problem: Problem, limits: Limits) -> bool:
    alone = Limits(limits.ram_budget_bytes, recompute=limits.recompute, paging=limits.paging)
    return problem.storage_capacity_bytes is None and limits == alone


def check(seeds: range, tuning: Tuning, *, homes: bool = False) -> int:
    """How many problems whose least overhead the last bound must equal, and equals."""
    reached = 0
    for seed in seeds:
        instance, overhead = case(seed, tuning, homes=homes)
        if overhead is None:
            continue
        scale = instance.problem.compute_joules
        for below in (100.0 * scale + 2.0 * overhead, 1.01 * overhead + 1e-3 * scale):
            joules = [bound.overhead_joules for bound in bounds(instance, below)]
            assert max(joules, default=0.0) <= overhead + TOLERANCE * scale, seed
            assert all(after >= before - TOLERANCE * scale for before, after in pairwise(joules)), seed
            exact = tuning in (EACH_SIZE, MASTER, QUICK) and (instance.limits.paging or not homes)
            if joules and exact and only_ram(instance.problem, instance.limits):
                assert joules[-1] >= overhead - TOLERANCE * max(scale, below), seed
                reached += 1
    return reached


@pytest.mark.parametrize("block", with_slow(range(4), {1, 3}))
def test_no_bound_is_above_the_optimum_and_the_last_reaches_it(block: int) -> None:
    """Limits beside RAM are none of the search's: with them it is a bound, without them the optimum."""
    assert check(range(30 * block, 30 * block + 30), EACH_SIZE) > 5


def test_a_master_program_in_place_of_the_list_reaches_the_optimum() -> None:
    assert check(range(8), MASTER) > 1
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


def test_what_is_dearer_to_write_than_the_plan_takes_its_ram_without_being_followed() -> None:
    """In sets with and without it, a weight that stays would be too much to follow."""
    problem, limits = tight_weights()
    dear = Transfer(100.0, 100.0)
    stays = [
        dataclasses.replace(tensor, page_out=dear) if tensor.name == "w1" else tensor
        for tensor in problem.tensors
    ]
    problem, limits = dataclasses.replace(problem, tensors=tuple(stays)), Limits(ram_budget_bytes=25)
    best = least_joules(problem, limits)
    assert best is not None
    overhead = simulate(problem, best, limits).joules - problem.compute_joules
    instance = instance_of(problem, limits, tuning=EACH_SIZE)
    assert {instance.contents[number].tensor for number in too_dear(instance, 1.5 * overhead)} == {"w1"}
    assert not too_dear(instance, 1e3)
    assert bounds(instance, 1.5 * overhead)[-1].overhead_joules == pytest.approx(overhead, rel=1e-5)


def _with_a_loss() -> tuple[Problem, Limits]:
    """Predictions and a loss are to be there at the end; a layer's result is made again on the way back."""
    dear = Transfer(3.0, 3.0)
    sizes = {
        "x": 6,
        "w": 4,
        "targets": 2,
        "a": 8,
        "b": 8,
        "predictions": 2,
        "loss": 2,
        "g": 2,
        "c": 8,
        "d": 8,
    }
    tensors = tuple(
        Tensor(name, size, dear, dear, finally_=Place.RAM if name in ("w", "predictions", "loss") else None)
        for name, size in sizes.items()
    )
    ops = (
        ProblemOp("first", ("x",), ("a",), 1.0, 1.0),
        ProblemOp("second", ("a",), ("b",), 1.0, 1.0),
        ProblemOp("last", ("b", "w"), ("predictions",), 1.0, 0.1),
        ProblemOp("loss", ("predictions", "targets"), ("loss",), 1.0, 0.1),
        ProblemOp("start", ("predictions", "targets"), ("g",), 1.0, 0.1),
        ProblemOp("update", ("b", "g", "w"), (), 1.0, 0.1, updates=("w",)),
        ProblemOp("back", ("b", "g"), ("c",), 1.0, 1.0),
        ProblemOp("back again", ("a", "c"), ("d",), 1.0, 1.0),
    )
    return Problem("loss", tensors, ops), Limits(ram_budget_bytes=32)


def test_what_can_no_more_be_made_again_and_what_it_would_be_made_of_take_their_ram() -> None:
    """Predictions once the weight is another, and the loss or the targets once nothing else reads these."""
    problem, limits = _with_a_loss()
    instance = instance_of(problem, limits, tuning=EACH_SIZE)
    number = {(content.tensor, content.version): content.number for content in instance.contents}
    there = Followed(instance, 6, 32).residents
    predictions, targets = there[number["predictions", 0]], there[number["targets", 0]]
    assert (predictions.birth, predictions.last, predictions.bytes) == (5, 8, 2)
    assert (targets.birth, targets.last, targets.bytes) == (-1, 8, 2)
    assert targets.stands_for == (number["loss", 0],)
    assert number["loss", 0] not in there
    best = least_joules(problem, limits)
    assert best is not None
    overhead = simulate(problem, best, limits).joules - problem.compute_joules
    found = [bound for bound in bounds(instance, 2.0 * overhead) if bound.followed_bytes >= 6]
    assert found[-1].overhead_joules == pytest.approx(overhead, rel=1e-5)


def _with_any_loss(seed: int) -> tuple[Problem, Limits]:
    """The same step with other sizes, costs and RAM: targets may leave early or late, or the loss may."""
    draw, (problem, _) = random.Random(seed), _with_a_loss()
    page_in, page_out = Transfer(0.1, draw.choice([0.05, 1.0])), Transfer(3.0, draw.choice([3.0, 6.0, 20.0]))
    targets = draw.randint(1, 3)
    sizes = {"x": draw.randint(5, 8), "w": draw.randint(1, 4), "targets": targets}
    sizes |= {name: draw.randint(6, 9) for name in ("a", "b")} | {"predictions": draw.randint(1, 3)}
    sizes |= {"loss": draw.choice([targets, draw.randint(1, 3)]), "g": draw.randint(1, 3)}
    sizes |= {name: draw.randint(6, 9) for name in ("c", "d")}
    tensors = tuple(
        dataclasses.replace(tensor, bytes=sizes[tensor.name], page_in=page_in, page_out=page_out)
        for tensor in problem.tensors
    )
    joules = {"second": draw.choice([0.2, 1.0])}
    ops = tuple(dataclasses.replace(op, joules=joules.get(op.name, op.joules)) for op in problem.ops)
    problem = dataclasses.replace(problem, tensors=tensors, ops=ops)
    least, most = minimum_ram_bytes(problem).bytes, keep_everything_bytes(problem)
    return problem, Limits(ram_budget_bytes=draw.randint(least, max(least, most - 1)))


@few_or_many("seeds", (34, 45), range(100, 180))
def test_where_a_loss_is_needed_no_bound_is_above_the_optimum(seeds: Sequence[int]) -> None:
    """Whichever of the two is paged is paid for once, and what an op reads in its place counts once."""
    checked = 0
    for seed in seeds:
        problem, limits = _with_any_loss(seed)
        best = least_joules(problem, limits)
        assert best is not None
        overhead = simulate(problem, best, limits).joules - problem.compute_joules
        for tuning in (EACH_SIZE, MASTER, MASTER.having("copies.alike_factor", 2.0)):
            instance = instance_of(problem, limits, tuning=tuning)
            for below in (3.0 * overhead, 1.05 * overhead):
                joules = [bound.overhead_joules for bound in bounds(instance, below)]
                assert max(joules, default=0.0) <= overhead + TOLERANCE * problem.compute_joules, seed
                checked += bool(joules)
    assert checked


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
