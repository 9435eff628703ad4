"""What NAdam and RAdam compute per step in Python floats, operation for operation as `torch.optim` does."""

from __future__ import annotations

import struct
from functools import cache

LARGEST_STEP = 2**24
"""`torch.optim` counts steps in a float32, which stays there."""


def nadam_steps(lr: float, betas: tuple[float, float], momentum_decay: float, count: int) -> dict[str, float]:
    """Step sizes of the gradient and of its average, and the correction of the second moment.

    `torch.optim.NAdam` keeps the product of the momenta so far as a float32.

    Args:
        lr: the learning rate of this step.
        betas: of the averages of gradients and of their squares.
        momentum_decay: by which the momentum rises to the first beta.
        count: of steps, this one included.
    """
    beta1, beta2 = betas
    product = _product_of_momenta(beta1, momentum_decay, count)
    now = _momentum(beta1, momentum_decay, float(count))
    ahead = _momentum(beta1, momentum_decay, float(count) + 1)
    return {
        "gradient_step_size": lr * (1.0 - now) / (1.0 - product),
        "step_size": lr * ahead / (1.0 - product * ahead),
        "second_moment_correction": 1 - beta2 ** float(count),
    }


def _momentum(beta1: float, momentum_decay: float, count: float) -> float:
    """Of step ``count`` of NAdam (Dozat, 2016)."""
    return float(beta1 * (1.0 - 0.5 * (0.96 ** (count * momentum_decay))))


def _product_of_momenta(beta1: float, momentum_decay: float, count: int) -> float:
    """The product of the momenta of the first ``count`` steps of NAdam, rounded to float32 after each."""
    known = _products(beta1, momentum_decay)
    while len(known) <= count:
        step = _as_float32(_momentum(beta1, momentum_decay, float(len(known))))
        product = _as_float32(known[-1] * step)
        if product == known[-1]:  # momenta rise below 1, so that it stays
            break
        known.append(product)
    return known[min(count, len(known) - 1)]


@cache
def _products(beta1: float, momentum_decay: float) -> list[float]:
    """By step, as far as they were needed."""
    return [1.0]


def _as_float32(number: float) -> float:
    found: float = struct.unpack("f", struct.pack("f", number))[0]
    return found


def radam_rectification(beta2: float, count: float) -> float:
    """The factor of RAdam's step (Liu et al., 2020, equation 5); 0 in the first steps, which have none."""
    longest = 2 / (1 - beta2) - 1
    length = longest - 2 * count * (beta2**count) / (1 - beta2**count)
    if length <= 5.0:
        return 0.0
    above = (length - 4) * (length - 2) * longest
    return float((above / ((longest - 4) * (longest - 2) * length)) ** 0.5)
