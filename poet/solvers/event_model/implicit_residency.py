"""Implicit residency: columns of the relaxed model that charge RAM for the inputs of reruns without a slot.

The relaxed model offers a slot for some reruns only; the others are allowed without one (column e of
`poet.solvers.event_model.decisions`), so that its bound holds for all plans. Such a rerun reads inputs,
which must be in RAM when it runs. An input u may have stayed there since its last event, although the plan
frees it before its next one. K, the column of a gap between two events, says that u stays through the whole
gap; nothing says that it stays through the first part of it. Without that, inputs would be held for nothing.

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
