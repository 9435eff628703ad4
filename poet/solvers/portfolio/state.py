"""Where a search stands: its best plan, its best bound, the time left, and whether that is enough.

The simulator validates every schedule before it counts, and a bound that a valid plan contradicts is
forgotten where it is the bound of a single solver.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from poet.problem import Limits, Problem
from poet.problem.schedule import Schedule
from poet.problem.search_record import Advance, Phase, Rejected, SearchRecord, shortened_phases, thinned
from poet.problem.solution import SolveOptions
from poet.solvers.bounds.relaxation import Bound
from poet.solvers.engines.program import Matrix
from poet.solvers.instance.incumbent import Incumbent, Rejections
from poet.solvers.instance.instance import Metered, instance_of
from poet.util import codec
from poet.util.clock import WALL
from poet.util.interrupts import was_told

_log = logging.getLogger(__name__)

Steps = Generator[bool]
"""Of a member's work, with pauses between: `GOES_ON`, or `WAITS` for what others may bring."""

GOES_ON, WAITS = False, True

# who finds plans and bounds: what an answer gives as its ``solver``, and its record
GREEDY = "greedy"
WALKS = "LP-guided rollout, highs"
ROUNDS = "neighbourhood search, highs"
LOCAL = "local search over what each use comes from"
COPIES = "search over copies in storage"
LINEAR = "windows relaxation, summed from duals"
WHOLE = "windows relaxation in whole numbers, highs"
REFUTED = "what is left after a second opinion"

_REFUTED = 1e-6  # of a plan's joules


def model_by(engine: str) -> str:
    """The event model, solved by ``engine``; of two side by side it is not known which found the plan."""
    return f"event model, {engine}"


def refutes(plan_joules: float, bound_joules: float) -> bool:
    """Whether a plan takes so much less than a bound that rounding does not explain it."""
    return bound_joules > (1.0 + _REFUTED) * plan_joules


class Recorder:
    """Keeps phases, best plans, highest bounds and rejections of one search.

    Args:
        clock: seconds of the search's clock.
    """

    def __init__(self, *, clock: Callable[[], float] = WALL.now) -> None:
        self.rejections, self._clock, self._began = Rejections(), clock, clock()
        self._phases, self._plans, self._bounds = list[Phase](), list[Advance](), list[Advance]()

    def plan(self, amount: float, by: str) -> None:
        """A plan is the best from now on."""
        self._plans.append(Advance(self._seconds(), amount, by))
        _log.info("plan %.9g, by %s", amount, by)

    def bound(self, amount: float, by: str) -> None:
        """The bound that holds from now on; passed over where it is the one that holds already."""
        if not self._bounds or amount != self._bounds[-1].amount:
            self._bounds.append(Advance(self._seconds(), amount, by))
            _log.info("bound %.9g, by %s", amount, by)

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
                "ends: %s; %.3f s, %d better plans, %.6g less, bound %+.6g",
                name, end - begin, found, saved, raised,
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


class BestBound:
    """Keeps the highest of the bounds that it is given.

    Attributes:
        joules: of a step; no plan takes less.
        claim: of a single solver that it is, for a program that is kept; ``None``: see ``alone``.
        alone: it is the bound of a single solver for a program that is not kept; else arithmetic proves it.
        after_seconds: of the search, when it was last improved.
    """

    def __init__(self, baseline_joules: float) -> None:
        self.joules = self._sure_joules = baseline_joules  # the latter rests on no single solver
        self.claim: Claim | None = None
        self.alone, self.after_seconds = False, 0.0

    def take(self, joules: float, seconds: float, claim: Claim | None, *, proven: bool) -> None:
        """Take over a bound, if it is the highest; see `SearchState.take_bound`."""
        if proven and claim is None:
            self._sure_joules = max(self._sure_joules, joules)
        if joules > self.joules:
            self.joules, self.claim, self.alone = joules, claim, not proven and claim is None
            self.after_seconds = seconds

    def meet(self, joules: float) -> None:
        """Forget the bound of a single solver, where a plan of ``joules`` refutes it."""
        if (self.alone or self.claim is not None) and refutes(joules, self.joules):
            self.forget()

    def forget(self) -> None:
        """It was refuted: nothing is known but what sums of our own prove."""
        self.joules, self.claim, self.alone = self._sure_joules, None, False


class SearchState:
    """The best plan and the best bound of one search, and its clock.

    Args:
        problem, limits, options: as in `poet.solvers.search.least_energy.solve`.
        engine: that solves the models, for the log.
        metered: an energy budget where something else is minimised.

    Attributes:
        instance: the problem, numbered.
        baseline_joules: of running every op once with no transfer.
        best, bound, recorder: the best plan, the best bound, and when they were found.
        known: the bound of an earlier search that holds for this one; ``None``: there is none.
        empty: the claim that has no solution, as a single solver says.
        planned: the same, in time even if no transfer runs beside compute: plans are made for it.
        first: the best plan when the members begin.
        guide: the last solution of the relaxation that was better than the best plan.
        refuted: a relaxation has no solution, so that there is no plan.
        turn_end: of the member whose turn it is, on the clock.
        alone: all other members wait or left, so that nobody brings what the one whose turn it is waits for.
        stopped: Ctrl-C was pressed.
    """

    def __init__(
        self, problem: Problem, limits: Limits, options: SolveOptions, engine: str,
        metered: Metered | None,
    ) -> None:  # fmt: skip
        self.problem, self.limits, self.options = problem, limits, options
        self.clock, self.started = options.clock, options.clock.now()
        self.recorder = Recorder(clock=self.clock.now)
        numbered = partial(instance_of, problem, limits, metered=metered)
        self.instance = self.planned = numbered()
        if problem.background_storage and limits.deadline_seconds is not None and not self.instance.serial:
            self.planned = numbered(serial=True)
        self.baseline_joules = problem.compute_joules
        rejections = self.recorder.rejections
        self.best = Incumbent(
            problem, limits, metered, polishes=True, rejections=rejections, clock=self.clock
        )
        self.bound = BestBound(self.baseline_joules)
        self.empty: Claim | None = None
        self.stopped = self.refuted = self.alone = False
        self.engine, self.metered, self.turn_end = engine, metered, math.inf
        self.first: Schedule | None = None
        self.guide: Bound | None = None
        _log.info(
            "%s: %d ops, %d tensor versions, engine %s, seed %d, limits %s", problem.name,
            len(self.instance.tasks), len(self.instance.contents), engine, options.seed, codec.encode(limits),
        )  # fmt: skip
        self.recorder.bound(self.bound.joules, "running every op once")
        known, self.known = options.start.bound, None
        if known is not None and metered is None and known.holds_for(problem, limits):
            self.known = known
            self.take_bound(known.joules - self.baseline_joules, "an earlier search", proven=False)

    def consider(self, schedule: Schedule | None, found_by: str, *, is_ours: bool = True) -> bool:
        """Judge a plan; whether it is the best. It refutes a higher bound of a single solver.

        ``is_ours``: the simulator should accept it; not so the caller's plans.
        """
        better = self.best.consider(schedule, found_by, is_ours=is_ours)
        if better and self.best.trace is not None:
            self.recorder.plan(self.best.trace.joules, found_by)
            self.bound.meet(self.best.trace.joules)
            self.recorder.bound(self.bound.joules, f"what is left beside a plan by {found_by}")
            self.report()
        return better

    def take_bound(
        self, overhead: float, found_by: str, claim: Claim | None = None, *, proven: bool = True
    ) -> None:
        """A bound on the overhead above running every op once, kept if it is the highest.

        Args:
            overhead: in joules.
            found_by: for the record.
            claim: of the engine whose bound it is.
            proven: without a claim, by sums of our own rather than the bound of a single solver.
        """
        if math.isfinite(overhead):
            seconds = self.clock.now() - self.started
            self.bound.take(self.baseline_joules + overhead, seconds, claim, proven=proven)
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
        return math.inf if limit is None else limit - (self.clock.now() - self.started)
