"""When a program that is being solved is given up: when its optimality gap has hardly closed for too long."""

from __future__ import annotations

import math

from poet.clock import Clock


class Patience:
    """Waits for the optimality gap of one program to close. *News* is a gap that has closed enough.

    Args:
        clock: of the search.
        seconds: of that clock without news, after which patience is over.
        closing_share: to how much of the gap at the last news it must have closed to be news, such as 0.9.
    """

    def __init__(self, clock: Clock, seconds: float, closing_share: float) -> None:
        self._clock, self._seconds, self._closing_share = clock, seconds, closing_share
        self._since, self._open_joules = clock.now(), math.inf

    def is_over(self, open_joules: float, *, has_news: bool) -> bool:
        """Whether there was no news for too long.

        Args:
            open_joules: the gap, from the program's bound to the best solution known; infinite: no bound yet.
            has_news: something other than the gap is news as well, such as a better plan.
        """
        closes = open_joules < self._closing_share * self._open_joules
        if closes:
            self._open_joules = open_joules
        if closes or has_news:
            self._since = self._clock.now()
        return self._clock.now() - self._since > self._seconds
