"""The incumbent: of the schedules that the simulator accepts, the one of least energy.

Where storage works in the background, each schedule is simulated as it is and with transfers issued early:
most makers write a tensor when they drop it and read it right before its use, which is best where transfers
block.
"""

from __future__ import annotations

import dataclasses
import logging
from collections import Counter
from dataclasses import dataclass, field

from poet.clock import WALL, Clock
from poet.errors import InvalidSchedule
from poet.problem import Limits, Problem
from poet.schedule import Schedule
from poet.simulator import Trace, simulate
from poet.solvers.instance.instance import Metered
from poet.solvers.instance.overlap import overlap, polish

_OF_THE_WHOLE = frozenset({"deadline", "energy", "pin"})
"""Rules about the whole step: a heuristic does not observe them, so breaking one is no fault."""

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Rejections:
    """What the simulator rejected, by rule; the incumbents of one search count into the same.

    Attributes:
        schedules: how many.
        faults: of them, our own that break a rule which their makers look after. Each is a bug of a maker
            or a rounding error of an engine.
    """

    schedules: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)


class Incumbent:
    """Keeps the schedule of least energy among those that are proposed, by whichever maker.

    Args:
        problem: what is planned.
        limits: what a schedule must be within.
        metered: an energy budget where something else is minimised.
        polishes: where transfers run in the background, propose each schedule with less waiting as well.
        rejections: where to count what the simulator rejects; ``None``: here alone.
        clock: of the search.

    Attributes:
        schedule, trace: the best so far, ``None`` before the first.
        found_by: who proposed it.
        found_after_seconds: when, since the incumbent was set up.
        rejections: by rule, what the simulator rejected.
    """

    def __init__(
        self,
        problem: Problem,
        limits: Limits,
        metered: Metered | None = None,
        *,
        polishes: bool = False,
        rejections: Rejections | None = None,
        clock: Clock = WALL,
    ) -> None:
        self.problem, self.limits, self.metered, self.polishes = problem, limits, metered, polishes
        self.schedule: Schedule | None = None
        self.trace: Trace | None = None
        self.found_by = "none"
        self.found_after_seconds = 0.0
        self.rejections = Rejections() if rejections is None else rejections
        self.clock, self._started = clock, clock.now()
        self._polished_before: set[Schedule] = set()

    def consider(
        self, schedule: Schedule | None, found_by: str = "a heuristic", *, is_ours: bool = True
    ) -> bool:
        """Judge ``schedule`` and keep it if it is the best so far; whether it is.

        Args:
            schedule: a proposal; ``None``: there is none.
            found_by: its maker.
            is_ours: it was made for this problem and these limits, so that the simulator should accept it.
        """
        if schedule is None:
            return False
        better = False
        try:
            for proposal in self._proposals(schedule):
                better = self._take(proposal, found_by, is_ours=is_ours) or better
        except InvalidSchedule as verdict:  # not even a schedule whose transfers could be issued early
            self._reject(verdict, found_by, is_ours=is_ours)
        return better

    def forget(self) -> None:
        """What was proven impossible has no plan."""
        self.schedule = self.trace = None

    def _proposals(self, schedule: Schedule) -> list[Schedule]:
        if not self.problem.background_storage:
            return [schedule]
        early = overlap(self.problem, schedule, self.limits.ram_budget_bytes)
        return [schedule, early, *self._polished(early)] if self.polishes else [schedule, early]

    def _take(self, schedule: Schedule, found_by: str, *, is_ours: bool) -> bool:
        self.clock.spend(schedules=1)
        try:
            trace = simulate(self.problem, schedule, self.limits)
            if self.metered is not None:
                within = Limits(joules_budget=self.metered.joules_budget)
                simulate(self.metered.problem, schedule, within)
        except InvalidSchedule as verdict:
            self._reject(verdict, found_by, is_ours=is_ours)
            return False
        if self.trace is not None and trace.joules >= self.trace.joules:
            return False
        self.schedule, self.trace, self.found_by = schedule, trace, found_by
        self.found_after_seconds = self.clock.now() - self._started
        return True

    def _reject(self, verdict: InvalidSchedule, found_by: str, *, is_ours: bool) -> None:
        self.rejections.schedules[verdict.rule] += 1
        if is_ours and verdict.rule not in _OF_THE_WHOLE:
            self.rejections.faults[verdict.rule] += 1
            _log.warning("the judge rejects a schedule of %s: rule %s, %s", found_by, verdict.rule, verdict)
        else:
            _log.debug("a schedule of %s is passed over: rule %s, %s", found_by, verdict.rule, verdict)

    def _polished(self, schedule: Schedule) -> list[Schedule]:
        """``schedule`` with less waiting, where that could make it the best plan."""
        limits = self.limits
        timed = limits.deadline_seconds is not None or self.problem.idle_watts > 0.0
        if not timed or schedule in self._polished_before:
            return []
        self._polished_before.add(schedule)
        trace = simulate(self.problem, schedule, dataclasses.replace(limits, deadline_seconds=None))
        busy_seconds = max(trace.compute_seconds, trace.page_in_seconds + trace.page_out_seconds)
        least_joules = trace.joules - self.problem.idle_watts * (trace.seconds - busy_seconds)
        if self.trace is not None and least_joules >= self.trace.joules:
            return []
        return [polish(self.problem, schedule, limits)]
