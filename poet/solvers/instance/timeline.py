"""Slots and events: the moments at which a tensor version is made, read or kept."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from poet.solvers.instance.instance import Instance


@dataclass(frozen=True, slots=True)
class Slot:
    """A moment at which ``task`` may run; ``None``: the start or the end of the step.

    ``stage`` is the op before whose first run, or as whose first run, the slot lies.
    """

    stage: int
    task: int | None
    mandatory: bool


class SlotKind(enum.Enum):
    """What a slot means to a content."""

    BIRTH = enum.auto()  # it appears, without a choice
    USE = enum.auto()  # it is read, or must be there at the end
    MAKE = enum.auto()  # an optional rerun makes it again


@dataclass(frozen=True, slots=True)
class Event:
    """A slot in the life of a content."""

    slot: int
    kind: SlotKind
    mandatory: bool


@dataclass(frozen=True, slots=True)
class Timeline:
    """Slots in order, and per content its events in order."""

    instance: Instance
    slots: tuple[Slot, ...]
    events: tuple[tuple[Event, ...], ...]


def timeline_of(instance: Instance, reruns: dict[int, tuple[int, ...]]) -> Timeline:
    """All slots and events where, before each stage's op, the tasks ``reruns[stage]`` may run again."""
    slots = [Slot(-1, None, True)]
    for task in instance.tasks:
        slots += [Slot(task.number, again, False) for again in reruns.get(task.number, ())]
        slots.append(Slot(task.number, task.number, True))
    end = len(instance.tasks)
    slots += [Slot(end, again, False) for again in reruns.get(end, ())]
    slots.append(Slot(end, None, True))
    events: list[list[Event]] = [[] for _ in instance.contents]
    for number, slot in enumerate(slots):
        for content, kind in _meanings(instance, slot):
            events[content].append(Event(number, kind, slot.mandatory))
    for content_ in instance.contents:  # at home in RAM or not, which is the plan's choice
        if content_.home == content_.number and events[content_.number]:
            events[content_.number].insert(0, Event(0, SlotKind.BIRTH, False))
        if content_.comes_home and events[content_.number]:
            events[content_.number].append(Event(len(slots) - 1, SlotKind.USE, False))
    return Timeline(instance, tuple(slots), tuple(_without_tail(life) for life in events))


def _meanings(instance: Instance, slot: Slot) -> list[tuple[int, SlotKind]]:
    if slot.task is None and slot.stage < 0:
        return [(c.number, SlotKind.BIRTH) for c in instance.contents if c.starts_in_ram]
    if slot.task is None:
        return [(c.number, SlotKind.USE) for c in instance.contents if c.ends_in_ram]
    task = instance.tasks[slot.task]
    if not slot.mandatory:
        return [(c, SlotKind.USE) for c in task.rerun_reads] + [(c, SlotKind.MAKE) for c in task.outputs]
    born = (*task.outputs, *task.updated)
    return [(c, SlotKind.USE) for c in task.reads] + [(c, SlotKind.BIRTH) for c in born]


def _without_tail(life: list[Event]) -> tuple[Event, ...]:
    while life and life[-1].kind is SlotKind.MAKE:
        life.pop()
    return tuple(life)
