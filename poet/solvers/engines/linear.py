"""Large linear programs, and bounds that need no trust in an engine.

What comes back as a bound is computed here: for any duals y ≤ 0 of the rows A x ≤ b,

    c·x ≥ y·b + (c − yA)·x ≥ y·b + Σ min(0, c − yA)    for every feasible x in [0, 1],

so the engine's duals may be rounded, or those of a run that was cut short, and the bound holds (Neumaier and
Shcherbina, "Safe bounds in linear and mixed-integer linear programming", 2004).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import highspy
import numpy as np

from poet.clock import WALL, Clock
from poet.solvers.engines.highs import charge, limit, loaded
from poet.solvers.engines.interruptible import run
from poet.solvers.engines.matrix import Matrix, Numbers, Scaled, scaled

_ROUNDING = 1e-12  # of the sum of all magnitudes that a bound adds up; far more than doubles lose


@dataclass(frozen=True, slots=True)
class LinearAnswer:
    """What is known of a program after an engine ran.

    Attributes:
        bound: joules; no solution costs less; ``inf``: there is none.
        values: of the columns, where the engine found a solution; else ``None``.
        prices: per row, by how many joules the cost would fall if it allowed 1 more; 0 or more.
        done: the engine finished.
        go_on: where it did not, the answer after so many seconds more, from where it stood; it holds on to
            the engine's memory.
    """

    bound: float
    values: Numbers | None
    prices: Numbers
    done: bool
    go_on: Callable[[float], LinearAnswer] | None = field(default=None, repr=False, compare=False)


def minimise(matrix: Matrix, *, seconds: float, seed: int = 0, clock: Clock = WALL) -> LinearAnswer:
    """Solve the linear program of ``matrix``, in fractions, on one thread; its bound is certified here."""
    small = scaled(matrix)
    highs = loaded(small.matrix, integer=False)
    highs.setOptionValue("presolve", "off")  # it takes longer here than it saves
    highs.setOptionValue("solver", "simplex")
    highs.setOptionValue("random_seed", seed)
    return _run(highs, matrix, small, seconds, clock)


def _run(highs: highspy.Highs, matrix: Matrix, small: Scaled, seconds: float, clock: Clock) -> LinearAnswer:
    """What ``highs``, which has ``small`` of ``matrix``, knows after ``seconds`` more."""
    limit(highs, seconds, clock, integer=False)
    run(highs)
    charge(highs, clock)
    status, info, solution = highs.getModelStatus(), highs.getInfo(), highs.getSolution()
    found = info.primal_solution_status == highspy.SolutionStatus.kSolutionStatusFeasible
    values = np.array(solution.col_value) if found else None
    done = status == highspy.HighsModelStatus.kOptimal
    none = np.zeros(len(matrix.at_most))
    if status == highspy.HighsModelStatus.kInfeasible:
        _, has_ray, ray = highs.getDualRay()  # type: ignore[attr-defined]  # missing from its stubs
        if has_ray:
            duals = -np.abs(np.array(ray)) / small.divisors
            if _certified(matrix, np.zeros_like(matrix.costs), duals) > 0.0:
                return LinearAnswer(math.inf, None, none, True)
    duals = none
    if solution.dual_valid:
        duals = np.minimum(np.array(solution.row_dual), 0.0) / small.divisors / small.unit
    bound = _certified(matrix, matrix.costs, duals) + matrix.offset
    further = None if done else partial(_run, highs, matrix, small, clock=clock)
    return LinearAnswer(max(0.0, bound), values, -duals, done, further)


def _certified(matrix: Matrix, costs: Numbers, duals: Numbers) -> float:
    """The bound that ``duals`` prove, less what rounding may have added."""
    parts = matrix.factors * duals[matrix.rows]
    left = costs - np.bincount(matrix.columns, weights=parts, minlength=len(costs))
    terms = np.concatenate([duals * matrix.at_most, np.minimum(left, 0.0)])
    magnitude = float(np.abs(terms).sum() + np.abs(parts).sum() + np.abs(costs).sum())
    return math.fsum(terms) - _ROUNDING * magnitude
