"""From an ONNX file to its structure and its tensors, which stay on disk until they are asked for.

Everything read here was written by a stranger: sizes are checked against the file before anything is
allocated, external data must lie in the model's folder, and nothing is ever executed.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import onnx
import torch
from google.protobuf.message import DecodeError, Message  # type: ignore[import-untyped]
from onnx import AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto, TensorProto
from torch import Tensor

from poet.errors import ModelError
from poet.files.kinds import FileKind, says_what_it_is
from poet.util.brief import brief
from poet.util.reading import MOST_DIMENSIONS, is_same_file, open_regular, read_regular

OLDEST_OPSET, NEWEST_OPSET = 9, 24
LARGEST_BYTES = 2**31 - 1
"""Of a protobuf message; what is larger keeps its weights in external data files."""
_MOST_NODES = 1 << 20
_INLINE_BYTES = 256
"""Data up to this size stays in the structure: shapes and scalars are needed at once."""

Span = tuple[int, int]
"""First byte and size of a stretch of the file."""

DTYPES: dict[int, torch.dtype] = {
    TensorProto.FLOAT: torch.float32,
    TensorProto.DOUBLE: torch.float64,
    TensorProto.FLOAT16: torch.float16,
    TensorProto.BFLOAT16: torch.bfloat16,
    TensorProto.INT64: torch.int64,
    TensorProto.INT32: torch.int32,
    TensorProto.INT16: torch.int16,
    TensorProto.INT8: torch.int8,
    TensorProto.UINT8: torch.uint8,
    TensorProto.UINT16: torch.uint16,
    TensorProto.UINT32: torch.uint32,
    TensorProto.UINT64: torch.uint64,
    TensorProto.BOOL: torch.bool,
}
"""ONNX element types and the torch types that stand for them."""
NUMBERS = {dtype: number for number, dtype in DTYPES.items()}
"""The other way round."""


def dtype_of(data_type: int, where: str) -> torch.dtype:
    """The torch type of an ONNX element type.

    Raises:
        ModelError: torch has no such type, or it is not one of numbers; ``where`` names its place.
    """
    if data_type in DTYPES:
        return DTYPES[data_type]
    known = TensorProto.DataType.items()
    name = next((name for name, number in known if number == data_type), str(data_type))
    raise ModelError(f"{where} has element type {name}, which is not supported")


@dataclass(frozen=True)
class StoredTensor:
    """A tensor of the file: its type now, its content when asked for.

    ``read`` is ``None`` where a structure came without its weights. ``quantised`` gives the integers and the
    scales, broadcast with them, that the content is the product of; ``None``: it is not.
    """

    dtype: torch.dtype
    shape: tuple[int, ...]
    read: Callable[[], Tensor] | None
    quantised: Callable[[], tuple[Tensor, Tensor]] | None = None

    __repr__ = brief

    @property
    def size_bytes(self) -> int:
        """Bytes of the content."""
        return math.prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True)
class OnnxFile:
    """A model as read: ``model`` has no weights inside, ``tensors`` has one entry per initialiser.

    ``digest`` is the SHA-256 of the file followed by its external data files in the order of their names.
    ``constants`` are the initialisers that `poet.frontend.onnx.weights` made of weights in Constant nodes.
    """

    name: str
    model: ModelProto
    tensors: Mapping[str, StoredTensor]
    digest: str
    constants: frozenset[str] = frozenset()

    __repr__ = brief

    @property
    def opset(self) -> int:
        """The version of the standard operator set."""
        return next(
            (entry.version for entry in self.model.opset_import if entry.domain in ("", "ai.onnx")), 0
        )


@says_what_it_is(FileKind.ONNX)
def read_onnx(path: str | Path) -> OnnxFile:
    """Reads the model at ``path``; weights stay in the file, and in its external data files.

    Raises:
        ModelError: the file is missing, damaged, of an unknown operator set, or points outside its folder.
    """
    path = Path(path)
    try:
        with open_regular(path) as file:
            size_bytes = os.fstat(file.fileno()).st_size
            if not size_bytes:
                raise ModelError("the file is empty")
            if size_bytes > LARGEST_BYTES:
                raise ModelError("an ONNX file above 2 GiB; save it with its weights as external data")
            model, spans = _without_weights(file.read())
        stored = [
            stored_tensor(t, path, span) for t, span in zip(model.graph.initializer, spans, strict=True)
        ]
        return _checked(path.name, model, stored, _digest(path, model))
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error.strerror}") from None
    except ModelError as error:
        raise ModelError(f"{path}: {error}") from None


def read_structure(structure: bytes, name: str = "structure") -> OnnxFile:
    """The same from bytes made by :func:`poet.frontend.onnx.module.strip_weights`.

    Raises:
        ModelError: the bytes are not an ONNX model.
    """
    try:
        model = _parse(structure)
        stored = [stored_tensor(t, None, None) for t in model.graph.initializer]
        return _checked(name, model, stored, hashlib.sha256(structure).hexdigest())
    except ModelError as error:
        raise ModelError(f"{name}: {error}") from None


def _without_weights(data: bytes) -> tuple[ModelProto, list[Span | None]]:
    """The model without its weights, and per initialiser where they lie in ``data`` (``None``: inside)."""
    model, spans, end = _parse(data), list[Span | None](), 0
    for tensor in model.graph.initializer:
        raw = tensor.raw_data
        if len(raw) <= _INLINE_BYTES:
            spans.append(None)
            continue
        start = data.find(raw, end)  # initialisers stand in the file in their order
        end = start + len(raw)
        spans.append((start, len(raw)))
        tensor.ClearField("raw_data")
    structure = ModelProto()  # a message keeps the memory of what is cleared in it
    structure.CopyFrom(model)
    return structure, spans


def _parse(structure: bytes) -> ModelProto:
    model = ModelProto()
    try:
        model.ParseFromString(structure)
        _read_texts(model)
    except (DecodeError, UnicodeDecodeError):
        raise ModelError("not an ONNX model, or a damaged one") from None
    return model


def _read_texts(message: Message) -> None:
    """Reads every string once: protobuf gives bytes for one that is no text, or finds out only then."""
    for field, value in message.ListFields():
        if field.type == field.TYPE_STRING:
            if any(
                isinstance(entry, bytes) for entry in (value if not isinstance(value, bytes) else [value])
            ):
                raise ModelError(f"a damaged ONNX model: its field {field.name!r} is no text")
        elif field.message_type is not None:
            for entry in (value,) if isinstance(value, Message) else value:
                _read_texts(entry)


def _checked(name: str, model: ModelProto, stored: list[StoredTensor], digest: str) -> OnnxFile:
    if not model.graph.node or not model.graph.output:
        raise ModelError("not an ONNX model: it has no graph with nodes and outputs")
    if model.graph.sparse_initializer:
        raise ModelError("sparse initialisers are not supported; export dense ones")
    names = [tensor.name for tensor in model.graph.initializer]
    if len(set(names)) != len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ModelError(f"the initialiser {twice!r} is there twice")
    file = OnnxFile(name, model, dict(zip(names, stored, strict=True)), digest)
    if not OLDEST_OPSET <= file.opset <= NEWEST_OPSET:
        raise ModelError(
            f"operator set {file.opset}; supported are {OLDEST_OPSET} to {NEWEST_OPSET}: "
            "export the model again with one of them"
        )
    if model.functions:
        file = OnnxFile(name, _inlined(model), file.tensors, digest)
    return file


def _inlined(model: ModelProto) -> ModelProto:
    """Model-local functions replaced by their nodes."""
    import onnx.inliner

    functions = {(function.domain, function.name): function for function in model.functions}
    try:
        count = _nodes(model.graph.node, functions, {})
        if count > _MOST_NODES:
            raise ModelError(f"its local functions inlined are {count} nodes; the limit is {_MOST_NODES}")
        return onnx.inliner.inline_local_functions(model)
    except (ValueError, RuntimeError, onnx.checker.ValidationError) as error:  # too deep among them
        raise ModelError(f"its local functions cannot be inlined: {str(error).splitlines()[0]}") from None


def _nodes(
    nodes: Iterable[NodeProto],
    functions: Mapping[tuple[str, str], FunctionProto],
    known: dict[tuple[str, str], int],
) -> int:
    """How many nodes these are with functions inlined: few functions that call each other make very many."""
    count = 0
    for node in nodes:
        name = (node.domain, node.op_type)
        if name in functions and name not in known:
            known[name] = 0  # what calls itself is refused as such
            known[name] = _nodes(functions[name].node, functions, known)
        inner = [graph for attribute in node.attribute for graph in subgraphs(attribute)]
        count += known.get(name, 1) + sum(_nodes(graph.node, functions, known) for graph in inner)
    return count


def stored_tensor(tensor: TensorProto, path: Path | None, span: Span | None) -> StoredTensor:
    """An initialiser of the model at ``path``, whose raw data lies at ``span`` if not in ``tensor``.

    Raises:
        ModelError: its type is unknown, its size not that of its data, or its data out of bounds.
    """
    where = f"initialiser {tensor.name!r}"
    dtype = dtype_of(tensor.data_type, where)
    shape = _shape(tensor, where)
    if any(size < 0 for size in shape):
        raise ModelError(f"{where} has shape {list(shape)}")
    size_bytes = math.prod(shape) * dtype.itemsize
    if tensor.data_location == TensorProto.EXTERNAL:
        if path is None:
            raise ModelError(f"{where} has external data; a structure must not")
        location, start, found = _external(tensor, path, size_bytes)
        source = (location, start)
    elif span is not None and path is not None:
        source, found = (path, span[0]), span[1]
    elif not tensor.HasField("raw_data") and not _typed_numbers(tensor) and size_bytes > 0:
        return StoredTensor(dtype, shape, None)
    else:
        value = tensor_value(tensor, where)
        return StoredTensor(dtype, shape, value.clone)
    if found != size_bytes:
        raise ModelError(f"{where} needs {size_bytes} bytes, the file holds {found}")
    return StoredTensor(dtype, shape, lambda: _read_file(*source, dtype, shape))


def _shape(tensor: TensorProto, where: str) -> tuple[int, ...]:
    if len(tensor.dims) > MOST_DIMENSIONS:
        raise ModelError(f"{where} has {len(tensor.dims)} dimensions; a tensor has at most {MOST_DIMENSIONS}")
    return tuple(tensor.dims)


def _typed_numbers(tensor: TensorProto) -> int:
    """How many numbers stand in the fields for one type each, beside ``raw_data``."""
    return max(len(tensor.float_data), len(tensor.int32_data), len(tensor.int64_data),
               len(tensor.double_data), len(tensor.uint64_data))  # fmt: skip


def tensor_value(tensor: TensorProto, where: str) -> Tensor:
    """The content of a tensor that is stored in the message itself.

    Raises:
        ModelError: its size is not that of its shape, or its data lies elsewhere; ``where`` names it.
    """
    dtype = dtype_of(tensor.data_type, where)
    shape = _shape(tensor, where)
    if tensor.data_location == TensorProto.EXTERNAL:
        raise ModelError(f"{where} has external data, which only initialisers may have")
    if tensor.HasField("raw_data"):
        raw = tensor.raw_data
    else:
        count = _typed_numbers(tensor)
        if count != math.prod(shape):
            raise ModelError(f"{where} has shape {list(shape)}, but {count} numbers")
        try:
            raw = onnx.numpy_helper.to_array(tensor).tobytes()
        except (ValueError, TypeError):
            raise ModelError(f"{where} keeps its numbers under another element type than its own") from None
    needed = math.prod(shape) * dtype.itemsize
    if len(raw) != needed or any(size < 0 for size in shape):
        raise ModelError(f"{where} needs {needed} bytes for shape {list(shape)}, but has {len(raw)}")
    return from_bytes(bytearray(raw), dtype, shape)


def from_bytes(raw: bytearray, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    """A tensor in the memory of ``raw``, which has as many bytes."""
    if not raw:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(raw, dtype=torch.uint8).view(dtype).reshape(shape)


def _read_file(path: Path, start: int, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    raw = bytearray(math.prod(shape) * dtype.itemsize)
    try:
        with open_regular(path) as file:
            file.seek(start)
            found = file.readinto(raw)
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error.strerror}") from None
    if found != len(raw):
        raise ModelError(f"{path}: has {found} bytes at {start}, expected {len(raw)}; did it change?")
    return from_bytes(raw, dtype, shape)


def _external(tensor: TensorProto, path: Path, size_bytes: int) -> tuple[Path, int, int]:
    """Where the tensor's external data lies: file, offset, bytes."""
    where = f"initialiser {tensor.name!r}"
    entries = {entry.key: entry.value for entry in tensor.external_data}
    file = external_path(path, entries.get("location", ""), where)
    try:
        start = int(entries.get("offset", "0"))
        found = int(entries.get("length", str(size_bytes)))
    except ValueError:
        raise ModelError(f"{where}: offset and length of its external data are not numbers") from None
    if not file.is_file():
        raise ModelError(f"{where}: its data file {file.name!r} is missing beside the model")
    available = file.stat().st_size
    if start < 0 or found < 0 or start + found > available:
        raise ModelError(
            f"{where}: bytes {start} to {start + found} of {file.name!r}, which has {available} bytes"
        )
    return file, start, found


def external_path(model: Path, location: str, where: str) -> Path:
    """The file that ``location`` names, which must lie in the model's folder or below it.

    Raises:
        ModelError: it is absolute, climbs out, or is a link that leads out.
    """
    folder = model.parent.resolve()
    if not location or "\0" in location or "\\" in location or Path(location).is_absolute():
        raise ModelError(f"{where}: {location!r} is not a file name relative to the model")
    file = (folder / location).resolve()
    if ".." in Path(location).parts or not file.is_relative_to(folder):
        raise ModelError(f"{where}: its data file {location!r} lies outside the model's folder")
    return file


def data_files(path: Path, among: Iterable[Path]) -> list[Path]:
    """Which of the files ``among`` hold weights of the model at ``path``; none where it cannot be read."""
    try:
        content = read_regular(path, most_bytes=LARGEST_BYTES)
        named = [other for other in among if other.name.encode() in content]
        if not named:
            return []
        model = _parse(content)
        stored = [external_path(path, location, path.name) for location in _locations(model)]
        return [other for other in named if any(is_same_file(other, file) for file in stored)]
    except (OSError, ModelError):
        return []


def _locations(model: ModelProto) -> set[str]:
    return {
        entry.value
        for tensor in model.graph.initializer
        if tensor.data_location == TensorProto.EXTERNAL
        for entry in tensor.external_data
        if entry.key == "location"
    }


def _digest(path: Path, model: ModelProto) -> str:
    locations = _locations(model)
    digest = hashlib.sha256()
    for file in (path, *(external_path(path, location, path.name) for location in sorted(locations))):
        with open_regular(file) as stream:
            while block := stream.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()


def subgraphs(attribute: AttributeProto) -> list[GraphProto]:
    """The graphs inside an attribute."""
    if attribute.type == AttributeProto.GRAPH:
        return [attribute.g]
    return list(attribute.graphs)


def names_read(graph: GraphProto) -> set[str]:
    """Names that a node of ``graph`` or of a graph inside it reads, and its outputs."""
    inner = [entry for node in graph.node for attribute in node.attribute for entry in subgraphs(attribute)]
    names = {name for node in graph.node for name in node.input} | {output.name for output in graph.output}
    return names.union(*map(names_read, inner))
