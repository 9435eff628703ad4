"""Clocks for searches in tests and tables: none of them is the wall's."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from poet.problem.solution import SolveOptions
from poet.util.clock import Clock, WorkClock


def counted(seconds: float | None, **options: Any) -> SolveOptions:
    """Options of one search that is cut after ``seconds`` of work, the same on every machine."""
    return SolveOptions(time_limit_seconds=seconds, clock=WorkClock(), **options)


class OwnTime(Clock):
    """The processor's time of this process, or a share of the wall's where that is more.

    Beside other work a search goes on for longer on the wall, but at most ``1 / share`` times as long: what
    it waits for in another process is no time of its own. An engine counts its own limits on the wall, so
    that plans still differ from load to load.
    """

    def __init__(self, share: float = 0.25) -> None:
        self.share, self.began, self.own = share, time.monotonic(), time.process_time()

    def now(self) -> float:
        """See `Clock.now`."""
        return max(time.process_time() - self.own, self.share * (time.monotonic() - self.began))


class CoreClock(Clock):
    """Seconds of a core that this process and its children have worked; Linux only."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def now(self) -> float:
        """See `Clock.now`; a child that ends as it is looked at does not turn time back."""
        self.seconds = max(self.seconds, sum(os.times()[:4]) + sum(map(_core_seconds, _children())))
        return self.seconds


def _children() -> list[int]:
    """Of this process, those that have not ended."""
    return [int(child) for tasks in Path("/proc/self/task").iterdir() for child in _read(tasks / "children")]


def _core_seconds(process: int) -> float:
    """That a running process has worked; 0 where it has just ended."""
    fields = _read(Path(f"/proc/{process}/stat"))
    return (int(fields[13]) + int(fields[14])) / os.sysconf("SC_CLK_TCK") if fields else 0.0


def _read(path: Path) -> list[str]:
    """Words of a file of a thread or process; none where that has just ended."""
    try:
        return path.read_text().split()
    except OSError:
        return []


class Ticking(Clock):
    """Moves on by ``tick_seconds`` at each look, so a search that does not end looks too often.

    Attributes:
        seconds: that have passed; tests may set it.
        given: for each program, when it began and the seconds that it was given.
    """

    def __init__(self, tick_seconds: float = 0.0) -> None:
        self.tick_seconds, self.seconds = tick_seconds, 0.0
        self.given = list[tuple[float, float]]()

    def now(self) -> float:
        """See `Clock.now`."""
        self.seconds += self.tick_seconds
        return self.seconds

    def most_nodes(self, seconds: float) -> int | None:
        """See `Clock.most_nodes`; this is asked once for each program."""
        self.given.append((self.seconds, seconds))
        return super().most_nodes(seconds)

    def assert_kept(self, limit_seconds: float, *, looks: int = 60) -> None:
        """No program may run beyond the limit, and after it the clock is hardly looked at."""
        assert self.given
        allowed = limit_seconds + looks * self.tick_seconds
        assert max(begun + seconds for begun, seconds in self.given) <= allowed
        assert self.seconds <= allowed
