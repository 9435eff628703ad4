"""Operators made of calls of torch, with their bits: division, norms with rectifiers, padding, drawing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from poet.runtime.kernels import packed
from poet.runtime.kernels.arguments import Kernel, aten

_aten = torch.ops.aten


def divided(dividend: Tensor, divisor: Tensor | float, *, rounding_mode: str | None = None) -> Tensor:
    """``torch.div``; the least whole number by -1 is itself, as in numpy and with the other roundings.

    Raises:
        RuntimeError: a divisor of whole numbers is zero.
    """
    target = f"aten.div.{'Tensor' if isinstance(divisor, Tensor) else 'Scalar'}_mode"
    kind = torch.result_type(dividend, divisor)
    if rounding_mode == "trunc" and kind.is_signed and not kind.is_floating_point:
        least = torch.iinfo(kind).min
        trapped = torch.logical_and(torch.eq(dividend, least), torch.eq(torch.as_tensor(divisor), -1))
        if bool(trapped.any()):
            target, divisor = "aten.div.Tensor_mode", torch.where(trapped, 1, divisor)
    found: Tensor = aten(target)(dividend, divisor, rounding_mode=rounding_mode)
    return found


def quotient(dividend: Tensor, divisor: Tensor) -> Tensor:
    """Rounded towards zero; on tensors without content, as in a trace, torch's own operator."""
    if type(dividend) is Tensor and not dividend.is_meta and type(divisor) is Tensor:
        return divided(dividend, divisor, rounding_mode="trunc")
    return torch.div(dividend, divisor, rounding_mode="trunc")


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


def convolution(
    source: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    pads: Sequence[int],
) -> Tensor:
    """``aten.convolution`` of ``source`` [images, channels, height, width] with zeros around it: ``pads`` of
    them on the left, right, top and bottom; all else is as ``aten.convolution`` takes it.
    """
    made: Tensor = _aten.convolution.default(
        _aten.constant_pad_nd.default(source, pads),
        weight, bias, stride, padding, dilation, transposed, output_padding, groups,
    )  # fmt: skip
    return made


def convolution_backward(
    gradient: Tensor,
    source: Tensor,
    weight: Tensor,
    bias_sizes: Sequence[int] | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    output_mask: Sequence[bool],
    pads: Sequence[int],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """The way back through it: what ``aten.convolution_backward`` gives, the zeros' gradient cut off.

    Where a gradient of the source is wanted alone, only the type of ``source`` counts.
    """
    to_source, to_weight, to_bias = _aten.convolution_backward.default(
        gradient, _aten.constant_pad_nd.default(source, pads),
        weight, bias_sizes, stride, padding, dilation, transposed, output_padding, groups, output_mask,
    )  # fmt: skip
    if to_source is not None:
        to_source = _aten.constant_pad_nd.default(to_source, [-pad for pad in pads])
    return to_source, to_weight, to_bias


def _native_dropout(
    generator: torch.Generator, source: Tensor, p: float, train: bool | None
) -> tuple[Tensor, Tensor]:
    """`torch.native_dropout`, which takes no generator, by the steps of its CPU kernel."""
    if source.numel() == 0 or train is False:
        return aten("aten.native_dropout.default")(source, p, train)  # type: ignore[no-any-return]
    kept_share = 1.0 - p
    mask = torch.empty_like(source, dtype=torch.bool)
    mask.bernoulli_(kept_share, generator=generator)
    scale = 0.0 if kept_share == 0.0 else 1.0 / kept_share
    scaled = aten("aten.mul_.Scalar")(source.mul(mask), scale)  # a tensor's method rounds bfloat16 otherwise
    return scaled, mask


def _given(target: str, overload: str | None = None) -> Kernel:
    """An ATen operator that takes a generator, under this or another overload's name."""
    name = target if overload is None else f"{target.rpartition('.')[0]}.{overload}"

    def drawn(generator: torch.Generator, *args: object, **kwargs: object) -> Any:
        return aten(name)(*args, **kwargs, generator=generator)

    return drawn


def _empty_like(source: Tensor, **kwargs: object) -> Tensor:
    return aten("aten.empty_like.default")(source, **kwargs)  # type: ignore[no-any-return]


def _rand_like(generator: torch.Generator, source: Tensor, **kwargs: object) -> Tensor:
    return _empty_like(source, **kwargs).uniform_(generator=generator)


def _randn_like(generator: torch.Generator, source: Tensor, **kwargs: object) -> Tensor:
    return _empty_like(source, **kwargs).normal_(generator=generator)


def _randint_like(generator: torch.Generator, source: Tensor, *bounds: int, **kwargs: object) -> Tensor:
    low, high = bounds if len(bounds) == 2 else (0, *bounds)
    return _empty_like(source, **kwargs).random_(low, high, generator=generator)


def _bernoulli(
    generator: torch.Generator,
    shape: Sequence[int],
    strides: Sequence[int],
    element: torch.dtype,
    p: float,
) -> Tensor:
    return torch.empty_strided(shape, strides, dtype=element).bernoulli_(p, generator=generator)


def _uniform(
    generator: torch.Generator,
    shape: Sequence[int],
    strides: Sequence[int],
    element: torch.dtype,
    low: float,
    high: float,
) -> Tensor:
    return torch.empty_strided(shape, strides, dtype=element).uniform_(low, high, generator=generator)


def _normal(
    generator: torch.Generator,
    shape: Sequence[int],
    strides: Sequence[int],
    element: torch.dtype,
    mean: float,
    std: float,
) -> Tensor:
    return torch.empty_strided(shape, strides, dtype=element).normal_(mean, std, generator=generator)


def _rng_state(generator: torch.Generator) -> Tensor:
    return generator.get_state()


DRAWN: dict[str, Kernel] = {
    **{f"aten.bernoulli.{name}": _given(f"aten.bernoulli.{name}") for name in ("default", "p", "Tensor")},
    "aten.multinomial.default": _given("aten.multinomial.default"),
    "aten.native_dropout.default": _native_dropout,
    **{
        f"aten.normal.{name}": _given(f"aten.normal.{name}")
        for name in ("Tensor_Tensor", "Tensor_float", "float_Tensor")
    },
    "aten.rand.default": _given("aten.rand.default", "generator"),
    "aten.rand_like.default": _rand_like,
    "aten.randint.default": _given("aten.randint.default", "generator"),
    "aten.randint.low": _given("aten.randint.low", "low_generator"),
    "aten.randint_like.default": _randint_like,
    "aten.randint_like.low_dtype": _randint_like,
    "aten.randn.default": _given("aten.randn.default", "generator"),
    "aten.randn_like.default": _randn_like,
    "aten.randperm.default": _given("aten.randperm.default", "generator"),
    "poet.bernoulli": _bernoulli,
    "poet.bernoulli_bits": packed.bernoulli,
    "poet.uniform": _uniform,
    "poet.normal": _normal,
    "poet.rng_state": _rng_state,
}
"""Every operator of `RANDOM`, and the one that takes a generator's state; first comes the generator."""
