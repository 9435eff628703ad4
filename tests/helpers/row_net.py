"""Nets with tables and heads of words, and what stands for a table in storage."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import torch
from torch import Tensor, nn

from poet.frontend.trace import TrainingStep, trace_training_step
from poet.ir.optimizer import OptimizerSpec
from poet.passes.rewrite import Technique

LOSS = "cross-entropy:dim=-1"
RATE = 0.05
SGD = OptimizerSpec("sgd", lr=RATE)


class Words(nn.Module):
    """A table with a padded row, looked up once; ``tied``: the head shares it; ``twice``: looked up again."""

    def __init__(self, words: int = 500, *, tied: bool = False, twice: bool = False) -> None:
        super().__init__()
        self.words = nn.Embedding(words, 64, padding_idx=3)
        self.mix = nn.Linear(64, 64)
        self.head = nn.Linear(64, words if tied else 7)
        self.twice = twice
        if tied:
            self.head.weight = self.words.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x: Tensor = torch.tanh(self.mix(self.words(tokens)))
        if self.twice:
            x = x + self.words(tokens.flip(1))
        result: Tensor = self.head(x)
        return result


class Vocabulary(nn.Module):
    """Words to words; the head may share the table."""

    def __init__(self, *, tied: bool, words: int = 640, width: int = 32) -> None:
        super().__init__()
        self.words, self.mix = nn.Embedding(words, width), nn.Linear(width, width)
        self.head = nn.Linear(width, words, bias=not tied)
        if tied:
            self.head.weight = self.words.weight

    def forward(self, tokens: Tensor) -> Tensor:
        scores: Tensor = self.head(torch.tanh(self.mix(self.words(tokens))))
        return scores


def module_of(words: int = 500, *, tied: bool = False, twice: bool = False) -> Words:
    torch.manual_seed(0)
    return Words(words, tied=tied, twice=twice)


def traced(module: nn.Module, optimizer: OptimizerSpec = SGD) -> TrainingStep:
    tokens = torch.zeros(2, 12, dtype=torch.long)
    return trace_training_step(module, tokens, loss=LOSS, optimizer=optimizer, in_parts=True)


@cache
def by_row(words: int = 500) -> TrainingStep:
    """Of a table in parts; of one of few words, whole."""
    step = traced(module_of(words))
    assert step.forms is not None
    taken = step.forms.of(Technique.STORED_ROWS)
    return replace(step, graph=step.forms.graph(taken), kernels=step.forms.kernels(taken), forms=None)


def batch(seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(90, (2, 12), generator=generator), torch.randint(7, (2, 12), generator=generator)


class InRam:
    """A `StoredTable` of ``rows``; ``asked``: for which."""

    def __init__(self, rows: Tensor) -> None:
        self.rows, self.asked = rows, list[int]()

    def read(self, row: int, memory: memoryview) -> None:
        self.asked.append(row)
        memory[:] = self.rows[row].view(torch.uint8).numpy().data

    def change(self, row: int, change: Callable[[memoryview], None]) -> None:
        self.asked.append(row)
        change(self.rows[row].view(torch.uint8).numpy().data)
