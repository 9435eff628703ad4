"""The four reference nets of MLPerf Tiny, of the sizes that its rules give.

After the reference code of the benchmark: keyword spotting (DS-CNN), image classification (ResNet-8),
visual wake words (MobileNetV1, a quarter wide) and anomaly detection (an autoencoder). ``smaller`` nets have
the same layers with a few channels on a small input, for tests.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def _normed(
    width_in: int,
    width: int,
    size: int | tuple[int, int],
    *,
    stride: int | tuple[int, int] = 1,
    padding: int | tuple[int, int] = 0,
    groups: int = 1,
) -> nn.Sequential:
    convolution = nn.Conv2d(width_in, width, size, stride=stride, padding=padding, groups=groups)
    return nn.Sequential(convolution, nn.BatchNorm2d(width), nn.ReLU())


def ds_cnn(width: int = 64, blocks: int = 4, dropout: float = 0.0) -> nn.Module:
    """Keyword spotting: one convolution, then depthwise and pointwise ones; input 1x49x10."""
    layers: list[nn.Module] = [nn.ZeroPad2d((1, 1, 4, 5)), *_normed(1, width, (10, 4), stride=2)]
    layers += [nn.Dropout(dropout)] if dropout else []
    for _ in range(blocks):
        layers += [*_normed(width, width, 3, padding=1, groups=width), *_normed(width, width, 1)]
    layers += [nn.Dropout(2 * dropout)] if dropout else []
    return nn.Sequential(*layers, _Averaged(), nn.Linear(width, 12))


class _Averaged(nn.Module):
    """The mean of each channel's image, as a pooling with a window of the image's size."""

    def forward(self, x: Tensor) -> Tensor:
        """Means, one row of channels per image."""
        pooled: Tensor = F.avg_pool2d(x, (x.shape[2], x.shape[3]))
        return pooled.flatten(1)


class _Residual(nn.Module):
    """Two convolutions beside a shortcut; where the image shrinks, the shortcut is a convolution."""

    def __init__(self, width_in: int, width: int, stride: int) -> None:
        super().__init__()
        self.stride = stride
        self.first = _normed(width_in, width, 3, stride=stride, padding=1 if stride == 1 else 0)
        self.second = nn.Sequential(nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width))
        self.shortcut = nn.Conv2d(width_in, width, 1, stride=stride) if stride > 1 else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """The block's output, half as high and wide where the stride is 2."""
        padded = F.pad(x, (0, 1, 0, 1)) if self.stride > 1 else x
        summed: Tensor = self.second(self.first(padded)) + self.shortcut(x)
        return torch.relu(summed)


def resnet8(width: int = 16) -> nn.Module:
    """Image classification: three residual blocks; input 3x32x32."""
    return nn.Sequential(
        _normed(3, width, 3, padding=1),
        _Residual(width, width, 1),
        _Residual(width, 2 * width, 2),
        _Residual(2 * width, 4 * width, 2),
        _Averaged(),
        nn.Linear(4 * width, 10),
    )


def mobilenet_v1(share: float = 0.25, blocks: int = 13) -> nn.Module:
    """Visual wake words: depthwise and pointwise convolutions; input 3x96x96."""
    widths = [64, 128, 128, 256, 256, 512, 512, 512, 512, 512, 512, 1024, 1024][:blocks]
    shrinking = {1, 3, 5, 11}
    width = max(int(32 * share), 1)
    layers: list[nn.Module] = [nn.ZeroPad2d((0, 1, 0, 1)), *_normed(3, width, 3, stride=2)]
    for index, full in enumerate(widths):
        wider = max(int(full * share), 1)
        stride = 2 if index in shrinking else 1
        layers += [nn.ZeroPad2d((0, 1, 0, 1))] if stride > 1 else []
        layers += [*_normed(width, width, 3, stride=stride, padding=2 - stride, groups=width)]
        layers += [*_normed(width, wider, 1)]
        width = wider
    return nn.Sequential(*layers, _Averaged(), nn.Linear(width, 2))


def autoencoder(inputs: int = 640, width: int = 128, narrow: int = 8) -> nn.Module:
    """Anomaly detection: ten linear layers with batch norm between; input of 640 numbers."""
    layers: list[nn.Module] = []
    last = inputs
    for size in (*(width,) * 4, narrow, *(width,) * 4):
        layers += [nn.Linear(last, size), nn.BatchNorm1d(size), nn.ReLU()]
        last = size
    return nn.Sequential(*layers, nn.Linear(last, inputs))


@dataclass(frozen=True)
class BenchmarkNet:
    """How to build a net, what it reads, and what it is trained with.

    ``smaller`` and ``smaller_shape`` are the same net in a size for tests; shapes begin with the batch.
    """

    build: Callable[[], nn.Module]
    shape: tuple[int, ...]
    smaller: Callable[[], nn.Module]
    smaller_shape: tuple[int, ...]
    loss: str = "cross-entropy"


NETS: dict[str, BenchmarkNet] = {
    "ds-cnn": BenchmarkNet(ds_cnn, (1, 1, 49, 10), lambda: ds_cnn(6, 2), (2, 1, 13, 6)),
    "resnet-8": BenchmarkNet(resnet8, (1, 3, 32, 32), lambda: resnet8(3), (2, 3, 8, 8)),
    "mobilenetv1": BenchmarkNet(mobilenet_v1, (1, 3, 96, 96), lambda: mobilenet_v1(0.07, 5), (2, 3, 17, 15)),
    "autoencoder": BenchmarkNet(autoencoder, (4, 640), lambda: autoencoder(12, 7, 3), (4, 12), "mse"),
}
