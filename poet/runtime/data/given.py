"""What the caller gives each step, held against the plan first, and padded to the shape of a bucket."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from poet.errors import InputError
from poet.ir.calls import contiguous
from poet.ir.graph import TensorType
from poet.ir.loss import PYTHON, LossSpec
from poet.plans.training_plan import Plan
from poet.runtime.data import ranges
from poet.runtime.kernels import arguments
from poet.runtime.kernels.cells import Padded
from poet.util.brief import brief, shortened


@dataclass(frozen=True, slots=True)
class Buckets:
    """What batches are padded with, at the end of each dim, where there is no step for their shape.

        trainer.buckets = Buckets({"tokens": 0, "targets": -100})

    The step is that of the smallest larger shape, and its bits are those of plain PyTorch on the padded
    batch: whether padding changes what is learned is the model's affair.

    Attributes:
        values: by the name of the input or targets; what is not named is never padded.
    """

    values: Mapping[str, float]

    __repr__ = brief

    def __post_init__(self) -> None:
        if not isinstance(self.values, Mapping):
            raise InputError('Buckets takes what each tensor is padded with: Buckets({"tokens": 0})')

    def check(self, plan: Plan) -> None:
        """Do nothing if batches for ``plan`` can be padded so.

        Raises:
            InputError: they cannot, or the loss would count what is padded.
        """
        if plan.request.micro is not None:
            raise InputError(f"{plan.model.name}: the plan has micro-batches, which are not padded")
        kinds = dict(zip(plan.graph.inputs, plan.given_types, strict=True))
        rules = ranges.rules(plan.graph)
        targets = plan.graph.inputs[len(kinds) - plan.graph.targets :]
        for name, value in self.values.items():
            if name not in kinds:
                raise InputError(f"there is no {name} to pad; the plan takes {', '.join(kinds)}")
            _check_holds(name, kinds[name].dtype, value)
            rule = rules.get(name, ranges.Rule())
            if name in targets:
                _check_left_out(name, value, rule, plan.request.loss)
            elif rule.below is not None and not 0 <= value < rule.below:
                raise InputError(f"{name} cannot be padded with {value}; {rule}")

    def padded(
        self, given: Sequence[torch.Tensor], names: Sequence[str], kinds: Sequence[TensorType]
    ) -> list[torch.Tensor | Padded]:
        """``given``, those padded that are smaller than ``kinds``.

        Raises:
            InputError: one is smaller that has no value.
        """
        found: list[torch.Tensor | Padded] = []
        for tensor, name, kind in zip(given, names, kinds, strict=True):
            if tuple(tensor.shape) == kind.shape:
                found.append(tensor)
            elif name in self.values:
                found.append(Padded(tensor, self.values[name]))
            else:
                shape = ",".join(map(str, tensor.shape))
                raise InputError(
                    f"{name}[{shape}] would have to be padded to {kind}, and Buckets has no value for {name}"
                )
        return found


def next_larger(given: Sequence[torch.Tensor], shapes: Sequence[Sequence[TensorType]]) -> int | None:
    """Which of ``shapes`` is the smallest that holds the tensors; ``None``: none does."""
    holding = [
        (sum(math.prod(kind.shape) for kind in kinds), number)
        for number, kinds in enumerate(shapes)
        if len(kinds) == len(given)
        and all(
            tensor.dim() == len(kind.shape)
            and all(0 < size <= room for size, room in zip(tensor.shape, kind.shape, strict=True))
            for tensor, kind in zip(given, kinds, strict=True)
        )
    ]
    return min(holding)[1] if holding else None


def check_sizes(
    given: Sequence[torch.Tensor], names: Sequence[str], shapes: Sequence[Sequence[TensorType]]
) -> None:
    """Do nothing if what is one size in all ``shapes``, of which one holds the tensors, is one in them too.

    So a batch whose inputs and targets are not of the same samples is not padded until they seem to be.

    Raises:
        InputError: the same dim of two tensors is of one size in every shape, and not here.
    """
    for (one, left), (other, right) in itertools.combinations(enumerate(given), 2):
        for dim, (size, beside) in enumerate(zip(left.shape, right.shape, strict=False)):
            if size != beside and all(kinds[one].shape[dim] == kinds[other].shape[dim] for kinds in shapes):
                raise InputError(
                    f"{names[one]} has {size} in dim {dim}, and {names[other]} {beside}; every step of the "
                    "plan has one size there, and padding would make them seem alike: give both one size"
                )


def _check_holds(name: str, dtype: str, value: object) -> None:
    """Do nothing if a tensor of ``dtype`` holds ``value`` as it is.

    Raises:
        InputError: it does not.
    """
    kind: torch.dtype = getattr(torch, dtype)
    try:
        held = torch.tensor(value, dtype=kind)
        is_held = held.dim() == 0 and math.isfinite(held) and (kind.is_floating_point or held.item() == value)
    except (RuntimeError, TypeError, ValueError, OverflowError):
        is_held = False
    if not is_held:
        raise InputError(f"{name} cannot be padded with {shortened(repr(value))}; it is {dtype}")


def _check_left_out(name: str, value: float, rule: ranges.Rule, loss: str) -> None:
    """Do nothing if the loss leaves out targets of ``value``, or is one of the caller's own.

    Raises:
        InputError: it counts them.
    """
    spec = LossSpec.parse(loss)
    if spec.name == "ctc":
        raise InputError(f"{name}: ctc learns blanks from what is padded; give it batches of a planned shape")
    if spec.name == "focal" and spec.option("reduction") != "sum":
        raise InputError(
            f"{name}: {loss} divides by all targets, those that are padded too; focal:reduction=sum does not"
        )
    if rule.below is not None:
        if value != rule.left_out:
            raise InputError(f"{name}: the loss counts what is padded with {value}; {rule}")
    elif spec.name not in (PYTHON, "output"):
        raise InputError(f"{name}: {loss} counts every target, so that what is padded would be learned")


Item = torch.Tensor | npt.NDArray[Any]
Given = Item | Sequence[Item]


class GivenTensors:
    """The inputs and targets that a plan takes.

    Attributes:
        allow_nan: whether targets may be NaN or infinite.
        types: of the model's inputs, then of the targets.
    """

    def __init__(self, plan: Plan) -> None:
        kinds = {value.name: value.type for value in plan.graph.values}
        self._wanted = tuple((name, kinds[name]) for name in plan.graph.inputs)
        self._others = [shape.step.given_types for shape in plan.shapes]
        self._targets = plan.graph.targets
        self._rules = ranges.rules(plan.graph)
        self.allow_nan = False
        self._pieces = 1 if plan.request.micro is None else plan.request.micro.count
        self.types = tuple(kind for _, kind in self._wanted)
        self._dtypes = tuple(arguments.dtype(kind.dtype) for kind in self.types)

    def pieces(self, inputs: Given, targets: Given | None) -> list[tuple[torch.Tensor, ...]]:
        """What `checked` gives for each micro-batch of a batch; of one micro-batch, that one.

        Raises:
            InputError: as of `checked`.
        """
        count = self._pieces
        if count == 1:
            return [self.checked(inputs, targets)]
        given = self._in_order(inputs, targets)
        whole = [(kind.shape[0] * count, *kind.shape[1:]) if kind.shape else None for kind in self.types]
        if [tuple(tensor.shape) for tensor in given] != whole:
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
            if tensor.shape != shape or tensor.dtype != self._dtypes[place]:
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


def types_of(given: Sequence[torch.Tensor]) -> tuple[TensorType, ...]:
    """Of tensors that lie in memory row by row."""
    return tuple(
        contiguous(str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape)) for tensor in given
    )


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
