"""Batches padded to the next larger shape that has a step: the bits of plain PyTorch on the padded batch."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from helpers.pace import with_slow
from torch import Tensor, nn
from torch.nn import functional

from poet.api import Planned
from poet.api import plan as plan_module
from poet.errors import InputError
from poet.frontend.plain import PlainTrainer
from poet.ir.optimizer import OptimizerSpec
from poet.planning.shape_planner import ShapePlanner
from poet.runtime import Buckets, Trainer, native
from poet.runtime.data.given import next_larger, types_of
from poet.runtime.system.process import torch_threads
from poet.runtime.training.training_state import within

WORDS, CLASSES, SAMPLES, LENGTHS = 11, 5, 4, (32, 24, 16)
ADAMW = OptimizerSpec("adamw", lr=0.01)


class Tagger(nn.Module):
    """A class for each token, by attention to all that the mask leaves, with dropout."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.mix, self.head = nn.Embedding(WORDS, 8), nn.Linear(8, 24), nn.Linear(8, CLASSES)
        self.drop = nn.Dropout(0.2)

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        """Scores [N,C,L] of tokens [N,L] and a mask [N,L], 1 where there is a token."""
        query, key, value = self.mix(self.embed(tokens)).chunk(3, dim=-1)
        weights = torch.softmax(query @ key.transpose(1, 2) + (mask[:, None] - 1) * 1e9, dim=-1)
        scores: Tensor = self.head(self.drop(weights @ value))
        return scores.transpose(1, 2)


VALUES = {"tokens": 0, "mask": 0.0, "targets": -100}


def batch(length: int, number: int = 0, samples: int = SAMPLES) -> tuple[tuple[Tensor, Tensor], Tensor]:
    generator = torch.Generator().manual_seed(number)
    tokens = torch.randint(WORDS, (samples, length), generator=generator)
    return (tokens, torch.ones(samples, length)), torch.randint(
        CLASSES, (samples, length), generator=generator
    )


def padded(given: Tensor, length: int, value: float) -> Tensor:
    missing = SAMPLES - len(given)
    return functional.pad(given, (0, length - given.shape[1], 0, missing), value=value)


@cache
def planned(share: float | None = None) -> Planned:
    if share == 1.0:
        whole = within(planned().plan, planned().plan.held_bytes)
        assert whole is not None
        return replace(planned(), plan=whole)
    ram = None if share is None else round(share * planned().plan.held_bytes)
    longest, *others = (batch(length)[0] for length in LENGTHS)
    with torch_threads(1):
        return plan_module(
            Tagger().train(), longest, device="x86-host", ram=ram, optimizer=ADAMW, shapes=others,
            evaluation=False, time_limit_seconds=0.2,
        )  # fmt: skip


@pytest.mark.parametrize(
    ("share", "threads"), with_slow([(1.0, 1), (0.85, 1), (0.85, 2)], {(0.85, 1), (0.85, 2)})
)
def test_padded_steps_have_the_bits_of_plain_torch_on_the_padded_batch(
    share: float, threads: int, tmp_path: Path
) -> None:
    made = planned(share)
    assert share == 1.0 or made.plan.trace.recomputed_runs or made.plan.trace.written_bytes
    made.save(tmp_path / "p")
    net = Tagger().train()
    plain = PlainTrainer(
        net, loss="cross-entropy", optimizer=ADAMW, trained=[name for name, _ in net.named_parameters()]
    )
    with torch_threads(threads), Trainer.open(tmp_path / "p", seed=3) as trainer:
        trainer.buckets = Buckets(VALUES)
        torch.manual_seed(3)
        for number, (length, bucket) in enumerate(
            [(32, 32), (20, 24), (24, 24), (25, 32), (9, 16), (16, 16), (31, 32), (1, 16)]
        ):
            (tokens, mask), targets = batch(length, number, samples=3 if number == 3 else SAMPLES)
            result = trainer.step((tokens, mask), targets)
            full = [padded(item, bucket, VALUES[name]) for name, item in (("tokens", tokens), ("mask", mask))]
            loss, outputs = plain.step(full, padded(targets, bucket, -100))
            assert result.loss == float(loss)
            assert torch.equal(result.predictions[0], outputs[0])
        state = net.state_dict()
        assert all(torch.equal(item, state[name]) for name, item in trainer.state_dict().items())
        assert len(trainer.plan.shapes) == len(LENGTHS) - 1  # nothing was planned


@pytest.mark.skipif(not native.available(), reason="needs a C++ compiler")
def test_padding_takes_no_byte_beside_a_full_arena(tmp_path: Path) -> None:
    made = planned(1.0)
    assert made.plan.has_fitting_arena
    made.save(tmp_path / "p")
    allocator = native.load()
    assert allocator is not None
    given = batch(20)
    with allocator.tracking() as tracked:
        before_bytes = tracked.usage().footprint_bytes
        with Trainer.open(tmp_path / "p", seed=3) as trainer:
            trainer.buckets = Buckets(VALUES)
            with allocator.tracking() as step:
                trainer.step(*given)
                peak_bytes = step.usage().footprint_peak_bytes - before_bytes
    assert peak_bytes <= (made.plan.request.limits.ram_budget_bytes or 0)


def test_what_cannot_be_padded_is_refused_before_the_step(tmp_path: Path) -> None:
    planned(1.0).save(tmp_path / "p")
    with Trainer.open(tmp_path / "p", seed=3) as trainer:
        for values, message in (
            ({"words": 0}, "there is no words to pad; the plan takes tokens, mask, targets"),
            ({"tokens": WORDS}, f"tokens cannot be padded with {WORDS}; the rows of its table are 0 to 10"),
            ({"tokens": 0.5}, "tokens cannot be padded with 0.5; it is int64"),
            ({"mask": float("nan")}, "mask cannot be padded with nan; it is float32"),
            ({"mask": -1e39}, "mask cannot be padded with -1e[+]39; it is float32"),
            ({"tokens": 10**400}, r"tokens cannot be padded with 10+\.\.\.; it is int64"),
            ({"tokens": Fraction(1)}, r"tokens cannot be padded with Fraction\(1, 1\); it is int64"),
            (None, "Buckets takes what each tensor is padded with"),
            ({"targets": 0}, "the loss counts what is padded with 0; .* and -100, which the loss leaves"),
        ):
            with pytest.raises(InputError, match=message):
                trainer.buckets = Buckets(cast(Any, values))
        with pytest.raises(InputError, match="buckets is set to poet"):
            trainer.buckets = cast(Any, VALUES)
        assert trainer.buckets is None
        with pytest.raises(InputError, match=r"the plan takes int64\[4,32\] or int64\[4,24\]"):
            trainer.step(*batch(20))
        trainer.buckets = Buckets({"tokens": 0, "targets": -100})
        with pytest.raises(InputError, match=r"mask\[4,20\] would have to be padded to .* no value for mask"):
            trainer.step(*batch(20))
        trainer.buckets = Buckets(VALUES)
        with pytest.raises(InputError, match=r"is int64\[4,33\], the plan takes"):
            trainer.step(*batch(33))
        (tokens, mask), targets = batch(20)
        with pytest.raises(InputError, match=r"tokens is int32, the plan takes int64"):
            trainer.step((tokens.int(), mask), targets)
        with pytest.raises(InputError, match="targets: sample 0 holds 7"):
            trainer.step((tokens, mask), torch.full_like(targets, 7))
        with pytest.raises(
            InputError, match="tokens has 3 in dim 0, and targets 4; every step of the plan has"
        ):
            trainer.step((tokens[:3], mask[:3]), targets)
        with pytest.raises(InputError, match="tokens has 20 in dim 1, and targets 19"):
            trainer.step((tokens, mask), targets[:, :19])
        assert trainer.steps == 0
        trainer.step((tokens, mask), targets)


@pytest.mark.parametrize("loss", ["mse", "own"])
def test_targets_that_a_loss_counts_are_not_padded(loss: str, tmp_path: Path) -> None:
    """Save by a loss of one's own, which may leave out what it wants to."""

    def own(outputs: Tensor, targets: Tensor) -> Tensor:
        return (functional.mse_loss(outputs, targets, reduction="none") * (targets != 7.0)).sum()

    torch.manual_seed(0)
    net, inputs = nn.Linear(3, 2), torch.randn(4, 3)
    plan_module(
        net, inputs, device="x86-host", ram=None, loss="mse" if loss == "mse" else own,
        targets=torch.zeros(4, 2), evaluation=False,
    ).save(tmp_path / "p")  # fmt: skip
    with Trainer.open(tmp_path / "p") as trainer:
        values = dict.fromkeys(trainer.plan.graph.inputs, 7.0)
        if loss == "mse":
            with pytest.raises(InputError, match="mse counts every target, so that what is padded would be"):
                trainer.buckets = Buckets(values)
            return
        trainer.buckets = Buckets(values)
        found = trainer.step(inputs[:3], torch.zeros(3, 2)).loss
    whole, wanted = torch.full((4, 3), 7.0), torch.full((4, 2), 7.0)
    whole[:3], wanted[:3] = inputs[:3], 0.0
    assert found == float(own(net(whole), wanted).detach())


@pytest.mark.parametrize(
    ("loss", "output", "targets", "message"),
    [
        ("focal", (8, 5), torch.zeros(8, dtype=torch.int64), "focal divides by all targets, those that are"),
        ("focal:reduction=sum", (8, 5), torch.zeros(8, dtype=torch.int64), None),
        ("ctc", (4, 20, 5), torch.ones(4, 5, dtype=torch.int64), "ctc learns blanks from what is padded"),
    ],
)
def test_losses_that_would_count_padding_are_refused(
    loss: str, output: tuple[int, ...], targets: Tensor, message: str | None
) -> None:
    planned = plan_module(
        nn.Linear(6, 5), torch.randn(*output[:-1], 6), device="x86-host", ram=None, loss=loss,
        targets=targets, evaluation=False,
    )  # fmt: skip
    buckets = Buckets({planned.plan.graph.inputs[-1]: -100})
    with contextlib.nullcontext() if message is None else pytest.raises(InputError, match=message):
        buckets.check(planned.plan)


def test_a_planner_is_not_asked_where_a_bucket_holds_the_batch(tmp_path: Path) -> None:
    planned(1.0).save(tmp_path / "p")
    planner = ShapePlanner()
    with Trainer.open(tmp_path / "p", seed=3) as trainer:
        trainer.buckets, trainer.shape_planner = Buckets(VALUES), planner
        trainer.step(*batch(20))
        assert not planner.timed
        trainer.buckets = None
        trainer.step(*batch(20))
        assert len(planner.timed) == 1


def test_the_smallest_shape_that_holds_a_batch_is_taken() -> None:
    shapes = [types_of([torch.zeros(size)]) for size in ((8, 8), (4, 8), (8, 4))]
    found = [next_larger([torch.zeros(size)], shapes) for size in ((8, 7), (3, 8), (5, 4), (4, 4), (9, 1))]
    assert found == [0, 1, 2, 1, None]
    assert next_larger([torch.zeros(4)], shapes) is None
    assert next_larger([torch.zeros(0, 4)], shapes) is None
