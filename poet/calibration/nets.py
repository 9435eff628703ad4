"""Small nets whose training steps are measured: some to fit a device's figures to, others to judge by.

Each net to fit has several classes of op at one size; the sizes of one net lie from tensors that a small
cache holds to tensors that none does. The nets to judge by are of usual kinds and in no fit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass(frozen=True, slots=True)
class StepNet:
    """A net and what its steps are given.

    Attributes:
        name: unique.
        build: the module, in training mode.
        inputs: the first example of a batch of its own.
        optimizer: of the step.
    """

    name: str
    build: Callable[[], nn.Module]
    inputs: Callable[[], Tensor]
    optimizer: str = "sgd"


def _normal(*shape: int) -> Callable[[], Tensor]:
    return lambda: torch.randn(*shape, generator=torch.Generator().manual_seed(0))


class _Residual(nn.Module):
    """``x`` plus what ``inner`` makes of it."""

    def __init__(self, *inner: nn.Module) -> None:
        super().__init__()
        self.inner = nn.Sequential(*inner)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = x + self.inner(x)
        return made


def _normed(before: int, after: int, kernel: int, stride: int = 1, groups: int = 1) -> list[nn.Module]:
    pad = kernel // 2
    return [
        nn.Conv2d(before, after, kernel, stride, pad, groups=groups, bias=False),
        nn.BatchNorm2d(after),
        nn.ReLU(),
    ]


def _classes_of(channels: int) -> list[nn.Module]:
    return [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10)]


# --- to fit -----------------------------------------------------------------------------------


def _dense(channels: int) -> nn.Module:
    """Dense convolutions, plain and strided, norms, pooling."""
    return nn.Sequential(
        *_normed(3, channels, 3),
        nn.MaxPool2d(2),
        _Residual(*_normed(channels, channels, 3)),
        *_normed(channels, 2 * channels, 3, 2),
        nn.Conv2d(2 * channels, 2 * channels, 5, padding=2),
        nn.ReLU(),
        nn.AvgPool2d(2),
        *_classes_of(2 * channels),
    )


def _padded(channels: int) -> nn.Module:
    """Dense convolutions of channels that fill no vector: their kernels fill up the last block."""
    more, most = channels + 12, 2 * channels
    return nn.Sequential(
        *_normed(3, channels, 3),
        _Residual(*_normed(channels, channels, 3)),
        *_normed(channels, more, 3, 2),
        nn.Conv2d(more, most, 1),
        nn.ReLU(),
        *_normed(most, channels, 3),
        *_classes_of(channels),
    )


def _separable(channels: int) -> nn.Module:
    """Depthwise, grouped and pointwise convolutions."""
    return nn.Sequential(
        *_normed(3, channels, 3, 2),
        *_normed(channels, channels, 3, 1, channels),
        *_normed(channels, 2 * channels, 1),
        *_normed(2 * channels, 2 * channels, 3, 2, 2 * channels),
        nn.Conv2d(2 * channels, 4 * channels, 1),
        nn.ReLU6(),
        *_normed(4 * channels, 4 * channels, 3, 1, 4),
        nn.Conv2d(4 * channels, 4 * channels, 5, padding=2, groups=4 * channels, bias=False),
        nn.Hardswish(),
        *_classes_of(4 * channels),
    )


class _Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.given = nn.Linear(width, 3 * width)
        self.made = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = self.given(x).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v)
        made: Tensor = self.made(mixed.transpose(1, 2).reshape(batch, length, width))
        return made


class _Tokens(nn.Module):
    """Attention, layer norms, GELU and products of tall matrices."""

    def __init__(self, width: int, blocks: int) -> None:
        super().__init__()
        self.given = nn.Linear(32, width)
        self.blocks = nn.Sequential(
            *(
                nn.Sequential(
                    _Residual(nn.LayerNorm(width), _Attention(width, 4)),
                    _Residual(
                        nn.LayerNorm(width),
                        nn.Linear(width, 4 * width),
                        nn.GELU(),
                        nn.Linear(4 * width, width),
                    ),
                )
                for _ in range(blocks)
            )
        )
        self.scores = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.scores(self.blocks(self.given(x)).mean(1))
        return made


class _Gates(nn.Module):
    """Sigmoids, hyperbolic tangents, products, joined and cut tensors."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = nn.Linear(64, width)
        self.second = nn.Linear(2 * width, width)
        self.scores = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        a = self.first(x)
        b = torch.tanh(a) * torch.sigmoid(a)
        c = F.silu(self.second(torch.cat([a, b], 1)))
        d = torch.softmax(c, 1) + torch.log1p(c.abs()) - c.roll(1, 1)
        made: Tensor = self.scores(d)
        return made


def _wide(width: int) -> nn.Module:
    """Products of matrices with many weights."""
    return nn.Sequential(
        nn.Linear(64, width),
        nn.ReLU(),
        nn.Linear(width, width),
        nn.LeakyReLU(),
        nn.Dropout(0.1),
        nn.Linear(width, 10),
    )


def _fit_net(kind: str, size: int) -> StepNet:
    batch = (2, 4, 8, 16)[size]
    pixels, channels = (16, 32, 32, 64)[size], (8, 16, 32, 32)[size]
    width, length, rows = (32, 64, 128, 192)[size], (16, 32, 64, 128)[size], (16, 64, 512, 2048)[size]
    uneven = (12, 20, 36, 52)[size]
    nets: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor], str]] = {
        "dense": (lambda: _dense(channels), _normal(batch, 3, pixels, pixels), "momentum"),
        "separable": (lambda: _separable(channels), _normal(batch, 3, pixels, pixels), "sgd"),
        "tokens": (lambda: _Tokens(width, 2), _normal(batch, length, 32), "adamw"),
        "gates": (lambda: _Gates(2 * width), _normal(rows, 64), "sgd"),
        "wide": (lambda: _wide(8 * width), _normal(4 * batch, 64), "adamw"),
        "padded": (lambda: _padded(uneven), _normal(batch, 3, pixels, pixels), "sgd"),
    }
    build, inputs, optimizer = nets[kind]
    return StepNet(f"{kind}-{size}", build, inputs, optimizer)


FIT_KINDS = ("dense", "separable", "tokens", "gates", "wide", "padded")
FIT_SIZES = (1, 3, 0, 2)
"""Most telling first: a calibration that ends early has both ends."""


def fit_nets() -> tuple[StepNet, ...]:
    """The nets whose ops a fit sees."""
    return tuple(_fit_net(kind, size) for size in FIT_SIZES for kind in FIT_KINDS)


# --- to judge by ------------------------------------------------------------------------------


def _bottleneck(before: int, inner: int, after: int, stride: int) -> nn.Module:
    parts = [
        *_normed(before, inner, 1),
        *_normed(inner, inner, 3, stride, inner),
        nn.Conv2d(inner, after, 1, bias=False),
        nn.BatchNorm2d(after),
    ]
    return _Residual(*parts) if before == after and stride == 1 else nn.Sequential(*parts)


def _small_resnet() -> nn.Module:
    return nn.Sequential(
        *_normed(3, 24, 3),
        _Residual(*_normed(24, 24, 3), *_normed(24, 24, 3)),
        *_normed(24, 48, 3, 2),
        _Residual(*_normed(48, 48, 3), *_normed(48, 48, 3)),
        *_classes_of(48),
    )


def _small_mobile() -> nn.Module:
    return nn.Sequential(
        *_normed(3, 16, 3, 2), _bottleneck(16, 96, 24, 2), _bottleneck(24, 144, 24, 1),
        _bottleneck(24, 144, 40, 2),
        *_normed(40, 160, 1), *_classes_of(160),
    )  # fmt: skip


def _perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(256, 384), nn.Tanh(), nn.Linear(384, 384), nn.Tanh(), nn.Linear(384, 10))


JUDGING_NETS = (
    StepNet("resnet", _small_resnet, _normal(8, 3, 32, 32), "momentum"),
    StepNet("mobile", _small_mobile, _normal(8, 3, 48, 48)),
    StepNet("transformer", lambda: _Tokens(96, 3), _normal(6, 48, 32), "adamw"),
    StepNet("perceptron", _perceptron, _normal(32, 256)),
)
"""Whole training steps that no fit sees; their error is written into the profile."""
