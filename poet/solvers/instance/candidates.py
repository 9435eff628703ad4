"""Which optional reruns a model offers: only those that may pay, near the op that needs them.

The *depth* of a rerun is its distance, along producers, from an input of the stage's op. A model
with few slots is a restriction of the problem as it stands; its relaxed form is a bound for all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import accumulate

from poet.problem.schedule import Compute, Schedule
from poet.solvers.instance.instance import Instance

Reruns = Mapping[int, Iterable[int]]
"""Per stage, tasks that may run again before its op."""


def worth_rerunning(instance: Instance) -> frozenset[int]:
    """Tasks that paging does not dominate.

    Where a rerun costs at least as much as writing and reading back everything it makes, page-ins
    right before the next uses can replace it: they hold RAM for a shorter time. With a deadline
    this must hold for seconds too, with an energy budget beside another objective for its joules; a
    limit on storage forbids the argument. Beside background transfers a rerun may hide its idle
    power and a transfer may fail to, which is what is compared then.
    """
    problem, limits = instance.problem, instance.limits
    limited = problem.storage_capacity_bytes is not None or limits.written_budget_bytes is not None
    worth = set()
    for task in instance.tasks:
        if task.last_rerun_stage < 0:
            continue
        costs = [(instance.contents[c].page_in, instance.contents[c].page_out) for c in task.outputs]
        moves = [cost for pair in costs for cost in pair if cost is not None]
        pageable = len(moves) == 2 * len(costs)
        moves_seconds, idle_watts = sum(cost.seconds for cost in moves), problem.idle_watts
        hidden = 0.0 if instance.serial else idle_watts * (task.cost.seconds + moves_seconds)
        cheaper = task.cost.joules - hidden < sum(cost.joules for cost in moves)
        quicker = task.cost.seconds < moves_seconds
        metered = instance.metered_joules_allowed is not None and (
            not instance.serial or task.cost.metered_joules < sum(cost.metered_joules for cost in moves)
        )
        hurried = limits.deadline_seconds is not None and (quicker or not instance.serial)
        if limited or not pageable or cheaper or hurried or metered:
            worth.add(task.number)
    return frozenset(worth)


def candidates(instance: Instance, depth: int | None, *, passes: int = 1) -> dict[int, tuple[int, ...]]:
    """Per stage, the tasks that may run again before its op, in order.

    Args:
        instance: the problem.
        depth: of the longest chain of reruns that ends at what the stage's op reads; ``None``:
            every rerun that may pay, also ahead of the stage that needs it.
        passes: how often a stage may go through its reruns in order.
    """
    worth = worth_rerunning(instance)
    last_use = last_use_stages(instance, worth)
    by_stage = {}
    for stage in range(len(instance.tasks) + 1):
        reachable: Iterable[int] = range(stage)
        if depth is not None:
            reachable = sorted(chains_to(instance, worth, stage, _read_in(instance, stage), depth))
        useful = _useful(instance, worth, last_use, stage, reachable)
        if useful:
            by_stage[stage] = useful * passes
    return by_stage


def _useful(
    instance: Instance, worth: frozenset[int], last_use: list[int], stage: int, reachable: Iterable[int]
) -> tuple[int, ...]:
    """Of the tasks ``reachable``, those whose rerun in ``stage`` may pay."""
    return tuple(
        number
        for number in reachable
        if number in worth
        and number < stage <= instance.tasks[number].last_rerun_stage
        and stage <= max(last_use[c] for c in instance.tasks[number].outputs)
    )


def fullest_stage(instance: Instance, last_use: list[int]) -> int:
    """The op that would run in the most RAM if all were kept; ``last_use``: of `last_use_stages`."""
    end = len(instance.tasks)
    change = [0] * (end + 2)
    for content in instance.contents:
        if last_use[content.number] >= content.birth:
            change[max(content.birth, 0)] += content.bytes
            change[last_use[content.number] + 1] -= content.bytes
    held = list(accumulate(change))
    return max(range(end), key=held.__getitem__)


def _read_in(instance: Instance, stage: int) -> Iterable[int]:
    """Contents that a stage's op reads; after the last op, those that must be in RAM at the end."""
    if stage < len(instance.tasks):
        return instance.tasks[stage].reads
    return (content.number for content in instance.contents if content.ends_in_ram)


def chains_to(
    instance: Instance, worth: frozenset[int], stage: int, contents: Iterable[int], depth: int
) -> set[int]:
    """Tasks worth rerunning before ``stage``'s op that lead within ``depth`` steps to ``contents``."""
    wanted, tasks = set(contents), set[int]()
    for _ in range(depth):
        makers = {instance.contents[c].producer for c in wanted}
        fresh = {
            maker
            for maker in makers
            if maker in worth and maker < stage <= instance.tasks[maker].last_rerun_stage
        } - tasks
        if not fresh:
            break
        tasks |= fresh
        wanted = {c for maker in fresh for c in instance.tasks[maker].rerun_reads}
    return tasks


def last_use_stages(instance: Instance, worth: frozenset[int]) -> list[int]:
    """Per content, the last stage in which something may read it; -1: none."""
    end = len(instance.tasks)
    last = [end if content.ends_in_ram else -1 for content in instance.contents]
    for task in reversed(instance.tasks):
        for content in task.reads:
            last[content] = max(last[content], task.number)
        if task.number in worth:
            again = min(task.last_rerun_stage, max(last[c] for c in task.outputs))
            if again > task.number:
                for content in task.rerun_reads:
                    last[content] = max(last[content], again)
    return last


# --- those of a plan ---


def merged(*parts: Reruns) -> dict[int, tuple[int, ...]]:
    """All reruns of ``parts``, in order within each stage."""
    together: dict[int, set[int]] = {}
    for part in parts:
        for stage, tasks in part.items():
            together.setdefault(stage, set()).update(tasks)
    return {stage: tuple(sorted(tasks)) for stage, tasks in together.items() if tasks}


def reruns_of(instance: Instance, schedule: Schedule) -> dict[int, set[int]]:
    """What ``schedule`` reruns, by stage."""
    number = {task.name: task.number for task in instance.tasks}
    stage, reruns = 0, dict[int, set[int]]()
    for step in schedule:
        if isinstance(step, Compute):
            if number[step.op] == stage:
                stage += 1
            else:
                reruns.setdefault(stage, set()).add(number[step.op])
    return reruns
