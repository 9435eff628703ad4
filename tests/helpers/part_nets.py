"""What tests of tables and weights in parts share: parts of tiny ones, and plans of a traced step."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, partial

import pytest
import torch
from torch import Tensor, nn

from helpers import hand_net
from poet.passes import block_choice, parts, strips
from poet.runtime.trials import blocks, trial


class Products(nn.Module):
    """A weight that lies the other way round, and one that is used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.there = nn.Parameter(torch.randn(40, 20) / 6)
        self.twice, self.last = nn.Linear(20, 20, bias=False), nn.Linear(20, 44)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.last(self.twice(torch.relu(self.twice(x @ self.there))))
        return scores


def layers() -> nn.Module:
    first = nn.Linear(12, 44), nn.ReLU(), nn.Dropout(0.3)
    return nn.Sequential(*first, nn.Linear(44, 40), nn.Tanh(), nn.Linear(40, 20))


@contextmanager
def tiny_parts(
    monkeypatch: pytest.MonkeyPatch, *, least_bytes: int = 24 * 1024, steps: tuple[int, int] = (96, 192)
) -> Iterator[None]:
    """Matrices from ``least_bytes`` are in parts that end at multiples of ``steps``; one thread."""
    monkeypatch.setattr(parts, "LEAST_BYTES", least_bytes)
    monkeypatch.setattr(parts, "LEAST_SHARE", 0.0)
    monkeypatch.setattr(parts, "_LEAST_PART_BYTES", 1024)
    monkeypatch.setattr(parts, "_STEPS", steps)
    monkeypatch.setattr(trial, "_exact", {})
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@contextmanager
def tiny_strips(**least: float) -> Iterator[None]:
    """Strips and slices of tiny ones too, by ``least`` of `strips`, however long they take; one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in least.items():
            patch.setattr(strips, name, value)
        patch.setattr(block_choice, "ALLOWANCE", math.inf)
        patch.setattr(block_choice, "TRIED_SHARE", math.inf)
        patch.setattr(blocks, "LEAST_BLOCK_BYTES", 0)
        patch.setattr(blocks, "_TIMING_SECONDS", 0.0)
        patch.setattr(blocks, "_offers", {})
        patch.setattr(trial, "_exact", {})
        yield
    torch.set_num_threads(threads)


@cache
def sums_alike() -> bool:
    """Whether torch's product has the same bits where its sum is taken part by part, at these tests' sizes.

    By torch alone. Some builds sum 40 numbers in one stretch: then the trial refuses such parts, as it must.
    """
    for batch, inner, outer, steps in ((3, 40, 44, (8, 16)), (3, 20, 40, (8, 16)), (24, 500, 64, (96, 192))):
        left, right = torch.randn(batch, inner), torch.randn(inner, outer)
        for step in steps:
            cuts = [(start, min(start + step, inner)) for start in range(0, inner, step)]
            total = left[:, : cuts[0][1]] @ right[: cuts[0][1]]
            for start, stop in cuts[1:]:
                total = torch.addmm(total, left[:, start:stop], right[start:stop])
            if not torch.equal(total, left @ right):
                return False
    return True


needs_equal_sums = pytest.mark.skipif(
    not sums_alike(), reason="torch's sums have other bits here than those of their parts"
)
"""Of tests in which parameters are in parts whose results are summed."""


write = partial(hand_net.write_step, in_storage=True)
"""See there; parameters are in storage."""
