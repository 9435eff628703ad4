"""The columns of the event model, and the linear expressions over them.

Per tensor version i (`Content`), event m and optional slot σ (see `poet.solvers.instance.instance`):

====== ========== ==================================================================
``K``  binary     K[i,m]: i stays in RAM from event m to event m + 1
``r``  binary     r[σ]: the optional slot's task runs again
``a``  binary     a[i,m]: i is paged in for optional slot m; at mandatory uses 1 - K⁻
``O``  binary     O[i]: i has a copy in storage
``H``  continuous H[σ]: share of the budget kept around slot σ, in large models only
====== ========== ==================================================================

K⁻ and K⁺ are the gaps before and after an event, X its presence: 1 at mandatory events, K⁻ + a at
optional uses, K⁻ + r where an optional run makes i. Where K is 0 or 1, so are r, a and O, which
large models therefore leave continuous.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

from poet.solvers.instance.instance import Content, Event, SlotKind, Timeline

TIGHT_SLOTS = 2500
"""Up to so many, r, a and O are integer columns, which the cuts on memory rows count on; with more, an engine
has too much to branch on."""


class Affine:
    """A linear expression over column numbers; `add` alone changes one."""

    __slots__ = ("constant", "terms")

    def __init__(self, constant: float = 0.0, column: int | None = None) -> None:
        self.constant = constant
        self.terms: dict[int, float] = {} if column is None else {column: 1.0}

    def add(self, other: Affine, factor: float = 1.0) -> Affine:
        """Add ``factor`` times ``other`` in place; returns itself."""
        self.constant += factor * other.constant
        for column, coefficient in other.terms.items():
            together = self.terms.get(column, 0.0) + factor * coefficient
            if together:
                self.terms[column] = together
            else:
                self.terms.pop(column, None)
        return self

    def __add__(self, other: Affine | float) -> Affine:
        return Affine().add(self).add(other if isinstance(other, Affine) else Affine(other))

    def __sub__(self, other: Affine | float) -> Affine:
        return self + -1.0 * other

    def __rsub__(self, other: float) -> Affine:
        return -1.0 * self + other

    def __rmul__(self, factor: float) -> Affine:
        return Affine().add(self, factor)

    def value(self, values: Sequence[float]) -> float:
        """With ``values`` of the columns."""
        return self.constant + sum(factor * values[column] for column, factor in self.terms.items())


class Row(NamedTuple):
    """``expression <= 0``, named by its family."""

    family: str
    expression: Affine


class Column(NamedTuple):
    """A variable between 0 and 1. ``integer``: an engine must choose; ``whole``: so it is in every plan."""

    integer: bool
    whole: bool = True


class EventModel:
    """The program: columns, rows, and what to minimise; laid out by `poet.solvers.event_model.model.build`.

    Attributes:
        columns: in order; families may add some.
        keep: K by (content, event).
        run: r by slot.
        arrive: a by (content, event), for uses.
        stored: O by content.
        held: columns that follow from others, with what they are the value of, in order.
        rows: none, until the families have made them.
        overhead_joules: the objective, in joules above running every op once.
    """

    def __init__(self, timeline: Timeline) -> None:
        self.timeline, self.instance = timeline, timeline.instance
        self.columns: list[Column] = []
        self.tight = len(timeline.slots) <= TIGHT_SLOTS
        self.upper_bytes = _upper_bytes(timeline)
        binding = (self.may_bind(slot) for slot in range(len(timeline.slots)))
        self.bound_up_to = list(accumulate(binding, initial=0))  # slots with a memory row, so far
        self.held: list[tuple[int, Affine]] = []
        self.keep: dict[tuple[int, int], Affine] = {}
        self.run: dict[int, Affine] = {}
        self.arrive: dict[tuple[int, int], Affine] = {}
        for number, slot in enumerate(timeline.slots):
            self.run[number] = Affine(1.0) if slot.mandatory else self.add_column(integer=self.tight)
        for content in self.instance.contents:
            self._add_life(content)
        self.stored = tuple(self._stored(content) for content in self.instance.contents)
        self.rows: tuple[Row, ...] = ()
        self.overhead_joules = Affine()

    def add_column(self, *, integer: bool, whole: bool = True) -> Affine:
        """A new column."""
        self.columns.append(Column(integer, whole))
        return Affine(0.0, len(self.columns) - 1)

    def _stored(self, content: Content) -> Affine:
        """O of a version: a column, or a constant where nothing is to decide."""
        if content.starts_stored or content.ends_stored:
            return Affine(1.0)
        if content.comes_home and content.page_out is not None and self.timeline.events[content.number]:
            return self.add_column(integer=self.tight)
        life = range(len(self.timeline.events[content.number]))
        arrivals = [self.arrive.get((content.number, index), Affine()) for index in life]
        may_arrive = any(a.terms or a.constant for a in arrivals)
        if content.page_out is None or content.page_in is None or not may_arrive:
            return Affine(0.0)
        return self.add_column(integer=self.tight)

    def _add_life(self, content: Content) -> None:
        """Add K and a of all events of a tensor version."""
        life, pageable = self.timeline.events[content.number], content.page_in is not None
        certain = False
        for index, event in enumerate(life):
            before, key = self.gap_before(content.number, index), (content.number, index)
            if event.kind is SlotKind.USE and event.mandatory:
                self.arrive[key] = 1.0 - before
            elif event.kind is SlotKind.USE:
                self.arrive[key] = self.add_column(integer=self.tight) if pageable else Affine()
            certain = certain or event.mandatory
            if index + 1 < len(life):
                following = life[index + 1]
                after, until = event.slot + 1, following.slot + (not following.mandatory)
                certain = certain and self.bound_up_to[after] >= self.bound_up_to[until]
                pinned = self._pinned_gap(content, index)
                certain = certain if pinned is None else pinned
                is_open = not certain and pinned is None
                self.keep[key] = self.add_column(integer=True) if is_open else Affine(float(certain))

    def _pinned_gap(self, content: Content, index: int) -> bool | None:
        """Whether a pin holds ``content`` in RAM, or out of it, through the gap after an event."""
        life = self.timeline.events[content.number]
        if content.dropped:
            between = range(life[index].slot + 1, life[index + 1].slot)
            return False if any(self.timeline.slots[slot].mandatory for slot in between) else None
        mandatory = [number for number, event in enumerate(life) if event.mandatory] if content.kept else []
        return True if mandatory and mandatory[0] <= index < mandatory[-1] else None

    def may_bind(self, slot: int) -> bool:
        """Whether ``slot`` has a memory row: the budget could be exceeded there if nothing were freed."""
        budget = self.instance.limits.ram_budget_bytes
        return budget is not None and self.upper_bytes[slot] > budget

    def gap_before(self, content: int, index: int) -> Affine:
        """K⁻ of an event."""
        return self.keep[content, index - 1] if index > 0 else Affine()

    def gap_after(self, content: int, index: int) -> Affine:
        """K⁺ of an event."""
        return self.keep.get((content, index)) or Affine()

    def presence(self, content: int, index: int) -> Affine:
        """X of an event."""
        event = self.timeline.events[content][index]
        if event.mandatory:
            return Affine(1.0)
        if event.kind is SlotKind.BIRTH:
            return self.home(content)
        there = self.gap_before(content, index) + (self.arrive.get((content, index)) or Affine())
        return there.add(self.run[event.slot]) if event.kind is SlotKind.MAKE else there

    def home(self, content: int) -> Affine:
        """h: whether a tensor is in RAM between steps, its first version ``content`` held from the start."""
        return self.keep.get((content, 0)) or Affine()

    def away(self, content: Content) -> Affine:
        """1 - h: whether a tensor is in storage between steps."""
        return 1.0 - self.home(content.home or 0)

    def wanted(self, content: Content, index: int) -> Affine:
        """Whether an optional use takes place: its slot's run, or at the end that the tensor comes home."""
        event = self.timeline.events[content.number][index]
        if content.comes_home and event.slot == len(self.timeline.slots) - 1:
            return self.home(content.home or 0)
        return self.run[event.slot]

    def readable(self, content: Content) -> Affine:
        """O of a version that may be paged in; else 0."""
        if content.page_in is None:
            return Affine()
        stored = self.stored[content.number]
        if content.home != content.number:
            return stored
        away = self.away(content)
        if not self.instance.limits.paging:
            return away
        return stored if content.starts_stored else away.add(stored)

    def lives(self) -> Iterator[tuple[Content, int, Event]]:
        """Every event with its content and its index."""
        for content in self.instance.contents:
            for index, event in enumerate(self.timeline.events[content.number]):
                yield content, index, event


def own_bytes(timeline: Timeline, number: int) -> int:
    """What a slot holds beside the contents that its events count: workspace, outputs never used."""
    slot = timeline.slots[number]
    if slot.task is None:
        return 0
    task, contents = timeline.instance.tasks[slot.task], timeline.instance.contents
    unused = [c for c in task.outputs if timeline.events[c][-1].slot < number]
    return task.workspace_bytes + sum(contents[c].bytes for c in unused)


def _upper_bytes(timeline: Timeline) -> list[int]:
    """Per slot, RAM if everything is kept from its first event to its last."""
    change = [0] * (len(timeline.slots) + 1)
    for content, life in zip(timeline.instance.contents, timeline.events, strict=True):
        if life:
            change[life[0].slot] += content.bytes
            change[life[-1].slot + 1] -= content.bytes
    held = list(accumulate(change))
    upper = []
    for number, slot in enumerate(timeline.slots):
        again = 0
        if slot.task is not None and not slot.mandatory:
            outputs = timeline.instance.tasks[slot.task].outputs
            again = sum(timeline.instance.contents[c].bytes for c in outputs)
        upper.append(held[number] + again + own_bytes(timeline, number))
    return upper
