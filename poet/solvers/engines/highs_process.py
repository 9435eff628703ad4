"""HiGHS in a process of its own: whole programs, however long a step of the engine takes.

HiGHS looks at its clock between steps, and on a large program one step, a presolve or a root node,
may take many times the limit; nor does it see Ctrl-C. So such programs run in a child that is told
to end, and is killed where it does not: `poet.solvers.engines.highs_child`. Programs go in through its
stdin, one after the other; solutions and bounds come out of its stdout, a line of JSON each.
"""

from __future__ import annotations

import base64
import contextlib
import io
import json
import math
import queue
import subprocess
import threading
import time
from dataclasses import dataclass
from types import TracebackType
from typing import IO, Any

import numpy as np

from poet import children
from poet.solvers.engines.linear import Numbers
from poet.solvers.engines.matrix import Matrix

_LEAST_SECONDS = 0.01  # HiGHS takes no negative limit
_GRACE_SECONDS = 0.5  # beyond its time limit, after which the child is not listened to any more


@dataclass(slots=True)
class News:
    """What is known of a program.

    Attributes:
        bound: no solution costs less, in the program's unit; ``-inf`` before there is one.
        values: of the best solution; ``None`` before the first.
        exhausted: nothing better is left, or there is no solution at all.
        ended: the child has said its last word about it, or is not listened to any more.
    """

    bound: float = -math.inf
    values: Numbers | None = None
    exhausted: bool = False
    ended: bool = False


class Beside:
    """A child that solves one program after the other; leaving the context ends it, however far it is."""

    def __init__(self) -> None:
        self.news = News(ended=True)
        self._end = 0.0
        self._start()

    def _start(self) -> None:
        self._lines = queue.SimpleQueue[bytes | None]()
        self._process = subprocess.Popen(
            children.command("poet.solvers.engines.highs_child"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=children.environment(),
            start_new_session=True,  # Ctrl-C is this process's to answer
        )
        self._idle = True
        threading.Thread(target=_read, args=(_open(self._process.stdout), self._lines), daemon=True).start()

    def __enter__(self) -> Beside:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the child, whatever it is at."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(OSError):
                _open(pipe).close()

    def begin(self, matrix: Matrix, seconds: float, *, relative_gap: float = 1e-4) -> None:
        """Let the child solve ``matrix``; what it was at before is given up.

        Args:
            matrix: what to minimise.
            seconds: wall clock.
            relative_gap: at which to stop.
        """
        seconds = max(seconds, _LEAST_SECONDS)
        if not self._idle or self._process.poll() is not None:
            self.close()
            self._start()
        self.news, self._idle = News(), False
        self._end = time.monotonic() + seconds + _GRACE_SECONDS
        request = _packed(matrix, seconds, relative_gap)
        threading.Thread(target=_write, args=(_open(self._process.stdin), request), daemon=True).start()

    def listen(self, seconds: float) -> bool:
        """Wait ``seconds`` at most for news; whether there is a better solution. See `news`."""
        better = False
        with contextlib.suppress(queue.Empty):
            line = self._lines.get(timeout=seconds) if seconds > 0.0 else self._lines.get_nowait()
            while True:
                better = self._take(line) or better
                line = self._lines.get_nowait()
        self.news.ended = self.news.ended or time.monotonic() > self._end
        return better

    def _take(self, line: bytes | None) -> bool:
        if line is None:  # the child is gone
            self.news.ended = True
            return False
        message: dict[str, Any] = json.loads(line)
        if message["last"]:
            self.news.ended = self._idle = True
        if message["bound"] is not None:
            self.news.bound = max(self.news.bound, message["bound"])
        self.news.exhausted = self.news.exhausted or message["exhausted"]
        if message["values"] is None:
            return False
        self.news.values = np.frombuffer(base64.b64decode(message["values"]))
        return True


def _packed(matrix: Matrix, seconds: float, relative_gap: float) -> bytes:
    """Its length in eight bytes, and the program."""
    packed = io.BytesIO()
    start = matrix.start if matrix.start is not None else np.zeros(0)
    np.savez(
        packed, costs=matrix.costs, offset=np.array([matrix.offset]), rows=matrix.rows,
        columns=matrix.columns, factors=matrix.factors, at_most=matrix.at_most, whole=matrix.whole,
        start=start, options=np.array([seconds, relative_gap]),
    )  # fmt: skip
    return packed.getbuffer().nbytes.to_bytes(8, "little") + packed.getvalue()


def _write(stdin: IO[bytes], request: bytes) -> None:
    with contextlib.suppress(OSError, ValueError):  # the child is gone: `_read` sees it
        stdin.write(request)
        stdin.flush()


def _read(stdout: IO[bytes], lines: queue.SimpleQueue[bytes | None]) -> None:
    with contextlib.suppress(OSError, ValueError):  # closed by the main thread
        for line in stdout:
            if line.endswith(b"\n"):  # else the child died in the middle of it
                lines.put(line)
    lines.put(None)


def _open(pipe: IO[bytes] | None) -> IO[bytes]:
    assert pipe is not None  # both were asked for
    return pipe
