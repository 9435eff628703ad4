"""Small nets over sequences, one of each usual kind."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Convolutional(nn.Module):
    """A TCN: dilated convolutions with a shortcut, and the mean over time."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv1d(3, 6, 3, padding=2, dilation=2), nn.BatchNorm1d(6)
        self.second, self.out = nn.Conv1d(6, 6, 3, padding=1), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Scores of classes; ``x`` is [N, 3, T]."""
        y = torch.relu(self.norm(self.first(x)))
        y = y + torch.relu(self.second(y))
        scores: Tensor = self.out(y.mean(2))
        return scores


class Recurrent(nn.Module):
    """One recurrent layer, read at its last moment."""

    def __init__(self, kind: Callable[..., nn.Module], **options: bool) -> None:
        super().__init__()
        self.layer = kind(4, 5, batch_first=True, **options)
        self.out = nn.Linear(10 if options.get("bidirectional") else 5, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Scores of classes; ``x`` is [N, T, 4]."""
        scores: Tensor = self.out(self.layer(x)[0][:, -1])
        return scores


class Attending(nn.Module):
    """A layer of a transformer encoder, with layer norm before or after, and attention as torch calls it."""

    def __init__(self, activation: str = "gelu", *, norm_first: bool = False) -> None:
        super().__init__()
        self.into, self.out = nn.Linear(5, 8), nn.Linear(8, 3)
        self.layer = nn.TransformerEncoderLayer(
            8, 2, 12, dropout=0.0, activation=activation, batch_first=True, norm_first=norm_first
        )

    def forward(self, x: Tensor) -> Tensor:
        """Scores of classes; ``x`` is [N, T, 5]."""
        scores: Tensor = self.out(self.layer(self.into(x)).mean(1))
        return scores


class Projected(nn.Module):
    """Attention of one product's parts, with gelu by tanh."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(8), nn.Linear(8, 24, bias=False), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Scores of classes; ``x`` is [N, T, 8]."""
        split = (part.unflatten(-1, (2, 4)).transpose(1, 2) for part in self.qkv(self.norm(x)).chunk(3, -1))
        y = F.scaled_dot_product_attention(*split).transpose(1, 2).flatten(2)
        scores: Tensor = self.out(F.gelu(x + y, approximate="tanh")[:, 1:].mean(1))
        return scores


class Clipped(nn.Module):
    """Layers of mobile nets: ReLU6 and the largest of each window."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.pool, self.out = nn.Conv2d(2, 4, 3), nn.MaxPool2d(3, 2, 1), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Scores of classes; ``x`` is [N, 2, H, W]."""
        scores: Tensor = self.out(self.pool(F.relu6(self.first(x) * 4)).mean((2, 3)))
        return scores


class Sliced(nn.Module):
    """Parts of a layer: one that begins before the first, one that begins inside, one row."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.out = nn.Linear(4, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Scores of classes; ``x`` is [N, 4]."""
        y = torch.tanh(self.first(x))
        scores: Tensor = self.out(y[:, -10:]) + y[:, -2:].sum(1, keepdim=True) + y[:, -6].unsqueeze(1)
        return scores


@dataclass(frozen=True)
class SequenceNet:
    """How to build it, and what it reads."""

    build: Callable[[], nn.Module]
    shape: tuple[int, ...]


def _perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 5), nn.Sigmoid(), nn.Linear(5, 3))


NETS = {
    "mlp": SequenceNet(_perceptron, (3, 4)),
    "tcn": SequenceNet(Convolutional, (2, 3, 11)),
    "rnn": SequenceNet(lambda: Recurrent(nn.RNN), (2, 3, 4)),
    "gru": SequenceNet(lambda: Recurrent(nn.GRU), (2, 3, 4)),
    "gru-both-ways": SequenceNet(lambda: Recurrent(nn.GRU, bidirectional=True), (2, 3, 4)),
    "lstm": SequenceNet(lambda: Recurrent(nn.LSTM), (2, 3, 4)),
    "transformer": SequenceNet(Attending, (2, 7, 5)),
    "transformer-norm-first": SequenceNet(lambda: Attending("relu", norm_first=True), (2, 7, 5)),
    "attention": SequenceNet(Projected, (2, 6, 8)),
    "sliced": SequenceNet(Sliced, (3, 4)),
    "clipped": SequenceNet(Clipped, (2, 2, 9, 9)),
}
