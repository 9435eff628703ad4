"""Models as Keras's exporters write them: channels last, with a transpose on each side of a layer."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
import torch.nn.functional as F
from helpers.reference import run_graph
from onnx import TensorProto, helper, numpy_helper
from poet.cli.main import app
from torch import Tensor, nn
from typer.testing import CliRunner

from poet import api, verification
from poet.c99.exportable import refusals
from poet.c99.rows import wants_dense
from poet.frontend.onnx.importer import load_onnx
from poet.frontend.trace import TrainingStep, trace_training_step

SHAPES = {"w1": (4, 3, 3, 3), "b1": (4,), "w2": (4, 1, 3, 3), "b2": (4,), "w3": (64, 5), "b3": (5,)}


def _turned(name: str, made: str, perm: Sequence[int]) -> onnx.NodeProto:
    return helper.make_node("Transpose", [name], [made], perm=perm)


def keras_net(path: Path) -> dict[str, Tensor]:
    """Two convolutions, a depthwise one among them, a pool and a dense layer; its weights."""
    random, to_last, to_first = np.random.default_rng(0), (0, 2, 3, 1), (0, 3, 1, 2)
    weights = {name: (random.standard_normal(shape) / 3).astype(np.float32) for name, shape in SHAPES.items()}
    nodes = [
        _turned("x", "x.first", to_first),
        helper.make_node("Conv", ["x.first", "w1", "b1"], ["c1"], strides=[2, 2], auto_pad="SAME_UPPER"),
        _turned("c1", "c1.last", to_last),
        helper.make_node("Relu", ["c1.last"], ["r1"]),
        _turned("r1", "r1.first", to_first),
        helper.make_node("Conv", ["r1.first", "w2"], ["c2"], pads=[1, 1, 1, 1], group=4),
        _turned("c2", "c2.last", to_last),
        helper.make_node("Add", ["c2.last", "b2"], ["a2"]),
        helper.make_node("Relu", ["a2"], ["r2"]),
        _turned("r2", "r2.first", to_first),
        helper.make_node("MaxPool", ["r2.first"], ["p2"], kernel_shape=[2, 2], strides=[2, 2]),
        _turned("p2", "p2.last", to_last),
        helper.make_node("Reshape", ["p2.last", "shape"], ["f"]),
        helper.make_node("MatMul", ["f", "w3"], ["m"]),
        helper.make_node("Add", ["m", "b3"], ["y"]),
    ]
    stored = [numpy_helper.from_array(item, name) for name, item in weights.items()]
    stored.append(numpy_helper.from_array(np.array([-1, 64], np.int64), "shape"))
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 16, 16, 3])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 5])
    graph = helper.make_graph(nodes, "keras", [x], [y], stored)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return {name: torch.from_numpy(item) for name, item in weights.items()}


def _by_hand(weights: dict[str, Tensor], x: Tensor, targets: Tensor) -> Tensor:
    """The net's loss in plain torch, each image with its channels first and side by side."""
    y = F.pad(x.permute(0, 3, 1, 2).contiguous(), (0, 1, 0, 1))
    y = F.conv2d(y, weights["w1"], weights["b1"], stride=2).relu()
    y = F.conv2d(y, weights["w2"], padding=1, groups=4).permute(0, 2, 3, 1) + weights["b2"]
    y = F.max_pool2d(y.relu().permute(0, 3, 1, 2), 2).permute(0, 2, 3, 1).reshape(-1, 64)
    return F.cross_entropy(F.linear(y, weights["w3"], weights["b3"]), targets)


def _for_c(module: nn.Module, inputs: Tensor, loss: str = "cross-entropy") -> TrainingStep:
    return trace_training_step(
        module, inputs, loss=loss, measure=False, wants_dense=wants_dense, has_small_operators=True
    )


@pytest.mark.parametrize("threads", [1, 2])
def test_a_keras_net_trains_to_the_bits_of_plain_torch(threads: int, tmp_path: Path) -> None:
    """The graph for C, run in torch, against the net written by hand."""
    weights = keras_net(tmp_path / "net.onnx")
    imported = load_onnx(tmp_path / "net.onnx", bind={"N": 2})
    graph = (step := _for_c(imported.module, imported.example_inputs()[0])).graph
    assert refusals(graph) == ()
    copies = [op for op in graph.ops if op.call.target in ("aten.clone.default", "poet.copy")]
    assert len(copies) <= 3, "of the image, of what is flattened, and of the pool's gradient"
    torch.manual_seed(1)
    x, targets = torch.randn(2, 16, 16, 3), torch.tensor([1, 4])
    weights["w3"] = weights["w3"].t().contiguous()  # as linear layers have them, and as the file is read
    own = {name: item.clone().requires_grad_() for name, item in weights.items()}
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        loss = _by_hand(own, x, targets)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.optim.SGD(own.values(), lr=step.optimizer.lr).step()
        given = dict(zip(graph.inputs, (x, targets), strict=True))
        found = run_graph(graph, dict(step.tensors), given, step.optimizer.hyperparameters(1))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(found[graph.loss], loss.detach())
    for name, tensor in own.items():
        trained = next(item.value for item in graph.parameters if item.name in (name, f"{name}.transposed"))
        assert torch.equal(found[trained], tensor.detach()), name


@pytest.mark.slow
def test_it_is_planned_verified_exported_and_trained(tmp_path: Path) -> None:
    """From the file to C, with the losses of PyTorch and the plan's bits those of plain training."""
    keras_net(tmp_path / "net.onnx")
    planned = api.plan(
        tmp_path / "net.onnx", device="nrf52840", ram="20KiB", bind={"N": 2}, time_limit_seconds=3
    )
    planned.save(tmp_path / "net.poet")
    assert verification.verify(tmp_path / "net.poet", threads=(1, 2))
    arguments = ["export", "c", str(tmp_path / "net.poet"), "-o", str(tmp_path / "step")]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.stderr
    made = subprocess.run(
        ["make", "-s", "-C", str(tmp_path / "step"), "test"], capture_output=True, text=True, check=False
    )
    assert made.returncode == 0, made.stdout + made.stderr
    assert re.search(r"state, its CRC 0x[0-9a-f]{8}\npassed", made.stdout)


class _Turned(nn.Module):
    """A layer on images whose channels come last, between two convolutions."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.first, self.layer, self.last = nn.Conv2d(3, 4, 3), layer, nn.Conv2d(4, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        """``x`` is [N, H, W, C]."""
        y = self.first(x.permute(0, 3, 1, 2)).to(memory_format=torch.channels_last)
        y = self.last(self.layer(y.relu())).permute(0, 2, 3, 1)
        means: Tensor = y.mean((1, 2))
        return means


LAYERS = {
    "batch norm": nn.BatchNorm2d(4), "group norm": nn.GroupNorm(2, 4), "max pool": nn.MaxPool2d(2),
    "mean pool": nn.AvgPool2d(2), "adaptive": nn.AdaptiveAvgPool2d(2), "dropout": nn.Dropout(0.3),
    "nearest": nn.Upsample(scale_factor=2), "mirror": nn.ReflectionPad2d(1), "prelu": nn.PReLU(4),
    "transposed": nn.ConvTranspose2d(4, 4, 2, stride=2), "depthwise": nn.Conv2d(4, 4, 3, groups=4),
}  # fmt: skip


@pytest.mark.parametrize("name", LAYERS)
def test_no_layer_asks_for_contiguous(name: str) -> None:
    torch.manual_seed(0)
    graph = _for_c(_Turned(LAYERS[name]), torch.randn(2, 10, 10, 3)).graph
    assert refusals(graph) == ()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--optimizer", "adagrad"), "optimizer adagrad is none that the C code has; plan with sgd"),
        ((), "aten.erf.default has no C kernel (1 ops); docs/operators.md lists what has a kernel"),
    ],
)
def test_solve_says_before_it_searches_what_c_lacks(
    options: tuple[str, ...], message: str, tmp_path: Path
) -> None:
    nodes = [helper.make_node("Gemm", ["x", "w"], ["h"]), helper.make_node("Erf", ["h"], ["y"])]
    info = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 3]) for name in "xy"]
    weights = [numpy_helper.from_array(np.ones((3, 3), np.float32), "w")]
    graph = helper.make_graph(nodes, "net", info[:1], info[1:], weights)
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8),
        tmp_path / "n.onnx",
    )
    for more in (("--ram", "64KiB", "-o", str(tmp_path / "n.poet")), ()):
        arguments = ["solve", str(tmp_path / "n.onnx"), "--device", "nrf52840", *more, *options]
        result = CliRunner().invoke(app, arguments)
        assert result.exit_code == 2, result.stdout
        assert f"nrf52840 runs poet-c99: {message}" in result.stderr
        assert "plan with a copy of its profile without [kernels]" in result.stderr
        assert "search: best" not in result.stderr
    assert not (tmp_path / "n.poet").exists()
