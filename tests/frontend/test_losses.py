"""Losses by name and as functions of one's own: what they compute, what they read, and in which words."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from helpers import hand_net
from helpers.onnx_tools import make_model, save
from helpers.schedules import random_schedule
from onnx import helper
from poet.cli.main import app
from torch import Tensor, nn
from typer.testing import CliRunner

from poet import api
from poet.errors import InputError, ModelError, PlanError
from poet.frontend.losses import as_loss, loss_named
from poet.frontend.trace import trace_training_step
from poet.ir.loss import LossSpec
from poet.ir.optimizer import OptimizerSpec
from poet.plans.plan_file import read_plan, write_plan
from poet.plans.plan_parts import Request
from poet.problem import Limits
from poet.report.check import loss_reads
from poet.runtime import Trainer
from poet.runtime.data.random_batches import random_batch
from poet.runtime.runs.fit import Samples, fit
from poet.runtime.storage.state import raw_tensor
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


class Words(nn.Module):
    """Scores of 6 classes for each of 6 words, as [N,T,C]: that T = C is what makes mistakes silent."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 8)
        self.head = nn.Linear(8, 6)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.head(torch.tanh(self.inner(x)))
        return scores


def _words() -> nn.Module:
    torch.manual_seed(0)
    return Words()


def _plan_file(path: Path, loss: str) -> None:
    step = trace_training_step(
        _words(), torch.zeros(3, 6, 4), loss=loss, optimizer=OptimizerSpec("sgd", lr=0.1), measure=False
    )
    hand_net.write_step(path, step, slack=0.5)


# --- which dim --------------------------------------------------------------------------------


def test_classes_may_stand_in_any_dim() -> None:
    scores, classes, shares = torch.randn(3, 5, 6), torch.randint(6, (3, 5)), torch.rand(3, 5, 6).softmax(-1)
    of_last = loss_named("cross-entropy:dim=-1").apply
    flat = scores.reshape(-1, 6)
    assert torch.equal(of_last(scores, classes), F.cross_entropy(flat, classes.reshape(-1)))
    assert torch.equal(of_last(scores, shares), F.cross_entropy(flat, shares.reshape(-1, 6)))
    for loss in ("cross-entropy", "cross-entropy:dim=1"):
        for targets in (shares, torch.randint(5, (3, 6))):
            found = loss_named(loss).apply(scores, targets)
            assert torch.equal(found, F.cross_entropy(scores, targets))


def test_accuracy_is_of_the_dim_of_the_classes(tmp_path: Path) -> None:
    for loss, dim in (("cross-entropy", 1), ("cross-entropy:dim=-1", 2)):
        _plan_file(tmp_path / "p", loss)
        x = torch.randn(3, 6, 4)
        targets = _words()(x).argmax(dim)
        samples = Samples((x, targets), (x.clone(), targets.clone()), torch.arange(3), 1)
        with Trainer.open(tmp_path / "p") as trainer:
            (epoch,) = fit(trainer, samples, epochs=1)
        assert epoch.accuracy == 1.0


def test_a_plan_from_before_there_was_a_dim_is_not_misread(tmp_path: Path) -> None:
    """Then [N,T,C] with targets [N,T] was called cross-entropy."""

    class Wide(Words):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x)[:, :5]

    step = trace_training_step(Wide(), torch.zeros(3, 6, 4), loss="cross-entropy:dim=-1", measure=False)
    of = hand_net.problem(step.graph)
    old = hand_net.plan(of, step.graph, random_schedule(of, 1), loss="cross-entropy")
    write_plan(tmp_path / "p", old, {name: raw_tensor(tensor) for name, tensor in step.tensors.items()})
    with pytest.raises(PlanError, match="plan again with the loss cross-entropy:dim=-1"):
        random_batch(read_plan(tmp_path / "p"), 0)
    assert "as an earlier poet read it" in loss_reads(step.graph, "cross-entropy")


# --- in words ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("loss", "output", "words"),
    [
        ("cross-entropy", ("N", 5), "cross-entropy over dim 1, 5 classes, targets int64[N]"),
        ("cross-entropy", ("N", 5, 9, 9), "cross-entropy over dim 1, 5 classes, targets int64[N,9,9]"),
        (
            "cross-entropy",
            ("N", 5, 9),
            "cross-entropy over dim 1, 5 classes, targets int64[N,9]; classes last: cross-entropy:dim=-1",
        ),
        ("cross-entropy:dim=-1", ("N", 9, 5), "cross-entropy over dim 2, 5 classes, targets int64[N,9]"),
        ("cross-entropy", (5,), "cross-entropy over dim 0, 5 classes, targets int64[]"),
        ("mse", ("N", 5), "mse, targets float32[N,5]"),
        ("huber:delta=0.5", ("N", 5), "huber, targets float32[N,5], delta 0.5"),
        (
            "cross-entropy:ignore_index=-100,weight=1.0/2.5",
            ("N", 2),
            "cross-entropy over dim 1, 2 classes, targets int64[N], ignore_index -100, weight 1.0/2.5",
        ),
        ("output", ("N",), "the model's first output, float32[N], summed; no targets"),
        ("output", (), "the model's first output, float32[]; no targets"),
    ],
)
def test_what_a_loss_reads(loss: str, output: tuple[int | str, ...], words: str) -> None:
    assert LossSpec.parse(loss).reads(output, "float32") == words
    assert str(LossSpec.parse(loss)) == loss


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        ("hinge", "loss 'hinge' is not one of cross-entropy, nll, focal, mse,"),
        ("cross-entropy:label_smoothing=2", "label_smoothing is a number from 0 to 1; write for example"),
        ("cross-entropy:weight=1/x", "weight has a number from 0 up per class, with / between"),
        ("huber:delta=0", "delta is a number above 0"),
        ("huber:delta=nan", "delta is a number from 0 up"),
        ("mse:reduction=none", "reduction is mean or sum"),
        ("kl-div:log_target=true", "log_target is yes or no"),
        ("python:os.system('x')", "loss 'python' is not one of"),
        ("cross_entropy", "did you mean 'cross-entropy'"),
        ("cross-entropy:dims=1", "'dims' is not an option; the options of cross-entropy are: dim"),
        ("mse:dim=1", "'dim' is not an option; the options of mse are: reduction"),
        ("output:dim=1", "'dim' is not an option; output has no options"),
        ("cross-entropy:", "'' is not an option"),
        ("cross-entropy:dim=last", "dim is a whole number; write for example cross-entropy:dim=-1"),
        ("cross-entropy:dim", "dim is a whole number"),
        ("cross-entropy:dim=" + "9" * 400, "dim is a whole number"),
        ("cross-entropy:dim=1,dim=2", "gives dim twice"),
    ],
)
def test_a_loss_that_cannot_be(loss: str, message: str) -> None:
    with pytest.raises(ModelError) as caught:
        LossSpec.parse(loss)
    assert message in str(caught.value)
    with pytest.raises(ModelError):
        Request(Limits(), loss)


def test_a_dim_that_the_output_does_not_have() -> None:
    with pytest.raises(ModelError, match="the model's first output has 3 dims, and no dim 3"):
        trace_training_step(_words(), torch.zeros(3, 6, 4), loss="cross-entropy:dim=3", measure=False)


# --- on the command line ----------------------------------------------------------------------


def _two_heads(path: Path) -> Path:
    """[N,T,C] scores, and a second head behind a layer of its own."""
    nodes = [
        helper.make_node("MatMul", ["x", "body"], ["h"]),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("MatMul", ["r", "head.weight"], ["s"]),
        helper.make_node("Add", ["s", "head.bias"], ["scores"]),
        helper.make_node("MatMul", ["r", "aux.weight"], ["a"]),
        helper.make_node("Add", ["a", "aux.bias"], ["aux"]),
    ]
    generator = np.random.default_rng(0)
    shapes = {
        "body": (4, 8), "head.weight": (8, 5), "head.bias": (5,), "aux.weight": (8, 3), "aux.bias": (3,),
    }  # fmt: skip
    weights = {name: generator.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    return save(make_model(nodes, {"x": ["N", 9, 4]}, ["scores", "aux"], weights), path)


def _run(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, list(arguments), env={"COLUMNS": "200"})
    return done.exit_code, done.output


UNREAD = "the loss does not read output 2 of 2{}: it is that of the first output"
UNTRAINED = (
    "2 of 5 parameters are not trained: they lead only to outputs that the loss does not read "
    "(aux.bias, aux.weight"
)


def test_check_and_solve_say_what_the_loss_reads_and_what_is_not_trained(tmp_path: Path) -> None:
    model = _two_heads(tmp_path / "heads.onnx")
    code, checked = _run("check", str(model), "--loss", "cross-entropy:dim=-1")
    assert code == 0
    assert "loss: cross-entropy over dim 2, 5 classes, targets int64[N,9]\n" in checked
    assert "5 parameters" in checked
    assert "a gradient reaches 3" in checked
    assert UNREAD.format(" (aux)") in " ".join(checked.split())
    assert UNTRAINED in " ".join(checked.split())
    options = ("--device", "rpi4b", "--bind", "N=2", "--loss", "cross-entropy:dim=-1", "--time-limit", "5s")
    code, solved = _run("solve", str(model), *options, "--ram", "1MiB", "-o", str(tmp_path / "p.poet"))
    assert code == 0, solved
    words = " ".join(solved.split())
    assert "3 of 5 parameters, cross-entropy:dim=-1, sgd" in words
    assert "cross-entropy over dim 2, 5 classes, targets int64[2,9]" in words
    assert UNREAD.format("") in words
    assert UNTRAINED in words
    graph = read_plan(tmp_path / "p.poet").graph
    trained = {item.name for item in graph.parameters if item.gradient is not None}
    code, data = _run("check", str(model), "--json", "-")
    found = json.loads(data)
    assert {item["name"] for item in found["parameters"] if item["trainable"]} == trained
    assert found["unread_outputs"] == ["aux"]
    verify(tmp_path / "p.poet", steps=2, threads=(1, 2)).require()


def test_a_loss_that_does_not_fit_is_an_obstacle_where_it_is_asked_for(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["y"]),
        helper.make_node("ReduceSum", ["y"], ["z"], keepdims=0),
    ]
    model = save(
        make_model(nodes, {"x": [2, 3]}, ["z"], {"w": np.ones((3, 3), np.float32)}), tmp_path / "m.onnx"
    )
    code, output = _run("check", str(model))
    assert code == 0
    assert "loss: cross-entropy cannot be its loss: cross-entropy needs scores of classes" in output
    code, output = _run("check", str(model), "--loss", "cross-entropy")
    assert code == 2
    code, output = _run("check", str(model), "--loss", "output")
    assert code == 0
    assert "loss: the model's first output, float32[]; no targets" in output
    code, output = _run("check", str(model), "--loss", "hinge")
    assert code == 2
    assert "is not one of" in output
