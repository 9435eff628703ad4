"""Nets of the sizes that microcontrollers run: the four of MLPerf Tiny and some of their kind.

Shapes are those of the reference models of MLPerf Tiny (Banbury et al., 2021): keyword spotting (DS-CNN),
image classification (ResNet-8), visual wake words (MobileNetV1, a quarter of the width, 96 x 96 pixels) and
anomaly detection (an autoencoder). Batch norm is in training mode, as for training on the device.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass(frozen=True, slots=True)
class MicroNet:
    """How to build one, and what it is trained on.

    Attributes:
        build: the module.
        inputs: shape of one batch of a single example.
        loss: of its output.
    """

    build: Callable[[], nn.Module]
    inputs: tuple[int, ...]
    loss: str = "cross-entropy"

    def example(self) -> Tensor:
        """A batch of a single example."""
        return torch.randn(*self.inputs)


def _temporal_convolutions() -> nn.Module:
    """Four dilated convolutions over 128 moments."""
    parts = list[nn.Module]()
    for number, channels in enumerate((8, 16, 16, 16)):
        parts += [nn.Conv1d(channels, 16, 3, padding=2**number, dilation=2**number), nn.ReLU()]
    return nn.Sequential(*parts, nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(16, 6))


class _TemporalBlock(nn.Module):
    """Two dilated convolutions and a way around them."""

    def __init__(self, before: int, after: int, dilation: int) -> None:
        super().__init__()
        self.first = nn.Conv1d(before, after, 3, padding=dilation, dilation=dilation)
        self.second = nn.Conv1d(after, after, 3, padding=dilation, dilation=dilation)
        self.around = nn.Conv1d(before, after, 1) if before != after else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(F.relu(self.second(F.relu(self.first(x)))) + self.around(x))


def _residual_temporal_convolutions() -> nn.Module:
    blocks = (_TemporalBlock(9, 16, 1), _TemporalBlock(16, 16, 2))
    return nn.Sequential(*blocks, nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(16, 6))


class _ResidualBlock(nn.Module):
    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.first_norm = nn.BatchNorm2d(after)
        self.second = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.second_norm = nn.BatchNorm2d(after)
        self.around = nn.Conv2d(before, after, 1, stride, bias=False) if stride > 1 else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        y = self.second_norm(self.second(F.relu(self.first_norm(self.first(x)))))
        return F.relu(y + self.around(x))


def _resnet_8() -> nn.Module:
    stem = nn.Sequential(nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU())
    blocks = (_ResidualBlock(16, 16, 1), _ResidualBlock(16, 32, 2), _ResidualBlock(32, 64, 2))
    return nn.Sequential(stem, *blocks, nn.AvgPool2d(8), nn.Flatten(), nn.Linear(64, 10))


def _normed(before: int, after: int, sides: tuple[int, int], stride: int, *, groups: int = 1) -> nn.Module:
    padding = (sides[0] // 2, sides[1] // 2)
    convolution = nn.Conv2d(before, after, sides, stride, padding, groups=groups, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(after), nn.ReLU())


def _separable(before: int, after: int, stride: int) -> nn.Module:
    depthwise = _normed(before, before, (3, 3), stride, groups=before)
    return nn.Sequential(depthwise, _normed(before, after, (1, 1), 1))


def _ds_cnn() -> nn.Module:
    blocks = (_separable(64, 64, 1) for _ in range(4))
    return nn.Sequential(
        _normed(1, 64, (10, 4), 2), *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 12)
    )


def _mobilenet_v1() -> nn.Module:
    widths = (8, 16, 32, 32, 64, 64, 128, 128, 128, 128, 128, 128, 256, 256)
    strides = (1, 2, 1, 2, 1, 2, 1, 1, 1, 1, 1, 2, 1)
    blocks = map(_separable, widths, widths[1:], strides)
    return nn.Sequential(
        _normed(3, 8, (3, 3), 2), *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, 2)
    )


def _autoencoder() -> nn.Module:
    sizes = (640, 128, 128, 128, 128, 8, 128, 128, 128, 128)
    layers = (nn.Sequential(nn.Linear(before, after), nn.ReLU()) for before, after in pairwise(sizes))
    return nn.Sequential(*layers, nn.Linear(128, 640))


def _mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 128), nn.Tanh(), nn.Linear(128, 64), nn.Tanh(), nn.Linear(64, 10))


class _Gated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.GRU(8, 24, batch_first=True), nn.Linear(24, 6)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.head(self.cell(x)[0][:, -1])
        return scores


MICRO_NETS: dict[str, MicroNet] = {
    "tcn": MicroNet(_temporal_convolutions, (1, 8, 128)),
    "residual-tcn": MicroNet(_residual_temporal_convolutions, (1, 9, 128)),
    "ds-cnn": MicroNet(_ds_cnn, (1, 1, 49, 10)),
    "resnet-8": MicroNet(_resnet_8, (1, 3, 32, 32)),
    "mobilenet-v1": MicroNet(_mobilenet_v1, (1, 3, 96, 96)),
    "autoencoder": MicroNet(_autoencoder, (1, 640), loss="mse"),
    "mlp": MicroNet(_mlp, (1, 64)),
    "gru": MicroNet(_Gated, (1, 16, 8)),
}
