"""Updates of parameters, with the calls of torch's optimizers: the bits of those.

Each writes the parameter and what the optimizer keeps for it, one tensor at a time.
"""

from __future__ import annotations

import torch
from torch import Tensor


def sgd(parameter: Tensor, gradient: Tensor, lr: float, weight_decay: float) -> None:
    """`torch.optim.SGD` without momentum, one tensor at a time."""
    if weight_decay != 0:
        gradient = gradient.add(parameter, alpha=weight_decay)
    parameter.add_(gradient, alpha=-lr)


def momentum(
    parameter: Tensor,
    gradient: Tensor,
    momentum_buffer: Tensor,
    lr: float,
    gradient_share: float,
    momentum: float,
    weight_decay: float,
    nesterov: bool,
) -> None:
    """`torch.optim.SGD` with momentum, one tensor at a time."""
    if weight_decay != 0:
        gradient = gradient.add(parameter, alpha=weight_decay)
    momentum_buffer.mul_(momentum).add_(gradient, alpha=gradient_share)
    gradient = gradient.add(momentum_buffer, alpha=momentum) if nesterov else momentum_buffer
    parameter.add_(gradient, alpha=-lr)


def adamw(
    parameter: Tensor,
    gradient: Tensor,
    exp_avg: Tensor,
    exp_avg_sq: Tensor,
    decay_factor: float,
    step_size: float,
    second_moment_correction: float,
    beta1: float,
    beta2: float,
    eps: float,
) -> None:
    """`torch.optim.AdamW`, one tensor at a time, with one temporary where torch has two."""
    if decay_factor != 1.0:
        parameter.mul_(decay_factor)
    exp_avg.lerp_(gradient, 1 - beta1)
    exp_avg_sq.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
    denominator = exp_avg_sq.sqrt().div_(second_moment_correction).add_(eps)
    parameter.addcdiv_(exp_avg, denominator, value=-step_size)


def adamw_amsgrad(
    parameter: Tensor,
    gradient: Tensor,
    exp_avg: Tensor,
    exp_avg_sq: Tensor,
    max_exp_avg_sq: Tensor,
    decay_factor: float,
    step_size: float,
    second_moment_correction: float,
    beta1: float,
    beta2: float,
    eps: float,
) -> None:
    """`torch.optim.AdamW` with ``amsgrad=True``, one tensor at a time."""
    if decay_factor != 1.0:
        parameter.mul_(decay_factor)
    exp_avg.lerp_(gradient, 1 - beta1)
    exp_avg_sq.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
    torch.maximum(max_exp_avg_sq, exp_avg_sq, out=max_exp_avg_sq)
    denominator = max_exp_avg_sq.sqrt().div_(second_moment_correction).add_(eps)
    parameter.addcdiv_(exp_avg, denominator, value=-step_size)


def adam(
    parameter: Tensor,
    gradient: Tensor,
    exp_avg: Tensor,
    exp_avg_sq: Tensor,
    step_size: float,
    second_moment_correction: float,
    beta1: float,
    beta2: float,
    eps: float,
    weight_decay: float,
) -> None:
    """`torch.optim.Adam`, one tensor at a time."""
    if weight_decay != 0:
        gradient = gradient.add(parameter, alpha=weight_decay)
    adamw(
        parameter, gradient, exp_avg, exp_avg_sq, 1.0, step_size, second_moment_correction, beta1, beta2, eps
    )


def adam_amsgrad(
    parameter: Tensor,
    gradient: Tensor,
    exp_avg: Tensor,
    exp_avg_sq: Tensor,
    max_exp_avg_sq: Tensor,
    step_size: float,
    second_moment_correction: float,
    beta1: float,
    beta2: float,
    eps: float,
    weight_decay: float,
) -> None:
    """`torch.optim.Adam` with ``amsgrad=True``, one tensor at a time."""
    if weight_decay != 0:
        gradient = gradient.add(parameter, alpha=weight_decay)
    moments = (exp_avg, exp_avg_sq, max_exp_avg_sq)
    numbers = (step_size, second_moment_correction, beta1, beta2, eps)
    adamw_amsgrad(parameter, gradient, *moments, 1.0, *numbers)


def rmsprop(
    parameter: Tensor,
    gradient: Tensor,
    square_avg: Tensor,
    momentum_buffer: Tensor | None,
    grad_avg: Tensor | None,
    lr: float,
    alpha: float,
    eps: float,
    momentum: float,
    weight_decay: float,
) -> None:
    """`torch.optim.RMSprop`, one tensor at a time."""
    if weight_decay != 0:
        gradient = gradient.add(parameter, alpha=weight_decay)
    square_avg.mul_(alpha).addcmul_(gradient, gradient, value=1 - alpha)
    if grad_avg is None:
        average = square_avg.sqrt()
    else:
        grad_avg.lerp_(gradient, 1 - alpha)
        average = square_avg.addcmul(grad_avg, grad_avg, value=-1).sqrt_()
    average.add_(eps)
    if momentum_buffer is None:
        parameter.addcdiv_(gradient, average, value=-lr)
    else:
        momentum_buffer.mul_(momentum).addcdiv_(gradient, average)
        parameter.add_(momentum_buffer, alpha=-lr)


def adagrad(
    parameter: Tensor,
    gradient: Tensor,
    sum_of_squares: Tensor,
    step_size: float,
    eps: float,
    weight_decay: float,
) -> None:
    """`torch.optim.Adagrad`, one tensor at a time."""
    if weight_decay != 0:
        gradient = gradient.add(parameter, alpha=weight_decay)
    sum_of_squares.addcmul_(gradient, gradient, value=1)
    parameter.addcdiv_(gradient, sum_of_squares.sqrt().add_(eps), value=-step_size)


def lion(
    parameter: Tensor,
    gradient: Tensor,
    exp_avg: Tensor,
    lr: float,
    decay_factor: float,
    beta1: float,
    beta2: float,
) -> None:
    """Lion (Chen et al., 2023, algorithm 2), one tensor at a time."""
    if decay_factor != 1.0:
        parameter.mul_(decay_factor)
    update = exp_avg.mul(beta1).add_(gradient, alpha=1 - beta1).sign_()
    parameter.add_(update, alpha=-lr)
    exp_avg.mul_(beta2).add_(gradient, alpha=1 - beta2)
