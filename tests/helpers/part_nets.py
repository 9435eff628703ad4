"""What tests of tables and weights in parts share: parts of tiny ones, and plans of a traced step."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, partial

import pytest
import torch

from helpers import hand_net
from poet.passes import parts
from poet.runtime.trials import trial


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
