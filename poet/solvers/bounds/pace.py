"""How fast a bound rises that is worked on in turns."""

from __future__ import annotations

from collections import deque


class Pace:
    """How fast something that is worked on in turns rises, of late: in the later half of the time spent.

    What is seen first is where it stands, and no rise yet.
    """

    def __init__(self) -> None:
        self._seen = deque[tuple[float, float]]()  # seconds of all turns, height
        self._spent_seconds = self._begun_seconds = 0.0  # so far, and when this turn began

    def add(self, seconds: float, height: float) -> None:
        """Seen ``seconds`` after this turn began."""
        self._spent_seconds = self._begun_seconds + seconds
        self._seen.append((self._spent_seconds, height))
        while len(self._seen) > 2 and self._seen[1][0] <= 0.5 * self._spent_seconds:
            self._seen.popleft()

    def pause(self) -> None:
        """The turn is over."""
        self._begun_seconds = self._spent_seconds

    def after(self, seconds: float) -> float:
        """The height in so many seconds at that pace."""
        (first, low), (last, high) = self._seen[0], self._seen[-1]
        return high + seconds * (high - low) / (last - first) if last > first else high
