"""CP-SAT at the other end of a pipe: start it, listen, stop it."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import math
import queue
import subprocess
import threading
import time
from dataclasses import dataclass, field
from types import TracebackType
from typing import IO, Any

from poet import children
from poet.errors import InputError
from poet.solvers.engines.integers import IntegerProgram, integer_program
from poet.solvers.engines.interrupt import sigint_flag
from poet.solvers.engines.outcome import Job, Outcome

_LISTEN_SECONDS = 0.05  # between looks at Ctrl-C and the watcher
_GRACE_SECONDS = 5.0  # beyond its time limit, after which the child is killed


def installed() -> tuple[str, ...]:
    """``("cpsat",)`` where OR-tools is there; it is not loaded for that."""
    return ("cpsat",) if importlib.util.find_spec("ortools") is not None else ()


def run_cpsat(job: Job) -> Outcome:
    """CP-SAT, with a start, incumbents and bounds as they come.

    Raises:
        InputError: the child process does not come up.
        NotWhole: the model cannot be said in whole numbers.
    """
    with sigint_flag() as pressed, Child(job) as child:
        stopped = False
        while not (child.ended or pressed or stopped):
            news = child.listen(_LISTEN_SECONDS)
            for values in news or (None,):
                stopped = stopped or (job.watcher is not None and job.watcher(values, child.bound_joules))
        return child.outcome(interrupted=bool(pressed))


@dataclass(slots=True)
class _Answer:
    values: tuple[float, ...] | None = None
    units: int | None = None
    status: str = field(default="unknown")


class Child:
    """A running search; leaving the context ends it, however far it is."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.program: IntegerProgram = integer_program(job.model, absolute_joules=job.effort.absolute_joules)
        self.answer = _Answer()
        self.ended = False
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._process = subprocess.Popen(
            children.command("poet.solvers.engines.cpsat_child"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=children.environment(),
            start_new_session=True,  # Ctrl-C is this process's to answer
        )
        seconds = math.inf if job.effort.seconds is None else job.effort.seconds + _GRACE_SECONDS
        self._deadline = time.monotonic() + min(seconds, job.effort.most_seconds)
        threading.Thread(target=self._read, daemon=True).start()
        threading.Thread(target=self._write, args=(json.dumps(self._request()),), daemon=True).start()

    def __enter__(self) -> Child:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            with contextlib.suppress(OSError):
                _open(pipe).close()

    @property
    def bound_joules(self) -> float:
        """No solution of the model costs less."""
        return -float("inf") if self.answer.units is None else self.program.joules(self.answer.units)

    def listen(self, seconds: float) -> list[tuple[float, ...]]:
        """What was found since the last call, waiting ``seconds`` at most for the first news.

        Raises:
            InputError: the child ended without having solved anything.
        """
        found: list[tuple[float, ...]] = []
        with contextlib.suppress(queue.Empty):
            line = self._lines.get(timeout=seconds) if seconds > 0 else self._lines.get_nowait()
            while True:
                self._take(line, found)
                line = self._lines.get_nowait()
        if time.monotonic() > self._deadline:
            self.ended = True
        return found

    def outcome(self, *, interrupted: bool) -> Outcome:
        """What is known now."""
        done = self.answer.status == "optimal"
        infeasible = self.answer.status == "infeasible"
        return Outcome(self.answer.values, self.bound_joules, done, infeasible, interrupted)

    def _take(self, line: str | None, found: list[tuple[float, ...]]) -> None:
        if line is None:
            self.ended = True
            if self.answer.status == "unknown" and self._process.wait() > 0:
                raise InputError(f"engine 'cpsat' does not run here: {self._last_words()}")
            return
        message: dict[str, Any] = json.loads(line)
        if message.get("bound") is not None:
            units = self.answer.units
            self.answer.units = message["bound"] if units is None else max(units, message["bound"])
        if message.get("values") is not None:
            self.answer.values = self.program.values(message["values"])
            found.append(self.answer.values)
        if "status" in message:
            self.answer.status = message["status"]
            self.ended = True

    def _last_words(self) -> str:
        lines = _open(self._process.stderr).read().strip().splitlines()
        return lines[-1] if lines else f"it ended with code {self._process.returncode}"

    def _request(self) -> dict[str, Any]:
        job = self.job
        gap = int(min(job.effort.absolute_joules * self.program.scale, 2.0**52))
        return {
            "program": self.program.to_json(),
            "start": None if job.start is None else self.program.whole(job.start),
            "seconds": job.effort.seconds,
            "threads": job.effort.threads,
            "seed": job.effort.seed,
            "gap": max(gap, 0),
        }

    def _write(self, line: str) -> None:
        with contextlib.suppress(OSError, ValueError):  # the child is gone: `_read` sees it
            stdin = _open(self._process.stdin)
            stdin.write(line + "\n")
            stdin.flush()

    def _read(self) -> None:
        with contextlib.suppress(OSError, ValueError):  # closed by the main thread
            for line in _open(self._process.stdout):
                self._lines.put(line)
        self._lines.put(None)


def _open(pipe: IO[str] | None) -> IO[str]:
    assert pipe is not None  # all three were asked for
    return pipe
