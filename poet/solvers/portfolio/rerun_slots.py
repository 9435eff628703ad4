"""Which reruns an event model is offered: chains of producers that lead to what a solution or a plan remakes.

The windows relaxation shows cheaply which tensor versions are worth remaking, and before which op; not by
which reruns. For each of them a model gets slots for the chain of reruns that leads
there, in that stage or in the last earlier one in which the producer may run. So it stays small.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Mapping

from poet.problem.schedule import Compute, Schedule
from poet.solvers.bounds.relaxation import Bound
from poet.solvers.engines.program import value
from poet.solvers.instance.candidates import chains_to, worth_rerunning
from poet.solvers.instance.instance import Instance

_ROUNDING = 1e-6  # of a version; the relaxation's solution remakes what is more

Reruns = Mapping[int, Iterable[int]]
"""Per stage, tasks that may run again before its op."""


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


def offered_by(instance: Instance, bound: Bound, chain: int) -> dict[int, set[int]]:
    """Per stage, reruns that remake what the solution of the windows relaxation remakes before its op.

    Chains of ``chain`` producers in any case, since the plan will differ from the solution. Along chains of
    twice that, what the solution remakes in the same stretch of time: so the first backward op that misses a
    tensor of a segment of the forward pass is offered the whole segment (Chen et al. 2016).
    """
    remade = _Remade(instance, bound)
    worth = worth_rerunning(instance)
    offered = {}
    for stage, contents in remade.by_stage.items():
        tasks = chains_to(instance, worth, stage, contents, chain)
        wanted, segment = contents, set[int]()
        for _ in range(2 * chain):
            makers = {instance.contents[c].producer for c in wanted}
            fresh = {
                maker
                for maker in makers
                if maker in worth and maker < stage <= instance.tasks[maker].last_rerun_stage
            } - segment
            if not fresh:
                break
            segment |= fresh
            reads = {c for maker in fresh for c in instance.tasks[maker].rerun_reads}
            wanted = {c for c in reads if remade.around(c, stage)}
        offered[stage] = tasks | segment
    return offered


class _Remade:
    """Which versions the solution remakes, between which fixed moments."""

    def __init__(self, instance: Instance, bound: Bound) -> None:
        values, least = bound.answer.values, _ROUNDING
        self.by_stage: dict[int, set[int]] = {}
        self.ends: dict[int, list[int]] = {}
        self.made: dict[int, list[bool]] = {}
        for segment in bound.relaxation.segments if values is not None else ():
            assert values is not None
            made = any(value(column, values) > least for column in segment.made)
            self.ends.setdefault(segment.content, []).append(segment.until)
            self.made.setdefault(segment.content, []).append(made)
            producer = instance.contents[segment.content].producer
            if made and producer is not None:  # the last chance may come earlier than the use
                stage = min(segment.until, instance.tasks[producer].last_rerun_stage)
                self.by_stage.setdefault(stage, set()).add(segment.content)

    def around(self, content: int, stage: int) -> bool:
        """Whether the solution remakes ``content`` between the fixed moments around ``stage``.

        True after the last fixed moment, of which the solution's segments say nothing.
        """
        ends = self.ends.get(content, [])
        position = bisect.bisect_left(ends, stage)
        return position == len(ends) or self.made[content][position]
