"""What the caller gives each step, held against the plan first: tensors, arrays of numpy, mapped files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from poet.errors import InputError
from poet.graph import TensorType
from poet.plans.training_plan import Plan
from poet.runtime.data import ranges
from poet.runtime.data.buckets import Buckets
from poet.runtime.steps.padded import Padded

Item = torch.Tensor | npt.NDArray[Any]
Given = Item | Sequence[Item]


class GivenTensors:
    """The inputs and targets that a plan takes.

    Attributes:
        allow_nan: whether targets may be NaN or infinite.
    """

    def __init__(self, plan: Plan) -> None:
        kinds = {value.name: value.type for value in plan.graph.values}
        self._wanted = tuple((name, kinds[name]) for name in plan.graph.inputs)
        self._others = [shape.step.given_types for shape in plan.shapes]
        self._targets = plan.graph.targets
        self._rules = ranges.rules(plan.graph)
        self.allow_nan = False
        self._pieces = 1 if plan.request.micro is None else plan.request.micro.count

    @property
    def types(self) -> tuple[TensorType, ...]:
        """Of the model's inputs, then of the targets."""
        return tuple(kind for _, kind in self._wanted)

    def pieces(self, inputs: Given, targets: Given | None) -> list[tuple[torch.Tensor, ...]]:
        """What `checked` gives for each micro-batch of a batch; of one micro-batch, that one.

        Raises:
            InputError: as of `checked`.
        """
        given = self._in_order(inputs, targets)
        count, shapes = self._pieces, [kind.shape for kind in self.types]
        whole = [(shape[0] * count, *shape[1:]) if shape else None for shape in shapes]
        if count == 1 or [tuple(tensor.shape) for tensor in given] != whole:
            return [self.checked(inputs, targets)]
        split = [torch.chunk(tensor, count) for tensor in given]
        last = len(given) - self._targets
        return [self.checked(piece[:last], piece[last:]) for piece in zip(*split, strict=True)]

    def _in_order(self, inputs: Given, targets: Given | None) -> tuple[torch.Tensor, ...]:
        return (*as_tensors(inputs), *as_tensors(targets))

    def checked(
        self,
        inputs: Given,
        targets: Given | None,
        *,
        needs_targets: bool = True,
        samples: int | None = None,
    ) -> tuple[torch.Tensor, ...]:
        """The tensors in their order, after they were looked at; ``samples`` where the batch has fewer.

        Raises:
            InputError: there are too many or too few, one has another shape or type than the plan's, or holds
                a class or a row that there is not, or a target that is not finite.
        """
        given = self._in_order(inputs, targets)
        wanted = self._wanted if needs_targets else self._wanted[: len(self._wanted) - self._targets]
        if len(given) != len(wanted):
            names = ", ".join(name for name, _ in wanted)
            raise InputError(f"{len(given)} tensors were given, the plan takes {len(wanted)}: {names}")
        for place, (tensor, (name, kind)) in enumerate(zip(given, wanted, strict=True)):
            shape = kind.shape if samples is None else (samples, *kind.shape[1:])
            if (str(tensor.dtype), tuple(tensor.shape)) != (f"torch.{kind.dtype}", shape):
                found = f"{str(tensor.dtype).removeprefix('torch.')}[{','.join(map(str, tensor.shape))}]"
                kinds = (kind, *(other[place] for other in self._others))
                taken = " or ".join(dict.fromkeys(map(str, kinds)))
                raise InputError(f"{name} is {found}, the plan takes {taken}")
        self._check_ranges(given)
        return given

    def padded(self, given: Sequence[torch.Tensor], buckets: Buckets) -> list[torch.Tensor | Padded]:
        """Smaller tensors, after they were looked at, as ``buckets`` pads them to these shapes.

        Raises:
            InputError: one has another type than the plan's, or no value to be padded with, or holds what
                `checked` refuses.
        """
        for tensor, (name, kind) in zip(given, self._wanted, strict=True):
            found = str(tensor.dtype).removeprefix("torch.")
            if found != kind.dtype:
                raise InputError(f"{name} is {found}, the plan takes {kind}")
        self._check_ranges(given)
        return buckets.padded(given, [name for name, _ in self._wanted], self.types)

    def _check_ranges(self, given: Sequence[torch.Tensor]) -> None:
        for tensor, (name, _) in zip(given, self._wanted, strict=False):
            if name in self._rules:
                ranges.check(name, tensor, self._rules[name], allow_nan=self.allow_nan)


def as_tensors(given: Given | None) -> tuple[torch.Tensor, ...]:
    """The tensors, in order; of an array a tensor on its memory, where that may be written.

    Raises:
        InputError: one is no tensor and no array of numbers.
    """
    if given is None:
        return ()
    items = (given,) if isinstance(given, torch.Tensor | np.ndarray) else tuple(given)
    return tuple(map(_tensor, items))


def _tensor(item: object) -> torch.Tensor:
    if isinstance(item, torch.Tensor):
        if item.layout != torch.strided or item.is_nested:
            raise InputError("a step is given dense tensors, not sparse or nested ones; make it dense")
        return item
    if not isinstance(item, np.ndarray):
        raise InputError(f"a step is given tensors or arrays of numpy, not {type(item).__name__}")
    try:
        # torch takes no read-only memory without a warning, and no negative strides
        return torch.from_numpy(item if item.flags.writeable and item.flags.c_contiguous else np.array(item))
    except TypeError:
        raise InputError(f"an array has elements of type {item.dtype}, which no tensor has") from None
