"""A schedule as column values: where an engine may begin, or continue after a smaller model."""

from __future__ import annotations

from collections.abc import Container

from poet.homes import stored_between_steps, undecided
from poet.schedule import Compute, Free, PageIn, Schedule
from poet.solvers.event_model.affine import Affine
from poet.solvers.event_model.model import EventModel
from poet.solvers.instance.timeline import SlotKind, Timeline


def values_of(model: EventModel, schedule: Schedule) -> tuple[float, ...] | None:
    """Column values of the plan in the model that does what ``schedule`` does.

    Page-ins before a use count at the use. ``None`` where the schedule reruns an op at a moment for
    which the model has no slot.
    """
    problem = model.timeline.instance.problem
    away = stored_between_steps(problem, schedule, undecided(problem))
    placed = _placed(model.timeline, schedule, away)
    if placed is None:
        return None
    runs, held = placed
    values = [0.0] * len(model.columns)
    for slot, run in model.run.items():
        _set(values, run, slot in runs)
    for key, kept in model.keep.items():
        _set(values, kept, key in held)
    stored: set[int] = set()
    for (content, index), arrival in model.arrive.items():
        event = model.timeline.events[content][index]
        if event.kind is SlotKind.MAKE:
            continue
        before = index > 0 and _value(values, model.keep[content, index - 1]) > 0.5
        gap = model.keep.get((content, index))
        after = gap is not None and _value(values, gap) > 0.5
        wanted = event.mandatory or after or event.slot in runs
        what = model.timeline.instance.contents[content]
        if what.comes_home and event.slot == len(model.timeline.slots) - 1:
            wanted = what.tensor not in away
        if wanted and not before:
            if what.home != content or what.tensor not in away:
                stored.add(content)
            if not event.mandatory:
                _set(values, arrival, True)
    for what in model.timeline.instance.contents:
        if what.comes_home and what.tensor in away:
            stored.add(what.number)
    for content, copy in enumerate(model.stored):
        _set(values, copy, content in stored)
    for column, share in model.held:
        values[column] = min(max(0.0, _value(values, share)), 1.0)
    return tuple(values)


def _set(values: list[float], expression: Affine, chosen: bool) -> None:
    for column in expression.terms:
        values[column] = float(chosen)


def _value(values: list[float], expression: Affine) -> float:
    return expression.constant + sum(factor * values[column] for column, factor in expression.terms.items())


def _placed(
    timeline: Timeline, schedule: Schedule, away: Container[str]
) -> tuple[set[int], set[tuple[int, int]]] | None:
    """The slots that run, and the (content, event) gaps through which the content stays in RAM."""
    placement = _Placement(timeline, away)
    for step in schedule:
        if isinstance(step, Compute):
            slot = placement.slot_of(step.op)
            if slot is None:
                return None
            placement.compute(slot)
        elif isinstance(step, Free | PageIn):
            placement.move(step)
    placement.go_to(len(timeline.slots) - 1)
    placement.pass_slot()
    return placement.runs, placement.held


class _Placement:
    """Reads a schedule along the slots of a timeline."""

    def __init__(self, timeline: Timeline, away: Container[str]) -> None:
        self.timeline, self.contents = timeline, timeline.instance.contents
        self.tasks = {task.name: task for task in timeline.instance.tasks}
        self.events: list[list[tuple[int, int]]] = [[] for _ in timeline.slots]
        for content, life in enumerate(timeline.events):
            for index, event in enumerate(life):
                self.events[event.slot].append((content, index))
        self.slots_of: dict[tuple[int, int | None], list[int]] = {}
        for number, slot in enumerate(timeline.slots):
            self.slots_of.setdefault((slot.stage, slot.task), []).append(number)
        self.version = {content.tensor: content for content in self.contents if content.version == 0}
        self.in_ram = {
            content.number
            for content in self.contents
            if content.starts_in_ram or (content.home == content.number and content.tensor not in away)
        }
        self.arriving: set[int] = set()
        self.open_gaps: dict[int, int] = {}
        self.position = self.stage = 0
        self.runs: set[int] = set()
        self.held: set[tuple[int, int]] = set()
        self.pass_slot()

    def slot_of(self, op: str) -> int | None:
        """The next slot at which ``op`` may run."""
        here = self.slots_of.get((self.stage, self.tasks[op].number), ())
        return next((slot for slot in here if slot >= self.position), None)

    def go_to(self, slot: int) -> None:
        """Pass the slots before ``slot``, none of which runs."""
        while self.position < slot:
            self.pass_slot()
        self.in_ram |= self.arriving
        self.arriving.clear()

    def compute(self, slot: int) -> None:
        self.go_to(slot)
        place = self.timeline.slots[slot]
        task = self.timeline.instance.tasks[place.task or 0]
        made = (*task.outputs, *task.updated) if place.mandatory else task.outputs
        self.stage += place.mandatory
        gone = {c for c in task.reads if place.mandatory and self.contents[c].death == task.number}
        for content in gone & self.open_gaps.keys():
            self.held.add((content, self.open_gaps.pop(content)))
        self.in_ram = (self.in_ram - gone) | set(made)
        self.version.update({self.contents[c].tensor: self.contents[c] for c in made})
        self.runs.add(slot)
        self.pass_slot()

    def pass_slot(self) -> None:
        for content, index in self.events[self.position]:
            if content in self.open_gaps:
                self.held.add((content, self.open_gaps.pop(content)))
            if content in self.in_ram:
                self.open_gaps[content] = index
        self.position += 1

    def move(self, step: Free | PageIn) -> None:
        content = self.version[step.tensor].number
        if isinstance(step, PageIn):
            self.arriving.add(content)
        else:
            self.in_ram.discard(content)
            self.arriving.discard(content)
            self.open_gaps.pop(content, None)
