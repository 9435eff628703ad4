"""The relaxation in whole numbers, which tests compare with the oracle."""

from __future__ import annotations

import math
import time
from collections.abc import Collection
from dataclasses import replace

import numpy as np

from poet.solvers.bounds.refinement import refined_bounds
from poet.solvers.bounds.relaxation import Bound, bound_overhead
from poet.solvers.engines.highs import DONE, LinearAnswer, best_values, loaded
from poet.solvers.engines.program import Matrix, scaled
from poet.solvers.instance.instance import Instance

_MARGIN = 1e-6  # for the engine's tolerances


def in_whole_numbers(matrix: Matrix) -> LinearAnswer:
    """The best solution of ``matrix`` in which the columns that are to be whole are 0 or 1."""
    small = scaled(matrix)
    highs = loaded(small.matrix)
    highs.run()
    bound = highs.getInfo().mip_dual_bound
    bound = max(0.0, bound * (1 - _MARGIN) - _MARGIN) if math.isfinite(bound) else 0.0
    return LinearAnswer(small.joules(bound), best_values(highs), np.zeros(0), highs.getModelStatus() in DONE)


def whole_bound(instance: Instance, *, moments: Collection[int] = ()) -> Bound:
    """As `bound_overhead`, in whole numbers."""
    bound = bound_overhead(instance, moments=moments)
    answer = in_whole_numbers(bound.relaxation.program.matrix())
    return replace(bound, overhead_joules=bound.relaxation.fixed_joules + answer.bound, answer=answer)


def tightest_bound(instance: Instance, *, seconds: float = 60.0) -> Bound:
    """The best bound of the linear program, on grids as fine as they get within ``seconds``."""
    end, best = time.monotonic() + seconds, None
    for bound in refined_bounds(instance, lambda: max(end - time.monotonic(), 0.0)):
        best = bound if best is None or bound.overhead_joules > best.overhead_joules else best
        if time.monotonic() >= end:
            break
    assert best is not None
    return best
