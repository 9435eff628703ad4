"""A last layer with its loss in strips: the bits of plain PyTorch, and no logits."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import torch
from helpers import part_nets
from helpers.row_net import Vocabulary
from torch import nn

from poet.errors import ModelError, ReplayError
from poet.frontend.trace import TrainingStep, trace_training_step
from poet.ir.micro import MicroBatches
from poet.ir.optimizer import OptimizerSpec
from poet.runtime import Trainer
from poet.runtime.kernels import logits
from poet.runtime.trials import forms, trial
from poet.verification import verify

WORDS, WIDTH, LENGTH = 640, 32, 16


def module_of(kind: str) -> nn.Module:
    torch.manual_seed(0)
    return Vocabulary(tied=kind == "tied")


def traced(
    kind: str,
    *,
    optimizer: str = "sgd",
    loss: str = "cross-entropy:dim=-1",
    gradients: str = "logits",
    train: list[str] | None = None,
    micro: MicroBatches | None = None,
) -> TrainingStep:
    return trace_training_step(
        module_of(kind),
        torch.zeros(2, LENGTH, dtype=torch.long),
        loss=loss,
        optimizer=OptimizerSpec(optimizer, lr=0.05, weight_decay=0.01),
        gradients=gradients,
        train=train,
        micro=micro,
    )


write = partial(part_nets.write, in_storage=False)


def test_rows_that_are_left_out_and_sums_and_special_numbers() -> None:
    """Against the calls of plain PyTorch, with ``ignored`` classes, another reduction, infinities and NaN."""
    aten, generator = torch.ops.aten, torch.Generator().manual_seed(1)
    hidden, weight = torch.randn(32, 16, generator=generator), torch.randn(256, 16, generator=generator)
    hidden[3], hidden[5, 0], hidden[7, 1] = 0.0, float("inf"), float("nan")
    bias, classes = torch.zeros(256), torch.randint(0, 256, (32,), generator=generator)
    bias[9] = -float("inf")
    classes[4] = classes[31] = 0
    for reduction, ignored in ((1, 0), (2, -100), (1, 255)):
        found = aten.addmm(bias, hidden, weight.t())
        scores = aten._log_softmax(found, 1, False)
        loss, total = aten.nll_loss_forward(scores, classes, None, reduction, ignored)
        of_loss = torch.full((), 0.5)
        of_scores = aten.nll_loss_backward(of_loss, scores, classes, None, reduction, ignored, total)
        of_logits = aten._log_softmax_backward_data(of_scores, scores, 1, torch.float32)
        given = (hidden, weight, bias, classes)
        ours, weighed, largest, shift = logits.loss(*given, reduction, ignored, 16)
        assert torch.equal(weighed, total)
        assert torch.equal(ours.nan_to_num(), loss.nan_to_num())
        made = logits.hidden_gradient(of_loss, *given, total, reduction, ignored, 16)
        assert torch.equal(made.nan_to_num(), aten.mm(of_logits, weight).nan_to_num())
        of_weight, of_bias = logits.weight_gradient(
            0, of_loss, *given, total, largest, shift, reduction, ignored, 64, 256
        )
        assert of_bias is not None
        assert torch.equal(of_weight.nan_to_num(), aten.mm(of_logits.t(), hidden).nan_to_num())
        assert torch.equal(of_bias.nan_to_num(), of_logits.sum(0).nan_to_num())


def test_blocks_of_classes_give_the_gradient_of_rows() -> None:
    """Likewise, made for all rows at once, some classes at a time; added up in another order here."""
    generator = torch.Generator().manual_seed(1)
    hidden, weight = torch.randn(32, 16, generator=generator), torch.randn(900, 16, generator=generator)
    hidden[3], hidden[5, 0], hidden[7, 1] = 0.0, float("inf"), float("nan")
    bias, classes = torch.zeros(900), torch.randint(0, 900, (32,), generator=generator)
    bias[9], classes[4] = -float("inf"), 0
    for reduction, ignored in ((1, 0), (2, -100), (1, 255)):
        numbers = (reduction, ignored, 16)
        _, total, *shifts = logits.loss(hidden, weight, bias, classes, *numbers)
        given = (torch.full((), 0.5), hidden, weight, bias, classes, total, *numbers)
        by_row, by_class = (
            logits.hidden_gradient(*given),
            logits.hidden_gradient(*given, "", 384, True, *shifts),
        )
        assert by_row[8:].isfinite().all()
        torch.testing.assert_close(by_class, by_row, equal_nan=True)


def test_other_bits_are_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "p", traced("tied"), seed=None)
    monkeypatch.setattr(trial, "_exact", {})
    monkeypatch.setitem(forms._HEAD_TRIALS, "rows", lambda head, rows: False)
    with pytest.raises(ReplayError, match=r"op nll_loss_forward in strips of \d+ rows gives other bits here"):
        Trainer.open(tmp_path / "p")


@pytest.mark.parametrize(
    ("loss", "why"),
    [
        ("cross-entropy:dim=-1,label_smoothing=0.1", "label smoothing"),
        ("mse", "the loss is no cross-entropy of one output with classes"),
    ],
)
def test_what_stays_whole_says_why(loss: str, why: str) -> None:
    with pytest.raises(ModelError, match=f"the logits cannot be made in strips: .*{why}.*; leave --gra"):
        traced("plain", loss=loss)


def test_no_exact_strips_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "available_bytes", lambda: 0.0)
    monkeypatch.setattr(trial, "_exact", {})
    with pytest.raises(ModelError, match="no strips of rows give every bit here"):
        traced("plain")


@pytest.mark.slow
def test_a_vocabulary_of_fifty_thousand(tmp_path: Path) -> None:
    """Neither the step nor any kernel of it holds 256 rows of 50,000 logits; the lower bound says so."""
    from poet.api import prepare
    from poet.problem import Limits
    from poet.solvers import minimum_ram_bytes

    words, width, length = 50_000, 64, 256
    torch.manual_seed(0)
    module = Vocabulary(tied=True, words=words, width=width)
    inputs = torch.zeros(1, length, dtype=torch.long)
    logits_bytes = 4 * words * length
    bounds = {}
    for gradients in ("stream", "logits"):
        step = prepare(module, inputs, device="rpi4b", loss="cross-entropy:dim=-1", gradients=gradients)
        bounds[gradients] = minimum_ram_bytes(step.problem, Limits()).bytes
    graph = step.step.graph
    sizes = {buffer.name: buffer.size_bytes for buffer in graph.buffers}
    made = {op.name: sum(map(sizes.__getitem__, graph.writes(op))) for op in graph.ops}
    assert max(made[op.name] + step.kernels.of(op.name).workspace_bytes for op in graph.ops) < logits_bytes
    assert bounds["stream"] >= 2 * logits_bytes  # their gradient may be written over them
    assert bounds["logits"] < logits_bytes
    write(tmp_path / "p", step.step, seed=1)
    report = verify(tmp_path / "p", module=module, steps=1, threads=(1, 2))
    assert [comparison.difference for comparison in report.comparisons] == [None, None]
