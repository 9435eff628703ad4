"""Rounds of the relaxation: what they look at, and that each makes it say more."""

from __future__ import annotations

from itertools import pairwise

import pytest
from helpers.oracle import least_joules
from helpers.pace import with_slow
from helpers.random_problems import training_like
from helpers.relaxed import tightest_bound, whole_bound

from poet.problem import Limits, Problem, ProblemOp, Tensor
from poet.solvers.bounds.refinement import ExtractedStep, refined_bounds
from poet.solvers.bounds.relaxation import bound_overhead
from poet.solvers.instance.feasibility import minimum_ram_bytes
from poet.solvers.instance.instance import Instance, instance_of


def tight(problem: Problem, share: float) -> Instance:
    least = minimum_ram_bytes(problem, Limits()).bytes
    most = sum(tensor.bytes for tensor in problem.tensors)
    limits = Limits(ram_budget_bytes=least + round(share * (most - least)), paging=False)
    return instance_of(problem, limits)


@pytest.mark.parametrize(
    ("stages", "share"), with_slow([(12, 0.1), (24, 0.1), (24, 0.15)], {(24, 0.1), (24, 0.15)})
)
def test_moments_where_one_rerun_serves_many_raise_the_bound(stages: int, share: float) -> None:
    bounds = list(refined_bounds(tight(training_like(stages, seed=3), share), lambda: 60.0))
    assert max(bound.overhead_joules for bound in bounds) > 1.005 * bounds[0].overhead_joules
    assert all(before.moments < after.moments for before, after in pairwise(bounds))


def test_nothing_is_pretended_where_ram_is_plenty() -> None:
    problem = training_like(8, seed=3)
    instance = instance_of(problem, Limits(ram_budget_bytes=10 * sum(t.bytes for t in problem.tensors)))
    assert not ExtractedStep(instance, bound_overhead(instance)).over_capacity_moments(8)


def there_and_back(stages: int) -> Problem:
    """A chain forward, of which the last is large, and back: nothing is kept, all of it is made again."""
    names = [f"a{number}" for number in range(stages)]
    tensors = [Tensor(name, 4) for name in names] + [Tensor(f"b{number}", 1) for number in range(stages)]
    ops = [
        ProblemOp(name, (names[number - 1],) if number else (), (name,), 0.0, 1.0)
        for number, name in enumerate(names)
    ]
    for number in reversed(range(stages)):
        before = (f"b{number + 1}",) if number < stages - 1 else ()
        ops.append(ProblemOp(f"b{number}", (names[number], *before), (f"b{number}",), 0.0, 1.0))
    return Problem("there and back", tuple(tensors), tuple(ops))


def test_a_chain_made_again_and_again_is_seen_through() -> None:
    """Two of five tensors fit: the first is made five times, which no window shows by itself."""
    problem, limits = there_and_back(5), Limits(ram_budget_bytes=10)
    best = least_joules(problem, limits)
    assert best is not None
    overhead = len([step for step in best if type(step).__name__ == "Compute"]) - len(problem.ops)
    instance = instance_of(problem, limits)
    priced, refined = tightest_bound(instance), whole_bound(instance, moments=range(10))
    assert priced.overhead_joules <= overhead * (1 + 1e-9)
    assert refined.overhead_joules == pytest.approx(overhead, rel=1e-4)


def test_the_moment_at_which_most_is_held_tells_more_than_none() -> None:
    instance = tight(training_like(24, seed=3), 0.1)
    first = next(refined_bounds(instance, lambda: 60.0))
    assert first.overhead_joules > 1.01 * bound_overhead(instance).overhead_joules
