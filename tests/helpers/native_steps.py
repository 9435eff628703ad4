"""Eager training steps for the native allocator, and their placements; Python in fresh processes."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from poet.runtime import native
from poet.runtime.native import NativeAllocator, Placement

Step = Callable[[], object]


class _Residual(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(channels)
        self.second = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(x + self.second(functional.relu(self.norm(self.first(x)))))


def _convolutional() -> tuple[nn.Module, Tensor, Tensor]:
    layers = [nn.Conv2d(3, 16, 3, padding=1), _Residual(16), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3, stride=2)]
    head = [_Residual(32), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10)]
    return nn.Sequential(*layers, *head), torch.randn(4, 3, 32, 32), torch.randint(10, (4,))


class _Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(100, 64)
        layer = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.1, batch_first=True)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(64, 100)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.body(self.embed(x))).flatten(0, 1)
        return logits


def _transformer() -> tuple[nn.Module, Tensor, Tensor]:
    return _Transformer(), torch.randint(100, (4, 32)), torch.randint(100, (128,))


NETS = {"convolutional": _convolutional, "transformer": _transformer}


def training(net: str) -> tuple[nn.Module, Step]:
    """A small net and its eager training step: forward, backward, SGD with momentum."""
    torch.manual_seed(0)
    module, inputs, targets = NETS[net]()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01, momentum=0.9)

    def step() -> float:
        optimizer.zero_grad()
        loss = functional.cross_entropy(module(inputs), targets)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        return loss.item()

    return module, step


def recorded(allocator: NativeAllocator, step: Step) -> Placement:
    """The placement of ``step``, after one that sets everything up."""
    step()
    with allocator.recording() as recording:
        for _ in range(2):
            with recording.step():
                step()
    return native.place(recording.steps, time_limit_seconds=0.2)


def loaded() -> Iterator[NativeAllocator]:
    """The native allocator, of which nothing may stay in use."""
    allocator = native.load()
    if allocator is None:
        pytest.skip(native.why_unavailable())
    yield allocator
    assert not allocator._library.c.poet_attached(), "a scope or a block in an arena was left behind"


def lies_in(address: int, size_bytes: int, tensor: Tensor | None) -> bool:
    return tensor is not None and address <= tensor.data_ptr() < address + size_bytes


def run_python(source: str, *arguments: str) -> str:
    """The output of a fresh interpreter that runs ``source``; it must end well and say nothing else."""
    paths = os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(source), *arguments],
        capture_output=True, text=True, timeout=300, check=False, env={**os.environ, "PYTHONPATH": paths},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout
