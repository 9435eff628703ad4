"""Solutions of the windows relaxation, played through: the judge's word on them, and what lacks RAM."""

from __future__ import annotations

import pytest
from helpers.clocks import counted
from helpers.pace import with_slow
from helpers.random_problems import dear_storage, mixed_problem, random_limits, training_like
from helpers.relaxed import whole_bound

from poet.problem import Limits, Problem, ProblemOp, Tensor
from poet.problem.schedule import Compute
from poet.problem.simulator import simulate
from poet.problem.solution import Status
from poet.solvers.bounds.refinement import ExtractedStep
from poet.solvers.instance.feasibility import minimum_ram_bytes
from poet.solvers.instance.instance import instance_of
from poet.solvers.portfolio.relaxations import linear_relaxation, whole_relaxation
from poet.solvers.search.least_energy import solve


def _tight_bytes(problem: Problem) -> int:
    least = minimum_ram_bytes(problem, Limits()).bytes
    return least + (sum(tensor.bytes for tensor in problem.tensors) - least) // 10


def chain_and_back() -> tuple[Problem, Limits]:
    """a, b forward; c reads both, and d reads a and takes much; without d all would fit."""
    tensors = [Tensor("a", 4), Tensor("b", 4), Tensor("c", 1), Tensor("d", 6), Tensor("e", 1)]
    ops = [
        ProblemOp("a", (), ("a",), 0.0, 1.0),
        ProblemOp("b", ("a",), ("b",), 0.0, 1.0),
        ProblemOp("c", ("b",), ("c",), 0.0, 1.0),
        ProblemOp("d", ("c",), ("d",), 0.0, 1.0),
        ProblemOp("e", ("d", "b"), ("e",), 0.0, 1.0),
    ]
    return Problem("chain", tuple(tensors), tuple(ops)), Limits(ram_budget_bytes=11, paging=False)


def test_what_fits_is_a_schedule_as_dear_as_the_bound() -> None:
    problem, limits = chain_and_back()
    bound = whole_bound(instance_of(problem, limits))
    played = ExtractedStep(instance_of(problem, limits), bound)
    schedule = played.schedule()
    assert schedule is not None
    assert not played.over_capacity_moments(3)
    trace = simulate(problem, schedule, limits)
    assert trace.joules == pytest.approx(problem.compute_joules + bound.overhead_joules)
    assert max(played.bytes) == trace.peak_ram_bytes
    runs = [step.op for step in schedule if isinstance(step, Compute)]
    assert runs == [problem.ops[act.task].name for act in played.acts if act.task is not None]


@pytest.mark.parametrize("seed", with_slow(range(240), set(range(20, 240))))
def test_schedules_are_valid_and_no_cheaper_than_the_bound(seed: int) -> None:
    makers = (mixed_problem, mixed_problem, lambda n: training_like(3 + n % 3, seed=n), dear_storage)
    problem = makers[seed % 4](seed)
    limits = random_limits(problem, seed)
    instance = instance_of(problem, limits)
    bound = whole_bound(instance, moments=range(1, len(problem.ops)))
    schedule = ExtractedStep(instance, bound).schedule()
    if schedule is not None:
        trace = simulate(problem, schedule, limits)  # or it raises
        assert trace.joules >= (problem.compute_joules + bound.overhead_joules) * (1.0 - 1e-6)


@pytest.mark.parametrize("layers", with_slow([6, 7, 13], {7, 13}))
def test_refinement_by_what_lacks_ram_ends_with_a_plan_as_expensive_as_the_bound(layers: int) -> None:
    problem = training_like(layers, seed=3)
    limits = Limits(ram_budget_bytes=_tight_bytes(problem), paging=False)
    members = (("linear", linear_relaxation, 1.0), ("whole", whole_relaxation, 1.0))
    solution = solve(problem, limits, counted(60.0), members=members)
    assert solution.status is Status.OPTIMAL
