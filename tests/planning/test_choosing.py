"""Choices of what to train: against exhaustive search on random problems, and as plans of models."""

from __future__ import annotations

import itertools
import math
import random
from dataclasses import replace

import pytest
from helpers.random_problems import mixed_problem, random_limits

from poet.planning.candidates import Tried
from poet.planning.choosing import Search
from poet.problem import Limits, Problem
from poet.problem.solution import SolveOptions, Status
from poet.solvers import solve
from poet.solvers.bounds.optional_ops import Groups, OptionalOps, Relaxation

_OPTIONS = SolveOptions(time_limit_seconds=None, relative_gap=1e-9, overhead_gap=1e-9, confirm=False)


def _random_step(seed: int) -> tuple[OptionalOps, Limits]:
    """A random problem whose last ops are needed by some of a few groups, and limits that bind."""
    rng = random.Random(f"optional {seed}")
    problem = mixed_problem(seed, smallest=4, largest=7)
    count, ops = rng.randint(1, 4), problem.ops
    roots = [frozenset({rng.randrange(len(ops))}) for _ in range(count)]
    base = _ancestors(problem, set(range(rng.randint(1, len(ops) // 2))))
    needs = {op.name: set[int]() for place, op in enumerate(ops) if place not in base}
    for group, own in enumerate(roots):
        for place in _ancestors(problem, set(own)) - base:
            needs[ops[place].name].add(group)
    used = {name: frozenset(groups) for name, groups in needs.items() if groups}
    gone = set(needs) - set(used)
    left = tuple(op for op in ops if op.name not in gone)
    made = {name for op in ops for name in op.outputs}
    there = {name for op in left for name in (*op.inputs, *op.outputs, *op.rerun_inputs)}
    tensors = tuple(t for t in problem.tensors if t.name in there or t.name not in made)
    problem = replace(problem, ops=left, tensors=tensors)
    scores = [rng.choice((0.1, 0.2, 0.3, 0.5)) for _ in roots]
    step = OptionalOps(problem, [score / sum(scores) for score in scores], used)
    limits = random_limits(problem, seed, deadline=rng.random() < 0.3)
    if rng.random() < 0.6:
        limits = Limits(
            limits.ram_budget_bytes, limits.deadline_seconds, limits.recompute, limits.paging,
            joules_budget=problem.compute_joules * rng.uniform(0.6, 1.4) or None,
        )  # fmt: skip
    return step, limits


def _ancestors(problem: Problem, places: set[int]) -> set[int]:
    """Ops that these need: what makes or changes what they read, and what they undo."""
    found, wanted = set(places), set[str]()
    for place in reversed(range(len(problem.ops))):
        op = problem.ops[place]
        if place in found or wanted & {*op.outputs, *op.updates}:
            found.add(place)
            wanted |= {*op.inputs, *op.rerun_inputs, *op.outputs}
    return found


def _attempt(step: OptionalOps, limits: Limits, groups: Groups) -> Tried:
    found = solve(step.of(groups), limits, _OPTIONS)
    if found.status is Status.INFEASIBLE:
        return Tried(None, is_infeasible=True)
    if found.trace is None:
        return Tried(None)
    return Tried(found.trace.joules, False, found.bound_joules)


def _subsets(step: OptionalOps) -> list[Groups]:
    every = range(len(step.shares))
    return [frozenset(s) for n in every for s in itertools.combinations(every, n + 1)]


def _check(seed: int) -> bool:
    """Hold both questions against all sets; ``False``: the planner left one of these open."""
    step, limits = _random_step(seed)
    tried = {groups: _attempt(step, limits, groups) for groups in _subsets(step)}
    if any(found.joules is None and not found.is_infeasible for found in tried.values()):
        return False
    feasible = {groups: found for groups, found in tried.items() if found.joules is not None}
    relaxation = Relaxation(step, limits)
    for groups in feasible:
        assert relaxation.admits(groups), f"seed {seed}: the relaxation refuses {groups}, which has a plan"
    best = max((step.share(groups) for groups in feasible), default=0.0)
    if feasible:
        search = Search(step, limits, lambda g, _: _attempt(step, limits, g), _OPTIONS, None)
        found = search.run()
        assert found.share == pytest.approx(best, abs=3e-6), f"seed {seed}"
        assert search.bound >= best - 1e-9
    floor = best * random.Random(seed).random()
    costs = [t.joules or 0.0 for g, t in feasible.items() if step.share(g) >= floor]
    least = min(costs, default=math.inf)
    if feasible and floor > 0:
        search = Search(step, limits, lambda g, _: _attempt(step, limits, g), _OPTIONS, floor)
        found = search.run()
        assert found.tried.joules is not None
        assert found.tried.joules <= least * (1 + 2e-3), f"seed {seed}"
        assert search.bound <= least * (1 + 1e-6)
    return True


@pytest.mark.parametrize("seed", range(12))
def test_a_random_choice_is_that_of_exhaustive_search(seed: int) -> None:
    _check(seed)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(12, 500, 61))
def test_random_choices_are_those_of_exhaustive_search(first: int) -> None:
    seeds = range(first, min(first + 61, 500))
    assert sum(map(_check, seeds)) >= 0.95 * len(seeds)
