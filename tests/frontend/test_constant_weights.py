"""Weights that an ONNX file has in Constant nodes: counted and said, and trained where they are named."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.onnx_tools import make_model, save
from helpers.pace import with_slow
from onnx import NodeProto, TensorProto, helper, numpy_helper
from poet.cli.main import app
from torch import Tensor, nn
from typer.testing import CliRunner

import poet
from poet.frontend.onnx.check import check_model
from poet.frontend.onnx.importer import load_onnx
from poet.runtime import Trainer
from poet.verification import verify

RNG = np.random.default_rng(0)
node = helper.make_node


def constant(name: str, content: Any, dtype: type = np.float32) -> NodeProto:
    return node("Constant", [], [name], value=numpy_helper.from_array(np.asarray(content, dtype), name))


def drawn(*shape: int) -> Any:
    return RNG.standard_normal(shape)


GRU = node("GRU", ["x", "gw", "gr", "", "", "h0"], ["", "s"], hidden_size=8)
FOUR = ("s", "b", "m", "v")
ROWS: dict[str, tuple[list[NodeProto], list[int], tuple[str, ...]]] = {
    "gemm": ([constant("c", np.ones((8, 6))), node("Gemm", ["x", "c"], ["h"], transB=1)], [3, 6], ("c",)),
    "product and sum": (
        [constant("/l/C", drawn(6, 8)), constant("b", drawn(8)), node("MatMul", ["x", "/l/C"], ["p"]),
         node("Add", ["p", "b"], ["h"])], [3, 6], ("b", "l.C"),
    ),
    "turned": (
        [constant("c", drawn(8, 6)), node("Transpose", ["c"], ["t"], perm=[1, 0]),
         node("Identity", ["t"], ["i"]), node("MatMul", ["x", "i"], ["h"])], [3, 6], ("c",),
    ),
    "cast": (
        [constant("c", drawn(8, 6), np.float16), node("Cast", ["c"], ["f"], to=TensorProto.FLOAT),
         node("Gemm", ["x", "f"], ["h"], transB=1)], [3, 6], ("c",),
    ),
    "convolution": (
        [constant("k", drawn(8, 3, 3, 3)), constant("kb", drawn(8)),
         *(constant(name, RNG.random(8) + 0.5) for name in FOUR),
         node("Conv", ["x", "k", "kb"], ["y1"]), node("BatchNormalization", ["y1", *FOUR], ["y2"]),
         node("GlobalAveragePool", ["y2"], ["y3"]), node("Flatten", ["y3"], ["h"])],
        [2, 3, 5, 5], ("b", "k", "kb", "s"),
    ),
    "recurrent": (
        [constant("gw", drawn(1, 24, 6)), constant("gr", drawn(1, 24, 8)),
         constant("h0", np.zeros((1, 3, 8))), GRU, node("Squeeze", ["s", "axes"], ["h"])],
        [5, 3, 6], ("gr", "gw"),
    ),
    "one number": (
        [constant("c", drawn(1)), node("Gemm", ["x", "first", "c"], ["g"]),
         node("MatMul", ["g", "row"], ["h"])],
        [3, 6], ("c",),
    ),
    "no weights": (
        [constant("two", 2.0), constant("half", [0.5]), constant("a", drawn(8)), constant("b", drawn(8)),
         node("Mul", ["a", "b"], ["ab"]), node("MatMul", ["x", "wide"], ["p"]),
         node("Pow", ["p", "two"], ["q"]),
         node("Mul", ["q", "half"], ["r"]), node("Add", ["r", "ab"], ["h"])], [3, 6], (),
    ),
}  # fmt: skip
WEIGHTS = {"w": drawn(4, 8), "first": drawn(6, 1), "row": drawn(1, 8), "wide": drawn(6, 8)}


def _model(name: str, path: Path) -> Path:
    nodes, sizes, _ = ROWS[name]
    read = {used for item in nodes for used in item.input}
    weights = {key: item.astype(np.float32) for key, item in WEIGHTS.items() if key in read | {"w"}}
    weights |= {"axes": np.array([0])} if "axes" in read else {}
    last = node("Gemm", ["h", "w"], ["y"], transB=1)
    return save(make_model([*nodes, last], {"x": sizes}, ["y"], weights, opset=17), path)


def _plan(model: Path, path: Path, train: Sequence[str] | None) -> poet.Planned:
    planned = poet.plan(
        model, device="rpi4b", ram=None, train=train, evaluation=False, time_limit_seconds=1.0
    )
    planned.save(path)
    verify(path, steps=2).require()
    return planned


@pytest.mark.parametrize("name", with_slow(ROWS, {"turned", "cast", "one number", "recurrent"}))
def test_they_are_counted_and_trained_by_name(name: str, tmp_path: Path) -> None:
    model, named = _model(name, tmp_path / "m.onnx"), ROWS[name][2]
    checked = {item.name: item.trainable for item in check_model(model).parameters}
    assert {item for item, is_trained in checked.items() if not is_trained} == {*named}
    if named:
        with pytest.warns(
            UserWarning, match=rf"not trained \({', '.join(named)}\); name what to train: --train"
        ):
            planned = _plan(model, tmp_path / "plain", None)
        assert f" of {len(checked)} parameters" in planned.summary()
        assert "Constant node" in planned.summary()
    else:
        _plan(model, tmp_path / "plain", None)
    trained = _plan(model, tmp_path / "trained", [*named, "w"])
    with_gradient = {item.name for item in trained.plan.graph.parameters if item.gradient is not None}
    assert with_gradient == {*named, "w"}
    before = load_onnx(model).module.state_dict()
    with Trainer.open(tmp_path / "trained") as trainer:
        x = torch.randn(ROWS[name][1])
        trainer.step(x, torch.arange(len(load_onnx(model).module(x))))
        state = trainer.state_dict()
    of_no_effect = {"kb"}  # which batch norm takes away again
    assert all(not torch.equal(state[item], before[item]) for item in {*named} - of_no_effect)


def test_by_commands(tmp_path: Path) -> None:
    model = str(_model("convolution", tmp_path / "m.onnx"))
    solve = ["solve", model, "--device", "rpi4b", "--ram", "1MiB", "--time-limit", "1s"]
    reason = "4 of 5 parameters are not trained"
    found = [CliRunner().invoke(app, words) for words in (["check", model], solve, [*solve, "--train", "k*"])]
    assert all(item.exit_code == 0 for item in found)
    check, plain, named = (" ".join(item.output.split()) for item in found)
    assert f"{reason}: they lie in Constant nodes, and are trained only where --train" in check
    assert reason in plain
    assert "4 weights lie in Constant nodes and are not trained (b, k, kb, s)" in plain
    assert "2 of 5 parameters" in named
    assert "Constant nodes" not in named


def test_a_model_of_constants_alone_says_what_to_name(tmp_path: Path) -> None:
    nodes = [constant("c", drawn(4, 6)), node("Gemm", ["x", "c"], ["y"], transB=1)]
    model = save(make_model(nodes, {"x": [3, 6]}, ["y"], opset=17), tmp_path / "m.onnx")
    assert check_model(model).obstacles == (
        "all weights lie in Constant nodes; name those to train: poet solve --train c",
    )
    with pytest.raises(poet.errors.ModelError, match=r"nothing to train; name some \(--train, train=\)"):
        _plan(model, tmp_path / "p", None)
    assert _plan(model, tmp_path / "p", ["c"]).plan.graph.parameters[0].name == "c"


def test_a_module_that_has_them_trains_them(tmp_path: Path) -> None:
    """Its names say which parameters they are."""

    class Module(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = nn.Linear(6, 8, bias=False), nn.Linear(8, 4, bias=False)

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.head(self.body(x))
            return y

    module = Module()
    body, head = (item.detach().numpy() for item in module.parameters())
    nodes = [
        constant("c", body),
        node("Gemm", ["x", "c"], ["h"], transB=1),
        node("Gemm", ["h", "w"], ["y"], transB=1),
    ]
    model = save(make_model(nodes, {"x": [3, 6]}, ["y"], {"w": head}, opset=17), tmp_path / "m.onnx")
    planned = poet.plan(model, device="rpi4b", ram=None, names=module, evaluation=False)
    trained = {item.name: item.gradient is not None for item in planned.plan.graph.parameters}
    assert trained == {"body.weight": True, "head.weight": True}
