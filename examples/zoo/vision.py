"""Image nets in plain torch, as their papers describe them."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut (He et al. 2016, figure 2)."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.downsample: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.bn1(self.conv1(x)))
        result: Tensor = F.relu(self.bn2(self.conv2(y)) + self.downsample(x))
        return result


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions, the last with four times the channels (He et al. 2016, figure 5)."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        inner = outputs // 4
        self.conv1 = nn.Conv2d(inputs, inner, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(inner)
        self.conv2 = nn.Conv2d(inner, inner, 3, stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(inner)
        self.conv3 = nn.Conv2d(inner, outputs, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(outputs)
        self.downsample: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.bn1(self.conv1(x)))
        y = F.relu(self.bn2(self.conv2(y)))
        result: Tensor = F.relu(self.bn3(self.conv3(y)) + self.downsample(x))
        return result


class ResNet(nn.Module):
    """ResNet; ``stem``: ``"cifar"`` (3x3, stride 1) or ``"imagenet"`` (7x7, max-pool).

    With ``bottleneck`` its blocks are deep ones, with four times the channels: ``(3, 4, 6, 3)`` is ResNet-50.
    """

    def __init__(
        self,
        blocks: tuple[int, ...] = (2, 2, 2, 2),
        *,
        width: int = 64,
        classes: int = 10,
        stem: str = "cifar",
        bottleneck: bool = False,
    ) -> None:
        super().__init__()
        block, expansion = (Bottleneck, 4) if bottleneck else (BasicBlock, 1)
        imagenet = stem == "imagenet"
        size, stride, padding = (7, 2, 3) if imagenet else (3, 1, 1)
        self.conv1 = nn.Conv2d(3, width, size, stride, padding, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.pool = nn.MaxPool2d(3, 2, 1) if imagenet else nn.Identity()
        stages = []
        channels = width
        for stage, count in enumerate(blocks):
            outputs = width * expansion * 2**stage
            strides = [1 if stage == 0 else 2] + [1] * (count - 1)
            stages.append(
                nn.Sequential(
                    *(
                        block(channels if index == 0 else outputs, outputs, stride)
                        for index, stride in enumerate(strides)
                    )
                )
            )
            channels = outputs
        self.stages = nn.Sequential(*stages)
        self.fc = nn.Linear(channels, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stages(self.pool(F.relu(self.bn1(self.conv1(x)))))
        result: Tensor = self.fc(torch.flatten(F.adaptive_avg_pool2d(x, 1), 1))
        return result


class InvertedResidual(nn.Module):
    """Expand, depthwise 3x3, project (Sandler et al. 2018, figure 3b)."""

    def __init__(self, inputs: int, outputs: int, stride: int, expansion: int) -> None:
        super().__init__()
        hidden = inputs * expansion
        self.shortcut = stride == 1 and inputs == outputs
        layers: list[nn.Module] = []
        if expansion != 1:
            layers += [nn.Conv2d(inputs, hidden, 1, bias=False), nn.BatchNorm2d(hidden), nn.ReLU6()]
        layers += [
            nn.Conv2d(hidden, hidden, 3, stride, 1, groups=hidden, bias=False),
            nn.BatchNorm2d(hidden),
            nn.ReLU6(),
            nn.Conv2d(hidden, outputs, 1, bias=False),
            nn.BatchNorm2d(outputs),
        ]
        self.conv = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = x + self.conv(x) if self.shortcut else self.conv(x)
        return result


# expansion, channels, repeats, stride of the first repeat (Sandler et al. 2018, table 2)
MOBILENET_V2 = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)


class MobileNetV2(nn.Module):
    """MobileNetV2; with ``small_images`` stem and second stage keep the resolution, for 32x32 input."""

    def __init__(
        self,
        rows: tuple[tuple[int, int, int, int], ...] = MOBILENET_V2,
        *,
        width: float = 1.0,
        classes: int = 10,
        head: int = 1280,
        small_images: bool = True,
    ) -> None:
        super().__init__()

        def scaled(channels: int) -> int:
            return max(8, int(channels * width + 4) // 8 * 8)

        channels = scaled(32)
        layers: list[nn.Module] = [
            nn.Conv2d(3, channels, 3, 1 if small_images else 2, 1, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU6(),
        ]
        for number, (expansion, outputs, repeats, first_stride) in enumerate(rows):
            for index in range(repeats):
                stride = first_stride if index == 0 and not (small_images and number == 1) else 1
                layers.append(InvertedResidual(channels, scaled(outputs), stride, expansion))
                channels = scaled(outputs)
        last = max(head, int(head * width))
        layers += [nn.Conv2d(channels, last, 1, bias=False), nn.BatchNorm2d(last), nn.ReLU6()]
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Sequential(nn.Dropout(0.2), nn.Linear(last, classes))

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.classifier(self.features(x).mean((2, 3)))
        return result


class DoubleConv(nn.Sequential):
    """Twice convolution, batch norm, ReLU."""

    def __init__(self, inputs: int, outputs: int) -> None:
        layers: list[nn.Module] = []
        for channels in (inputs, outputs):
            layers += [nn.Conv2d(channels, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU()]
        super().__init__(*layers)


class UNet(nn.Module):
    """U-Net (Ronneberger et al. 2015) with padded convolutions: one logit per pixel and class."""

    def __init__(self, *, width: int = 32, depth: int = 4, channels: int = 3, classes: int = 1) -> None:
        super().__init__()
        widths = [width * 2**level for level in range(depth + 1)]
        pairs = list(itertools.pairwise(widths))
        self.first = DoubleConv(channels, width)
        self.down = nn.ModuleList(DoubleConv(fine, coarse) for fine, coarse in pairs)
        self.up = nn.ModuleList(nn.ConvTranspose2d(coarse, fine, 2, 2) for fine, coarse in reversed(pairs))
        self.merge = nn.ModuleList(DoubleConv(2 * fine, fine) for fine, _ in reversed(pairs))
        self.head = nn.Conv2d(width, classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        skips = [self.first(x)]
        for block in self.down:
            skips.append(block(F.max_pool2d(skips[-1], 2)))
        x = skips.pop()
        for up, merge in zip(self.up, self.merge, strict=True):
            x = merge(torch.cat([skips.pop(), up(x)], 1))
        result: Tensor = self.head(x)
        return result


class ConvNeXtBlock(nn.Module):
    """Depthwise 7x7, layer norm, two pointwise layers with GELU, layer scale (Liu et al. 2022, figure 4)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(channels, channels, 7, padding=3, groups=channels)
        self.norm = nn.LayerNorm(channels, eps=1e-6)
        self.expand = nn.Linear(channels, 4 * channels)
        self.project = nn.Linear(4 * channels, channels)
        self.scale = nn.Parameter(torch.full((channels,), 1e-6))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        y = self.scale * self.project(F.gelu(self.expand(y)))
        result: Tensor = x + y.permute(0, 3, 1, 2)
        return result


class ConvNeXt(nn.Module):
    """ConvNeXt; the stem's patch is ``patch`` pixels wide (4 for ImageNet, 2 for 32x32 input)."""

    def __init__(
        self,
        blocks: tuple[int, ...] = (3, 3, 9, 3),
        widths: tuple[int, ...] = (96, 192, 384, 768),
        *,
        patch: int = 4,
        classes: int = 10,
    ) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, widths[0], patch, patch)
        layers: list[nn.Module] = []
        for stage, (count, channels) in enumerate(zip(blocks, widths, strict=True)):
            if stage > 0:
                layers += [nn.GroupNorm(1, widths[stage - 1]), nn.Conv2d(widths[stage - 1], channels, 2, 2)]
            layers += [ConvNeXtBlock(channels) for _ in range(count)]
        self.stages = nn.Sequential(*layers)
        self.norm = nn.LayerNorm(widths[-1], eps=1e-6)
        self.head = nn.Linear(widths[-1], classes)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.head(self.norm(self.stages(self.stem(x)).mean((2, 3))))
        return result
