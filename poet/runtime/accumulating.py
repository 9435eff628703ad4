"""Micro-batches: all but the last of a step sum their gradients, the last one updates."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence

import torch

from poet.errors import PlanError
from poet.micro import IS_FIRST
from poet.runtime.background import Pager
from poet.runtime.cells import Cells
from poet.runtime.companions import ACCUMULATION, CompanionPages
from poet.runtime.lasting import LastingTensors
from poet.runtime.replay import StepReplay
from poet.training_plan import Plan


class Accumulation:
    """The accumulating step of an open plan.

    Attributes:
        count: of micro-batches since the last update, whose gradients are summed.
    """

    def __init__(
        self, plan: Plan, tensors: LastingTensors, pager: Pager | None, generator: torch.Generator | None
    ) -> None:
        self._plan, self._tensors = plan, tensors
        self.count = 0
        self._replay: StepReplay | None = None
        if plan.accumulation is not None:
            self._cells = Cells(plan.accumulation.graph)
            pages = None if pager is None else CompanionPages(ACCUMULATION, plan.accumulation, pager)
            self._replay = StepReplay(
                plan.accumulation, self._cells, tensors, pager=pages, generator=generator
            )

    @property
    def scalars(self) -> dict[str, float]:
        """Whether the next micro-batch begins the sums."""
        return {IS_FIRST: float(self.count == 0)}

    def run(
        self, number: int, given: Sequence[torch.Tensor], scalars: Mapping[str, float]
    ) -> tuple[float, tuple[torch.Tensor, ...]]:
        """Add the gradients of one micro-batch of step ``number``; gives its loss and the model's outputs.

        Raises:
            PlanError: the plan has no micro-batches.
            ReplayError: as of `StepReplay.step`.
        """
        if self._replay is None or self._plan.accumulation is None:
            raise PlanError(
                f"{self._plan.model.name}: the plan has no micro-batches; plan with micro=4 (--micro 4)"
            )
        placed = self._tensors.placed
        place = contextlib.nullcontext() if placed is None else placed.beside(self._plan.accumulation)
        with place as mark, self._tensors.lent_to(self._cells):
            result = self._replay.step(number, given, {**scalars, **self.scalars}, mark=mark)
        self._replay.done()
        self.count += 1
        return result
