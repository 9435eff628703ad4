"""Operator rows: recurrent layers, as plain cells.

The steps are those of torch's own recurrent layers where no fused library kernel takes over
(``aten/src/ATen/native/RNN.cpp``): all input products at once, then one cell per step. So results are
bitwise those of ``nn.LSTM`` under ``torch.backends.mkldnn.flags(enabled=False)``, of ``nn.GRU`` and
of ``nn.RNN``, and a planner sees the steps one by one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from poet.frontend.onnx_node import Built, Node, row

Cell = Callable[["_Weights", Tensor, tuple[Tensor, ...]], tuple[Tensor, ...]]
"""From weights, input products and state to the next state, whose first entry is the output."""


@dataclass(frozen=True)
class _Weights:
    """One direction's weights in torch's layout: gates stacked along the first dimension."""

    of_input: Tensor
    of_hidden: Tensor
    input_bias: Tensor | None
    hidden_bias: Tensor | None


def _lstm_cell(weights: _Weights, products: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    hidden, cell = state
    gates = F.linear(hidden, weights.of_hidden, weights.hidden_bias) + products
    into, forget, candidate, out = gates.chunk(4, 1)
    cell = forget.sigmoid() * cell + into.sigmoid() * candidate.tanh()
    return out.sigmoid() * cell.tanh(), cell


def _gru_cell(weights: _Weights, products: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    hidden = state[0]
    from_input = products.chunk(3, 1)
    from_hidden = F.linear(hidden, weights.of_hidden, weights.hidden_bias).chunk(3, 1)
    reset = (from_hidden[0] + from_input[0]).sigmoid()
    update = (from_hidden[1] + from_input[1]).sigmoid()
    new = (from_input[2] + from_hidden[2] * reset).tanh()
    return ((hidden - new) * update + new,)


def _gru_cell_reset_first(
    weights: _Weights, products: Tensor, state: tuple[Tensor, ...]
) -> tuple[Tensor, ...]:
    """``linear_before_reset = 0``, ONNX's default, which torch does not have."""
    hidden = state[0]
    reset_in, update_in, new_in = products.chunk(3, 1)
    reset_weight, update_weight, new_weight = weights.of_hidden.chunk(3, 0)
    biases = (None,) * 3 if weights.hidden_bias is None else weights.hidden_bias.chunk(3, 0)
    reset = (F.linear(hidden, reset_weight, biases[0]) + reset_in).sigmoid()
    update = (F.linear(hidden, update_weight, biases[1]) + update_in).sigmoid()
    new = (new_in + F.linear(reset * hidden, new_weight, biases[2])).tanh()
    return ((hidden - new) * update + new,)


def _rnn_cell(weights: _Weights, products: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return ((F.linear(state[0], weights.of_hidden, weights.hidden_bias) + products).tanh(),)


def _rnn_relu_cell(weights: _Weights, products: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return ((F.linear(state[0], weights.of_hidden, weights.hidden_bias) + products).relu(),)


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


@row(*_KINDS, ignored=("hidden_size",))
def _recurrent(node: Node) -> Built:
    kind = _KINDS[node.proto.op_type]
    cell = _cell(node, kind)
    direction = node.text("direction", "forward")
    directions = 2 if direction == "bidirectional" else 1
    batch_first = bool(node.integer("layout", 0))
    size, states = node.shape(2)[-1], kind.states
    _refuse_unsupported(node, batch_first=batch_first)

    def run(
        x: Tensor, w: Tensor, r: Tensor, bias: Tensor | None = None, *initial: Tensor | None
    ) -> tuple[Tensor, ...]:
        x = x.transpose(0, 1) if batch_first else x
        outputs, finals = [], []
        for index in range(directions):
            backward = direction == "reverse" or index == 1
            state = tuple(
                x.new_zeros(x.shape[1], size)
                if given is None
                else _state(given, index, x.shape[1], batch_first=batch_first)
                for given in (*initial[:states], *[None] * (states - len(initial)))
            )
            weights = _weights(kind, w[index], r[index], None if bias is None else bias[index])
            output, final = _sequence(cell, weights, x, state, backward=backward)
            outputs.append(output)
            finals.append(final)
        y = torch.stack(outputs, 1)
        last = [torch.stack(entries, 0) for entries in zip(*finals, strict=True)]
        if batch_first:
            y, last = y.permute(2, 0, 1, 3), [entry.transpose(0, 1) for entry in last]
        return y, *last

    return run


def _cell(node: Node, kind: _Kind) -> Cell:
    activations = tuple(name.lower() for name in node.texts("activations"))
    directions = 2 if node.text("direction", "forward") == "bidirectional" else 1
    if node.proto.op_type == "RNN" and activations == ("relu",) * directions:
        return _rnn_relu_cell
    if activations not in ((), kind.activations * directions):
        raise node.error(f"activations {list(activations)} are not supported")
    if node.proto.op_type == "GRU":
        return _gru_cell if node.integer("linear_before_reset", 0) else _gru_cell_reset_first
    return _lstm_cell if node.proto.op_type == "LSTM" else _rnn_cell


def _refuse_unsupported(node: Node, *, batch_first: bool) -> None:
    if node.attribute("clip") is not None or node.integer("input_forget", 0):
        raise node.error("clip and input_forget are not supported")
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


def _sequence(
    cell: Cell, weights: _Weights, x: Tensor, state: tuple[Tensor, ...], *, backward: bool
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Outputs (time, batch, size) and the last state of one direction over ``x`` (time, batch, features)."""
    products = F.linear(x, weights.of_input, weights.input_bias).unbind(0)
    outputs = []
    for product in reversed(products) if backward else products:
        state = cell(weights, product, state)
        outputs.append(state[0])
    return torch.stack(outputs[::-1] if backward else outputs, 0), state
