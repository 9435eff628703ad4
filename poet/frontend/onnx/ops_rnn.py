"""Operator rows: recurrent layers, run bit for bit as ``nn.LSTM``, ``nn.GRU`` and ``nn.RNN`` run them.

A node reads one tensor of input weights, one of hidden weights and one of biases: the directions one after
the other, and in each the gates in ONNX's order, which is not torch's.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from onnx import AttributeProto, NodeProto
from torch import Tensor

from poet.frontend.onnx.node import Built, Node, row
from poet.frontend.onnx.reader import OnnxFile, StoredTensor
from poet.frontend.traced_operators import layer

_Weights = tuple[Tensor, Tensor, Tensor | None, Tensor | None]
"""Of one direction, in torch's order of gates: of input and hidden state, then the biases of these."""


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


@row(*_KINDS, heavy=True, fixed=(4, 5, 6, 7))
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
                layer(cell, x, begin[index], one[:2], one[2:], reverse=direction == "reverse" or index == 1)
                for index, one in enumerate(weights)
            ]
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
        return ordered(w), ordered(r), None, None
    of_input, of_hidden = bias.chunk(2, 0)
    return ordered(w), ordered(r), ordered(of_input), ordered(of_hidden)


def _state(given: Tensor, index: int, batch: int, *, batch_first: bool) -> Tensor:
    state = given[:, index] if batch_first else given[index]
    return state if state.shape[0] == batch else state[:1].expand(batch, -1)  # a batch baked in


def _library_lstm(
    x: Tensor, weights: Sequence[_Weights], states: Sequence[Sequence[Tensor]]
) -> tuple[Tensor, list[Tensor]]:
    """What ``nn.LSTM`` calls: outputs (time, directions, batch, size), and the last states."""
    parameters = [item for one in weights for item in one if item is not None]
    initial = tuple(torch.stack(entries, 0) for entries in zip(*states, strict=True))
    has_biases = weights[0][2] is not None
    output, hidden, cell = torch.lstm(
        x, initial, parameters, has_biases, 1, 0.0, True, len(weights) == 2, False
    )
    return output.reshape(*output.shape[:2], len(weights), -1).transpose(1, 2), [hidden, cell]


_INPUT_WEIGHTS, _BIASES = 1, 3
_ROLES = {_INPUT_WEIGHTS: ("weight_ih",), 2: ("weight_hh",), _BIASES: ("bias_ih", "bias_hh")}
"""What the inputs of a recurrent node are called in torch; the last holds both, one after the other."""
_REVERSE = "_reverse"


@dataclass(frozen=True)
class Packed:
    """An initialiser that holds several tensors of a module.

    Attributes:
        keys: of the module's tensors, in the order in which they are stacked.
        gates: for each gate in torch's order, its place in ONNX's.
    """

    keys: tuple[str, ...]
    gates: tuple[int, ...]


@dataclass(frozen=True)
class _Piece:
    """One of the module's tensors inside an initialiser, in the module's layout."""

    initializer: str
    role: str
    is_reverse: bool
    content: Tensor

    def key(self, module: str, number: str) -> str:
        """Its name in a module of torch; ``number`` is that of the layer, as in ``_l0``."""
        leaf = f"{self.role}{number}{_REVERSE if self.is_reverse else ''}"
        return f"{module}.{leaf}" if module else leaf


def recurrent_weights(
    node: NodeProto, file: OnnxFile, tensors: Mapping[str, Tensor], taken: Collection[str]
) -> dict[str, Packed]:
    """By initialiser that ``node`` reads and that is not ``taken``: which of ``tensors`` it holds.

    Empty where the node is not recurrent, or not exactly one layer has these weights.
    """
    gates = TORCH_GATES.get(node.op_type)
    if gates is None:
        return {}
    pieces = [
        piece
        for index, name in enumerate(node.input)
        if index in _ROLES and name in file.tensors and name not in taken
        for piece in _pieces(name, index, file.tensors[name], _is_reverse(node), gates)
    ]
    if not any(piece.role == _ROLES[_INPUT_WEIGHTS][0] for piece in pieces):
        return {}
    layers = [
        layer
        for layer in _layers(tensors)
        if all(_is_equal(piece.content, tensors.get(piece.key(*layer))) for piece in pieces)
    ]
    modules = {module for module, _ in layers}
    if len(modules) > 1:
        modules = {module for module in modules if module and f".{module}." in place_of(node)}
    if len(modules) != 1:
        return {}
    # of layers with equal weights, the first: nodes stand in the order of the layers
    found = next(layer for layer in layers if layer[0] in modules)
    return {
        name: Packed(tuple(piece.key(*found) for piece in pieces if piece.initializer == name), gates)
        for name in dict.fromkeys(piece.initializer for piece in pieces)
    }


def packing(
    sources: list[str],
    name: str,
    gates: tuple[int, ...],
    file: OnnxFile,
    entered: Callable[[str, Tensor], str],
) -> Iterator[NodeProto]:
    """The nodes that make the initialiser ``name`` of ``sources``, the module's tensors.

    ``entered`` enters a constant under a name like the given one.
    """
    shape = file.tensors[name].shape
    sizes = [shape[0] * shape[1] // len(sources) // len(gates)] * len(gates)
    opset = max(entry.version for entry in file.model.opset_import if entry.domain in ("", "ai.onnx"))
    parts: list[str] = []
    for source in sources:
        cut = [f"{source}.gate{index}" for index in range(len(gates))]
        parts += [cut[gates.index(place)] for place in range(len(gates))]
        split = NodeProto(op_type="Split", input=[source], output=cut, name=f"{source}.split")
        split.attribute.add(name="axis", type=AttributeProto.INT, i=0)
        if opset >= 13:
            split.input.append(entered(f"{source}.sizes", torch.tensor(sizes)))
        else:
            split.attribute.add(name="split", type=AttributeProto.INTS, ints=sizes)
        yield split
    axis = AttributeProto(name="axis", type=AttributeProto.INT, i=0)
    stacked = f"{sources[0]}.stacked"
    yield NodeProto(op_type="Concat", input=parts, output=[stacked], name=stacked, attribute=[axis])
    wanted = entered(f"{sources[0]}.shape", torch.tensor(shape))
    yield NodeProto(op_type="Reshape", input=[stacked, wanted], output=[name], name=f"{sources[0]}.reshape")


def place_of(node: NodeProto) -> str:
    """Where an exporter says that a node stands, as names of modules are written, between points."""
    return "." + node.name.replace("/", ".").strip(".") + "."


def _pieces(
    name: str, index: int, stored: StoredTensor, is_reverse: bool, gates: tuple[int, ...]
) -> Iterator[_Piece]:
    """The module's tensors in an input of a recurrent node; none where its shape is not of that kind."""
    roles = _ROLES[index]
    dimensions = 2 if index == _BIASES else 3
    if stored.read is None or len(stored.shape) != dimensions or stored.shape[1] % (len(roles) * len(gates)):
        return
    for number, direction in enumerate(stored.read()):
        for role, content in zip(roles, direction.chunk(len(roles)), strict=True):
            chunks = content.chunk(len(gates))
            ordered = torch.cat([chunks[place] for place in gates])
            yield _Piece(name, role, is_reverse or number == 1, ordered)


def _layers(tensors: Mapping[str, Tensor]) -> list[tuple[str, str]]:
    """Modules and numbers of the recurrent layers among ``tensors``."""
    layers = list[tuple[str, str]]()
    for key in tensors:
        module, _, leaf = key.rpartition(".")
        number = leaf.removeprefix(_ROLES[_INPUT_WEIGHTS][0]).removesuffix(_REVERSE)
        if leaf.startswith(_ROLES[_INPUT_WEIGHTS][0]) and (module, number) not in layers:
            layers.append((module, number))
    return layers


def _is_equal(content: Tensor, tensor: Tensor | None) -> bool:
    return tensor is not None and tensor.dtype == content.dtype and torch.equal(tensor, content)


def _is_reverse(node: NodeProto) -> bool:
    return any(entry.name == "direction" and entry.s == b"reverse" for entry in node.attribute)
