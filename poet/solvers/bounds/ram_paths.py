"""Cheapest steps of a `RamProgram`, walked along its tables, and what they rule out: which sets lack a copy.

A walked step is a *path*: it pages in some contents and leaves so many bytes for residents. It is open to
each set of copies that has these contents, and whose residents take no more than that; D of a set is at most
the joules of a path that is open to it, which takes no program to know. `KnownPaths` keeps them, and tells
which copies a set cannot be grown by if its D is to stay high, and which few copies all that is known needs
(the duality of implicit hitting sets: Moreno-Centeno and Karp 2013).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
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


class KnownPaths:
    """The paths walked so far, and which of them are open to which sets of copies.

    Args:
        program: of the paths; how it counts residents no longer changes.
        joules: of each copy, by content, and of steps, below 0.
        at_once: paths that are looked at together, at most.

    Attributes:
        joules: of each path.
    """

    def __init__(self, program: RamProgram, joules: dict[int, float], at_once: int) -> None:
        self.program, self._copies, self._at_once = program, joules, at_once
        self._followed = [c for c in joules if c in program.of.number]
        self._listed = list(program.listed)
        self._steps = sum(c < 0 for c in joules)
        self._rows = dict[tuple[int, tuple[int, ...]], int]()  # what asks for room: a stage, what it reads
        self._sizes = np.zeros((0, len(self._listed)), dtype=np.int64)  # per row, that a copy frees
        self._fixed = np.zeros((0, self._steps + 1), dtype=np.int64)  # per row and steps, what stays
        self._uses = np.zeros((0, len(self._followed)), dtype=np.bool_)
        self._room = np.zeros((0, 0), dtype=np.int64)
        self.joules = np.zeros(0)

    def add(self, path: RamPath) -> None:
        """One more; what asks for no more room than is always there is forgotten."""
        for key in path.demands.keys() - self._rows.keys():
            number, own = key
            there, of = self.program.residents.at(number), self.program.of
            size = [of.residents[c].bytes if c in there and c not in own else 0 for c in self._listed]
            rest = sum(of.residents[c].bytes for c in own)
            counts = [*range(self._steps), None]
            self._rows[key] = len(self._sizes)
            self._sizes = np.vstack([self._sizes, np.array([size], dtype=np.int64).reshape(1, -1)])
            fixed = [rest + self.program.residents.unlisted(number, steps) for steps in counts]
            self._fixed = np.vstack([self._fixed, np.array([fixed], dtype=np.int64)])
        rows = len(self._sizes)
        most = np.iinfo(np.int64).max
        room = np.full((len(self.joules) + 1, rows), most, dtype=np.int64)
        room[:-1, : self._room.shape[1]] = self._room
        for key, slack in path.demands.items():
            room[-1, self._rows[key]] = slack
        used = [bool(path.paged >> self.program.of.number[c] & 1) for c in self._followed]
        self._room = room
        self._uses = np.vstack([self._uses, np.array([used], dtype=np.bool_).reshape(1, -1)])
        self.joules = np.append(self.joules, path.joules)

    def open_to(self, copies: Collection[int], below_joules: float) -> Places:
        """The paths below these joules that a set of copies allows."""
        lacking = np.array([c not in copies for c in self._followed], dtype=np.bool_)
        paths = np.flatnonzero((self.joules < below_joules) & ~(self._uses & lacking).any(axis=1))
        return paths[(self._room[paths] >= self._needed(copies)).all(axis=1)]

    def blocked(self, copies: Collection[int], below_joules: float) -> set[int]:
        """Copies, few and not among these, without which no known path below these joules is open; nothing
        where a path is open to ``copies`` itself.
        """
        has, without = set(self._copies), list[int]()
        while len(paths := self.open_to(has, below_joules)):
            one = self._wanted(has, copies, paths[: self._at_once])
            if one is None:
                return set()
            has.remove(one)
            without.append(one)
        for one in without:
            if not len(self.open_to(has | {one}, below_joules)):
                has.add(one)
        return self._copies.keys() - has

    def _wanted(self, has: set[int], copies: Collection[int], paths: Places) -> int | None:
        """Of ``has``, not of ``copies``: what closes many of the paths, and costs much."""
        room = self._room[paths] - self._needed(has)
        closed = np.any(room[:, :, None] < self._sizes[None, :, :], axis=1)
        counts = dict(zip(self._followed, self._uses[paths].sum(axis=0), strict=True))
        counts |= dict(zip(self._listed, closed.sum(axis=0), strict=True))
        steps = self._steps_of(has)
        last = next((n for n in range(steps, 0, -1) if -n not in copies), 0)
        if last:  # without a step those after it count for nothing
            more = self._fixed[:, last - 1] - self._fixed[:, steps]
            counts[-last] = (room < more).any(axis=1).sum()
        able = [c for c in counts if c in has and c not in copies]
        if not able:
            return None
        sizes = self.program.of.residents
        return max(able, key=lambda c: (counts[c] * self._copies[c], sizes[c].bytes if c in sizes else 0, c))

    def missing_one(self, copies: Collection[int], below_joules: float) -> set[int]:
        """Each copy that, by itself, would open a known path below these joules to ``copies``."""
        lacking = np.array([c not in copies for c in self._followed], dtype=np.bool_)
        lacks = self._uses & lacking
        number = lacks.sum(axis=1)
        number[self.joules >= below_joules] = len(self._followed) + 1
        room = self._room - self._needed(copies)
        fits = (room >= 0).all(axis=1)
        found = {self._followed[place] for place in np.flatnonzero(lacks[fits & (number == 1)].any(axis=0))}
        tight = room[~fits & (number == 0)][-self._at_once :]
        frees = self._sizes * np.array([c not in copies for c in self._listed], dtype=np.int64)
        steps = self._steps_of(copies)
        if len(tight):
            enough: Flags = (tight[:, :, None] + frees[None, :, :] >= 0).all(axis=1).any(axis=0)
            found.update(self._listed[place] for place in np.flatnonzero(enough))
            if steps < self._steps:
                more = self._fixed[:, steps] - self._fixed[:, steps + 1]
                if (tight + more >= 0).all(axis=1).any():
                    found.add(-1 - steps)
        return found

    def _needed(self, copies: Collection[int]) -> npt.NDArray[np.int64]:
        """Per row, bytes that residents take."""
        stay = np.array([c not in copies for c in self._listed], dtype=np.bool_)
        needed: npt.NDArray[np.int64] = self._sizes @ stay + self._fixed[:, self._steps_of(copies)]
        return needed

    def _steps_of(self, copies: Collection[int]) -> int:
        """How many steps there are: one without those before it counts for nothing."""
        return next((n for n in range(self._steps) if -1 - n not in copies), self._steps)
