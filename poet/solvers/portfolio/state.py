"""Where a search stands: its best plan, its best bound, the time left, and whether that is enough.

The simulator validates every schedule before it counts, and a bound that a valid plan contradicts is
forgotten where it is the bound of a single solver.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from poet import codec
from poet.clock import WALL
from poet.interrupts import was_told
from poet.problem import Limits, Objective, Problem
from poet.schedule import Schedule
from poet.search_record import Advance, Phase, Rejected, SearchRecord, shortened_phases, thinned
from poet.solution import SolveOptions
from poet.solvers.bounds.relaxation import Bound
from poet.solvers.engines.program import Matrix
from poet.solvers.instance.incumbent import Incumbent, Rejections
from poet.solvers.instance.instance import Metered, instance_of
from poet.solvers.portfolio.best_bound import EARLIER, EVERY_OP_ONCE, BestBound

_log = logging.getLogger(__name__)

Steps = Generator[bool]
"""Of a member's work, with pauses between: `GOES_ON`, or `WAITS` for what others may bring."""

GOES_ON, WAITS = False, True


_UNITS = {Objective.ENERGY: "J", Objective.TIME: "s", Objective.RAM: "B", Objective.WRITES: "B"}


class Recorder:
    """Keeps phases, best plans, highest bounds and rejections of one search.

    Args:
        objective: whose amounts are kept.
        clock: seconds of the search's clock.
    """

    def __init__(
        self, objective: Objective = Objective.ENERGY, *, clock: Callable[[], float] = WALL.now
    ) -> None:
        self.rejections = Rejections()
        self._unit, self._clock, self._began = _UNITS[objective], clock, clock()
        self._phases: list[Phase] = []
        self._plans: list[Advance] = []
        self._bounds: list[Advance] = []

    def plan(self, amount: float, by: str) -> None:
        """A plan is the best from now on."""
        self._plans.append(Advance(self._seconds(), amount, by))
        _log.info("plan %.9g %s, by %s", amount, self._unit, by)

    def bound(self, amount: float, by: str) -> None:
        """The bound that holds from now on; passed over where it is the one that holds already."""
        if not self._bounds or amount != self._bounds[-1].amount:
            self._bounds.append(Advance(self._seconds(), amount, by))
            _log.info("bound %.9g %s, by %s", amount, self._unit, by)

    def count(self, rejected: Iterable[Rejected]) -> None:
        """Add what the simulator rejected in a search within this one."""
        for one in rejected:
            self.rejections.schedules[one.rule] += one.schedules
            self.rejections.faults[one.rule] += one.faults

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """The block is a phase of the search."""
        begin, plans, bounds = self._seconds(), len(self._plans), len(self._bounds)
        _log.info("begins: %s", name)
        try:
            yield
        finally:
            end, found = self._seconds(), len(self._plans) - plans
            saved = self._plans[plans - 1].amount - self._plans[-1].amount if plans and found else 0.0
            raised = self._bounds[-1].amount - self._bounds[bounds - 1].amount if bounds else 0.0
            self._phases.append(Phase(name, begin, end, found, saved, raised))
            _log.info(
                "ends: %s; %.3f s, %d better plans, %.6g %s less, bound %+.6g %s",
                name, end - begin, found, saved, self._unit, raised, self._unit,
            )  # fmt: skip

    def record(self) -> SearchRecord:
        """What was written down so far."""
        return SearchRecord(
            phases=shortened_phases(self._phases),
            plans=thinned(self._plans),
            bounds=thinned(self._bounds),
            rejected=tuple(
                Rejected(rule, self.rejections.schedules[rule], self.rejections.faults[rule])
                for rule in sorted(self.rejections.schedules)
            ),
        )

    def _seconds(self) -> float:
        return self._clock() - self._began


@dataclass(frozen=True, slots=True)
class Claim:
    """A relaxation of which an engine said that it has no solution, or none below a bound.

    Attributes:
        program: that was solved; joules of its solutions are those of the overhead, less ``fixed_joules``.
        engine: the source of the proof; a second opinion is another's.
    """

    program: Callable[[], Matrix]
    engine: str
    fixed_joules: float = 0.0


class SearchState:
    """The best plan and the best bound of one search, and its clock.

    Args:
        problem, limits, options: as in `poet.solvers.search.least_energy.solve`.
        engine: that solves the models, for the log.
        metered: an energy budget where something else is minimised.
        spare_seconds: of the time limit, left where there is no plan.

    Attributes:
        instance: the problem, numbered.
        baseline_joules: of running every op once with no transfer.
        best, bound, recorder: the best plan, the best bound, and when they were found.
        known: the bound of an earlier search that holds for this one; ``None``: there is none.
        empty: the claim that has no solution, as a single solver says.
        planned: the same, in time even if no transfer runs beside compute: plans are made for it.
        first: the best plan when the members begin.
        guide: the last solution of the relaxation that was better than the best plan.
        asked: reruns that a plan may need, per stage in their order, each of which a model is to be offered.
        refuted: a relaxation has no solution, so that there is no plan.
        turn_end: of the member whose turn it is, on the clock.
        others: members that neither wait nor left, beside the one that runs.
        stopped: Ctrl-C was pressed.
    """

    def __init__(
        self, problem: Problem, limits: Limits, options: SolveOptions, engine: str,
        metered: Metered | None, spare_seconds: float,
    ) -> None:  # fmt: skip
        self.problem, self.limits, self.options = problem, limits, options
        self.spare_seconds = spare_seconds
        self.clock, self.started = options.clock, options.clock.now()
        self.recorder = Recorder(options.objective, clock=self.clock.now)
        numbered = partial(instance_of, problem, limits, metered=metered)
        self.instance = self.planned = numbered()
        if problem.background_storage and limits.deadline_seconds is not None and not self.instance.serial:
            self.planned = numbered(serial=True)
        self.baseline_joules = problem.compute_joules
        rejections = self.recorder.rejections
        self.best = Incumbent(
            problem, limits, metered, polishes=True, rejections=rejections, clock=self.clock
        )
        self.bound = BestBound[Claim](self.baseline_joules, self.clock)
        self.empty: Claim | None = None
        self.stopped = self.refuted = False
        self.engine, self.metered, self.turn_end, self.others = engine, metered, math.inf, 0
        self.first: Schedule | None = None
        self.guide: Bound | None = None
        self.asked = list[Mapping[int, tuple[int, ...]]]()
        _log.info(
            "%s: %d ops, %d tensor versions, engine %s, seed %d, limits %s", problem.name,
            len(self.instance.tasks), len(self.instance.contents), engine, options.seed, codec.encode(limits),
        )  # fmt: skip
        self.recorder.bound(self.bound.joules, EVERY_OP_ONCE)
        known, self.known = options.start.bound, None
        if known is not None and metered is None and known.holds_for(problem, limits):
            self.known = known
            self.take_bound(known.joules - self.baseline_joules, EARLIER, proven=False)

    def consider(self, schedule: Schedule, found_by: str, *, is_ours: bool = True) -> None:
        """Judge a plan; one that takes less than a bound refutes that bound of a single solver.

        ``is_ours``: the simulator should accept it; not so the caller's plans.
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

    def overhead_joules(self) -> float:
        """Of the best plan, above running every op once; infinite without one."""
        return math.inf if self.best.trace is None else self.best.trace.joules - self.baseline_joules

    def noted(self, found_by: str) -> None:
        """A member that works on ``best`` itself made it better."""
        if self.best.trace is not None:
            self.recorder.plan(self.best.trace.joules, found_by)
            self.bound.meet(self.best.trace.joules)
            self.report()

    def open_joules(self) -> float:
        """Between the best plan and the best bound."""
        return math.inf if self.best.trace is None else self.best.trace.joules - self.bound.joules

    def turn_left(self) -> float:
        """Seconds of this turn."""
        return max(self.turn_end - self.clock.now(), 0.01)

    def is_alone(self) -> bool:
        """Whether nobody else is left who could bring what the member whose turn it is waits for."""
        return not self.others

    def turn_is_over(self) -> bool:
        """Whether the member whose turn it is is to pause at its next yield."""
        return self.finished() or self.refuted or self.clock.now() >= self.turn_end

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
        self.stopped = self.stopped or was_told()
        return self.stopped or self.enough() or self.seconds_left() <= 0.0

    def seconds_left(self) -> float:
        """Of the time limit; infinite without one."""
        limit = self.options.time_limit_seconds
        if limit is None:
            return math.inf
        spare_seconds = self.spare_seconds if self.best.trace is None else 0.0
        return limit - spare_seconds - (self.clock.now() - self.started)
