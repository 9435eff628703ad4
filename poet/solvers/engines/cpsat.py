"""CP-SAT in a process of its own, alone or beside HiGHS, and programs in whole numbers, which are all it
takes.

A plan is a point x of 0s and 1s with A x ≤ b and cost c·x. The integer program keeps every such x
and never charges it more than its cost:

* a row of whole factors is divided by their common divisor g and its right side rounded down: for
  whole x, Σ (a/g)·x is whole, so nothing is cut off;
* any other row is multiplied by a power of two (exact in floating point), its factors rounded down
  and its right side up: as x ≥ 0, Σ ⌊a⌋·x ≤ Σ a·x ≤ b ≤ ⌈b⌉;
* the objective's factors are multiplied by a power of two, ``scale``, and rounded down: as x ≥ 0,
  Σ ⌊scale·c⌋·x ≤ scale·c·x.

So the integer optimum, and with it every lower bound on it, is at most ``scale`` times the optimum;
dividing by a power of two is exact again. What rounding loses is less than one per term. A point of
the integer program may break a rounded row by as little; the simulator sees to that.

A column that is not 0 or 1 in every plan (a sum of bytes kept, as a share of the budget) counts
units of the common divisor of the bytes. Its defining rows bound it from below by whole units, so
rounding a solution's value down to whole units breaks none of them.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from poet.closing import Closing
from poet.errors import InputError
from poet.solvers.engines.child import SILENT_SECONDS, TELL_SECONDS, Child, most_child_bytes
from poet.solvers.engines.highs import run_highs, sigint_flag
from poet.solvers.engines.program import Job, Matrix, Outcome

GRACE_SECONDS = 5.0
"""Beyond its time limit, after which CP-SAT is killed: it has to come up, and its presolve rarely looks at
its clock; without, what it finds at the end is lost."""

_LARGEST_SUM = 2.0**52  # of a row or the objective: exact as a double, far from overflow in the engine
_ROW_PRECISION = 2.0**30  # to which rows of real numbers are rounded, relative to their sum


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
            news = search.listen(TELL_SECONDS)
            for values in news or (None,):
                stopped = stopped or (job.watcher is not None and job.watcher(values, search.bound_joules))
        return search.outcome(interrupted=bool(pressed))


class CpSatProcess(Closing):
    """A running search; leaving the context ends it, however far it is."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.program: IntegerProgram = integer_program(job.matrix, absolute_joules=job.effort.absolute_joules)
        self.values: tuple[float, ...] | None = None
        self.units: int | None = None
        self.status = "unknown"
        self.ended = False
        self._child = Child("poet.solvers.engines.cpsat_child")
        seconds = math.inf if job.effort.seconds is None else job.effort.seconds + GRACE_SECONDS
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
        return -float("inf") if self.units is None else self.program.joules(self.units)

    def listen(self, seconds: float) -> list[tuple[float, ...]]:
        """What was found since the last call, waiting ``seconds`` at most for the first news.

        Raises:
            InputError: the child ended without having solved anything.
        """
        found: list[tuple[float, ...]] = []
        messages = self._child.messages(seconds)
        while self._clock.counts_work and not (self._child.gone or (messages and "status" in messages[-1])):
            messages += self._child.messages(SILENT_SECONDS)
        for message in messages:
            self._take(message, found)
        if self._child.gone:
            self.ended = True
            failure = self._child.failure() if self.status == "unknown" else None
            if failure is not None:
                raise InputError(f"engine 'cpsat' does not run here: {failure}")
        if self._clock.now() > self._deadline:
            self.ended = True
        return found

    def outcome(self, *, interrupted: bool) -> Outcome:
        """What is known now."""
        done = self.status == "optimal"
        infeasible = self.status == "infeasible"
        return Outcome(self.values, self.bound_joules, done, infeasible, interrupted)

    def _take(self, message: dict[str, Any], found: list[tuple[float, ...]]) -> None:
        if message.get("bound") is not None:
            units = self.units
            self.units = message["bound"] if units is None else max(units, message["bound"])
        if message.get("values") is not None:
            self.values = self.program.values(message["values"])
            found.append(self.values)
        if "status" in message:
            self.status = message["status"]
            self._clock.spend(programs=1, engine_seconds=message["counted_seconds"])
            self.ended = True

    def _request(self) -> dict[str, Any]:
        job = self.job
        gap = int(min(job.effort.absolute_joules * self.program.scale, 2.0**52))
        start, counted = job.matrix.start, job.effort.clock.counts_work
        return {
            "largest": self.program.largest,
            "costs": self.program.costs,
            "rows": self.program.rows,
            "start": None if start is None else self.program.whole(start.tolist()),
            "seconds": job.effort.seconds,
            "counted": counted,
            "most_bytes": 0 if counted else most_child_bytes(len(job.matrix.costs)),
            "threads": job.effort.threads,
            "seed": job.effort.seed,
            "gap": max(gap, 0),
        }


# --- beside HiGHS ---


def run_portfolio(job: Job) -> Outcome:
    """Both engines at once; the first to finish ends the other.

    Raises:
        InputError: the child process does not come up.
    """
    alone = dataclasses.replace(job, effort=dataclasses.replace(job.effort, threads=1))
    with CpSatProcess(alone) as child:

        def watch(values: Sequence[float] | None, bound_joules: float) -> bool:
            news = child.listen(0.0)
            if job.watcher is None:
                return child.ended
            best_joules = max(bound_joules, child.bound_joules)
            for found in news:
                job.watcher(found, best_joules)
            return job.watcher(values, best_joules) or child.ended

        here = run_highs(dataclasses.replace(alone, watcher=watch), found_elsewhere=lambda: child.values)
        child.listen(0.0)
        there = child.outcome(interrupted=False)
    found = [outcome.values for outcome in (here, there) if outcome.values is not None]
    values = min(found, key=job.matrix.joules, default=None)
    return Outcome(
        values=values,
        bound_joules=max(here.bound_joules, there.bound_joules),
        done=here.done or there.done,
        infeasible=here.infeasible or there.infeasible,
        interrupted=here.interrupted,
    )


# --- whole numbers ---


class NotWhole(Exception):
    """The model has a column that no whole number stands for."""


@dataclass(frozen=True, slots=True)
class IntegerProgram:
    """Minimise ``costs`` over whole columns from 0 to ``largest`` within ``rows``.

    Attributes:
        largest: per column; 1 but for sums of bytes.
        costs: (column, factor) pairs.
        rows: (columns, factors, right side) of Σ factor·column ≤ right side.
        scale: units of the objective per joule, a power of two.
        constant_joules: what the objective adds to the scaled sum.
    """

    largest: tuple[int, ...]
    costs: tuple[tuple[int, int], ...]
    rows: tuple[tuple[tuple[int, ...], tuple[int, ...], int], ...]
    scale: float
    constant_joules: float

    def joules(self, units: float) -> float:
        """Of a value of the integer objective."""
        return units / self.scale + self.constant_joules

    def whole(self, values: Sequence[float]) -> list[int]:
        """Column values of the model as those of this program."""
        pairs = zip(values, self.largest, strict=True)
        return [max(0, min(round(value * most), most)) for value, most in pairs]

    def values(self, whole: Sequence[int]) -> tuple[float, ...]:
        """And back."""
        return tuple(value / most for value, most in zip(whole, self.largest, strict=True))


def integer_program(matrix: Matrix, *, absolute_joules: float) -> IntegerProgram:
    """``matrix`` in whole numbers, its objective to a tenth of ``absolute_joules`` where that can be had.

    Raises:
        NotWhole: a column that is not 0 or 1 has different factors in different rows.
    """
    rows = [(columns, factors, right) for columns, factors, right in matrix.by_row() if columns]
    shares = _shares(matrix, rows)
    largest = [1] * len(matrix.costs)
    units: dict[int, float] = {}  # bytes per unit of the column
    for column, (factor, unit) in shares.items():
        largest[column], units[column] = max(1, math.floor(factor / unit)), unit
    whole_rows = tuple(_whole_row(columns, factors, right, units) for columns, factors, right in rows)
    terms = [(column, cost) for column, cost in enumerate(matrix.costs.tolist()) if cost]
    scale = _objective_scale([cost for _, cost in terms], absolute_joules)
    costs = tuple((column, math.floor(scale * cost)) for column, cost in terms)
    return IntegerProgram(tuple(largest), costs, whole_rows, scale, matrix.offset)


def _objective_scale(costs: list[float], absolute_joules: float) -> float:
    """A power of two: fine enough that rounding every term loses a tenth of the gap at most."""
    total = sum(abs(cost) for cost in costs)
    if not total:
        return 1.0
    coarsest = _LARGEST_SUM / total
    wanted = 10.0 * len(costs) / absolute_joules if absolute_joules > 0.0 else coarsest
    return 2.0 ** math.floor(math.log2(min(max(wanted, 2.0**20 / total), coarsest)))


_Row = tuple[list[int], list[float], float]


def _shares(matrix: Matrix, rows: list[_Row]) -> dict[int, tuple[float, float]]:
    """Per column that is a sum of bytes: its factor, and the bytes of which all others are multiples."""
    loose = {number for number, whole in enumerate(matrix.whole.tolist()) if not whole}
    factors: dict[int, set[float]] = {number: set() for number in loose}
    divisor = 0
    for columns, row_factors, _ in rows if loose else ():
        if loose.isdisjoint(columns):
            continue
        for column, factor in zip(columns, row_factors, strict=True):
            if column in loose:
                factors[column].add(abs(factor))
            elif not factor.is_integer():
                raise NotWhole
            else:
                divisor = math.gcd(divisor, int(factor))
    if any(len(found) > 1 for found in factors.values()):
        raise NotWhole
    return {column: (found.pop(), float(divisor or 1)) for column, found in factors.items() if found}


def _whole_row(
    columns: list[int], factors: list[float], right: float, units: dict[int, float]
) -> tuple[tuple[int, ...], tuple[int, ...], int]:
    pairs = zip(columns, factors, strict=True)
    terms = {c: math.copysign(units[c], f) if c in units else f for c, f in pairs}
    if all(factor.is_integer() for factor in terms.values()):
        divisor = math.gcd(*(int(factor) for factor in terms.values()))
        quotients = tuple(int(factor) // divisor for factor in terms.values())
        descends = any(column in units and factor < 0 for column, factor in terms.items())
        whole_right = math.ceil(right / divisor) if descends else math.floor(right / divisor)
        return tuple(terms), quotients, whole_right
    total = sum(abs(factor) for factor in terms.values()) + abs(right)
    scale = 2.0 ** math.floor(math.log2(_ROW_PRECISION / total))
    return tuple(terms), tuple(math.floor(scale * f) for f in terms.values()), math.ceil(scale * right)
