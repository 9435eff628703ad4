"""`poet.torch_solver`: saved sets for torch.compile by bytes, and never more for a smaller budget."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import poet
from poet.errors import InputError
from poet.runtime.system.memory import PeakMeter, return_freed_memory

if TYPE_CHECKING:  # it imports torch's compiler, which takes a second
    from poet.integrations.partitioner import PartitionChoice


@pytest.fixture(autouse=True)
def _alone() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    return_freed_memory()
    yield
    torch.set_num_threads(before)
    torch._dynamo.reset()


def _net(blocks: int) -> nn.Module:
    torch.manual_seed(0)
    parts = [
        part
        for _ in range(blocks)
        for part in (nn.Conv2d(16, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU())
    ]
    return nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 5)).train()


def _compiled(blocks: int, ram: int) -> tuple[PartitionChoice, int | None, list[Tensor]]:
    """What was chosen, the measured peak, and the loss and gradients."""
    torch._dynamo.reset()
    net, x, y = _net(blocks), torch.randn(2, 16, 64, 64), torch.arange(2)
    solver = poet.torch_solver(ram)
    compiled = torch.compile(net, backend="aot_eager")
    losses = []

    def step() -> None:
        net.zero_grad()
        loss = F.cross_entropy(compiled(x), y)
        losses.append(loss.detach())
        torch.autograd.backward(loss)

    with solver.used():
        step()
        step()
    held_bytes = x.nbytes + sum(item.nbytes for item in net.parameters())
    with PeakMeter(held_bytes) as meter:
        step()
    (choice,) = solver.choices
    return (
        choice,
        meter.peak.bytes,
        [losses[0], *(item.grad for item in net.parameters() if item.grad is not None)],
    )


def _falls(blocks: int, budgets: int) -> None:
    most, _, plain = _compiled(blocks, 1 << 60)
    with pytest.warns(UserWarning, match="no saved set that was tried fits"):
        least, _, _ = _compiled(blocks, 1)
    assert most.fits
    assert not least.fits
    assert least.peak_bytes < 0.95 * most.peak_bytes
    before = most.peak_bytes
    span = most.peak_bytes - least.peak_bytes
    for number in range(1, budgets):
        ram_bytes = most.peak_bytes - span * number // (budgets - 1)
        choice, measured_bytes, found = _compiled(blocks, ram_bytes)
        assert choice.fits
        assert choice.peak_bytes <= min(ram_bytes, before)
        before = choice.peak_bytes
        assert len(found) == len(plain)
        if measured_bytes is not None:
            assert measured_bytes < 1.03 * choice.peak_bytes + 100_000


@pytest.mark.slow
def test_a_smaller_budget_gives_a_smaller_measured_peak() -> None:
    _falls(4, 2)


@pytest.mark.slow
def test_no_peak_rises_as_the_budget_falls() -> None:
    _falls(8, 6)


class _Encoder(nn.Module):
    """A small encoder over token numbers, as BERT has it."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(16, 2, 32, dropout, activation="gelu", batch_first=True)
        self.embed, self.places = nn.Embedding(50, 16), nn.Parameter(torch.randn(32, 16))
        self.layers = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.head = nn.Linear(16, 50)

    def forward(self, tokens: Tensor) -> Tensor:
        """Scores [N,L,50] of tokens [N,L]."""
        scores: Tensor = self.head(self.layers(self.embed(tokens) + self.places[: tokens.shape[1]]))
        return scores


@pytest.mark.slow
@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_an_encoder_of_token_numbers_has_the_bits_of_the_plain_net(dropout: float) -> None:
    """Nothing runs while sets are priced, as numbers of rows are not known there; no mask is drawn twice."""
    tokens, targets = torch.randint(50, (4, 24)), torch.randint(50, (4 * 24,))

    def found(net: nn.Module, called: Callable[[Tensor], Tensor]) -> list[Tensor]:
        torch.manual_seed(1)
        loss = F.cross_entropy(called(tokens).flatten(0, 1), targets)
        torch.autograd.backward(loss)
        return [loss.detach(), *(item.grad for item in net.parameters() if item.grad is not None)]

    plain = _Encoder(dropout).train()
    wanted, peaks = found(plain, plain), []
    first = poet.torch_solver(1 << 60)
    for solver in (first, first.within(1)):
        torch._dynamo.reset()
        net = _Encoder(dropout).train()
        with solver.used(), warnings.catch_warnings():
            warnings.filterwarnings("ignore", "poet.torch_solver: no saved set")
            given = found(net, torch.compile(net, backend="aot_eager"))
        assert all(torch.equal(one, other) for one, other in zip(given, wanted, strict=True))
        (choice,) = solver.choices
        peaks.append(choice.peak_bytes)
        assert choice.tried > 10
    assert peaks[1] < peaks[0]
    assert len(first._judged) == 1  # the pool of the second was judged already


def test_a_budget_is_a_size() -> None:
    assert poet.torch_solver("2MiB").ram_bytes == 2 << 20
    assert poet.torch_solver("2MiB").uuid() != poet.torch_solver("3MiB").uuid()
    with pytest.raises(InputError):
        poet.torch_solver("plenty")
    with (
        pytest.warns(UserWarning, match="torch never asked how to stay within 1 GiB: no graph"),
        poet.torch_solver("1GiB").used(),
    ):
        assert torch._functorch.config.activation_memory_budget > 0
