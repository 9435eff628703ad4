"""From an ONNX file to an ``nn.Module`` that computes the same and can be trained, and back with its weights.

model = load_onnx("resnet18.onnx", bind={"N": 8})
logits = model.module(images)
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from onnx import ModelProto, ValueInfoProto
from torch import Tensor, nn

from poet.errors import InputError, ModelError, nearest
from poet.frontend.module_tensors import examples
from poet.frontend.onnx.build import Input, build
from poet.frontend.onnx.fuse import fuse
from poet.frontend.onnx.module import ImportedModule, Source, raw_bytes
from poet.frontend.onnx.names import NAMES_KEY, naming_of, read_given, with_given_names
from poet.frontend.onnx.node import Rebound
from poet.frontend.onnx.reader import (
    LARGEST_BYTES,
    OnnxFile,
    StoredTensor,
    dtype_of,
    read_onnx,
    read_structure,
)
from poet.frontend.onnx.weights import TRAINABLE_KEY, trainable_initializers, with_own_weights
from poet.ir.micro import BATCH_NAMES
from poet.ir.packed import Packed
from poet.util.brief import brief
from poet.util.codec import decode_value
from poet.util.reading import MOST_DIMENSIONS, parse_json

MOST_ELEMENTS = 1 << 48
"""Of a tensor: what is larger no machine holds, and torch refuses to describe it."""


@dataclass(frozen=True)
class Dims:
    """An input's dimensions: a size, or the name to bind."""

    name: str
    dims: tuple[int | str, ...]

    def __str__(self) -> str:
        return f"{self.name!r} ({' x '.join(map(str, self.dims)) or 'a single number'})"


def input_dims(file: OnnxFile) -> tuple[Dims, ...]:
    """The inputs that a caller gives (initialisers that are also inputs are none of them).

    Raises:
        ModelError: an input is not a tensor, or has no shape.
    """
    return tuple(Dims(entry.name, _dims(entry)) for entry in _inputs(file))


def _inputs(file: OnnxFile) -> list[ValueInfoProto]:
    return [entry for entry in file.model.graph.input if entry.name not in file.tensors]


def _dims(entry: ValueInfoProto) -> tuple[int | str, ...]:
    if not entry.type.HasField("tensor_type"):
        raise ModelError(f"input {entry.name!r} is not a tensor")
    if not entry.type.tensor_type.HasField("shape"):
        raise ModelError(f"input {entry.name!r} has no shape; export the model with one")
    return tuple(
        dim.dim_param or (dim.dim_value if dim.dim_value > 0 else f"{entry.name}.{axis}")
        for axis, dim in enumerate(entry.type.tensor_type.shape.dim)
    )


def fixed_batch(inputs: Sequence[Dims]) -> int | None:
    """The first dimension that all inputs share and the file fixes; ``None`` if there is none."""
    first = {entry.dims[0] if entry.dims else None for entry in inputs}
    size = first.pop() if len(first) == 1 else None
    return size if isinstance(size, int) else None


def bind_inputs(file: OnnxFile, bind: Mapping[str, int]) -> tuple[tuple[Input, ...], Rebound | None]:
    """The inputs with every dimension bound, and the first dimension that was fixed, if it is rebound.

    Raises:
        ModelError: a dimension is open, or ``bind`` names none of the model's.
    """
    inputs = input_dims(file)
    open_names = {dim for entry in inputs for dim in entry.dims if isinstance(dim, str)}
    rebound = _rebound(inputs, bind, open_names)
    for name, size in bind.items():
        if size < 1:
            raise ModelError(f"{file.name}: dimension {name!r} is bound to {size}, expected at least 1")
        if name not in open_names and not (rebound and name in BATCH_NAMES):
            known = sorted(open_names) or ["none"]
            raise ModelError(
                f"{file.name}: {name!r} is not an open dimension{nearest(name, open_names)}; "
                f"open are: {', '.join(known)}"
            )
    missing = sorted(open_names - set(bind))
    if missing:
        shapes = "; ".join(str(entry) for entry in inputs if set(entry.dims) & set(missing))
        options = " ".join(f"--bind {name}=8" for name in missing)
        raise ModelError(f"{file.name}: open dimensions in input {shapes}; bind them, for example {options}")
    return tuple(
        Input(
            entry.name,
            dtype_of(entry.type.tensor_type.elem_type, f"input {entry.name!r}"),
            _shape(dims, bind, rebound),
        )
        for entry, dims in zip(_inputs(file), inputs, strict=True)
    ), rebound


def _rebound(inputs: Sequence[Dims], bind: Mapping[str, int], open_names: set[str]) -> Rebound | None:
    old = fixed_batch(inputs)
    new = next((bind[name] for name in BATCH_NAMES if name in bind and name not in open_names), None)
    return None if old is None or new is None else Rebound(old, new)


def _shape(entry: Dims, bind: Mapping[str, int], rebound: Rebound | None) -> tuple[int, ...]:
    shape = [bind[dim] if isinstance(dim, str) else dim for dim in entry.dims]
    if rebound is not None:
        shape[0] = rebound.new
    if len(shape) > MOST_DIMENSIONS:
        raise ModelError(
            f"input {entry.name!r} has {len(shape)} dimensions; a tensor has at most {MOST_DIMENSIONS}"
        )
    if math.prod(shape) > MOST_ELEMENTS:
        raise ModelError(f"input {entry.name!r} is bound to {shape}; no machine holds such a tensor")
    return tuple(shape)


_BIND_KEY = "poet.bind"
_TRAINING_KEY = "poet.training"


@dataclass(frozen=True)
class ImportedModel:
    """A model read from ONNX.

    Attributes:
        module: computes the model; takes the inputs in order, gives a tensor, or a tuple of several.
        inputs: names, types and shapes, every dimension bound.
        outputs: names.
        digest: SHA-256 of the file and its external data.
        opset: version of the standard operator set.
        names: the state name of each initialiser that the module has as parameter or buffer.
        bind: what was bound.
        file: structure and stored tensors, after :func:`with_own_weights`.
        remark: what of the given names could not be matched; empty if all was.
    """

    module: ImportedModule
    inputs: tuple[Input, ...]
    outputs: tuple[str, ...]
    digest: str
    opset: int
    names: Mapping[str, str]
    bind: Mapping[str, int]
    file: OnnxFile
    remark: str = ""

    __repr__ = brief

    @property
    def constants(self) -> tuple[str, ...]:
        """Names of the parameters that lie in Constant nodes of the file, and that no given name explains."""
        names = sorted(self.names[item] for item in self.file.constants & self.module.initializers)
        parameters = dict(self.module.named_parameters())
        return tuple(name for name in names if not parameters[name].requires_grad)

    def packed_weights(self) -> Iterator[tuple[str, Tensor, Packed]]:
        """Weights that the file has as integers and a scale for each row: name, packed rows, how to read."""
        parameters = dict(self.module.named_parameters())
        for item, name in self.names.items():
            stored = self.file.tensors.get(item)
            if name not in parameters or stored is None or stored.quantised is None:
                continue
            integers, scales = stored.quantised()
            is_by_row = scales.numel() == 1 or scales.numel() == scales.shape[0]
            fits = integers.dim() > 1 and int(integers.min()) >= -128 and int(integers.max()) <= 127
            if is_by_row and fits and integers.numel() and parameters[name].shape == integers.shape:
                rows = scales.reshape(-1).expand(len(integers)).clone().view(torch.uint8).view(-1, 4)
                content = integers.to(torch.int8).reshape(len(integers), -1).view(torch.uint8)
                yield name, torch.cat([rows, content], 1), Packed("int8", tuple(integers.shape))

    def quantised_names(self) -> tuple[str, ...]:
        """Names of parameters that the file has as integers and scales of any kind."""
        parameters = dict(self.module.named_parameters())
        stored = ((name, self.file.tensors.get(item)) for item, name in self.names.items())
        return tuple(
            name
            for name, item in stored
            if name in parameters and item is not None and item.quantised is not None
        )

    def example_inputs(self) -> tuple[Tensor, ...]:
        """Tensors of the inputs' shapes and types: floats normally distributed, whole numbers zero."""
        return examples((entry.dtype, entry.shape) for entry in self.inputs)


def load_onnx(
    path: str | Path,
    *,
    bind: Mapping[str, int] | None = None,
    training: bool = True,
    names: str | Path | nn.Module | Mapping[str, Tensor] | None = None,
) -> ImportedModel:
    """The model at ``path`` as a module with its weights.

    Args:
        path: the ONNX file; external data files lie in its folder.
        bind: sizes of open dimensions by name. ``N`` (or ``batch``) also rebinds a first dimension that
            the file fixes, including where the exporter baked it into shapes.
        training: the mode the module starts in. In training mode batch norm uses the batch's statistics
            and updates the running ones with the node's momentum, and dropout drops, whatever mode the
            file was exported in; ``module.eval()`` switches both off as always.
        names: the module that was exported, its state dict, or a file of that: tensors get its names and
            its layout, what it froze stays frozen, and what only it has is carried along.

    Raises:
        UnsupportedOperator: the file uses an operator without a row in the table.
        ModelError: the file is damaged, an open dimension is not bound, or a node does not fit.
    """
    file = with_own_weights(read_onnx(path))
    if names is None:
        return _imported(file, bind or {}, training, _read)
    file, remark = with_given_names(file, read_given(names))
    return replace(_imported(file, bind or {}, training, _read), remark=remark)


def load_onnx_structure(structure: bytes, tensors: Mapping[str, Tensor] | None = None) -> ImportedModel:
    """The model that :func:`strip_weights` took the weights from.

    Args:
        structure: what :func:`strip_weights` gave.
        tensors: the weights by their names in ``module.state_dict()``, used as they are, not copied;
            others are ignored. Without them all weights are zero until ``module.load_state_dict``.

    Raises:
        ModelError: the structure is damaged; a tensor is missing, or of another shape or type.
    """
    file = read_structure(structure)
    notes = {entry.key: entry.value for entry in file.model.metadata_props}
    try:
        bind = decode_value(dict[str, int], parse_json(notes[_BIND_KEY]), where=_BIND_KEY)
        training = decode_value(bool, parse_json(notes[_TRAINING_KEY]), where=_TRAINING_KEY)
    except (KeyError, ValueError, InputError):
        raise ModelError("the structure does not say how its dimensions are bound; it is damaged") from None

    def given(name: str, stored: StoredTensor) -> Tensor:
        if tensors is None:
            return torch.zeros(stored.shape, dtype=stored.dtype)
        tensor = tensors.get(name)
        if tensor is None:
            raise ModelError(f"the tensor {name!r} is missing")
        if tuple(tensor.shape) != stored.shape or tensor.dtype != stored.dtype:
            raise ModelError(
                f"the tensor {name!r} is {list(tensor.shape)} {tensor.dtype}, "
                f"expected {list(stored.shape)} {stored.dtype}"
            )
        return tensor

    return _imported(file, bind, training, given)


def strip_weights(model: ImportedModel | str | Path, *, bind: Mapping[str, int] | None = None) -> bytes:
    """The model's structure as ONNX bytes without parameters and running statistics, for a plan file.

    Constants stay. What is bound and what is trainable is written along, so that
    :func:`load_onnx_structure` makes the same module. ``bind`` is for a path; a model has its own.

    Raises:
        ModelError: as in :func:`load_onnx`.
    """
    if not isinstance(model, ImportedModel):
        file = with_own_weights(read_onnx(model))
        model = _imported(file, bind or {}, True, lambda name, stored: _on_meta(stored))
    stripped = ModelProto()
    stripped.CopyFrom(model.file.model)
    # exporters write stack traces and intermediate shapes, which nobody reads again
    del stripped.graph.value_info[:]
    for node in stripped.graph.node:
        del node.metadata_props[:]
        node.doc_string = ""
    for tensor in stripped.graph.initializer:
        stored = model.file.tensors[tensor.name]
        content = None if tensor.name in model.names or stored.read is None else stored.read()
        name, dims, data_type = tensor.name, list(tensor.dims), tensor.data_type
        tensor.Clear()
        tensor.name, tensor.data_type = name, data_type
        tensor.dims.extend(dims)
        if content is not None:
            tensor.raw_data = raw_bytes(content)
    naming = {entry.key: entry.value for entry in model.file.model.metadata_props if entry.key == NAMES_KEY}
    notes = naming | {
        TRAINABLE_KEY: json.dumps(sorted(model.module.initializers)),
        _BIND_KEY: json.dumps(dict(model.bind)),
        _TRAINING_KEY: json.dumps(model.module.training),
    }
    del stripped.metadata_props[:]
    for key, text in notes.items():
        stripped.metadata_props.add(key=key, value=text)
    structure: bytes = stripped.SerializeToString(deterministic=True)
    return structure


def _read(name: str, stored: StoredTensor) -> Tensor:
    if stored.read is None:
        raise ModelError(f"the initialiser {name!r} has no content; this is a structure without weights")
    return stored.read()


def _on_meta(stored: StoredTensor) -> Tensor:
    return torch.empty(stored.shape, dtype=stored.dtype, device="meta")


def _imported(file: OnnxFile, bind: Mapping[str, int], training: bool, source: Source) -> ImportedModel:
    try:
        inputs, rebound = bind_inputs(file, bind)
        naming = naming_of(file)
        unnamed = file.constants - naming.names.keys()
        naming = replace(naming, frozen=(*naming.frozen, *sorted(unnamed)))
        trainable = trainable_initializers(file) - set(naming.buffers)
        built = fuse(build(file, inputs, trainable=trainable, rebound=rebound))
        module = ImportedModule(built, file, trainable, source, naming).train(training)
    except ModelError as error:
        prefix = "" if str(error).startswith(file.name) else f"{file.name}: "
        raise type(error)(f"{prefix}{error}") from None
    outputs = tuple(entry.name for entry in file.model.graph.output)
    return ImportedModel(
        module, inputs, outputs, file.digest, file.opset, dict(module.names), dict(bind), file
    )


_TOLERANCE = 1e-3  # of the largest number that comes out; kernels add in another order


def filled(structure: bytes, tensors: Mapping[str, Tensor]) -> tuple[bytes, int]:
    """The ONNX file of ``structure`` with ``tensors`` as its weights, and how many it has.

    Args:
        structure: what `strip_weights` made.
        tensors: by the names that they have in the imported module.

    Raises:
        ModelError: a weight is missing or of another shape, or the file would be above 2 GiB.
    """
    names = load_onnx_structure(structure, tensors).names
    model = ModelProto()
    model.ParseFromString(structure)
    for initializer in model.graph.initializer:
        if initializer.name in names:
            initializer.raw_data = raw_bytes(tensors[names[initializer.name]].detach())
    _evaluating(model)
    if model.ByteSize() > LARGEST_BYTES:
        raise ModelError("with its weights the ONNX file is above 2 GiB, which one file cannot be")
    written: bytes = model.SerializeToString(deterministic=True)
    return written, len(names)


def checked_by_onnxruntime(model: bytes, structure: bytes, tensors: Mapping[str, Tensor]) -> str:
    """Hold the outputs of ``model`` against those of the trained module in evaluation mode; says how it went.

    Raises:
        ModelError: they differ by more than rounding, or onnxruntime does not run the file.
    """
    try:
        import onnxruntime
    except ImportError:
        return "not checked: onnxruntime is not installed"
    imported = load_onnx_structure(structure, dict(tensors))
    module = imported.module.eval()
    inputs = imported.example_inputs()
    with torch.no_grad():
        returned = module(*inputs)
    expected = [returned] if isinstance(returned, Tensor) else list(returned)
    try:
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3  # what it tidies up is of no interest here
        session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        given = {
            entry.name: _sized(tensor, entry.shape)
            for entry, tensor in zip(session.get_inputs(), inputs, strict=True)
        }
        found = session.run(None, {name: tensor.numpy() for name, tensor in given.items()})
    except Exception as error:  # whatever onnxruntime raises: its errors have no class of their own
        line = str(error).strip().splitlines()[0]
        raise ModelError(f"onnxruntime does not run the exported file: {line}") from None
    return _compared(expected, found)


def _compared(expected: Sequence[Tensor], found: Sequence[Any]) -> str:
    worst = 0.0
    for number, (theirs, ours) in enumerate(zip(expected, found, strict=True)):
        tensor = torch.as_tensor(ours)
        count = min(len(theirs), len(tensor)) if theirs.dim() and tensor.dim() else None
        theirs, tensor = (theirs, tensor) if count is None else (theirs[:count], tensor[:count])
        if theirs.shape != tensor.shape:
            raise ModelError(
                f"output {number} is {list(tensor.shape)} in onnxruntime, in torch {list(theirs.shape)}"
            )
        if not theirs.numel():
            continue
        scale = max(1e-6, float(theirs.double().abs().max()))
        difference = float((theirs.double() - tensor.double()).abs().max()) / scale
        if not difference <= _TOLERANCE:
            raise ModelError(
                f"output {number} of the exported file differs in onnxruntime by {difference:.2g} of its "
                "largest number; nothing is written"
            )
        worst = max(worst, difference)
    return f"checked by onnxruntime: outputs differ by at most {worst:.1g} of their largest"


def _sized(tensor: Tensor, declared: Sequence[object]) -> Tensor:
    """``tensor`` with the number of samples that the file is made for, where it fixes one."""
    batch = declared[0] if declared else None
    if not isinstance(batch, int) or not tensor.dim() or batch == len(tensor):
        return tensor
    return tensor[torch.arange(batch) % len(tensor)]


def _evaluating(model: ModelProto) -> None:
    """Take the training mode from the nodes that have one: they then run as in evaluation."""
    for node in model.graph.node:
        if node.op_type == "BatchNormalization":
            kept = [item for item in node.attribute if item.name != "training_mode"]
            if len(kept) < len(node.attribute):
                del node.attribute[:]
                node.attribute.extend(kept)
                del node.output[1:]  # new statistics, which only training gives
        elif node.op_type == "Dropout":
            del node.input[2:]
