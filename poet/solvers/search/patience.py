"""When a program that is being solved is given up: its gap has hardly closed for too long."""

from __future__ import annotations

import math

from poet.clock import Clock


class Patience:
    """Waits for one program's gap to close.

    Args:
        clock: of the search.
        seconds: without news, after which it is at its end.
        closing_share: of the joules open at the last news, to which they must have come down to be news.
    """

    def __init__(self, clock: Clock, seconds: float, closing_share: float) -> None:
        self._clock, self._seconds, self._closing_share = clock, seconds, closing_share
        self._since, self._open_joules = clock.now(), math.inf

    def is_over(self, open_joules: float, *, better: bool) -> bool:
        """Whether there was no news for too long.

        Args:
            open_joules: between the program's bound and what is known to be possible; infinite: no bound yet.
            better: there is other news.
        """
        closes = open_joules < self._closing_share * self._open_joules
        if closes:
            self._open_joules = open_joules
        if closes or better:
            self._since = self._clock.now()
        return self._clock.now() - self._since > self._seconds
