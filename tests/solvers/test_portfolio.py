"""The portfolio by its interface: every member alone, and subsets, against exhaustive search.

Whoever takes part, no bound is above the optimum, no plan breaks a rule, and infeasible is said only where
there is no plan.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import random
import signal

import pytest
from helpers.clocks import Ticking, counted
from helpers.oracle import least_joules
from helpers.pace import with_slow
from helpers.random_problems import mixed_problem, random_limits, random_problem, training_like

from poet.problem import Limits, Problem
from poet.problem.simulator import simulate
from poet.problem.solution import Solution, SolveOptions, Status
from poet.solvers.bounds import windows
from poet.solvers.engines import proof
from poet.solvers.engines.process import EngineProcess
from poet.solvers.engines.program import Effort, Matrix
from poet.solvers.instance.feasibility import minimum_ram_bytes
from poet.solvers.portfolio.relaxations import linear_relaxation, whole_relaxation
from poet.solvers.search.least_energy import MEMBERS, Seated, solve

SECONDS = 2.0  # of counted work


@functools.cache
def case(seed: int) -> tuple[Problem, Limits, float | None]:
    """A random problem of mixed features, its limits, and the least joules; ``None``: there is no plan."""
    problem = mixed_problem(seed, largest=6)
    limits = random_limits(problem, seed, deadline=seed % 3 == 0)
    best = least_joules(problem, limits)
    return problem, limits, None if best is None else simulate(problem, best, limits).joules


def holds(seed: int, members: tuple[Seated, ...], seconds: float = SECONDS) -> Solution:
    """The answer of ``members``, of which everything that is said was checked."""
    problem, limits, least = case(seed)
    solution = solve(problem, limits, counted(seconds), members=members)
    if least is None:
        assert solution.schedule is None, seed
        return solution
    assert solution.status is not Status.INFEASIBLE, seed
    assert solution.bound_joules <= least * (1 + 1e-6), seed
    if solution.schedule is not None and solution.joules is not None:
        assert simulate(problem, solution.schedule, limits).joules == solution.joules, seed
        assert solution.joules >= least * (1 - 1e-9), seed
        if solution.status is Status.OPTIMAL:
            assert solution.joules == pytest.approx(least, rel=2e-6), seed
    return solution


@pytest.mark.parametrize("member", MEMBERS, ids=[name for name, _, _ in MEMBERS])
@pytest.mark.parametrize("block", with_slow(range(25), set(range(1, 25))))
def test_a_member_alone_says_nothing_wrong(member: Seated, block: int) -> None:
    for seed in range(12 * block, 12 * (block + 1)):
        holds(seed, (member,))


@pytest.mark.parametrize("block", with_slow(range(25), set(range(1, 25))))
def test_some_members_say_nothing_wrong(block: int) -> None:
    for seed in range(12 * block, 12 * (block + 1)):
        rng = random.Random(seed)
        holds(seed, tuple(rng.sample(MEMBERS, rng.randrange(2, len(MEMBERS)))))


@pytest.mark.parametrize("block", with_slow(range(25), set(range(1, 25))))
def test_all_members_find_the_optimum_and_prove_nearly_all(block: int) -> None:
    open_ones = 0
    for seed in range(12 * block, 12 * (block + 1)):
        solution, least = holds(seed, MEMBERS, 5.0), case(seed)[2]
        if least is not None:
            assert solution.joules == pytest.approx(least, rel=2e-6), seed
        open_ones += solution.status not in (Status.OPTIMAL, Status.INFEASIBLE)
    assert open_ones <= 3  # transfers beside compute, of which relaxations know little


@pytest.mark.slow
@pytest.mark.parametrize("name", ["local search", "neighbourhoods", "exact models over retention intervals"])
def test_what_makes_plans_makes_better_ones_than_greedy(name: str) -> None:
    problem = training_like(12, seed=3, momentum=True)
    least, most = minimum_ram_bytes(problem, Limits()).bytes, sum(tensor.bytes for tensor in problem.tensors)
    limits = Limits(least + (most - least) // 12)
    linear = next(member for member in MEMBERS if member[1] is linear_relaxation)
    one = next(member for member in MEMBERS if member[0] == name)
    before, after = (solve(problem, limits, counted(6.0), members=members) for members in ((), (linear, one)))
    assert before.overhead_joules is not None
    assert after.overhead_joules is not None
    assert after.overhead_joules < 0.997 * before.overhead_joules


@pytest.mark.slow
@pytest.mark.parametrize("block", range(4))
def test_infeasible_is_said_where_little_ram_and_no_storage_leave_no_plan(block: int) -> None:
    """Just below and at the least RAM of any plan, where reruns of reruns are the only way."""
    proven = 0
    for seed in range(10 * block, 10 * (block + 1)):
        problem = random_problem(seed, ops=7, features=("workspace",))
        floor = minimum_ram_bytes(problem, Limits(paging=False)).bytes
        for budget in range(floor, floor + 12, 3):
            limits = Limits(budget, paging=False)
            there_is = least_joules(problem, limits) is not None
            solution = solve(problem, limits, counted(5.0))
            assert (solution.schedule is not None) == there_is, (seed, budget)
            proven += solution.status is Status.INFEASIBLE
    assert proven > 0


@pytest.mark.parametrize("member", MEMBERS, ids=[name for name, _, _ in MEMBERS])
def test_a_member_keeps_the_limit(member: Seated) -> None:
    problem = training_like(12, seed=3)
    least = minimum_ram_bytes(problem, Limits()).bytes
    options = SolveOptions(time_limit_seconds=3.0, clock=Ticking(0.02))
    solution = solve(problem, Limits(least + least // 4), options, members=(member,))
    assert solution.solve_seconds <= 3.5


def test_members_that_wait_for_each_other_leave() -> None:
    """Neighbourhoods and resident sets both want a plan, which nobody finds here."""
    problem = random_problem(152, ops=6)
    limits = dataclasses.replace(random_limits(problem, 152), paging=True)
    solution = solve(problem, limits, counted(6.0))
    assert solution.schedule is None
    assert len(solution.record.phases) < 200
    assert solution.solve_seconds < 6.0


def test_a_child_that_is_killed_takes_no_plan_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the kernel does where memory is short."""
    begin = EngineProcess.begin

    def begin_and_end(process: EngineProcess, matrix: Matrix, effort: Effort) -> None:
        begin(process, matrix, effort)
        os.kill(process.child.pid, signal.SIGKILL)

    monkeypatch.setattr(EngineProcess, "begin", begin_and_end)
    problem = random_problem(3, ops=8)
    options = dataclasses.replace(counted(0.3), relative_gap=0.0, overhead_gap=0.0)
    assert solve(problem, random_limits(problem, 3), options).schedule is not None


def test_a_bound_that_nothing_confirms_is_one_engines_word(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(windows, "DENSE_TERMS", 0)  # shares of the budget, as in large programs
    monkeypatch.setattr(proof, "is_proven", lambda *arguments, **options: False)
    members = tuple(member for member in MEMBERS if member[1] is whole_relaxation)
    problem = random_problem(2, ops=8)
    confirmed = solve(problem, random_limits(problem, 2), counted(3.0), members=members)
    assert confirmed.proof == "highs and cpsat agree"
    monkeypatch.setattr(proof, "available_engines", lambda: ("highs",))
    alone = solve(problem, random_limits(problem, 2), counted(3.0), members=members)
    assert alone.status is confirmed.status is Status.OPTIMAL
    assert confirmed.is_confirmed
    assert not alone.is_confirmed
