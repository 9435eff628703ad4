"""Proofs that an engine's result holds: by exact fractions, else by another engine on the same program.

"There is no plan" and "no plan costs less" are results of a search that leaves no proof behind. Before either
is reported to a user, it is to be proven here. An engine solves linear programs for that, but only its prices
are used, and what they prove is summed up in exact fractions. For prices y ≥ 0 of the rows A x ≤ b and
columns between l and u (Farkas):

    every solution has  y·b ≥ yA·x ≥ Σ min(l·yA, u·yA),   so there is none if  y·b < Σ min(l·yA, u·yA).

Where the linear program has a solution, a column that must be 0 or 1 is not, and both are tried. A proof is
the tree of those choices with prices at each leaf; the choices and sums are made here. Where that takes too
long, an engine of another make solves the program. Which of the two succeeded, or that none did, is part of
the answer.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import highspy
import numpy as np
import numpy.typing as npt

from poet.clock import WALL, Clock
from poet.interrupts import pass_on
from poet.solution import PROVEN, WORD_OF
from poet.solvers.engines import Effort, available_engines, run_engine
from poet.solvers.engines.cpsat import NotWhole
from poet.solvers.engines.highs import limit, loaded, run
from poet.solvers.engines.program import Matrix

PROOF_FACTORS = 400_000
"""Of a program at most that is proven empty in exact fractions; with more, summing them up takes longer than
the second that a proof has."""

_WHOLE = 1e-6  # nearer to 0 or 1 than this, a column counts as decided in the linear program
_NO_PRICE = 1e-9  # prices below are left out; the proof is summed up without them
_SECOND = ("cpsat", "highs", "scip", "cbc")  # the surest and quickest at this first
_TOLERANCE = 1e-6  # relative, of an engine's objective


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
    matrix: Matrix, *, seconds: float, below_joules: float | None = None, clock: Clock = WALL
) -> Proof | None:
    """A proof that ``matrix`` has no solution, or none that costs less than ``below_joules``.

    ``None`` if there is a solution, no proof within ``seconds``, or more factors than `PROOF_FACTORS`.
    """
    program = matrix if below_joules is None else matrix.cut_off(below_joules)
    if len(program.factors) > PROOF_FACTORS:
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
        """Close every case; ``None`` where one stays without a proof."""
        pending: list[dict[int, int]] = [{}]
        fixed: dict[int, int] = {}
        while pending:
            wanted = pending.pop()
            self._fix(fixed, wanted)
            fixed = wanted
            left_seconds = self.end - self.clock.now()
            if left_seconds < 0.0:
                return None
            limit(self.highs, left_seconds, self.clock, integer=False)
            if run(self.highs, self.clock):
                pass_on()
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


# --- second opinions ---


class Confidence(enum.Enum):
    """Who stands behind a proof."""

    EXACT = PROVEN
    AGREED = "two engines agree"
    ALONE = "bound of a single solver"
    REFUTED = "two engines contradict each other"


@dataclass(frozen=True, slots=True)
class Confirmation:
    """How sure a proof is.

    Attributes:
        confidence: who stands behind it.
        engines: that agree or differ, in the order in which they ran; none where arithmetic proves it.
        families: constraint families that an exact proof rests on, the heaviest first.
        values: of the columns, in the solution that refutes it.
    """

    confidence: Confidence
    engines: tuple[str, ...] = ()
    families: tuple[str, ...] = ()
    values: Sequence[float] | None = None

    @property
    def words(self) -> str:
        """For the user."""
        match self.confidence:
            case Confidence.EXACT:
                return PROVEN
            case Confidence.AGREED:
                return f"{' and '.join(self.engines)} agree"
            case Confidence.REFUTED:
                return f"{self.engines[-1]} found what {self.engines[0]} says cannot be"
            case Confidence.ALONE:
                others = f"; {self.engines[-1]} did not confirm it in time" if self.engines[1:] else ""
                return f"{WORD_OF}{self.engines[0]} alone, not proven independently{others}"


def confirm(
    matrix: Matrix, engine: str, effort: Effort, *, proof_seconds: float, below_joules: float | None = None
) -> Confirmation:
    """Whether ``matrix`` really has no solution, or none below ``below_joules``, as ``engine`` says.

    Args:
        matrix: the program that the engine was given.
        engine: that says so.
        effort: for a second engine.
        proof_seconds: for the proof in fractions, which comes first.
        below_joules: of the objective; ``None``: no solution at all.
    """
    proof = prove_none(matrix, seconds=proof_seconds, below_joules=below_joules, clock=effort.clock)
    if proof is not None:
        return Confirmation(Confidence.EXACT, (), proof.families)
    usable = available_engines()
    second = next((name for name in _SECOND if name not in engine and name in usable), None)
    if second is None:
        return Confirmation(Confidence.ALONE, (engine,))
    program = matrix if below_joules is None else matrix.cut_off(below_joules)
    try:
        outcome = run_engine(second, program, replace(effort, threads=1))
    except NotWhole:  # CP-SAT has no shares of the budget
        return Confirmation(Confidence.ALONE, (engine,))
    none_below = below_joules is not None and outcome.bound_joules >= below_joules
    if outcome.infeasible or none_below:  # by rounding, the program of some engines may have solutions
        return Confirmation(Confidence.AGREED, (engine, second))
    found = outcome.values
    if (
        found is None
        or not matrix.is_kept_by(found, _TOLERANCE)
        or not _clearly_below(matrix, found, below_joules)
    ):
        return Confirmation(Confidence.ALONE, (engine, second))
    return Confirmation(Confidence.REFUTED, (engine, second), values=found)


def _clearly_below(matrix: Matrix, values: Sequence[float], joules: float | None) -> bool:
    if joules is None:
        return True
    found = matrix.joules(values)
    return found < joules - _TOLERANCE * max(abs(found), abs(joules))
