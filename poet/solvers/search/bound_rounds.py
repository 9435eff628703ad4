"""When the grids of the windows relaxation are refined between rounds of the event model, and for how long.

Before the first round comes the linear program of that relaxation, with the schedules that follow it: on a
step of this size it is solved in a fraction of the time of one event model, and where RAM is tight both its
bound and its schedules are far better than none.
After the first round of the event model, the bounds of `poet.solvers.bounds.discretisation` get a
short run, without a suffix program. After each later round that raised the bound by little they get a
long run. An interrupted long run is resumed by the next one, as long as the best bound is from it. Solutions
in whole numbers that RAM is enough for are plans (`poet.solvers.bounds.played`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from poet.closing import Closing
from poet.solvers.bounds.discretisation import refined_bounds
from poet.solvers.bounds.pace import Pace
from poet.solvers.bounds.played import Played
from poet.solvers.bounds.refinement import priced_bound
from poet.solvers.bounds.windows_bound import Bound
from poet.solvers.engines.highs_process import HighsProcess
from poet.solvers.heuristics.lp_guided import walks_along
from poet.solvers.instance.context import Conduct
from poet.solvers.instance.incumbent import Incumbent
from poet.solvers.instance.instance import Instance
from poet.solvers.search.finders import WALKS, WHOLE

_ROUNDING = 1e-9  # of a plan's overhead, within which two bounds are equal


class BoundRounds(Closing):
    """State of the bound refinement during one search; leaving the context ends its solver process.

    Args:
        instance: what to bound.
        conduct: the search's clock, and the functions that take bounds and plans.
        pays: whether steps of this size are worth it.
    """

    def __init__(self, instance: Instance, conduct: Conduct, *, pays: bool = True) -> None:
        self.instance, self.conduct, self.pays = instance, conduct, pays
        self._tuning = instance.tuning.bound_rounds
        self._best_joules = -math.inf  # of the bounds on the overhead
        self._heard: Bound | None = None  # of the linear program
        self._child: HighsProcess | None = None
        self._going: Iterator[Bound] | None = None

    def close(self) -> None:
        """End the solver process, if there is one."""
        if self._child is not None:
            self._child.close()

    def prepare(self) -> None:
        """Start the solver process, which takes a moment, ahead of a run that is likely to come."""
        if self.pays:
            self._child = self._child or HighsProcess(self.instance.tuning, self.conduct.clock)

    def first(self) -> bool:
        """The linear program, for `first_time_share` of the time left; false if there is no plan at all."""
        share = self._tuning.first_time_share
        if not self.pays or share == 0.0 or self.conduct.finished():
            return True
        conduct = self.conduct
        with conduct.phase("windows relaxation: linear program, walks along it"):
            bound = priced_bound(
                self.instance,
                seconds=min(share * self._seconds_left(), self._tuning.first_most_seconds),
                watcher=self._hear,
                clock=conduct.clock,
                finished=conduct.finished,
            )
            if bound.overhead_joules == math.inf:
                return False
            self._hear(bound)
        return True

    def short(self, seconds: float, bound_joules: float) -> None:
        """Refine without a suffix program, within ``time_share`` of the time left, unless after the first
        bounds it would not reach ``bound_joules``, the best one, at their pace.

        After ``seconds`` no program is begun; one that runs is ended at ``first_look_factor`` times that.
        """
        left = self._tuning.time_share * self._seconds_left()
        end = self.conduct.clock.now() + min(self._tuning.first_look_factor * seconds, left)
        seconds = min(seconds, left)
        self._listen(self._begun(math.inf, end), seconds, seconds, bound_joules * (1.0 - _ROUNDING))

    def long(self, plan_joules: float, bound_joules: float, gained_joules: float) -> None:
        """Refine with a suffix program, or resume the interrupted run, if the last round gained little.

        The time is checked after each bound, so a program that has begun is not cut short.

        Args:
            plan_joules: overhead of the best plan.
            bound_joules: best bound on the overhead so far.
            gained_joules: by which the last round raised it.
        """
        stalled = gained_joules <= self._tuning.stall_share * (plan_joules - bound_joules + gained_joules)
        bound_joules -= _ROUNDING * plan_joules
        if stalled and (self._going is None or self._best_joules >= bound_joules):
            self._going = self._going or self._begun(plan_joules, math.inf)
            left, tuning = self._seconds_left(), self._tuning
            leading_seconds = tuning.leading_time_share * left
            self._listen(self._going, tuning.time_share * left, leading_seconds, bound_joules)

    def _listen(
        self, bounds: Iterator[Bound], seconds: float, leading_seconds: float, bound_joules: float
    ) -> None:
        """Pass on bounds, and the schedules that follow their solutions, for ``seconds``.

        For ``leading_seconds`` while the best of these bounds is at least ``bound_joules``; where they will
        not be that high in their time, at the pace of the first ones, no longer than it takes to see that.
        """
        with self.conduct.phase("windows relaxation, more and more moments, in whole numbers"):
            began, pace, highest_joules = self.conduct.clock.now(), Pace(), -math.inf
            for number, bound in enumerate(bounds, 1):
                if not self.conduct.bounded(bound.overhead_joules, False):  # the engine erred
                    self._going = iter(())
                    break
                self._best_joules = max(self._best_joules, bound.overhead_joules)
                self._play(bound)
                self._walk_along(bound)
                leads = self._best_joules >= bound_joules
                spent = self.conduct.clock.now() - began
                if self.conduct.finished() or spent > (leading_seconds if leads else seconds):
                    break
                highest_joules = max(highest_joules, bound.overhead_joules)
                pace.add(spent, highest_joules)
                if number >= self._tuning.pace_bounds and pace.after(seconds - spent) < bound_joules:
                    break
            self.close()  # idle, it would hold a hundred megabytes beside other engines; it is begun anew

    def _hear(self, bound: Bound) -> None:
        """Pass on a bound of the linear program and what follows its solution, each with more moments."""
        if self._heard is None or not bound.moments <= self._heard.moments:
            self._heard = bound
            self.conduct.bounded(bound.overhead_joules, True)
            self._walk_along(bound)

    def _play(self, bound: Bound) -> None:
        """Pass on the solution of ``bound`` as a schedule, where RAM is enough for it."""
        judged = Incumbent(self.instance.problem, self.instance.limits, clock=self.conduct.clock)
        judged.consider(Played(self.instance, bound).schedule(), WHOLE, is_ours=False)
        if judged.schedule is not None:
            self.conduct.found(judged.schedule, WHOLE)

    def _walk_along(self, bound: Bound) -> None:
        """Pass on the schedules that follow the solution of ``bound``."""
        for schedule in walks_along(self.instance, bound):
            if self.conduct.finished():
                break
            self.conduct.found(schedule, WALKS)

    def _begun(self, most_joules: float, end: float) -> Iterator[Bound]:
        """A new run, which is over at ``end`` of the search's clock."""
        self._child = self._child or HighsProcess(self.instance.tuning, self.conduct.clock)
        conduct = self.conduct
        return refined_bounds(
            self.instance,
            self._child,
            most_joules=most_joules,
            seconds_left=lambda: min(conduct.seconds_left(), end - conduct.clock.now()),
            finished=lambda: conduct.finished() or conduct.clock.now() > end,
            seed=conduct.seed,
        )

    def _seconds_left(self) -> float:
        return min(self.conduct.seconds_left(), 1e9)
