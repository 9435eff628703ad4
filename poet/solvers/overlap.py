"""Where storage works in the background: write early, read early, inside the same RAM.

A walk writes a tensor when it drops it and reads it right before its use, which is best where
transfers block. Here page-outs move up to where the content was made and page-ins up as far as
RAM allows, so that they run beside compute.
"""

from __future__ import annotations

import math

from poet.problem import Problem
from poet.schedule import Compute, Free, PageIn, PageOut, Schedule, Step
from poet.simulator import simulate


def overlap(problem: Problem, schedule: Schedule, ram_budget_bytes: int | None) -> Schedule:
    """``schedule``, which is valid, with its transfers issued as early as its memory allows."""
    return _read_early(problem, _write_early(problem, schedule), ram_budget_bytes)


def _write_early(problem: Problem, schedule: Schedule) -> Schedule:
    """Each page-out right after the op that made the content."""
    updates = {op.name: op.updates for op in problem.ops}
    outputs = {op.name: op.outputs for op in problem.ops}
    made_at: dict[str, int] = {}
    after: list[list[Step]] = [[] for _ in range(len(schedule) + 1)]
    ran: set[str] = set()
    for index, step in enumerate(schedule, start=1):
        if isinstance(step, Compute):
            made = outputs[step.op] if step.op in ran else (*outputs[step.op], *updates[step.op])
            ran.add(step.op)
            made_at.update(dict.fromkeys(made, index))
            after[index].append(step)
        elif isinstance(step, PageOut):
            after[made_at.get(step.tensor, 0)].append(step)
        else:
            made_at.update({step.tensor: index} if isinstance(step, PageIn) else {})
            after[index].append(step)
    return tuple(step for steps in after for step in steps)


def _read_early(problem: Problem, schedule: Schedule, ram_budget_bytes: int | None) -> Schedule:
    """Each page-in before as many computes as there is room for, in the order of the page-ins."""
    sizes = {tensor.name: problem.aligned_bytes(tensor.bytes) for tensor in problem.tensors}
    budget = math.inf if ram_budget_bytes is None else ram_budget_bytes
    trace = simulate(problem, schedule)
    ordered: list[tuple[Step, int]] = []
    last_moved = 0  # transfers keep their order: the engine serves them one at a time
    for step, moment in zip(schedule, trace.moments, strict=True):
        place = len(ordered)
        if isinstance(step, PageIn):
            size = sizes[step.tensor]
            while place > last_moved and _may_pass(step, ordered[place - 1][0]):
                if ordered[place - 1][1] + size > budget:
                    break
                place -= 1
            for index in range(place, len(ordered)):
                ordered[index] = (ordered[index][0], ordered[index][1] + size)
        if isinstance(step, PageIn | PageOut):
            ordered.insert(place, (step, moment.ram_bytes))
            last_moved = place + 1
        else:
            ordered.append((step, moment.ram_bytes))
    return tuple(step for step, _ in ordered)


def _may_pass(read: PageIn, earlier: Step) -> bool:
    """Whether ``read`` may be issued before ``earlier``."""
    if isinstance(earlier, Free):
        return earlier.tensor != read.tensor
    return isinstance(earlier, Compute)
