"""The relaxation in whole numbers, which tests compare with the oracle."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import highspy
import numpy as np

from poet.solvers.bounds.relaxation import Bound, bound_overhead
from poet.solvers.engines.linear import Answer, Program
from poet.solvers.engines.matrix import loaded, matrix_of
from poet.solvers.instance.instance import Instance


def in_whole_numbers(program: Program) -> Answer:
    """The best solution of ``program`` in which the columns that are to be whole are 0 or 1."""
    matrix, unit = matrix_of(program)
    highs = loaded(matrix)
    highs.run()
    info = highs.getInfo()
    found = info.primal_solution_status == highspy.SolutionStatus.kSolutionStatusFeasible
    bound = max(0.0, info.mip_dual_bound * (1 - 1e-6) - 1e-6) if np.isfinite(info.mip_dual_bound) else 0.0
    values = np.array(highs.getSolution().col_value) if found else None
    done = highs.getModelStatus() == highspy.HighsModelStatus.kOptimal
    return Answer(bound / unit, values, np.zeros(0), done)


def whole_bound(instance: Instance, *, moments: Collection[int] = ()) -> Bound:
    """As `bound_overhead`, in whole numbers."""
    bound = bound_overhead(instance, moments=moments)
    answer = in_whole_numbers(bound.relaxation.program)
    return replace(bound, overhead_joules=bound.relaxation.fixed_joules + answer.bound, answer=answer)
