"""From column values to a schedule."""

from __future__ import annotations

from collections.abc import Sequence

from poet.schedule import Compute, Free, PageIn, PageOut, Schedule, Step
from poet.solvers.event_model.affine import Affine
from poet.solvers.event_model.model import EventModel
from poet.solvers.instance.instance import Content
from poet.solvers.instance.timeline import Event, SlotKind, Timeline

_ENGINE_TOLERANCE = 1e-4


def is_chosen(expression: Affine, values: Sequence[float]) -> bool:
    """Whether ``expression`` is 1, within an engine's tolerance."""
    value = expression.constant + sum(f * values[column] for column, f in expression.terms.items())
    return value > 1.0 - _ENGINE_TOLERANCE


def schedule_of(model: EventModel, values: Sequence[float]) -> Schedule:
    """The schedule that the column ``values`` describe.

    Values are rounded before they are read (an engine's 1 may be 0.9999999); what is chosen in part,
    as runs and copies that cost nothing may be, is not chosen. Nothing is repaired: whether the steps
    make a valid schedule is for the simulator to judge.
    """
    return _Emission(model, values).schedule()


class _Emission:
    def __init__(self, model: EventModel, values: Sequence[float]) -> None:
        self.model, self.values = model, values
        self.timeline: Timeline = model.timeline
        self.contents = model.timeline.instance.contents
        self.steps: list[Step] = []
        self.end = len(self.timeline.slots) - 1
        self.in_ram = {content.number for content in self.contents if content.starts_in_ram}
        self.at_home = {c.number for c in self.contents if c.home is not None and self._kept(c.home, 0)}
        self.in_ram |= {number for number in self.at_home if self.contents[number].home == number}

    def chosen(self, expression: Affine) -> bool:
        return is_chosen(expression, self.values)

    def schedule(self) -> Schedule:
        at_slot: list[list[tuple[Content, int, Event]]] = [[] for _ in self.timeline.slots]
        for content in self.contents:
            for index, event in enumerate(self.timeline.events[content.number]):
                at_slot[event.slot].append((content, index, event))
        for number, here in enumerate(at_slot):
            self._slot(number, here)
        return tuple(self.steps)

    def _slot(self, number: int, here: list[tuple[Content, int, Event]]) -> None:
        slot = self.timeline.slots[number]
        runs = self.chosen(self.model.run[number])
        for content, index, event in here:
            comes_home = content.comes_home and number == self.end
            wanted = runs or self._kept(content.number, index)
            wanted = content.number in self.at_home if comes_home else wanted
            if event.kind is SlotKind.USE and wanted and content.number not in self.in_ram:
                self.steps.append(PageIn(content.tensor))
                self.in_ram.add(content.number)
        made: list[int] = []
        if slot.task is not None and runs:
            task = self.timeline.instance.tasks[slot.task]
            self.steps.append(Compute(task.name))
            made += task.outputs
            if slot.mandatory:
                made += task.updated
                self.in_ram -= {c for c in task.reads if self.contents[c].death == task.number}
            self.in_ram.update(made)
        for content, index, event in here:
            if event.kind is SlotKind.BIRTH:
                self._store(content)
            if content.number in self.in_ram and not self._kept(content.number, index):
                self._free(content, number)
        for content_number in made:
            if self.timeline.events[content_number][-1].slot < number:
                self._free(self.contents[content_number], number)

    def _kept(self, content: int, index: int) -> bool:
        gap = self.model.keep.get((content, index))
        return gap is not None and self.chosen(gap)

    def _store(self, content: Content) -> None:
        away = content.home == content.number and content.number not in self.at_home
        if not (content.starts_stored or away) and self.chosen(self.model.stored[content.number]):
            self.steps.append(PageOut(content.tensor))

    def _free(self, content: Content, slot: int) -> None:
        stays = content.ends_in_ram or (content.comes_home and content.number in self.at_home)
        if stays and slot == self.end:
            return
        self.steps.append(Free(content.tensor))
        self.in_ram.remove(content.number)
