"""The one form in which every engine sees a program: sparse rows over columns between 0 and 1.

    minimise  costs·x + offset   within   A x ≤ at_most,   0 ≤ x ≤ 1,   x[j] in {0, 1} where ``integer``

The event model and the relaxations produce it; HiGHS, CP-SAT, PuLP's engines, certificates and second
opinions read it. Costs are joules; `scaled` is what an engine with tolerances is given. `Job` and `Outcome`
are what an engine is given and what it comes back with.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from poet.util.clock import WALL, Clock

Numbers = npt.NDArray[np.float64]
Indices = npt.NDArray[np.int64]
Choice = npt.NDArray[np.bool_]
Term = tuple[float, int]

ONE, NOUGHT = -1, -2
"""Constants in the place of a column."""

_DEAREST = 1000.0  # what the most expensive column costs in the scaled objective
_WHOLE_SHARE = 1e-9  # of a right side that counts as rounding when it is rounded down


@dataclass(frozen=True, slots=True)
class Matrix:
    """A program.

    Attributes:
        costs: joules per column.
        offset: joules, whatever the columns are.
        rows, columns, factors: the entries of A, by row.
        at_most: per row.
        integer: per column, whether an engine must choose 0 or 1.
        whole: per column, whether it is 0 or 1 in every plan; more than ``integer``, as some columns follow
            from others.
        start: a solution to begin with.
    """

    costs: Numbers
    offset: float
    rows: Indices
    columns: Indices
    factors: Numbers
    at_most: Numbers
    integer: Choice
    whole: Choice
    start: Numbers | None = None

    def joules(self, values: Numbers | Sequence[float]) -> float:
        """What ``values`` of the columns cost."""
        return float(self.costs @ np.asarray(values) + self.offset)

    def row_starts(self) -> Indices:
        """Where the entries of each row begin, and the end of the last one's."""
        counts = np.bincount(self.rows, minlength=len(self.at_most))
        return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)

    def by_row(self) -> Iterator[tuple[list[int], list[float], float]]:
        """Columns, factors and right side of each row; entries of 0 are left out."""
        starts = self.row_starts()
        for number, (begin, end) in enumerate(itertools.pairwise(starts)):
            columns, factors = self.columns[begin:end], self.factors[begin:end]
            there = factors != 0.0
            yield columns[there].tolist(), factors[there].tolist(), float(self.at_most[number])

    def cut_off(self, joules: float) -> Matrix:
        """The program without solutions that cost more than ``joules``: one more row."""
        dear = np.flatnonzero(self.costs)
        return replace(
            self,
            rows=np.concatenate([self.rows, np.full(len(dear), len(self.at_most))]),
            columns=np.concatenate([self.columns, dear]),
            factors=np.concatenate([self.factors, self.costs[dear]]),
            at_most=np.append(self.at_most, joules - self.offset),
        )

    def is_kept_by(self, values: Numbers | Sequence[float], tolerance: float) -> bool:
        """Whether ``values``, rounded where columns are whole, keep every row.

        ``tolerance`` is relative to the largest part of a row.
        """
        rounded = np.where(self.whole, np.round(values), values)
        parts = self.factors * rounded[self.columns]
        sums = np.bincount(self.rows, weights=parts, minlength=len(self.at_most)) - self.at_most
        largest = np.abs(self.at_most)
        np.maximum.at(largest, self.rows, np.abs(parts))
        return bool((sums <= tolerance * largest).all())


class MatrixBuilder:
    """A program of sums over columns within rows ``Σ factor·column ≤ at_most``, while it is laid out."""

    def __init__(self) -> None:
        self.costs: list[float] = []
        self.at_most: list[float] = []
        self.integer: list[bool] = []
        self._rows: list[int] = []
        self._columns: list[int] = []
        self._factors: list[float] = []
        self._bulk: list[tuple[Indices, int, float]] = []

    def column(self, cost: float = 0.0, *, integer: bool = True) -> int:
        """A new column between 0 and 1; not ``integer``: fractional even in a solution in whole numbers."""
        self.costs.append(cost)
        self.integer.append(integer)
        return len(self.costs) - 1

    def row(self, terms: Iterable[Term], at_most: float) -> int:
        """A new row; constants among ``terms`` are moved to its right side."""
        self.at_most.append(at_most)
        row = len(self.at_most) - 1
        for factor, column in terms:
            if column == ONE:
                self.at_most[row] -= factor
            elif column != NOUGHT:
                self._rows.append(row)
                self._columns.append(column)
                self._factors.append(factor)
        return row

    def add(self, rows: Indices, factor: float, column: int) -> None:
        """Add ``factor * column`` to each of ``rows``."""
        if column == ONE:
            for row in rows:
                self.at_most[row] -= factor
        elif column != NOUGHT and len(rows):
            self._bulk.append((rows, column, factor))

    def matrix(self) -> Matrix:
        """The program as it stands."""
        sizes = [len(rows) for rows, _, _ in self._bulk]
        rows = np.concatenate([np.array(self._rows, dtype=np.int64), *(rows for rows, _, _ in self._bulk)])
        bulk_columns = np.repeat(np.array([c for _, c, _ in self._bulk], dtype=np.int64), sizes)
        bulk_factors = np.repeat(np.array([f for _, _, f in self._bulk], dtype=np.float64), sizes)
        columns = np.concatenate([np.array(self._columns, dtype=np.int64), bulk_columns])
        factors = np.concatenate([np.array(self._factors, dtype=np.float64), bulk_factors])
        order = np.argsort(rows, kind="stable")
        integer = np.array(self.integer, dtype=np.bool_)
        return Matrix(
            costs=np.array(self.costs, dtype=np.float64),
            offset=0.0,
            rows=rows[order],
            columns=columns[order],
            factors=factors[order],
            at_most=np.array(self.at_most, dtype=np.float64),
            integer=integer,
            whole=integer,
        )


def value(column: int, values: Numbers) -> float:
    """Of a column or a constant."""
    return 1.0 if column == ONE else 0.0 if column == NOUGHT else float(values[column])


# --- scaling ---


@dataclass(frozen=True, slots=True)
class Scaled:
    """A program as engines with tolerances should see it.

    Attributes:
        matrix: with a start as the original's.
        unit: of its objective per joule.
        divisors: by which each row was divided.
    """

    matrix: Matrix
    unit: float
    divisors: Numbers

    def joules(self, objective: float) -> float:
        """Of a value of the scaled objective."""
        return objective / self.unit


def scaled(matrix: Matrix) -> Scaled:
    """``matrix`` with the most expensive column at 1000, whatever its joules, and small rows.

    Rows of whole numbers over whole columns, as those of bytes, are divided by their greatest common divisor
    and their right side is rounded down, which cuts nothing off; others by their largest factor.
    """
    there = matrix.factors != 0.0
    if not there.all():
        matrix = replace(
            matrix, rows=matrix.rows[there], columns=matrix.columns[there], factors=matrix.factors[there]
        )
    largest = float(np.abs(matrix.costs).max(initial=0.0))
    unit = _DEAREST / largest if largest > 0.0 else 1.0
    divisors = np.ones(len(matrix.at_most))
    magnitudes = np.abs(matrix.factors)
    used, first = np.unique(matrix.rows, return_index=True)
    exact = (magnitudes == np.floor(magnitudes)) & (magnitudes < 2.0**53) & matrix.whole[matrix.columns]
    at_most = matrix.at_most
    if len(used):
        integral = np.logical_and.reduceat(exact, first)
        common = np.gcd.reduceat(np.where(exact, magnitudes, 0.0).astype(np.int64), first)
        divisors[used] = np.where(integral, common, np.maximum.reduceat(magnitudes, first))
        whole_rows = np.zeros(len(divisors), dtype=np.bool_)
        whole_rows[used] = integral
        divided = matrix.at_most / divisors
        at_most = np.where(whole_rows, np.floor(divided + _WHOLE_SHARE), divided)
    small = replace(
        matrix,
        costs=matrix.costs * unit,
        offset=matrix.offset * unit,
        factors=matrix.factors / divisors[matrix.rows],
        at_most=at_most,
    )
    return Scaled(small, unit, divisors)


# --- parts ---


def part_of(matrix: Matrix, free: Choice, values: Numbers) -> tuple[Matrix, Indices]:
    """The program whose integer columns are as in ``values`` unless ``free``, and the columns that it has.

    Only what is open reaches the engine: fixed columns become constants, and rows that cannot be broken any
    more are dropped. The values are its start.
    """
    fixed = matrix.integer & ~free
    known = np.where(fixed, np.round(values), 0.0)
    left = np.flatnonzero(~fixed)
    used = matrix.factors * known[matrix.columns]
    at_most = matrix.at_most - np.bincount(matrix.rows, weights=used, minlength=len(matrix.at_most))
    open_entries = ~fixed[matrix.columns]
    rows, columns = matrix.rows[open_entries], matrix.columns[open_entries]
    factors = matrix.factors[open_entries]
    size = np.zeros(len(at_most))
    np.maximum.at(size, rows, np.abs(factors))
    most = np.bincount(rows, weights=np.maximum(factors, 0.0), minlength=len(at_most))
    binding = most > at_most + _WHOLE_SHARE * np.maximum(size, 1.0)
    entries = binding[rows]
    position = np.zeros(len(fixed), dtype=np.int64)
    position[left] = np.arange(len(left))
    part = Matrix(
        costs=matrix.costs[left],
        offset=float(matrix.offset + matrix.costs @ known),
        rows=(np.cumsum(binding) - 1)[rows[entries]],
        columns=position[columns[entries]],
        factors=factors[entries],
        at_most=at_most[binding],
        integer=matrix.integer[left],
        whole=matrix.whole[left],
        start=values[left],
    )
    return part, left


# --- runs of engines ---

Watcher = Callable[[Sequence[float] | None, float], bool]
"""Called with a better solution's values (or ``None``) and the bound; true stops the engine."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What an engine came back with.

    Attributes:
        values: of the columns, in order; ``None``: no solution found.
        bound_joules: no solution has a smaller objective; ``-inf`` where the engine does not say.
        done: the engine reports that nothing is left to search within the gap set.
        infeasible: the engine reports that there is no solution.
        interrupted: the user stopped it.
    """

    values: Sequence[float] | None
    bound_joules: float
    done: bool
    infeasible: bool
    interrupted: bool

    def beside(self, other: Outcome, matrix: Matrix) -> Outcome:
        """The better of both, where ``other`` is of the same ``matrix``."""
        found = [each.values for each in (self, other) if each.values is not None]
        return Outcome(
            values=min(found, key=matrix.joules, default=None),
            bound_joules=max(self.bound_joules, other.bound_joules),
            done=self.done or other.done,
            infeasible=self.infeasible or other.infeasible,
            interrupted=self.interrupted or other.interrupted,
        )


UNKNOWN = Outcome(None, -math.inf, False, False, False)


@dataclass(frozen=True, slots=True)
class Effort:
    """What an engine may spend and when it may stop.

    Attributes:
        seconds: wall clock; ``None``: no limit.
        absolute_joules, relative_gap: of the objective at which it may stop.
        most_seconds: wall clock after which an engine in a process of its own is ended, however far it is.
        clock: by which seconds are counted, and which hears of the work done.
    """

    seconds: float | None
    threads: int = 1
    seed: int = 0
    absolute_joules: float = 0.0
    relative_gap: float = 0.0
    most_seconds: float = math.inf
    clock: Clock = WALL


@dataclass(frozen=True, slots=True)
class Job:
    """One run of one engine: minimise ``matrix``, from its start if it has one."""

    matrix: Matrix
    effort: Effort
    watcher: Watcher | None = None
