"""Local search over gaps: the judge takes every schedule of it, at the joules that the loops have counted."""

from __future__ import annotations

import math

import pytest
from helpers.random_problems import mixed_problem, random_limits, random_pins, training_like, with_homes

from poet.problem import Limits, Problem
from poet.problem.pins import permitted
from poet.problem.simulator import simulate
from poet.solvers.heuristics.greedy import greedy
from poet.solvers.instance.feasibility import minimum_ram_bytes
from poet.solvers.instance.instance import instance_of
from poet.solvers.portfolio.local_search import LocalSearch


def _cases(count: int) -> list[tuple[Problem, Limits]]:
    """Small problems of all kinds: homes, pins, updates, deadlines, storage with little room."""
    found = []
    for seed in range(count):
        problem = mixed_problem(seed)
        if seed % 3 == 1:
            problem = with_homes(problem, seed)
        limits = random_limits(problem, seed, deadline=seed % 4 == 0)
        limits = random_pins(problem, limits, seed) if seed % 5 == 2 else limits
        found.append((permitted(problem, limits), limits))
    return found


@pytest.mark.parametrize("part", range(4))
def test_the_judge_takes_every_schedule(part: int) -> None:
    found, begun = 0, 0
    for number, (problem, limits) in enumerate(_cases(240)[part::4]):
        instance = instance_of(problem, limits)
        hidden = (
            not instance.serial and limits.deadline_seconds is not None
        )  # loops run transfers by themselves
        if hidden or not LocalSearch.serves(instance):
            continue
        search, best = LocalSearch(instance, 1), math.inf
        start = greedy(problem, limits, seconds=0.0)
        if start is not None and number % 2:
            begun += 1
            search.begin_at(start)
            best = search.best_joules
        for _ in range(4 if search.has_choices else 0):
            schedule = search.batch()
            if schedule is None:
                continue
            found += 1
            overhead = simulate(problem, schedule, limits).joules - problem.compute_joules
            assert overhead < best
            if instance.serial:
                assert overhead == pytest.approx(search.best_joules, rel=1e-9, abs=1e-12)
            best = overhead
    assert begun > 15
    assert found > 15


def test_steps_in_little_ram_get_better_plans_than_greedy_ones() -> None:
    """On training steps; the same tries with the same seed."""
    better = 0
    for seed in range(6):
        problem = training_like(8, seed=seed)
        floor, most = minimum_ram_bytes(problem, Limits()).bytes, sum(t.bytes for t in problem.tensors)
        limits = Limits(ram_budget_bytes=floor + (most - floor) // 8)
        plan = greedy(problem, limits, seconds=0.0)
        if plan is None:
            continue
        overheads = []
        for _ in range(2):
            search = LocalSearch(instance_of(problem, limits), 0)
            search.begin_at(plan)
            for _ in range(5):
                search.batch()
            overheads.append(search.best_joules)
        assert overheads[0] == overheads[1]
        better += overheads[0] < simulate(problem, plan, limits).joules - problem.compute_joules
    assert better >= 3
