"""Forms of pages as alternatives: status and joules are those of an exhaustive search over all choices."""

from __future__ import annotations

import random

import pytest
from helpers import forms
from helpers.clocks import counted
from helpers.random_problems import mixed_problem, random_limits

from poet.problem import Limits, Problem
from poet.problem.schedule import PageOut
from poet.problem.simulator import simulate
from poet.problem.solution import Solution, Status
from poet.solvers import solve


def choice(seed: int) -> tuple[Problem, Limits]:
    """A step of 3 to 8 ops, up to three tensors of which have two forms of pages; other alternatives, too."""
    rng = random.Random(f"page choice {seed}")
    problem = mixed_problem(seed, smallest=rng.choice([3, 4, 5, 6]), largest=rng.choice([6, 7, 8]))
    problem = forms.with_alternatives(problem, seed, most=rng.choice([0, 0, 1]))
    problem = forms.with_page_forms(problem, seed)
    return problem, random_limits(problem.resolved(()), seed, deadline=rng.random() < 0.3)


def judged(seed: int) -> tuple[Problem, Solution]:
    problem, limits = choice(seed)
    best, found = forms.least_joules(problem, limits), solve(problem, limits, counted(30.0))
    may_be_open = problem.background_storage or seed in UNPROVEN
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


UNPROVEN: frozenset[int] = frozenset()


@pytest.mark.parametrize("seed", range(8))
def test_status_and_joules_are_those_of_an_exhaustive_search(seed: int) -> None:
    judged(seed)


@pytest.mark.slow
@pytest.mark.parametrize("block", range(10))
def test_so_are_they_of_hundreds(block: int) -> None:
    answers = [judged(seed) for seed in range(8 + 15 * block, 23 + 15 * block)]
    named = [found for _, found in answers if any(map(_is_named, found.schedule or ()))]
    assert named, "no plan of these takes another form of a page"


def _is_named(step: object) -> bool:
    return isinstance(step, PageOut) and step.alternative is not None
