"""Which optional reruns a model offers: only those that may pay, near the op that needs them.

The *depth* of a rerun is its distance, along producers, from an input of the stage's op. A model
limited to depth D is a restriction of the problem; ``depth=None`` offers every rerun that may pay
in every stage, also those whose outputs only a later stage uses.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

from poet.solvers.events import Instance, Task


def worth_rerunning(instance: Instance) -> frozenset[int]:
    """Tasks that paging does not dominate.

    Where a rerun costs at least as much as writing and reading back everything it makes, page-ins
    right before the next uses can replace it: they hold RAM for a shorter time. With a deadline
    this must hold for seconds too; a limit on storage forbids the argument. Beside background
    transfers a rerun may hide its idle power, so its own joules alone are compared.
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
        hidden = 0.0 if instance.serial else problem.idle_watts * task.cost.seconds
        cheaper = task.cost.joules - hidden < sum(cost.joules for cost in moves)
        quicker = task.cost.seconds < sum(cost.seconds for cost in moves)
        hurried = limits.deadline_seconds is not None and (quicker or not instance.serial)
        if limited or not pageable or cheaper or hurried:
            worth.add(task.number)
    return frozenset(worth)


@dataclass(frozen=True, slots=True)
class Candidates:
    """What may be rerun, and where.

    Attributes:
        by_stage: per stage, the tasks that may run again before its op, in order.
        complete: whether every rerun that may pay is offered in every stage.
    """

    by_stage: dict[int, tuple[int, ...]]
    complete: bool


def candidates(instance: Instance, depth: int | None, *, passes: int = 1) -> Candidates:
    """The reruns to offer.

    Args:
        instance: the problem.
        depth: of the deepest rerun; ``None``: all.
        passes: how often a stage may go through its reruns in order.
    """
    worth = worth_rerunning(instance)
    last_use = last_use_stages(instance, worth)
    pointless = _Presence(instance, worth, last_use)
    end = len(instance.tasks)
    by_stage, complete = {}, True
    for stage in range(end + 1):
        useful = [
            task.number
            for task in instance.tasks[:stage]
            if task.number in worth
            and stage <= task.last_rerun_stage
            and stage <= max(last_use[c] for c in task.outputs)
            and not pointless.certain(task, stage)
        ]
        if depth is not None:
            near = _near(instance, stage, depth, worth)
            complete = complete and near.issuperset(useful)
            useful = [number for number in useful if number in near]
        if useful:
            by_stage[stage] = tuple(useful) * passes
    return Candidates(by_stage, complete)


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


def _near(instance: Instance, stage: int, depth: int, worth: frozenset[int]) -> set[int]:
    """Tasks worth rerunning that lead within ``depth`` steps to what the stage's op reads."""
    if stage < len(instance.tasks):
        wanted = set(instance.tasks[stage].reads)
    else:
        wanted = {content.number for content in instance.contents if content.ends_in_ram}
    near: set[int] = set()
    for _ in range(depth):
        makers = {instance.contents[c].producer for c in wanted}
        fresh = {maker for maker in makers if maker in worth} - near
        near |= fresh
        wanted = {c for maker in fresh for c in instance.tasks[maker].rerun_reads}
        if not fresh:
            break
    return near


class _Presence:
    """Knows where no memory row can bind, so that everything made is still there."""

    def __init__(self, instance: Instance, worth: frozenset[int], last_use: list[int]) -> None:
        self.instance = instance
        budget = instance.limits.ram_budget_bytes
        end = len(instance.tasks)
        change = [0] * (end + 3)
        for content in instance.contents:
            if last_use[content.number] >= content.birth:
                change[content.birth + 1] += content.bytes
                change[last_use[content.number] + 2] -= content.bytes
        held = list(accumulate(change))  # held[t + 1]: at the first run of op t
        extra = max((_transient_bytes(instance, instance.tasks[k]) for k in worth), default=0)
        tight = []
        for task in instance.tasks:
            unused = sum(instance.contents[c].bytes for c in task.outputs if last_use[c] < task.number)
            first_run = held[task.number + 1] + unused + task.workspace_bytes
            tight.append(budget is not None and max(first_run, held[task.number + 1] + extra) > budget)
        tight.append(budget is not None and held[end + 1] + extra > budget)
        self.tight_before = [0, *accumulate(tight)]  # number of tight stages below an index
        self.present: list[list[int]] = [[content.birth] for content in instance.contents]
        for task in instance.tasks:
            for content_number in task.reads:
                self.present[content_number].append(task.number)

    def certain(self, task: Task, stage: int) -> bool:
        """Whether all outputs of ``task`` may be taken to be in RAM when ``stage`` begins."""
        return all(self._held(content, stage) for content in task.outputs)

    def _held(self, content: int, stage: int) -> bool:
        last = max(moment for moment in self.present[content] if moment < stage)
        return self.tight_before[stage + 1] == self.tight_before[last + 1]


def _transient_bytes(instance: Instance, task: Task) -> int:
    return sum(instance.contents[c].bytes for c in task.outputs) + task.workspace_bytes
