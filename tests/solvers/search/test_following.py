"""Plans that follow another one in less RAM."""

from __future__ import annotations

from dataclasses import replace

import pytest
from helpers.random_problems import training_like

from poet.planning.ram_survey import budget_between, keep_everything_bytes
from poet.problem import Limits
from poet.problem.simulator import simulate
from poet.problem.solution import SolveOptions
from poet.solvers import minimum_ram_bytes, solve
from poet.solvers.heuristics.policies import followed


@pytest.mark.parametrize("seed", range(4))
def test_a_plan_in_its_own_ram_is_followed_and_less_costs_little_more(seed: int) -> None:
    problem = training_like(seed)
    most, least = keep_everything_bytes(problem), minimum_ram_bytes(problem, Limits()).bytes
    limits = Limits(ram_budget_bytes=budget_between(least, most, 0.5))
    found = solve(problem, limits, SolveOptions(time_limit_seconds=None))
    assert found.schedule is not None
    assert found.trace is not None
    again = followed(problem, found.schedule, limits)
    assert again is not None
    extra_joules = simulate(problem, again, limits).joules - problem.compute_joules
    assert extra_joules <= 1.5 * (found.trace.joules - problem.compute_joules) + 1e-9
    less = replace(limits, ram_budget_bytes=found.trace.peak_ram_bytes - 1)
    narrower = followed(problem, found.schedule, less)
    if less.ram_budget_bytes is not None and less.ram_budget_bytes >= least:
        assert narrower is not None
        assert simulate(problem, narrower, less).joules >= found.bound_joules
