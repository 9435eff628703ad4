"""The least RAM, moment by moment, against its definition."""

from __future__ import annotations

import pytest
from helpers.random_problems import FEATURES, mixed_problem, random_problem

from poet.problem import Limits, Problem
from poet.solvers import has_schedules, minimum_ram_bytes
from poet.solvers.instance.feasibility import least_moments
from poet.solvers.instance.instance import instance_of


def _by_definition(problem: Problem, limits: Limits) -> list[int]:
    """Per moment, the bytes of what is touched and of what is used later and cannot come back."""
    instance = instance_of(problem, limits)
    end = len(instance.tasks)

    def is_stuck(number: int, stage: int) -> bool:
        content = instance.contents[number]
        pageable = content.page_in is not None and (content.starts_stored or content.page_out is not None)
        reads = [task.number for task in instance.tasks if number in task.reads]
        last = max(reads, default=-1)
        if content.ends_in_ram and not reads:
            last = end
        exists = content.starts_in_ram or content.birth >= 0
        remade = content.producer is not None and instance.tasks[content.producer].last_rerun_stage > stage
        return exists and not pageable and not remade and content.birth < stage < last

    found = [sum(each.bytes for each in instance.contents if each.starts_in_ram)]
    for task in instance.tasks:
        held = {*task.reads, *task.outputs}
        held |= {each.number for each in instance.contents if is_stuck(each.number, task.number)}
        found.append(sum(instance.contents[number].bytes for number in held) + task.workspace_bytes)
    return [*found, sum(each.bytes for each in instance.contents if each.ends_in_ram)]


@pytest.mark.parametrize("seed", range(25))
def test_each_moment_holds_what_is_touched_and_what_cannot_come_back(seed: int) -> None:
    for problem in (mixed_problem(seed), random_problem(seed, ops=12, features=FEATURES)):
        for limits in (Limits(), Limits(paging=False), Limits(recompute=False)):
            expected = _by_definition(problem, limits)
            moments = list(least_moments(problem, limits))
            assert [moment.bytes for moment in moments] == expected
            least = minimum_ram_bytes(problem, limits)
            assert least == moments[expected.index(max(expected))]
            for more, is_enough in ((-1, False), (0, True)):
                within = Limits(least.bytes + more, None, limits.recompute, limits.paging)
                assert has_schedules(problem, within) is is_enough
            assert has_schedules(problem, limits)
