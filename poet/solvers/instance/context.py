"""What a part of the search gets from the whole: its clock, and where to put what is found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from poet.clock import WALL, Clock
from poet.schedule import Schedule


@dataclass(frozen=True, slots=True)
class Conduct:
    """What a search lends to its parts.

    Attributes:
        seconds_left: of ``clock``; may be infinite.
        finished: whether to stop.
        found: called with each better schedule and who found it (`poet.solvers.search.finders`).
        bounded: called with a bound on the overhead in joules, of every plan, and whether it is proven by
            sums of our own rather than an engine's word; false if a plan refutes it.
        classed: called with a bound on the overhead in joules of the class that the best plan is of,
            and the number of reruns that plans of the class may choose from.
        threads, seed, clock: as in `poet.solution.SolveOptions`.
    """

    seconds_left: Callable[[], float]
    finished: Callable[[], bool]
    found: Callable[[Schedule, str], None]
    bounded: Callable[[float, bool], bool]
    classed: Callable[[float, int], None]
    threads: int
    seed: int
    clock: Clock = WALL
