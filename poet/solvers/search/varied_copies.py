"""When the local search over copies varies the best plan, and for how long."""

from __future__ import annotations

from poet.solvers.heuristics.copies_search import better_copies
from poet.solvers.search.finders import SETS
from poet.solvers.search.standing import Standing


class VariedCopies:
    """The local search over copies (`poet.solvers.heuristics.copies_search`) in turns.

    Args:
        standing: of the search.
    """

    def __init__(self, standing: Standing) -> None:
        self.standing, self.tuning = standing, standing.options.tuning.copies_search
        self._begun = False
        self._leads = False

    @property
    def leads(self) -> bool:
        """Whether the last turn found a better plan."""
        return self._leads

    def transfers_decide(self) -> bool:
        """The best plan takes much above running every op once, and is mostly transfers."""
        best, once_joules = self.standing.best, self.standing.baseline_joules
        if best.trace is None or best.trace.joules - once_joules < self.tuning.large_steps * once_joules:
            return False
        return best.is_mostly_transfers

    def turn(self, share: float, *, most_share: float = 0.0) -> None:
        """Plans near the best one, for a share of the time left, where what is open is worth it.

        Up to ``most_share``, if that is more, it goes on as long again as its last better plan took to find.
        """
        standing, clock = self.standing, self.standing.clock
        schedule, trace = standing.best.schedule, standing.best.trace
        if schedule is None or trace is None or share == 0.0 or standing.finished():
            return
        open_joules = trace.joules - standing.bound.joules
        if open_joules <= self.tuning.open_share * (trace.joules - standing.baseline_joules):
            return
        with standing.recorder.phase("local search over copies"):
            begun, left_seconds = clock.now(), standing.seconds_left()
            end = begun + min(share * left_seconds, self.tuning.most_seconds)
            latest = max(end, begun + min(most_share * left_seconds, self.tuning.most_seconds))
            for better in better_copies(
                standing.problem,
                standing.limits,
                schedule,
                self.tuning,
                seed=standing.seed,
                clock=clock,
                finished=lambda: standing.finished() or clock.now() >= end,  # noqa: B023 - as it is by then
                anew=not self._begun,
            ):
                standing.consider(better, SETS)
                now = clock.now()
                end = max(end, min(now + (now - begun), latest))
                standing.report()
        self._begun, self._leads = True, standing.best.schedule is not schedule
