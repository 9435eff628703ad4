"""Proofs that need no trust in an engine: a program has no solution, or none that costs less.

An engine solves linear programs here, but only its prices are used, and what they prove is summed
up in exact fractions. For prices y ≥ 0 of the rows A x ≤ b and columns between l and u (Farkas):

    every solution has  y·b ≥ yA·x ≥ Σ min(l·yA, u·yA),   so there is none if  y·b < Σ min(l·yA, u·yA).

Where the linear program has a solution, a column that must be 0 or 1 is not, and both are tried. A
proof is the tree of those choices with prices at each leaf; the choices and sums are made here.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import highspy
import numpy as np
import numpy.typing as npt

from poet.clock import WALL, Clock
from poet.solvers.engines.highs import charge, limit, loaded
from poet.solvers.engines.matrix import Matrix
from poet.tuning import DEFAULT, Tuning

_WHOLE = 1e-6  # nearer to 0 or 1 than this, a column counts as decided in the linear program
_NO_PRICE = 1e-9  # prices below are left out; the proof is summed up without them


@dataclass(frozen=True, slots=True)
class Proof:
    """That a program has no solution.

    Attributes:
        leaves: cases that the proof distinguishes.
        families: constraint families that it rests on, the heaviest first.
    """

    leaves: int
    families: tuple[str, ...]


def prove_none(
    matrix: Matrix,
    *,
    seconds: float,
    below_joules: float | None = None,
    tuning: Tuning = DEFAULT,
    clock: Clock = WALL,
) -> Proof | None:
    """A proof that ``matrix`` has no solution, or none that costs less than ``below_joules``.

    ``None`` if there is a solution, no proof within ``seconds``, or more factors than
    ``tuning`` has summed up.
    """
    program = matrix if below_joules is None else matrix.cut_off(below_joules)
    if len(program.factors) > tuning.engines.proof_factors:
        return None
    return _Prover(program, clock.now() + seconds, clock).prove()


class _Prover:
    """A depth-first search over 0 or 1 for the undecided columns; every leaf is closed by duals."""

    def __init__(self, program: Matrix, end: float, clock: Clock) -> None:
        self.rows, self.end, self.clock = list(program.by_row()), end, clock
        self.families = program.families or ("row",) * len(self.rows)
        self.integer = np.flatnonzero(program.integer).tolist()
        self.weights: dict[str, float] = {}
        self.leaves = 0
        self.scales = [_scale(factors) for _, factors, _ in self.rows]
        self.highs = _elastic(program, self.scales)

    def prove(self) -> Proof | None:
        """Close every case, or give up."""
        pending: list[dict[int, int]] = [{}]
        fixed: dict[int, int] = {}
        while pending:
            wanted = pending.pop()
            self._fix(fixed, wanted)
            fixed = wanted
            left_seconds = self.end - self.clock.now()
            if left_seconds < 0.0:
                return None
            spent_seconds = 0.0 if self.clock.counts_work else self.highs.getRunTime()
            limit(self.highs, spent_seconds + left_seconds, self.clock, integer=False)
            self.highs.run()
            charge(self.highs, self.clock)
            if self.highs.getModelStatus() != highspy.HighsModelStatus.kOptimal:
                return None
            solution = self.highs.getSolution()
            if self._closes(np.array(solution.row_dual), fixed):
                self.leaves += 1
                continue
            column = self._undecided(np.array(solution.col_value), fixed)
            if column is None:
                return None
            value = round(solution.col_value[column])
            pending += [{**fixed, column: 1 - value}, {**fixed, column: value}]
        families = sorted(self.weights, key=lambda family: -self.weights[family])
        return Proof(self.leaves, tuple(families))

    def _fix(self, before: dict[int, int], now: dict[int, int]) -> None:
        for column in before.keys() - now.keys():
            self.highs.changeColBounds(column, 0.0, 1.0)
        for column, value in now.items():
            if before.get(column) != value:
                self.highs.changeColBounds(column, float(value), float(value))

    def _undecided(self, values: npt.NDArray[np.float64], fixed: dict[int, int]) -> int | None:
        """The column to decide next: the one nearest to a half."""
        far = {c: abs(values[c] - round(values[c])) for c in self.integer if c not in fixed}
        column = max(far, key=far.__getitem__, default=None)
        if column is None or far[column] < _WHOLE:
            return None
        return column

    def _closes(self, duals: npt.NDArray[np.float64], fixed: dict[int, int]) -> bool:
        """Whether prices prove that the case has no solution, in exact fractions."""
        right = Fraction(0)
        sums: dict[int, Fraction] = {}
        used: dict[str, float] = {}
        priced = zip(self.rows, self.families, self.scales, duals, strict=True)
        for (columns, factors, at_most), family, scale, dual in priced:
            if dual >= -_NO_PRICE:
                continue
            price = Fraction(-float(dual)) * Fraction(scale)
            right += price * Fraction(at_most)
            for column, factor in zip(columns, factors, strict=True):
                sums[column] = sums.get(column, Fraction(0)) + price * Fraction(factor)
            used[family] = used.get(family, 0.0) - float(dual)
        least = sum(
            (total * fixed[c] if c in fixed else min(Fraction(0), total) for c, total in sums.items()),
            Fraction(0),
        )
        if right >= least:
            return False
        for family, weight in used.items():
            self.weights[family] = self.weights.get(family, 0.0) + weight
        return True


def _scale(factors: list[float]) -> float:
    """Makes the largest factor 1."""
    return 1.0 / (max(map(abs, factors), default=0.0) or 1.0)


def _elastic(program: Matrix, scales: list[float]) -> highspy.Highs:
    """Minimise by how much the scaled rows must be loosened together: each has one more column for that."""
    columns, rows = len(program.costs), len(program.at_most)
    loosening, of_row = columns + np.arange(rows), np.array(scales)
    order = np.argsort(np.concatenate([program.rows, np.arange(rows)]), kind="stable")
    entries = np.concatenate([program.columns, loosening])[order]
    factors = np.concatenate([of_row[program.rows] * program.factors, np.full(rows, -1.0)])[order]
    nothing = np.zeros(columns + rows, dtype=bool)
    highs = loaded(
        Matrix(
            costs=np.concatenate([np.zeros(columns), np.ones(rows)]),
            offset=0.0,
            rows=np.concatenate([program.rows, np.arange(rows)])[order],
            columns=entries,
            factors=factors,
            at_most=of_row * program.at_most,
            integer=nothing,
            whole=nothing,
        ),
        integer=False,
    )
    for column in loosening:
        highs.changeColBounds(int(column), 0.0, highspy.kHighsInf)
    return highs
