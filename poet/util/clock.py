"""The clock that a search asks for the time: the wall's, or one that counts the work done.

On the wall a search that is cut by its time limit ends elsewhere on another machine, or beside another
load. By a `WorkClock` it ends at the same place everywhere, and the same search finds the same plan: for
tests and for the table of gaps.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field

_MOST_COUNT = 2**31 - 1  # that HiGHS takes as a limit


class Clock:
    """The wall clock; `WALL` is the one there is."""

    counts_work = False

    def now(self) -> float:
        """Seconds since some moment."""
        return time.monotonic()

    def spend(
        self,
        *,
        programs: int = 0,
        iterations: int = 0,
        nodes: int = 0,
        schedules: int = 0,
        engine_seconds: float = 0.0,
    ) -> None:
        """Work was done; on the wall it took its time already.

        Args:
            programs: that an engine began.
            iterations: of the simplex method.
            nodes: of branch and bound.
            schedules: judged.
            engine_seconds: of an engine's own deterministic time.
        """

    def most_iterations(self, seconds: float) -> int | None:
        """Simplex iterations that take ``seconds``; ``None``: the wall clock is the limit."""

    def most_nodes(self, seconds: float) -> int | None:
        """Nodes of branch and bound that take ``seconds``; ``None``: the wall clock is the limit."""

    def __repr__(self) -> str:
        return "the wall clock"

    def __eq__(self, other: object) -> bool:
        return self is other or type(self) is type(other) is Clock

    def __hash__(self) -> int:
        return object.__hash__(type(self))


WALL = Clock()


@dataclass(repr=False, eq=False)
class WorkClock(Clock):
    """Advances by so many seconds for each piece of work, about what they take on a desktop core.

    An engine hears of limits as numbers of iterations or nodes, so it may spend more than it was allowed, by
    the same amount each time. What is not counted takes no time. One clock serves one search.

    Attributes:
        program_seconds: for a program that an engine begins.
        iteration_seconds: for an iteration of the simplex method.
        node_seconds: for a node of branch and bound.
        schedule_seconds: for a judged schedule.
        spent_seconds: so far.
    """

    program_seconds: float = 0.02
    iteration_seconds: float = 5e-4
    node_seconds: float = 0.02
    schedule_seconds: float = 2e-3
    spent_seconds: float = field(default=0.0, init=False)

    counts_work = True

    def now(self) -> float:
        """Seconds that the work so far counts."""
        return self.spent_seconds

    def spend(
        self,
        *,
        programs: int = 0,
        iterations: int = 0,
        nodes: int = 0,
        schedules: int = 0,
        engine_seconds: float = 0.0,
    ) -> None:
        self.spent_seconds += (
            programs * self.program_seconds
            + iterations * self.iteration_seconds
            + nodes * self.node_seconds
            + schedules * self.schedule_seconds
            + engine_seconds
        )

    def most_iterations(self, seconds: float) -> int | None:
        return _count(seconds / self.iteration_seconds)

    def most_nodes(self, seconds: float) -> int | None:
        return _count(seconds / self.node_seconds)

    def __repr__(self) -> str:
        rates = (self.program_seconds, self.iteration_seconds, self.node_seconds, self.schedule_seconds)
        return f"a clock of work at {rates} seconds"


def _count(number: float) -> int:
    """At least one, and no more than an engine takes."""
    return max(1, math.ceil(min(number, float(_MOST_COUNT))))
