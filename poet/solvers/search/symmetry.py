"""Symmetry: identical blocks of a step are decided alike, in one small program in the place of a large one.

A network of many blocks repeats itself, forward and backward. Two ops are *symmetric* if they cost the
same, read and make the same, and so do their neighbours up to a distance (colour refinement, Weisfeiler
and Leman 1968; as dimension reduction of linear programs, Grohe et al. 2014). So are the decisions
whether a symmetric op's output stays in RAM between symmetric slots. In the tied program, symmetric
decisions on which a given plan agrees share one column. The plan itself is a solution of it, and so is
every plan that changes all of them at once: one block is solved for all. Its solutions are plans of the
whole program; other rounds then treat blocks differently where that pays.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, replace

import numpy as np

from poet.solvers.engines.matrix import Indices, Matrix, Numbers
from poet.solvers.instance.instance import Content, Instance
from poet.solvers.instance.timeline import Event, Timeline
from poet.solvers.search.gap_matrix import GapMatrix


@dataclass(frozen=True, slots=True)
class Tied:
    """A matrix in which some columns of another are one; ``column``: for each of the other, which."""

    matrix: Matrix
    column: Indices

    def whole(self, values: Numbers) -> Numbers:
        """``values`` of this matrix' columns as those of the other."""
        return values[self.column]


def repeats(instance: Instance) -> bool:
    """Whether the step mostly consists of blocks that repeat."""
    return len(set(colours(instance))) <= instance.tuning.symmetry.repeating_share * len(instance.tasks)


def tied(arrays: GapMatrix, values: Numbers) -> Tied:
    """The program with one column for symmetric decisions that are equal in ``values``, its start."""
    first: dict[Hashable, int] = {}
    column = np.arange(len(values))
    for decision, meaning in _meanings(arrays):
        column[decision] = first.setdefault((meaning, bool(values[decision] > 0.5)), decision)
    kept, number = np.unique(column, return_inverse=True)
    matrix, count = arrays.matrix, len(kept)
    entries, place = np.unique(matrix.rows * count + number[matrix.columns], return_inverse=True)
    factors: Numbers = np.bincount(place, weights=matrix.factors).astype(np.float64)
    costs: Numbers = np.bincount(number, weights=matrix.costs, minlength=count).astype(np.float64)
    entries, factors = entries[factors != 0.0], factors[factors != 0.0]
    return Tied(
        replace(
            matrix,
            costs=costs,
            rows=entries // count,
            columns=entries % count,
            factors=factors,
            integer=matrix.integer[kept],
            whole=matrix.whole[kept],
            start=values[kept],
        ),
        number,
    )


def colours(instance: Instance) -> tuple[int, ...]:
    """Per op, its colour: the same number for symmetric ops."""
    own = [_traits(content) for content in instance.contents]
    maker = _makers(instance)
    readers: list[list[int]] = [[] for _ in own]
    for task in instance.tasks:
        for content in task.reads:
            readers[content].append(task.number)
    found = _numbered(
        (task.cost, task.workspace_bytes, task.last_rerun_stage >= 0, tuple(own[c] for c in task.outputs))
        for task in instance.tasks
    )
    for _ in range(instance.tuning.symmetry.distance_ops):
        found = _numbered(
            (
                found[task.number],
                tuple(sorted((own[c], found[maker[c]] if c in maker else -1) for c in task.reads)),
                tuple(tuple(sorted(found[reader] for reader in readers[c])) for c in task.outputs),
            )
            for task in instance.tasks
        )
    return tuple(found)


def _traits(content: Content) -> tuple[Hashable, ...]:
    """What colour refinement compares of a tensor version by itself."""
    transfers = [
        (-1.0, -1.0) if cost is None else (cost.joules, cost.seconds)
        for cost in (content.page_in, content.page_out)
    ]
    return (
        content.bytes, content.stored_bytes, content.starts_in_ram, content.starts_stored,
        content.ends_in_ram, content.ends_stored, content.kept, content.dropped, content.home is None,
        content.comes_home, *transfers,
    )  # fmt: skip


def _numbered(meanings: Iterable[Hashable]) -> list[int]:
    numbers: dict[Hashable, int] = {}
    return [numbers.setdefault(meaning, len(numbers)) for meaning in meanings]


def _makers(instance: Instance) -> dict[int, int]:
    """Per content, the op that makes it; none for what is there from the start."""
    return {c: task.number for task in instance.tasks for c in (*task.outputs, *task.updated)}


def _meanings(arrays: GapMatrix) -> Iterable[tuple[int, Hashable]]:
    """Each decision on a gap, with a key that symmetric decisions share."""
    timeline = arrays.model.timeline
    instance, colour = timeline.instance, colours(timeline.instance)
    maker = _makers(instance)
    of_content = [
        (_traits(content), colour[maker[content.number]] if content.number in maker else -1)
        for content in instance.contents
    ]
    for (content, index), kept in arrays.model.keep.items():
        around = timeline.events[content][index : index + 2]
        meaning = (of_content[content], *(_moment(timeline, colour, event) for event in around))
        for column in kept.terms:
            yield column, meaning


def _moment(timeline: Timeline, colour: tuple[int, ...], event: Event) -> Hashable:
    """The key of an event: its kind, and the colours of the op that runs and of its stage."""
    slot = timeline.slots[event.slot]
    stage = colour[slot.stage] if 0 <= slot.stage < len(colour) else slot.stage
    return (event.kind, slot.mandatory, stage, None if slot.task is None else colour[slot.task])
