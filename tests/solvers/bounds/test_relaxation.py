"""The bound for the whole problem: never above what the oracle, or any valid schedule, takes."""

from __future__ import annotations

import math

import pytest
from helpers.oracle import least_joules
from helpers.pace import few_or_many, with_slow
from helpers.random_problems import mixed_problem, random_limits, training_like, with_homes
from helpers.relaxed import in_whole_numbers, tightest_bound, whole_bound

from poet.baselines.comparison import BASELINES
from poet.problem import Limits, Problem, ProblemOp, Tensor, Transfer
from poet.problem.simulator import simulate
from poet.solvers.bounds import windows
from poet.solvers.bounds.relaxation import bound_overhead, taken_up
from poet.solvers.engines.highs import minimise
from poet.solvers.engines.program import NOUGHT, ONE, MatrixBuilder
from poet.solvers.heuristics.greedy import greedy
from poet.solvers.instance.feasibility import minimum_ram_bytes
from poet.solvers.instance.instance import instance_of
from poet.util.clock import WALL, Clock, WorkClock


def assert_below_the_oracle(problem: Problem, limits: Limits, *, whole: bool = False) -> float:
    """Check several grids; return the best bound as a share of the optimum's overhead."""
    best = least_joules(problem, limits)
    optimum = math.inf if best is None else simulate(problem, best, limits).joules
    overhead = optimum - problem.compute_joules
    instance = instance_of(problem, limits)
    grids = ((), range(0, len(problem.ops), 2), range(len(problem.ops)))
    bounding = whole_bound if whole else bound_overhead
    bounds = [bounding(instance, moments=moments).overhead_joules for moments in grids]
    bounds.append(tightest_bound(instance).overhead_joules)
    assert max(bounds) <= overhead + 1e-9 * problem.compute_joules, (problem.name, bounds)
    return 1.0 if overhead < 1e-9 or math.isinf(overhead) else max(bounds) / overhead


def test_whole_numbers_stay_below_the_oracle_too_and_come_close() -> None:
    shares = []
    for seed in range(40):
        problem = mixed_problem(1000 + seed, largest=6)
        shares.append(assert_below_the_oracle(problem, random_limits(problem, seed), whole=True))
    assert sum(shares) / len(shares) > 0.9


@few_or_many("seeds", range(30), range(100, 300))
def test_homes_that_the_plan_chooses_stay_below_the_oracle_and_come_as_close(seeds: range) -> None:
    """Each home has what it takes: RAM at both ends and a copy that is written, or a page-out."""
    shares = []
    for seed in seeds:
        problem = with_homes(mixed_problem(seed, largest=5), seed)
        limits = random_limits(problem, seed, deadline=seed % 3 == 0)
        shares.append(assert_below_the_oracle(problem, limits, whole=True))
    assert sum(shares) / len(shares) > 0.9


@few_or_many("layers", 5, 10)
@pytest.mark.parametrize("share", with_slow([0.0, 0.3, 0.7], {0.0, 0.7}))
def test_below_every_valid_plan_of_a_training_step(share: float, layers: int) -> None:
    problem = training_like(layers, seed=3, momentum=True)
    least = minimum_ram_bytes(problem, Limits()).bytes
    most = sum(tensor.bytes for tensor in problem.tensors)
    limits = Limits(ram_budget_bytes=least + round(share * 0.5 * (most - least)))
    plans = [greedy(problem, limits), *(make(problem, limits) for make in BASELINES.values())]
    joules = [simulate(problem, plan, limits).joules for plan in plans if plan is not None]
    assert joules
    instance = instance_of(problem, limits)
    for bound in (tightest_bound(instance), bound_overhead(instance, moments=range(len(problem.ops)))):
        assert problem.compute_joules + bound.overhead_joules <= min(joules) * (1 + 1e-12)


@pytest.mark.parametrize("seed", range(4))
def test_sums_carried_from_row_to_row_bound_as_rows_that_list_every_window_do(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = training_like(24, seed=seed, momentum=bool(seed % 2))
    least = minimum_ram_bytes(problem, Limits()).bytes
    limits = Limits(ram_budget_bytes=least + sum(tensor.bytes for tensor in problem.tensors) // 20)
    dense = bound_overhead(instance_of(problem, limits))
    monkeypatch.setattr(windows, "DENSE_TERMS", 1)
    carried = bound_overhead(instance_of(problem, limits))
    assert dense.overhead_joules > 0.0
    assert carried.overhead_joules == pytest.approx(dense.overhead_joules, rel=1e-6)
    sizes = [len(bound.relaxation.program.matrix().factors) for bound in (dense, carried)]
    assert sizes[1] < sizes[0]


@pytest.mark.parametrize("seed", with_slow(range(30), range(10, 30)))
def test_sums_carried_from_row_to_row_stay_below_the_oracle(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = mixed_problem(seed, largest=6)
    limits = random_limits(problem, seed, deadline=seed % 3 == 0)
    best = least_joules(problem, limits)
    optimum = math.inf if best is None else simulate(problem, best, limits).joules
    monkeypatch.setattr(windows, "DENSE_TERMS", 1)
    bound = tightest_bound(instance_of(problem, limits)).overhead_joules
    assert bound <= optimum - problem.compute_joules + 1e-9 * problem.compute_joules


def chain(*, page_out: float = 3.0) -> Problem:
    """Two tensors of 4 bytes that cannot both wait for the end while the middle op takes 6."""
    move_in, move_out = Transfer(0.0, 2.0), Transfer(0.0, page_out)
    tensors = [Tensor(name, 4, move_in, move_out) for name in "ab"] + [Tensor("c", 6), Tensor("d", 1)]
    ops = [
        ProblemOp("a", (), ("a",), 0.0, 7.0),
        ProblemOp("b", (), ("b",), 0.0, 9.0),
        ProblemOp("c", (), ("c",), 0.0, 1.0),
        ProblemOp("d", ("a", "b"), ("d",), 0.0, 1.0),
    ]
    return Problem("chain", tuple(tensors), tuple(ops))


def test_the_cheapest_way_is_found_by_hand() -> None:
    whole = whole_bound(instance_of(chain(), Limits(ram_budget_bytes=10)))
    assert whole.overhead_joules == pytest.approx(5.0, rel=1e-4)  # one of a and b is written and read
    remade = whole_bound(instance_of(chain(page_out=30.0), Limits(ram_budget_bytes=10)))
    assert remade.overhead_joules == pytest.approx(7.0, rel=1e-4)  # a is made again


def test_what_cannot_be_is_proved_by_prices() -> None:
    limits = Limits(ram_budget_bytes=10, recompute=False, paging=False)
    assert bound_overhead(instance_of(chain(), limits)).overhead_joules == math.inf


@pytest.mark.parametrize("clock", [WALL, WorkClock()], ids=["wall", "work"])
def test_a_run_cut_short_is_taken_up_where_it_stood(clock: Clock) -> None:
    problem = training_like(30, seed=1)
    instance = instance_of(problem, Limits(ram_budget_bytes=minimum_ram_bytes(problem, Limits()).bytes))
    full, short = bound_overhead(instance), bound_overhead(instance, seconds=0.0, clock=clock)
    assert clock is WALL or not short.answer.done  # where it is quick, the engine ends before it looks
    assert short.answer.done == (short.answer.go_on is None)
    before = short.overhead_joules
    short = taken_up(short, seconds=0.0)
    assert before <= short.overhead_joules <= full.overhead_joules * (1 + 1e-9)
    again = taken_up(short, seconds=60.0)
    assert again.answer.done
    assert again.overhead_joules == pytest.approx(full.overhead_joules, rel=1e-9)
    assert taken_up(again, seconds=60.0) is again


def test_any_prices_give_a_bound() -> None:
    """min x + 2 y + 9 z with x + y + 0.75 z >= 1.5, all between 0 and 1: x = 1, y = 0.5."""
    program = MatrixBuilder()
    x, y, z = program.column(1.0), program.column(2.0), program.column(9.0)
    program.row([(-1.0, x), (-1.0, y), (-0.75, z), (7.0, NOUGHT), (-0.5, ONE)], -2.0)
    answer = minimise(program.matrix(), seconds=10.0)
    assert answer.bound == pytest.approx(2.0, abs=1e-6)
    assert answer.bound <= 2.0
    assert answer.prices[0] == pytest.approx(2.0)
    assert in_whole_numbers(program.matrix()).bound == pytest.approx(3.0, rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("block", range(4))
def test_never_above_the_oracle_on_a_thousand_problems(block: int) -> None:
    for seed in range(6000 + 250 * block, 6250 + 250 * block):
        problem = mixed_problem(seed, largest=6)
        limits = random_limits(problem, seed, deadline=seed % 3 == 0)
        best = least_joules(problem, limits)
        if best is not None:
            overhead = simulate(problem, best, limits).joules - problem.compute_joules
            bound = tightest_bound(instance_of(problem, limits)).overhead_joules
            assert bound <= overhead + 1e-9 * problem.compute_joules, seed
