"""HiGHS in a process of its own: whole programs, however long a step of the engine takes.

HiGHS checks its clock between steps only, and on a large program one step, a presolve or a root node, may
take many times the limit; nor does it see Ctrl-C. So such programs run in a child that is killed at its time:
this module, as ``python -m poet.solvers.engines.highs_process``. Programs go in through its stdin, one after
the other; solutions and bounds come out of its stdout. It ends when stdin is closed or its parent is gone.
"""

from __future__ import annotations

import base64
import io
import logging
import math
import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from poet.clock import WALL, Clock
from poet.closing import Closing
from poet.freed_memory import give_back
from poet.held_memory import held_bytes
from poet.solvers.engines.child import SILENT_SECONDS, TELL_SECONDS, Child, most_child_bytes, requests, tell
from poet.solvers.engines.highs import DONE, best_values, is_empty, loaded, run
from poet.solvers.engines.program import Matrix, Numbers, scaled

_log = logging.getLogger(__name__)

_MODULE = "poet.solvers.engines.highs_process"
_MARGIN = 1e-6  # of a bound, relative and in units of the scaled objective: what tolerances may add
_ARRAYS = ("costs", "rows", "columns", "factors", "at_most", "integer")

GRACE_SECONDS = 0.5
"""Beyond its limit, after which a child is not listened to any more; without, one at the end of a step is
lost.
"""


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
        clock: by which the child's seconds are counted. Where it counts work, the child is heard only when it
            has ended, for what it says between is said at times of the wall clock.
        suspends: the child works only while it is listened to; its seconds are then its caller's to count.
    """

    def __init__(self, clock: Clock = WALL, *, suspends: bool = False) -> None:
        self.clock, self._suspends = clock, suspends
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
        """Make the child solve ``matrix``; a program that it still solves is stopped.

        Args:
            matrix: what to minimise.
            seconds: of the clock; infinite: it works while it is listened to, which its suspension sees to.
            relative_gap: at which to stop.
        """
        is_limited = math.isfinite(seconds)
        seconds = min(max(seconds, 0.01), 1e9)  # HiGHS takes neither a negative limit nor none
        if not self._idle or not self._child.is_running:
            self._child.close()
            self._child = Child(_MODULE)
        self.news, self._idle = News(), False
        small = scaled(matrix)
        self._unit, self._granted_seconds = small.unit, seconds
        nodes = self.clock.most_nodes(seconds) if is_limited else None
        self._end = math.inf if nodes is not None else self.clock.now() + seconds + GRACE_SECONDS
        most_bytes = 0 if nodes is not None else most_child_bytes(len(matrix.costs))
        self._child.send(_packed(small.matrix, (seconds, relative_gap, nodes or 0, most_bytes)))

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
        messages = list[dict[str, Any]]()
        while not (self._child.gone or (messages and messages[-1]["last"])):
            said = self._child.messages(SILENT_SECONDS)
            messages += said
            if not said and not self._child.gone:
                _log.warning("HiGHS was silent for %g s; it is ended", SILENT_SECONDS)
                self._child.close()
                self.clock.spend(engine_seconds=self._granted_seconds)
                self.news.ended = True
                break
        return messages


def _packed(matrix: Matrix, options: tuple[float, ...]) -> bytes:
    """Its length in eight bytes, and the program.

    Options: seconds, the gap; if not 0, nodes, in place of seconds; if not 0, the most bytes that the child
    may hold.
    """
    packed = io.BytesIO()
    start = matrix.start if matrix.start is not None else np.zeros(0)
    arrays = {name: getattr(matrix, name) for name in _ARRAYS}
    np.savez(packed, offset=np.array([matrix.offset]), start=start, options=np.array(options), **arrays)
    return packed.getbuffer().nbytes.to_bytes(8, "little") + packed.getvalue()


# --- in the child ---


def main() -> None:
    """Read programs, solve one after the other, write solutions and bounds to stdout."""
    stream = requests(lambda stdin: stdin.read(int.from_bytes(stdin.read(8), "little")))
    for packed in stream:
        _solve(packed)


def _solve(packed: bytes) -> None:
    request = np.load(io.BytesIO(packed), allow_pickle=False)
    arrays = {name: request[name] for name in _ARRAYS}
    start = request["start"] if len(request["start"]) else None
    matrix = Matrix(offset=float(request["offset"][0]), whole=arrays["integer"], start=start, **arrays)
    if is_empty(matrix):
        _tell(matrix.offset, np.zeros(0), exhausted=True, last=True, iterations=0, nodes=0)
        return
    seconds, relative_gap, nodes, most_bytes = map(float, request["options"])
    give_back()  # what the program before took
    highs = loaded(matrix)
    if nodes:
        highs.setOptionValue("mip_max_nodes", int(nodes))
    else:
        highs.setOptionValue("time_limit", seconds)
    highs.setOptionValue("mip_rel_gap", relative_gap)
    told_seconds = 0.0

    def hear(values: Numbers | None, bound: float) -> bool:
        nonlocal told_seconds
        if values is None and time.monotonic() - told_seconds <= TELL_SECONDS:
            return False
        told_seconds = time.monotonic() if values is None else told_seconds
        _tell(bound, values)
        return bool(most_bytes) and values is None and held_bytes() > most_bytes

    run(highs, WALL, hear)
    exhausted, info = highs.getModelStatus() in DONE, highs.getInfo()
    _tell(
        info.mip_dual_bound,
        best_values(highs),
        exhausted=exhausted,
        last=True,
        iterations=max(info.simplex_iteration_count, 0),
        nodes=max(info.mip_node_count, 0),
    )


def _tell(
    bound: float, values: Numbers | None, *, exhausted: bool = False, last: bool = False, **work: int
) -> None:
    packed = None if values is None else base64.b64encode(values.tobytes()).decode()
    known = bound if math.isfinite(bound) else None
    tell({"bound": known, "values": packed, "exhausted": exhausted, "last": last, **work})


if __name__ == "__main__":
    main()
