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
    sum: Tensor,
    step_size: float,
    eps: float,
    weight_decay: float,
) -> None:
    """`torch.optim.Adagrad`, one tensor at a time."""
    if weight_decay != 0:
        gradient = gradient.add(parameter, alpha=weight_decay)
    sum.addcmul_(gradient, gradient, value=1)
    parameter.addcdiv_(gradient, sum.sqrt().add_(eps), value=-step_size)


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


def adadelta(
    parameter: Tensor,
    gradient: Tensor,
    square_avg: Tensor,
    acc_delta: Tensor,
    lr: float,
    rho: float,
    eps: float,
    weight_decay: float,
) -> None:
    """`torch.optim.Adadelta`, one tensor at a time."""
    if weight_decay != 0:
        gradient = gradient.add(parameter, alpha=weight_decay)
    square_avg.mul_(rho).addcmul_(gradient, gradient, value=1 - rho)
    delta = acc_delta.add(eps).sqrt_().div_(square_avg.add(eps).sqrt_()).mul_(gradient)
    acc_delta.mul_(rho).addcmul_(delta, delta, value=1 - rho)
    parameter.add_(delta, alpha=-lr)


def adamax(
    parameter: Tensor,
    gradient: Tensor,
    exp_avg: Tensor,
    exp_inf: Tensor,
    step_size: float,
    beta1: float,
    beta2: float,
    eps: float,
    weight_decay: float,
) -> None:
    """`torch.optim.Adamax`, one tensor at a time."""
    if weight_decay != 0:
        gradient = gradient.add(parameter, alpha=weight_decay)
    exp_avg.lerp_(gradient, 1 - beta1)
    torch.maximum(exp_inf.mul_(beta2), gradient.abs().add_(eps), out=exp_inf)
    parameter.addcdiv_(exp_avg, exp_inf, value=-step_size)


def nadam(
    parameter: Tensor,
    gradient: Tensor,
    exp_avg: Tensor,
    exp_avg_sq: Tensor,
    decay_factor: float,
    weight_decay: float,
    gradient_step_size: float,
    step_size: float,
    second_moment_correction: float,
    beta1: float,
    beta2: float,
    eps: float,
) -> None:
    """`torch.optim.NAdam`, one tensor at a time, with one temporary where torch has two."""
    if decay_factor != 1.0:
        parameter.mul_(decay_factor)
    if weight_decay != 0:
        gradient = gradient.add(parameter, alpha=weight_decay)
    exp_avg.lerp_(gradient, 1 - beta1)
    exp_avg_sq.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
    denominator = exp_avg_sq.div(second_moment_correction).sqrt_().add_(eps)
    parameter.addcdiv_(gradient, denominator, value=-gradient_step_size)
    parameter.addcdiv_(exp_avg, denominator, value=-step_size)


def radam(
    parameter: Tensor,
    gradient: Tensor,
    exp_avg: Tensor,
    exp_avg_sq: Tensor,
    decay_factor: float,
    weight_decay: float,
    lr: float,
    first_moment_correction: float,
    second_moment_correction: float,
    rectification: float,
    beta1: float,
    beta2: float,
    eps: float,
) -> None:
    """`torch.optim.RAdam`, one tensor at a time, with two temporaries where torch has more.

    The first steps, whose rectification is 0, take the same memory as all others.
    """
    if decay_factor != 1.0:
        parameter.mul_(decay_factor)
    if weight_decay != 0:
        gradient = gradient.add(parameter, alpha=weight_decay)
    exp_avg.lerp_(gradient, 1 - beta1)
    exp_avg_sq.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
    update = exp_avg.div(first_moment_correction).mul_(lr)
    adaptive = exp_avg_sq.sqrt().add_(eps).reciprocal_().mul_(second_moment_correction)
    if rectification != 0.0:
        update.mul_(adaptive).mul_(rectification)
    parameter.add_(update, alpha=-1.0)
