"""Weights of recurrent layers between a module, one tensor each, and an ONNX node, stacked.

A recurrent node reads one tensor of input weights, one of hidden weights and one of biases: the directions
one after the other, and in each the gates in ONNX's order, which is not torch's. Exporters that fold
constants store them like that.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass

import torch
from onnx import AttributeProto, NodeProto
from torch import Tensor

from poet.frontend.onnx.ops_rnn import TORCH_GATES
from poet.frontend.onnx.reader import OnnxFile, StoredTensor

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
