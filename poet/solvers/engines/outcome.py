"""What an engine is given and what it comes back with; no engine is known here."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from poet.clock import WALL, Clock
from poet.solvers.engines.matrix import Matrix
from poet.tuning import DEFAULT, Tuning

Watcher = Callable[[Sequence[float] | None, float], bool]
"""Called with a better solution's values (or ``None``) and the bound; true stops the engine."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What an engine came back with.

    Attributes:
        values: of the columns, in order; ``None``: no solution found.
        bound_joules: no solution has a smaller objective; ``-inf`` where the engine does not say.
        done: the engine reports that nothing is left to search within the gap set.
        infeasible: the engine reports that there is no solution.
        interrupted: the user stopped it.
    """

    values: tuple[float, ...] | None
    bound_joules: float
    done: bool
    infeasible: bool
    interrupted: bool


@dataclass(frozen=True, slots=True)
class Effort:
    """What an engine may spend and when it may stop.

    Attributes:
        seconds: wall clock; ``None``: no limit.
        most_seconds: wall clock after which an engine in a process of its own is ended, however far it is.
        absolute_joules: gap of the objective at which it may stop.
        relative: the same as a share of the objective, for engines that are given its constant part.
        tuning: how often an engine in a process of its own is polled, and what grace it has.
        clock: by which seconds are counted, and which hears of the work done.
    """

    seconds: float | None
    threads: int
    seed: int
    absolute_joules: float
    relative: float
    most_seconds: float = math.inf
    tuning: Tuning = DEFAULT
    clock: Clock = WALL


@dataclass(frozen=True, slots=True)
class Job:
    """One run of one engine: minimise ``matrix``, from its start if it has one."""

    matrix: Matrix
    effort: Effort
    watcher: Watcher | None
