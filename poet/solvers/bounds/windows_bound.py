"""Bounds from the linear program of the windows relaxation (`poet.solvers.bounds.relaxation`)."""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import dataclass, replace

from poet.clock import WALL, Clock
from poet.solvers.bounds.relaxation import Relaxation, relax
from poet.solvers.engines.highs import LinearAnswer, minimise
from poet.solvers.instance.instance import Instance

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Bound:
    """A lower bound for every schedule of an instance whose first runs keep the listed order.

    Attributes:
        overhead_joules: no schedule takes less above running every op once; ``inf``: there is none.
        moments: added to the grids beside the fixed ones.
        relaxation, answer: the program, and its solution with the duals that prove the bound.
        seconds: of the search's clock, that making and solving the program took.
    """

    overhead_joules: float
    moments: frozenset[int]
    relaxation: Relaxation
    answer: LinearAnswer
    seconds: float = 0.0


def bound_overhead(
    instance: Instance, *, seconds: float = 60.0, moments: Collection[int] = (), clock: Clock = WALL
) -> Bound:
    """The bound that the linear program of the relaxation gives in ``seconds``.

    A run that is cut short gives a weaker bound, still a valid one.

    Args:
        instance: what to bound.
        seconds: of ``clock``.
        moments: to put on the grids of what may be remade or remade from.
        clock: of the search.
    """
    started = clock.now()
    relaxation = relax(instance, moments)
    left = seconds - (clock.now() - started)
    answer = minimise(relaxation.program.matrix(), seconds=left, clock=clock)
    overhead, spent_seconds = relaxation.fixed_joules + answer.bound, clock.now() - started
    _log.info(
        "windows relaxation, linear program at %d moments: overhead at least %.9g after %.3f s%s",
        len(moments), overhead, spent_seconds, "" if answer.done else ", cut short",
    )  # fmt: skip
    return Bound(overhead, frozenset(moments), relaxation, answer, spent_seconds)


def taken_up(bound: Bound, *, seconds: float, clock: Clock = WALL) -> Bound:
    """``bound``, whose run was cut short, after ``seconds`` more; itself, where there is nothing to go on."""
    if bound.answer.go_on is None:
        return bound
    started = clock.now()
    answer = bound.answer.go_on(seconds)
    spent_seconds = bound.seconds + clock.now() - started
    overhead = max(bound.overhead_joules, bound.relaxation.fixed_joules + answer.bound)
    _log.info(
        "windows relaxation, linear program taken up again: overhead at least %.9g%s",
        overhead, "" if answer.done else ", cut short",
    )  # fmt: skip
    return replace(bound, overhead_joules=overhead, answer=answer, seconds=spent_seconds)
