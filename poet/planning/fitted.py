"""A solution in its arena, and a schedule that may become one."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace

from poet.homes import DecidedProblem
from poet.planning.arena_search import LaidOut
from poet.plans.plan_parts import Arena
from poet.search_record import SearchRecord
from poet.simulator import Trace
from poet.solution import Solution
from poet.units import format_bytes

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Fitted:
    """A solution with the layout of its schedule.

    Attributes:
        problem: that was solved, with every home as the schedule has it.
        solution: its bound and gap are for the whole budget.
        arena: offsets of all blocks that the schedule needs.
        reserved_bytes: of the budget, for gaps between tensors and for the page buffer.
    """

    problem: DecidedProblem
    solution: Solution
    arena: Arena
    reserved_bytes: int


@dataclass(frozen=True, slots=True)
class Candidate:
    """A schedule that may become the plan, at fixed places that may not fit.

    Attributes:
        answer: with the schedule.
        laid: out.
        reserved_bytes: of the budget, that it is without.
        record: of all searches up to it.
    """

    answer: Solution
    laid: LaidOut
    reserved_bytes: int
    record: SearchRecord

    @property
    def trace(self) -> Trace:
        """Of a step, without moves."""
        assert self.answer.trace is not None
        return self.answer.trace

    @property
    def peak_bytes(self) -> int:
        """Of the schedule."""
        return self.trace.peak_ram_bytes


def from_the_heap(loose: Fitted, taken_bytes: int) -> Fitted:
    """``loose``, which takes ``taken_bytes`` with its arena, more than the budget, and says so."""
    size = format_bytes(taken_bytes)
    _log.info("no layout inside the budget was found; the plan takes %s with its gaps", size)
    what = f"With the gaps between its tensors the plan takes {size}: it runs from the heap."
    message = " ".join(filter(None, (loose.solution.message, what)))
    return replace(loose, solution=replace(loose.solution, message=message))
