"""The event model as a matrix, with the stages in which each decision's gap begins and ends."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from poet.solvers.engines.program import Choice, Indices, Matrix
from poet.solvers.event_model.decisions import EventModel
from poet.solvers.event_model.model import matrix_of


@dataclass(frozen=True, slots=True)
class GapMatrix:
    """A model, its matrix, and what its columns mean.

    Attributes:
        first, last: the stages in which a decision's gap begins and ends, -1 for columns that follow
            from decisions.
    """

    model: EventModel
    matrix: Matrix
    first: Indices
    last: Indices

    @property
    def decided(self) -> Choice:
        """The columns that an engine must choose to be 0 or 1."""
        return self.matrix.integer


def gap_matrix_of(model: EventModel) -> GapMatrix:
    """The matrix of ``model`` with its gaps."""
    matrix = matrix_of(model)
    first, last = np.full(len(matrix.costs), -1), np.full(len(matrix.costs), -1)
    slots = model.timeline.slots
    for (content, index), kept in model.keep.items():
        life = model.timeline.events[content]
        for column in kept.terms:
            first[column], last[column] = slots[life[index].slot].stage, slots[life[index + 1].slot].stage
    return GapMatrix(model, matrix, first, last)
