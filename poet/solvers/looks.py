"""When the outlook looks, and for how long: between the rounds of the event model.

After the first round it has a short look, without endgames. After another that raised the bound by
little it has a long one, which goes on where it was interrupted as long as the best bound is from it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from types import TracebackType

from poet.solvers.beside import Beside
from poet.solvers.conduct import Conduct
from poet.solvers.events import Instance
from poet.solvers.guided import walks_along
from poet.solvers.outlook import outlook
from poet.solvers.relaxation import Bound

_SIZES = range(17, 201)  # of steps, in ops: for larger ones a program takes too long
_STALL = 0.1  # of the open joules, less than which a round brings little
_SHARE = 0.5  # of the time left, for one look
_LEADING_SHARE = 0.75  # where the best bound is from there
_LONGEST_SECONDS = 1e9


class Looks:
    """The looks of one search; leaving the context ends the engine.

    Attributes:
        pays: whether steps of this size should be looked at.

    Args:
        instance: what to bound.
        conduct: the search's clock, and where bounds and plans go.
    """

    def __init__(self, instance: Instance, conduct: Conduct) -> None:
        self.instance, self.conduct = instance, conduct
        self.pays = len(instance.tasks) in _SIZES
        self._best_joules = -math.inf  # of the bounds on the overhead
        self._child: Beside | None = None
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
            self._child = self._child or Beside()

    def short(self, seconds: float) -> bool:
        """A first look, of ``seconds`` at most; true if there is no plan at all."""
        seconds = min(seconds, _SHARE * self._seconds_left())
        return self._look(self._begun(math.inf), seconds, seconds, math.inf)

    def long(self, plan_joules: float, bound_joules: float, gained_joules: float) -> bool:
        """A longer look, where that may pay; true if there is no plan at all.

        Args:
            plan_joules: of overhead, which the best plan takes.
            bound_joules: on the overhead, the best so far.
            gained_joules: by which the last round raised it.
        """
        stalled = gained_joules <= _STALL * (plan_joules - bound_joules + gained_joules)
        if not stalled or (self._going is not None and self._best_joules < bound_joules):
            return False
        self._going = self._going or self._begun(plan_joules)
        left = self._seconds_left()
        return self._look(self._going, _SHARE * left, _LEADING_SHARE * left, bound_joules)

    def _look(
        self, bounds: Iterator[Bound], seconds: float, leading_seconds: float, bound_joules: float
    ) -> bool:
        """For ``seconds``, or for ``leading_seconds`` while its bounds are above ``bound_joules``."""
        began = time.monotonic()
        for bound in bounds:
            if bound.overhead_joules == math.inf:
                return True
            if not self.conduct.bounded(bound.overhead_joules, False):
                return False
            self._best_joules = max(self._best_joules, bound.overhead_joules)
            for schedule in walks_along(self.instance, bound):
                self.conduct.found(schedule)
            leads = self._best_joules >= bound_joules
            spent = time.monotonic() - began
            if self.conduct.finished() or spent > (leading_seconds if leads else seconds):
                break
        return False

    def _begun(self, most_joules: float) -> Iterator[Bound]:
        self._child = self._child or Beside()
        return outlook(
            self.instance,
            self._child,
            most_joules=most_joules,
            seconds_left=self.conduct.seconds_left,
            finished=self.conduct.finished,
            seed=self.conduct.seed,
        )

    def _seconds_left(self) -> float:
        return min(self.conduct.seconds_left(), _LONGEST_SECONDS)
