"""Forms of pages as alternatives: status and joules are those of an exhaustive search over all choices."""

from __future__ import annotations

import dataclasses
import random

import pytest
from helpers import forms
from helpers.clocks import counted
from helpers.random_problems import mixed_problem, random_limits

from poet.problem import Alternative, Limits, Problem, ProblemOp, Tensor, Transfer
from poet.problem.alternatives import taken_by
from poet.problem.schedule import PageOut
from poet.problem.simulator import simulate
from poet.problem.solution import Solution, Status
from poet.solvers import solve
from poet.solvers.search import alternatives


def choice(seed: int) -> tuple[Problem, Limits]:
    """A step of 3 to 6 ops, up to two tensors of which have two forms of pages; other alternatives, too."""
    rng = random.Random(f"page choice {seed}")
    smallest = rng.choice([3, 3, 4, 4, 5])
    problem = mixed_problem(seed, smallest=smallest, largest=smallest + 1)
    problem = forms.with_alternatives(problem, seed, most=rng.choice([0, 0, 1]))
    problem = forms.with_page_forms(problem, seed, most=2)
    limits = random_limits(problem.resolved(()), seed, deadline=rng.random() < 0.3)
    return problem, dataclasses.replace(limits, recompute=limits.recompute and rng.random() < 0.3)


def judged(seed: int) -> tuple[Problem, Solution]:
    problem, limits = choice(seed)
    best, found = forms.least_joules(problem, limits), solve(problem, limits, counted(30.0))
    may_be_open = problem.background_storage
    if best is None:
        assert found.schedule is None, seed
        assert found.status is Status.INFEASIBLE or (may_be_open and found.status is Status.TIMEOUT), seed
        return problem, found
    least = simulate(problem, best, limits).joules
    assert found.status is Status.OPTIMAL or (may_be_open and found.status is Status.FEASIBLE), (seed, found)
    assert found.schedule is not None
    joules = simulate(problem, found.schedule, limits).joules
    assert joules == found.joules, seed
    assert joules == pytest.approx(least, rel=2e-6, abs=1e-9), seed
    assert found.bound_joules <= least * (1 + 1e-9), seed
    return problem, found


@pytest.mark.parametrize("seed", range(8))
def test_status_and_joules_are_those_of_an_exhaustive_search(seed: int) -> None:
    judged(seed)


@pytest.mark.slow
@pytest.mark.parametrize("block", range(10))
def test_so_are_they_of_hundreds(block: int) -> None:
    for seed in range(8 + 15 * block, 23 + 15 * block):
        judged(seed)


@pytest.mark.parametrize("seed", [3, 29, 30])
def test_plans_take_other_forms_where_these_pay(seed: int) -> None:
    _, found = judged(seed)
    assert any(isinstance(step, PageOut) and step.alternative for step in found.schedule or ())


def two_pages() -> Problem:
    """a and b leave RAM while c is made; for one of them another form takes less, for the other more."""
    move = Transfer(1.0, 1.0)
    sizes = {"x": 1, "a": 8, "b": 8, "c": 16, "d": 1, "e": 1}
    tensors = {name: Tensor(name, size, move, move) for name, size in sizes.items()}
    ops = [("A", "x", "a"), ("B", "x", "b"), ("C", "x", "c"), ("D", "c", "d"), ("E", "abd", "e")]
    forms = [("a", Transfer(0.2, 0.2), Transfer(1.3, 1.3)), ("b", Transfer(0.8, 0.8), Transfer(1.7, 1.7))]
    others = [dataclasses.replace(tensors[name], page_out=out, page_in=back) for name, out, back in forms]
    return Problem(
        "two pages",
        tuple(tensors.values()),
        tuple(ProblemOp(name, tuple(reads), (made,), 1.0, 1.0) for name, reads, made in ops),
        alternatives=tuple(Alternative(f"pages of {each.name}", (), tensors=(each,)) for each in others),
    )


@pytest.mark.parametrize("most", [1, 256])
def test_of_many_forms_each_is_decided_by_itself(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where there are too many choices to search each."""
    monkeypatch.setattr(alternatives, "MOST_CHOICES", most)
    of = two_pages()
    found = solve(of, Limits(ram_budget_bytes=20, recompute=False), counted(5.0))
    assert found.schedule is not None
    assert taken_by(of, found.schedule) == {"pages of a"}
    assert found.joules == pytest.approx(5.0 + 1.5 + 2.0)
