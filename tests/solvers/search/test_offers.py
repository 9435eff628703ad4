"""What a large model is offered: what the relaxation remakes, as deep as it goes, nothing impossible."""

from __future__ import annotations

import pytest
from helpers.random_problems import training_like
from helpers.relaxed import tightest_bound

from poet.problem import Limits, Problem
from poet.solvers import minimum_ram_bytes
from poet.solvers.bounds.relaxation import Bound, bound_overhead
from poet.solvers.engines.program import value
from poet.solvers.instance.candidates import worth_rerunning
from poet.solvers.instance.instance import Instance, instance_of
from poet.solvers.portfolio.neighbourhoods import offered_by

STEP = training_like(10, seed=3)


def instance(problem: Problem, share: float) -> Instance:
    least = minimum_ram_bytes(problem, Limits()).bytes
    most = sum(tensor.bytes for tensor in problem.tensors)
    limits = Limits(ram_budget_bytes=least + round(share * (most - least)), paging=False)
    return instance_of(problem, limits)


def remade(bound: Bound) -> set[int]:
    values = bound.answer.values
    assert values is not None
    return {s.content for s in bound.relaxation.segments if any(value(c, values) > 1e-3 for c in s.made)}


@pytest.mark.parametrize("share", [0.1, 0.2])
def test_what_is_remade_is_offered_where_it_may_run(share: float) -> None:
    of = instance(STEP, share)
    bound = tightest_bound(of)
    worth = worth_rerunning(of)
    shallow, deep = (offered_by(of, bound, chain) for chain in (1, 10))
    assert remade(bound)
    for offered in (shallow, deep):
        assert {of.contents[content].producer for content in remade(bound)} <= set().union(*offered.values())
        for stage, tasks in offered.items():
            assert tasks <= worth
            assert all(task < stage <= of.tasks[task].last_rerun_stage for task in tasks)
    assert all(shallow[stage] <= deep[stage] for stage in shallow)
    longest = max(map(len, deep.values()))
    assert longest > max(map(len, shallow.values()))  # whole pieces of the forward pass


def test_moments_at_which_ram_has_a_price_make_the_bound_stronger() -> None:
    gains = []
    for share in (0.1, 0.2, 0.3):
        of = instance(STEP, share)
        plain, best = bound_overhead(of), tightest_bound(of)
        assert best.overhead_joules >= plain.overhead_joules
        gains.append(best.overhead_joules - plain.overhead_joules)
    assert max(gains) > 1e-4 * STEP.compute_joules
