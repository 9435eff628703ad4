"""Where to run ops again ahead of time: the stage before a read in which least is at hand.

A chain of reruns needs room for what it goes through, and the stage whose op reads its result is often the
one that has least: between the gradient of a layer's input and that of its weights both are there, and one
stage earlier only the one that they are made from. Which contents are at hand when a stage begins is told
without any plan, by the working set (Denning, "The working set model for program behavior", 1968): what was
read or made shortly before, and will be read shortly after.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import accumulate

from poet.solvers.instance.instance import Instance


def read_in(instance: Instance, stage: int) -> Iterable[int]:
    """Contents that a stage's op reads; after the last op, those that must be in RAM at the end."""
    if stage < len(instance.tasks):
        return instance.tasks[stage].reads
    return (content.number for content in instance.contents if content.ends_in_ram)


def working_set_bytes(instance: Instance, window: int) -> list[int]:
    """Per stage, bytes of what is read from it on and was read or made before it, in ``window`` stages."""
    end = len(instance.tasks)
    change, last = [0] * (end + 2), dict[int, int]()
    for stage in range(end + 1):
        for content in read_in(instance, stage):
            before = last.get(content)
            if before is not None and stage - before <= window:
                change[before + 1] += instance.contents[content].bytes
                change[stage + 1] -= instance.contents[content].bytes
            last[content] = stage
        if stage < end:
            last.update(dict.fromkeys(instance.tasks[stage].outputs, stage))
    return list(accumulate(change))[: end + 1]


def calm_stages(instance: Instance, window: int) -> list[int]:
    """Per stage, that of the ``window`` stages up to it, itself among them, whose working set is smallest.

    Where several are, the last of them. With a window of 1 each stage is its own.
    """
    held_bytes = working_set_bytes(instance, window)
    return [
        min(range(max(0, stage - window + 1), stage + 1), key=lambda calm: (held_bytes[calm], -calm))
        for stage in range(len(held_bytes))
    ]
