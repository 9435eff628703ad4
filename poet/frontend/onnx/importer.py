"""From an ONNX file to an ``nn.Module`` that computes the same, and can be trained.

model = load_onnx("resnet18.onnx", bind={"N": 8})
logits = model.module(images)
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from onnx import ModelProto
from torch import Tensor, nn

from poet.brief import brief
from poet.errors import ModelError
from poet.files.reading import is_whole, parse_json
from poet.frontend.onnx.build import Input, build
from poet.frontend.onnx.dims import bind_inputs
from poet.frontend.onnx.fuse import fuse
from poet.frontend.onnx.module import ImportedModule, Source
from poet.frontend.onnx.names import NAMES_KEY, naming_of, read_given, with_given_names
from poet.frontend.onnx.reader import OnnxFile, StoredTensor, read_onnx, read_structure
from poet.frontend.onnx.weights import TRAINABLE_KEY, trainable_initializers, with_own_weights

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

    def example_inputs(self) -> tuple[Tensor, ...]:
        """Tensors of the inputs' shapes and types: floats normally distributed, whole numbers zero."""
        generator = torch.Generator().manual_seed(0)
        return tuple(
            torch.randn(entry.shape, generator=generator).to(entry.dtype)
            if entry.dtype.is_floating_point
            else torch.zeros(entry.shape, dtype=entry.dtype)
            for entry in self.inputs
        )


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
    matched = with_given_names(file, read_given(names))
    return replace(_imported(matched.file, bind or {}, training, _read), remark=matched.remark)


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
        bind, training = parse_json(notes[_BIND_KEY]), parse_json(notes[_TRAINING_KEY])
    except (KeyError, ValueError):
        bind = training = None
    if not isinstance(bind, dict) or not all(map(is_whole, bind.values())) or not isinstance(training, bool):
        raise ModelError("the structure does not say how its dimensions are bound; it is damaged")

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
            tensor.raw_data = content.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
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
