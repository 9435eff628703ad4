"""The event model: which contents stay in RAM through which gaps, as a mixed-integer program.

Decisions, per content i, event m and optional slot σ (see `poet.solvers.events`):

====== ========== ==================================================================
``K``  binary     K[i,m]: i stays in RAM from event m to event m + 1
``r``  binary     r[σ]: the optional slot's task runs again
``a``  continuous a[i,m]: i is paged in for optional slot m; at mandatory uses 1 - K⁻
``O``  continuous O[i]: i has a copy in storage
====== ========== ==================================================================

K⁻ and K⁺ are the gaps before and after an event, X its presence: 1 at mandatory events, K⁻ + a at
optional uses, K⁻ + r where an optional run makes i. Every row carries the name of its family.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import accumulate

from poet.solvers.events import Content, Event, Kind, Timeline


class Affine:
    """A linear expression over column numbers."""

    __slots__ = ("constant", "terms")

    def __init__(self, constant: float = 0.0, column: int | None = None) -> None:
        self.constant = constant
        self.terms: dict[int, float] = {} if column is None else {column: 1.0}

    def add(self, other: Affine, factor: float = 1.0) -> Affine:
        """Add ``factor`` times ``other`` in place; returns itself."""
        self.constant += factor * other.constant
        for column, coefficient in other.terms.items():
            self.terms[column] = self.terms.get(column, 0.0) + factor * coefficient
        return self


def total(*parts: tuple[float, Affine]) -> Affine:
    """The sum of ``factor * expression``."""
    result = Affine()
    for factor, part in parts:
        result.add(part, factor)
    return result


@dataclass(frozen=True, slots=True)
class Row:
    """``expression <= 0``, named by its family."""

    family: str
    expression: Affine


@dataclass(frozen=True, slots=True)
class Column:
    """A variable between 0 and 1, named by its kind and its indices."""

    name: str
    integer: bool


@dataclass(frozen=True, slots=True)
class Model:
    """The program: columns, rows, and what to minimise.

    Attributes:
        keep: K by (content, event).
        run: r by slot.
        arrive: a by (content, event), for uses.
        stored: O by content.
        overhead_joules: the objective, in joules above running every op once.
    """

    timeline: Timeline
    columns: tuple[Column, ...]
    keep: dict[tuple[int, int], Affine]
    run: dict[int, Affine]
    arrive: dict[tuple[int, int], Affine]
    stored: tuple[Affine, ...]
    overhead_joules: Affine
    rows: tuple[Row, ...]


class Decisions:
    """The columns while they are laid out; read by the constraint families."""

    def __init__(self, timeline: Timeline, *, relaxed: bool = False) -> None:
        self.timeline, self.instance, self.relaxed = timeline, timeline.instance, relaxed
        self.columns: list[Column] = []
        self.upper_bytes = _upper_bytes(timeline)
        self.stage_slots: dict[int, tuple[int, int]] = {}
        for number, slot in enumerate(timeline.slots):
            self.stage_slots[slot.stage] = (self.stage_slots.get(slot.stage, (number, 0))[0], number)
        self.keep: dict[tuple[int, int], Affine] = {}
        self.run: dict[int, Affine] = {}
        self.arrive: dict[tuple[int, int], Affine] = {}
        for number, slot in enumerate(timeline.slots):
            self.run[number] = Affine(1.0) if slot.mandatory else self._column(f"r_{number}", integer=False)
        for content in self.instance.contents:
            self._add_life(content)
        self.stored = tuple(self._stored(content) for content in self.instance.contents)

    def _column(self, name: str, *, integer: bool) -> Affine:
        self.columns.append(Column(name, integer))
        return Affine(0.0, len(self.columns) - 1)

    def _stored(self, content: Content) -> Affine:
        if content.starts_stored or content.ends_stored:
            return Affine(1.0)
        life = range(len(self.timeline.events[content.number]))
        arrivals = [self.arrive.get((content.number, index), Affine()) for index in life]
        if (
            content.page_out is None
            or content.page_in is None
            or not any(a.terms or a.constant for a in arrivals)
        ):
            return Affine(0.0)
        return self._column(f"o_{content.number}", integer=False)

    def _add_life(self, content: Content) -> None:
        life = self.timeline.events[content.number]
        pageable = content.page_in is not None
        certain = False
        for index, event in enumerate(life):
            before = self.gap_before(content.number, index)
            if event.kind is Kind.USE and event.mandatory:
                self.arrive[content.number, index] = Affine(1.0).add(before, -1.0)
            elif event.kind is Kind.USE:
                name = f"a_{content.number}_{index}"
                self.arrive[content.number, index] = (
                    self._column(name, integer=False) if pageable else Affine()
                )
            certain = event.mandatory or (certain and not self.may_bind(event.slot))
            if index + 1 < len(life):
                inside = range(event.slot + 1, life[index + 1].slot)
                certain = certain and not any(self.may_bind(slot) for slot in inside)
                self.keep[content.number, index] = (
                    Affine(1.0) if certain else self._column(f"k_{content.number}_{index}", integer=True)
                )

    def may_bind(self, slot: int) -> bool:
        """Whether ``slot`` has a memory row: the budget could be exceeded there if nothing were freed."""
        budget = self.instance.limits.ram_budget_bytes
        return budget is not None and self.upper_bytes[slot] > budget

    def counts(self, after: int, slot: int, until: int) -> bool:
        """Whether ``slot`` holds what is kept from slot ``after`` to ``until``, around it."""
        if not self.relaxed or self.timeline.slots[slot].mandatory:
            return True
        first, last = self.stage_slots[self.timeline.slots[slot].stage]
        return after < first and last <= until

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
        arrival = self.arrive[content, index] if event.kind is Kind.USE else self.run[event.slot]
        return total((1.0, self.gap_before(content, index)), (1.0, arrival))

    def readable(self, content: Content) -> Affine:
        """O of a content that may be paged in; else 0."""
        return Affine() if content.page_in is None else self.stored[content.number]

    def lives(self) -> Iterator[tuple[Content, int, Event]]:
        """Every event with its content and its index."""
        for content in self.instance.contents:
            for index, event in enumerate(self.timeline.events[content.number]):
                yield content, index, event


def _own_bytes(timeline: Timeline, number: int) -> int:
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
        upper.append(held[number] + again + _own_bytes(timeline, number))
    return upper


# --- constraint families: without any one of them, some plan is invalid ---


def need(model: Decisions) -> Iterator[Affine]:
    """X[i,σ] ≥ r[σ]: an optional run has every input in RAM."""
    for content, index, event in model.lives():
        if event.kind is Kind.USE and not event.mandatory:
            yield total((1.0, model.run[event.slot]), (-1.0, model.presence(content.number, index)))


def hold(model: Decisions) -> Iterator[Affine]:
    """K⁺[i,m] ≤ X[i,m]: only what is there can be kept."""
    for content, index, event in model.lives():
        if not event.mandatory:
            after = model.gap_after(content.number, index)
            yield total((1.0, after), (-1.0, model.presence(content.number, index)))


def store(model: Decisions) -> Iterator[Affine]:
    """a[i,m] ≤ O[i]: only what is in storage, and may be read from there, can be paged in."""
    for content, index, event in model.lives():
        if event.kind is Kind.USE:
            yield total((1.0, model.arrive[content.number, index]), (-1.0, model.readable(content)))


def memory(model: Decisions) -> Iterator[Affine]:
    """Σ bytes·K over gaps around σ + Σ bytes·X over events at σ + workspace·r[σ] ≤ budget.

    In the relaxed model an optional run counts only what is in RAM in every order of its stage:
    what it reads and makes, and what is held through the whole stage.
    """
    timeline = model.timeline
    budget = model.instance.limits.ram_budget_bytes
    if budget is None:
        return
    rows = {
        number: total((1.0, Affine(-budget)), (_own_bytes(timeline, number), model.run[number]))
        for number in range(len(timeline.slots))
        if model.may_bind(number)
    }
    born_in_place = {c for task in model.instance.tasks for c in task.updated}
    for content, index, event in model.lives():
        size, life = float(content.bytes), timeline.events[content.number]
        in_place = event.kind is Kind.BIRTH and content.number in born_in_place
        if event.slot in rows and not in_place:
            loose = model.relaxed and not event.mandatory
            there = model.run[event.slot] if loose else model.presence(content.number, index)
            rows[event.slot].add(there, size)
        if index + 1 < len(life):
            kept, until = model.keep[content.number, index], life[index + 1].slot
            for slot in range(event.slot + 1, until):
                if slot in rows and model.counts(event.slot, slot, until):
                    rows[slot].add(kept, size)
    yield from rows.values()


def deadline(model: Decisions) -> Iterator[Affine]:
    """Seconds of all runs and transfers ≤ deadline; of each alone where they run side by side."""
    allowed = model.instance.limits.deadline_seconds
    if allowed is None:
        return
    runs = Affine(sum(task.cost.seconds for task in model.instance.tasks) - allowed)
    runs.add(_spent_on_runs(model, "seconds"))
    transfers = _spent_on_transfers(model, "seconds")
    if model.instance.serial:
        yield runs.add(transfers)
    else:
        yield runs
        yield transfers.add(Affine(-allowed))


def capacity(model: Decisions) -> Iterator[Affine]:
    """Σ stored bytes·O ≤ storage capacity."""
    allowed = model.instance.problem.storage_capacity_bytes
    written = _written_bytes(model)
    if allowed is None or not (written.terms or written.constant):
        return
    begun = sum(c.stored_bytes for c in model.instance.contents if c.starts_stored)
    yield written.add(Affine(begun - allowed))


def wear(model: Decisions) -> Iterator[Affine]:
    """Σ stored bytes·O over contents written in this step ≤ written budget."""
    allowed = model.instance.limits.written_budget_bytes
    if allowed is not None:
        yield _written_bytes(model).add(Affine(-allowed))


def _written_bytes(model: Decisions) -> Affine:
    written = Affine()
    for content in model.instance.contents:
        if not content.starts_stored:
            written.add(model.stored[content.number], content.stored_bytes)
    return written


# --- cuts: no plan worth having breaks them, and they make the proof short ---


def purpose(model: Decisions) -> Iterator[Affine]:
    """a[i,σ] ≤ r[σ]; r[σ] ≤ Σ K⁺ of its outputs; K⁻ + r[σ] ≤ 1 where σ makes one output."""
    timeline = model.timeline
    for content, index, event in model.lives():
        if event.mandatory:
            continue
        run = model.run[event.slot]
        if event.kind is Kind.USE:
            yield total((1.0, model.arrive[content.number, index]), (-1.0, run))
        elif len(model.instance.tasks[content.producer or 0].outputs) == 1:
            yield total((1.0, model.gap_before(content.number, index)), (1.0, run), (-1.0, Affine(1.0)))
    kept_after: dict[int, Affine] = {
        number: Affine() for number, slot in enumerate(timeline.slots) if not slot.mandatory
    }
    for content, index, event in model.lives():
        if event.kind is Kind.MAKE:
            kept_after[event.slot].add(model.gap_after(content.number, index))
    for slot, kept in kept_after.items():
        yield total((1.0, model.run[slot]), (-1.0, kept))


def cover(model: Decisions) -> Iterator[Affine]:
    """K[i,q] + O[i] + Σ r over i's productions before its next mandatory use ≥ 1."""
    for content in model.instance.contents:
        life = model.timeline.events[content.number]
        pending: Affine | None = None
        for index in range(len(life) - 1, 0, -1):
            event = life[index]
            if event.mandatory:
                pending = Affine()
            elif event.kind is Kind.MAKE and pending is not None:
                pending = total((1.0, pending), (1.0, model.run[event.slot]))
            if pending is not None and pending.terms:
                kept = model.keep[content.number, index - 1]
                copy = model.readable(content)
                yield total((1.0, Affine(1.0)), (-1.0, kept), (-1.0, copy), (-1.0, pending))


Family = Callable[[Decisions], Iterator[Affine]]
FAMILIES: tuple[Family, ...] = (need, hold, store, memory, deadline, capacity, wear)
CUTS: tuple[Family, ...] = (purpose, cover)


def _spent_on_runs(model: Decisions, unit: str) -> Affine:
    """Σ cost·r, in ``"joules"`` or ``"seconds"``."""
    spent = Affine()
    for number, slot in enumerate(model.timeline.slots):
        if slot.task is not None and not slot.mandatory:
            spent.add(model.run[number], getattr(model.instance.tasks[slot.task].cost, unit))
    return spent


def _spent_on_transfers(model: Decisions, unit: str) -> Affine:
    """Σ page-in·a + Σ page-out·O, in ``"joules"`` or ``"seconds"``."""
    spent = Affine()
    for (content, _), arrival in model.arrive.items():
        page_in = model.instance.contents[content].page_in
        if page_in is not None:
            spent.add(arrival, getattr(page_in, unit))
    for content_, stored in zip(model.instance.contents, model.stored, strict=True):
        if content_.page_out is not None and not content_.starts_stored:
            spent.add(stored, getattr(content_.page_out, unit))
    return spent


def build(
    timeline: Timeline, *, families: tuple[Family, ...] = FAMILIES + CUTS, relaxed: bool = False
) -> Model:
    """The program over ``timeline``, made of ``families``.

    With ``relaxed``, neither the order of reruns within a stage nor how often an op reruns there
    makes a difference, so that, if every rerun that may pay is offered, the optimum is a lower
    bound for all schedules.
    """
    decisions = Decisions(timeline, relaxed=relaxed)
    rows = [
        Row(family.__name__, expression)
        for family in families
        for expression in family(decisions)
        if expression.terms or expression.constant > 0.0
    ]
    return Model(
        timeline=timeline,
        columns=tuple(decisions.columns),
        keep=decisions.keep,
        run=decisions.run,
        arrive=decisions.arrive,
        stored=decisions.stored,
        overhead_joules=_spent_on_runs(decisions, "joules").add(_spent_on_transfers(decisions, "joules")),
        rows=tuple(rows),
    )
