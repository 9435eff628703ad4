"""The best plan of a search: what the judge accepted, of the least energy."""

from __future__ import annotations

import dataclasses
import time

from poet.errors import InvalidSchedule
from poet.problem import Limits, Problem
from poet.schedule import Schedule
from poet.simulator import Trace, simulate
from poet.solvers.events import Metered
from poet.solvers.overlap import overlap, polish


class Incumbent:
    """Keeps the cheapest schedule among those it is shown, whoever proposes them.

    Attributes:
        schedule, trace: the best so far, ``None`` before the first.
        found_by: who proposed it.
        found_after_seconds: when, since the incumbent was set up.
    """

    def __init__(self, problem: Problem, limits: Limits, metered: Metered | None) -> None:
        self.problem, self.limits, self.metered = problem, limits, metered
        self.schedule: Schedule | None = None
        self.trace: Trace | None = None
        self.found_by = "none"
        self.found_after_seconds = 0.0
        self._started = time.monotonic()
        self._polished_before: set[Schedule] = set()

    def consider(self, schedule: Schedule, found_by: str) -> None:
        """Take ``schedule`` over if the simulator accepts it and it is the best.

        Where transfers run in the background, it is shown with transfers issued early as well, and
        with less waiting.
        """
        proposals = [schedule]
        if self.problem.background_storage:
            try:
                proposals.append(overlap(self.problem, schedule, self.limits.ram_budget_bytes))
                proposals += self._polished(proposals[-1])
            except InvalidSchedule:
                return
        for proposal in proposals:
            try:
                trace = simulate(self.problem, proposal, self.limits)
                if self.metered is not None:
                    within = Limits(joules_budget=self.metered.joules_budget)
                    simulate(self.metered.problem, proposal, within)
            except InvalidSchedule:
                continue
            if self.trace is None or trace.joules < self.trace.joules:
                self.schedule, self.trace, self.found_by = proposal, trace, found_by
                self.found_after_seconds = time.monotonic() - self._started

    def forget(self) -> None:
        """What was proven impossible has no plan."""
        self.schedule = self.trace = None

    def _polished(self, schedule: Schedule) -> list[Schedule]:
        """``schedule`` with less waiting, where that could make it the best plan."""
        limits = self.limits
        timed = limits.deadline_seconds is not None or self.problem.idle_watts > 0.0
        if not timed or schedule in self._polished_before:
            return []
        self._polished_before.add(schedule)
        patient = dataclasses.replace(limits, deadline_seconds=None)
        trace = simulate(self.problem, schedule, patient)
        busy_seconds = max(trace.compute_seconds, trace.page_in_seconds + trace.page_out_seconds)
        least_joules = trace.joules - self.problem.idle_watts * (trace.seconds - busy_seconds)
        if self.trace is not None and least_joules >= self.trace.joules:
            return []
        return [polish(self.problem, schedule, limits)]
