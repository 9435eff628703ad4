"""Aggregated linking cuts, for models with many rerun slots.

Half a rerun in each of two slots needs half of each input in each, but a whole one together. So, with
many slots, the linear program remakes a tensor version from inputs that are never wholly there. A column
W, at most the sum of the reruns, says that the version is remade at all, and needs each input as often.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator

from poet.solvers.event_model.affine import Affine, total
from poet.solvers.event_model.decisions import Decisions
from poet.solvers.instance.timeline import Event, SlotKind


def again(model: Decisions) -> Iterator[Affine]:
    """K[i,q] + O[i] + W ≥ 1; W ≤ Σ r over i's productions from gap q to its next mandatory use;
    W ≤ K⁻ + Σ (a + r) of each input u of i's producer over u's events in that time.

    No such row where a mandatory event of u lies in that time: then u is there for certain.
    """
    if model.relaxed:
        return
    slots = [[event.slot for event in life] for life in model.timeline.events]
    for content in model.instance.contents:
        life = model.timeline.events[content.number]
        runs: list[int] = []
        remade: Affine | None = None
        end = -1
        for index in range(len(life) - 1, 0, -1):
            event = life[index]
            if event.mandatory:
                runs, remade, end = [], None, event.slot
            elif event.kind is SlotKind.MAKE and end >= 0:
                runs, remade = [*runs, event.slot], None
            if len(runs) < 2:
                continue
            if remade is None:
                sum_of_runs = total(*((1.0, model.run[slot]) for slot in runs))
                remade = model.add_column(f"w_{content.number}_{index}", integer=False)
                model.held.append((max(remade.terms), sum_of_runs))
                yield total((1.0, remade), (-1.0, sum_of_runs))
            kept, copy = model.keep[content.number, index - 1], model.readable(content)
            yield total((1.0, Affine(1.0)), (-1.0, kept), (-1.0, copy), (-1.0, remade))
            for read in model.instance.tasks[content.producer or 0].rerun_reads:
                visits = _visits(model, read, slots[read], life[index - 1].slot, end)
                if visits is not None:
                    yield total((1.0, remade), (-1.0, visits))


def _visits(model: Decisions, content: int, slots: list[int], first: int, last: int) -> Affine | None:
    """K⁻ + Σ (a + r) of the events of ``content`` from slot to slot; ``None``: there for certain."""
    life: tuple[Event, ...] = model.timeline.events[content]
    begin, stop = bisect.bisect_left(slots, first), bisect.bisect_right(slots, last)
    if any(life[index].mandatory for index in range(begin, stop)):
        return None
    visits = total((1.0, model.gap_before(content, begin) if begin < len(life) else Affine()))
    for index in range(begin, stop):
        visits.add(model.arrival(content, index))
        if life[index].kind is SlotKind.MAKE:
            visits.add(model.run[life[index].slot])
    return visits
