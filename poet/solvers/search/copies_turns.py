"""When the search over copies goes on, and for how long: the longer, the more its own pace promises.

Its bound starts at nothing, and rises for a long time before it is the best one, or it stands still at once:
which, no size of a problem tells. So each turn has a share of the time left, and goes on beyond that as long
as the bound, at the pace of late, would close some of the gap within what a longer turn may take.
"""

from __future__ import annotations

import math
from collections.abc import Generator

from poet.closing import Closing
from poet.solvers.bounds.copies import CopiesBound, copies_bounds
from poet.solvers.bounds.pace import Pace
from poet.solvers.bounds.ram_paths import CheapestStep
from poet.solvers.search.few_copies import FewCopies
from poet.solvers.search.finders import COPIES
from poet.solvers.search.model_runs import ModelRuns
from poet.solvers.search.slots_of_plans import followed_by
from poet.solvers.search.standing import Standing


def bounds_below(standing: Standing, joules: float) -> Generator[CopiesBound]:
    """Those of a search over copies for what takes fewer joules above running every op once."""
    return copies_bounds(
        standing.instance,
        below_joules=joules,
        clock=standing.clock,
        finished=standing.finished,
        seconds_left=standing.seconds_left,
    )


class CopiesTurns(Closing):
    """One search over copies, in turns; bounds and plans go to ``runs`` and where they stand.

    Leaving the context ends the solver process of the search, if there is one.

    Args:
        runs: solves the exact event model with the reruns of what was found.
        few_copies: solves it where what was found writes few tensors.
    """

    def __init__(self, runs: ModelRuns, few_copies: FewCopies) -> None:
        self.runs, self.standing, self.few_copies = runs, runs.standing, few_copies
        self.tuning = self.standing.options.tuning.copies
        self._going: Generator[CopiesBound] | None = None
        self._below_joules = math.inf  # of the overhead, that the search is below
        self._pace = Pace()
        self._leads = self._promised = False

    def close(self) -> None:
        """End the search; another turn begins anew."""
        if self._going is not None:
            self._going.close()
        self._going = None

    @property
    def has_begun(self) -> bool:
        """There was a turn."""
        return self._going is not None

    @property
    def leads(self) -> bool:
        """The last turn raised the best bound, or ended while it still promised to."""
        return self._leads or self._promised

    def turn(self, share: float, *, goes_on: bool = True) -> None:
        """Go on for a share of the time left, or longer where that promises something and ``goes_on``."""
        standing, tuning, clock = self.standing, self.tuning, self.standing.clock
        if standing.best.trace is None or share == 0.0 or standing.finished():
            return
        with standing.recorder.phase("search over copies"):
            begun, left_seconds = clock.now(), standing.seconds_left()
            end = begun + min(share * left_seconds, tuning.most_seconds)
            latest_share = max(share, tuning.promising_share) if goes_on else share
            latest = begun + min(latest_share * left_seconds, tuning.most_seconds)
            before_joules, told, planning_seconds = standing.bound.joules, begun, 0.0
            steps = list[CheapestStep]()  # to be tried: the last, and a cheaper one of the level before
            self._promised = False
            while (bound := next(self._bounds(), None)) is not None:
                standing.take_bound(bound.overhead_joules, COPIES, proven=bound.proven)
                standing.report()
                now = clock.now()
                if bound.step is not None:
                    before = [one for one in steps[-1:] if one.copies and one.joules < bound.step.joules]
                    steps, told = [*before, bound.step], now
                self._pace.add(now - begun - planning_seconds, bound.overhead_joules)
                if standing.finished():
                    break
                settled = bound.ended or now - told >= tuning.settled_seconds
                timely = planning_seconds <= tuning.planning_share * (now - begun)
                if steps and steps[-1].copies is not None and settled and timely:
                    self._plan(steps.pop())
                    planning_seconds += clock.now() - now
                self._promised = self._promises(latest - now)
                if now >= end and not (self._promised and now + self._pace.longest_round() <= latest):
                    break
            else:
                self._promised = False
            self._pace.pause()
            self._leads = standing.bound.joules > before_joules
            while steps and not standing.finished():
                self._plan(steps.pop())

    def _plan(self, step: CheapestStep) -> None:
        """A plan that writes what a cheapest step writes, and reruns what that does, or more."""
        contents, trace = self.standing.instance.contents, self.standing.best.trace
        names = frozenset(contents[copy].tensor for copy in step.copies or ())
        if names and self.few_copies.pays():
            self.few_copies.follow(names, step.path.reruns)
        else:
            self.runs.solve_exactly(followed_by(step.path.reruns, self.runs.own_reruns()))
        if trace is not self.standing.best.trace and self._overhead_joules() < (
            (1.0 - self.tuning.anew_share) * self._below_joules
        ):
            self.close()  # what it counts residents by, and rules out, is too coarse

    def _promises(self, seconds: float) -> bool:
        """Whether its bound, at its pace, would close a part of the gap within so many seconds."""
        standing = self.standing
        trace, bound_joules = standing.best.trace, standing.bound.joules
        if trace is None:
            return False
        reached_joules = standing.baseline_joules + self._pace.after(max(seconds, 0.0))
        return reached_joules >= bound_joules + self.tuning.promise_share * (trace.joules - bound_joules)

    def _bounds(self) -> Generator[CopiesBound]:
        """Those that follow, below the plan that was the best when they began."""
        standing = self.standing
        if self._going is None:
            self._below_joules = self._overhead_joules()
            self._going = bounds_below(standing, self._below_joules)
        return self._going

    def _overhead_joules(self) -> float:
        """Of the best plan."""
        trace = self.standing.best.trace
        return math.inf if trace is None else trace.joules - self.standing.baseline_joules
