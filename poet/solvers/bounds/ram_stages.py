"""Stages of a `poet.solvers.bounds.ram_program.RamProgram`: the sets that fit, and least values over moves.

A *move* is a rerun, a page-in or a free: arcs from each set in which it may begin to the set that it leads
to. All moves of a stage lie one behind the other in the same arrays. Values are rows, a set's row having one
number per column; a number is `CAP` where there is no way.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from poet.solvers.bounds.compiled import Compiled
from poet.solvers.bounds.suffix_program import FittingSets

Values = npt.NDArray[np.int32]
Masks = npt.NDArray[np.int64]
Places = npt.NDArray[np.int32]

CAP = 1 << 28  # of values; twice that does not overflow
_MOST_BYTES = (1 << 31) - 1  # that are told apart: what is asked for beyond is taken to be there


class Arcs(NamedTuple):
    """Transitions from sets ``begin``, ascending, to ``end``; ``slack``: bytes left beside for residents."""

    begin: Places
    end: Places
    slack: Places

    @classmethod
    def of(cls, begin: npt.NDArray[np.integer], end: npt.NDArray[np.integer], slack: Masks) -> Arcs:
        """Of arrays of any integers."""
        return cls(begin.astype(np.int32), end.astype(np.int32), told_apart(slack))


@dataclass(frozen=True, slots=True)
class Move:
    """``task`` reruns, or ``content`` is paged in, for so many ``units``, and reads residents, ``own``.

    A free has neither.
    """

    units: int = 0
    task: int | None = None
    content: int | None = None
    own: tuple[int, ...] = ()


class Asked(NamedTuple):
    """Of each move and column: units, `CAP` where it is not allowed, and bytes for residents beside it."""

    units: Values
    needed: Places


class Step(NamedTuple):
    """From a set to ``end``, by a move of that number, -1 for a first run; it leaves ``slack`` bytes."""

    end: int
    move: int
    slack: int


class Stage:
    """The sets that fit when a stage begins, the moves within it, and the first run that leads to the next.

    Args:
        sets: that fit.
        moves: in the order in which they are looked at, with their arcs; frees come after them.
        first: arcs to the next stage's sets.
        own: residents that the first run reads.

    Attributes:
        masks, bytes: of each set.
        moves, first, own: see above; with the frees.
        arcs: of all moves.
    """

    def __init__(
        self,
        sets: FittingSets,
        moves: Iterable[tuple[Move, Arcs]],
        first: Arcs,
        own: tuple[int, ...],
    ) -> None:
        self.masks, self.bytes, self.first, self.own = sets.masks, sets.bytes, first, own
        listed = [*moves, *((Move(), _free(*ways)) for ways in zip(sets.having, sets.without, strict=True))]
        self.moves = tuple(move for move, _ in listed)
        parts = zip(_free(_NOWHERE, _NOWHERE), *(arcs for _, arcs in listed), strict=True)
        self._arcs = Arcs(*map(np.concatenate, parts))
        self._offsets = np.cumsum([0, *(len(arcs.begin) for _, arcs in listed)], dtype=np.int64)
        self.arcs = len(self._arcs.begin)

    def relax(self, values: Values, asked: Asked) -> int:
        """Lower ``values``, in place, to the least over any sequence of moves.

        Returns:
            how often all moves were gone through.
        """
        return _relax(values, asked, self._arcs, self._offsets)

    def before_first_run(self, following: Values, needed: Places) -> Values:
        """Values where the first run comes next; ``needed``: bytes for residents beside it, per column."""
        values = np.full((len(self.masks), following.shape[1]), CAP, dtype=np.int32)
        _before_first_run(values, following, self.first, needed)
        return values

    def step(self, values: Values, column: int, asked: Asked, place: int) -> Step | None:
        """A move that comes next on a way of least values from a set; ``None``: there is none."""
        arc = _next_arc(values, column, place, asked, self._arcs, self._offsets)
        if arc < 0:
            return None
        move = int(np.searchsorted(self._offsets, arc, side="right")) - 1
        return Step(int(self._arcs.end[arc]), move, int(self._arcs.slack[arc]))

    def first_run(self, place: int) -> Step | None:
        """The first run from a set; ``None`` where it cannot begin there."""
        at = int(np.searchsorted(self.first.begin, place))
        if at == len(self.first.begin) or self.first.begin[at] != place:
            return None
        return Step(int(self.first.end[at]), -1, int(self.first.slack[at]))


def told_apart(some_bytes: Masks) -> Places:
    """Bytes as arcs have them, at most the most that these tell apart."""
    return np.minimum(some_bytes, _MOST_BYTES).astype(np.int32)


_NOWHERE = np.zeros(0, dtype=np.int32)


def _free(having: Places, without: Places) -> Arcs:
    return Arcs(having, without, np.full(len(having), _MOST_BYTES, dtype=np.int32))


@Compiled
def _relax(values: Values, asked: Asked, arcs: Arcs, offsets: Masks) -> int:
    """See `Stage.relax`. A move looks again at what was lowered since it looked last."""
    columns, cap = values.shape[1], np.int32(CAP)
    lowered = np.ones(len(values), dtype=np.int64)  # per set, the look that lowered it last
    looked = np.zeros(len(offsets) - 1, dtype=np.int64)  # per move, its last look
    look = changed = 1
    rounds = 0
    while True:
        before = look
        rounds += 1
        for move in range(len(looked)):
            last, units, needed = looked[move], asked.units[move], asked.needed[move]
            if last >= changed:
                continue
            look += 1
            looked[move] = look
            if units.min() >= cap:
                continue
            most = needed.max()
            for arc in range(offsets[move], offsets[move + 1]):
                end = arcs.end[arc]
                if lowered[end] < last:
                    continue
                begin, slack, fall = arcs.begin[arc], arcs.slack[arc], np.int32(0)
                if slack >= most:
                    for column in range(columns):
                        value, reached = values[begin, column], values[end, column] + units[column]
                        fall = max(fall, value - reached)
                        values[begin, column] = min(value, reached)
                else:
                    for column in range(columns):
                        value, reached = values[begin, column], values[end, column] + units[column]
                        reached = reached if slack >= needed[column] else cap
                        fall = max(fall, value - reached)
                        values[begin, column] = min(value, reached)
                if fall > 0:
                    lowered[begin] = changed = look
        if changed <= before:
            return rounds


@Compiled
def _before_first_run(values: Values, following: Values, first: Arcs, needed: Places) -> None:
    """See `Stage.before_first_run`."""
    for arc in range(len(first.begin)):
        for column in range(len(needed)):
            if first.slack[arc] >= needed[column]:
                values[first.begin[arc], column] = following[first.end[arc], column]


@Compiled
def _next_arc(values: Values, column: int, place: int, asked: Asked, arcs: Arcs, offsets: Masks) -> int:
    """See `Stage.step`: an arc, or -1."""
    for move in range(len(offsets) - 1):
        low, high, units = offsets[move], offsets[move + 1], asked.units[move, column]
        if units >= CAP:
            continue
        at = low + np.searchsorted(arcs.begin[low:high], place)
        if at < high and arcs.begin[at] == place and arcs.slack[at] >= asked.needed[move, column]:  # noqa: SIM102
            if values[arcs.end[at], column] + units == values[place, column]:
                return int(at)
    return -1
