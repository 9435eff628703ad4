"""Which initialisers are weights: what exporters did to them undone, parameters separated from constants."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import torch
from onnx import AttributeProto, ModelProto, NodeProto
from torch import Tensor

from poet.errors import ModelError
from poet.frontend.onnx.build import TABLES  # noqa: F401  fills ROWS
from poet.frontend.onnx.node import ROWS
from poet.frontend.onnx.reader import DTYPES, NUMBERS, OnnxFile, StoredTensor, names_read, tensor_value
from poet.util.reading import MOST_DIMENSIONS, parse_json

TRAINABLE_KEY = "poet.trainable"
"""Metadata of a stripped structure: the parameters, decided when the weights were at hand."""

_KIND_KEY = "pkg.torch.export.graph_signature.InputSpec.kind"
_SHAPE_SUFFIX = "__SHAPE"
# what exporters call constants that were numbers or masks in the model's source
_CONSTANT_NAME = re.compile(r"\d+|val_\d+|onnx::.*|.*(lifted_tensor|scalar_tensor|_tensor_constant).*")
_MASKED = 1e30
_MAX_FILLED = 1 << 33
"""Elements of a weight that a file gives as one number; more is a trap, not a model."""

_OF_SHAPE_OR_TYPE = frozenset(
    ("Cast", "CastLike", "Expand", "Flatten", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze")
)
_WITH_WEIGHTS = frozenset(("Conv", "ConvTranspose", "Gemm", "MatMul", "LayerNormalization", "PRelu"))
"""Operators whose weights may be single numbers, which elsewhere are no weights."""


def _fixed(op: str) -> tuple[int, ...]:
    """Inputs of an operator that are never weights."""
    return ROWS[op].fixed if op in ROWS else ()


def with_own_weights(file: OnnxFile) -> OnnxFile:
    """``file`` with each weight as an initialiser of its own, in torch's layout.

    - The legacy exporter, in evaluation mode, stores tensors of equal content once and copies them by
      Identity nodes: layer norms that are all ones would become one parameter. Copies of a tensor whose
      elements are all equal get their own again; others are one parameter that the model uses twice.
    - It also stores the weight of a linear layer transposed, under a name of its own. Such a weight gets
      its layout back, and its name after the bias; or it is the word embedding that a head shares.
    - Weights in Constant nodes become initialisers, which are trained only where somebody names them.
    - Initialisers that nothing reads are left out.
    - What DequantizeLinear makes of initialisers is one itself: an integer times its scale, in float32.
    - ``light_*`` models give their weights as ``ConstantOfShape(name + "__SHAPE")``.
    """
    model = ModelProto()
    model.CopyFrom(file.model)
    edit = _Edit(model, dict(file.tensors))
    for node in file.model.graph.node:
        edit.node(node)
    del model.graph.node[:]
    model.graph.node.extend(edit.kept)
    # before IR version 4 initialisers were inputs, too
    inputs = [entry for entry in model.graph.input if entry.name not in file.tensors]
    del model.graph.input[:]
    model.graph.input.extend(inputs)
    read = names_read(model.graph)
    initializers = [tensor for tensor in model.graph.initializer if tensor.name in read]
    del model.graph.initializer[:]
    model.graph.initializer.extend(initializers)
    tensors = {tensor.name: edit.tensors[tensor.name] for tensor in initializers}
    return replace(file, model=model, tensors=tensors, constants=frozenset(edit.constants & tensors.keys()))


class _Edit:
    def __init__(self, model: ModelProto, tensors: dict[str, StoredTensor]) -> None:
        self.model = model
        self.tensors = tensors
        self.kept: list[NodeProto] = []
        self.renamed: dict[str, str] = {}
        self.named = [name for name in tensors if not _CONSTANT_NAME.fullmatch(name)]
        self.outputs = {output.name for output in model.graph.output}
        self.uses = Counter(name for node in model.graph.node for name in node.input)
        self.vectors = {
            other: name
            for node in model.graph.node
            if node.op_type == "Add" and len(node.input) == 2
            for name, other in (tuple(node.input), tuple(reversed(node.input)))
            if name in tensors and len(tensors[name].shape) == 1
        }
        self.constants: set[str] = set()
        self.fixed = {name for name, stored in tensors.items() if not stored.dtype.is_floating_point}
        self.readers: dict[str, list[tuple[NodeProto, int]]] = {}
        for node in model.graph.node:
            if self.fixed.issuperset(filter(None, node.input)):
                self.fixed.update(node.output)
            for index, name in enumerate(node.input):
                self.readers.setdefault(name, []).append((node, index))

    def node(self, original: NodeProto) -> None:
        node = NodeProto()
        node.CopyFrom(original)
        for index, used in enumerate(node.input):
            node.input[index] = self.renamed.get(used, used)
        name = node.output[0] if node.output else ""
        first = node.input[0] if node.input else ""
        if node.op_type == "Identity" and first in self.tensors and name not in self.outputs:
            if _all_equal(self.tensors[first]):
                self.add(name, self.tensors[first])
            else:
                self.renamed[name] = first
        elif node.op_type == "ConstantOfShape" and first == name + _SHAPE_SUFFIX and first in self.tensors:
            self.add(name, _filled(node, self.tensors[first]))
        elif node.op_type == "DequantizeLinear" and (stored := self.dequantised(node)) is not None:
            self.add(name, stored)
        elif node.op_type == "Constant" and name not in self.outputs and self.is_weight(node):
            content = tensor_value(node.attribute[0].t, f"node {name!r} (Constant)")
            self.add(name, StoredTensor(content.dtype, tuple(content.shape), lambda: content))
            self.constants.add(name)
        else:
            if node.op_type == "MatMul" and len(node.input) == 2:
                self.untranspose(node)
            self.kept.append(node)

    def is_weight(self, node: NodeProto) -> bool:
        """Whether a Constant has floats that are used as a weight, and not to compute another constant."""
        value = node.attribute[0].t if [item.name for item in node.attribute] == ["value"] else None
        if value is None or not value.dims or 0 in value.dims:
            return False
        dtype, is_single = DTYPES.get(value.data_type), math.prod(value.dims) == 1
        pending, places = [node.output[0]], list[tuple[NodeProto, int]]()
        while pending:
            for reader, index in self.readers.get(pending.pop(), []):
                if reader.op_type in _OF_SHAPE_OR_TYPE and index == 0:
                    pending += reader.output
                elif self.fixed.issuperset(filter(None, reader.input)):
                    return False
                else:
                    places.append((reader, index))
        if dtype is None or not dtype.is_floating_point or not places:
            return False
        if any(
            reader.op_type == "InstanceNormalization" for reader, _ in places
        ):  # of a group norm, by torch
            content = tensor_value(value, f"node {node.output[0]!r} (Constant)")
            return not bool((content == content.reshape(-1)[0]).all())
        return all(
            reader.op_type == "BatchNormalization"
            or (index not in _fixed(reader.op_type) and not is_single)
            or (reader.op_type in _WITH_WEIGHTS and index > 0)
            for reader, index in places
        )

    def add(self, name: str, stored: StoredTensor) -> None:
        """Enters an initialiser; its content is in ``tensors`` only."""
        self.model.graph.initializer.add(name=name, dims=stored.shape, data_type=NUMBERS[stored.dtype])
        self.tensors[name] = stored

    def dequantised(self, node: NodeProto) -> StoredTensor | None:
        """What the node makes of constants, by one scale or one for each index of an axis; else ``None``."""
        given = [self.tensors.get(name) for name in node.input if name]
        numbers = {item.name: item.i for item in node.attribute}
        if not 2 <= len(given) <= 3 or numbers.keys() - {"axis"} or node.output[0] in self.outputs:
            return None
        stored = [item for item in given if item is not None and item.read is not None]
        if len(stored) < len(given) or stored[0].dtype not in (torch.int8, torch.uint8):
            return None
        shape, scales = stored[0].shape, stored[1]
        axis = numbers.get("axis", 1) % max(len(shape), 1)
        wanted = [1] * len(shape)
        if scales.shape not in ((), (1,)):
            wanted[axis] = shape[axis]
            if scales.shape != (shape[axis],):
                return None
        if scales.dtype != torch.float32 or any(item.shape != scales.shape for item in stored[2:]):
            return None

        def parts() -> tuple[Tensor, Tensor]:
            integers, scale, *zero = (item.read() for item in stored if item.read is not None)
            shift = zero[0].reshape(wanted).short() if zero else 0
            return integers.short() - shift, scale.reshape(wanted)

        def read() -> Tensor:
            integers, scale = parts()
            return integers.float() * scale

        return StoredTensor(torch.float32, shape, read, parts)

    def untranspose(self, node: NodeProto) -> None:
        name = node.input[1]
        stored = self.tensors.get(name)
        if stored is None or len(stored.shape) != 2 or self.uses[name] != 1 or name in self.constants:
            return
        if not stored.dtype.is_floating_point:
            return
        read = stored.read
        parts = stored.quantised
        turned = StoredTensor(
            stored.dtype,
            stored.shape[::-1],
            None if read is None else lambda: read().t().contiguous(),
            None if parts is None else lambda: (parts()[0].t(), parts()[1].t()),
        )
        weight = self.shared(name, turned)
        if weight is None:
            weight = self.weight_name(name, self.vectors.get(node.output[0], ""))
            self.add(weight, turned)
        transposed = f"{node.output[0]}::transposed"
        order = AttributeProto(name="perm", type=AttributeProto.INTS, ints=(1, 0))
        self.kept.append(
            NodeProto(op_type="Transpose", input=[weight], output=[transposed], attribute=[order])
        )
        node.input[1] = transposed

    def weight_name(self, name: str, bias: str) -> str:
        """What to call the transposed ``name``: the sibling of ``bias`` if the exporter invented ``name``."""
        sibling = bias.removesuffix(".bias") + ".weight"
        invented = _CONSTANT_NAME.fullmatch(name) is not None
        return sibling if invented and sibling not in (".weight", *self.tensors) else f"{name}.transposed"

    def shared(self, name: str, turned: StoredTensor) -> str | None:
        """Another initialiser with the content of ``turned``, if the exporter invented ``name``."""
        if not _CONSTANT_NAME.fullmatch(name) or turned.read is None:
            return None
        content = None
        for other in self.named:
            stored = self.tensors[other]
            if (stored.shape, stored.dtype) == (turned.shape, turned.dtype) and stored.read is not None:
                content = turned.read() if content is None else content
                if torch.equal(stored.read(), content) and not _all_equal(stored):
                    return other
        return None


def _all_equal(stored: StoredTensor) -> bool:
    content = stored.read() if stored.read is not None else None
    return content is not None and content.numel() > 0 and bool((content == content.reshape(-1)[0]).all())


def _filled(node: NodeProto, shape: StoredTensor) -> StoredTensor:
    fill = torch.zeros(1)
    for attribute in node.attribute:
        if attribute.name == "value":
            fill = tensor_value(attribute.t, f"node {node.output[0]!r} (ConstantOfShape)")
    sizes = tuple(int(size) for size in shape.read().reshape(-1).tolist()) if shape.read is not None else ()
    if len(sizes) > MOST_DIMENSIONS or min(sizes, default=0) < 0 or math.prod(sizes) > _MAX_FILLED:
        raise ModelError(
            f"node {node.output[0]!r} (ConstantOfShape): a weight of shape {list(sizes[:MOST_DIMENSIONS])}"
        )
    read: Callable[[], Tensor] = lambda: torch.full(sizes, fill.item(), dtype=fill.dtype)  # noqa: E731
    return StoredTensor(fill.dtype, sizes, read)


def trainable_initializers(file: OnnxFile) -> frozenset[str]:
    """The initialisers that are parameters.

    Floating-point initialisers are, except: what torch's exporter marks as a buffer; inputs that are
    never weights (running statistics, initial states, limits); single numbers with an exporter's name;
    masks (with infinities or values beyond 1e30); and tensors without elements.
    """
    for entry in file.model.metadata_props:
        if entry.key == TRAINABLE_KEY:
            return _written_down(file, entry.value)
    kinds = {
        value.name: entry.value
        for value in file.model.graph.value_info
        for entry in value.metadata_props
        if entry.key == _KIND_KEY
    }
    fixed = {
        node.input[index]
        for node in file.model.graph.node
        for index in _fixed(node.op_type)
        if index < len(node.input)
    }
    return frozenset(
        name
        for name, stored in file.tensors.items()
        if stored.dtype.is_floating_point and name not in fixed and 0 not in stored.shape
        if kinds.get(name, "PARAMETER") == "PARAMETER"
        if kinds.get(name) == "PARAMETER" or not _looks_constant(name, stored)
    )


def _written_down(file: OnnxFile, text: str) -> frozenset[str]:
    """The names in a structure's note on its parameters."""
    try:
        names = parse_json(text)
    except ValueError:
        names = None
    floats = {name for name, stored in file.tensors.items() if stored.dtype.is_floating_point}
    if not isinstance(names, list) or not all(isinstance(name, str) and name in floats for name in names):
        raise ModelError(f"its note {TRAINABLE_KEY!r} does not name parameters of the model; it is damaged")
    return frozenset(names)


def _looks_constant(name: str, stored: StoredTensor) -> bool:
    if len(stored.shape) == 0:
        return _CONSTANT_NAME.fullmatch(name) is not None
    if "__SHAPE" in name or stored.read is None:
        return False
    # masks are small beside weights, and square or with leading ones: do not read every weight for them
    square = len(stored.shape) >= 2 and stored.shape[-1] == stored.shape[-2]
    if not square or stored.size_bytes > 1 << 26:
        return False
    content = stored.read()
    return bool((content.abs() > _MASKED).any())
