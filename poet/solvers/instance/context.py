"""What a search passes to its parts: clock, threads and seed, and functions that take plans and bounds."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

from poet.clock import WALL, Clock
from poet.schedule import Schedule
from poet.solvers.instance.incumbent import Rejections
from poet.solvers.instance.instance import Metered


@dataclass(frozen=True, slots=True)
class Conduct:
    """The clock of a search, and the functions by which its parts report plans and bounds.

    Attributes:
        seconds_left: of ``clock``, that the part may still use; may be infinite.
        finished: whether to stop.
        found: takes each better schedule and who found it (`poet.solvers.search.finders`).
        bounded: takes a bound on the overhead in joules, of every plan, and whether it is proven by sums of
            our own rather than an engine's word; false if a plan refutes it.
        classed: takes a bound on the overhead in joules of the class that the best plan is of, and the
            number of rerun slots of that class.
        phase: names a part of the search, for as long as the context that it gives.
        metered: an energy budget where something else is minimised.
        rejections: where what the simulator rejects is counted.
        threads, seed, clock: as in `poet.solution.SolveOptions`.
    """

    seconds_left: Callable[[], float]
    finished: Callable[[], bool]
    found: Callable[[Schedule, str], None]
    bounded: Callable[[float, bool], bool]
    classed: Callable[[float, int], None]
    threads: int
    seed: int
    phase: Callable[[str], AbstractContextManager[None]] = lambda name: nullcontext()
    metered: Metered | None = None
    rejections: Rejections = field(default_factory=Rejections)
    clock: Clock = WALL
