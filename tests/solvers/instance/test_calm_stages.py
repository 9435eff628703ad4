"""Where chains of reruns are offered ahead of time."""

from __future__ import annotations

from itertools import pairwise

import pytest
from helpers.random_problems import dear_storage, mixed_problem

from poet.problem import Limits, Problem
from poet.solvers import minimum_ram_bytes
from poet.solvers.instance.candidates import calm_stages, candidates, working_set_bytes, worth_rerunning
from poet.solvers.instance.instance import Instance, instance_of

WINDOWS = (1, 2, 4, 9)


def instances() -> list[Instance]:
    problems: list[Problem] = [mixed_problem(seed) for seed in range(10)]
    problems += [dear_storage(seed, layers=4) for seed in range(3)]
    budgets = [minimum_ram_bytes(problem).bytes for problem in problems]
    return [
        instance_of(problem, Limits(ram_budget_bytes=budget))
        for problem, budget in zip(problems, budgets, strict=True)
    ]


def at_hand_bytes(instance: Instance, stage: int, window: int) -> int:
    """By definition: what has a moment before ``stage`` and one from it on, next to each other and near."""
    total = 0
    for content in instance.contents:
        moments = sorted(
            {
                task.number
                for task in instance.tasks
                if content.number in task.outputs or content.number in task.reads
            }
            | ({len(instance.tasks)} if content.ends_in_ram else set())
        )
        for before, after in pairwise(moments):
            if before < stage <= after and after - before <= window:
                total += content.bytes
    return total


@pytest.mark.parametrize("window", WINDOWS)
def test_the_working_set_is_what_its_definition_says(window: int) -> None:
    for instance in instances():
        stages = range(len(instance.tasks) + 1)
        assert working_set_bytes(instance, window) == [
            at_hand_bytes(instance, stage, window) for stage in stages
        ]


@pytest.mark.parametrize("window", WINDOWS)
def test_the_calmest_stage_is_near_and_has_the_smallest_working_set(window: int) -> None:
    for instance in instances():
        held = working_set_bytes(instance, window)
        for stage, calm in enumerate(calm_stages(instance, window)):
            assert stage - window < calm <= stage
            assert held[calm] == min(held[max(0, stage - window + 1) : stage + 1])
            assert all(held[later] > held[calm] for later in range(calm + 1, stage + 1))


def test_without_a_window_chains_are_offered_where_they_are_read_alone() -> None:
    for instance in instances():
        assert calm_stages(instance, 1) == list(range(len(instance.tasks) + 1))
        assert candidates(instance, 3) == candidates(instance, 3, window=1)


def test_chains_are_offered_ahead_as_well_and_all_may_run_there() -> None:
    more = 0
    for instance in instances():
        here, ahead = candidates(instance, 3), candidates(instance, 3, window=8)
        worth, calm = worth_rerunning(instance), calm_stages(instance, 8)
        for stage, tasks in here.items():
            assert set(tasks) <= set(ahead[stage])
        for stage, tasks in ahead.items():
            assert all(task in worth and task < stage for task in tasks)
            assert all(stage <= instance.tasks[task].last_rerun_stage for task in tasks)
            new = set(tasks) - set(here.get(stage, ()))
            assert not new or any(calm[later] == stage for later in range(stage + 1, len(calm)))
            more += len(new)
    assert more
