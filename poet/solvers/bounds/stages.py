"""Every set of tracked contents that fits into RAM in a stage, and least values over moves between them.

A *move* is a rerun, a page-in or a free. What leads from a set without a content to the set with it, by a
rerun or a page-in, and back, by a free, are the same *pairs* of sets: a move says which it goes along, and in
which sets it may begin. Values are rows, one for each set, of one number per column; `CAP` where there is no
way. Functions here are loops in machine code, once `poet.solvers.bounds.compiled.loaded` has this module.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Values = npt.NDArray[np.int32]
Masks = npt.NDArray[np.int64]
Places = npt.NDArray[np.int32]
Flags = npt.NDArray[np.bool_]
Joules = npt.NDArray[np.float64]

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


class Rules(NamedTuple):
    """Per move, as `Move` has it: its first and last pair, whether it goes down,
    what it needs, and what it has room for.
    """

    first: Masks
    last: Masks
    down: Flags
    needs: Masks
    most_bytes: Masks
    room_bytes: Masks


class Sets(NamedTuple):
    """The contents of each set, as bits that ascend, and its bytes."""

    masks: Masks
    bytes: Masks


@dataclass(frozen=True, slots=True)
class FittingSets:
    """Every set of tracked versions that fits into RAM.

    Attributes:
        masks, bytes: per state; masks ascend.
        without, having: per bit, the states that lack it and have room for it, and the same with it.
    """

    masks: Masks
    bytes: Masks
    without: tuple[Places, ...]
    having: tuple[Places, ...]

    @classmethod
    def of(cls, sizes: Sequence[int], budget: int, most: int = 1 << 40) -> FittingSets | None:
        """Every set of ``sizes`` that fits, by doubling: the sets without a bit, then those with it.

        ``None`` where there are more than ``most``.
        """
        masks, total = np.zeros(1, dtype=np.int64), np.zeros(1, dtype=np.int64)
        without: list[Places] = []
        having: list[Places] = []
        for bit, size in enumerate(sizes):
            fits = total + size <= budget
            position = (len(masks) + np.cumsum(fits) - 1).astype(np.int32)
            for other in range(bit):
                both = fits[having[other]]
                lacking, there = without[other][both], having[other][both]
                without[other] = np.concatenate([without[other], position[lacking]])
                having[other] = np.concatenate([having[other], position[there]])
            old = np.flatnonzero(fits).astype(np.int32)
            if len(masks) + len(old) > most:
                return None
            without.append(old)
            having.append(position[old])
            masks = np.concatenate([masks, masks[old] | (1 << bit)])
            total = np.concatenate([total, total[old] + size])
        return cls(masks, total, tuple(without), tuple(having))


@dataclass(frozen=True, slots=True)
class Move:
    """``task`` is run again, or ``content`` is paged in, or (neither) contents are freed.

    Attributes:
        pairs: those that it goes along: from low to high, a free from high to low.
        units: its joules, in units of the program (`RamProgram.joules_per_unit`), rounded down.
        needs: contents, as bits of the stage, that the set in which it begins must hold.
        most_bytes: that this set may take.
        room_bytes: that this set and the residents may take together.
    """

    pairs: range
    units: int = 0
    task: int | None = None
    content: int | None = None
    needs: int = 0
    most_bytes: int = _MOST_BYTES
    room_bytes: int = 2 * _MOST_BYTES

    @property
    def frees(self) -> bool:
        """It goes down."""
        return self.task is None and self.content is None


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

    Attributes:
        masks: of each set.
        moves, first: see above.
        arcs: that all moves together go along.
    """

    def __init__(self, sets: FittingSets, pairs: Pairs, moves: Iterable[Move], first: Arcs) -> None:
        self.masks, self.first, self.moves = sets.masks, first, tuple(moves)
        self._sets, self._pairs = Sets(sets.masks, sets.bytes), pairs
        of_moves = [
            (m.pairs.start, m.pairs.stop, m.frees, m.needs, m.most_bytes, m.room_bytes) for m in self.moves
        ]
        table = np.array(of_moves, dtype=np.int64).reshape(len(of_moves), 6)
        first_pair, last_pair, down, *rest = (np.ascontiguousarray(column) for column in table.T)
        self._rules = Rules(first_pair, last_pair, down.astype(np.bool_), *rest)
        self.arcs = sum(len(move.pairs) for move in self.moves)

    def relax(self, values: Values, units: Values, needed: Masks) -> int:
        """Lower ``values``, in place, to the least over any sequence of moves.

        Args:
            values: a row for each set, of one number per column; `CAP` where there is no way.
            units: of each move and column; `CAP` where it is not allowed.
            needed: bytes for residents, per column.

        Returns:
            how often all moves were gone through.
        """
        return relax(values, units, needed, self._sets, self._pairs, self._rules)

    def before_first_run(self, following: Values, needed: Masks) -> Values:
        """Values where the first run comes next; ``needed``: bytes for residents beside it, per column."""
        values = np.full((len(self.masks), following.shape[1]), CAP, dtype=np.int32)
        before_first_run(values, following, self.first, needed)
        return values

    def way(self, values: Values, units: Values, needed: Masks, place: int, is_over: Flags) -> list[Step]:
        """The fewest moves along least values, in column 0, from a set to one that ``is_over``, or to a lower
        value.

        Moves that take nothing, such as frees, may lead in a circle, which is no way; none: there is no way.
        """
        rest = self._sets, self._pairs, self._rules
        moves, pairs = way(values, place, is_over, units, needed, *rest)
        steps = list[Step]()
        for number, pair in zip(moves.tolist(), pairs.tolist(), strict=True):
            move = self.moves[number]
            slack = move.room_bytes - int(self._sets.bytes[place])
            place = int((self._pairs.low if move.frees else self._pairs.high)[pair])
            steps.append(Step(place, number, slack))
        return steps

    def first_runs(self, values: Values, following: Values, needed: int) -> Flags:
        """Sets in which the first run comes next along least values in column 0, with ``needed`` bytes."""
        begin, end, slack = self.first
        flags = np.zeros(len(self.masks), dtype=np.bool_)
        flags[begin] = (values[begin, 0] == following[end, 0]) & (slack >= needed)
        return flags

    def first_run(self, place: int) -> Step | None:
        """The first run from a set; ``None`` where it cannot begin there."""
        at = int(np.searchsorted(self.first.begin, place))
        if at == len(self.first.begin) or self.first.begin[at] != place:
            return None
        return Step(int(self.first.end[at]), -1, int(self.first.slack[at]))


def relax(values: Values, units: Values, needed: Masks, sets: Sets, pairs: Pairs, rules: Rules) -> int:
    """Lower ``values``, in place, to the least over any sequence of moves; how often all were gone through.

    A move looks again at what was lowered since it looked last.
    """
    columns, cap = values.shape[1], np.int32(CAP)
    lowered = np.zeros(len(values), dtype=np.int32)  # per set, the look that lowered it last, if any
    for place in range(len(values)):
        if values[place].min() < cap:
            lowered[place] = 1
    looked = np.ones(len(rules.first), dtype=np.int32)  # per move, its last look
    look = changed = 1
    rounds, most = 0, needed.max()
    while True:
        before = look
        rounds += 1
        for move in range(len(looked)):
            last, price = looked[move], units[move]
            if last > changed:
                continue
            look += 1
            looked[move] = look
            if price.min() >= cap:
                continue
            needs = rules.needs[move]
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
                        value, reached = values[begin, column], np.int32(values[end, column] + price[column])
                        is_lower |= reached < value
                        values[begin, column] = min(value, reached)
                else:
                    for column in range(columns):
                        value, reached = values[begin, column], np.int32(values[end, column] + price[column])
                        reached = reached if slack >= needed[column] else cap
                        is_lower |= reached < value
                        values[begin, column] = min(value, reached)
                if is_lower:
                    lowered[begin] = changed = look
        if changed <= before:
            return rounds


def before_first_run(values: Values, following: Values, first: Arcs, needed: Masks) -> None:
    """Values of the sets in which the first run comes next, from the ``following`` ones."""
    for arc in range(len(first.begin)):
        for column in range(len(needed)):
            if first.slack[arc] >= needed[column]:
                values[first.begin[arc], column] = following[first.end[arc], column]


def way(
    values: Values,
    place: int,
    is_over: Flags,
    units: Values,
    needed: Masks,
    sets: Sets,
    pairs: Pairs,
    rules: Rules,
) -> tuple[Places, Places]:
    """See `Stage.way`: moves, and the pairs that they go along; breadth first."""
    came_by = np.full(len(values), -1, dtype=np.int32)  # per set, the move that led there first
    came_along = np.full(len(values), -1, dtype=np.int32)
    came_from = np.full(len(values), -1, dtype=np.int32)
    reached = np.zeros(len(values), dtype=np.int32)
    reached[0], count, look, last = place, 1, 0, -1
    came_from[place] = place
    while look < count and last < 0:
        here = reached[look]
        look += 1
        mask, taken, value = sets.masks[here], sets.bytes[here], values[here, 0]
        for move in range(len(rules.first)):
            price, needs = units[move, 0], rules.needs[move]
            if price >= CAP or mask & needs != needs or taken > rules.most_bytes[move]:
                continue
            if rules.room_bytes[move] - taken < needed[0]:
                continue
            first, end = rules.first[move], rules.last[move]
            begins, ends = (pairs.high, pairs.low) if rules.down[move] else (pairs.low, pairs.high)
            at = first + np.searchsorted(begins[first:end], here)
            if at >= end or begins[at] != here:
                continue
            there = ends[at]
            if values[there, 0] + price != value or came_from[there] >= 0:
                continue
            came_by[there], came_along[there], came_from[there] = move, at, here
            if price > 0 or is_over[there]:
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


def raise_bounds(bounds: Joules, masks: Masks, outs: Joules, joules: Joules, without: Masks) -> None:
    """Raise the bound of each set to the first cut, of the highest first, nothing of which it has."""
    for place in range(len(masks)):
        for cut in range(len(joules)):
            if masks[place] & without[cut] == 0:
                bounds[place] = max(bounds[place], outs[place] + joules[cut])
                break
