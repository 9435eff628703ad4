"""A decoder of Qwen2.5's shape in plain torch, with low-rank adapters on queries and values."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Adapted(nn.Module):
    """A linear layer with a product of two small matrices beside it (LoRA, Hu et al. 2021)."""

    def __init__(self, inputs: int, outputs: int, rank: int, scale: float = 2.0) -> None:
        super().__init__()
        self.base = nn.Linear(inputs, outputs)
        self.down = nn.Parameter(torch.randn(rank, inputs) / inputs**0.5)
        self.up = nn.Parameter(torch.zeros(outputs, rank))
        self.scale = scale

    def forward(self, x: Tensor) -> Tensor:
        adapted = F.linear(F.linear(x, self.down), self.up)
        result: Tensor = self.base(x) + adapted * self.scale
        return result


class GroupedAttention(nn.Module):
    """Causal self-attention with rotary positions, several heads of queries to each of keys and values."""

    def __init__(self, width: int, heads: int, shared_heads: int, rank: int) -> None:
        super().__init__()
        self.head_width = width // heads
        shared = shared_heads * self.head_width
        self.query = Adapted(width, width, rank)
        self.key = nn.Linear(width, shared)
        self.value = Adapted(width, shared, rank)
        self.output = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
        query, key, value = (
            layer(x).unflatten(2, (-1, self.head_width)).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        query, key = (item * cosines + _half_turned(item) * sines for item in (query, key))
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
        result: Tensor = self.output(mixed.transpose(1, 2).flatten(2))
        return result


def _half_turned(x: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return torch.cat([-second, first], -1)


class DecoderLayer(nn.Module):
    """Attention and a gated feed-forward net, each with a norm before it and a sum around it."""

    def __init__(self, width: int, heads: int, shared_heads: int, inner: int, rank: int) -> None:
        super().__init__()
        self.norm1 = nn.RMSNorm(width, eps=1e-6)
        self.attention = GroupedAttention(width, heads, shared_heads, rank)
        self.norm2 = nn.RMSNorm(width, eps=1e-6)
        self.gate = nn.Linear(width, inner, bias=False)
        self.expand = nn.Linear(width, inner, bias=False)
        self.project = nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x), cosines, sines)
        y = self.norm2(x)
        result: Tensor = x + self.project(F.silu(self.gate(y)) * self.expand(y))
        return result


class Decoder(nn.Module):
    """Qwen2.5 (Yang et al. 2024), random weights; as it stands, the one of 494 million parameters.

    The head shares the word embedding. Logits come as (batch, length, words). `ADAPTERS` are what one trains.
    """

    def __init__(
        self,
        *,
        layers: int = 24,
        width: int = 896,
        heads: int = 14,
        shared_heads: int = 2,
        inner: int = 4864,
        words: int = 151_936,
        length: int = 128,
        rank: int = 8,
    ) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        nn.init.normal_(self.words.weight, std=0.02)
        self.layers = nn.ModuleList(
            DecoderLayer(width, heads, shared_heads, inner, rank) for _ in range(layers)
        )
        self.norm = nn.RMSNorm(width, eps=1e-6)
        head_width = width // heads
        frequencies = 1e6 ** (-torch.arange(0, head_width, 2) / head_width)
        angles = torch.outer(torch.arange(length), frequencies).repeat(1, 2)
        self.register_buffer("cosines", angles.cos(), persistent=False)
        self.register_buffer("sines", angles.sin(), persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x, length = self.words(tokens), tokens.shape[1]
        for layer in self.layers:
            x = layer(x, self.cosines[:length], self.sines[:length])  # type: ignore[index]
        result: Tensor = F.linear(self.norm(x), self.words.weight)
        return result


ADAPTERS = ("*.down", "*.up")
"""Patterns of the names of the adapters' parameters."""
