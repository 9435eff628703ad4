"""What the loss reads: torch's convention, classes in another dim where the user says so, and in words."""

from __future__ import annotations

import json
from pathlib import Path

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

from poet.errors import ModelError, PlanError
from poet.frontend.losses import loss_named
from poet.frontend.trace import trace_training_step
from poet.ir.loss import LossSpec
from poet.ir.optimizer import OptimizerSpec
from poet.plans.plan_file import read_plan, write_plan
from poet.plans.plan_parts import Request
from poet.problem import Limits
from poet.report.training import loss_reads
from poet.runtime import Trainer
from poet.runtime.data.random_batches import random_batch
from poet.runtime.runs.fit import Samples, fit
from poet.runtime.storage.state import raw_tensor
from poet.verification import verify


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


@pytest.mark.parametrize(
    ("loss", "by_hand"),
    [
        ("cross-entropy", lambda scores, targets: F.cross_entropy(scores, targets)),
        ("cross-entropy:dim=1", lambda scores, targets: F.cross_entropy(scores, targets)),
        (
            "cross-entropy:dim=-1",
            lambda scores, targets: F.cross_entropy(scores.reshape(-1, 6), targets.reshape(-1)),
        ),
    ],
)
def test_a_step_is_that_of_torch(loss: str, by_hand: object, tmp_path: Path) -> None:
    _plan_file(tmp_path / "p", loss)
    module, x, targets = _words(), torch.randn(3, 6, 4), torch.randint(6, (3, 6))
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    with Trainer.open(tmp_path / "p") as trainer:
        for _ in range(3):
            found = trainer.step(x, targets)
            optimizer.zero_grad()
            expected = by_hand(module(x), targets)  # type: ignore[operator]
            expected.backward()
            optimizer.step()
            assert found.loss == expected.item()
        for name, tensor in trainer.state_dict().items():
            assert torch.equal(tensor, module.state_dict()[name])
    verify(tmp_path / "p", module=_words(), steps=2, threads=(1, 2)).require()


def test_probabilities_may_stand_in_any_dim() -> None:
    scores = torch.randn(3, 5, 6)
    targets = torch.rand(3, 5, 6).softmax(-1)
    found = loss_named("cross-entropy:dim=-1").apply(scores, targets)
    assert torch.equal(found, F.cross_entropy(scores.reshape(-1, 6), targets.reshape(-1, 6)))
    assert torch.equal(loss_named("cross-entropy").apply(scores, targets), F.cross_entropy(scores, targets))


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
