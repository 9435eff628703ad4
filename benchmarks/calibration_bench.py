"""Measurements of this machine for `calibration_table.py`.

    python benchmarks/calibration_bench.py THREADS RAW ROUNDS

All nets are traced first; then rounds follow one another, each with a few steps of every net, so that slow
minutes meet all nets alike. An op has the least of its times over the rounds.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from zoo import NETS

from poet.calibration.bench import traced, transfer_seconds
from poet.calibration.nets import JUDGING_NETS, StepNet, fit_nets
from poet.calibration.step_times import op_times
from poet.devices.machine import Machine
from poet.devices.measurements import (
    FIT,
    JUDGE,
    Measurements,
    OpTime,
    StepTime,
    TransferTime,
    write_measurements,
)
from poet.runtime.system.process import torch_threads

FIT_SIZES_BYTES = (4096, 16384, 65536, 262144, 1048576, 4194304)
PLAN_SIZES_BYTES = (8192, 24576, 98304, 393216, 1572864, 3145728)
"""Between those of a calibration: what plans page are tensors of any size."""

_BUFFER_BYTES = 1 << 20


class _Mixer(nn.Module):
    """MLP-Mixer for 32x32 pixels in patches of 4."""

    def __init__(self, width: int = 64, depth: int = 3) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 4, 4)
        self.tokens = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(64), nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 64))
            for _ in range(depth)
        )
        self.channels = nn.ModuleList(
            nn.Sequential(
                nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
            )
            for _ in range(depth)
        )
        self.scores = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2)
        for tokens, channels in zip(self.tokens, self.channels, strict=True):
            x = x + tokens(x)
            x = x + channels(x.transpose(1, 2)).transpose(1, 2)
        made: Tensor = self.scores(x.mean(2))
        return made


class _Squeeze(nn.Module):
    """Fire modules of SqueezeNet."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 32, 3, 2)
        sizes = ((32, 16, 32), (64, 16, 32), (64, 32, 64))
        self.squeezed = nn.ModuleList(nn.Conv2d(n, s, 1) for n, s, _ in sizes)
        self.ones = nn.ModuleList(nn.Conv2d(s, e, 1) for _, s, e in sizes)
        self.threes = nn.ModuleList(nn.Conv2d(s, e, 3, padding=1) for _, s, e in sizes)
        self.scores = nn.Conv2d(128, 10, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.first(x)), 3, 2)
        for squeeze, one, three in zip(self.squeezed, self.ones, self.threes, strict=True):
            s = F.relu(squeeze(x))
            x = torch.cat([F.relu(one(s)), F.relu(three(s))], 1)
        made: Tensor = self.scores(x).mean((2, 3))
        return made


def _keyword_net() -> nn.Module:
    """DS-CNN, as in MLPerf Tiny, with half its blocks."""
    parts: list[nn.Module] = [nn.Conv2d(1, 64, (10, 4), 2, (4, 1), bias=False), nn.BatchNorm2d(64), nn.ReLU()]
    for _ in range(2):
        parts += [
            nn.Conv2d(64, 64, 3, padding=1, groups=64, bias=False), nn.BatchNorm2d(64), nn.ReLU(),
            nn.Conv2d(64, 64, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU(),
        ]  # fmt: skip
    return nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 12))


def _normal(*shape: int) -> Callable[[], Tensor]:
    return lambda: torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def _of_zoo(name: str) -> StepNet:
    small: Any = NETS[name].small
    return StepNet(name, small.build, lambda: small.inputs(4)[0])


OTHER_NETS = (
    StepNet("mixer", _Mixer, _normal(8, 3, 32, 32)),
    StepNet("squeezenet", _Squeeze, _normal(8, 3, 64, 64)),
    StepNet("ds-cnn", _keyword_net, _normal(16, 1, 49, 10)),
    *map(_of_zoo, ("resnet18", "mobilenet_v2", "vit", "convnext")),
)
"""With the four that a calibration judges by, eleven nets that no fit sees."""


def measure(threads: int, rounds: int, folder: Path) -> Measurements:
    """Steps of all nets and transfers of all sizes, each the best of ``rounds``."""
    nets = [(net, FIT) for net in fit_nets()] + [(net, JUDGE) for net in (*JUDGING_NETS, *OTHER_NETS)]
    steps = [(net.name, role, traced(net)) for net, role in nets]
    found: dict[str, tuple[OpTime, ...]] = {}
    busy: dict[str, float] = {}
    taken: dict[int, tuple[list[float], list[float]]] = {}
    counts = dict.fromkeys((*FIT_SIZES_BYTES, *PLAN_SIZES_BYTES), 8)
    for number in range(rounds):
        for name, role, step in steps:
            with torch_threads(threads):
                ops, ratio = op_times(step, whole=role == JUDGE)
            found[name] = _least(found[name], ops) if name in found else ops
            busy[name] = min(ratio, busy.get(name, ratio))
        given, mode = transfer_seconds(folder, buffer_bytes=_BUFFER_BYTES, counts=counts)
        for size, (writes, reads) in given.items():
            both = taken.setdefault(size, ([], []))
            both[0].extend(writes)
            both[1].extend(reads)
        print(f"round {number + 1} of {rounds}", file=sys.stderr, flush=True)
    transfers = tuple(
        TransferTime(direction, size, tuple(taken[size][place]), mode)
        for size in taken
        for place, direction in enumerate(("write", "read"))
    )
    return Measurements(
        Machine().host(torch=torch.__version__, threads=threads),
        time.strftime("%Y-%m-%d", time.gmtime()),
        tuple(StepTime(name, role, threads, found[name], busy[name]) for name, role, _ in steps),
        transfers,
    )


def _least(before: tuple[OpTime, ...], now: tuple[OpTime, ...]) -> tuple[OpTime, ...]:
    return tuple(
        replace(old, seconds=min(old.seconds, new.seconds)) for old, new in zip(before, now, strict=True)
    )


if __name__ == "__main__":
    path = Path(sys.argv[2])
    write_measurements(path, measure(int(sys.argv[1]), int(sys.argv[3]), path.parent))
