"""The windows relaxation of a large step in whole numbers: bounds, and solutions that plans are made of.

Its solution is solved for again with more moments on its grids, those at which it lacks RAM when it is played
through as a step (`poet.solvers.bounds.played`), as long as the programs are solved to their ends.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import replace

from poet.solvers.bounds.played import Played
from poet.solvers.bounds.windows_bound import Bound, bound_overhead
from poet.solvers.engines.highs_process import HighsProcess
from poet.solvers.instance.context import Conduct
from poet.solvers.instance.incumbent import Incumbent
from poet.solvers.instance.instance import Instance
from poet.solvers.search.finders import WHOLE
from poet.solvers.search.patience import Patience

_log = logging.getLogger(__name__)

Wait = Callable[[HighsProcess], bool]
"""Gives a child process time; whether it has a new solution."""


class WholeRelaxation:
    """Programs of one large search, of which each has all that is decided in it, or some, in whole numbers.

    Args:
        instance: what bounds are for.
        best: the search's best plan; solutions that are better plans are put there.
        conduct: the search's clock, and the function that takes bounds.
        follow: is given each solution that takes fewer joules than the best plan.
        tell: is called where a solution was the best plan.
    """

    def __init__(
        self,
        instance: Instance,
        best: Incumbent,
        conduct: Conduct,
        follow: Callable[[Bound], None],
        tell: Callable[[], None],
    ) -> None:
        self.instance, self.best, self.conduct = instance, best, conduct
        self.tuning = instance.tuning
        self._follow, self._tell = follow, tell

    def tightened(self, begin: Bound, seconds: float, wait: Wait) -> Bound:
        """The last solution of `bounded`, with more and more moments; ``begin`` where there is none.

        Args:
            begin: the linear program and its solution.
            seconds: of the clock, for all programs.
            wait: for each program's child.
        """
        clock = self.conduct.clock
        end, solution, program = clock.now() + seconds, begin, begin
        while (left_seconds := end - clock.now()) > 0.0 and not self.conduct.finished():
            found, solved = self.bounded(program, left_seconds, wait)
            if found is program:
                break
            solution, played = found, Played(self.instance, found)
            self._take(played)
            lacking = played.lacking_moments(self.tuning.discretisation.counterexamples)
            _log.info("whole numbers at %d moments: %d lack RAM", len(found.moments), len(lacking))
            if not solved or not lacking or self.conduct.finished():
                break
            moments = program.moments | lacking
            left_seconds = end - clock.now()
            program = bound_overhead(self.instance, seconds=left_seconds, moments=moments, clock=clock)
            if not program.answer.done:
                break
        return solution

    def bounded(
        self, guide: Bound, seconds: float, wait: Wait, columns: tuple[int, ...] | None = None
    ) -> tuple[Bound, bool]:
        """Solve the program of ``guide`` in whole numbers; ``guide`` with the best solution, if that is
        cheap, and whether it was solved to its end.

        Nothing is done where ``guide`` has whole numbers, or nearly so, and where the engine, which begins
        with a large step's linear program anew, would hardly get further.

        Args:
            guide: the linear program and its solution.
            seconds: of the clock.
            wait: for the child.
            columns: which are whole, if not all.
        """
        conduct, tuning = self.conduct, self.tuning.large
        large = len(self.instance.tasks) > self.tuning.search.large_ops
        if large and tuning.whole_factor * guide.seconds > seconds:
            return guide, False
        fixed, matrix = guide.relaxation.fixed_joules, guide.relaxation.program.matrix()
        values = guide.answer.values
        if columns is not None:
            matrix = matrix.whole_in(columns)
            least_joules = tuning.fractions_share * guide.overhead_joules
            if values is None or matrix.fractional_joules(values) <= least_joules:
                return guide, False
        patience_seconds = min(tuning.patience_share * conduct.seconds_left(), tuning.longest_program_seconds)
        patience = Patience(conduct.clock, patience_seconds, tuning.whole_closing_share)
        cheapest_joules = math.inf
        with HighsProcess(self.tuning, conduct.clock) as child:
            child.begin(matrix, seconds)
            while not child.news.ended and not conduct.finished():
                better, news = wait(child), child.news
                if news.bound_joules > 0.0:
                    conduct.bounded(fixed + news.bound_joules, False)
                if better and news.values is not None:
                    joules = fixed + matrix.joules(news.values)
                    if joules < self._plan_joules():
                        guide = replace(guide, answer=replace(guide.answer, values=news.values))
                        cheapest_joules = joules
                        self._follow(guide)
                left_joules = min(cheapest_joules, self._plan_joules()) - fixed - news.bound_joules
                if patience.is_over(left_joules, has_news=better and math.isinf(news.bound_joules)):
                    break
            return guide, child.news.exhausted

    def is_nearly_a_plan(self, solution: Bound) -> bool:
        """Whether so little RAM lacks, played through, that what ``solution`` reruns can be a plan's reruns.

        It is within a share of the RAM budget: `lacking_for_reruns_share` where reruns take most of its
        joules; `lacking_share`, which is less, where transfers do: plans page more, and rerun other things.
        """
        tuning, values = self.tuning.large, solution.answer.values
        budget = self.instance.limits.ram_budget_bytes
        if values is None or budget is None:
            return False
        played, relaxation = Played(self.instance, solution), solution.relaxation
        all_joules = relaxation.fixed_joules + relaxation.program.matrix().joules(values)
        mostly_reruns = played.rerun_joules > all_joules / 2
        share = tuning.lacking_for_reruns_share if mostly_reruns else tuning.lacking_share
        return max(played.bytes) <= (1.0 + share) * budget

    def _take(self, played: Played) -> None:
        """Put a solution that RAM is enough for, and that is a better plan, where plans are kept."""
        best, conduct = self.best, self.conduct
        judged = Incumbent(best.problem, best.limits, conduct.metered, clock=conduct.clock)
        judged.consider(played.schedule(), WHOLE, is_ours=False)
        if judged.schedule is not None and best.consider(judged.schedule, WHOLE):
            self._tell()

    def _plan_joules(self) -> float:
        """Of the best plan above running every op once: solutions that take more, an engine's first tries,
        tell nothing of better plans, and remake so much that no model of them can be built.
        """
        trace = self.best.trace
        return math.inf if trace is None else trace.joules - self.instance.problem.compute_joules
