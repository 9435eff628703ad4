"""When contents can come back into RAM, against exhaustive search."""

from __future__ import annotations

import pytest
from helpers.clocks import counted
from helpers.oracle import least_ram_bytes
from helpers.random_problems import mixed_problem, random_problem

from poet.problem import Limits, Problem
from poet.problem.solution import Status
from poet.solvers import minimum_ram_bytes, solve
from poet.solvers.engines.proof import Confidence, Confirmation
from poet.solvers.instance.feasibility import Conflict, conflict_in
from poet.solvers.instance.instance import instance_of


def _conflict(problem: Problem, budget_bytes: int) -> Conflict | None:
    return conflict_in(instance_of(problem, Limits(budget_bytes, paging=False)))


def _refuted(problem: Problem) -> list[int]:
    """Budgets of at least `minimum_ram_bytes` that are shown to be too little, all of which must be."""
    limits = Limits(paging=False)
    least_bytes, enough_bytes = minimum_ram_bytes(problem, limits).bytes, least_ram_bytes(problem, limits)
    if enough_bytes is None:
        return []
    refuted = [b for b in range(least_bytes, enough_bytes + 8) if _conflict(problem, b) is not None]
    assert all(budget_bytes < enough_bytes for budget_bytes in refuted), (refuted, enough_bytes)
    return refuted


@pytest.mark.parametrize(
    "seeds", [range(20), *(pytest.param(range(n, n + 50), marks=pytest.mark.slow) for n in (20, 70))]
)
def test_no_budget_in_which_a_schedule_exists_is_refuted(seeds: range) -> None:
    found = [_refuted(mixed_problem(seed)) for seed in seeds]
    found += [_refuted(random_problem(seed, ops=7, features=("workspace",))) for seed in seeds]
    assert any(found), "nothing that the tested bound knows beyond `minimum_ram_bytes`"


def test_the_search_says_what_cannot_come_back() -> None:
    problem, budget_bytes = next(
        (problem, refuted[-1])
        for problem in (random_problem(seed, ops=7, features=("workspace",)) for seed in range(100))
        if (refuted := _refuted(problem))
    )
    conflict = _conflict(problem, budget_bytes)
    assert conflict is not None
    answer = solve(problem, Limits(budget_bytes, paging=False), counted(5.0))
    assert answer.status is Status.INFEASIBLE
    assert "bring" in answer.message
    assert problem.ops[conflict.task].name in answer.message
    assert answer.proof == Confirmation(Confidence.EXACT).words
    assert solve(problem, Limits(budget_bytes), counted(5.0)).joules is not None  # paging is another matter


def test_nothing_is_said_when_the_time_is_over_or_no_budget_is_given() -> None:
    problem, budget_bytes = next(
        (problem, refuted[-1]) for problem in map(mixed_problem, range(100)) if (refuted := _refuted(problem))
    )
    instance = instance_of(problem, Limits(budget_bytes, paging=False))
    assert conflict_in(instance) is not None
    assert conflict_in(instance, lambda: True) is None
    assert conflict_in(instance_of(problem, Limits(paging=False))) is None
