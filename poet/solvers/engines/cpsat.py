"""CP-SAT in a process of its own: start it, listen, stop it."""

from __future__ import annotations

import importlib.util
import json
import math
from dataclasses import dataclass, field
from typing import Any

from poet.closing import Closing
from poet.errors import InputError
from poet.solvers.engines.child import Child, most_child_bytes
from poet.solvers.engines.integers import IntegerProgram, integer_program
from poet.solvers.engines.interrupt import sigint_flag
from poet.solvers.engines.outcome import Job, Outcome


def installed() -> tuple[str, ...]:
    """``("cpsat",)`` where OR-tools is there; it is not loaded for that."""
    return ("cpsat",) if importlib.util.find_spec("ortools") is not None else ()


def run_cpsat(job: Job) -> Outcome:
    """CP-SAT, with a start, incumbents and bounds as they come.

    Raises:
        InputError: the child process does not come up.
        NotWhole: the program cannot be said in whole numbers.
    """
    with sigint_flag() as pressed, CpSatProcess(job) as search:
        stopped = False
        while not (search.ended or pressed or stopped):
            news = search.listen(job.effort.tuning.engines.listen_seconds)
            for values in news or (None,):
                stopped = stopped or (job.watcher is not None and job.watcher(values, search.bound_joules))
        return search.outcome(interrupted=bool(pressed))


@dataclass(slots=True)
class _Answer:
    values: tuple[float, ...] | None = None
    units: int | None = None
    status: str = field(default="unknown")


class CpSatProcess(Closing):
    """A running search; leaving the context ends it, however far it is."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.program: IntegerProgram = integer_program(job.matrix, absolute_joules=job.effort.absolute_joules)
        self.answer = _Answer()
        self.ended = False
        self._child = Child("poet.solvers.engines.cpsat_child")
        grace_seconds = job.effort.tuning.engines.cpsat_grace_seconds
        seconds = math.inf if job.effort.seconds is None else job.effort.seconds + grace_seconds
        self._clock = job.effort.clock
        counted = self._clock.counts_work  # the child's own deterministic time is the limit
        self._deadline = math.inf if counted else self._clock.now() + min(seconds, job.effort.most_seconds)
        self._child.send(json.dumps(self._request()).encode() + b"\n")

    def close(self) -> None:
        """End the child, whatever it is at."""
        self._child.close()

    @property
    def bound_joules(self) -> float:
        """No solution of the program costs less."""
        return -float("inf") if self.answer.units is None else self.program.joules(self.answer.units)

    def listen(self, seconds: float) -> list[tuple[float, ...]]:
        """What was found since the last call, waiting ``seconds`` at most for the first news.

        Raises:
            InputError: the child ended without having solved anything.
        """
        found: list[tuple[float, ...]] = []
        messages = self._child.messages(seconds)
        while self._clock.counts_work and not (self._child.gone or (messages and "status" in messages[-1])):
            messages += self._child.messages(self.job.effort.tuning.engines.counted_seconds)
        for message in messages:
            self._take(message, found)
        if self._child.gone:
            self.ended = True
            failure = self._child.failure() if self.answer.status == "unknown" else None
            if failure is not None:
                raise InputError(f"engine 'cpsat' does not run here: {failure}")
        if self._clock.now() > self._deadline:
            self.ended = True
        return found

    def outcome(self, *, interrupted: bool) -> Outcome:
        """What is known now."""
        done = self.answer.status == "optimal"
        infeasible = self.answer.status == "infeasible"
        return Outcome(self.answer.values, self.bound_joules, done, infeasible, interrupted)

    def _take(self, message: dict[str, Any], found: list[tuple[float, ...]]) -> None:
        if message.get("bound") is not None:
            units = self.answer.units
            self.answer.units = message["bound"] if units is None else max(units, message["bound"])
        if message.get("values") is not None:
            self.answer.values = self.program.values(message["values"])
            found.append(self.answer.values)
        if "status" in message:
            self.answer.status = message["status"]
            self._clock.spend(programs=1, engine_seconds=message["counted_seconds"])
            self.ended = True

    def _request(self) -> dict[str, Any]:
        job = self.job
        gap = int(min(job.effort.absolute_joules * self.program.scale, 2.0**52))
        start, counted = job.matrix.start, job.effort.clock.counts_work
        columns, tuning = len(job.matrix.costs), job.effort.tuning.engines
        return {
            "program": self.program.to_json(),
            "start": None if start is None else self.program.whole(start.tolist()),
            "seconds": job.effort.seconds,
            "counted": counted,
            "look_seconds": tuning.tell_seconds,
            "most_bytes": 0 if counted else most_child_bytes(tuning, columns),
            "threads": job.effort.threads,
            "seed": job.effort.seed,
            "gap": max(gap, 0),
        }
