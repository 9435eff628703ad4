"""Large linear programs over columns between 0 and 1, and bounds that need no trust in an engine.

HiGHS is called directly: its arrays take a million entries in a fraction of the time that a model
of named variables and expressions does. What comes back as a bound is computed here: for any
prices y ≤ 0 of the rows A x ≤ b,

    c·x ≥ y·b + (c − yA)·x ≥ y·b + Σ min(0, c − yA)    for every feasible x in [0, 1],

so the engine's prices may be rounded, or those of a run that was cut short, and the bound holds.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import highspy
import numpy as np
import numpy.typing as npt

from poet.solvers.engines.interruptible import run

Numbers = npt.NDArray[np.float64]
Indices = npt.NDArray[np.int64]
Term = tuple[float, int]

ONE, NOUGHT = -1, -2
"""Constants in the place of a column."""

_ROUNDING = 1e-12  # of the sum of all magnitudes that a bound adds up; far more than doubles lose


class Program:
    """Minimise a sum over columns within rows ``Σ factor·column ≤ at_most``, while it is laid out."""

    def __init__(self) -> None:
        self.costs: list[float] = []
        self.at_most: list[float] = []
        self.whole: list[bool] = []
        self._rows: list[int] = []
        self._columns: list[int] = []
        self._factors: list[float] = []
        self._bulk: list[tuple[Indices, int, float]] = []

    def column(self, cost: float = 0.0, *, whole: bool = True) -> int:
        """A new column between 0 and 1; not ``whole``: in fractions even if asked for whole numbers."""
        self.costs.append(cost)
        self.whole.append(whole)
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

    def entries(self) -> tuple[Indices, Indices, Numbers]:
        """Row, column and factor of each entry, by row."""
        sizes = [len(rows) for rows, _, _ in self._bulk]
        rows = np.concatenate([np.array(self._rows, dtype=np.int64), *(rows for rows, _, _ in self._bulk)])
        bulk_columns = np.repeat(np.array([c for _, c, _ in self._bulk], dtype=np.int64), sizes)
        bulk_factors = np.repeat(np.array([f for _, _, f in self._bulk], dtype=np.float64), sizes)
        columns = np.concatenate([np.array(self._columns, dtype=np.int64), bulk_columns])
        factors = np.concatenate([np.array(self._factors, dtype=np.float64), bulk_factors])
        order = np.argsort(rows, kind="stable")
        return rows[order], columns[order], factors[order]


def value(column: int, values: Numbers) -> float:
    """Of a column or a constant."""
    return 1.0 if column == ONE else 0.0 if column == NOUGHT else float(values[column])


@dataclass(frozen=True, slots=True)
class Answer:
    """What is known of a program after an engine ran.

    Attributes:
        bound: no solution costs less; ``inf``: there is none.
        values: of the columns, where the engine found a solution (of the linear program, or whole
            numbers where they were asked for); else ``None``.
        prices: per row, by how much the cost would fall if it allowed 1 more; 0 or more.
        done: the engine finished.
    """

    bound: float
    values: Numbers | None
    prices: Numbers
    done: bool


def minimise(program: Program, *, seconds: float, seed: int = 0) -> Answer:
    """Solve ``program`` on one thread; its bound is certified as the module says."""
    costs, at_most = np.array(program.costs), np.array(program.at_most)
    entries = program.entries()
    largest = float(costs.max(initial=0.0))
    scale = 1000.0 / largest if largest > 0.0 else 1.0
    highs = _loaded(costs * scale, at_most, entries)
    highs.setOptionValue("time_limit", max(seconds, 0.01))
    highs.setOptionValue("random_seed", seed)
    run(highs)
    status, info, solution = highs.getModelStatus(), highs.getInfo(), highs.getSolution()
    found = info.primal_solution_status == highspy.SolutionStatus.kSolutionStatusFeasible
    values = np.array(solution.col_value) if found else None
    done = status == highspy.HighsModelStatus.kOptimal
    none = np.zeros(len(at_most))
    if status == highspy.HighsModelStatus.kInfeasible:
        _, has_ray, ray = highs.getDualRay()  # type: ignore[attr-defined]  # missing from its stubs
        if has_ray and _certified(np.zeros_like(costs), at_most, entries, -np.abs(np.array(ray))) > 0.0:
            return Answer(math.inf, None, none, True)
    prices = np.minimum(np.array(solution.row_dual), 0.0) if solution.dual_valid else none
    bound = _certified(costs * scale, at_most, entries, prices)
    return Answer(max(0.0, bound) / scale, values, -prices / scale, done)


def _certified(
    costs: Numbers, at_most: Numbers, entries: tuple[Indices, Indices, Numbers], prices: Numbers
) -> float:
    """The bound that ``prices`` prove, less what rounding may have added."""
    rows, columns, factors = entries
    parts = factors * prices[rows]
    left = costs - np.bincount(columns, weights=parts, minlength=len(costs))
    terms = np.concatenate([prices * at_most, np.minimum(left, 0.0)])
    magnitude = float(np.abs(terms).sum() + np.abs(parts).sum() + np.abs(costs).sum())
    return math.fsum(terms) - _ROUNDING * magnitude


def _loaded(costs: Numbers, at_most: Numbers, entries: tuple[Indices, Indices, Numbers]) -> highspy.Highs:
    rows, columns, factors = entries
    lp = highspy.HighsLp()
    lp.num_col_, lp.num_row_ = len(costs), len(at_most)
    lp.col_cost_ = costs
    lp.col_lower_, lp.col_upper_ = np.zeros(len(costs)), np.ones(len(costs))
    lp.row_lower_, lp.row_upper_ = np.full(len(at_most), -highspy.kHighsInf), at_most
    lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    lp.a_matrix_.start_ = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=len(at_most)))])
    lp.a_matrix_.index_, lp.a_matrix_.value_ = columns, factors
    highs = highspy.Highs()  # type: ignore[no-untyped-call]
    highs.setOptionValue("output_flag", False)
    highs.setOptionValue("threads", 1)
    highs.setOptionValue("presolve", "off")  # it takes longer here than it saves
    highs.setOptionValue("solver", "simplex")
    highs.passModel(lp)
    return highs
