"""Implicit residency: relaxed columns for an input held past its last event for a rerun without a slot.

In the relaxed model a rerun for which there is no slot may read an input u that was in RAM at an
event of u and is freed before the next one. No column K expresses that u is held in between, and where
the next event is optional no other column has to. So, for each gap of u and each stage t that
*requires* u, the relaxed model has

====== ======== =========================================================================
``l``  binary   l[u,t]: from the event before the gap, bytes of u are in RAM up to stage t
====== ======== =========================================================================

with l[u,t] ≥ l[u,t'] for t' > t.

*Which stages require an input.* Take a rerun without a slot of version i in the window of stages f to
g, from which i is held to the event after the window. It may be *postponed* to stage g if instead an
input u with bytes(u) ≤ bytes(i) is held until then: u takes the place of i in RAM, and a rerun without
a slot occupies nothing else. So u is required at stage g. So is, in turn, the input that u itself is
remade from in passing (v), as long as bytes do not grow along this chain (`put_off_chain`). All other
inputs are required at stage f, where RAM has room more often.

*Several inputs.* Where i is made of several inputs, of which nothing else is remade meanwhile, one
more column m[i] says that from stage f to stage g some of them, and after the rerun i, are in RAM; it
counts the bytes of the smallest of these.
"""

from __future__ import annotations

from poet.solvers.event_model.affine import Affine
from poet.solvers.event_model.decisions import Charge, Decisions, Stays


def put_off_chain(model: Decisions, content: int) -> list[int]:
    """The only input of the op that makes ``content``, the only input of the op that makes that, and so on.

    It ends where an op has several inputs, or one that has more bytes than what is made of it.
    """
    contents, tasks = model.instance.contents, model.instance.tasks
    chain = list[int]()
    while len(chain) < model.instance.tuning.model.asked_inputs:
        producer = contents[content].producer
        if producer is None:
            break
        reads = tasks[producer].rerun_reads
        if len(reads) != 1 or contents[reads[0]].bytes > contents[content].bytes:
            break
        content = reads[0]
        chain.append(content)
    return chain


def add_stays(model: Decisions) -> None:
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
            share = model.add_column(f"l_{content}_{before}_{stage}", integer=True)
            charges.append(Charge(share, model.instance.contents[content].bytes, begin, stage - 1))
            if longer is not None:
                ordered.append((longer, share))
            columns[content, stage] = longer = share
            begin = stage
    together = {}
    for window, (first, last) in model.eager_stages.items():
        shared = _only_here(model, asked, window[0], first, last)
        if shared and last > first:
            share = model.add_column(f"m_{window[0]}_{window[1]}", integer=True)
            least = min(model.instance.contents[c].bytes for c in (window[0], *shared))
            charges.append(Charge(share, least, first, last - 1))
            together[window] = share, shared
    model.stays = Stays(columns, together, tuple(charges), tuple(ordered))


def _only_here(
    model: Decisions, asked: dict[tuple[int, int], set[int]], content: int, first: int, last: int
) -> tuple[int, ...]:
    """Inputs of ``content`` that nothing else is remade of, and that no stage after ``first`` requires.

    Empty unless the op that makes ``content`` has several inputs and one output.
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


def _event_before(model: Decisions, content: int, stage: int) -> int | None:
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


def _readers(model: Decisions, content: int, last: int) -> set[int]:
    """Tasks that read ``content`` and may run again by stage ``last``."""
    return {task for task in model.readers.get(content, ()) if task < last}
