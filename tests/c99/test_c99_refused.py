"""What cannot be exported as C is refused by name, and `poet check` tells it before."""

from __future__ import annotations

import json
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from helpers.c_nets import net_of
from helpers.c_plans import CNet, traced
from onnx import TensorProto, helper, numpy_helper
from poet.cli.main import app
from torch import Tensor, nn
from typer.testing import CliRunner

from poet import api
from poet.c99.project import c_project
from poet.errors import PlanError, UnsupportedOperator
from poet.ir.optimizer import OptimizerSpec, ParameterGroup
from poet.plans.plan_file import PlanFile
from poet.plans.training_plan import Plan


@pytest.mark.parametrize(("layer", "code"), [("Relu", 0), ("Erf", 2)])
def test_check_tells_what_the_kernels_lack(layer: str, code: int, tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Gemm", ["x", "w", "b"], ["h"]),
        helper.make_node(layer, ["h"], ["g"]),
        helper.make_node("Gemm", ["g", "v", "c"], ["y"]),
    ]
    shapes = {"w": (3, 4), "b": (4,), "v": (4, 2), "c": (2,)}
    weights = [numpy_helper.from_array(np.ones(shape, np.float32), name) for name, shape in shapes.items()]
    rows = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, n]) for name, n in (("x", 3), ("y", 2))
    ]
    graph = helper.make_graph(nodes, "net", rows[:1], rows[1:], weights)
    path = tmp_path / "net.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)]), path)
    arguments = ["check", str(path), "--kernels", "poet-c99"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == code, result.stderr
    assert ("aten.erf.default has no C kernel (1 ops)" in result.stdout) == (code == 2)
    assert ("all 14 ops of its training step have a kernel" in result.stdout) == (code == 0)
    data = json.loads(CliRunner().invoke(app, [*arguments, "--json", "-"]).stdout)
    assert len(data["lacking"]) == code // 2


class _Tokens(nn.Module):
    """Patches as rows, as a vision transformer has them."""

    def __init__(self) -> None:
        super().__init__()
        self.patches, self.last = nn.Conv2d(1, 4, 2, stride=2), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        tokens: Tensor = self.last(self.patches(x).flatten(2).transpose(1, 2))
        return tokens.mean(1)


def test_check_sees_the_step_that_is_planned_for_the_kernels(tmp_path: Path) -> None:
    """A transposed gradient, which they cannot read as it lies, is copied there and here."""
    net = _Tokens()
    path = tmp_path / "net.onnx"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(net, (torch.randn(2, 1, 4, 4),), str(path), dynamo=False)
    result = CliRunner().invoke(app, ["check", str(path), "--kernels", "poet-c99"])
    assert result.exit_code == 0, result.stdout
    graph = api.prepare(path, device="stm32h743").step.graph
    copies = {op.outputs[0] for op in graph.ops if op.call.target == "aten.clone.default"}
    backward = [op for op in graph.ops if "convolution_backward" in repr((op.call, op.strip))]
    assert copies & {ref for op in backward for ref in op.call.refs()}
    assert f"all {len(graph.ops)} ops of its training step have a kernel" in result.stdout


def _refused(net: CNet, plan: Plan, path: Path) -> str:
    with PlanFile(net.write(path, plan)) as file, pytest.raises((PlanError, UnsupportedOperator)) as error:
        c_project(file)
    return str(error.value)


class _Turned(nn.Module):
    """Two functions that have no kernel."""

    def forward(self, x: Tensor) -> Tensor:
        return x.atan() + x.erf()


def test_what_cannot_be_c_is_refused_by_name(tmp_path: Path) -> None:
    torch.manual_seed(0)
    other = traced(nn.Sequential(nn.Linear(4, 3), _Turned(), nn.Softmax(1)), torch.randn(2, 4))
    message = _refused(other, other.plan(), tmp_path / "turned.poet")
    assert "aten.atan.default (1 ops), aten.erf.default (1 ops)" in message
    net = net_of("micro", "sgd")
    assert "no arena" in _refused(net, replace(net.plan(), arena=None), tmp_path / "none.poet")


@pytest.mark.parametrize(
    ("optimizer", "says"),
    [
        (OptimizerSpec("adam"), "optimizer adam is none that the C code has"),
        (OptimizerSpec("momentum", groups=(ParameterGroup(("*bias",), lr=0.5),)), "one learning rate"),
    ],
)
def test_an_optimizer_that_c_has_not_is_refused(optimizer: OptimizerSpec, says: str, tmp_path: Path) -> None:
    net = traced(nn.Linear(4, 3), torch.randn(2, 4), optimizer=optimizer)
    assert says in _refused(net, net.plan(), tmp_path / "net.poet")


def test_a_loss_that_is_never_finite_is_said(tmp_path: Path) -> None:
    class Never(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            scores: Tensor = self.layer(x)
            return scores + (-1 - x.abs()).log().sum()

    net = traced(Never(), torch.rand(2, 4))
    assert "loss is not finite" in _refused(net, net.plan(), tmp_path / "net.poet")
