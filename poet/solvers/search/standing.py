"""Where a search stands: its best plan, its best bound, the time left, and whether that is enough.

Every schedule is judged by the simulator before it counts, and a bound that a judged plan contradicts is
forgotten where it is an engine's word alone.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass

from poet import codec
from poet.problem import Limits, Problem
from poet.schedule import Schedule
from poet.solution import ClassBound, SolveOptions
from poet.solvers.event_model.model import EventModel
from poet.solvers.instance.incumbent import Incumbent
from poet.solvers.instance.instance import Metered, instance_of
from poet.solvers.search.best_bound import BestBound
from poet.solvers.search.finders import EARLIER, EVERY_OP_ONCE
from poet.solvers.search.recorder import Recorder

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Claim:
    """A relaxed model of which an engine said that it has no solution, or none below a bound.

    Attributes:
        model: that was solved.
        engine: whose word it is; a second opinion is another's.
    """

    model: EventModel
    engine: str


class Standing:
    """The best plan and the best bound of one search, and its clock.

    Args:
        problem, limits, options: as in `poet.solvers.search.least_energy.solve`.
        engine: that solves the models, for the log.
        metered: an energy budget where something else is minimised.

    Attributes:
        instance: the problem, numbered.
        serial: the same, in time even if no transfer runs beside compute.
        baseline_joules: of running every op once with no transfer.
        best, bound, recorder: the best plan, the best bound, and when they were found.
        class_bound: of large problems, a bound for the class of plans that was searched.
        known: the bound of an earlier search that holds for this one; ``None``: there is none.
        empty: the claim that has no solution by an engine's word.
        seed: of what is random; restarts take others.
        stopped: Ctrl-C was pressed.
    """

    def __init__(
        self, problem: Problem, limits: Limits, options: SolveOptions, engine: str, metered: Metered | None
    ) -> None:
        self.problem, self.limits, self.options = problem, limits, options
        self.tuning, self.seed = options.tuning.search, options.seed
        self.clock, self.started = options.clock, options.clock.now()
        self.recorder = Recorder(options.objective, clock=self.clock.now)
        self.instance = instance_of(problem, limits, metered=metered, tuning=options.tuning)
        self.serial = (
            self.instance
            if self.instance.serial
            else instance_of(problem, limits, serial=True, metered=metered, tuning=options.tuning)
        )
        self.baseline_joules = problem.compute_joules
        self.best = Incumbent(
            problem,
            limits,
            metered,
            thorough=True,
            rejections=self.recorder.rejections,
            tuning=options.tuning,
            clock=self.clock,
        )
        self.bound = BestBound[Claim](self.baseline_joules, self.clock)
        self.class_bound: ClassBound | None = None
        self.empty: Claim | None = None
        self.stopped = False
        _log.info(
            "%s: %d ops, %d tensor versions, engine %s, seed %d, limits %s", problem.name,
            len(self.instance.tasks), len(self.instance.contents), engine, self.seed, codec.encode(limits),
        )  # fmt: skip
        self.recorder.bound(self.bound.joules, EVERY_OP_ONCE)
        known, self.known = options.known_bound, None
        if known is not None and metered is None and known.holds_for(problem, limits):
            self.known = known
            self.take_bound(known.joules - self.baseline_joules, EARLIER, proven=False)

    def consider(self, schedule: Schedule, found_by: str, *, is_ours: bool = True) -> None:
        """Judge a plan; one that takes less than a bound refutes an engine's word for that bound.

        ``is_ours``: the judge should accept it; not so the caller's plans and those of relaxed models.
        """
        better = self.best.consider(schedule, found_by, is_ours=is_ours)
        if better and self.best.trace is not None:
            self.recorder.plan(self.best.trace.joules, found_by)
        if self.best.trace is not None:
            self.bound.meet(self.best.trace.joules)
            self.recorder.bound(self.bound.joules, f"what is left beside a plan by {found_by}")

    def take_bound(
        self, overhead: float, found_by: str, claim: Claim | None = None, *, proven: bool = True
    ) -> None:
        """A bound on the overhead, kept if it is the highest."""
        self.bound.take(overhead, claim, proven=proven)
        self.recorder.bound(self.bound.joules, found_by)

    def report(self) -> None:
        """Tell whoever watches."""
        if self.options.progress is None:
            return
        joules = None if self.best.trace is None else self.best.trace.joules
        gap = None if joules is None else max(0.0, joules - self.bound.joules) / joules if joules else 0.0
        self.options.progress(joules, self.bound.joules, gap, self.clock.now() - self.started)

    def closed(self, bound_joules: float) -> bool:
        """Whether the best plan is within both gaps of ``bound_joules``."""
        if self.best.trace is None:
            return False
        joules = self.best.trace.joules
        return joules - bound_joules <= self.options.allowed_gap_joules(joules, self.baseline_joules)

    def enough(self) -> bool:
        """Whether the gap is closed, or the options' ``enough_joules`` is reached or out of reach."""
        enough = self.options.enough_joules
        if enough is not None and (self.best.trace is not None and self.best.trace.joules <= enough):
            return True
        return self.closed(self.bound.joules) or (enough is not None and self.bound.joules > enough)

    def finished(self) -> bool:
        """Whether it is enough, the time is up, or Ctrl-C was pressed."""
        return self.stopped or self.enough() or self.seconds_left() <= 0.0

    def seconds_left(self) -> float:
        """Of the time limit; infinite without one."""
        limit = self.options.time_limit_seconds
        if limit is None:
            return math.inf
        spare_seconds = self.options.spare_seconds if self.best.trace is None else 0.0
        return limit - spare_seconds - (self.clock.now() - self.started)
