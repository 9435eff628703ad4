"""Connectionist temporal classification with tensors whose sizes do not depend on the targets' lengths.

Graves et al., "Connectionist temporal classification", 2006. Torch's kernel gives its forward variables in a
tensor as wide as the longest target of the batch needs; here they are as wide as the targets' tensor allows,
with zeros where there is nothing, and no temporary depends on the lengths either: what is measured on one
batch holds for all. Loss and gradients are those of ``aten::_ctc_loss`` bit for bit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

_FORWARD: Any = torch.ops.aten._ctc_loss.default
_BACKWARD: Any = torch.ops.aten._ctc_loss_backward.default


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
    rows = _rows(log_probs, targets, moments, counts, blank)
    longest = max(range(len(counts)), key=counts.__getitem__)
    filled = [*counts[:longest], rows.shape[1], *counts[longest + 1 :]]  # so the result is as wide as can be
    loss, log_alpha = _FORWARD(log_probs, rows, moments, filled, blank, zero_infinity)
    loss[longest].copy_(_loss_at_end(log_alpha[longest], moments[longest], counts[longest]))
    for sample, (moment, count) in enumerate(zip(moments, counts, strict=True)):
        log_alpha[sample, moment:].zero_()
        log_alpha[sample, :, 2 * count + 1 :].zero_()
    return loss, log_alpha


def _loss_at_end(log_alpha: Tensor, moments: int, count: int) -> Tensor:
    """The loss of a sample whose forward variables, [T, 2 S + 1], are those of a longer target.

    They do not depend on what follows in the target. The loss is made of the last two that count, as torch's
    kernel makes it: here of a sample of two moments whose own last two forward variables are these.
    """
    log_probs = log_alpha.new_full((2, 1, 2), -math.inf)
    log_probs[0, 0, 1].zero_()
    if moments:
        log_probs[1, 0, 0].copy_(log_alpha[moments - 1, 2 * count])
        if count:
            log_probs[1, 0, 1].copy_(log_alpha[moments - 1, 2 * count - 1])
    elif not count:
        log_probs[1, 0, 0].zero_()
    one = torch.ones(1, 1, dtype=torch.int64)
    found: Tensor = _FORWARD(log_probs, one, [2], [1], 0)[0]
    return found[0]


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
    rows = _rows(log_probs, targets, moments, counts, blank)
    alpha_shape = _alpha_shape(log_probs, targets)
    if log_alpha.shape != alpha_shape or any(item.shape != alpha_shape[:1] for item in (gradient, loss)):
        raise IndexError(f"of {alpha_shape[0]} samples, the tensors of another forward run were given")
    found: Tensor = _BACKWARD(
        gradient, log_probs, rows, moments, counts, loss, log_alpha, blank, zero_infinity
    )
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


def _rows(
    log_probs: Tensor, targets: Tensor, moments: Sequence[int], counts: Sequence[int], blank: int
) -> Tensor:
    """The targets, [N, S], with blanks behind the classes that count.

    Torch's kernels read a class that there is not from beyond its tensor.

    Raises:
        IndexError: names the sample.
    """
    steps, samples, classes = log_probs.shape
    if not samples or len(moments) != samples or len(counts) != samples:
        raise IndexError(f"{samples} samples, {len(moments)} lengths of inputs and {len(counts)} of targets")
    if not 0 <= blank < classes:
        raise IndexError(f"the blank is {blank}, which is not one of 0 to {classes - 1}")
    rows = targets.new_full((samples, targets.shape[-1]), blank)
    start, is_listed = 0, targets.dim() == 1
    for sample, (moment, count) in enumerate(zip(moments, counts, strict=True)):
        if not 0 <= moment <= steps:
            raise IndexError(f"sample {sample} has {moment} moments of {steps}")
        row = targets[start:] if is_listed else targets[sample]
        if not 0 <= count <= len(row):
            raise IndexError(f"sample {sample} has {count} classes in a target of {len(row)}")
        rows[sample, :count].copy_(row[:count])
        start += count if is_listed else 0
    for sample, row in enumerate(rows if rows.numel() else ()):
        if not 0 <= int(row.min()) <= int(row.max()) < classes:
            raise IndexError(f"sample {sample} has a class that is not one of 0 to {classes - 1}")
    return rows
