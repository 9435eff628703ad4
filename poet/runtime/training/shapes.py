"""Steps for batches of other shapes, which an open plan has beside its own on the same tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from poet.ir.calls import contiguous
from poet.ir.graph import TensorType
from poet.plans.training_plan import Plan, Shape, shape_called
from poet.runtime.data.given import Given, GivenTensors, as_tensors
from poet.runtime.steps.beside import StepBeside
from poet.runtime.steps.lasting import LastingTensors
from poet.runtime.storage.background import Pager


class OpenShape:
    """A training step for batches of another shape.

    Attributes:
        plan: of the step.
        given: what it takes.
    """

    def __init__(
        self,
        plan: Plan,
        called: str,
        tensors: LastingTensors,
        *,
        pager: Pager | None,
        generator: torch.Generator | None,
    ) -> None:
        self.plan = plan
        self.given = GivenTensors(plan)
        self._called, self._tensors = called, tensors
        self._pager, self._generator = pager, generator
        self._step: StepBeside | None = None

    @property
    def step(self) -> StepBeside:
        """Its compiled schedule; compiled when it is first asked for."""
        if self._step is None:
            self._step = StepBeside(
                self.plan, self._tensors, called=self._called, pager=self._pager, generator=self._generator
            )
        return self._step


ShapePlanner = Callable[[Plan, Sequence[TensorType]], Shape]
"""Plans a step for inputs and targets of these types beside a plan's, as `poet.ShapePlanner` does."""


ShapeImprover = Callable[[Plan], Shape | None]
"""Gives a shape of a plan a step that takes less energy, if it finds one."""


def types_of(given: Sequence[torch.Tensor]) -> tuple[TensorType, ...]:
    """Of tensors that lie in memory row by row."""
    return tuple(
        contiguous(str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape)) for tensor in given
    )


def open_shapes(
    plan: Plan, tensors: LastingTensors, *, pager: Pager | None, generator: torch.Generator | None
) -> list[OpenShape]:
    """The other shapes of ``plan``, in its order."""
    return [
        OpenShape(shape.step, shape_called(number), tensors, pager=pager, generator=generator)
        for number, shape in enumerate(plan.shapes)
    ]


def taking(shapes: Sequence[OpenShape], inputs: Given, targets: Given | None) -> OpenShape | None:
    """That for batches of the shape of this one; ``None``: there is none.

    Raises:
        InputError: something is no tensor and no array of numbers.
    """
    if not shapes:
        return None
    given = (*as_tensors(inputs), *as_tensors(targets))
    return next((shape for shape in shapes if is_as_large(given, shape.given.types)), None)


def is_as_large(given: Sequence[torch.Tensor], types: Sequence[TensorType]) -> bool:
    """Whether the tensors have these shapes."""
    return [tuple(tensor.shape) for tensor in given] == [kind.shape for kind in types]


def holds_samples_of(given: Sequence[torch.Tensor], types: Sequence[TensorType]) -> bool:
    """Whether the samples of ``given`` are of these shapes and fill a part of a batch of them, or all."""
    return len(given) == len(types) and all(
        tensor.dim() == len(kind.shape) > 0
        and tensor.shape[1:] == kind.shape[1:]
        and len(tensor) <= kind.shape[0]
        for tensor, kind in zip(given, types, strict=True)
    )
