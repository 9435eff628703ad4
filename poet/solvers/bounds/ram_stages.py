"""Stages of a `poet.solvers.bounds.ram_program.RamProgram`: the sets that fit, and least values over moves.

A *move* is a rerun, a page-in or a free. What leads from a set without a content to the set with it, by a
rerun or a page-in, and back, by a free, are the same *pairs* of sets: a move says which it goes along, and in
which sets it may begin. Values are rows, one for each set, of one number per column: `CAP` where there is no
way.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from poet.solvers.bounds.compiled import Compiled
from poet.solvers.bounds.fitting_sets import FittingSets

Values = npt.NDArray[np.int32]
Masks = npt.NDArray[np.int64]
Places = npt.NDArray[np.int32]
Flags = npt.NDArray[np.bool_]

CAP = 1 << 28  # of values; twice that does not overflow
_MOST_BYTES = 1 << 60  # more than there are


class Pairs(NamedTuple):
    """Positions of sets, ascending, and of the sets that hold one content (or several) besides."""

    low: Places
    high: Places


class Arcs(NamedTuple):
    """Transitions from sets ``begin``, ascending, to ``end``; ``slack``: bytes left beside for residents."""

    begin: Places
    end: Places
    slack: Masks


@dataclass(frozen=True, slots=True)
class Move:
    """``task`` is run again, or ``content`` is paged in, or (neither) contents are freed, or are there as
    they were before their window.

    Attributes:
        pairs: those that it goes along: from low to high, a free from high to low.
        appears: neither a run nor a page-in, it goes up all the same.
        units: its joules, in units of the program (`RamProgram.joules_per_unit`), rounded down.
        own: residents that it reads.
        needs: contents, as bits of the stage, that the set in which it begins must hold.
        most_bytes: that this set may take.
        room_bytes: that this set and the residents may take together.
    """

    pairs: range
    units: int = 0
    task: int | None = None
    content: int | None = None
    own: tuple[int, ...] = ()
    needs: int = 0
    most_bytes: int = _MOST_BYTES
    room_bytes: int = 2 * _MOST_BYTES
    appears: bool = False

    @property
    def acts(self) -> bool:
        """It is a run or a page-in."""
        return self.task is not None or self.content is not None

    @property
    def frees(self) -> bool:
        """It goes down."""
        return not self.acts and not self.appears


class _Rules(NamedTuple):
    """Per move: its pairs, whether it goes down, and as `Move` has it."""

    first: Masks
    last: Masks
    down: npt.NDArray[np.bool_]
    needs: Masks
    most_bytes: Masks
    room_bytes: Masks


class _Sets(NamedTuple):
    masks: Masks
    bytes: Masks


class Asked(NamedTuple):
    """Of each move and column: units, `CAP` where it is not allowed, and bytes for residents beside it."""

    units: Values
    needed: Masks


class Step(NamedTuple):
    """From a set to ``end``, by a move of that number, -1 for a first run; it leaves ``slack`` bytes."""

    end: int
    move: int
    slack: int


class Stage:
    """The sets that fit when a stage begins, the moves within it, and the first run that leads to the next.

    Args:
        sets: that fit.
        pairs: of sets.
        moves: in the order in which they are looked at.
        first: arcs to the next stage's sets.
        own: residents that the first run reads.

    Attributes:
        masks: of each set.
        moves, first, own: see above.
        arcs: that all moves together go along.
    """

    def __init__(
        self, sets: FittingSets, pairs: Pairs, moves: Iterable[Move], first: Arcs, own: tuple[int, ...]
    ) -> None:
        self.masks, self.first, self.own, self.moves = sets.masks, first, own, tuple(moves)
        self._sets, self._pairs = _Sets(sets.masks, sets.bytes), pairs
        of_moves = [
            (m.pairs.start, m.pairs.stop, m.frees, m.needs, m.most_bytes, m.room_bytes) for m in self.moves
        ]
        table = np.array(of_moves, dtype=np.int64).reshape(len(of_moves), 6)
        first_pair, last_pair, down, *rest = (np.ascontiguousarray(column) for column in table.T)
        self._rules = _Rules(first_pair, last_pair, down.astype(np.bool_), *rest)
        self.arcs = sum(len(move.pairs) for move in self.moves)

    def relax(self, values: Values, asked: Asked) -> int:
        """Lower ``values``, in place, to the least over any sequence of moves.

        Returns:
            how often all moves were gone through.
        """
        return _relax(values, asked, self._sets, self._pairs, self._rules)

    def before_first_run(self, following: Values, needed: Masks) -> Values:
        """Values where the first run comes next; ``needed``: bytes for residents beside it, per column."""
        values = np.full((len(self.masks), following.shape[1]), CAP, dtype=np.int32)
        _before_first_run(values, following, self.first, needed)
        return values

    def way(self, values: Values, column: int, asked: Asked, place: int, is_over: Flags) -> list[Step]:
        """The fewest moves along least values from a set to one that ``is_over``, or to a lower value.

        Moves that take nothing, such as frees, may lead in a circle, which is no way; none: there is no way.
        """
        moves, pairs = _way(values, column, place, is_over, asked, self._sets, self._pairs, self._rules)
        steps = list[Step]()
        for number, pair in zip(moves.tolist(), pairs.tolist(), strict=True):
            move = self.moves[number]
            slack = move.room_bytes - int(self._sets.bytes[place])
            place = int((self._pairs.low if move.frees else self._pairs.high)[pair])
            steps.append(Step(place, number, slack))
        return steps

    def first_runs(self, values: Values, following: Values, column: int, needed: int) -> Flags:
        """Sets in which the first run comes next along least values, with ``needed`` bytes beside it."""
        begin, end, slack = self.first
        flags = np.zeros(len(self.masks), dtype=np.bool_)
        flags[begin] = (values[begin, column] == following[end, column]) & (slack >= needed)
        return flags

    def first_run(self, place: int) -> Step | None:
        """The first run from a set; ``None`` where it cannot begin there."""
        at = int(np.searchsorted(self.first.begin, place))
        if at == len(self.first.begin) or self.first.begin[at] != place:
            return None
        return Step(int(self.first.end[at]), -1, int(self.first.slack[at]))


@Compiled
def _relax(values: Values, asked: Asked, sets: _Sets, pairs: Pairs, rules: _Rules) -> int:
    """See `Stage.relax`. A move looks again at what was lowered since it looked last."""
    columns, cap = values.shape[1], np.int32(CAP)
    lowered = np.zeros(len(values), dtype=np.int32)  # per set, the look that lowered it last, if any
    for place in range(len(values)):
        if values[place].min() < cap:
            lowered[place] = 1
    looked = np.ones(len(rules.first), dtype=np.int32)  # per move, its last look
    look = changed = 1
    rounds = 0
    while True:
        before = look
        rounds += 1
        for move in range(len(looked)):
            last, units, needed = looked[move], asked.units[move], asked.needed[move]
            if last > changed:
                continue
            look += 1
            looked[move] = look
            if units.min() >= cap:
                continue
            most, needs = needed.max(), rules.needs[move]
            most_bytes, room_bytes = rules.most_bytes[move], rules.room_bytes[move]
            for pair in range(rules.first[move], rules.last[move]):
                begin, end = pairs.low[pair], pairs.high[pair]
                if rules.down[move]:
                    begin, end = end, begin
                if lowered[end] < last:
                    continue
                taken, is_lower = sets.bytes[begin], False
                if sets.masks[begin] & needs != needs or taken > most_bytes:
                    continue
                slack = room_bytes - taken
                if slack >= most:
                    for column in range(columns):
                        value, reached = values[begin, column], np.int32(values[end, column] + units[column])
                        is_lower |= reached < value
                        values[begin, column] = min(value, reached)
                else:
                    for column in range(columns):
                        value, reached = values[begin, column], np.int32(values[end, column] + units[column])
                        reached = reached if slack >= needed[column] else cap
                        is_lower |= reached < value
                        values[begin, column] = min(value, reached)
                if is_lower:
                    lowered[begin] = changed = look
        if changed <= before:
            return rounds


@Compiled
def _before_first_run(values: Values, following: Values, first: Arcs, needed: Masks) -> None:
    """See `Stage.before_first_run`."""
    for arc in range(len(first.begin)):
        for column in range(len(needed)):
            if first.slack[arc] >= needed[column]:
                values[first.begin[arc], column] = following[first.end[arc], column]


@Compiled
def _way(
    values: Values,
    column: int,
    place: int,
    is_over: Flags,
    asked: Asked,
    sets: _Sets,
    pairs: Pairs,
    rules: _Rules,
) -> tuple[Places, Places]:
    """See `Stage.way`: its moves, and the pairs that they go along; breadth first."""
    came_by = np.full(len(values), -1, dtype=np.int32)  # per set, the move that led there first
    came_along = np.full(len(values), -1, dtype=np.int32)
    came_from = np.full(len(values), -1, dtype=np.int32)
    reached = np.zeros(len(values), dtype=np.int32)
    reached[0], count, look, last = place, 1, 0, -1
    came_from[place] = place
    while look < count and last < 0:
        here = reached[look]
        look += 1
        mask, taken, value = sets.masks[here], sets.bytes[here], values[here, column]
        for move in range(len(rules.first)):
            units, needs = asked.units[move, column], rules.needs[move]
            if units >= CAP or mask & needs != needs or taken > rules.most_bytes[move]:
                continue
            if rules.room_bytes[move] - taken < asked.needed[move, column]:
                continue
            first, end = rules.first[move], rules.last[move]
            begins, ends = (pairs.high, pairs.low) if rules.down[move] else (pairs.low, pairs.high)
            at = first + np.searchsorted(begins[first:end], here)
            if at >= end or begins[at] != here:
                continue
            there = ends[at]
            if values[there, column] + units != value or came_from[there] >= 0:
                continue
            came_by[there], came_along[there], came_from[there] = move, at, here
            if units > 0 or is_over[there]:
                last = there
                break
            reached[count] = there
            count += 1
    length, here = 0, last
    while last >= 0 and here != place:
        length += 1
        here = came_from[here]
    moves, along = np.zeros(length, dtype=np.int32), np.zeros(length, dtype=np.int32)
    here = last
    for number in range(length - 1, -1, -1):
        moves[number], along[number] = came_by[here], came_along[here]
        here = came_from[here]
    return moves, along
