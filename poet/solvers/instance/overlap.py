"""Where storage works in the background: write early, read early, inside the same RAM.

A walk writes a tensor when it drops it and reads it right before its use, which is best where
transfers block. Here page-outs move up to where the content was made and page-ins up as far as
RAM allows, so that they run beside compute. What is short is then polished: each free and each
transfer is tried at every place, as long as that makes the step shorter.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from poet.errors import InvalidSchedule
from poet.problem import Limits, Problem
from poet.schedule import Compute, Free, PageIn, PageOut, Schedule, Step
from poet.simulator import simulate

POLISHED_STEPS = 120
"""Of a schedule that is polished, by its square in time. At 0, some small problems miss the optimum."""


def overlap(problem: Problem, schedule: Schedule, ram_budget_bytes: int | None) -> Schedule:
    """``schedule``, which is valid, with its transfers issued as early as its memory allows."""
    return _read_early(problem, _write_early(problem, schedule), ram_budget_bytes)


def polish(problem: Problem, schedule: Schedule, limits: Limits) -> Schedule:
    """``schedule`` with its frees and transfers moved, one after the other, while that saves time.

    Nothing else changes, so joules fall with the seconds, idle power being all that depends on them.
    Schedules of more than `POLISHED_STEPS` come back as they are. The schedule need not keep
    the deadline; all other rules it must keep, and does afterwards.
    """
    if len(schedule) > POLISHED_STEPS:
        return schedule
    patient = replace(limits, deadline_seconds=None, joules_budget=None)
    touched = {op.name: frozenset((*op.inputs, *op.rerun_inputs, *op.outputs)) for op in problem.ops}
    best, improved = schedule, True
    seconds = simulate(problem, best, patient).seconds
    while improved:
        improved = False
        for index in range(len(best)):
            if isinstance(best[index], Compute):
                continue
            shorter = _moved(problem, touched, best, index, patient, seconds)
            if shorter is not None:
                best, seconds = shorter
                improved = True
    return best


_LEAST_SAVING = 1e-9  # relative


def _moved(
    problem: Problem,
    touched: Mapping[str, frozenset[str]],
    schedule: Schedule,
    index: int,
    limits: Limits,
    seconds: float,
) -> tuple[Schedule, float] | None:
    """The shortest schedule with one step elsewhere, and its seconds; ``None``: none takes less."""
    step, rest = schedule[index], schedule[:index] + schedule[index + 1 :]
    best, least = None, seconds * (1 - _LEAST_SAVING)
    for direction in (range(index - 1, -1, -1), range(index + 1, len(schedule))):
        for place in direction:
            passed = rest[place] if place < index else rest[place - 1]
            if _meets(touched, step, passed):
                break
            moved = (*rest[:place], step, *rest[place:])
            try:
                taken = simulate(problem, moved, limits).seconds
            except InvalidSchedule:
                continue  # no room here, perhaps further on
            if taken < least:
                best, least = moved, taken
    return None if best is None else (best, least)


def _meets(touched: Mapping[str, frozenset[str]], step: Step, other: Step) -> bool:
    """Whether ``step``, which is no compute, and ``other`` touch the same tensor."""
    if isinstance(step, Compute):
        return True
    return step.tensor in touched[other.op] if isinstance(other, Compute) else step.tensor == other.tensor


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
