"""The event model: which tensor versions stay in RAM through which gaps, as a mixed-integer program; from
column values to a schedule, and back to where an engine may begin.
"""

from __future__ import annotations

import logging
from collections.abc import Container, Sequence

import numpy as np

from poet.problem.homes import stored_between_steps, undecided
from poet.problem.schedule import Compute, Free, PageIn, PageOut, Schedule, Step
from poet.solvers.engines.program import Matrix
from poet.solvers.event_model.decisions import Affine, EventModel, Row
from poet.solvers.event_model.families import (
    CUTS,
    FAMILIES,
    Family,
    packing,
    spent_on_runs,
    spent_on_transfers,
)
from poet.solvers.instance.instance import Content, Event, SlotKind, Timeline

_log = logging.getLogger(__name__)


def build(timeline: Timeline, *, families: tuple[Family, ...] = FAMILIES + CUTS) -> EventModel:
    """The program over ``timeline``, made of ``families``."""
    model = EventModel(timeline)
    rows = [
        Row(family.__name__, expression)
        for family in families
        for expression in family(model)
        if expression.terms or expression.constant > 0.0
    ]
    if model.tight and not model.held:
        memory_rows = [row.expression for row in rows if row.family == "memory"]
        rows += [Row("packing", cut) for cut in packing(memory_rows)]
    model.rows = tuple(rows)
    model.overhead_joules = spent_on_runs(model, lambda cost: cost.joules)
    model.overhead_joules.add(spent_on_transfers(model, lambda cost: cost.joules))
    _log.info(
        "event model: %d slots for reruns, %d columns, %d rows",
        sum(not slot.mandatory for slot in timeline.slots), len(model.columns), len(rows),
    )  # fmt: skip
    return model


def matrix_of(model: EventModel, start: Sequence[float] | None = None) -> Matrix:
    """``model`` as engines see it, its objective in joules above running every op once.

    Args:
        model: the program.
        start: values of its columns to begin with.
    """
    count = len(model.columns)
    expressions = [row.expression for row in model.rows]
    sizes = [len(expression.terms) for expression in expressions]
    costs = np.zeros(count)
    for column, joules in model.overhead_joules.terms.items():
        costs[column] = joules
    return Matrix(
        costs=costs,
        offset=model.overhead_joules.constant,
        rows=np.repeat(np.arange(len(sizes), dtype=np.int64), sizes),
        columns=np.array([c for expression in expressions for c in expression.terms], dtype=np.int64),
        factors=np.array(
            [f for expression in expressions for f in expression.terms.values()], dtype=np.float64
        ),
        at_most=np.array([-expression.constant for expression in expressions], dtype=np.float64),
        integer=np.array([column.integer for column in model.columns], dtype=np.bool_),
        whole=np.array([column.whole for column in model.columns], dtype=np.bool_),
        start=None if start is None else np.array(start, dtype=np.float64),
    )


# --- from values to a schedule ---

_ENGINE_TOLERANCE = 1e-4


def is_chosen(expression: Affine, values: Sequence[float]) -> bool:
    """Whether ``expression`` is 1, within an engine's tolerance."""
    return expression.value(values) > 1.0 - _ENGINE_TOLERANCE


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


# --- from a schedule to values ---


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
        before = index > 0 and model.keep[content, index - 1].value(values) > 0.5
        gap = model.keep.get((content, index))
        after = gap is not None and gap.value(values) > 0.5
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
        values[column] = min(max(0.0, share.value(values)), 1.0)
    return tuple(values)


def _set(values: list[float], expression: Affine, chosen: bool) -> None:
    for column in expression.terms:
        values[column] = float(chosen)


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
