"""A second opinion on an engine's result that there is no solution: exact arithmetic, else another engine.

"There is no plan" and "no plan costs less" are results of a search that leaves no proof behind.
Before either is reported to a user, `certificate` tries to prove it in exact fractions; where that
takes too long, an engine of another make solves the same program. Which of the two succeeded, or that none
did, is part of the answer.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, replace

from poet.solution import PROVEN, WORD_OF
from poet.solvers.engines import Effort, available_engines, run_engine
from poet.solvers.engines.certificate import prove_none
from poet.solvers.engines.matrix import Matrix

_SECOND = ("cpsat", "highs", "scip", "cbc")  # the surest and quickest at this first
_TOLERANCE = 1e-6  # relative, of an engine's objective


class Confidence(enum.Enum):
    """Who stands behind a proof."""

    EXACT = PROVEN
    AGREED = "two engines agree"
    ALONE = "one engine's word"
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
    proof = prove_none(
        matrix, seconds=proof_seconds, below_joules=below_joules, tuning=effort.tuning, clock=effort.clock
    )
    if proof is not None:
        return Confirmation(Confidence.EXACT, (), proof.families)
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
