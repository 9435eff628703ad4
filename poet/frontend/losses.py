"""The losses a step may be trained with: plain functions of the model's output and the targets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from poet.errors import ModelError, nearest


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


def _classes_last(output: Tensor, targets: Tensor) -> bool:
    """Whether the classes stand in the last of the output's dimensions rather than in the second.

    A sequence model gives [N, T, C] and its targets are [N, T]; images come as [N, C, H, W] with
    targets [N, H, W], torch's own convention, which is also that of everything with other targets.
    """
    return output.dim() == 3 and targets.shape == output.shape[:-1]


def _cross_entropy(output: Tensor, targets: Tensor | None) -> Tensor:
    assert targets is not None
    if _classes_last(output, targets):
        return F.cross_entropy(output.reshape(-1, output.shape[-1]), targets.reshape(-1))
    return F.cross_entropy(output, targets)


def _class_targets(output: Tensor) -> Tensor:
    if output.dim() == 0:
        raise ModelError("cross-entropy needs scores of classes; the model's first output is a single number")
    shape = output.shape[:-1] if output.dim() in (1, 3) else (output.shape[0], *output.shape[2:])
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


LOSSES: dict[str, Loss] = {
    loss.name: loss
    for loss in (
        Loss("cross-entropy", _cross_entropy, _class_targets),
        Loss("mse", _mse, _same_as_output),
        Loss("bce-with-logits", _bce_with_logits, _same_as_output),
        Loss("output", _output, lambda output: None),
    )
}
"""By name: ``cross-entropy`` (class numbers as targets, [N, T, C] outputs too), ``mse``,
``bce-with-logits``, and ``output``: the model's first output is the loss, summed if it is no scalar."""


def loss_named(name: str) -> Loss:
    """The loss of that name.

    Raises:
        ModelError: there is none.
    """
    if name not in LOSSES:
        raise ModelError(f"loss {name!r} is not one of {', '.join(LOSSES)}{nearest(name, LOSSES)}")
    return LOSSES[name]
