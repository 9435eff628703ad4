"""List schedules of policies: the judge takes them, at the joules counted; machine code gives the same."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest
from helpers.random_problems import mixed_problem, random_limits, training_like

from poet.problem import Limits, Problem
from poet.problem.simulator import simulate
from poet.solvers.heuristics import list_scheduler
from poet.solvers.heuristics.gap_arrays import KEEP, MARK, STEPS, WAY, Way, arrays_of, schedule_of
from poet.solvers.heuristics.policies import ByDistance, ByStaleness, Policy, Walk, Weights, walk_of
from poet.solvers.instance.feasibility import minimum_ram_bytes
from poet.solvers.instance.incumbent import Incumbent
from poet.solvers.instance.instance import Facts
from poet.solvers.portfolio.local_search import machine_code


class ByChoice(ByDistance):
    """Decides about each gap at random: when it is dropped, and how it comes back."""

    def __init__(self, seed: int) -> None:
        super().__init__((0.7, 1.0, 1.4)[seed % 3])
        self.random = random.Random(seed)

    def begin(self, walk: Walk) -> None:
        super().begin(walk)
        for gap in range(len(walk.g[MARK])):
            walk.g[MARK][gap] = self.random.randint(0, KEEP)
            walk.g[WAY][gap] = self.random.choice(list(Way))


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


def ran(problem: Problem, limits: Limits, policy: Policy) -> tuple[Walk, float]:
    """The schedule of ``policy`` and its joules above running every op once; infinite: it got stuck."""
    walk = walk_of(Facts(problem), limits, policy, Weights(problem.idle_watts, problem.idle_watts))
    policy.begin(walk)
    return walk, list_scheduler.decode(walk, math.inf)


@pytest.mark.parametrize("which", range(4))
def test_the_judge_takes_every_schedule_at_the_joules_counted(which: int) -> None:
    plans = 0
    for seed, (problem, limits) in enumerate(cases()):
        for allowed in (limits, replace(limits, paging=False)):
            policies = (ByStaleness(Way.CHEAPER), ByStaleness(Way.REMAKE), ByDistance(1.4), ByChoice(seed))
            walk, joules = ran(problem, allowed, policies[which])
            if math.isinf(joules):
                continue
            schedule, best = schedule_of(walk.facts.problem, walk), Incumbent(problem, allowed)
            best.consider(schedule)
            assert not best.rejections.faults, seed
            if not problem.background_storage:
                overhead = simulate(problem, schedule).joules - problem.compute_joules
                assert joules == pytest.approx(overhead, rel=1e-9, abs=1e-9)
            plans += 1
    assert plans >= 30


def test_machine_code_makes_the_same_of_each_choice_of_gaps() -> None:
    compared, (decode, _) = 0, machine_code()
    for seed in range(60):
        problem = mixed_problem(seed)
        tensors = (replace(t, bytes=997 * t.bytes + k) for k, t in enumerate(problem.tensors))  # no ties
        problem = replace(problem, tensors=tuple(tensors), background_storage=False)
        least = minimum_ram_bytes(problem, Limits()).bytes
        limits = Limits(ram_budget_bytes=least + seed % 3 * least // 8)
        walk, joules = ran(problem, limits, ByChoice(seed))
        machine = arrays_of(walk)
        assert decode(machine, math.inf) == pytest.approx(joules, rel=1e-9)
        assert machine.n[STEPS] == walk.n[STEPS]
        compared += math.isfinite(joules) and joules > 0.0
    assert compared >= 20
