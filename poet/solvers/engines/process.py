"""An engine in a process of its own, which can be stopped however far it is: both ends of its pipes.

HiGHS and CP-SAT check their clocks between steps only. On a large program one step, a presolve or a root
node, may take many times the limit; nor do they see Ctrl-C. So such programs run in a child that is killed at
its time: ``python -m poet.solvers.engines``. Requests go in and messages come out as lines of JSON. A child
ends when its stdin is closed or its parent is gone.
"""

from __future__ import annotations

import base64
import contextlib
import importlib
import json
import logging
import math
import os
import queue
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from typing import IO, Any

import numpy as np

from poet.errors import InputError
from poet.solvers.engines.highs import run_highs, sigint_flag
from poet.solvers.engines.program import UNKNOWN, Effort, Job, Matrix, Outcome
from poet.util import children
from poet.util.children import give_back, held_bytes, own_bytes
from poet.util.clock import Clock
from poet.util.reading import Closing

_log = logging.getLogger(__name__)

MODULE = "poet.solvers.engines"

TELL_SECONDS = 0.2
"""Between two bounds that a child tells, looks at what it holds, and looks for Ctrl-C while it is waited for;
less often, a search sees its bound late, and a person waits."""

GRACE_SECONDS = 5.0
"""Beyond its limit, after which a child is not listened to any more: it has to come up, and what it finds at
the end of a step is lost without."""

SILENT_SECONDS = 120.0
"""Of the wall clock, of silence, after which a child whose work is counted counts as hung; without, a program
that HiGHS repeats without end is waited for as long."""

HELD_BYTES = 440_000_000
"""That a search and its engine in a child may hold together, beyond which the child ends its program with
what it has found; without, it takes what there is."""

COLUMN_BYTES = 10_000
"""By each column of a program, where that is more; without, large programs end as they begin."""

BEGIN_BYTES = 50_000_000
"""Of what this process holds as a search begins, that counts as the search's, about what it takes to solve a
problem's file; with more, an app's own gigabytes leave a child nothing."""

CHILD_BYTES = 120_000_000
"""That a child may hold in any case; without, a large search has no engine."""


def most_child_bytes(columns: int) -> int:
    """Bytes that a child may hold while it solves a program of so many columns; 0: there is no limit.

    It is what the search in this process leaves of `HELD_BYTES`, and `CHILD_BYTES` at least.
    """
    here_bytes = own_bytes(BEGIN_BYTES)
    if here_bytes is None:
        return 0
    return max(max(HELD_BYTES, COLUMN_BYTES * columns) - here_bytes, CHILD_BYTES)


class Child(Closing):
    """A module of poet as a process; leaving the context ends it, however far it is.

    Ctrl-C is this process's to answer: the child does not get it.

    Attributes:
        gone: it has ended, and all that it said was heard.
    """

    def __init__(self, module: str) -> None:
        give_back()  # so that both together hold less
        self.gone = False
        self._lines = queue.SimpleQueue[bytes | None]()
        self._errors = open(os.memfd_create("errors"), "w+b")  # noqa: SIM115 - closed with the child
        with children.undisturbed():
            self._process = subprocess.Popen(
                children.command(module),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                env=children.environment(),
                start_new_session=True,
            )
        threading.Thread(target=_read, args=(_open(self._process.stdout), self._lines), daemon=True).start()
        # at exit as well, while the thread that reads can still give its pipe back: later, that ends Python
        self._end = weakref.finalize(self, _end, self._process, self._errors)

    def close(self) -> None:
        """End the child, whatever it is at."""
        self._end()

    @property
    def is_running(self) -> bool:
        """Whether the process is there."""
        return self._process.poll() is None

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    def signal(self, name: str) -> None:
        """Send it ``SIGSTOP`` or ``SIGCONT``, where the system has these; else it works on."""
        number = getattr(signal, name, None)
        if number is not None:
            self._process.send_signal(number)

    def send(self, request: dict[str, Any]) -> None:
        """Write ``request`` to its stdin, in the background."""
        threading.Thread(
            target=_write, args=(_open(self._process.stdin), _line(request)), daemon=True
        ).start()

    def messages(self, seconds: float) -> list[dict[str, Any]]:
        """What it has said since the last call, waiting ``seconds`` at most for the first; see ``gone``."""
        said: list[dict[str, Any]] = []
        with contextlib.suppress(queue.Empty):
            line = self._lines.get(timeout=seconds) if seconds > 0.0 else self._lines.get_nowait()
            while line is not None:
                said.append(_message(line))
                line = self._lines.get_nowait()
            self.gone = True
        return said

    def failure(self) -> str | None:
        """Of a child that is gone: why, if it ended with an error; not where a signal ended it."""
        if self._process.wait() <= 0:
            return None
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else f"it ended with code {self._process.returncode}"


def _end(process: subprocess.Popen[bytes], errors: IO[bytes]) -> None:
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout, errors):
        with contextlib.suppress(OSError):
            _open(pipe).close()


def _write(stdin: IO[bytes], line: bytes) -> None:
    with contextlib.suppress(OSError, ValueError):  # the child is gone: `_read` sees it
        stdin.write(line)
        stdin.flush()


def _read(stdout: IO[bytes], lines: queue.SimpleQueue[bytes | None]) -> None:
    with contextlib.suppress(OSError, ValueError):  # closed by the main thread
        for line in stdout:
            if line.endswith(b"\n"):  # else the child died in the middle of it
                lines.put(line)
    lines.put(None)


def _line(message: dict[str, Any]) -> bytes:
    """``message`` in JSON, arrays as their bytes."""

    def packed(array: np.ndarray[Any, Any]) -> dict[str, str]:
        return {"kind": array.dtype.str, "bytes": base64.b64encode(array.tobytes()).decode()}

    return json.dumps(message, default=packed).encode() + b"\n"


def _message(line: bytes) -> dict[str, Any]:
    def unpacked(found: dict[str, Any]) -> Any:
        is_array = found.keys() == {"kind", "bytes"}
        return np.frombuffer(base64.b64decode(found["bytes"]), found["kind"]) if is_array else found

    message: dict[str, Any] = json.loads(line, object_hook=unpacked)
    return message


def _open(pipe: IO[bytes] | None) -> IO[bytes]:
    assert pipe is not None  # all three were opened as pipes
    return pipe


# --- a program ---


def _fields(record: Matrix | Effort | Outcome) -> dict[str, Any]:
    """For a message; a clock stays here."""
    return {each.name: getattr(record, each.name) for each in fields(record) if each.name != "clock"}


class Tally(Clock):
    """In a child, notes the work done for the clock of its parent.

    Attributes:
        nodes: of branch and bound that a program may take; ``None``: the wall clock is the limit.
        work: so far, by what `Clock.spend` calls it.
    """

    def __init__(self, nodes: int | None) -> None:
        self.counts_work, self.nodes, self.work = nodes is not None, nodes, dict[str, Any]()

    def spend(self, **work: float) -> None:
        """See `Clock.spend`."""
        for kind, amount in work.items():
            self.work[kind] = self.work.get(kind, 0.0) + amount

    def most_iterations(self, seconds: float) -> int | None:
        """See `Clock.most_iterations`."""
        return self.nodes

    def most_nodes(self, seconds: float) -> int | None:
        """See `Clock.most_nodes`."""
        return self.nodes


class EngineProcess(Closing):
    """An engine in a child, one program after the other; leaving the context ends it, however far it is.

    Args:
        engine: ``"highs"`` or ``"cpsat"``.
        suspends: the child works only while it is listened to; its seconds are then its caller's to count.

    Attributes:
        known: of the program.
        ended: the child has said its last word about it, or is not listened to any more.
    """

    def __init__(self, engine: str, *, suspends: bool = False) -> None:
        self.known, self.ended = UNKNOWN, True
        self._engine, self._suspends, self._is_idle = engine, suspends, True
        self.child = Child(MODULE)

    def close(self) -> None:
        """End the child, whatever it is at."""
        self.child.close()

    def begin(self, matrix: Matrix, effort: Effort) -> None:
        """Make the child minimise ``matrix``; a program that it is still at is stopped.

        Where the effort's clock counts work, the child is heard only when it has ended, for what it says
        between is said at times of the wall clock.
        """
        if not (self._is_idle and self.child.is_running):
            self.child.close()
            self.child = Child(MODULE)
        self.known, self.ended, self._is_idle = UNKNOWN, False, False
        self._matrix, self._effort, clock = matrix, effort, effort.clock
        nodes = None if effort.seconds is None else clock.most_nodes(effort.seconds)
        seconds = math.inf if effort.seconds is None or clock.counts_work else effort.seconds + GRACE_SECONDS
        self._end = clock.now() + min(seconds, math.inf if clock.counts_work else effort.most_seconds)
        most_bytes = 0 if clock.counts_work else most_child_bytes(len(matrix.costs))
        self.child.send(
            {
                "engine": self._engine,
                "matrix": _fields(matrix),
                "effort": _fields(effort),
                "nodes": nodes,
                "most_bytes": most_bytes,
            }
        )

    def listen(self, seconds: float) -> bool:
        """Wait ``seconds`` at most for news; whether there is a better solution. See ``known``."""
        if self._suspends:
            self.child.signal("SIGCONT")
        clock, before = self._effort.clock, self.known.values
        said = self.child.messages(SILENT_SECONDS if clock.counts_work else seconds)
        while said:
            for message in said:
                self.known = self.known.beside(Outcome(**message["outcome"]), self._matrix)
                if message["work"] is not None:
                    self.ended = self._is_idle = True
                    clock.spend(**message["work"])
            is_awaited = clock.counts_work and not self.ended
            said = self.child.messages(SILENT_SECONDS) if is_awaited else []
        if clock.counts_work and not (self.ended or self.child.gone):
            _log.warning("%s was silent for %g s; it is ended", self._engine, SILENT_SECONDS)
            self.child.close()
            clock.spend(engine_seconds=self._effort.seconds or 0.0)
            self.ended = True
        if self._suspends:
            self.child.signal("SIGSTOP")
        self.ended = self.ended or self.child.gone or clock.now() > self._end
        return self.known.values is not before


def run_apart(engine: str, job: Job) -> Outcome:
    """Run ``engine`` in a process of its own, with a start, incumbents and bounds as they come.

    Raises:
        InputError: the child process does not come up.
    """
    with sigint_flag() as pressed, EngineProcess(engine) as process:
        process.begin(job.matrix, job.effort)
        stopped = False
        while not (process.ended or pressed or stopped):
            better = process.listen(TELL_SECONDS)
            known = process.known
            if job.watcher is not None:
                stopped = job.watcher(known.values if better else None, known.bound_joules)
        has_failed = process.child.gone and process.known is UNKNOWN
        failure = process.child.failure() if has_failed else None
        if failure is not None:
            raise InputError(f"engine {engine!r} does not run here: {failure}")
        return replace(process.known, interrupted=bool(pressed))


def run_pair(job: Job) -> Outcome:
    """HiGHS here and CP-SAT in a child at once, a thread each; the first to finish ends the other."""
    alone = replace(job.effort, threads=1)
    with EngineProcess("cpsat") as process:
        process.begin(job.matrix, alone)

        def watch(values: Any, bound_joules: float) -> bool:
            better = process.listen(0.0)
            there = process.known
            stop = there.done or there.infeasible
            for found in (there.values if better else None, values):
                if job.watcher is not None:
                    stop = job.watcher(found, max(bound_joules, there.bound_joules)) or stop
            return stop

        here = run_highs(Job(job.matrix, alone, watch))
        process.listen(0.0)
        return here.beside(process.known, job.matrix)


# --- in the child ---


def requests() -> Iterator[dict[str, Any]]:
    """What comes on stdin; its end is the end of the process, whatever it is at, as is the parent's."""
    children.end_with_parent()
    arrived = queue.SimpleQueue[bytes]()

    def listen() -> None:
        for line in sys.stdin.buffer:
            arrived.put(line)
        os._exit(0)

    threading.Thread(target=listen, daemon=True).start()
    while True:
        yield _message(arrived.get())


_speaking = threading.Lock()  # what a solver's threads say is not mixed


def tell(message: dict[str, Any]) -> None:
    """A message to the parent."""
    with _speaking:
        sys.stdout.buffer.write(_line(message))
        sys.stdout.buffer.flush()


def main() -> None:
    """Solve one program after the other; tell solutions and bounds."""
    for request in requests():
        give_back()  # what the program before took
        module = importlib.import_module(f"poet.solvers.engines.{request['engine']}")  # OR-tools takes long
        run: Callable[[Job], Outcome] = getattr(module, f"run_{request['engine']}")
        clock = Tally(request["nodes"])
        effort = Effort(**request["effort"], clock=clock)
        _tell(run(Job(Matrix(**request["matrix"]), effort, _teller(request["most_bytes"]))), clock.work)


def _tell(outcome: Outcome, work: dict[str, float] | None) -> None:
    tell({"outcome": _fields(outcome), "work": work})


def _teller(most_bytes: int) -> Callable[[Any, float], bool]:
    """Tells news, bounds at times only; true where this process holds more than ``most_bytes``, if not 0."""
    told_seconds = 0.0

    def watch(values: Any, bound_joules: float) -> bool:
        nonlocal told_seconds
        if values is None and time.monotonic() - told_seconds < TELL_SECONDS:
            return False
        told_seconds = time.monotonic() if values is None else told_seconds
        _tell(replace(UNKNOWN, values=values, bound_joules=bound_joules), None)
        return bool(most_bytes) and values is None and held_bytes() > most_bytes

    return watch
