"""Kernels that torch gives memory by what is in their tensors: here they take the same whatever is there."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from poet.runtime import kernels, native
from poet.runtime.trials.measure import recorded

BAG, BAG_BACKWARD = "aten._embedding_bag.default", "aten._embedding_bag_backward.default"
PUT = "aten.index_put.default"


def alike(run: Callable[[], Tensor]) -> tuple[Any, ...]:
    """What a run asks for, when it has run before."""
    allocator = native.load()
    assert allocator is not None
    run()
    return recorded(allocator, lambda: (run(),))


def bits(tensor: Tensor) -> Tensor:
    return tensor.view(torch.int32)


def bags(mode: int, offsets: list[int], padding: int) -> tuple[Callable[[], Tensor], Tensor]:
    """The backward pass of bags that begin at ``offsets`` in twelve words, and its result in torch."""
    generator = torch.Generator().manual_seed(len(offsets) + sum(offsets))
    weight, words = torch.randn(7, 5, generator=generator), torch.randint(7, (12,), generator=generator)
    begins = torch.tensor(offsets)
    found = kernels.kernel(BAG)(weight, words, begins, False, mode, False, None, False, padding)
    gradient = torch.randn(len(offsets), 5, generator=generator)
    gradient[0] *= -0.0
    given = gradient, words, begins, *found[1:], 7, False, mode, False, None, padding
    return partial(kernels.kernel(BAG_BACKWARD), *given), torch.ops.aten._embedding_bag_backward.default(
        *given
    )


@pytest.mark.skipif(not native.available(), reason="needs the native allocator")
@pytest.mark.parametrize("padding", [-1, 3])
@pytest.mark.parametrize("mode", [0, 1, 2])
def test_bags_of_any_size(mode: int, padding: int) -> None:
    asked = set()
    for offsets in ([0, 3, 6, 9], [0, 0, 0, 0], [0, 12, 12, 12], [0, 1, 1, 11]):
        run, wanted = bags(mode, offsets, padding)
        assert torch.equal(bits(run()), bits(wanted))
        asked.add(alike(run))
    assert len(asked) == 1


@pytest.mark.skipif(not native.available(), reason="needs the native allocator")
@pytest.mark.parametrize("values", [(4,), (1,), (5, 4)])
def test_a_mask_that_chooses_any_rows(values: tuple[int, ...]) -> None:
    generator = torch.Generator().manual_seed(0)
    source, new = torch.randn(6, 5, 4, generator=generator), torch.randn(values, generator=generator)
    source = source.transpose(0, 1).contiguous().transpose(0, 1)
    asked = set()
    for share in (0.0, 0.3, 1.0):
        mask = torch.rand(6, generator=generator) < share
        run = partial(kernels.kernel(PUT), source, [mask], new)
        wanted = torch.ops.aten.index_put.default(source, [mask], new)
        assert torch.equal(run(), wanted)
        assert run().stride() == wanted.stride()
        asked.add(alike(run))
    assert len(asked) == 1


@pytest.mark.parametrize(
    ("indices", "values", "accumulate"),
    [
        ([torch.tensor([True, False, True])], torch.ones(2, 4), False),
        ([torch.tensor([True, False, True])], torch.ones(4), True),
        ([torch.tensor([2, 0])], torch.ones(4), False),
        ([None, torch.tensor([1, 1])], torch.ones(2), True),
        ([torch.eye(3, 4) > 0], torch.tensor(2.0), False),
    ],
)
def test_other_puts_are_torchs(indices: list[Any], values: Tensor, accumulate: bool) -> None:
    source = torch.arange(12.0).view(3, 4)
    wanted = torch.ops.aten.index_put.default(source, indices, values, accumulate)
    assert torch.equal(kernels.kernel(PUT)(source, indices, values, accumulate), wanted)
