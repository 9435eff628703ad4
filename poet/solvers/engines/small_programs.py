"""Small programs in whole numbers, one after the other: by HiGHS, then by CP-SAT in one child for all others.

On programs of some hundred columns and cuts CP-SAT is several times as quick as HiGHS, but to start its child
takes longer than many a search has for all its programs together.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any

from poet.clock import Clock
from poet.closing import Closing
from poet.solvers.engines import cpsat, highs
from poet.solvers.engines.child import Child
from poet.solvers.engines.integers import IntegerProgram
from poet.tuning.models import EnginesTuning


@dataclass(frozen=True, slots=True)
class Answer:
    """Of a program: whole values of the columns, ``None`` without any; no solution's objective, in units, is
    below the bound; ``exhausted``: there is no other one, or none at all, within the gap that was allowed.
    """

    values: tuple[int, ...] | None
    bound_units: float
    exhausted: bool


class SmallPrograms(Closing):
    """Solves them; leaving the context ends the child.

    Args:
        clock: of the search; it hears of the work.
        tuning: HiGHS solves all until it has taken `cpsat_start_seconds`.
    """

    def __init__(self, clock: Clock, tuning: EnginesTuning) -> None:
        self.clock, self.tuning = clock, tuning
        self._highs_seconds = 0.0
        self._child: Child | None = None
        self._by_cpsat = bool(cpsat.installed())

    def close(self) -> None:
        """End the child."""
        if self._child is not None:
            self._child.close()
        self._child = None

    def solve(self, program: IntegerProgram, seconds: float, *, gap_units: int = 0) -> Answer:
        """The best values within ``seconds``, or some that are at most so many units above it."""
        if self._by_cpsat and self._highs_seconds > self.tuning.cpsat_start_seconds:
            answer = self._solved_by_cpsat(program, seconds, gap_units)
            if answer is not None:
                return answer
            self.close()
            self._by_cpsat = False
        return self._solved_by_highs(program, seconds, gap_units)

    def _solved_by_cpsat(self, program: IntegerProgram, seconds: float, gap_units: int) -> Answer | None:
        """``None``: the child does not answer."""
        if self._child is None:
            self._child = Child("poet.solvers.engines.cpsat_child")
        request = {
            "program": program.to_json(),
            "start": None,
            "look_seconds": self.tuning.tell_seconds,
            "most_bytes": 0,  # these are small
            "seconds": max(seconds, 0.01) if math.isfinite(seconds) else None,
            "counted": self.clock.counts_work,
            "threads": 1,
            "seed": 0,
            "gap": gap_units,
        }
        self._child.send(json.dumps(request).encode() + b"\n")
        values, bound, latest = None, -math.inf, self.clock.now() + seconds + self.tuning.cpsat_grace_seconds
        while not self._child.gone:
            for message in self._child.messages(self.tuning.listen_seconds):
                values = message.get("values") or values
                bound = bound if message.get("bound") is None else max(bound, message["bound"])
                if "status" in message:
                    return self._answer(message, values, bound)
            if self.clock.now() > latest and not self.clock.counts_work:
                break
        return None

    def _answer(self, message: dict[str, Any], values: list[int] | None, bound: float) -> Answer:
        self.clock.spend(programs=1, engine_seconds=message["counted_seconds"])
        infeasible = message["status"] == "infeasible"
        exhausted = infeasible or message["status"] == "optimal"
        return Answer(None if values is None else tuple(values), math.inf if infeasible else bound, exhausted)

    def _solved_by_highs(self, program: IntegerProgram, seconds: float, gap_units: int) -> Answer:
        matrix, begun, gap = program.matrix(), self.clock.now(), float(gap_units)
        found = highs.solve(matrix, seconds, relative_gap=0.0, absolute_gap=gap, clock=self.clock)
        self._highs_seconds += self.clock.now() - begun
        if found.values is None:
            return Answer(None, math.inf if found.exhausted else found.bound, found.exhausted)
        return Answer(tuple(program.whole(found.values.tolist())), found.bound, found.exhausted)
