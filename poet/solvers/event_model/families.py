"""The constraint families of the event model, one function each; its docstring is the formula.

Symbols are those of `poet.solvers.event_model.decisions`. A family yields expressions that must not exceed 0.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from poet.solvers.event_model.decisions import Affine, EventModel, own_bytes
from poet.solvers.instance.instance import Cost, SlotKind

DENSE_TERMS = 10_000_000
"""Events times memory rows, above which sums are carried from row to row; without, rows that list every gap
take gigabytes, a dozen bytes for each."""

# --- constraint families: without any one of them, some plan is invalid ---


def need(model: EventModel) -> Iterator[Affine]:
    """X[i,σ] ≥ r[σ]: an optional run has every input in RAM; X[i,end] ≥ h of what comes home to RAM."""
    for content, index, event in model.lives():
        if event.kind is SlotKind.USE and not event.mandatory:
            wanted, there = model.wanted(content, index), model.presence(content.number, index)
            yield wanted - there


def hold(model: EventModel) -> Iterator[Affine]:
    """K⁺[i,m] ≤ X[i,m]: only what is there can be kept."""
    for content, index, event in model.lives():
        if not event.mandatory:
            after = model.gap_after(content.number, index)
            yield after - model.presence(content.number, index)


def store(model: EventModel) -> Iterator[Affine]:
    """a[i,m] ≤ O[i]: only what is in storage, and may be read from there, can be paged in."""
    for (content, _), arrival in model.arrive.items():
        copy = model.readable(model.instance.contents[content])
        yield arrival - copy


def memory(model: EventModel) -> Iterator[Affine]:
    """Σ bytes·K over gaps around σ + Σ bytes·X over events at σ + workspace·r[σ] ≤ budget, per slot σ.

    Slots that hold less than the budget even if nothing is ever freed have no row.
    """
    timeline = model.timeline
    budget = model.instance.limits.ram_budget_bytes
    if budget is None:
        return
    rows = {
        number: own_bytes(timeline, number) * model.run[number] - budget
        for number in range(len(timeline.slots))
        if model.may_bind(number)
    }
    born_in_place = {c for task in model.instance.tasks for c in task.updated}
    for content, index, event in model.lives():
        in_place = event.kind is SlotKind.BIRTH and content.number in born_in_place
        if event.slot in rows and not in_place:
            rows[event.slot].add(model.presence(content.number, index), float(content.bytes))
    if sum(map(len, timeline.events)) * len(rows) > DENSE_TERMS:
        yield from _add_kept_by_steps(model, rows)
    else:
        _add_kept(model, rows)
    yield from rows.values()


def _gaps(model: EventModel) -> Iterator[tuple[int, int, Affine]]:
    """The slots around every gap, and its bytes·K."""
    for content, index, event in model.lives():
        life = model.timeline.events[content.number]
        if index + 1 < len(life):
            kept = float(content.bytes) * model.keep[content.number, index]
            yield event.slot, life[index + 1].slot, kept


def _add_kept(model: EventModel, rows: dict[int, Affine]) -> None:
    """Add Σ bytes·K over the gaps around each slot to its row, term by term."""
    for after, until, kept in _gaps(model):
        for slot in range(after + 1, until):
            if slot in rows:
                rows[slot].add(kept)


def _add_kept_by_steps(model: EventModel, rows: dict[int, Affine]) -> Iterator[Affine]:
    """The same sum Σ bytes·K, carried from row to row, where rows that list every gap would be too dense.

    A new column H[σ] is the share of the budget that gaps around slot σ take. With σ- the row before:
    budget·H[σ] ≥ budget·H[σ-] + bytes·K of the gaps begun since - bytes·K of the gaps ended since.
    """
    budget = float(model.instance.limits.ram_budget_bytes or 0)
    begun: list[list[Affine]] = [[] for _ in model.timeline.slots]
    ended: list[list[Affine]] = [[] for _ in model.timeline.slots]
    for after, until, kept in _gaps(model):
        begun[after].append(kept)
        ended[until].append(kept)
    around = Affine()
    for number in range(len(model.timeline.slots)):
        for kept in ended[number]:
            around.add(kept, -1.0)
        if number in rows:
            share = model.add_column(integer=False, whole=False)
            model.held.append((max(share.terms), (1.0 / budget if budget else 0.0) * around))
            yield around - budget * share
            around = budget * share
            rows[number].add(around)
        for kept in begun[number]:
            around.add(kept)


def come_home(model: EventModel) -> Iterator[Affine]:
    """1 - h ≤ O of a last content that was updated: what is in storage between steps is written there.

    Where paging is not allowed, only what is in storage between steps moves: O ≤ 1 - h. Pinned to be kept,
    what is in RAM between steps stays to the end: h ≤ K.
    """
    for content in model.instance.contents:
        life = model.timeline.events[content.number]
        if content.home is None or not life:
            continue
        away, stored = model.away(content), model.stored[content.number]
        if content.comes_home and content.home != content.number:
            yield away - stored
        if content.kept and content.comes_home:
            held = model.keep[content.number, len(life) - 2]
            yield model.home(content.home) - held
        if not model.instance.limits.paging and not content.starts_stored:
            first = content.home == content.number
            yield stored + (0.0 if first else -1.0) * away


def deadline(model: EventModel) -> Iterator[Affine]:
    """Seconds of all runs and transfers ≤ deadline; of each alone where they run side by side."""
    allowed = model.instance.limits.deadline_seconds
    if allowed is None:
        return
    runs = Affine(sum(task.cost.seconds for task in model.instance.tasks) - allowed)
    runs.add(spent_on_runs(model, lambda cost: cost.seconds))
    transfers = spent_on_transfers(model, lambda cost: cost.seconds)
    if model.instance.serial:
        yield runs.add(transfers)
    else:
        yield runs
        yield transfers.add(Affine(-allowed))


def capacity(model: EventModel) -> Iterator[Affine]:
    """Σ stored bytes·O ≤ storage capacity; contents that are in storage between steps included."""
    allowed = model.instance.problem.storage_capacity_bytes
    written = _written_bytes(model)
    if allowed is None or not (written.terms or written.constant):
        return
    begun = sum(c.stored_bytes for c in model.instance.contents if c.starts_stored)
    for content in model.instance.contents:
        if content.home == content.number and not content.starts_stored:
            written.add(model.away(content), content.stored_bytes)
    yield written.add(Affine(-max(0, allowed - begun)))


def wear(model: EventModel) -> Iterator[Affine]:
    """Σ stored bytes·O over contents written in this step ≤ written budget - what ops write themselves."""
    allowed = model.instance.written_room_bytes
    if allowed is not None:
        yield _written_bytes(model).add(Affine(-allowed))


def energy(model: EventModel) -> Iterator[Affine]:
    """Metered joules of all reruns and transfers ≤ energy budget - those of running every op once."""
    allowed = model.instance.metered_joules_allowed
    if allowed is not None:
        spent = spent_on_runs(model, lambda cost: cost.metered_joules)
        spent.add(spent_on_transfers(model, lambda cost: cost.metered_joules))
        yield spent.add(Affine(-allowed))


def _written_bytes(model: EventModel) -> Affine:
    written = Affine()
    for content in model.instance.contents:
        if not content.starts_stored:
            written.add(model.stored[content.number], content.stored_bytes)
    return written


# --- cuts: no plan worth having breaks them, and they make the proof short ---


def purpose(model: EventModel) -> Iterator[Affine]:
    """a[i,σ] ≤ r[σ]; r[σ] ≤ Σ K⁺ of its outputs; K⁻ + r[σ] ≤ 1 where σ makes one output."""
    for content, index, event in model.lives():
        if event.mandatory:
            continue
        run = model.run[event.slot]
        if event.kind is SlotKind.USE:
            wanted = model.wanted(content, index)
            yield model.arrive[content.number, index] - wanted
        if event.kind is SlotKind.MAKE and len(model.instance.tasks[content.producer or 0].outputs) == 1:
            yield model.gap_before(content.number, index) + run - 1.0
    kept_after: dict[int, Affine] = {
        number: Affine() for number, slot in enumerate(model.timeline.slots) if not slot.mandatory
    }
    for content, index, event in model.lives():
        if event.kind is SlotKind.MAKE:
            kept_after[event.slot].add(model.gap_after(content.number, index))
    for slot, kept in kept_after.items():
        yield model.run[slot] - kept


def cover(model: EventModel) -> Iterator[Affine]:
    """K[i,q] + O[i] + Σ r over i's productions before its next mandatory use ≥ 1."""
    for content in model.instance.contents:
        life = model.timeline.events[content.number]
        pending: Affine | None = None
        for index in range(len(life) - 1, 0, -1):
            event = life[index]
            if event.mandatory:
                pending = Affine()
            elif event.kind is SlotKind.MAKE and pending is not None:
                pending += model.run[event.slot]
            if pending is not None and pending.terms:
                kept = model.keep[content.number, index - 1]
                copy = model.readable(content)
                yield 1.0 - kept - copy - pending


_EXACT = 1e-9  # relative, within which a share counts as whole


def packing(rows: Iterable[Affine]) -> Iterator[Affine]:
    """Σ (⌊b/d⌋ + max(0, (frac(b/d) - f) / (1 - f)))·x ≤ ⌊budget/d⌋, f = frac(budget/d), d a size.

    The mixed-integer rounding of Σ b·x ≤ budget (Nemhauser and Wolsey, 1990): it holds for x of 0s
    and 1s, as all columns of a memory row are in every plan. A budget of 7.5 contents of one size
    keeps 7 of them, where in the linear program the row itself allows half of another. The commonest
    sizes of a row are tried: few make up most of a net's tensors.
    """
    for row in rows:
        terms = {column: size for column, size in row.terms.items() if size}
        budget = -row.constant
        if budget <= 0.0 or min(terms.values(), default=0.0) < 0.0 or sum(terms.values()) <= budget:
            continue
        for unit, _ in Counter(terms.values()).most_common(3):
            cut = _rounded(terms, budget, unit)
            if cut is not None:
                yield cut


def _rounded(sizes: dict[int, float], budget: float, unit: float) -> Affine | None:
    whole = math.floor(budget / unit + _EXACT)
    spare = budget / unit - whole
    if not _EXACT < spare < 1.0 - _EXACT:
        return None
    cut = Affine(-float(whole))
    for column, size in sizes.items():
        share = math.floor(size / unit + _EXACT)
        weight = share + max(0.0, (size / unit - share - spare) / (1.0 - spare))
        if weight > _EXACT:
            cut.terms[column] = weight
    return cut if sum(cut.terms.values()) > whole + _EXACT else None


Part = Callable[[Cost], float]
Family = Callable[[EventModel], Iterator[Affine]]
FAMILIES: tuple[Family, ...] = (need, hold, store, memory, come_home, deadline, capacity, wear, energy)
CUTS: tuple[Family, ...] = (purpose, cover)


def spent_on_runs(model: EventModel, part: Part) -> Affine:
    """Σ cost·r, of every cost ``part``."""
    spent = Affine()
    for number, slot in enumerate(model.timeline.slots):
        if slot.task is not None and not slot.mandatory:
            spent.add(model.run[number], part(model.instance.tasks[slot.task].cost))
    return spent


def spent_on_transfers(model: EventModel, part: Part) -> Affine:
    """Σ page-in·a + Σ page-out·O, of every cost ``part``."""
    spent = Affine()
    for (content, _), arrival in model.arrive.items():
        page_in = model.instance.contents[content].page_in
        if page_in is not None:
            spent.add(arrival, part(page_in))
    for content_, stored in zip(model.instance.contents, model.stored, strict=True):
        if content_.page_out is not None and not content_.starts_stored:
            spent.add(stored, part(content_.page_out))
    return spent
