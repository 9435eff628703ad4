"""Objectives, energy budgets and starts: what `solve` may be asked beside the least energy."""

from __future__ import annotations

from pathlib import Path

from poet.problem import Limits, Problem
from poet.solution import SolveOptions, Status
from poet.solvers import solve

INSTANCES = Path(__file__).parent / "instances"


def test_a_start_is_taken_over_and_an_invalid_one_is_passed_over() -> None:
    problem = Problem.load(INSTANCES / "linear.m4.json")
    roomy, tight = Limits(ram_budget_bytes=8000), Limits(ram_budget_bytes=3700)
    plan = solve(problem, tight, SolveOptions(time_limit_seconds=30.0))
    assert plan.schedule is not None
    begun = solve(problem, tight, SolveOptions(time_limit_seconds=1e-9, start=plan.schedule))
    assert begun.joules == plan.joules
    kept = solve(problem, roomy)
    assert kept.schedule is not None
    again = solve(problem, tight, SolveOptions(start=kept.schedule))
    assert again.status is Status.OPTIMAL
    assert again.joules == plan.joules
