"""Batch norm with a rectifier as one op, made of torch's own calls: the bits are those of the two apart.

For libraries that have one kernel for both. In the backward pass the rectifier's output is made again from
the norm's input, so that nobody keeps it for its signs.
"""

from __future__ import annotations

import torch
from torch import Tensor

_aten = torch.ops.aten


def norm_relu(
    source: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_variance: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """`torch.relu` of ``native_batch_norm``, which updates the running statistics in training.

    Returns:
        output of the type of ``source`` [images, channels, ...]; mean and 1 / sqrt(variance + eps) of each
        channel.
    """
    made, mean, scale = _aten.native_batch_norm.default(
        source, weight, bias, running_mean, running_variance, training, momentum, eps
    )
    return _aten.relu_.default(made), mean, scale


def norm_relu_backward(
    gradient: Tensor,
    source: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    saved_mean: Tensor,
    saved_scale: Tensor,
    training: bool,
    eps: float,
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """The way back through both in training: gradients of ``source``, ``weight`` and ``bias``."""
    made = _aten.native_batch_norm.default(source, weight, bias, None, None, training, 0.0, eps)[0]
    through = _aten.threshold_backward.default(gradient, _aten.relu_.default(made), 0.0)
    wanted = [True, weight is not None, bias is not None]
    found: tuple[Tensor | None, Tensor | None, Tensor | None] = _aten.native_batch_norm_backward.default(
        through, source, weight, None, None, saved_mean, saved_scale, training, eps, wanted
    )
    return found
