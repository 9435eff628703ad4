"""What a master program over copies knows of D, as cuts (`poet.solvers.bounds.copies_master`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from poet.solvers.bounds.followed import Followed
from poet.solvers.bounds.resident_bytes import ROUNDING
from poet.solvers.bounds.residents import Resident


@dataclass(frozen=True, slots=True)
class Cut:
    """Where none of ``without`` has a copy, and residents' page-outs take fewer than ``steps`` of a list
    (0: any number), D is at least ``joules``.
    """

    without: frozenset[int]
    joules: float
    steps: int = 0


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
        if any(cut.without <= new.without and cut.joules >= new.joules for cut in same):
            return False
        implied = {id(cut) for cut in same if new.without <= cut.without and new.joules >= cut.joules}
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
        for cut in self._cuts:
            contents = mine.of.by_content(c for c in cut.without if c >= 0)
            own_steps = frozenset(c for c in cut.without if c < 0)
            steps = 0
            if cut.steps and other.list_step_joules > 0.0 and mine.of.residents == other.of.residents:
                joules = cut.steps * mine.list_step_joules
                steps = int(joules / other.list_step_joules * (1.0 - ROUNDING))
            if contents is not None and (steps or not cut.steps):
                yield Cut(other.of.by_resident(contents) | own_steps, cut.joules, steps)
