"""When the search over copies goes on, and for how long: the longer, the more its own pace promises.

Its bound starts at nothing, and rises for a long time before it is the best one, or it stands still at once:
which, no size of a problem tells. So each turn has a share of the time left, and goes on beyond that as long
as the bound, at the pace of late, would close some of the gap within what a longer turn may take.
"""

from __future__ import annotations

from collections.abc import Iterator

from poet.solvers.bounds.copies import CopiesBound, copies_bounds
from poet.solvers.bounds.pace import Pace
from poet.solvers.search.finders import COPIES
from poet.solvers.search.model_runs import ModelRuns
from poet.solvers.search.slots_of_plans import followed_by


class CopiesTurns:
    """One search over copies, in turns; bounds and plans go to ``runs`` and where they stand.

    Args:
        runs: solves the exact event model with the reruns of what was found.
    """

    def __init__(self, runs: ModelRuns) -> None:
        self.runs, self.standing = runs, runs.standing
        self.tuning = self.standing.options.tuning.copies
        self._going: Iterator[CopiesBound] | None = None
        self._pace = Pace()
        self._leads = self._promised = False

    @property
    def leads(self) -> bool:
        """The last turn raised the best bound, or ended while it still promised to."""
        return self._leads or self._promised

    def turn(self, share: float) -> None:
        """Go on for a share of the time left, or longer where that promises something."""
        standing, tuning, clock = self.standing, self.tuning, self.standing.clock
        trace = standing.best.trace
        if trace is None or share == 0.0 or standing.finished():
            return
        overhead_joules = trace.joules - standing.baseline_joules
        with standing.recorder.phase("search over copies"):
            begun, left_seconds = clock.now(), standing.seconds_left()
            end = begun + min(share * left_seconds, tuning.most_seconds)
            latest = begun + min(tuning.promising_share * left_seconds, tuning.most_seconds)
            paths, before_joules = dict[int, tuple[int, ...]](), standing.bound.joules
            self._promised = False
            for bound in self._bounds(overhead_joules):
                standing.take_bound(bound.overhead_joules, COPIES, proven=bound.proven)
                standing.report()
                paths = bound.reruns or paths
                now = clock.now()
                self._pace.add(now - begun, bound.overhead_joules)
                if standing.finished():
                    break
                self._promised = self._promises(latest - now)
                if now >= end and not (self._promised and now + self._pace.longest_round() <= latest):
                    break
            else:
                self._promised = False
            self._pace.pause()
            self._leads = standing.bound.joules > before_joules
            if paths and not standing.finished():
                self.runs.solve_exactly(followed_by(paths, self.runs.own_reruns()))

    def _promises(self, seconds: float) -> bool:
        """Whether its bound, at its pace, would close a part of the gap within so many seconds."""
        standing = self.standing
        trace, bound_joules = standing.best.trace, standing.bound.joules
        if trace is None:
            return False
        reached_joules = standing.baseline_joules + self._pace.after(max(seconds, 0.0))
        return reached_joules >= bound_joules + self.tuning.promise_share * (trace.joules - bound_joules)

    def _bounds(self, overhead_joules: float) -> Iterator[CopiesBound]:
        """Those that follow, from the first turn on below the plan that was the best then."""
        standing = self.standing
        if self._going is None:
            self._going = copies_bounds(
                standing.instance,
                below_joules=overhead_joules,
                clock=standing.clock,
                finished=standing.finished,
                seconds_left=standing.seconds_left,
            )
        return self._going
