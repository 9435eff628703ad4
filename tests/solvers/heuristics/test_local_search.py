"""Local search over gaps: the judge takes every schedule of it, at the joules that the loops have counted."""

from __future__ import annotations

from helpers.random_problems import training_like

from poet.problem import Limits
from poet.problem.simulator import simulate
from poet.solvers.heuristics.greedy import greedy
from poet.solvers.instance.feasibility import minimum_ram_bytes
from poet.solvers.instance.instance import instance_of
from poet.solvers.portfolio.local_search import LocalSearch


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
