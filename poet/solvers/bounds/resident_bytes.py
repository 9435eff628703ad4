"""How much RAM the residents of a `poet.solvers.bounds.ram_program.RamProgram` take, for sets of copies.

Of some, which are listed, each set says whether they are paid for. The others are counted in steps: what
page-outs of so many joules free at most, of those that are there in a stage, is a knapsack.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence, Set

import numpy as np
import numpy.typing as npt

from poet.solvers.bounds.followed import Followed
from poet.solvers.bounds.residents import Resident

Bytes = npt.NDArray[np.int64]

ROUNDING = 1e-9  # of joules that are counted in units, by which they may be less


def most_bytes(items: Sequence[tuple[int, float]], unit_joules: float, units: int) -> Bytes:
    """Per number of units, up to ``units``: bytes of ``items`` that together take less than one unit more.

    Items are (bytes, joules); joules are rounded down to units, so no number is too small.
    """
    most = np.zeros(units + 1, dtype=np.int64)
    for size, joules in items:
        cost = int(min(joules / unit_joules * (1.0 + ROUNDING), units + 1))
        if cost == 0:
            most += size
        elif cost <= units:
            np.maximum(most[cost:], most[:-cost] + size, out=most[cost:])
    return most


class ResidentBytes:
    """Of all stages; of several sets of copies, a column each.

    Args:
        of: what is followed, and the residents.
        since: per stage that stands for others before it, the first of them.
        most_joules: at which costs are capped.
        parts: units of the knapsacks in these joules, and in a step.

    Attributes:
        listed: residents of which each column says whether they are paid for.
    """

    def __init__(
        self, of: Followed, since: Mapping[int, int], most_joules: float, parts: tuple[int, int]
    ) -> None:
        self.of, self.most_joules, self._parts = of, most_joules, parts
        self._there = [
            {c: one for c, one in of.residents.items() if one.birth < since.get(n, n) and n <= one.last}
            for n in range(of.end + 1)
        ]
        self._resident = np.zeros((of.end + 1, 0), dtype=np.int64)  # by stage and column
        self._away = np.zeros((0, 0), dtype=np.bool_)  # listed residents that are paid for, by column
        self._spared: Bytes | None = None  # by column
        self.listed: tuple[int, ...] = ()
        self.count_in_steps(most_joules, 0)

    def at(self, number: int) -> Mapping[int, Resident]:
        """Those of a stage, by content."""
        return self._there[number]

    def count_in_steps(self, joules: float, most: int, listed: Iterable[int] = ()) -> None:
        """See `RamProgram.count_in_steps`."""
        self._step_joules, self._most_steps, self.listed = joules, most, tuple(listed)
        self._freed = dict[tuple[tuple[tuple[int, float], ...], bool], Bytes]()
        self._unlisted = dict[tuple[int, int | None], int]()
        self._by_steps = dict[int | None, Bytes]()  # of those that are not listed, by stage
        self._read = dict[tuple[int, ...], tuple[npt.NDArray[np.intp], Bytes]]()
        self._listed_bytes = np.array(
            [[there[c].bytes if c in there else 0 for c in self.listed] for there in self._there],
            dtype=np.int64,
        ).reshape(len(self._there), len(self.listed))

    def unlisted(self, number: int, steps: int | None) -> int:
        """That those that are not listed take at least, in a stage, where their page-outs take less than a
        step more than ``steps``; ``None``: less than the joules at which costs are capped.
        """
        if (number, steps) not in self._unlisted:
            there = [one for c, one in self._there[number].items() if c not in self.listed]
            pageable = tuple((one.bytes, one.away_joules) for one in there if one.away_joules is not None)
            whole = steps is None
            key = pageable, whole
            if key not in self._freed:
                joules, most = (self.most_joules, 0) if whole else (self._step_joules, self._most_steps)
                parts = self._parts[0 if whole else 1]
                self._freed[key] = most_bytes(pageable, joules / parts, (most + 1) * parts - 1)
            freed = self._freed[key][-1 if steps is None else (steps + 1) * self._parts[1] - 1]
            taken = sum(one.bytes for one in there) - int(freed)
            # joules are counted more finely where any may be spent, so that fewer may seem to leave then
            self._unlisted[number, steps] = taken if whole else max(taken, self.unlisted(number, None))
        return self._unlisted[number, steps]

    def of_set(self, number: int, own: Collection[int], steps: int | None, paid: Collection[int]) -> int:
        """Of all in a stage, with those that a transition reads, ``own``, for one set of copies."""
        there, listed = self._there[number], self.listed
        taken = sum(there[c].bytes for c in listed if c in there and (c not in paid or c in own))
        return self.unlisted(number, steps) + taken

    def pay(
        self,
        steps: Sequence[int | None],
        paid: Sequence[Collection[int]],
        spared: Sequence[int] | None = None,
    ) -> None:
        """Set the columns: steps of those that are not listed, and which of those that are are paid for.

        ``spared``: bytes that they take less in each stage, as far as others can be paid for.
        """
        away = [[c in some for some in paid] for c in self.listed]
        self._away = np.array(away, dtype=np.bool_).reshape(len(self.listed), len(paid))
        for some in set(steps) - self._by_steps.keys():
            taken = [self.unlisted(number, some) for number in range(len(self._there))]
            self._by_steps[some] = np.array(taken, dtype=np.int64)
        self._resident = np.stack([self._by_steps[some] for some in steps], axis=1)
        self._resident += self._listed_bytes @ ~self._away
        self._spared = None if spared is None else np.array(spared, dtype=np.int64)

    def beside(self, number: int, own: tuple[int, ...]) -> Bytes:
        """As `of_set`, per column."""
        resident: Bytes = self._resident[number]
        if own not in self._read:
            places = [place for place, c in enumerate(self.listed) if c in own]
            sizes = [self.of.residents[self.listed[place]].bytes for place in places]
            self._read[own] = np.array(places, dtype=np.intp), np.array(sizes, dtype=np.int64)
        read, sizes_read = self._read[own]
        if len(read):
            resident = resident + sizes_read @ self._away[read]
        if self._spared is not None:
            least_bytes = self.unlisted(number, None) + int(sizes_read.sum())
            resident = np.maximum(resident - self._spared, least_bytes)
        return resident

    def counted_of(
        self, number: int, contents: Set[int], reads: frozenset[int] | set[int], paid: Collection[int]
    ) -> tuple[set[int], int]:
        """Those of ``contents`` in whose place a resident of a stage takes as much RAM; and bytes that
        residents take for all of them. One in whose place a run ``reads`` something takes them for that, and
        those that are ``paid`` for take none.
        """
        counted, taken = set[int](), 0
        for resident, one in self._there[number].items():
            stands_for = self.of.stands_for(resident)
            own = {c for c in stands_for if c in contents}
            if not own or resident in paid or not reads.isdisjoint(stands_for):
                continue
            own_bytes = sum(self.of.size_of[c] for c in own)
            taken += min(one.bytes, own_bytes)
            if own_bytes <= one.bytes:
                counted |= own
        return counted, taken
