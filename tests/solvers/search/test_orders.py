"""Plans in other orders of first runs, against exhaustive search over every order that schedules may have."""

from __future__ import annotations

import dataclasses
import itertools

import pytest
from helpers.clocks import counted
from helpers.oracle import least_joules
from helpers.pace import with_slow
from helpers.random_problems import floor_bytes, random_limits, random_problem, training_like

from poet.errors import ProblemError
from poet.problem import Limits, Objective, Problem
from poet.problem.simulator import content_versions, simulate
from poet.problem.solution import EVERY, LISTED, OWN, Solution, Status
from poet.solvers import solve
from poet.solvers.search import orders

CHEAPER = (12, 44, 60)
ONLY = (25, 34, 43, 65, 81, 86, 92)
"""Seeds of tight problems of which another order than the listed one is cheaper, or the only one."""


def tight(seed: int) -> tuple[Problem, Limits]:
    """A random problem with hardly any RAM, and no storage to page to."""
    problem = random_problem(seed, ops=6)
    return problem, Limits(floor_bytes(problem) + seed % 4, paging=False)


def listings(problem: Problem) -> list[Problem]:
    """The problem in every order whose schedules are schedules of ``problem``: by trying all permutations."""
    versions, found = content_versions(problem), list[Problem]()
    effects = [op.name for op in problem.ops if op.updates or op.random]
    for ops in itertools.permutations(problem.ops):
        try:
            other = dataclasses.replace(problem, ops=ops)
        except ProblemError:
            continue
        same = content_versions(other) == versions
        if same and [op.name for op in ops if op.updates or op.random] == effects:
            found.append(other)
    return found


def least(problem: Problem, limits: Limits) -> float | None:
    """Joules of the cheapest plan in the listed order."""
    best = least_joules(problem, limits)
    return None if best is None else simulate(problem, best, limits).joules


def in_any_order(problem: Problem, limits: Limits, **options: object) -> Solution:
    found = solve(problem, limits, counted(60.0, **options), any_order=True)
    if found.schedule is not None:
        assert simulate(problem, found.schedule, limits).joules == found.joules
    return found


def holds(problem: Problem, limits: Limits) -> tuple[float | None, float | None]:
    """What the best plans take in the listed order and in any; that is what the search says."""
    amounts = [least(other, limits) for other in listings(problem)]
    best = min((amount for amount in amounts if amount is not None), default=None)
    found = in_any_order(problem, limits)
    assert found.order == EVERY
    assert found.status is (Status.INFEASIBLE if best is None else Status.OPTIMAL)
    assert found.joules == (None if best is None else pytest.approx(best, rel=2e-6))
    return least(problem, limits), best


@pytest.mark.parametrize("seed", with_slow(CHEAPER, set(CHEAPER[1:])))
def test_another_order_is_cheaper(seed: int) -> None:
    listed, best = holds(*tight(seed))
    assert listed is not None
    assert best is not None
    assert best < 0.99 * listed


@pytest.mark.parametrize("seed", with_slow(ONLY, set(ONLY[1:])))
def test_another_order_is_the_only_one_with_a_plan(seed: int) -> None:
    listed, best = holds(*tight(seed))
    assert listed is None
    assert best is not None
    assert solve(*tight(seed), counted(20.0)).status is Status.INFEASIBLE, "in the listed order"


@pytest.mark.slow
@pytest.mark.parametrize("block", range(6))
def test_every_order_is_searched_of_problems_of_all_kinds(block: int) -> None:
    features = ("updates", "random", "finally", "initially", "idle", "workspace")
    for seed in range(10 * block, 10 * (block + 1)):
        problem = random_problem(seed, ops=5, features=features[: 1 + seed % len(features)])
        holds(problem, random_limits(problem, seed))


@pytest.mark.parametrize("features", [("updates", "random"), ("outputs", "once", "random")])
def test_the_orders_are_those_whose_schedules_are_schedules_of_the_listed_problem(
    features: tuple[str, ...],
) -> None:
    for seed in range(40):
        problem = random_problem(seed, ops=5, features=features)
        found = [tuple(problem.ops[op] for op in order) for order in orders.Listing(problem).orders()]
        assert len(found) == len(set(found))
        assert set(found) == {other.ops for other in listings(problem)}


def test_what_is_said_names_the_order(monkeypatch: pytest.MonkeyPatch) -> None:
    problem, limits = tight(44)
    assert "in any order" in in_any_order(problem, limits).sentence
    monkeypatch.setattr(orders, "MOST_ORDERS", 1)
    some = in_any_order(problem, limits)
    assert some.order in (LISTED, OWN)
    assert "in any order" not in some.sentence


def test_a_tie_and_a_larger_problem_keep_the_listed_order() -> None:
    problem = training_like(2, seed=1)
    assert len(problem.ops) > orders.MOST_OPS
    found = solve(problem, Limits(), any_order=True)
    assert found.order == LISTED
    roomy = random_problem(3, ops=6)
    kept = in_any_order(roomy, Limits())
    assert (kept.order, kept.overhead_joules) == (EVERY, 0.0)
    assert kept.schedule == solve(roomy, Limits(), counted(20.0)).schedule


def test_least_ram_of_any_order_is_no_more_than_that_of_the_listed_one() -> None:
    problem, _ = tight(34)
    limits = Limits(paging=False)
    listed = solve(problem, limits, counted(20.0, objective=Objective.RAM))
    found = in_any_order(problem, limits, objective=Objective.RAM)
    assert found.order == EVERY
    assert found.amount is not None
    assert listed.amount is not None
    assert found.amount < listed.amount
