"""Kernels that poet calls otherwise than torch does: memory by content, division of whole numbers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import poet
from poet.errors import ModelError, ReplayError
from poet.runtime import Trainer, kernels, native
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


# --- division of whole numbers -------------------------------------------------------------------


DIVISIONS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "div.Tensor_mode": lambda a, b: torch.div(a, b, rounding_mode="trunc"),
    "floor_divide.default": lambda a, b: a // b,
    "remainder.Tensor": lambda a, b: a % b,
    "fmod.Tensor": torch.fmod,
}


class _Net(nn.Module):
    def __init__(self, name: str) -> None:
        super().__init__()
        self.layer, self.divide = nn.Linear(3, 4), DIVISIONS[name]

    def forward(self, x: Tensor, a: Tensor, b: Tensor) -> Tensor:
        return self.layer(x + self.divide(a, b.expand_as(a)).float().clamp(-9, 9))  # type: ignore[no-any-return]


def _plan(net: nn.Module, path: Path) -> Path:
    batch = (torch.randn(2, 3), torch.ones(2, 3, dtype=torch.int64), torch.ones(2, 1, dtype=torch.int64))
    planned = poet.plan(
        net, batch, device="rpi4b", ram=None, loss="cross-entropy", optimizer="sgd:lr=0.1",
        evaluation=False, time_limit_seconds=1,
    )  # fmt: skip
    planned.save(path)
    return path


@pytest.mark.parametrize("name", list(DIVISIONS))
def test_a_step_that_divides_whole_numbers_is_measured_and_trained(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    net, labels = _Net(name), torch.tensor([0, 1])
    x, a, b = torch.randn(2, 3), torch.tensor([[7, -7, -(2**63)], [5, 0, 9]]), torch.tensor([[-2], [3]])
    path = _plan(net, tmp_path / "p.poet")
    nn.functional.cross_entropy(net(x, a, b), labels).backward()  # type: ignore[no-untyped-call]
    torch.optim.SGD(net.parameters(), lr=0.1, foreach=False).step()
    with Trainer.open(path) as trainer:
        trainer.step((x, a, b), labels)
        assert torch.equal(trainer.state_dict()["layer.weight"], net.layer.weight)
        trainer.step((x, a, -torch.ones_like(b)), labels)  # torch's own kernel may end the process here
        with pytest.raises(ReplayError, match="ZeroDivisionError"):
            trainer.step((x, a, torch.zeros_like(b)), labels)


def test_the_least_whole_number_by_minus_one_is_itself() -> None:
    for kind in (torch.int8, torch.int16, torch.int32, torch.int64):
        least = torch.iinfo(kind).min
        x, y = torch.tensor([least, 7, -7], dtype=kind), torch.tensor([-1, -2, 2], dtype=kind)
        divide = kernels.kernel("aten.div.Tensor_mode")
        assert divide(x, y, rounding_mode="trunc").tolist() == [least, -3, -3]
        by_number = kernels.kernel("aten.div.Scalar_mode")
        assert by_number(x, -1, rounding_mode="trunc").tolist() == [least, -7, 7]
        assert by_number(x, 2, rounding_mode="trunc").dtype == kind
    bytes_ = torch.tensor([4, 255], dtype=torch.uint8)
    assert kernels.kernel("aten.div.Tensor_mode")(bytes_, bytes_, rounding_mode="trunc").tolist() == [1, 1]
    assert kernels.kernel("aten.div.Tensor_mode")(
        torch.ones(2), torch.tensor(2.0), rounding_mode=None
    ).tolist() == [0.5, 0.5]


def test_what_a_kernel_refuses_is_one_line() -> None:
    class ByZero(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 4)

        def forward(self, x: Tensor, a: Tensor) -> Tensor:
            return self.layer(x + (a // 0).float())  # type: ignore[no-any-return]

    batch = (torch.randn(2, 3), torch.ones(2, 3, dtype=torch.int64))
    with pytest.raises(ModelError, match=r"aten\.\w+\.\w+ does not run on this machine: ZeroDivisionError"):
        poet.plan(ByZero(), batch, device="rpi4b", ram=None, loss="cross-entropy", time_limit_seconds=1)
