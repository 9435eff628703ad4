"""Recurrent layers as one op, from modules and from ONNX nodes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from helpers.onnx_tools import make_model, save
from helpers.pace import with_slow
from helpers.reference import run_graph
from onnx import helper
from torch import Tensor, nn
from torch.nn import functional as F

from poet.frontend.onnx.importer import load_onnx
from poet.frontend.trace import trace_training_step
from poet.ir.optimizer import OptimizerSpec


class Sequences(nn.Module):
    """A recurrent layer, read at all moments, at the last one, or both."""

    def __init__(self, rnn: nn.RNNBase, read: str) -> None:
        super().__init__()
        self.rnn, self.read = rnn, read
        self.head = nn.Linear(rnn.hidden_size * (1 + rnn.bidirectional), 3)

    def forward(self, x: Tensor) -> Tensor:
        outputs, last = self.rnn(x)
        last = last[0] if isinstance(last, tuple) else last
        last = last[-2:].transpose(0, 1).flatten(1) if self.rnn.bidirectional else last[-1]
        return self.head({"all": outputs.mean(1), "last": last, "both": outputs[:, 3] + last}[self.read])  # type: ignore[no-any-return]


CASES = {
    "gru": (nn.GRU(5, 10, 2, bidirectional=True, batch_first=True), "all", 2),
    "gru, odd size": (nn.GRU(5, 9, batch_first=True), "both", 5),
    "gru without bias": (nn.GRU(5, 7, bias=False, batch_first=True), "last", 3),
    "gru with dropout": (nn.GRU(5, 4, 2, dropout=0.4, batch_first=True), "both", 2),
    "rnn": (nn.RNN(5, 9, 2, bidirectional=True, batch_first=True), "both", 1),
    "rnn of relu": (nn.RNN(5, 8, nonlinearity="relu", batch_first=True), "all", 5),
    "lstm": (nn.LSTM(5, 6, bidirectional=True, batch_first=True), "both", 2),
}


@pytest.mark.parametrize("name", with_slow(CASES, {"gru", "gru without bias", "rnn"}))
def test_a_layer_is_one_op_per_direction(name: str) -> None:
    rnn, read, batch = CASES[name]
    step = trace_training_step(Sequences(rnn, read).train(), torch.randn(batch, 20, 5), measure=False)
    kinds = [op.call.target for op in step.graph.ops]
    own = "aten.mkldnn_rnn_layer.default" if name == "lstm" else "poet.recurrent"
    assert kinds.count(own) == rnn.num_layers * (1 + rnn.bidirectional)
    assert len(kinds) < 90


def test_frozen_weights_get_no_gradient_and_change_no_other() -> None:
    torch.manual_seed(0)
    net, x, targets = (
        Sequences(nn.GRU(5, 9, batch_first=True), "both"),
        torch.randn(2, 6, 5),
        torch.tensor([0, 2]),
    )
    step = trace_training_step(net, x, measure=False, train=["rnn.weight_ih_l0", "head.*"])
    backward = [op for op in step.graph.ops if op.call.target == "poet.recurrent_backward"]
    assert [op.call.args[-1] for op in backward] == [(True, False, False, False)]
    inputs = dict(zip(step.graph.inputs, (x, targets), strict=True))
    own = {key: value.clone() for key, value in step.tensors.items()}
    values = run_graph(step.graph, own, inputs, OptimizerSpec().hyperparameters(1))
    torch.autograd.backward(F.cross_entropy(net(x), targets))
    assert torch.equal(values["rnn.weight_ih_l0.grad"], net.rnn.weight_ih_l0.grad)  # type: ignore[arg-type]


@pytest.mark.parametrize("before_reset", [0, 1])
def test_an_onnx_gru_is_one_op_whichever_reset_it_has(before_reset: int, tmp_path: Path) -> None:
    torch.manual_seed(0)
    shapes = {"w": (2, 12, 3), "r": (2, 12, 4), "b": (2, 24)}
    weights = {name: torch.randn(shape).numpy() for name, shape in shapes.items()}
    node = helper.make_node(
        "GRU", ["x", "w", "r", "b"], ["y"], hidden_size=4, direction="bidirectional",
        linear_before_reset=before_reset,
    )  # fmt: skip
    path = save(make_model([node], {"x": [7, 2, 3]}, ["y"], weights), tmp_path / "m.onnx")
    module = load_onnx(path).module
    step = trace_training_step(module, torch.randn(7, 2, 3), loss="output", measure=False)
    assert [op.call.target for op in step.graph.ops].count("poet.recurrent") == 2
    x = torch.randn(7, 2, 3)
    own = {key: value.clone() for key, value in step.tensors.items()}
    values = run_graph(step.graph, own, {step.graph.inputs[0]: x}, OptimizerSpec().hyperparameters(1))
    torch.autograd.backward(module(x).sum())
    for parameter in step.graph.parameters:
        assert torch.equal(values[str(parameter.gradient)], module.get_parameter(parameter.name).grad)  # type: ignore[arg-type]
