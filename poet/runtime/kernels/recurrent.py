"""Recurrent layers as one op: the steps of torch's own cells (``aten/src/ATen/native/RNN.cpp``).

The op begins behind the input products and runs one direction of one layer. Its backward makes each
step again from the states that the forward gave, and autograd differentiates that step alone, so
that a layer needs no more workspace than a step does. Gradients are added up in the order in which
autograd would: the bits are those of ``nn.GRU`` and ``nn.RNN``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

State = tuple[Tensor, ...]
"""The hidden state; for an LSTM the cell state after it."""
Cell = Callable[[Tensor, State, Tensor, Tensor | None], State]
"""From a step's input products, the state and the hidden weights to the next state."""


def _gru(products: Tensor, state: State, weight: Tensor, bias: Tensor | None) -> State:
    (hidden,) = state
    from_input = products.unsafe_chunk(3, 1)
    from_hidden = F.linear(hidden, weight, bias).unsafe_chunk(3, 1)
    reset = from_hidden[0].add_(from_input[0]).sigmoid_()
    update = from_hidden[1].add_(from_input[1]).sigmoid_()
    new = from_input[2].add(from_hidden[2].mul_(reset)).tanh_()
    return ((hidden - new).mul_(update).add_(new),)


def _gru_reset_first(products: Tensor, state: State, weight: Tensor, bias: Tensor | None) -> State:
    """ONNX's ``linear_before_reset = 0``, which torch does not have."""
    (hidden,) = state
    reset_in, update_in, new_in = products.chunk(3, 1)
    reset_weight, update_weight, new_weight = weight.chunk(3, 0)
    biases = (None,) * 3 if bias is None else bias.chunk(3, 0)
    reset = (F.linear(hidden, reset_weight, biases[0]) + reset_in).sigmoid()
    update = (F.linear(hidden, update_weight, biases[1]) + update_in).sigmoid()
    new = (new_in + F.linear(reset * hidden, new_weight, biases[2])).tanh()
    return ((hidden - new) * update + new,)


def _rnn_tanh(products: Tensor, state: State, weight: Tensor, bias: Tensor | None) -> State:
    return (F.linear(state[0], weight, bias).add_(products).tanh_(),)


def _rnn_relu(products: Tensor, state: State, weight: Tensor, bias: Tensor | None) -> State:
    return (F.linear(state[0], weight, bias).add_(products).relu_(),)


def _lstm(products: Tensor, state: State, weight: Tensor, bias: Tensor | None) -> State:
    hidden, cell = state
    gates = F.linear(hidden, weight, bias).add_(products).unsafe_chunk(4, 1)
    into, forget, candidate, out = gates[0].sigmoid_(), gates[1].sigmoid_(), gates[2].tanh_(), gates[3]
    out = out.sigmoid_()
    cell = (forget * cell).add_(into * candidate)
    return out * cell.tanh(), cell


CELLS: dict[str, Cell] = {
    "gru": _gru,
    "gru_reset_first": _gru_reset_first,
    "rnn_tanh": _rnn_tanh,
    "rnn_relu": _rnn_relu,
    "lstm": _lstm,
}
"""By the name that a call has as its first argument."""


def steps(
    kind: str, products: Tensor, initial: Sequence[Tensor], weight: Tensor, bias: Tensor | None, reverse: bool
) -> list[State]:
    """The states after each step, in the order of the input, whichever way they were made."""
    state, states = tuple(initial), []
    for product in reversed(products.unbind(0)) if reverse else products.unbind(0):
        state = CELLS[kind](product, state, weight, bias)
        states.append(state)
    return states[::-1] if reverse else states


def forward(
    kind: str, products: Tensor, initial: Sequence[Tensor], weight: Tensor, bias: Tensor | None, reverse: bool
) -> list[Tensor]:
    """All steps' states, stacked, and then the last state, each once per tensor of the state."""
    states = steps(kind, products, initial, weight, bias, reverse)
    last = states[0 if reverse else -1]
    return [
        *(torch.stack(entries) for entries in zip(*states, strict=True)),
        *(item.clone() for item in last),
    ]


def lstm_without_gradients(
    source: Tensor,
    weight0: Tensor,
    weight1: Tensor,
    weight2: Tensor,
    weight3: Tensor,
    hidden: Tensor,
    cell: Tensor,
    reverse: bool,
    batch_sizes: Sequence[int],
    mode: int,
    hidden_size: int,
    num_layers: int,
    has_biases: bool,
    bidirectional: bool,
    batch_first: bool,
    train: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """The LSTM of ``aten.mkldnn_rnn_layer`` for inference: outputs and the last state.

    torch takes another primitive where gradients are enabled, which gives other bits and a workspace.
    """
    weights = weight0, weight1, weight2, weight3
    sizes = mode, hidden_size, num_layers
    how = has_biases, bidirectional, batch_first, train
    call: Any = torch.ops.aten.mkldnn_rnn_layer.default
    with torch.no_grad():
        outputs, *last, _ = call(source, *weights, hidden, cell, reverse, batch_sizes, *sizes, *how)
    return outputs, last[0], last[1]


def backward(
    kind: str,
    gradients: Sequence[Tensor | None],
    products: Tensor,
    initial: Sequence[Tensor],
    weight: Tensor,
    bias: Tensor | None,
    states: Sequence[Tensor],
    reverse: bool,
    wanted: Sequence[bool],
) -> list[Tensor]:
    """The gradients of products, initial state, weight and bias, as far as they are needed.

    Args:
        kind: the cell.
        gradients: of what `forward` gave, ``None`` where nothing reads it: of the stacked hidden states,
            then of the last state's tensors.
        products: as in `forward`, like the next three.
        initial: state.
        weight: of the hidden state.
        bias: of the hidden state.
        reverse: from the last moment to the first.
        states: all steps' states as `forward` gave them, the tensors of one step's state side by side.
        wanted: per result, whether it is needed; there is none for a bias that is not given.
    """
    of_outputs, *carried = gradients
    count = products.shape[0]
    order = range(count) if reverse else range(count - 1, -1, -1)  # the last step made comes first
    before = 1 if reverse else -1
    of_products: list[Tensor | None] = [None] * count
    sums: list[Tensor | None] = [None, None]
    state_gradients = tuple(carried)
    if of_outputs is not None:
        state_gradients = (_sum(of_outputs[order[0]], carried[0]), *carried[1:])
    for step in order:
        is_first = not 0 <= step + before < count
        # in memory of its own, as it was made: libraries give other bits where tensors begin elsewhere
        given = initial if is_first else [entries[step + before].clone() for entries in states]
        above = None if is_first or of_outputs is None else of_outputs[step + before]
        needs_state = not is_first or wanted[1]
        of_product, state_gradients, of_weight, of_bias = _one(
            CELLS[kind], state_gradients, above, products[step], given, weight, bias, needs_state
        )
        of_products[step] = of_product
        sums = [_sum(sums[0], of_weight), _sum(sums[1], of_bias)]
    results = [torch.stack([item for item in of_products if item is not None])] if wanted[0] else []
    if wanted[1]:
        results += [
            torch.zeros_like(item) if found is None else found
            for item, found in zip(initial, state_gradients, strict=True)
        ]
    if wanted[2]:
        results.append(sums[0] if sums[0] is not None else torch.zeros_like(weight))
    if bias is not None and wanted[3]:
        results.append(sums[1] if sums[1] is not None else torch.zeros_like(bias))
    return results


def _one(
    cell: Cell,
    gradients: Sequence[Tensor | None],
    above: Tensor | None,
    product: Tensor,
    given: Sequence[Tensor],
    weight: Tensor,
    bias: Tensor | None,
    needs_state: bool,
) -> tuple[Tensor, tuple[Tensor | None, ...], Tensor | None, Tensor | None]:
    """One step made again and differentiated.

    ``above`` is what the stacked outputs give to the hidden state before the step. Autograd has it before
    what the step itself gives, so it stands in that state's place from the start.
    """
    with torch.enable_grad():
        leaves = [item.detach().requires_grad_() for item in (product, weight)]
        bias_leaf = None if bias is None else bias.detach().requires_grad_()
        state_leaves = [item.detach().requires_grad_(needs_state) for item in given]
        state = tuple(item.view_as(item) for item in state_leaves)
        made = cell(leaves[0], state, leaves[1], bias_leaf)
        roots = [(item, found) for item, found in zip(made, gradients, strict=True) if found is not None]
        if above is not None and needs_state:
            roots.append((state[0], above))
        inputs = [
            *leaves,
            *([] if bias_leaf is None else [bias_leaf]),
            *(state_leaves if needs_state else ()),
        ]
        found = torch.autograd.grad(
            [root for root, _ in roots], inputs, [item for _, item in roots], allow_unused=True
        )
    of_product = torch.zeros_like(product) if found[0] is None else found[0]
    after = found[2 + (bias is not None) :]
    return of_product, tuple(after), found[1], found[2] if bias is not None else None


def _sum(present: Tensor | None, more: Tensor | None) -> Tensor | None:
    if present is None or more is None:
        return more if present is None else present
    return present + more
