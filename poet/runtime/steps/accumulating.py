"""Micro-batches: all but the last of a step sum their gradients, the last one updates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from poet.errors import PlanError
from poet.micro import IS_FIRST
from poet.plans.training_plan import Plan
from poet.runtime.steps.beside import StepBeside
from poet.runtime.steps.companions import ACCUMULATION
from poet.runtime.steps.lasting import LastingTensors
from poet.runtime.storage.background import Pager


class Accumulation:
    """The accumulating step of an open plan.

    Attributes:
        count: of micro-batches since the last update, whose gradients are summed.
    """

    def __init__(
        self, plan: Plan, tensors: LastingTensors, pager: Pager | None, generator: torch.Generator | None
    ) -> None:
        self._plan = plan
        self.count = 0
        self._step: StepBeside | None = None
        if plan.accumulation is not None:
            self._step = StepBeside(
                plan.accumulation,
                tensors,
                called=ACCUMULATION,
                pager=pager,
                generator=generator,
                sums_gradients=True,
            )

    @property
    def scalars(self) -> dict[str, float]:
        """Whether the next micro-batch begins the sums."""
        return {IS_FIRST: float(self.count == 0)}

    def check(self) -> None:
        """Do nothing if the plan takes micro-batches one by one.

        Raises:
            PlanError: it does not.
        """
        if self._step is not None:
            return
        name = self._plan.model.name
        raise PlanError(f"{name}: the plan has no micro-batches; plan with micro=4 (--micro 4)")

    def run(
        self, number: int, given: Sequence[torch.Tensor], scalars: Mapping[str, float]
    ) -> tuple[float, tuple[torch.Tensor, ...]]:
        """Add the gradients of one micro-batch of step ``number``; gives its loss and the model's outputs.

        Raises:
            PlanError: the plan has no micro-batches.
            ReplayError: as of `StepReplay.step`.
        """
        self.check()
        assert self._step is not None
        result = self._step.run(number, given, {**scalars, **self.scalars})
        self.count += 1
        return result
