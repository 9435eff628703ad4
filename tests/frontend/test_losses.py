"""Every loss, by name and as a function of one's own: replay gives the bits of plain PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from helpers import hand_net
from torch import Tensor, nn

from poet import api
from poet.errors import InputError, ModelError
from poet.frontend.losses import as_loss
from poet.frontend.trace import trace_training_step
from poet.ir.loss import LossSpec
from poet.plans.plan_file import read_plan
from poet.runtime import Trainer
from poet.runtime.data.random_batches import random_batch
from poet.verification import verify


def net(last: nn.Module | None = None) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Dropout(0.2), nn.Linear(8, 4), last or nn.Identity())


def net_for(loss: str) -> nn.Module:
    lasts = {"bce": nn.Sigmoid(), "nll": nn.LogSoftmax(1), "kl-div": nn.LogSoftmax(1)}
    return net(lasts.get(LossSpec.parse(loss).name))


def write(path: Path, module: nn.Module, loss: Any, targets: Any = None) -> None:
    """A plan that recomputes and pages."""
    step = trace_training_step(module, torch.zeros(5, 6), loss=loss, targets=targets, measure=False)
    hand_net.write_step(path, step, slack=1.0)


TORCHS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "cross-entropy:label_smoothing=0.1,weight=1.0/2.0/0.5/1.0": nn.CrossEntropyLoss(
        torch.tensor([1.0, 2.0, 0.5, 1.0]), label_smoothing=0.1
    ),
    "huber:delta=0.3": nn.HuberLoss(delta=0.3),
    "smooth-l1:beta=0.4": nn.SmoothL1Loss(beta=0.4),
    "kl-div:log_target=yes": nn.KLDivLoss(reduction="batchmean", log_target=True),
    "bce-with-logits:pos_weight=3.0": nn.BCEWithLogitsLoss(pos_weight=torch.tensor(3.0)),
}


@pytest.mark.parametrize("loss", TORCHS)
def test_options_mean_what_they_mean_in_torch(loss: str, tmp_path: Path) -> None:
    module = net_for(loss)
    write(tmp_path / "p", module, loss)
    (x,), targets = random_batch(read_plan(tmp_path / "p"), 0)
    with Trainer.open(tmp_path / "p", seed=1) as trainer:
        found = trainer.step(x, targets).loss
    torch.manual_seed(1)
    assert isinstance(targets, Tensor)
    assert found == TORCHS[loss](module(x), targets).item()


# --- a loss of one's own ----------------------------------------------------------------------


class TwoHeads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.one, self.two = nn.Linear(6, 8), nn.Linear(8, 4), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        y = torch.tanh(self.inner(x))
        return {"scores": self.one(y), "place": self.two(y)}


def weighted(outputs: dict[str, Tensor], targets: tuple[Tensor, Tensor]) -> Tensor:
    return F.cross_entropy(outputs["scores"], targets[0]) + 0.3 * F.smooth_l1_loss(
        outputs["place"], targets[1]
    )


def two_heads() -> nn.Module:
    torch.manual_seed(0)
    return TwoHeads()


def test_a_function_of_several_outputs_and_targets(tmp_path: Path) -> None:
    classes, places = torch.randint(4, (5,)), torch.randn(5, 2)
    write(tmp_path / "p", two_heads(), weighted, targets=(classes, places))
    plan = read_plan(tmp_path / "p")
    assert plan.request.loss == "python:weighted"
    assert plan.graph.inputs[1:] == ("targets0", "targets1")
    batch = ((torch.randn(5, 6),), (classes, places))
    verify(tmp_path / "p", module=two_heads(), loss=weighted, batches=[batch], steps=2).require()
    with pytest.raises(ModelError, match="function of Python's"):
        verify(tmp_path / "p", module=two_heads(), batches=[batch])
    with Trainer.open(tmp_path / "p") as trainer, pytest.raises(InputError, match="the plan takes 3"):
        trainer.step(batch[0], classes)


def test_a_module_as_a_loss_is_planned_verified_and_evaluated(tmp_path: Path) -> None:
    loss = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 0.5, 1.0]), label_smoothing=0.1)
    x, classes = torch.randn(5, 6), torch.randint(4, (5,))
    made = api.plan(
        net(), x, device="rpi4b", ram=None, loss=loss, targets=classes,
        time_limit_seconds=1.0,
    )  # fmt: skip
    made.save(tmp_path / "p")
    verify(
        tmp_path / "p", module=net(), loss=loss, batches=[((x,), classes)], steps=1, threads=(1,)
    ).require()
    with Trainer.open(tmp_path / "p") as trainer:
        result = trainer.evaluate([(x, classes)], ["accuracy"])
    scores = net().eval()(x)
    assert result.loss == loss(scores, classes).item()
    assert result.metrics["accuracy"] == float((scores.argmax(1) == classes).double().mean())


class Learned(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))


def test_what_cannot_be_a_loss_is_said() -> None:
    with pytest.raises(ModelError, match="Learned has parameters of its own"):
        as_loss(Learned())
    with pytest.raises(ModelError, match=r"gives \[5, 4\]; a step minimises a tensor of a single number"):
        trace_training_step(net(), torch.zeros(5, 6), loss=lambda outputs, targets: outputs, measure=False)
    with pytest.raises(ModelError, match="weighs 2 classes; the first output has 4"):
        trace_training_step(net(), torch.zeros(5, 6), loss="cross-entropy:weight=1/2", measure=False)
