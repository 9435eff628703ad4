"""Connectionist temporal classification: bit for bit that of torch, whatever lengths the targets have."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from helpers import hand_net
from torch import Tensor, nn

from poet.errors import InputError, ModelError
from poet.frontend.trace import trace_training_step
from poet.ir.loss import LossSpec
from poet.runtime import Trainer, native
from poet.runtime.data.random_batches import Batch
from poet.runtime.kernels import ctc
from poet.runtime.trials.measure import recorded
from poet.verification import verify

SAMPLES, MOMENTS, CLASSES = 3, 12, 5
TARGETS = torch.tensor([[1, 2, 2, 4], [3, 1, -1, -1], [0, 0, 0, 0]])
COUNTS = torch.tensor([4, 2, 0])


def reader(*, time_first: bool = False) -> nn.Module:
    torch.manual_seed(0)

    class Reader(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.hidden, self.scores = nn.Linear(6, 8), nn.Linear(8, CLASSES)

        def forward(self, x: Tensor) -> Tensor:
            found: Tensor = self.scores(torch.tanh(self.hidden(x)))
            return found.transpose(0, 1) if time_first else found

    return Reader()


def write(path: Path, module: nn.Module, loss: Any, targets: Any = None) -> None:
    """A plan that recomputes and pages."""
    step = trace_training_step(module, torch.zeros(SAMPLES, MOMENTS, 6), loss=loss, targets=targets)
    hand_net.write_step(path, step, slack=1.0)


def by_tensors(output: Tensor, targets: tuple[Tensor, Tensor]) -> Tensor:
    every = torch.full((SAMPLES,), MOMENTS)
    return F.ctc_loss(output.log_softmax(-1).transpose(0, 1), targets[0], every, targets[1])


def by_numbers(output: Tensor, targets: tuple[Tensor, Tensor]) -> Tensor:
    moments = [MOMENTS, MOMENTS - 3, MOMENTS]
    scores = output.log_softmax(-1).transpose(0, 1)
    listed: Any = F.ctc_loss  # takes numbers too
    found: Tensor = listed(scores, targets[0].relu(), input_lengths=moments, target_lengths=(4, 2, 1))
    return found


def by_module(output: Tensor, targets: tuple[Tensor, Tensor]) -> Tensor:
    loss = nn.CTCLoss(blank=4, reduction="sum", zero_infinity=True)
    scores = output.log_softmax(-1).transpose(0, 1)
    found: Tensor = loss(scores, targets[0].relu(), torch.full((SAMPLES,), MOMENTS), targets[1])
    return found


@pytest.mark.parametrize("loss", [by_tensors, by_numbers, by_module])
def test_ctc_in_a_function_is_torchs_bit_for_bit(
    loss: Callable[[Tensor, tuple[Tensor, Tensor]], Tensor], tmp_path: Path
) -> None:
    write(tmp_path / "p", reader(), loss, targets=(TARGETS, COUNTS))
    generator = torch.Generator().manual_seed(0)
    batches: list[Batch] = [
        ((torch.randn(SAMPLES, MOMENTS, 6, generator=generator),), (TARGETS, counts))
        for counts in (COUNTS, torch.tensor([1, 0, 4]))
    ]
    verify(tmp_path / "p", module=reader(), loss=loss, batches=batches, steps=2).require()


def test_classes_that_there_are_not_are_refused_before_the_step(tmp_path: Path) -> None:
    write(tmp_path / "p", reader(), "ctc:length=4")
    inputs = torch.zeros(SAMPLES, MOMENTS, 6)
    with Trainer.open(tmp_path / "p") as trainer:
        trainer.step(inputs, TARGETS)
        with pytest.raises(InputError, match=r"sample 1 holds 5; the classes are 0 to 4, and numbers below"):
            trainer.step(inputs, torch.where(TARGETS == 3, 5, TARGETS))


@pytest.mark.parametrize(
    ("loss", "output", "match"),
    [
        ("ctc", (8, 4), r"needs scores \[N,T,C\]"),
        ("ctc:blank=4", (8, 12, 4), "has 4 classes, and no 4"),
        ("ctc:length=0", (8, 12, 4), "at least 1 class"),
    ],
)
def test_what_cannot_be_a_sequence_is_refused(loss: str, output: tuple[int, ...], match: str) -> None:
    with pytest.raises(ModelError, match=match):
        LossSpec.parse(loss).reads(output, "float32")


def test_what_the_loss_reads_is_said() -> None:
    said = LossSpec.parse("ctc:length=6,blank=3").reads(("N", 12, 5), "float32")
    assert said == "ctc over 12 moments, 5 classes, targets int64[N,6], length 6, blank 3"


@pytest.mark.parametrize(
    ("targets", "moments", "counts", "match"),
    [
        ([[5, 0]], [4], [1], "a class that is not one of 0 to 4"),
        ([[-1, 0]], [4], [2], "a class that is not one of 0 to 4"),
        ([[1, 0]], [5], [2], "5 moments of 4"),
        ([[1, 0]], [4], [3], "3 classes in a target of 2"),
        ([[1, 0]], [4], [-1], "-1 classes in a target of 2"),
        ([1, 0], [4], [3], "3 classes in a target of 2"),
        ([[1, 0]], [4, 4], [2], "1 samples, 2 lengths of inputs and 1 of targets"),
    ],
)
def test_the_kernel_reads_nothing_beyond_its_tensors(
    targets: list[Any], moments: list[int], counts: list[int], match: str
) -> None:
    scores = torch.zeros(4, 1, 5).log_softmax(-1)
    given = torch.tensor(targets), torch.tensor(moments), torch.tensor(counts)
    with pytest.raises(IndexError, match=match):
        ctc.forward(scores, *given)
    zeros = torch.zeros(1), torch.zeros(1, 4, 2 * given[0].shape[-1] + 1)
    with pytest.raises(IndexError, match=match):
        ctc.backward(torch.ones(1), scores, *given, *zeros, 0)


@pytest.mark.parametrize("blank", [-1, 5, 10**8])
def test_a_blank_that_there_is_not_is_refused(blank: int) -> None:
    scores, given = torch.zeros(4, 1, 5), (torch.tensor([[1, 0]]), torch.tensor([4]), torch.tensor([2]))
    with pytest.raises(IndexError, match="the blank is"):
        ctc.forward(scores, *given, blank)
    with pytest.raises(IndexError, match="the blank is"):
        ctc.backward(torch.ones(1), scores, *given, torch.zeros(1), torch.zeros(1, 4, 5), blank)


@pytest.mark.parametrize("sizes", [((3,), (3,), (1, 6, 5)), ((1,), (3,), (3, 6, 5)), ((3,), (1,), (3, 6, 5))])
def test_tensors_of_another_forward_run_are_refused(sizes: tuple[tuple[int, ...], ...]) -> None:
    """Torch sizes what it works with by them, and writes beyond its end."""
    given = torch.ones(3, 2, dtype=torch.int64), torch.tensor([6] * 3), torch.tensor([2] * 3)
    gradient, loss, log_alpha = (torch.zeros(size) for size in sizes)
    with pytest.raises(IndexError, match="another forward run"):
        ctc.backward(gradient, torch.zeros(6, 3, 5), *given, loss, log_alpha, 0)


def test_targets_may_follow_each_other() -> None:
    """As torch takes them: all classes in one dim."""
    torch.manual_seed(0)
    scores = torch.randn(9, 3, 5).log_softmax(-1)
    counts, every = torch.tensor([2, 0, 3]), torch.tensor([9, 8, 9])
    targets = torch.tensor([1, 2, 3, 3, 4])
    rows = torch.tensor([[1, 2, -1], [-1, -1, -1], [3, 3, 4]])
    listed, padded = ctc.forward(scores, targets, every, counts), ctc.forward(scores, rows, every, counts)
    assert torch.equal(listed[0], padded[0])
    assert listed[1].shape == (3, 9, 11)
    gradients = [
        ctc.backward(torch.ones(3), scores, given, every, counts, *found, 0)
        for given, found in ((targets, listed), (rows, padded))
    ]
    assert torch.equal(*gradients)


@pytest.mark.skipif(not native.available(), reason="needs the native allocator")
def test_no_temporary_depends_on_what_the_targets_are() -> None:
    """The longest, none, ragged ones, repeats: what is measured on one batch holds for every other."""
    torch.manual_seed(0)
    scores = torch.randn(12, 3, 5).log_softmax(-1)
    full, none = torch.full((3,), 6), torch.zeros(3, dtype=torch.int64)
    lengths = [(full * 2, full), (full * 2, none), (none, none), (none, full)]
    lengths += [(torch.tensor([12, 3, 0]), torch.tensor([1, 6, 0])), (none + 1, torch.tensor([0, 6, 1]))]
    allocator = native.load()
    assert allocator is not None
    asked = set()
    for targets in (
        torch.zeros(3, 6, dtype=torch.int64),
        torch.randint(1, 5, (3, 6)),
        full.expand(6, 3).t() % 5,
    ):
        for moments, counts in lengths:
            given = scores, targets, moments, counts
            made = ctc.forward(*given)
            back = partial(ctc.backward, torch.ones(3), *given, *made)
            runs = partial(ctc.forward, *given), lambda back=back: (back(),)
            asked.add(tuple(recorded(allocator, run) for run in runs))
    assert len(asked) == 1


def test_ragged_losses_are_torchs_bit_for_bit() -> None:
    """Also where the longest target of the batch, whose loss is made apart, ends early or not at all."""
    generator = torch.Generator().manual_seed(0)

    def below(most: int, count: int) -> Tensor:
        return torch.randint(most + 1, (count,), generator=generator)

    for trial in range(200):
        scores = (torch.randn(7, 3, 4, generator=generator) * (1, 10, 100)[trial % 3]).log_softmax(-1)
        targets = torch.randint(4, (3, 5), generator=generator)
        lengths = below(7, 3), below(5, 3)
        blank, zeroes = trial % 4, bool(trial % 2)
        call: Any = torch.ops.aten._ctc_loss.default
        numbers = [item.tolist() for item in lengths]
        loss, alpha = call(scores, targets, *numbers, blank, zeroes)
        found, log_alpha = ctc.forward(scores, targets, *lengths, blank, zeroes)
        assert torch.equal(found, loss)
        gradient = torch.randn(3, generator=generator)
        backward: Any = torch.ops.aten._ctc_loss_backward.default
        wanted = backward(gradient, scores, targets, *numbers, loss, alpha, blank, zeroes)
        ours = ctc.backward(gradient, scores, targets, *lengths, found, log_alpha, blank, zeroes)
        assert torch.equal(ours.view(torch.int32), wanted.view(torch.int32))
