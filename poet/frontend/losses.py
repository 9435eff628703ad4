"""The losses a step may be trained with: plain functions of the model's output and the targets."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from poet.loss import LossSpec


@dataclass(frozen=True, slots=True)
class Loss:
    """A loss by name.

    Attributes:
        apply: the scalar from (output, targets); targets are ``None`` for ``output``.
        targets_like: uninitialised targets for an output, on the output's device.
    """

    name: str
    apply: Callable[[Tensor, Tensor | None], Tensor]
    targets_like: Callable[[Tensor], Tensor | None]


def _cross_entropy(spec: LossSpec, output: Tensor, targets: Tensor | None) -> Tensor:
    """Torch's own, of [N,C,...]; where the classes stand in another dim, of the [N*...,C] it flattens to."""
    assert targets is not None
    dim = spec.class_dim(output.dim())
    if dim == min(1, output.dim() - 1):
        return F.cross_entropy(output, targets)
    classes = output.shape[dim]
    flat_output = output.movedim(dim, -1).reshape(-1, classes)
    if targets.shape == output.shape:  # probabilities
        return F.cross_entropy(flat_output, targets.movedim(dim, -1).reshape(-1, classes))
    return F.cross_entropy(flat_output, targets.reshape(-1))


def _class_targets(spec: LossSpec, output: Tensor) -> Tensor:
    dim = spec.class_dim(output.dim())
    shape = (*output.shape[:dim], *output.shape[dim + 1 :])
    return torch.empty(shape, dtype=torch.int64, device=output.device)


def _mse(output: Tensor, targets: Tensor | None) -> Tensor:
    assert targets is not None
    return F.mse_loss(output, targets)


def _bce_with_logits(output: Tensor, targets: Tensor | None) -> Tensor:
    assert targets is not None
    return F.binary_cross_entropy_with_logits(output, targets)


def _output(output: Tensor, targets: Tensor | None) -> Tensor:
    return output if output.dim() == 0 else output.sum()


def _same_as_output(output: Tensor) -> Tensor:
    return torch.empty_like(output)


def loss_named(name: str) -> Loss:
    """The loss of that name and these options, as `poet.loss` reads them.

    Raises:
        ModelError: there is none.
    """
    spec = LossSpec.parse(name)
    if spec.name == "mse":
        return Loss(name, _mse, _same_as_output)
    if spec.name == "bce-with-logits":
        return Loss(name, _bce_with_logits, _same_as_output)
    if spec.name == "output":
        return Loss(name, _output, lambda output: None)
    return Loss(name, functools.partial(_cross_entropy, spec), functools.partial(_class_targets, spec))
