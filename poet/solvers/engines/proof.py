"""Proofs that an engine's result holds: by certified linear programs, else by another engine.

"There is no plan" and "no plan costs less" are results of a search that leaves no proof behind. Before either
is reported to a user, it is to be proven here, by a search of our own: a column that must be 0 or 1 is set to
both, and each case is closed by a bound of its linear program, which needs no trust in the engine that solves
it (`poet.solvers.engines.highs`). Where that takes too long, an engine of another make solves the program.
Which of the two succeeded, or that none did, is part of the answer.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass, replace

import numpy as np

from poet.problem.solution import PROVEN, WORD_OF
from poet.solvers.engines import Effort, available_engines, run_engine
from poet.solvers.engines.highs import LinearProgram
from poet.solvers.engines.program import Matrix
from poet.util.clock import WALL, Clock

_WHOLE = 1e-6  # nearer to 0 or 1 than this, a column counts as decided in the linear program
_SECOND = ("cpsat", "highs", "scip", "cbc")  # the surest and quickest at this first
_TOLERANCE = 1e-6  # relative, of an engine's objective


def is_proven(
    matrix: Matrix, *, seconds: float, below_joules: float | None = None, clock: Clock = WALL
) -> bool:
    """Whether ``matrix`` has no solution, or none that costs less than ``below_joules``.

    False if there is one, or no proof within ``seconds``.
    """
    end, closed_joules = clock.now() + seconds, math.inf if below_joules is None else below_joules
    program, pending = LinearProgram(matrix, clock=clock), [dict[int, int]()]
    while pending:
        fixed = pending.pop()
        program.fix(fixed)
        left_seconds = end - clock.now()
        if left_seconds <= 0.0:
            return False
        answer = program.minimise(left_seconds)
        if answer.bound >= closed_joules:
            continue
        if answer.values is None:
            return False
        apart = np.abs(answer.values - np.round(answer.values)) * matrix.integer
        column = int(apart.argmax()) if len(apart) else 0
        if not len(apart) or apart[column] < _WHOLE or column in fixed:
            return False
        value = round(answer.values[column])
        pending += [{**fixed, column: 1 - value}, {**fixed, column: value}]
    return True


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
    """

    confidence: Confidence
    engines: tuple[str, ...] = ()

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
        proof_seconds: for the proof of our own, which comes first.
        below_joules: of the objective; ``None``: no solution at all.
    """
    if is_proven(matrix, seconds=proof_seconds, below_joules=below_joules, clock=effort.clock):
        return Confirmation(Confidence.EXACT)
    usable = available_engines()
    second = next((name for name in _SECOND if name not in engine and name in usable), None)
    if second is None:
        return Confirmation(Confidence.ALONE, (engine,))
    program = matrix if below_joules is None else matrix.cut_off(below_joules)
    outcome = run_engine(second, program, replace(effort, threads=1))
    none_below = below_joules is not None and outcome.bound_joules >= below_joules
    if outcome.infeasible or none_below:  # by rounding, the program of some engines may have solutions
        return Confirmation(Confidence.AGREED, (engine, second))
    found = outcome.values
    if found is not None and matrix.is_kept_by(found, _TOLERANCE):
        joules = matrix.joules(found)
        if below_joules is None or joules < below_joules - _TOLERANCE * max(abs(joules), abs(below_joules)):
            return Confirmation(Confidence.REFUTED, (engine, second))
    return Confirmation(Confidence.ALONE, (engine, second))
