"""A model as a matrix, and HiGHS on a part of it or on the whole.

HiGHS gets its arrays directly: a hundred thousand entries take it milliseconds, where a model of
named variables and expressions takes seconds.
"""

from __future__ import annotations

from dataclasses import dataclass

import highspy
import numpy as np
import numpy.typing as npt

from poet.solvers.engines.interruptible import run
from poet.solvers.engines.linear import Indices, Numbers, Program
from poet.solvers.event_model.model import Model

Choice = npt.NDArray[np.bool_]

RELATIVE_GAP = 1e-5
_LARGEST_FACTOR = 1000.0  # of a row: with the engine's tolerance it is within a byte of a gigabyte
_TOLERANCE = 1e-7


@dataclass(frozen=True, slots=True)
class Matrix:
    """Minimise costs·x + offset within A x ≤ at_most, x between 0 and 1, whole where ``whole`` says.

    Attributes:
        rows, columns, factors: the entries of A, by row.
        start: a solution to begin with.
    """

    costs: Numbers
    offset: float
    rows: Indices
    columns: Indices
    factors: Numbers
    at_most: Numbers
    whole: Choice
    start: Numbers | None = None


@dataclass(frozen=True, slots=True)
class Arrays:
    """The matrix of a model, scaled, and what its columns mean.

    Attributes:
        unit: of the scaled objective per joule.
        decided: the columns that an engine must choose to be 0 or 1.
        first, last: the stages in which a decision's gap begins and ends, -1 for columns that follow
            from decisions.
    """

    model: Model
    matrix: Matrix
    unit: float
    decided: Choice
    first: Indices
    last: Indices

    def joules(self, values: Numbers) -> float:
        """The overhead of a solution."""
        return float(self.matrix.costs @ values + self.matrix.offset) / self.unit


@dataclass(frozen=True, slots=True)
class Found:
    """Column values, ``None`` without any; whether nothing better is left."""

    values: Numbers | None
    exhausted: bool


def arrays_of(model: Model) -> Arrays:
    """The matrix of ``model``: the dearest decision costs 1000, and no factor of a row is larger."""
    rows, columns, factors, at_most = [], [], [], []
    for number, row in enumerate(model.rows):
        terms = row.expression.terms
        scale = max([1.0, *(abs(factor) / _LARGEST_FACTOR for factor in terms.values())])
        rows += [number] * len(terms)
        columns += list(terms)
        factors += [factor / scale for factor in terms.values()]
        at_most.append(-row.expression.constant / scale)
    costs = np.zeros(len(model.columns))
    for column, joules in model.overhead_joules.terms.items():
        costs[column] = joules
    unit = 1000.0 / costs.max(initial=1e-300)
    first, last = np.full(len(costs), -1), np.full(len(costs), -1)
    for (content, index), kept in model.keep.items():
        life, slots = model.timeline.events[content], model.timeline.slots
        for column in kept.terms:
            first[column], last[column] = slots[life[index].slot].stage, slots[life[index + 1].slot].stage
    decided = np.array([column.integer for column in model.columns], dtype=np.bool_)
    matrix = Matrix(
        costs=costs * unit,
        offset=model.overhead_joules.constant * unit,
        rows=np.array(rows, dtype=np.int64),
        columns=np.array(columns, dtype=np.int64),
        factors=np.array(factors, dtype=np.float64),
        at_most=np.array(at_most),
        whole=decided,
    )
    return Arrays(model=model, matrix=matrix, unit=unit, decided=decided, first=first, last=last)


def matrix_of(program: Program) -> tuple[Matrix, float]:
    """``program`` in whole numbers, and the unit of its scaled objective per unit of cost."""
    costs = np.array(program.costs)
    unit = 1000.0 / costs.max(initial=1e-300)
    rows, columns, factors = program.entries()
    matrix = Matrix(
        costs=costs * unit,
        offset=0.0,
        rows=rows,
        columns=columns,
        factors=factors,
        at_most=np.array(program.at_most),
        whole=np.array(program.whole, dtype=np.bool_),
    )
    return matrix, unit


@dataclass(frozen=True, slots=True)
class Part:
    """What is open of a matrix: its own matrix, which columns it has, the values of the others."""

    matrix: Matrix
    left: Indices
    known: Numbers

    def whole(self, values: Numbers) -> Numbers:
        """``values`` of the part's columns among those that are known."""
        together = self.known.copy()
        together[self.left] = values
        return together


def part_of(arrays: Arrays, free: Choice, values: Numbers | None, *, begin: bool = True) -> Part:
    """The program whose decisions are as in ``values`` unless ``free``; with ``begin``, these are its start.

    Only what is open reaches the engine: fixed columns become constants, and rows that cannot be
    broken any more are dropped.
    """
    fixed = arrays.decided & ~free
    known = np.where(fixed, np.round(values), 0.0) if values is not None else np.zeros(len(fixed))
    left = np.flatnonzero(~fixed)
    return Part(_open_part(arrays.matrix, fixed, known, left, values if begin else None), left, known)


def solve_part(part: Part, seconds: float, *, whole: bool = True) -> Found:
    """The best values of all columns, within ``seconds``; with ``whole`` false, the linear program's."""
    highs = loaded(part.matrix, whole=whole)
    highs.setOptionValue("time_limit", max(seconds, 0.01))
    highs.setOptionValue("mip_rel_gap", RELATIVE_GAP)
    if not whole:
        highs.setOptionValue("presolve", "off")
    run(highs)
    exhausted = highs.getModelStatus() in (
        highspy.HighsModelStatus.kOptimal,
        highspy.HighsModelStatus.kInfeasible,
    )
    if highs.getInfo().primal_solution_status != highspy.SolutionStatus.kSolutionStatusFeasible:
        return Found(None, exhausted)
    return Found(part.whole(np.array(highs.getSolution().col_value)), exhausted)


def _open_part(matrix: Matrix, fixed: Choice, known: Numbers, left: Indices, start: Numbers | None) -> Matrix:
    used = matrix.factors * known[matrix.columns]
    at_most = matrix.at_most - np.bincount(matrix.rows, weights=used, minlength=len(matrix.at_most))
    open_entries = ~fixed[matrix.columns]
    rows, columns = matrix.rows[open_entries], matrix.columns[open_entries]
    factors = matrix.factors[open_entries]
    most = np.bincount(rows, weights=np.maximum(factors, 0.0), minlength=len(at_most))
    binding = most > at_most + 1e-9
    entries = binding[rows]
    position = np.zeros(len(fixed), dtype=np.int64)
    position[left] = np.arange(len(left))
    return Matrix(
        costs=matrix.costs[left],
        offset=float(matrix.offset + matrix.costs @ known),
        rows=(np.cumsum(binding) - 1)[rows[entries]],
        columns=position[columns[entries]],
        factors=factors[entries],
        at_most=at_most[binding],
        whole=matrix.whole[left],
        start=None if start is None else start[left],
    )


def loaded(matrix: Matrix, *, whole: bool = True) -> highspy.Highs:
    """HiGHS with ``matrix``, on one thread, silent, ready to run."""
    lp = highspy.HighsLp()
    lp.num_col_, lp.num_row_ = len(matrix.costs), len(matrix.at_most)
    lp.col_cost_, lp.offset_ = matrix.costs, matrix.offset
    lp.col_lower_, lp.col_upper_ = np.zeros(lp.num_col_), np.ones(lp.num_col_)
    lp.row_lower_, lp.row_upper_ = np.full(lp.num_row_, -highspy.kHighsInf), matrix.at_most
    lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    lp.a_matrix_.start_ = np.concatenate([[0], np.cumsum(np.bincount(matrix.rows, minlength=lp.num_row_))])
    lp.a_matrix_.index_, lp.a_matrix_.value_ = matrix.columns, matrix.factors
    if whole:
        kinds = highspy.HighsVarType
        lp.integrality_ = [kinds.kInteger if chosen else kinds.kContinuous for chosen in matrix.whole]
    highs = highspy.Highs()  # type: ignore[no-untyped-call]
    highs.setOptionValue("output_flag", False)
    highs.setOptionValue("threads", 1)
    for tolerance in ("mip_feasibility_tolerance", "primal_feasibility_tolerance"):
        highs.setOptionValue(tolerance, _TOLERANCE)
    highs.passModel(lp)
    if whole and matrix.start is not None:
        highs.setSolution(lp.num_col_, np.arange(lp.num_col_, dtype=np.int32), matrix.start)
    return highs
