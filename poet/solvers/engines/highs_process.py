"""HiGHS in a process of its own: whole programs, however long a step of the engine takes.

HiGHS checks its clock between steps only, and on a large program one step, a presolve or a root node,
may take many times the limit; nor does it see Ctrl-C. So such programs run in a child that is killed
at its time: `poet.solvers.engines.highs_child`. Programs go in through its stdin, one after the other;
solutions and bounds come out of its stdout.
"""

from __future__ import annotations

import base64
import io
import logging
import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from poet.clock import WALL, Clock
from poet.closing import Closing
from poet.solvers.engines.child import Child, most_child_bytes
from poet.solvers.engines.matrix import Matrix, Numbers, scaled
from poet.tuning import DEFAULT, Tuning

_log = logging.getLogger(__name__)

_MODULE = "poet.solvers.engines.highs_child"
_MARGIN = 1e-6  # of a bound, relative and in units of the scaled objective: what tolerances may add


@dataclass(slots=True)
class News:
    """What is known of a program.

    Attributes:
        bound_joules: no solution costs less, the engine's tolerances taken off; ``-inf`` before there is one.
        values: of the best solution; ``None`` before the first.
        exhausted: nothing better is left, or there is no solution at all.
        ended: the child has said its last word about it, or is not listened to any more.
    """

    bound_joules: float = -math.inf
    values: Numbers | None = None
    exhausted: bool = False
    ended: bool = False


class HighsProcess(Closing):
    """A child that solves one program after the other; leaving the context ends it, however far it is.

    Args:
        tuning: how often the child tells its bound, and what grace it has.
        clock: by which the child's seconds are counted. Where it counts work, the child is heard only when it
            has ended, for what it says between is said at times of the wall clock.
        suspends: the child works only while it is listened to; its seconds are then its caller's to count.
    """

    def __init__(self, tuning: Tuning = DEFAULT, clock: Clock = WALL, *, suspends: bool = False) -> None:
        self._tuning, self.clock, self._suspends = tuning, clock, suspends
        self.news = News(ended=True)
        self._end = self._granted_seconds = 0.0
        self._unit = 1.0
        self._child = Child(_MODULE)
        self._idle = True

    def close(self) -> None:
        """End the child, whatever it is at."""
        self._child.close()

    @property
    def is_running(self) -> bool:
        """Whether its process is there, at work or not."""
        return self._child.is_running

    @property
    def pid(self) -> int:
        """Of its process."""
        return self._child.pid

    def begin(self, matrix: Matrix, seconds: float, *, relative_gap: float = 1e-4) -> None:
        """Make the child solve ``matrix``; a program that it still solves is given up.

        Args:
            matrix: what to minimise.
            seconds: of the clock.
            relative_gap: at which to stop.
        """
        seconds = max(seconds, 0.01)  # HiGHS takes no negative limit
        if not self._idle or not self._child.is_running:
            self._child.close()
            self._child = Child(_MODULE)
        self.news, self._idle = News(), False
        small = scaled(matrix)
        self._unit = small.unit
        tuning = self._tuning.engines
        nodes = self.clock.most_nodes(seconds)
        self._end = math.inf if nodes is not None else self.clock.now() + seconds + tuning.highs_grace_seconds
        self._granted_seconds = seconds
        most_bytes = 0 if nodes is not None else most_child_bytes(tuning, len(matrix.costs))
        options = (seconds, relative_gap, tuning.tell_seconds, nodes or 0, most_bytes)
        self._child.send(_packed(small.matrix, options))

    def listen(self, seconds: float) -> bool:
        """Wait ``seconds`` at most for news; whether there is a better solution. See `news`."""
        better = False
        if self._suspends:
            self._child.resume()
        messages = self._child.messages(seconds) if not self.clock.counts_work else self._until_ended()
        if self._suspends:
            self._child.suspend()
        for message in messages:
            if message["last"]:
                self.news.ended = self._idle = True
                self.clock.spend(programs=1, iterations=message["iterations"], nodes=message["nodes"])
            if message["bound"] is not None:
                bound = (message["bound"] * (1.0 - _MARGIN) - _MARGIN) / self._unit
                self.news.bound_joules = max(self.news.bound_joules, bound)
            self.news.exhausted = self.news.exhausted or message["exhausted"]
            if message["values"] is not None:
                self.news.values = np.frombuffer(base64.b64decode(message["values"]))
                better = True
        self.news.ended = self.news.ended or self._child.gone or self.clock.now() > self._end
        return better

    def _until_ended(self) -> list[dict[str, Any]]:
        """All that the child says of a program whose work is counted.

        A child that is silent for very long is ended, and what it was granted is charged: HiGHS 1.15.1 can
        repeat the relaxation at its root without end, deaf to its limits.
        """
        tuning, messages, silent_seconds = self._tuning.engines, list[dict[str, Any]](), 0.0
        while not (self._child.gone or (messages and messages[-1]["last"])):
            said = self._child.messages(tuning.counted_seconds)
            messages += said
            silent_seconds = 0.0 if said else silent_seconds + tuning.counted_seconds
            if silent_seconds >= tuning.silent_seconds:
                _log.warning("HiGHS was silent for %g s; it is ended", silent_seconds)
                self._child.close()
                self.clock.spend(engine_seconds=self._granted_seconds)
                self.news.ended = True
                break
        return messages


def _packed(matrix: Matrix, options: tuple[float, ...]) -> bytes:
    """Its length in eight bytes, and the program.

    Options: seconds, the gap, seconds between two bounds; if not 0, nodes, in place of seconds; if not 0, the
    most bytes that the child may hold.
    """
    packed = io.BytesIO()
    start = matrix.start if matrix.start is not None else np.zeros(0)
    np.savez(
        packed, costs=matrix.costs, offset=np.array([matrix.offset]), rows=matrix.rows,
        columns=matrix.columns, factors=matrix.factors, at_most=matrix.at_most, integer=matrix.integer,
        start=start, options=np.array(options),
    )  # fmt: skip
    return packed.getbuffer().nbytes.to_bytes(8, "little") + packed.getvalue()
