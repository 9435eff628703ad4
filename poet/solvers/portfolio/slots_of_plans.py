"""Rerun slots of the exact event model: chains that lead to what a relaxed solution or a plan recomputes.

The relaxed event model shows cheaply which tensor versions are worth remaking, and before which op; not
by which reruns. For each of them the exact model gets slots for the chain of reruns that leads there. So
it stays small enough to be solved to optimality, while the relaxed model bounds what any other slots
could give.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from poet.schedule import Compute, Schedule
from poet.solvers.event_model.decisions import EventModel
from poet.solvers.event_model.model import is_chosen
from poet.solvers.instance.candidates import calm_stages, chains_to, worth_rerunning
from poet.solvers.instance.instance import Instance

Reruns = Mapping[int, Iterable[int]]
"""Per stage, tasks that may run again before its op."""


def merged(*parts: Reruns) -> dict[int, tuple[int, ...]]:
    """All reruns of ``parts``, in order within each stage."""
    together: dict[int, set[int]] = {}
    for part in parts:
        for stage, tasks in part.items():
            together.setdefault(stage, set()).update(tasks)
    return {stage: tuple(sorted(tasks)) for stage, tasks in together.items() if tasks}


def followed_by(path: Mapping[int, tuple[int, ...]], others: Reruns) -> dict[int, tuple[int, ...]]:
    """Per stage, the reruns of ``path`` in their order, a task as often as it is there; then ``others``."""
    after = merged(others)
    return {stage: path.get(stage, ()) + after.get(stage, ()) for stage in sorted({*path, *after})}


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


def suggested(
    model: EventModel, values: Sequence[float], *, chain: int, window: int = 1
) -> dict[int, set[int]]:
    """Per stage, chains of up to ``chain`` reruns that lead to what a relaxed solution remakes in it, and to
    what it remakes in another whose calmest stage it is, of the ``window`` stages up to that.
    """
    timeline, instance = model.timeline, model.timeline.instance
    remade: dict[int, set[int]] = {}
    for (content, index), ahead in model.eager.items():
        if is_chosen(ahead, values):
            stage = timeline.slots[timeline.events[content][index].slot].stage
            producer = instance.contents[content].producer or 0  # whose last chance may come earlier
            stage = min(stage, instance.tasks[producer].last_rerun_stage)
            remade.setdefault(stage, set()).add(content)
    for number, run in model.run.items():
        slot = timeline.slots[number]
        if slot.task is not None and not slot.mandatory and is_chosen(run, values):
            remade.setdefault(slot.stage, set()).update(instance.tasks[slot.task].outputs)
    calm = calm_stages(instance, window)
    for stage, contents in tuple(remade.items()):
        earlier = {c for c in contents if instance.contents[c].birth < calm[stage] < stage}
        if earlier:
            remade.setdefault(calm[stage], set()).update(earlier)
    worth = worth_rerunning(instance)
    return {stage: chains_to(instance, worth, stage, contents, chain) for stage, contents in remade.items()}
