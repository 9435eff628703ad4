"""When the outlook looks, and for how long: between the rounds of the event model.

After the first round it has a short look, without endgames. After another that raised the bound by
little it has a long one, which goes on where it was interrupted as long as the best bound is from it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from types import TracebackType

from poet.solvers.bounds.discretisation import outlook
from poet.solvers.bounds.relaxation import Bound
from poet.solvers.engines.highs_process import HighsProcess
from poet.solvers.heuristics.lp_guided import walks_along
from poet.solvers.instance.context import Conduct
from poet.solvers.instance.instance import Instance
from poet.solvers.search.finders import WALKS

_STALL = 0.1  # of the open joules, less than which a round brings little
_SHARE = 0.5  # of the time left, for one look
_LEADING_SHARE = 0.75  # where the best bound is from there
_PATIENCE = 3.0  # of the seconds of a first look, after which its program is cut short
_LONGEST_SECONDS = 1e9
_ROUNDING = 1e-9  # of a plan's overhead


class Looks:
    """The looks of one search; leaving the context ends the engine.

    Args:
        instance: what to bound.
        conduct: the search's clock, and where bounds and plans go.
        pays: whether steps of this size should be looked at.
    """

    def __init__(self, instance: Instance, conduct: Conduct, *, pays: bool = True) -> None:
        self.instance, self.conduct, self.pays = instance, conduct, pays
        self._best_joules = -math.inf  # of the bounds on the overhead
        self._child: HighsProcess | None = None
        self._going: Iterator[Bound] | None = None

    def __enter__(self) -> Looks:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._child is not None:
            self._child.close()

    def prepare(self) -> None:
        """Start the engine, which takes a moment, for a look that is likely to come."""
        if self.pays:
            self._child = self._child or HighsProcess(self.conduct.clock)

    def short(self, seconds: float) -> None:
        """A first look: after ``seconds`` no program is begun, and one that runs has twice as long again."""
        left = _SHARE * self._seconds_left()
        end = self.conduct.clock.now() + min(_PATIENCE * seconds, left)
        self._look(self._begun(math.inf, end), min(seconds, left), min(seconds, left), math.inf)

    def long(self, plan_joules: float, bound_joules: float, gained_joules: float) -> None:
        """A longer look, where that may pay; its time is looked at between programs.

        Args:
            plan_joules: of overhead, which the best plan takes.
            bound_joules: on the overhead, the best so far.
            gained_joules: by which the last round raised it.
        """
        stalled = gained_joules <= _STALL * (plan_joules - bound_joules + gained_joules)
        bound_joules -= _ROUNDING * plan_joules
        if stalled and (self._going is None or self._best_joules >= bound_joules):
            self._going = self._going or self._begun(plan_joules, math.inf)
            left = self._seconds_left()
            self._look(self._going, _SHARE * left, _LEADING_SHARE * left, bound_joules)

    def _look(
        self, bounds: Iterator[Bound], seconds: float, leading_seconds: float, bound_joules: float
    ) -> None:
        """For ``seconds``, or for ``leading_seconds`` while its bounds are above ``bound_joules``."""
        began = self.conduct.clock.now()
        for bound in bounds:
            if not self.conduct.bounded(bound.overhead_joules, False):  # the engine erred
                self._going = iter(())
                break
            self._best_joules = max(self._best_joules, bound.overhead_joules)
            for schedule in walks_along(self.instance, bound):
                self.conduct.found(schedule, WALKS)
            leads = self._best_joules >= bound_joules
            spent = self.conduct.clock.now() - began
            if self.conduct.finished() or spent > (leading_seconds if leads else seconds):
                break

    def _begun(self, most_joules: float, end: float) -> Iterator[Bound]:
        self._child = self._child or HighsProcess(self.conduct.clock)
        conduct = self.conduct
        return outlook(
            self.instance,
            self._child,
            most_joules=most_joules,
            seconds_left=lambda: min(conduct.seconds_left(), end - conduct.clock.now()),
            finished=lambda: conduct.finished() or conduct.clock.now() > end,
            seed=conduct.seed,
        )

    def _seconds_left(self) -> float:
        return min(self.conduct.seconds_left(), _LONGEST_SECONDS)
