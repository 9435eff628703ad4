"""Steps beside the training step of an open plan: for other shapes, and micro-batches that sum gradients."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence

import torch

from poet.errors import PlanError
from poet.ir.micro import IS_FIRST
from poet.plans.training_plan import ACCUMULATION, Plan
from poet.runtime.kernels.cells import Cells, Padded
from poet.runtime.steps.companions import CompanionPages
from poet.runtime.steps.instructions import Tap
from poet.runtime.steps.lasting import LastingTensors
from poet.runtime.steps.replay import StepReplay
from poet.runtime.storage.background import Pager


class StepBeside:
    """The compiled auxiliary schedule; its outputs lie where other steps need the room."""

    def __init__(
        self,
        plan: Plan,
        tensors: LastingTensors,
        *,
        called: str,
        pager: Pager | None,
        generator: torch.Generator | None,
        sums_gradients: bool = False,
    ) -> None:
        """Compile it.

        Args:
            plan: of the auxiliary schedule.
            tensors: of the plan that is open.
            called: what begins the names of its page slots.
            pager: of the open plan.
            generator: that random ops draw from.
            sums_gradients: see `StepReplay`.
        """
        self._plan, self._tensors = plan, tensors
        self._cells = Cells(plan.graph)
        pages = None if pager is None else CompanionPages(called, plan, pager)
        self._replay = StepReplay(
            plan,
            self._cells,
            tensors,
            pager=pages,
            generator=generator,
            sums_gradients=sums_gradients,
        )

    def run(
        self,
        number: int,
        given: Sequence[torch.Tensor | Padded],
        scalars: Mapping[str, float],
        *,
        on_gradient: Tap | None = None,
        on_instruction: Callable[[int], object] | None = None,
    ) -> tuple[float, tuple[torch.Tensor, ...]]:
        """Its loss and the model's outputs; arguments and errors as of `StepReplay.step`."""
        placed = self._tensors.placed
        place = contextlib.nullcontext() if placed is None else placed.beside(self._plan)
        with place as mark, self._tensors.lent_to(self._cells):
            result = self._replay.step(
                number,
                given,
                scalars,
                mark=mark,
                on_gradient=on_gradient,
                on_instruction=on_instruction,
            )
        self._replay.done()
        return result


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
