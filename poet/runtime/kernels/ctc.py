"""Connectionist temporal classification with tensors whose sizes do not depend on the targets' lengths.

Graves et al., "Connectionist temporal classification", 2006. Torch's kernel gives its forward variables in a
tensor as wide as the longest target of the batch needs; here they are as wide as the targets' tensor allows,
with zeros where there is nothing. Loss and gradients are those of ``aten::_ctc_loss`` bit for bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


def forward(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Tensor,
    target_lengths: Tensor,
    blank: int = 0,
    zero_infinity: bool = False,
) -> tuple[Tensor, Tensor]:
    """The loss of each sample, [N], and the logarithms of the forward variables, [N, T, 2 S + 1].

    Args:
        log_probs: logarithms of probabilities, [T, N, C].
        targets: classes, [N, S], or all one after the other, [S].
        input_lengths: moments of each sample that count.
        target_lengths: classes of each sample; what stands behind them is not read.
        blank: the class between the others.
        zero_infinity: whether backward gives zeros where the loss is infinite.

    Raises:
        IndexError: a length or a class is one that there is not.
    """
    moments, counts = _numbers(input_lengths), _numbers(target_lengths)
    _check(log_probs, targets, moments, counts, blank)
    call: Any = torch.ops.aten._ctc_loss.default
    loss, found = call(log_probs, targets, moments, counts, blank, zero_infinity)
    log_alpha = found.new_zeros(_alpha_shape(log_probs, targets))
    for sample, (moment, count) in enumerate(zip(moments, counts, strict=True)):
        width = 2 * count + 1
        log_alpha[sample, :moment, :width] = found[sample, :moment, :width]
    return loss, log_alpha


def backward(
    gradient: Tensor,
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Tensor,
    target_lengths: Tensor,
    loss: Tensor,
    log_alpha: Tensor,
    blank: int = 0,
    zero_infinity: bool = False,
) -> Tensor:
    """The gradient of the logarithms of probabilities, [T, N, C], from what `forward` was given and gave.

    Raises:
        IndexError: a length or a class is one that there is not, or `forward` gave tensors of other sizes.
    """
    moments, counts = _numbers(input_lengths), _numbers(target_lengths)
    _check(log_probs, targets, moments, counts, blank)
    alpha_shape = _alpha_shape(log_probs, targets)
    if log_alpha.shape != alpha_shape or any(item.shape != alpha_shape[:1] for item in (gradient, loss)):
        raise IndexError(f"of {alpha_shape[0]} samples, the tensors of another forward run were given")
    read = log_alpha[:, :, : 2 * max(counts, default=0) + 1]
    call: Any = torch.ops.aten._ctc_loss_backward.default
    found: Tensor = call(gradient, log_probs, targets, moments, counts, loss, read, blank, zero_infinity)
    return found


def _alpha_shape(log_probs: Tensor, targets: Tensor) -> tuple[int, int, int]:
    return log_probs.shape[1], log_probs.shape[0], 2 * targets.shape[-1] + 1


def forward_types(log_probs: Tensor, targets: Tensor, *rest: object) -> tuple[Tensor, Tensor]:
    """Empty tensors of the types that `forward` gives."""
    shape = _alpha_shape(log_probs, targets)
    return log_probs.new_empty(shape[0]), log_probs.new_empty(shape)


def backward_types(gradient: Tensor, log_probs: Tensor, *rest: object) -> Tensor:
    """An empty tensor of the type that `backward` gives."""
    return log_probs.new_empty(log_probs.shape)


def _numbers(lengths: Tensor) -> list[int]:
    return [int(item) for item in lengths.tolist()]


def _check(
    log_probs: Tensor, targets: Tensor, moments: Sequence[int], counts: Sequence[int], blank: int
) -> None:
    """Torch's kernels read a class that there is not from beyond its tensor.

    Raises:
        IndexError: names the sample.
    """
    steps, samples, classes = log_probs.shape
    if len(moments) != samples or len(counts) != samples:
        raise IndexError(f"{samples} samples, {len(moments)} lengths of inputs and {len(counts)} of targets")
    if not 0 <= blank < classes:
        raise IndexError(f"the blank is {blank}, which is not one of 0 to {classes - 1}")
    start, is_listed = 0, targets.dim() == 1
    for sample, (moment, count) in enumerate(zip(moments, counts, strict=True)):
        if not 0 <= moment <= steps:
            raise IndexError(f"sample {sample} has {moment} moments of {steps}")
        row = targets[start:] if is_listed else targets[sample]
        if not 0 <= count <= len(row):
            raise IndexError(f"sample {sample} has {count} classes in a target of {len(row)}")
        if bool(((row[:count] < 0) | (row[:count] >= classes)).any()):
            raise IndexError(f"sample {sample} has a class that is not one of 0 to {classes - 1}")
        start += count if is_listed else 0
