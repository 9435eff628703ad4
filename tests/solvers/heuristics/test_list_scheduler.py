"""What a policy says of many tensors at once is what it says of each alone, at every victim of a walk."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from helpers.random_problems import mixed_problem, random_limits, training_like

from poet.problem import Limits, Problem
from poet.solvers.heuristics.list_scheduler import Policy, Tensors, Values, Walk, Way, Weights
from poet.solvers.heuristics.lp_guided import AsRelaxed
from poet.solvers.heuristics.policies import ByStaleness, walked
from poet.solvers.instance.feasibility import minimum_ram_bytes
from poet.solvers.instance.instance import Facts


class Compared(Policy):
    """``policy``, whose values of all are held against those of each at each call."""

    def __init__(self, policy: Policy) -> None:
        self.policy, self.unplanned, self.calls = policy, policy.unplanned, 0

    def values(self, walk: Walk, tensors: Tensors) -> Values:
        found = self.policy.values(walk, tensors)
        each = [self.policy.values(walk, tensors[k : k + 1])[0] for k in range(len(tensors))]
        assert found.tolist() == each
        for tensor in tensors.tolist():
            need = walk.next_need(tensor)
            assert walk.needs[tensor] == (walk.facts.op_count + 1 if need is None else need)
        self.calls += len(tensors) > 1
        return found


class OneByOne(Policy):
    """``policy``, asked for each tensor alone."""

    def __init__(self, policy: Policy) -> None:
        self.policy, self.unplanned = policy, policy.unplanned

    def value(self, walk: Walk, tensor: int) -> float | None:
        return float(self.policy.values(walk, np.array([tensor]))[0])


def policies(facts: Facts) -> list[Policy]:
    """Those that tell all values at once, without a solution to follow."""
    count = facts.tensor_count
    return [
        ByStaleness(Way.CHEAPER),
        ByStaleness(Way.REMAKE),
        *(AsRelaxed(((),) * count, (-1,) * count, bias) for bias in (0.7, 1.0, 1.4)),
    ]


def cases() -> list[tuple[Problem, Limits]]:
    """Small problems of all kinds, and training steps with little RAM."""
    found = []
    for seed in range(40):
        problem = mixed_problem(seed, largest=7)
        found.append((problem, random_limits(problem, seed, deadline=False)))
    for share in (0.1, 0.4):
        problem = training_like(40, seed=3)
        least = minimum_ram_bytes(problem, Limits()).bytes
        most = sum(tensor.bytes for tensor in problem.tensors)
        found.append((problem, Limits(ram_budget_bytes=least + round(share * (most - least)))))
    return found


@pytest.mark.parametrize("which", range(5))
def test_values_at_once_are_those_of_each(which: int) -> None:
    calls = 0
    for problem, limits in cases():
        for allowed in (limits, replace(limits, paging=False)):
            facts = Facts(problem)
            policy = policies(facts)[which]
            compared, weights = Compared(policy), Weights(problem.idle_watts, problem.idle_watts)
            at_once = walked(facts, allowed, compared, weights)
            assert at_once == walked(facts, allowed, OneByOne(policy), weights)
            calls += compared.calls
    assert calls >= 50
