"""A plan with one alternative given back: its ops in the forms that they have without it."""

from __future__ import annotations

from poet.problem import Alternative, Problem
from poet.schedule import Compute, Free, PageIn, PageOut, Schedule


def in_own_form(problem: Problem, alternative: Alternative, schedule: Schedule) -> Schedule | None:
    """``schedule`` of a problem in which ``alternative`` is taken as one in which it is not.

    What its ops read in the place of one tensor is not made, and that tensor is held as long. ``None`` where
    that is not all there is to it: ops that are left out, several such tensors, transfers or reruns.
    """
    own = {op.name: op for op in problem.ops}
    known = {tensor.name for tensor in problem.tensors}
    new = {tensor.name for tensor in alternative.tensors} - known
    if alternative.omits:
        return None
    if not new:
        return schedule
    instead = {
        name for op in alternative.ops if new & {*op.inputs} for name in {*own[op.name].inputs} - {*op.inputs}
    }
    if len(new) > 1 or len(instead) != 1:
        return None
    (short,), (long,) = new, instead
    makers = [op.name for op in problem.ops if long in op.outputs]
    runs = [step.op for step in schedule if isinstance(step, Compute) and step.op in makers]
    moved = any(isinstance(step, PageIn | PageOut) and step.tensor in (short, long) for step in schedule)
    if moved or len(runs) != 1:
        return None
    freed = [index for index, step in enumerate(schedule) if step in (Free(short), Free(long))]
    last = freed[-1] if len(freed) == 2 else None
    steps: list[Compute | Free | PageIn | PageOut] = []
    for index, step in enumerate(schedule):
        if index == last:
            steps.append(Free(long))
        elif index not in freed:
            steps.append(step)
    return tuple(steps)
