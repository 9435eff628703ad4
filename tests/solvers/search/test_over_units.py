"""The search over units against the exhaustive oracle, and what it promises beside it."""

from __future__ import annotations

import dataclasses

import pytest
from helpers.on_units import least_joules, small_on_units
from helpers.pace import with_slow

from poet.errors import InputError, InvalidSchedule, ProblemError
from poet.problem import Handing, Limits, Objective, OnUnit, Problem, ProblemOp, Tensor, Unit
from poet.problem.alternatives import chosen_by
from poet.problem.schedule import Compute
from poet.problem.simulator import simulate
from poet.problem.solution import Solution, SolveOptions, Status
from poet.problem.units import assigned_by
from poet.solvers import solve
from poet.solvers.search import units

SHORT_SEARCH = SolveOptions(time_limit_seconds=6.0)


def judge_against_the_oracle(seed: int, *, tries_all: bool) -> Solution | None:
    of, limits = small_on_units(seed)
    best = least_joules(of, limits)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(units, "FEW_CHOICES", units.FEW_CHOICES if tries_all else 1)
        found = solve(of, limits, SHORT_SEARCH)
    if best is None:
        assert found.schedule is None
        return None
    optimum = simulate(of, best, limits).joules
    assert found.status is not Status.INFEASIBLE
    assert found.bound_joules <= optimum * (1 + 1e-9) + 1e-9
    assert found.schedule is not None
    joules = simulate(of, found.schedule, limits).joules
    assert found.joules == joules >= optimum - 1e-9
    if found.status is Status.OPTIMAL or tries_all:
        assert joules <= optimum * (1 + 1e-5) + 1e-9
    return found


@pytest.mark.parametrize("seed", with_slow(range(500), range(6, 500)))
def test_equals_the_oracle(seed: int) -> None:
    judge_against_the_oracle(seed, tries_all=True)


@pytest.mark.parametrize("seed", with_slow(range(500, 560), range(504, 560)))
def test_no_bound_of_the_relaxation_is_above_the_optimum(seed: int) -> None:
    judge_against_the_oracle(seed, tries_all=False)
