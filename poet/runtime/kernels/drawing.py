"""Operators that draw: each is given the generator, and does with it what torch does with its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from poet.runtime.kernels import packed
from poet.runtime.kernels.aten import Kernel, aten


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
