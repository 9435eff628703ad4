"""The incumbent: of the schedules that the simulator accepts, the one of least energy.

Where storage works in the background, each schedule is simulated as it is and with its transfers issued
early, inside the same RAM: most makers write a tensor when they drop it and read it right before its use,
which is best where transfers block. What is short is then polished as well.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from poet.errors import InvalidSchedule
from poet.problem import Limits, Problem
from poet.problem.schedule import Compute, Free, PageIn, PageOut, Schedule, Step
from poet.problem.simulator import Trace, simulate
from poet.solvers.instance.instance import Metered
from poet.util.clock import WALL, Clock

_OF_THE_WHOLE = frozenset({"deadline", "energy", "pin"})
"""Rules about the whole step: a heuristic does not observe them, so breaking one is no fault."""

POLISHED_STEPS = 120
"""Of a schedule that is polished, by its square in time. At 0, some small problems miss the optimum."""

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
            _log.warning(
                "the simulator rejects a schedule of %s: rule %s, %s", found_by, verdict.rule, verdict
            )
        else:
            _log.debug("a schedule of %s is passed over: rule %s, %s", found_by, verdict.rule, verdict)

    def _polished(self, schedule: Schedule) -> list[Schedule]:
        """``schedule`` with less waiting, where that could make it the best plan."""
        limits = self.limits
        timed = limits.deadline_seconds is not None or self.problem.idle_watts > 0.0
        if not timed or schedule in self._polished_before:
            return []
        self._polished_before.add(schedule)
        trace = simulate(self.problem, schedule, replace(limits, deadline_seconds=None))
        busy_seconds = max(trace.compute_seconds, trace.page_in_seconds + trace.page_out_seconds)
        least_joules = trace.joules - self.problem.idle_watts * (trace.seconds - busy_seconds)
        if self.trace is not None and least_joules >= self.trace.joules:
            return []
        return [polish(self.problem, schedule, limits)]


# --- transfers beside compute ---


def overlap(problem: Problem, schedule: Schedule, ram_budget_bytes: int | None) -> Schedule:
    """``schedule``, which is valid, with its transfers issued as early as its memory allows."""
    return _read_early(problem, _write_early(problem, schedule), ram_budget_bytes)


def polish(problem: Problem, schedule: Schedule, limits: Limits) -> Schedule:
    """``schedule`` with its frees and transfers moved, one after the other, while that saves time.

    Nothing else changes, so joules fall with the seconds, idle power being all that depends on them.
    Schedules of more than `POLISHED_STEPS` come back as they are. The schedule need not keep
    the deadline; all other rules it must keep, and does afterwards.
    """
    if len(schedule) > POLISHED_STEPS:
        return schedule
    patient = replace(limits, deadline_seconds=None, joules_budget=None)
    touched = {op.name: frozenset((*op.inputs, *op.rerun_inputs, *op.outputs)) for op in problem.ops}
    best, improved = schedule, True
    seconds = simulate(problem, best, patient).seconds
    while improved:
        improved = False
        for index in range(len(best)):
            if isinstance(best[index], Compute):
                continue
            shorter = _moved(problem, touched, best, index, patient, seconds)
            if shorter is not None:
                best, seconds = shorter
                improved = True
    return best


def _moved(
    problem: Problem,
    touched: Mapping[str, frozenset[str]],
    schedule: Schedule,
    index: int,
    limits: Limits,
    seconds: float,
) -> tuple[Schedule, float] | None:
    """The shortest schedule with one step elsewhere, and its seconds; ``None``: none takes less."""
    step, rest = schedule[index], schedule[:index] + schedule[index + 1 :]
    best, least = None, seconds * (1 - 1e-9)
    for direction in (range(index - 1, -1, -1), range(index + 1, len(schedule))):
        for place in direction:
            passed = rest[place] if place < index else rest[place - 1]
            if _meets(touched, step, passed):
                break
            moved = (*rest[:place], step, *rest[place:])
            try:
                taken = simulate(problem, moved, limits).seconds
            except InvalidSchedule:
                continue  # no room here, perhaps further on
            if taken < least:
                best, least = moved, taken
    return None if best is None else (best, least)


def _meets(touched: Mapping[str, frozenset[str]], step: Step, other: Step) -> bool:
    """Whether ``step``, which is no compute, and ``other`` touch the same tensor."""
    if isinstance(step, Compute):
        return True
    return step.tensor in touched[other.op] if isinstance(other, Compute) else step.tensor == other.tensor


def _write_early(problem: Problem, schedule: Schedule) -> Schedule:
    """Each page-out right after the op that made the content."""
    updates = {op.name: op.updates for op in problem.ops}
    outputs = {op.name: op.outputs for op in problem.ops}
    made_at: dict[str, int] = {}
    after: list[list[Step]] = [[] for _ in range(len(schedule) + 1)]
    ran: set[str] = set()
    for index, step in enumerate(schedule, start=1):
        if isinstance(step, Compute):
            made = outputs[step.op] if step.op in ran else (*outputs[step.op], *updates[step.op])
            ran.add(step.op)
            made_at.update(dict.fromkeys(made, index))
            after[index].append(step)
        elif isinstance(step, PageOut):
            after[made_at.get(step.tensor, 0)].append(step)
        else:
            made_at.update({step.tensor: index} if isinstance(step, PageIn) else {})
            after[index].append(step)
    return tuple(step for steps in after for step in steps)


def _read_early(problem: Problem, schedule: Schedule, ram_budget_bytes: int | None) -> Schedule:
    """Each page-in before as many computes as there is room for, in the order of the page-ins."""
    sizes = {tensor.name: problem.aligned_bytes(tensor.bytes) for tensor in problem.tensors}
    budget = math.inf if ram_budget_bytes is None else ram_budget_bytes
    trace = simulate(problem, schedule)
    ordered: list[tuple[Step, int]] = []
    last_moved = 0  # transfers keep their order: the engine serves them one at a time
    for step, moment in zip(schedule, trace.moments, strict=True):
        place = len(ordered)
        if isinstance(step, PageIn):
            size = sizes[step.tensor]
            while place > last_moved and _may_pass(step, ordered[place - 1][0]):
                if ordered[place - 1][1] + size > budget:
                    break
                place -= 1
            for index in range(place, len(ordered)):
                ordered[index] = (ordered[index][0], ordered[index][1] + size)
        if isinstance(step, PageIn | PageOut):
            ordered.insert(place, (step, moment.ram_bytes))
            last_moved = place + 1
        else:
            ordered.append((step, moment.ram_bytes))
    return tuple(step for step, _ in ordered)


def _may_pass(read: PageIn, earlier: Step) -> bool:
    """Whether ``read`` may be issued before ``earlier``."""
    if isinstance(earlier, Free):
        return earlier.tensor != read.tensor
    return isinstance(earlier, Compute)
