"""Nets that no page of the planner has: the held-out half of its table.

One net per kind. Sizes are those of microcontrollers and small boards. Nothing of the planner may be set for
one of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass(frozen=True, slots=True)
class BenchmarkNet:
    """How to build one, and what it is trained on.

    Attributes:
        build: the module.
        inputs: shape of one batch of a single example; of tokens, ``words`` says below which number.
        loss: of its output.
        words: size of the vocabulary; 0: the inputs are real numbers.
    """

    build: Callable[[], nn.Module]
    inputs: tuple[int, ...]
    loss: str = "cross-entropy"
    words: int = 0

    def example(self) -> Tensor:
        """A batch of a single example."""
        return torch.randint(self.words, self.inputs) if self.words else torch.randn(*self.inputs)


def _conv_norm(before: int, after: int, side: int, stride: int = 1, groups: int = 1) -> nn.Sequential:
    conv = nn.Conv2d(before, after, side, stride, side // 2, groups=groups, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(after), nn.ReLU())


class _Dense(nn.Module):
    """Two dense blocks with a transition (Huang et al. 2017)."""

    def __init__(self, layers: int = 6, growth: int = 8) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, 1, 1)
        self.first = nn.ModuleList(_conv_norm(16 + growth * i, growth, 3) for i in range(layers))
        self.transition = _conv_norm(16 + growth * layers, 32, 1)
        self.second = nn.ModuleList(_conv_norm(32 + growth * i, growth, 3) for i in range(layers))
        self.head = nn.Linear(32 + growth * layers, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for layer in self.first:
            x = torch.cat([x, layer(x)], 1)
        x = F.avg_pool2d(self.transition(x), 2)
        for layer in self.second:
            x = torch.cat([x, layer(x)], 1)
        scores: Tensor = self.head(x.mean((2, 3)))
        return scores


class _UNet1d(nn.Module):
    """Segments a signal: three steps down and up, skips by concatenation."""

    def __init__(self) -> None:
        super().__init__()
        sizes = (2, 8, 12, 16)
        self.down = nn.ModuleList(nn.Conv1d(a, b, 9, 1, 4) for a, b in pairwise(sizes))
        self.bottom = nn.Conv1d(16, 24, 5, 1, 2)
        self.up = nn.ModuleList(nn.Conv1d(a + b, b, 9, 1, 4) for a, b in ((24, 16), (16, 12), (12, 8)))
        self.head = nn.Conv1d(8, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        kept = list[Tensor]()
        for conv in self.down:
            kept.append(F.relu(conv(x)))
            x = F.max_pool1d(kept[-1], 2)
        x = F.relu(self.bottom(x))
        for conv in self.up:
            x = F.relu(conv(torch.cat([F.interpolate(x, scale_factor=2.0), kept.pop()], 1)))
        marks: Tensor = self.head(x)
        return marks


class _UNet2d(nn.Module):
    """Residual double convolutions, skips by addition."""

    def __init__(self) -> None:
        super().__init__()
        sizes = (8, 16, 24)
        self.stem = nn.Conv2d(1, 8, 3, 1, 1)
        self.down = nn.ModuleList(_conv_norm(a, b, 3, 2) for a, b in pairwise(sizes))
        self.bottom = _conv_norm(24, 24, 3)
        self.up = nn.ModuleList(nn.ConvTranspose2d(b, a, 2, 2) for a, b in reversed(list(pairwise(sizes))))
        self.mix = nn.ModuleList(_conv_norm(a, a, 3) for a in (16, 8))
        self.head = nn.Conv2d(8, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        kept = [self.stem(x)]
        for part in self.down:
            kept.append(part(kept[-1]))
        x = self.bottom(kept.pop())
        for up, mix in zip(self.up, self.mix, strict=True):
            x = mix(up(x) + kept.pop())
        image: Tensor = self.head(x)
        return image


class _Gpt(nn.Module):
    """A causal decoder of three pre-norm layers (Radford et al. 2019)."""

    def __init__(self, width: int = 32, tokens: int = 24, words: int = 96) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Parameter(torch.zeros(tokens, width))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(7))
        self.into = nn.ModuleList(nn.Linear(width, 3 * width) for _ in range(3))
        self.out = nn.ModuleList(nn.Linear(width, width) for _ in range(3))
        self.wide = nn.ModuleList(nn.Linear(width, 4 * width) for _ in range(3))
        self.narrow = nn.ModuleList(nn.Linear(4 * width, width) for _ in range(3))
        self.head = nn.Linear(width, words, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens) + self.places
        for i in range(3):
            q, k, v = (
                part.unflatten(-1, (4, 8)).transpose(1, 2)
                for part in self.into[i](self.norms[2 * i](x)).chunk(3, -1)
            )
            scores = (q @ k.transpose(-1, -2)) / 8**0.5
            mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=x.device).triu(1)
            seen = scores.masked_fill(mask, -1e9).softmax(-1) @ v
            x = x + self.out[i](seen.transpose(1, 2).flatten(2))
            x = x + self.narrow[i](F.gelu(self.wide[i](self.norms[2 * i + 1](x))))
        logits: Tensor = self.head(self.norms[6](x))
        return logits.transpose(1, 2)


class _Encoder(nn.Module):
    """Two post-norm layers over tokens and a classifier (Devlin et al. 2019)."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(200, 48)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(48, 3, 96, 0.0, activation="gelu", batch_first=True) for _ in range(2)
        )
        self.head = nn.Linear(48, 4)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens)
        for layer in self.layers:
            x = layer(x)
        scores: Tensor = self.head(torch.tanh(x[:, 0]))
        return scores


class _CellLoop(nn.Module):
    """A GRU cell of plain ops, sixteen steps, and a score from the mean state."""

    def __init__(self, inputs: int = 10, width: int = 28) -> None:
        super().__init__()
        self.gates = nn.Linear(inputs + width, 2 * width)
        self.candidate, self.head = nn.Linear(inputs + width, width), nn.Linear(width, 6)

    def forward(self, x: Tensor) -> Tensor:
        state, states = x.new_zeros(x.shape[0], self.head.in_features), list[Tensor]()
        for moment in x.unbind(1):
            update, reset = torch.sigmoid(self.gates(torch.cat([moment, state], 1))).chunk(2, 1)
            fresh = torch.tanh(self.candidate(torch.cat([moment, reset * state], 1)))
            state = update * state + (1.0 - update) * fresh
            states.append(state)
        scores: Tensor = self.head(torch.stack(states).mean(0))
        return scores


class _Inverted(nn.Module):
    """An inverted residual with squeeze-and-excite (Howard et al. 2019)."""

    def __init__(self, before: int, inner: int, after: int, stride: int, side: int) -> None:
        super().__init__()
        self.widen, self.depth = _conv_norm(before, inner, 1), _conv_norm(inner, inner, side, stride, inner)
        self.squeeze, self.excite = nn.Conv2d(inner, inner // 4, 1), nn.Conv2d(inner // 4, inner, 1)
        self.narrow = nn.Sequential(nn.Conv2d(inner, after, 1, bias=False), nn.BatchNorm2d(after))
        self.has_way_around = before == after and stride == 1

    def forward(self, x: Tensor) -> Tensor:
        y = self.depth(self.widen(x))
        y = y * F.hardsigmoid(self.excite(F.relu(self.squeeze(y.mean((2, 3), keepdim=True)))))
        narrow: Tensor = self.narrow(y)
        return x + narrow if self.has_way_around else narrow


def _mobilenet_v3() -> nn.Module:
    blocks = ((8, 16, 8, 1, 3), (8, 32, 16, 2, 3), (16, 48, 16, 1, 5), (16, 64, 24, 2, 5), (24, 72, 24, 1, 5))
    return nn.Sequential(
        *(_conv_norm(3, 8, 3, 2), *(_Inverted(*block) for block in blocks)),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(24, 10)),
    )


class _PointNet(nn.Module):
    """Shared layers per point, the greatest over points, joined back to each (Qi et al. 2017)."""

    def __init__(self) -> None:
        super().__init__()
        self.local = nn.Sequential(nn.Conv1d(3, 32, 1), nn.ReLU(), nn.Conv1d(32, 48, 1), nn.ReLU())
        self.wide = nn.Sequential(nn.Conv1d(48, 96, 1), nn.BatchNorm1d(96), nn.ReLU())
        self.each = nn.Sequential(nn.Conv1d(144, 48, 1), nn.ReLU(), nn.Conv1d(48, 5, 1))

    def forward(self, points: Tensor) -> Tensor:
        local = self.local(points)
        whole = self.wide(local).amax(2, keepdim=True).expand(-1, -1, points.shape[2])
        marks: Tensor = self.each(torch.cat([local, whole], 1))
        return marks


def _conv_autoencoder() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(1, 12, 3, 2, 1), nn.ReLU(), nn.Conv2d(12, 24, 3, 2, 1), nn.ReLU()),
        *(nn.Conv2d(24, 8, 3, 2, 1), nn.ReLU(), nn.ConvTranspose2d(8, 24, 4, 2, 1), nn.ReLU()),
        *(nn.ConvTranspose2d(24, 12, 4, 2, 1), nn.ReLU(), nn.ConvTranspose2d(12, 1, 4, 2, 1)),
    )


class _Mixer(nn.Module):
    """Layers across patches and across channels (Tolstikhin et al. 2021)."""

    def __init__(self, layers: int = 4) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 32, 4, 4)
        self.norms = nn.ModuleList(nn.LayerNorm(32) for _ in range(2 * layers))
        self.across = nn.ModuleList(
            nn.Sequential(nn.Linear(64, 32), nn.GELU(), nn.Linear(32, 64)) for _ in range(layers)
        )
        self.within = nn.ModuleList(
            nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32)) for _ in range(layers)
        )
        self.head = nn.Linear(32, 10)

    def forward(self, images: Tensor) -> Tensor:
        x = self.patches(images).flatten(2).transpose(1, 2)
        for i, (across, within) in enumerate(zip(self.across, self.within, strict=True)):
            x = x + across(self.norms[2 * i](x).transpose(1, 2)).transpose(1, 2)
            x = x + within(self.norms[2 * i + 1](x))
        scores: Tensor = self.head(x.mean(1))
        return scores


class _WaveNet(nn.Module):
    """Gated dilated convolutions; the skips of all layers are summed (van den Oord et al. 2016)."""

    def __init__(self, layers: int = 6, width: int = 12) -> None:
        super().__init__()
        self.stem = nn.Conv1d(1, width, 1)
        self.gated = nn.ModuleList(nn.Conv1d(width, 2 * width, 3, 1, 2**i, 2**i) for i in range(layers))
        self.mix = nn.ModuleList(nn.Conv1d(width, width, 1) for _ in range(layers))
        self.skip = nn.ModuleList(nn.Conv1d(width, 8, 1) for _ in range(layers))
        self.head = nn.Conv1d(8, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        x, skips = self.stem(x), list[Tensor]()
        for gated, mix, skip in zip(self.gated, self.mix, self.skip, strict=True):
            value, gate = gated(x).chunk(2, 1)
            y = torch.tanh(value) * torch.sigmoid(gate)
            x = x + mix(y)
            skips.append(skip(y))
        marks: Tensor = self.head(F.relu(sum(skips[1:], skips[0])))
        return marks


class _Shuffle(nn.Module):
    """Half of the channels pass, half are computed, then all are mixed (Ma et al. 2018)."""

    def __init__(self, blocks: int = 4, width: int = 24) -> None:
        super().__init__()
        half = width // 2
        self.stem = _conv_norm(3, width, 3, 2)
        self.parts = nn.ModuleList(
            nn.Sequential(_conv_norm(half, half, 1), _conv_norm(half, half, 3, 1, half))
            for _ in range(blocks)
        )
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for part in self.parts:
            left, right = x.chunk(2, 1)
            x = torch.stack([left, part(right)], 2).flatten(1, 2)
        scores: Tensor = self.head(x.mean((2, 3)))
        return scores


class _Inception(nn.Module):
    """Three ways beside each other, joined (Szegedy et al. 2015)."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.heads = _conv_norm(1, 12, 3), nn.Linear(36, 8)
        self.blocks = nn.ModuleList(
            nn.ModuleList((_conv_norm(n, 12, 1), _conv_norm(n, 12, 3), _conv_norm(n, 12, 5)))
            for n in (12, 36, 36)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for number, block in enumerate(self.blocks):
            assert isinstance(block, nn.ModuleList)
            x = torch.cat([way(x) for way in block], 1)
            x = F.max_pool2d(x, 2) if number < 2 else x
        scores: Tensor = self.heads(x.mean((2, 3)))
        return scores


HELD_OUT: dict[str, BenchmarkNet] = {
    "dense": BenchmarkNet(_Dense, (1, 3, 24, 24)),
    "u-net-1d": BenchmarkNet(_UNet1d, (1, 2, 256)),
    "u-net-2d": BenchmarkNet(_UNet2d, (1, 1, 32, 32)),
    "gpt": BenchmarkNet(_Gpt, (1, 24), words=96),
    "encoder": BenchmarkNet(_Encoder, (1, 20), words=200),
    "gru-cells": BenchmarkNet(_CellLoop, (1, 16, 10)),
    "mobilenet-v3": BenchmarkNet(_mobilenet_v3, (1, 3, 48, 48)),
    "pointnet": BenchmarkNet(_PointNet, (1, 3, 128)),
    "conv-autoencoder": BenchmarkNet(_conv_autoencoder, (1, 1, 32, 32), loss="mse"),
    "mixer": BenchmarkNet(_Mixer, (1, 3, 32, 32)),
    "wavenet": BenchmarkNet(_WaveNet, (1, 1, 192)),
    "shufflenet": BenchmarkNet(_Shuffle, (1, 3, 40, 40)),
    "inception": BenchmarkNet(_Inception, (1, 1, 28, 28)),
}
