"""The columns of the event model, and the linear expressions over them.

Per tensor version i (`Content`), event m and optional slot σ (see `poet.solvers.instance.instance`):

====== ========== ==================================================================
``K``  binary     K[i,m]: i stays in RAM from event m to event m + 1
``r``  binary     r[σ]: the optional slot's task runs again
``a``  binary     a[i,m]: i is paged in for optional slot m; at mandatory uses 1 - K⁻
``O``  binary     O[i]: i has a copy in storage
``H``  continuous H[σ]: share of the budget kept around slot σ, in large models only
``e``  binary     e[i,m], relaxed model: i is remade before event m at no slot, and held to it
``v``  binary     v[i,m], relaxed model: i is remade before event m at no slot, and dropped again
====== ========== ==================================================================

K⁻ and K⁺ are the gaps before and after an event, X its presence: 1 at mandatory events, K⁻ + a at
optional uses, K⁻ + r where an optional run makes i. Where K is 0 or 1, so are r, a and O, which
large models therefore leave continuous.

**Implicit residency.** The relaxed model offers a slot for some reruns only; the others are allowed without
one (column e), so that its bound holds for all plans. Such a rerun reads inputs, which must be in RAM when it
runs. An input u may have stayed there since its last event, although the plan frees it before its next one.
K, the column of a gap between two events, says that u stays through the whole gap; nothing says that it stays
through the first part of it. Without that, inputs would be held for nothing.

For a gap of u and each stage t at which u is *required*:

====== ====== ===========================================================================
symbol values meaning
====== ====== ===========================================================================
l[u,t] 0, 1   u stays in RAM from the event that begins the gap to the beginning of stage t
m[i]   0, 1   from stage f to stage g, an input of i or i itself is in RAM (see below)
====== ====== ===========================================================================

Staying longer includes staying shorter: l[u,t] ≥ l[u,t'] for t' > t.

*Which stages require an input.* Let version i be remade without a slot anywhere in the stages f to g, and
then stay until the event that follows them. The model must know one place at which its inputs are needed:

- Let u be the only input, with bytes(u) ≤ bytes(i). Then the rerun may be postponed to stage g: up to there u
  is in RAM in place of i, which takes no more bytes. So u is required at stage g, the latest place, where the
  row is strongest. If u is itself remade on the way (column v), the same holds for its own only input, and
  so on while bytes do not grow (`put_off_chain`).
- All other inputs are required at stage f.

*Several inputs.* Let i be made of several inputs, from which nothing else is remade in these stages. Wherever
between f and g the rerun takes place, all of them are in RAM before it and i after it. m[i] charges the bytes
of the smallest of these from f to g.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

from poet.solvers.instance.candidates import worth_rerunning
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


class Charge(NamedTuple):
    """``bytes`` times ``share`` in RAM at the first runs of stages ``first`` to ``last``."""

    share: Affine
    bytes: int
    first: int
    last: int


class Stays(NamedTuple):
    """The columns of implicit residency, and the bytes of RAM that they take.

    Attributes:
        columns: l by (version, stage).
        together: m by window, with the inputs that it stands for.
        charges: bytes in RAM, by column and stages.
        ordered: pairs of columns l of which the first must be the larger.
    """

    columns: dict[tuple[int, int], Affine]
    together: dict[tuple[int, int], tuple[Affine, tuple[int, ...]]]
    charges: tuple[Charge, ...]
    ordered: tuple[tuple[Affine, Affine], ...]


class EventModel:
    """The program: columns, rows, and what to minimise; laid out by `poet.solvers.event_model.model.build`.

    Attributes:
        columns: in order; families may add some.
        keep: K by (content, event).
        run: r by slot.
        arrive: a by (content, event), for uses.
        eager, visit: e and v by (content, event), for the gap before the event.
        stored: O by content.
        stays: none, until `add_stays` lays them out after all others.
        held: columns that follow from others, with what they are the value of, in order.
        rows: none, until the families have made them.
        overhead_joules: the objective, in joules above running every op once.
    """

    def __init__(self, timeline: Timeline, *, relaxed: bool = False) -> None:
        self.timeline, self.instance, self.relaxed = timeline, timeline.instance, relaxed
        self.columns: list[Column] = []
        self.tight = len(timeline.slots) <= TIGHT_SLOTS
        self.upper_bytes = _upper_bytes(timeline)
        binding = (self.may_bind(slot) for slot in range(len(timeline.slots)))
        self.bound_up_to = list(accumulate(binding, initial=0))  # slots with a memory row, so far
        self.held: list[tuple[int, Affine]] = []
        self.first_run = {slot.stage: n for n, slot in enumerate(timeline.slots) if slot.mandatory}
        self.stage_slots: dict[int, tuple[int, int]] = {}
        for number, slot in enumerate(timeline.slots):
            self.stage_slots[slot.stage] = (self.stage_slots.get(slot.stage, (number, 0))[0], number)
        self.keep: dict[tuple[int, int], Affine] = {}
        self.run: dict[int, Affine] = {}
        self.arrive: dict[tuple[int, int], Affine] = {}
        self.eager: dict[tuple[int, int], Affine] = {}
        self.visit: dict[tuple[int, int], Affine] = {}
        self.eager_stages: dict[tuple[int, int], tuple[int, int]] = {}
        self.offered = {(slot.stage, slot.task) for slot in timeline.slots if not slot.mandatory}
        self.worth = worth_rerunning(self.instance) if relaxed else frozenset[int]()
        for number, slot in enumerate(timeline.slots):
            self.run[number] = Affine(1.0) if slot.mandatory else self.add_column(integer=self.tight)
        for content in self.instance.contents:
            self._add_life(content)
        self.stored = tuple(self._stored(content) for content in self.instance.contents)
        self.readers: dict[int, set[int]] = {}
        for task in self.instance.tasks:
            for needed in task.rerun_reads if task.number in self.worth else ():
                self.readers.setdefault(needed, set()).add(task.number)
        self.stays = Stays({}, {}, (), ())
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
        """Add K, a, e and v of all events of a tensor version."""
        life = self.timeline.events[content.number]
        pageable = content.page_in is not None
        certain = False
        for index, event in enumerate(life):
            before, key = self.gap_before(content.number, index), (content.number, index)
            if event.kind is SlotKind.USE and event.mandatory:
                self.arrive[key] = 1.0 - before - self._add_eager(key)
            elif event.kind is SlotKind.USE or (self.relaxed and event.kind is SlotKind.MAKE):
                self._add_eager(key)
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

    def _add_eager(self, key: tuple[int, int]) -> Affine:
        """Add e, and at optional events v, of the gap before an event, in the relaxed model; returns e."""
        content, index = key
        producer = self.instance.contents[content].producer
        if not self.relaxed or index == 0 or producer is None or producer not in self.worth:
            return Affine()
        life, slots = self.timeline.events[content], self.timeline.slots
        first, stage = slots[life[index - 1].slot].stage + 1, slots[life[index].slot].stage
        last = stage - 1 if (stage, producer) in self.offered else stage
        last = min(last, self.instance.tasks[producer].last_rerun_stage)
        if first > last:
            return Affine()
        self.eager_stages[key] = (first, last)
        self.eager[key] = self.add_column(integer=True)
        if not life[index].mandatory:
            self.visit[key] = self.add_column(integer=True)
        return self.eager[key]

    def may_bind(self, slot: int) -> bool:
        """Whether ``slot`` has a memory row: the budget could be exceeded there if nothing were freed."""
        budget = self.instance.limits.ram_budget_bytes
        return budget is not None and self.upper_bytes[slot] > budget

    def counts(self, after: int, slot: int, until: int) -> bool:
        """Whether the memory row of ``slot`` counts a version that stays from slot ``after`` to ``until``.

        Both are slots of the version's neighbouring events, before and after ``slot``. Of an optional run in
        the relaxed model, whose place within its stage is open, it counts only if the version stays through
        the whole stage.
        """
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
        if event.kind is SlotKind.BIRTH:
            return self.home(content)
        there = self.gap_before(content, index) + self.arrival(content, index)
        return there.add(self.run[event.slot]) if event.kind is SlotKind.MAKE else there

    def arrival(self, content: int, index: int) -> Affine:
        """The sum a + e of the gap before an event."""
        key = content, index
        return (self.arrive.get(key) or Affine()) + (self.eager.get(key) or Affine())

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


# --- implicit residency ---


def put_off_chain(model: EventModel, content: int) -> list[int]:
    """The only input of the op that makes ``content``, the only input of the op that makes that, and so on.

    It ends where an op has several inputs, or one that has more bytes than what is made of it.
    """
    contents, tasks = model.instance.contents, model.instance.tasks
    chain = list[int]()
    while True:
        producer = contents[content].producer
        if producer is None:
            break
        reads = tasks[producer].rerun_reads
        if len(reads) != 1 or contents[reads[0]].bytes > contents[content].bytes:
            break
        content = reads[0]
        chain.append(content)
    return chain


def add_stays(model: EventModel) -> None:
    """Add the columns l and m of all windows to ``model``, which must have all its other columns."""
    asked: dict[tuple[int, int], set[int]] = {}
    for (content, _), (first, last) in model.eager_stages.items():
        producer = model.instance.tasks[model.instance.contents[content].producer or 0]
        wanted = [(c, first) for c in producer.rerun_reads]
        for c, stage in wanted + [(c, last) for c in put_off_chain(model, content)]:
            before = _event_before(model, c, stage)
            if before is not None:
                asked.setdefault((c, before), set()).add(stage)
    columns: dict[tuple[int, int], Affine] = {}
    charges: list[Charge] = []
    ordered: list[tuple[Affine, Affine]] = []
    for (content, before), stages in asked.items():
        event = model.timeline.events[content][before]
        begin, longer = model.timeline.slots[event.slot].stage + event.mandatory, None
        for stage in sorted(stages):
            share = model.add_column(integer=True)
            charges.append(Charge(share, model.instance.contents[content].bytes, begin, stage - 1))
            if longer is not None:
                ordered.append((longer, share))
            columns[content, stage] = longer = share
            begin = stage
    together = {}
    for window, (first, last) in model.eager_stages.items():
        shared = _only_here(model, asked, window[0], first, last)
        if shared and last > first:
            share = model.add_column(integer=True)
            least = min(model.instance.contents[c].bytes for c in (window[0], *shared))
            charges.append(Charge(share, least, first, last - 1))
            together[window] = share, shared
    model.stays = Stays(columns, together, tuple(charges), tuple(ordered))


def _only_here(
    model: EventModel, asked: dict[tuple[int, int], set[int]], content: int, first: int, last: int
) -> tuple[int, ...]:
    """The inputs of ``content`` that the column m of its stages ``first`` to ``last`` speaks of.

    These are the inputs that stay within one gap of theirs, that nothing else may be remade from by stage
    ``last``, and that no stage after ``first`` requires. Empty where the op that makes ``content`` has
    a single input or several outputs.
    """
    producer = model.instance.tasks[model.instance.contents[content].producer or 0]
    if len(producer.rerun_reads) < 2 or len(producer.outputs) > 1:
        return ()
    found = []
    for needed in producer.rerun_reads:
        before = _event_before(model, needed, first)
        if before is None or before != _event_before(model, needed, last):
            continue
        if max(asked.get((needed, before), {first})) <= first and _readers(model, needed, last) == {
            producer.number
        }:
            found.append(needed)
    return tuple(found)


def _event_before(model: EventModel, content: int, stage: int) -> int | None:
    """Index of the event that begins the gap of ``content`` in which ``stage`` begins.

    ``None`` where no column is needed: without an event before, or where the next is mandatory or missing.
    """
    life, before = model.timeline.events[content], -1
    for index, event in enumerate(life):
        at = model.timeline.slots[event.slot].stage
        if at > stage - 1 or (at == stage - 1 and event.mandatory):
            break
        before = index
    following = life[before + 1] if before + 1 < len(life) else None
    return None if before < 0 or following is None or following.mandatory else before


def _readers(model: EventModel, content: int, last: int) -> set[int]:
    """Tasks that read ``content`` and may run again by stage ``last``."""
    return {task for task in model.readers.get(content, ()) if task < last}
