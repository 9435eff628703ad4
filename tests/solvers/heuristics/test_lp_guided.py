"""Walks along the relaxation's answer: judged, cheap where it is right, and no worse for odd problems."""

from __future__ import annotations

from dataclasses import replace

import pytest
from helpers.relaxed import whole_bound

from poet.problem import Limits, Problem, ProblemOp, Tensor, Transfer
from poet.problem.schedule import Compute, PageOut
from poet.problem.simulator import simulate
from poet.solvers.bounds.relaxation import bound_overhead
from poet.solvers.heuristics.lp_guided import walks_along
from poet.solvers.instance.instance import instance_of


def masked() -> Problem:
    """A mask of 4 bytes from a state of 1 byte that nothing else reads, in the way of an op of 8 bytes."""
    move = Transfer(0.0, 50.0)
    tensors = (
        Tensor("state", 1), Tensor("mask", 4, move, move), Tensor("large", 8), Tensor("end", 1),
    )  # fmt: skip
    ops = (
        ProblemOp("state", (), ("state",), 0.0, 1.0, recomputable=False),
        ProblemOp("mask", ("state",), ("mask",), 0.0, 1.0),
        ProblemOp("large", (), ("large",), 0.0, 1.0),
        ProblemOp("end", ("mask",), ("end",), 0.0, 1.0),
    )
    return Problem("masked", tensors, ops)


def test_what_nothing_can_make_again_is_held_for_reruns_that_read_it() -> None:
    limits = Limits(ram_budget_bytes=9)
    instance = instance_of(masked(), limits)
    bound = whole_bound(instance, moments=range(4))
    assert bound.overhead_joules == pytest.approx(1.0, rel=1e-4)  # one more run of the mask
    plans = list(walks_along(instance, bound))
    assert plans
    for plan in plans:
        assert not any(isinstance(step, PageOut) for step in plan)
        assert sum(step == Compute("mask") for step in plan) == 2
        assert simulate(masked(), plan, limits).joules == pytest.approx(5.0)


def test_no_answer_no_walk() -> None:
    instance = instance_of(masked(), Limits(ram_budget_bytes=9))
    bound = bound_overhead(instance)
    assert not list(walks_along(instance, replace(bound, answer=replace(bound.answer, values=None))))
