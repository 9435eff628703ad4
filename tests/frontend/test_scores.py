"""A model that ends in a softmax: said where the loss takes scores, and cut off where that is asked for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
import torch.nn.functional as F
from helpers.pace import with_slow
from onnx import TensorProto, helper, numpy_helper
from poet.cli.main import app
from torch import Tensor, nn
from typer.testing import CliRunner

import poet
from poet.errors import ModelError
from poet.frontend.losses import loss_named
from poet.plans.plan_file import read_plan
from poet.report.html.subject import asked_by
from poet.runtime import Trainer
from poet.verification import verify

X, CLASSES = torch.randn(6, 8, generator=torch.Generator().manual_seed(1)), torch.arange(6) % 4
PARTS = torch.rand(6, 4, generator=torch.Generator().manual_seed(2))


class _Ending(nn.Module):
    def __init__(self, end: Callable[[Tensor], object]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.end = nn.Linear(8, 4), end

    def forward(self, x: Tensor) -> object:
        return self.end(self.layer(x))


ENDS: dict[str, tuple[str, Callable[[Tensor], object]]] = {
    "softmax": ("cross-entropy", nn.Softmax(1)),
    "log-softmax": ("cross-entropy", nn.LogSoftmax(1)),
    "sigmoid": ("bce-with-logits", torch.sigmoid),
    "views": ("focal", lambda y: F.softmax(y, 1).view(6, 2, 2).reshape(6, 4).double().float()),
    "a dictionary": ("cross-entropy", lambda y: {"probabilities": F.softmax(input=y, dim=-1), "scores": y}),
}
SAID = {"softmax", "sigmoid", "views", "a dictionary"}
OTHERS: dict[str, Callable[[Tensor], object]] = {
    "none": torch.relu,
    "by hand": lambda y: y.exp() / y.exp().sum(1, keepdim=True),
    "written": lambda y: y.softmax(1).clamp_(0.1, 1.0),
    "weighed": lambda y: y * torch.sigmoid(y),
}


def _plan(model: nn.Module | Path, loss: str, **options: Any) -> poet.Planned:
    given = () if isinstance(model, Path) else (X,)
    return poet.plan(model, *given, device="rpi4b", ram=None, loss=loss, time_limit_seconds=1.0, **options)


@pytest.mark.parametrize("name", with_slow(ENDS, {"views", "a dictionary"}))
def test_the_logits_are_trained(name: str, tmp_path: Path) -> None:
    loss, end = ENDS[name]
    targets = PARTS if name == "sigmoid" else CLASSES
    planned = _plan(_Ending(end), loss, output="logits")
    assert not any(line.startswith("loss") for line in planned.summary().splitlines())
    planned.save(tmp_path / "p")
    verify(tmp_path / "p", module=_Ending(end), steps=2).require()
    plain = _Ending(end)
    scores = plain.layer(X)
    with Trainer.open(tmp_path / "p") as trainer:
        result = trainer.step(X, targets)
        expected = loss_named(loss).apply(scores, targets)
        assert result.loss == float(expected.detach())
        assert torch.equal(result.predictions[0], scores)
        expected.backward()  # type: ignore[no-untyped-call]
        with torch.no_grad():
            plain.layer.weight -= 0.001 * plain.layer.weight.grad  # type: ignore[operator]
        assert torch.equal(trainer.state_dict()["layer.weight"], plain.layer.weight)


@pytest.mark.parametrize("name", sorted(SAID - {"views"}))
def test_probabilities_for_a_loss_of_scores_are_said(name: str) -> None:
    loss, end = ENDS[name]
    with pytest.warns(UserWarning, match=rf"{loss} takes scores; train on .*--output logits") as caught:
        planned = _plan(_Ending(end), loss)
    other = "bce" if name == "sigmoid" else "nll:log=yes"
    assert str(caught[0].message).endswith(f"--loss {other}")
    assert any(line.startswith("loss") and "logits" in line for line in planned.summary().splitlines())


def test_one_class_is_said() -> None:
    with pytest.warns(UserWarning, match="over 1 class is 0 whatever the model gives"):
        _plan(nn.Linear(8, 1), "cross-entropy")


def test_the_logarithm_of_probabilities(tmp_path: Path) -> None:
    module = _Ending(nn.Softmax(1))
    _plan(module, "nll:log=yes").save(tmp_path / "p")
    verify(tmp_path / "p", module=module, steps=2).require()
    with Trainer.open(tmp_path / "p") as trainer:
        found = trainer.step(X, CLASSES).loss
    assert found == pytest.approx(float(F.cross_entropy(module.layer(X), CLASSES).detach()), rel=1e-6)


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
@pytest.mark.parametrize("name", OTHERS)
def test_where_there_are_no_logits_none_are_given(name: str) -> None:
    with pytest.raises(ModelError, match="_Ending: its first output is not what a softmax"):
        _plan(_Ending(OTHERS[name]), "cross-entropy", output="logits")
    with pytest.raises(ModelError, match="'logit' is not 'logits'"):
        _plan(_Ending(OTHERS[name]), "cross-entropy", output="logit")
    scripted: nn.Module = torch.jit.script(nn.Sequential(nn.Linear(8, 4), nn.Softmax(1)))
    with pytest.raises(ModelError, match="needs the module that was scripted"):
        _plan(scripted, "cross-entropy", output="logits")


def _file(path: Path, ending: str, *after: str, opset: int = 17) -> Path:
    """A classifier as Keras exports it, with nodes behind its last activation."""
    nodes = [helper.make_node("Gemm", ["x", "w"], ["v0"], transB=1), helper.make_node(ending, ["v0"], ["v1"])]
    for number, op in enumerate(after, 1):
        more = ["shape"] if op == "Reshape" else []
        attributes: dict[str, Any] = {"to": TensorProto.FLOAT} if op == "Cast" else {}
        nodes.append(helper.make_node(op, [f"v{number}", *more], [f"v{number + 1}"], **attributes))
    weights = {"w": _Ending(nn.Softmax(1)).layer.weight.detach().numpy(), "shape": np.array([6, 4])}
    graph = helper.make_graph(
        nodes, "keras",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [6, 8])],
        [helper.make_tensor_value_info(f"v{len(after) + 1}", TensorProto.FLOAT, [6, 4])],
        [numpy_helper.from_array(item, name) for name, item in weights.items()],
    )  # fmt: skip
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9), path)
    return path


FILES = {
    "softmax": ("Softmax", (), 17, "cross-entropy"),
    "softmax of opset 11": ("Softmax", ("Reshape",), 11, "cross-entropy"),
    "nodes behind it": ("Softmax", ("Identity", "Reshape", "Cast"), 13, "cross-entropy"),
    "sigmoid": ("Sigmoid", ("Identity",), 17, "bce-with-logits"),
}


@pytest.mark.parametrize("name", with_slow(FILES, FILES.keys() - {"sigmoid"}))
def test_files_by_commands(name: str, tmp_path: Path) -> None:
    ending, after, opset, loss = FILES[name]
    model, targets = (
        _file(tmp_path / "m.onnx", ending, *after, opset=opset),
        PARTS if "sig" in name else CLASSES,
    )

    def invoke(*arguments: object) -> str:
        result = CliRunner().invoke(app, [str(argument) for argument in arguments])
        assert result.exit_code == 0, result.stderr
        return " ".join(result.stdout.split())

    said = f"the first output is what a {ending.lower()} gives, and {loss} takes scores"
    assert said in invoke("check", model, "--loss", loss)
    solve = ("solve", model, "--device", "rpi4b", "--ram", "1MiB", "--loss", loss)
    assert said in invoke(*solve)
    assert said in invoke(*solve[:4], "--loss", loss)  # a survey
    assert said not in invoke(*solve, "--output", "logits", "-o", tmp_path / "p")
    assert "equal to plain PyTorch: yes" in invoke("verify", tmp_path / "p", "--steps", 2)
    assert "--output logits" in asked_by(read_plan(tmp_path / "p"))[1]
    scores = X @ _Ending(nn.Softmax(1)).layer.weight.detach().T
    with Trainer.open(tmp_path / "p") as trainer:
        assert trainer.step(X, targets).loss == pytest.approx(float(loss_named(loss).apply(scores, targets)))
    assert invoke(*solve, "--output", tmp_path / "other")
    assert (tmp_path / "other").exists()
