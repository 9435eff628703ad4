"""Transformers and a recurrent net in plain torch."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class SoftmaxAttention(nn.Module):
    """Self-attention spelt out (Vaswani et al. 2017, equation 1), with dropout on the weights, as in BERT."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.output = nn.Linear(width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (
            layer(x).unflatten(2, (self.heads, -1)).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        scores = query @ key.transpose(2, 3) / math.sqrt(query.shape[-1])
        mixed = self.dropout(scores.softmax(-1)) @ value
        result: Tensor = self.output(mixed.transpose(1, 2).flatten(2))
        return result


class FusedAttention(nn.Module):
    """Self-attention by torch's fused kernel, causal or not."""

    def __init__(self, width: int, heads: int, *, causal: bool = False) -> None:
        super().__init__()
        self.heads = heads
        self.causal = causal
        self.project_in = nn.Linear(width, 3 * width)
        self.project_out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (
            part.unflatten(2, (self.heads, -1)).transpose(1, 2) for part in self.project_in(x).chunk(3, 2)
        )
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=self.causal)
        result: Tensor = self.project_out(mixed.transpose(1, 2).flatten(2))
        return result


class PreNormLayer(nn.Module):
    """A transformer layer with the norms inside the residual branches, as in ViT and GPT-2."""

    def __init__(self, width: int, heads: int, *, causal: bool = False) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = FusedAttention(width, heads, causal=causal)
        self.norm2 = nn.LayerNorm(width)
        self.expand = nn.Linear(width, 4 * width)
        self.project = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        result: Tensor = x + self.project(F.gelu(self.expand(self.norm2(x))))
        return result


class BertLayer(nn.Module):
    """A transformer layer with the norms after the residual sums, as in BERT."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.attention = SoftmaxAttention(width, heads, dropout)
        self.norm1 = nn.LayerNorm(width, eps=1e-12)
        self.expand = nn.Linear(width, 4 * width)
        self.project = nn.Linear(4 * width, width)
        self.norm2 = nn.LayerNorm(width, eps=1e-12)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm1(x + self.dropout(self.attention(x)))
        result: Tensor = self.norm2(x + self.dropout(self.project(F.gelu(self.expand(x)))))
        return result


class Bert(nn.Module):
    """Word and position embeddings, encoder layers, a classifier on the first token (Devlin et al. 2019)."""

    def __init__(
        self,
        *,
        layers: int = 12,
        width: int = 768,
        heads: int = 12,
        words: int = 30522,
        length: int = 512,
        classes: int = 2,
        dropout: float = 0.1,
    ) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.positions = nn.Embedding(length, width)
        self.norm = nn.LayerNorm(width, eps=1e-12)
        self.dropout = nn.Dropout(dropout)
        self.layers = nn.ModuleList(BertLayer(width, heads, dropout) for _ in range(layers))
        self.pooler = nn.Linear(width, width)
        self.classifier = nn.Linear(width, classes)

    def forward(self, tokens: Tensor) -> Tensor:
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.dropout(self.norm(self.words(tokens) + self.positions(positions)))
        for layer in self.layers:
            x = layer(x)
        result: Tensor = self.classifier(self.dropout(torch.tanh(self.pooler(x[:, 0]))))
        return result


class ViT(nn.Module):
    """A vision transformer with a class token and learnt positions (Dosovitskiy et al. 2021)."""

    def __init__(
        self,
        *,
        layers: int = 12,
        width: int = 192,
        heads: int = 3,
        image: int = 224,
        patch: int = 16,
        classes: int = 10,
    ) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.class_token = nn.Parameter(torch.zeros(1, 1, width))
        self.positions = nn.Parameter(0.02 * torch.randn(1, 1 + (image // patch) ** 2, width))
        self.layers = nn.ModuleList(PreNormLayer(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)

    def forward(self, images: Tensor) -> Tensor:
        patches = self.patches(images).flatten(2).transpose(1, 2)
        tokens = self.class_token.expand(patches.shape[0], -1, -1)
        x = torch.cat([tokens, patches], 1) + self.positions
        for layer in self.layers:
            x = layer(x)
        result: Tensor = self.head(self.norm(x)[:, 0])
        return result


class GPT(nn.Module):
    """A causal decoder whose head shares the word embedding (Radford et al. 2019).

    Logits come as (batch, words, length), the order in which cross-entropy wants its classes.
    """

    def __init__(
        self, *, layers: int = 12, width: int = 768, heads: int = 12, words: int = 50257, length: int = 1024
    ) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.positions = nn.Embedding(length, width)
        self.layers = nn.ModuleList(PreNormLayer(width, heads, causal=True) for _ in range(layers))
        self.norm = nn.LayerNorm(width)

    def forward(self, tokens: Tensor) -> Tensor:
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.words(tokens) + self.positions(positions)
        for layer in self.layers:
            x = layer(x)
        result: Tensor = F.linear(self.norm(x), self.words.weight).transpose(1, 2)
        return result


class LSTMClassifier(nn.Module):
    """Embedding, LSTM layers, and a classifier on the last step."""

    def __init__(
        self,
        *,
        layers: int = 2,
        width: int = 256,
        words: int = 10000,
        classes: int = 2,
        bidirectional: bool = False,
    ) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.lstm = nn.LSTM(width, width, layers, batch_first=True, bidirectional=bidirectional)
        self.head = nn.Linear(2 * width if bidirectional else width, classes)

    def forward(self, tokens: Tensor) -> Tensor:
        outputs, _ = self.lstm(self.words(tokens))
        result: Tensor = self.head(outputs[:, -1])
        return result
