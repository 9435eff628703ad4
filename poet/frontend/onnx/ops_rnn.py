"""Operator rows: recurrent layers.

They are run as ``nn.LSTM``, ``nn.GRU`` and ``nn.RNN`` run them, bit for bit: an LSTM in single precision by
torch's library kernel, all others by the cells of `poet.runtime.kernels.recurrent`. While a step is traced,
each direction is one op.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from poet.frontend.onnx.node import Built, Node, row
from poet.frontend.recurrent import layer


@dataclass(frozen=True)
class _Weights:
    """One direction's weights in torch's layout: gates stacked along the first dimension."""

    of_input: Tensor
    of_hidden: Tensor
    input_bias: Tensor | None
    hidden_bias: Tensor | None


@dataclass(frozen=True)
class _Kind:
    """A recurrent operator: where torch's gates stand among ONNX's, its states and default activations."""

    gates: tuple[int, ...]
    states: int
    activations: tuple[str, ...]


_KINDS = {
    "LSTM": _Kind((0, 2, 3, 1), 2, ("sigmoid", "tanh", "tanh")),  # ONNX i o f c, torch i f g o
    "GRU": _Kind((1, 0, 2), 1, ("sigmoid", "tanh")),  # ONNX z r h, torch r z n
    "RNN": _Kind((0,), 1, ("tanh",)),
}
TORCH_GATES = {operator: kind.gates for operator, kind in _KINDS.items()}
"""By operator: for each gate in torch's order, its place in ONNX's."""


@row(*_KINDS, heavy=True)
def _recurrent(node: Node) -> Built:
    kind = _KINDS[node.proto.op_type]
    cell = _cell(node, kind)
    direction = node.text("direction", "forward", ("forward", "reverse", "bidirectional"))
    directions = 2 if direction == "bidirectional" else 1
    batch_first = node.flag("layout")
    size, states = node.shape(2)[-1], kind.states
    _refuse_unsupported(node, batch_first=batch_first)

    def run(
        x: Tensor, w: Tensor, r: Tensor, bias: Tensor | None = None, *initial: Tensor | None
    ) -> tuple[Tensor, ...]:
        x = x.transpose(0, 1) if batch_first else x
        weights = [
            _weights(kind, w[index], r[index], None if bias is None else bias[index])
            for index in range(directions)
        ]
        begin = [
            tuple(
                x.new_zeros(x.shape[1], size)
                if given is None
                else _state(given, index, x.shape[1], batch_first=batch_first)
                for given in (*initial[:states], *[None] * (states - len(initial)))
            )
            for index in range(directions)
        ]
        if cell == "lstm" and x.dtype == torch.float32 and direction != "reverse":
            y, last = _library_lstm(x, weights, begin)
        else:
            found = [
                layer(
                    cell, x, begin[index], (one.of_input, one.of_hidden),
                    (one.input_bias, one.hidden_bias), reverse=direction == "reverse" or index == 1,
                )
                for index, one in enumerate(weights)
            ]  # fmt: skip
            y = torch.stack([output for output, _ in found], 1)
            last = [torch.stack(entries, 0) for entries in zip(*(final for _, final in found), strict=True)]
        if batch_first:
            y, last = y.permute(2, 0, 1, 3), [entry.transpose(0, 1) for entry in last]
        return y, *last

    return run


def _cell(node: Node, kind: _Kind) -> str:
    """The name of the cell in `poet.runtime.kernels.recurrent`."""
    activations = tuple(name.lower() for name in node.texts("activations"))
    directions = 2 if node.text("direction", "forward") == "bidirectional" else 1
    if node.proto.op_type == "RNN" and activations == ("relu",) * directions:
        return "rnn_relu"
    if activations not in ((), kind.activations * directions):
        raise node.error(f"activations {list(activations)} are not supported")
    if node.proto.op_type == "GRU":
        return "gru" if node.flag("linear_before_reset") else "gru_reset_first"
    return "lstm" if node.proto.op_type == "LSTM" else "rnn_tanh"


def _refuse_unsupported(node: Node, *, batch_first: bool) -> None:
    if node.attribute("clip") is not None or node.flag("input_forget"):
        raise node.error("clip and input_forget are not supported")
    if node.integer("hidden_size", node.shape(2)[-1]) != node.shape(2)[-1]:
        raise node.error(f"a hidden_size other than that of its weights, {node.shape(2)[-1]}")
    place, states = 0 if batch_first else 1, node.inputs[5:7]
    batch = {node.shape(0)[place], node.rebound.old if node.rebound else -1}
    for state in states:
        meta = state.meta if state and state.constant is None else None
        if isinstance(meta, Tensor) and meta.shape[place] not in batch:
            raise node.error(f"an initial state of shape {list(meta.shape)} for another batch")
    node.drop(4)
    if node.has(4):
        time = node.shape(0)[1 if batch_first else 0]
        if any(length != time for length in node.ints(4, "sequence lengths")):
            raise node.error("sequences shorter than the input are not supported")
    if node.has(7) and bool(node.constant(7, "peepholes").any()):
        raise node.error("peepholes are not supported")


def _weights(kind: _Kind, w: Tensor, r: Tensor, bias: Tensor | None) -> _Weights:
    count = len(kind.gates)

    def ordered(stacked: Tensor) -> Tensor:
        if count == 1:
            return stacked
        parts = stacked.chunk(count, 0)
        return torch.cat([parts[gate] for gate in kind.gates])

    if bias is None:
        return _Weights(ordered(w), ordered(r), None, None)
    of_input, of_hidden = bias.chunk(2, 0)
    return _Weights(ordered(w), ordered(r), ordered(of_input), ordered(of_hidden))


def _state(given: Tensor, index: int, batch: int, *, batch_first: bool) -> Tensor:
    state = given[:, index] if batch_first else given[index]
    return state if state.shape[0] == batch else state[:1].expand(batch, -1)  # a batch baked in


def _library_lstm(
    x: Tensor, weights: Sequence[_Weights], states: Sequence[Sequence[Tensor]]
) -> tuple[Tensor, list[Tensor]]:
    """What ``nn.LSTM`` calls: outputs (time, directions, batch, size), and the last states."""
    parameters = [
        item
        for one in weights
        for item in (one.of_input, one.of_hidden, one.input_bias, one.hidden_bias)
        if item is not None
    ]
    initial = tuple(torch.stack(entries, 0) for entries in zip(*states, strict=True))
    has_biases = weights[0].input_bias is not None
    output, hidden, cell = torch.lstm(
        x, initial, parameters, has_biases, 1, 0.0, True, len(weights) == 2, False
    )
    return output.reshape(*output.shape[:2], len(weights), -1).transpose(1, 2), [hidden, cell]
