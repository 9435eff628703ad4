"""Nets whose steps are exported as C, from the smallest to the benchmark's."""

from __future__ import annotations

from functools import cache

import torch
from mlperf_tiny import NETS, BenchmarkNet
from torch import Tensor, nn

from helpers.c_plans import CNet, traced
from poet.ir.optimizer import OptimizerSpec


def _micro() -> nn.Module:
    """Nets of a few ops with every kind of layer of the four: planned and compiled in tenths of a second."""
    first = (nn.Conv2d(2, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4), nn.ReLU())
    second = (nn.Conv2d(4, 4, 3, stride=2, groups=4), nn.ReLU(), nn.AvgPool2d(2))
    return nn.Sequential(*first, *second, nn.Flatten(), nn.Linear(4, 4))


EVERY = {"micro": BenchmarkNet(_micro, (4, 2, 6, 6), _micro, (4, 2, 6, 6)), **NETS}
"""The smallest net for the fast tests; the four of the benchmark, made smaller, for the slow ones."""


class Text(nn.Module):
    """The mean of the words' and the places' rows, in classes."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(11, 6, padding_idx=0), nn.Embedding(4, 6)
        self.out = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Scores of classes; ``x`` is [N, 4], of whole numbers."""
        y = torch.tanh(self.words(x) + self.places(torch.arange(x.shape[1])))
        scores: Tensor = self.out(y.mean(1))
        return scores


@cache
def net_of(name: str, optimizer: str) -> CNet:
    """One of `EVERY`, smaller, traced once."""
    torch.manual_seed(0)
    net = EVERY[name]
    spec = OptimizerSpec(optimizer, lr=0.02, weight_decay=0.01)
    inputs = torch.randn(net.smaller_shape)
    return traced(net.smaller(), inputs, loss=net.loss, optimizer=spec)
