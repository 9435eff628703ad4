"""Nets whose training steps are hard to plan for their shape: many concats, or very many ops."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class _DenseLayer(nn.Module):
    """Norm, ReLU and a convolution, whose output is put behind its input (Huang et al. 2017)."""

    def __init__(self, before: int, growth: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(before)
        self.convolution = nn.Conv2d(before, growth, 3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, self.convolution(F.relu(self.norm(x)))], 1)


class _Transition(nn.Module):
    """To half of the channels, then to half of the height and width."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(channels)
        self.convolution = nn.Conv2d(channels, channels // 2, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return F.avg_pool2d(self.convolution(F.relu(self.norm(x))), 2)


class DenseNetLike(nn.Module):
    """So many dense layers in four blocks, for images of 32 x 32 pixels."""

    def __init__(self, layers: int, *, growth: int = 12, classes: int = 10) -> None:
        super().__init__()
        channels, parts = 2 * growth, list[nn.Module]()
        parts.append(nn.Conv2d(3, channels, 3, padding=1, bias=False))
        for block in range(4):
            for _ in range(layers // 4 + (block < layers % 4)):
                parts.append(_DenseLayer(channels, growth))
                channels += growth
            if block < 3:
                parts.append(_Transition(channels))
                channels //= 2
        pooled = (nn.BatchNorm2d(channels), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.parts = nn.Sequential(*parts, *pooled, nn.Linear(channels, classes))

    def forward(self, images: Tensor) -> Tensor:
        scores: Tensor = self.parts(images)
        return scores


class _Head(nn.Module):
    """Causal self-attention of one head, spelt out (Vaswani et al. 2017, equation 1)."""

    def __init__(self, width: int, head: int) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(width, head) for _ in range(3))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        query, key, value = (make(x) for make in (self.query, self.key, self.value))
        scores = query @ key.transpose(1, 2) / math.sqrt(query.shape[-1])
        mixed: Tensor = (scores + mask).softmax(-1) @ value
        return mixed


class _Layer(nn.Module):
    """A layer of a decoder, its heads one after the other."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.heads = nn.ModuleList(_Head(width, width // heads) for _ in range(heads))
        self.output = nn.Linear(width, width)
        self.expand, self.project = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        normed = self.norm1(x)
        x = x + self.output(torch.cat([head(normed, mask) for head in self.heads], 2))
        result: Tensor = x + self.project(F.gelu(self.expand(self.norm2(x))))
        return result


class HeadwiseGPT(nn.Module):
    """A causal decoder whose heads are ops of their own: about two hundred ops of a step for each layer."""

    def __init__(
        self, layers: int = 48, *, width: int = 120, heads: int = 6, words: int = 2000, length: int = 64
    ) -> None:
        super().__init__()
        self.words, self.positions = nn.Embedding(words, width), nn.Embedding(length, width)
        self.layers = nn.ModuleList(_Layer(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words)
        self.register_buffer("mask", torch.full((length, length), -math.inf).triu(1))

    def forward(self, tokens: Tensor) -> Tensor:
        length = tokens.shape[1]
        x = self.words(tokens) + self.positions(torch.arange(length, device=tokens.device))
        mask = self.get_buffer("mask")[:length, :length]
        for layer in self.layers:
            x = layer(x, mask)
        scores: Tensor = self.head(self.norm(x)).transpose(1, 2)
        return scores
