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
    """Positions of sets, ascending: ``high`` of those that hold one content (or several) besides ``low``."""

    low: Places
    high: Places


class Rules(NamedTuple):
    """Per move, as `Move` has it: its first and last pair, whether it goes down, and what it needs."""

    first: Masks
    last: Masks
    down: Flags
    needs: Masks


class FirstRun(NamedTuple):
    """Sets in which it may ``begin``, those of the next stage to which it leads, and bytes left beside it."""

    begin: Places
    end: Places
    slack: Masks


@dataclass(frozen=True, slots=True)
class FittingSets:
    """Every set of tracked versions that fits into RAM.

    Attributes:
        masks, bytes: per set, its contents as bits, which ascend, and its bytes.
        without, having: per bit, the sets that lack it and have room for it, and the same with it.
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
    """A rerun, or ``content`` is paged in, or (``frees``) contents are freed.

    Attributes:
        pairs: those that it goes along: from low to high, a free from high to low.
        units: its joules, in units of the program (`RamProgram.joules_per_unit`), rounded down.
        needs: contents, as bits of the stage, that the set in which it begins must hold.
        most_bytes: that this set may take.
        room_bytes: that this set and the residents may take together.
    """

    pairs: range
    units: int = 0
    content: int | None = None
    frees: bool = False
    needs: int = 0
    most_bytes: int = _MOST_BYTES
    room_bytes: int = 2 * _MOST_BYTES


class Stage:
    """The sets that fit when a stage begins, the moves within it, and the first run that leads to the next.

    Args:
        sets: that fit.
        pairs: of sets.
        moves: in the order in which they are looked at.
        first: the stage's first run.

    Attributes:
        masks: of each set.
        moves, first: see above.
        arcs: that all moves together go along.
    """

    def __init__(self, sets: FittingSets, pairs: Pairs, moves: Iterable[Move], first: FirstRun) -> None:
        self.masks, self.first, self.moves = sets.masks, first, tuple(moves)
        self._bytes, self._pairs = sets.bytes, pairs
        of_moves = [
            (m.pairs.start, m.pairs.stop, m.frees, m.needs, m.most_bytes, m.room_bytes) for m in self.moves
        ]
        table = np.array(of_moves, dtype=np.int64).reshape(len(of_moves), 6)
        first_pair, last_pair, down, needs, most, room = (np.ascontiguousarray(part) for part in table.T)
        self._rules = Rules(first_pair, last_pair, down.astype(np.bool_), needs)
        self._most_bytes, self._room_bytes = most, room
        self.arcs = sum(len(move.pairs) for move in self.moves)

    def relax(self, values: Values, units: Values, held_bytes: int) -> int:
        """Lower ``values``, in place, to the least over any sequence of moves.

        Args:
            values: a row for each set, of one number per column; `CAP` where there is no way.
            units: of each move and column; `CAP` where it is not allowed.
            held_bytes: by residents.

        Returns:
            how often all moves were gone through.
        """
        limits = np.minimum(self._most_bytes, self._room_bytes - held_bytes)
        return relax(values, units, limits, self.masks, self._bytes, self._pairs, self._rules)

    def before_first_run(self, following: Values, held_bytes: int) -> Values:
        """Values where the first run comes next."""
        values = np.full((len(self.masks), following.shape[1]), CAP, dtype=np.int32)
        fits = self.first.slack >= held_bytes
        values[self.first.begin[fits]] = following[self.first.end[fits]]
        return values


def relax(
    values: Values, units: Values, limits: Masks, masks: Masks, sizes: Masks, pairs: Pairs, rules: Rules
) -> int:
    """Lower ``values``, in place, to the least over any sequence of moves; how often all were gone through.

    ``limits``: bytes of a set in which a move may begin. A move looks again at what was lowered since it
    looked last.
    """
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
            last, price = looked[move], units[move]
            if last > changed:
                continue
            look += 1
            looked[move] = look
            if price.min() >= cap:
                continue
            needs, most_bytes = rules.needs[move], limits[move]
            for pair in range(rules.first[move], rules.last[move]):
                begin, end = pairs.low[pair], pairs.high[pair]
                if rules.down[move]:
                    begin, end = end, begin
                if lowered[end] < last or masks[begin] & needs != needs or sizes[begin] > most_bytes:
                    continue
                is_lower = False
                for column in range(columns):
                    value, reached = values[begin, column], np.int32(values[end, column] + price[column])
                    is_lower |= reached < value
                    values[begin, column] = min(value, reached)
                if is_lower:
                    lowered[begin] = changed = look
        if changed <= before:
            return rounds


def raise_bounds(bounds: Joules, masks: Masks, outs: Joules, joules: Joules, without: Masks) -> None:
    """Raise the bound of each set to the first cut, of the highest first, nothing of which it has."""
    for place in range(len(masks)):
        for cut in range(len(joules)):
            if masks[place] & without[cut] == 0:
                bounds[place] = max(bounds[place], outs[place] + joules[cut])
                break
