"""What a master program over copies knows of D, as cuts (`poet.solvers.bounds.copies_master`)."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from poet.solvers.bounds.followed import Followed
from poet.solvers.bounds.resident_bytes import ROUNDING
from poet.solvers.bounds.residents import Resident


@dataclass(frozen=True, slots=True)
class Cut:
    """Where the copies of a set weigh less than ``need``, and residents' page-outs take fewer than ``steps``
    of a list (0: any number), D is at least ``joules``.

    Attributes:
        weights: by copy, from 1 to ``need``; other copies weigh nothing.
    """

    weights: Mapping[int, int]
    joules: float
    steps: int = 0
    need: int = 1

    @property
    def is_plain(self) -> bool:
        """It says so where none of some copies is there."""
        return self.need == 1

    def implies(self, other: Cut) -> bool:
        """Of one with as many steps: what weighs enough here does so there, and it tells as much."""
        if self.joules < other.joules or not self.weights.keys() <= other.weights.keys():
            return False
        return all(other.weights[c] * self.need >= weight * other.need for c, weight in self.weights.items())


@dataclass(frozen=True, slots=True)
class Counting:
    """How a level counts residents.

    Attributes:
        of: what it follows, and the residents.
        in_steps: residents that have no copy of their own.
        own_step_joules: of these one's steps.
        list_step_joules: of those of its list, which all residents are counted in; 0: there is none.
    """

    of: Followed
    in_steps: Mapping[int, Resident]
    own_step_joules: float
    list_step_joules: float


class Cuts:
    """Those of one level; none that another one implies.

    Args:
        counting: of the level.
    """

    def __init__(self, counting: Counting) -> None:
        self.counting = counting
        self._cuts = list[Cut]()

    def __iter__(self) -> Iterator[Cut]:
        return iter(self._cuts)

    def __reversed__(self) -> Iterator[Cut]:
        return reversed(self._cuts)

    def __len__(self) -> int:
        return len(self._cuts)

    def learn(self, new: Cut) -> bool:
        """Keep it, in place of those that it implies; false where it tells nothing new."""
        same = [cut for cut in self._cuts if cut.steps == new.steps]
        if any(cut.implies(new) for cut in same):
            return False
        implied = {id(cut) for cut in same if new.implies(cut)}
        self._cuts = [cut for cut in self._cuts if id(cut) not in implied]
        self._cuts.append(new)
        return True

    def at(self, other: Counting) -> Iterator[Cut]:
        """As they hold at a level that follows all that this one does, and more.

        Both must count the same residents in the same steps; another may be followed at the one and a copy by
        itself at the other. Cuts of a list's steps hold where all residents are the same.
        """
        mine = self.counting
        if mine.own_step_joules != other.own_step_joules or mine.in_steps != other.in_steps:
            return
        theirs = dict[int, frozenset[int] | None]()  # by copy: what stands for it there
        for cut in self._cuts:
            for copy in cut.weights.keys() - theirs.keys():
                contents = frozenset((copy,)) if copy < 0 else mine.of.by_content((copy,))
                theirs[copy] = contents if copy < 0 or contents is None else other.of.by_resident(contents)
            weights, steps, is_told = dict[int, int](), 0, True
            for copy, weight in cut.weights.items():
                is_told &= theirs[copy] is not None
                for one in theirs[copy] or ():
                    weights[one] = min(weights.get(one, 0) + weight, cut.need)
            if cut.steps and other.list_step_joules > 0.0 and mine.of.residents == other.of.residents:
                joules = cut.steps * mine.list_step_joules
                steps = int(joules / other.list_step_joules * (1.0 - ROUNDING))
            if is_told and (steps or not cut.steps):
                yield Cut(weights, cut.joules, steps, cut.need)


def weighed(
    sizes: Mapping[int, int],
    contents: Collection[int],
    least: Callable[[Sequence[int]], Sequence[float]],
    target: float,
    *,
    columns: int,
    looks: int,
) -> Cut | None:
    """How many bytes residents must free where some contents have no copy; ``None``: perhaps none.

    Residents that are paid for free no more bytes in any stage than they have. So if D reaches the target
    where so many bytes are spared in each stage, it does for all residents that have no more together.

    Args:
        sizes: bytes of residents that are not paid for, and that steps of joules free in a stage at most.
        contents: that have no copy.
        least: D where so many bytes are spared in each stage, as far as ``sizes`` may be paid for.
        target: joules that D is to reach.
        columns: numbers of bytes that ``least`` is asked for at once.
        looks: how often; each finds the most bytes that many times as exactly, of all there are.
    """
    total, unit = sum(sizes.values()), math.gcd(*sizes.values()) or 1
    spared, most, joules = -1, total, math.inf
    for _ in range(looks):
        if spared >= most:
            break
        some = sorted({spared + -(-(most - spared) * n // columns) for n in range(1, columns + 1)})
        for look, value in zip(some, least(some), strict=True):
            if value < target:
                most = look - 1
                break
            spared, joules = look, value
    if spared < 0:
        return None
    if spared >= total:
        return Cut(dict.fromkeys(contents, 1), joules)
    need = spared // unit + 1
    weights = {c: min(size // unit, need) for c, size in sizes.items() if size}
    return Cut(weights | dict.fromkeys(contents, need), joules, need=need)
