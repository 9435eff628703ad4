"""A first plan, or a proof that there is none, where nothing may be written, against exhaustive search."""

from __future__ import annotations

import dataclasses

import pytest
from helpers.clocks import counted
from helpers.oracle import least_ram_bytes
from helpers.random_problems import random_problem

from poet.clock import WorkClock
from poet.problem import Limits, Problem
from poet.solution import SolveOptions, Status
from poet.solvers import solve
from poet.solvers.engines.confirm import Confidence, Confirmation
from poet.solvers.heuristics.greedy import greedy
from poet.solvers.search.first_plan import FirstPlan
from poet.solvers.search.model_runs import ModelRuns
from poet.solvers.search.standing import Standing
from poet.tuning import DEFAULT


def _looked_for(problem: Problem, limits: Limits) -> tuple[bool, bool]:
    """Whether a turn finds a plan, and whether it says that there is none."""
    standing = Standing(problem, limits, SolveOptions(60.0, clock=WorkClock()), "highs", None)
    with FirstPlan(ModelRuns(standing, "highs")) as first_plan:
        is_none = first_plan.turn(0.5)
    return standing.best.trace is not None, is_none


def _hard(problem: Problem) -> tuple[list[int], int] | None:
    """Budgets without a greedy plan around the least that is enough, and that; ``None``: none is enough."""
    enough_bytes = least_ram_bytes(problem, Limits(paging=False))
    if enough_bytes is None:
        return None
    near = (enough_bytes - 1, enough_bytes, enough_bytes + 1)
    return [b for b in near if greedy(problem, Limits(b, paging=False), seconds=0.05) is None], enough_bytes


@pytest.mark.parametrize(
    "seeds", [range(5), *(pytest.param(range(n, n + 10), marks=pytest.mark.slow) for n in (5, 15, 25))]
)
def test_a_plan_is_found_where_there_is_one_and_else_that_there_is_none(seeds: range) -> None:
    found = refuted = missed = 0
    for seed in seeds:
        for problem in (random_problem(seed, ops=7, features=("workspace",)), random_problem(seed, ops=8)):
            hard = _hard(problem)
            for budget_bytes in hard[0] if hard else ():
                has_plan, is_none = _looked_for(problem, Limits(budget_bytes, paging=False))
                exists = hard is not None and budget_bytes >= hard[1]
                assert not (is_none and exists), (seed, budget_bytes)
                found, refuted, missed = found + has_plan, refuted + is_none, missed + (exists > has_plan)
    assert found > 0
    assert refuted > 0
    assert missed == 0


def test_nothing_is_looked_for_where_something_may_be_written_or_there_is_a_plan() -> None:
    problem = random_problem(8, ops=8)
    hard = _hard(problem)
    assert hard is not None
    for limits in (Limits(hard[1]), Limits(paging=False)):
        assert _looked_for(problem, limits) == (False, False)
    standing = Standing(problem, Limits(paging=False), SolveOptions(60.0, clock=WorkClock()), "highs", None)
    standing.consider(tuple(greedy(problem, Limits(paging=False)) or ()), "greedy")
    assert standing.best.trace is not None
    assert not FirstPlan(ModelRuns(standing, "highs")).turn(0.5)


def test_a_search_has_its_first_plan_from_it_and_its_proof_that_there_is_none() -> None:
    problem = random_problem(8, ops=8)
    hard = _hard(problem)
    assert hard is not None
    budgets, enough_bytes = hard
    assert enough_bytes in budgets
    alone = dataclasses.replace(DEFAULT.search, chain_reruns=(), small_ops=0, returns_share=0.0)
    tuning = dataclasses.replace(DEFAULT, search=alone)
    answer = solve(problem, Limits(enough_bytes, paging=False), counted(5.0, tuning=tuning))
    assert answer.joules is not None
    (phase,) = (phase for phase in answer.record.phases if "what is in RAM" in phase.name)
    assert phase.plans > 0
    none = solve(problem, Limits(enough_bytes - 1, paging=False), counted(5.0, tuning=tuning))
    assert none.status is Status.INFEASIBLE
    assert none.proof == Confirmation(Confidence.EXACT).words
