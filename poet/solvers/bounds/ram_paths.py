"""Cheapest steps of a `RamProgram`, walked along its tables, and what they rule out: which sets lack a copy.

A walked step is a *path*: it pages in some contents and leaves so many bytes for residents. It is open to
each set of copies that has these contents, and whose residents take no more than that; D of a set is at most
the joules of a path that is open to it, which takes no program to know. `KnownPaths` keeps them, and tells
which copies a set cannot be grown by if its D is to stay high, and which few copies all that is known needs
(the duality of implicit hitting sets: Moreno-Centeno and Karp 2013).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from poet.solvers.bounds.page_in_units import copies_read
from poet.solvers.bounds.ram_program import RamProgram
from poet.solvers.bounds.ram_stages import CAP, Flags, Values

Places = npt.NDArray[np.intp]


class Paid(NamedTuple):
    """A set of copies as `RamProgram.least` takes it: see there."""

    free: int
    steps: int | None
    paid: frozenset[int]


class Moved(NamedTuple):
    """A run (the stage's first one, where it is the stage's op) or, without a task, the page-in of a content.

    ``room_bytes``: left in RAM beside ``held``, the followed contents that are there before it, and residents
    and what the run reads and makes.
    """

    stage: int
    task: int | None
    content: int | None
    room_bytes: int
    held: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class RamPath:
    """A step of least joules for some set of copies.

    Attributes:
        joules: of its reruns and page-ins.
        reruns: per stage, in order.
        paged: followed contents whose copies it takes, as bits.
        demands: per stage and listed residents that it reads there, the least bytes left for residents.
        moves: all but frees, in order.
        paid: listed residents that are paid for.
    """

    joules: float
    reruns: dict[int, tuple[int, ...]]
    paged: int
    demands: dict[tuple[int, tuple[int, ...]], int]
    moves: tuple[Moved, ...] = ()
    paid: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class CheapestStep:
    """The cheapest that a search over sets of copies knows. It counts in RAM what is followed alone.

    Attributes:
        path: a step of least joules for a set of copies.
        copies: contents of that set, but for small residents, which are counted in steps of joules; ``None``
            where all residents are, and some are paid for.
        joules: of the path and of all copies.
    """

    path: RamPath
    copies: frozenset[int] | None
    joules: float


class _Walk:
    """Along the tables of one set of copies.

    Args:
        program: whose tables they are.
        column: of the set.
        copies: the set.
    """

    def __init__(self, program: RamProgram, column: int, copies: Paid) -> None:
        self.program, self.column, self.copies = program, column, copies
        self.paged, self.reruns = 0, dict[int, tuple[int, ...]]()
        self.demands = dict[tuple[int, tuple[int, ...]], int]()
        self.moves = list[Moved]()

    def through(self, number: int, values: Values, following: Values | None, place: int) -> int | None:
        """From ``place`` to the next stage along least values; ``None``: there is no way."""
        stage, tasks, column = self.program.stages[number], list[int](), self.column
        if following is None:
            is_over: Flags = values[:, column] == 0
        else:
            is_over = stage.first_runs(values, following, column, self._beside(number, stage.own))
        while not is_over[place]:
            steps = stage.way(values, column, self.program.asked(number), place, is_over)
            if not steps:
                return None
            for step in steps:
                move = stage.moves[step.move]
                self._note(number, move.own, step.slack)
                if move.task is not None:
                    tasks.append(move.task)
                content = None
                if move.content is not None:
                    self.paged |= copies_read(self.program.of, move.content, self.copies.free)
                    content = self.program.of.followed[move.content].number
                if move.acts:
                    self._moved(number, place, move.task, content, step.slack, move.own)
                place = step.end
        if tasks:
            self.reruns[number] = tuple(tasks)
        first = stage.first_run(place) if following is not None else None
        if first is None:
            return place
        self._note(number, stage.own, first.slack)
        self._moved(number, place, number, None, first.slack, stage.own)
        return first.end

    def pass_over(self, numbers: Iterable[int], number: int, place: int) -> None:
        """First runs of stages for which stage ``number`` stands, and with whose set they begin."""
        held = self.program.contents_of(number, place)
        for passed in numbers:
            own, room_bytes = self.program.first_room(passed)
            slack = room_bytes - self.program.bytes_of(held)
            self.moves.append(Moved(passed, passed, None, slack - self._beside(passed, own), held))

    def _beside(self, number: int, own: tuple[int, ...]) -> int:
        return self.program.residents.of_set(number, own, self.copies.steps, self.copies.paid)

    def _moved(
        self,
        number: int,
        place: int,
        task: int | None,
        content: int | None,
        slack: int,
        own: tuple[int, ...],
    ) -> None:
        held = self.program.contents_of(number, place)
        self.moves.append(Moved(number, task, content, slack - self._beside(number, own), held))

    def _note(self, number: int, own: tuple[int, ...], slack: int) -> None:
        key = number, tuple(c for c in own if c in self.program.listed)
        self.demands[key] = min(slack, self.demands.get(key, slack))


def walked(program: RamProgram, tables: Sequence[Values], column: int, copies: Paid) -> RamPath | None:
    """A cheapest step of a set of copies; ``None`` where none is below the cap.

    Args:
        program: that computed the tables.
        tables: of `RamProgram.least`, the last time that it was asked, the last stage's first.
        column: of the set.
        copies: the set.
    """
    place, end = program.start_place(copies.free), program.of.end
    if place is None or tables[-1][place, column] >= CAP:
        return None
    units, walk = int(tables[-1][place, column]), _Walk(program, column, copies)
    passed = list[int]()
    for number in range(end + 1):
        if number in program.passed:
            passed.append(number)
            continue
        walk.pass_over(passed, number, place)
        passed = []
        following = tables[end - number - 1] if number < end else None
        place = walk.through(number, tables[end - number], following, place)
        if place is None:
            return None
    return RamPath(
        units * program.joules_per_unit, walk.reruns, walk.paged, walk.demands, tuple(walk.moves), copies.paid
    )


def cheapest(program: RamProgram, copies: Paid) -> RamPath | None:
    """A cheapest step of a set of copies, by a program of its own."""
    tables = list[Values]()
    program.least([copies.free], [copies.steps], [copies.paid], tables)
    return walked(program, tables, 0, copies)
