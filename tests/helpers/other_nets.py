"""Nets of the sizes that microcontrollers run and of other kinds than `helpers.tiny_nets`.

Little of the planner was developed on them: what holds for those nets alone shows here.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from helpers.tiny_nets import MicroNet


class _Inverted(nn.Module):
    """An inverted residual block (Sandler et al. 2018)."""

    def __init__(self, before: int, after: int, stride: int, expansion: int) -> None:
        super().__init__()
        inner = before * expansion
        self.parts = nn.Sequential(
            *(nn.Conv2d(before, inner, 1, bias=False), nn.BatchNorm2d(inner), nn.ReLU6()),
            nn.Conv2d(inner, inner, 3, stride, 1, groups=inner, bias=False),
            *(nn.BatchNorm2d(inner), nn.ReLU6()),
            *(nn.Conv2d(inner, after, 1, bias=False), nn.BatchNorm2d(after)),
        )
        self.has_way_around = before == after and stride == 1

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.parts(x)
        return x + y if self.has_way_around else y


def _mobilenet_v2() -> nn.Module:
    blocks = ((8, 8, 1, 1), (8, 16, 2, 4), (16, 16, 1, 4), (16, 24, 2, 4), (24, 24, 1, 4), (24, 40, 2, 4))
    return nn.Sequential(
        *(nn.Conv2d(3, 8, 3, 2, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU6()),
        *(_Inverted(*block) for block in (*blocks, (40, 40, 1, 4))),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(40, 2)),
    )


class _VisionTransformer(nn.Module):
    """Three layers over patches of 4 x 4 pixels (Dosovitskiy et al. 2021)."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, 32, 4, 4)
        self.positions = nn.Parameter(torch.zeros(1, 49, 32))
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(32, 2, 64, 0.0, batch_first=True, norm_first=True) for _ in range(3)
        )
        self.head = nn.Linear(32, 10)

    def forward(self, images: Tensor) -> Tensor:
        x = self.patches(images).flatten(2).transpose(1, 2) + self.positions
        for layer in self.layers:
            x = layer(x)
        scores: Tensor = self.head(x.mean(1))
        return scores


def _twice(before: int, after: int) -> nn.Module:
    first, second = nn.Conv2d(before, after, 3, 1, 1), nn.Conv2d(after, after, 3, 1, 1)
    return nn.Sequential(first, nn.ReLU(), second, nn.ReLU())


class _UNet(nn.Module):
    """Two steps down and up (Ronneberger et al. 2015)."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList(_twice(before, after) for before, after in pairwise((1, 8, 16)))
        self.bottom = _twice(16, 32)
        self.wider = nn.ModuleList(nn.ConvTranspose2d(2 * n, n, 2, 2) for n in (16, 8))
        self.up = nn.ModuleList(_twice(2 * n, n) for n in (16, 8))
        self.head = nn.Conv2d(8, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        kept = list[Tensor]()
        for part in self.down:
            kept.append(part(x))
            x = F.max_pool2d(kept[-1], 2)
        x = self.bottom(x)
        for wider, part in zip(self.wider, self.up, strict=True):
            x = part(torch.cat([wider(x), kept.pop()], 1))
        image: Tensor = self.head(x)
        return image


class _LongShortTerm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.LSTM(6, 20, batch_first=True), nn.Linear(20, 5)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.head(self.cell(x)[0][:, -1])
        return scores


class _WideBlock(nn.Module):
    """Two wide convolutions over time and a way around them."""

    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        self.parts = nn.Sequential(
            *(nn.Conv1d(before, after, 7, 2, 3), nn.BatchNorm1d(after), nn.ReLU()),
            *(nn.Conv1d(after, after, 7, 1, 3), nn.BatchNorm1d(after)),
        )
        self.around = nn.Conv1d(before, after, 1, 2)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.parts(x) + self.around(x))


def _heartbeats() -> nn.Module:
    """A residual net for 256 samples of an electrocardiogram."""
    blocks = (_WideBlock(before, after) for before, after in pairwise((1, 8, 16, 24, 32)))
    return nn.Sequential(*blocks, nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(32, 5))


class _Fire(nn.Module):
    """Squeeze, then expand two ways (Iandola et al. 2016)."""

    def __init__(self, before: int, squeezed: int, expanded: int) -> None:
        super().__init__()
        self.squeeze = nn.Conv2d(before, squeezed, 1)
        self.narrow = nn.Conv2d(squeezed, expanded, 1)
        self.wide = nn.Conv2d(squeezed, expanded, 3, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.squeeze(x))
        return torch.cat([F.relu(self.narrow(x)), F.relu(self.wide(x))], 1)


def _squeezenet() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(3, 16, 3, 2, 1), nn.ReLU(), _Fire(16, 4, 8), _Fire(16, 4, 8), nn.MaxPool2d(2)),
        *(_Fire(16, 8, 16), _Fire(32, 8, 16), nn.MaxPool2d(2), _Fire(32, 12, 24)),
        *(nn.Conv2d(48, 10, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()),
    )


OTHER_NETS: dict[str, MicroNet] = {
    "mobilenet-v2": MicroNet(_mobilenet_v2, (1, 3, 64, 64)),
    "vit": MicroNet(_VisionTransformer, (1, 1, 28, 28)),
    "u-net": MicroNet(_UNet, (1, 1, 32, 32), loss="mse"),
    "lstm": MicroNet(_LongShortTerm, (1, 12, 6)),
    "heartbeats": MicroNet(_heartbeats, (1, 1, 256)),
    "squeezenet": MicroNet(_squeezenet, (1, 3, 48, 48)),
}
