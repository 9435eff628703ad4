"""From an ONNX file to an ``nn.Module`` that computes the same, and can be trained.

model = load_onnx("resnet18.onnx", bind={"N": 8})
logits = model.module(images)
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from onnx import ModelProto
from torch import Tensor, nn

from poet.errors import ModelError
from poet.frontend.onnx_build import Input, Program, build
from poet.frontend.onnx_dims import bind_inputs
from poet.frontend.onnx_fuse import fuse
from poet.frontend.onnx_node import Modal, Run
from poet.frontend.onnx_reader import OnnxFile, StoredTensor, read_onnx, read_structure
from poet.frontend.onnx_weights import TRAINABLE_KEY, trainable_initializers, with_own_weights

_BIND_KEY = "poet.bind"
_TRAINING_KEY = "poet.training"

Source = Callable[[str, StoredTensor], Tensor]
"""From a state name and what the file says of it to the tensor to use."""


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
    """

    module: ImportedModule
    inputs: tuple[Input, ...]
    outputs: tuple[str, ...]
    digest: str
    opset: int
    names: Mapping[str, str]
    bind: Mapping[str, int]
    file: OnnxFile


def load_onnx(
    path: str | Path, *, bind: Mapping[str, int] | None = None, training: bool = True
) -> ImportedModel:
    """The model at ``path`` as a module with its weights.

    Args:
        path: the ONNX file; external data files lie in its folder.
        bind: sizes of open dimensions by name. ``N`` (or ``batch``) also rebinds a first dimension that
            the file fixes, including where the exporter baked it into shapes.
        training: the mode the module starts in. In training mode batch norm uses the batch's statistics
            and updates the running ones with the node's momentum, and dropout drops, whatever mode the
            file was exported in; ``module.eval()`` switches both off as always.

    Raises:
        UnsupportedOperator: the file uses an operator without a row in the table.
        ModelError: the file is damaged, an open dimension is not bound, or a node does not fit.
    """
    return _imported(
        with_own_weights(read_onnx(path)), bind or {}, training, lambda name, stored: _read(name, stored)
    )


def load_onnx_structure(structure: bytes, tensors: Mapping[str, Tensor]) -> ImportedModel:
    """The model that :func:`strip_weights` took the weights from, with ``tensors`` for them.

    Args:
        structure: what :func:`strip_weights` gave.
        tensors: by the names of ``module.state_dict()``; used as they are, not copied. Others are ignored.

    Raises:
        ModelError: the structure is damaged; a tensor is missing, or of another shape or type.
    """
    file = read_structure(structure)
    notes = {entry.key: entry.value for entry in file.model.metadata_props}
    try:
        bind = {str(name): int(size) for name, size in json.loads(notes[_BIND_KEY]).items()}
        training = bool(json.loads(notes[_TRAINING_KEY]))
    except (KeyError, ValueError, TypeError, AttributeError):
        raise ModelError("the structure does not say how its dimensions are bound; it is damaged") from None

    def given(name: str, stored: StoredTensor) -> Tensor:
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
    used = _used_initializers(model)
    kept = [tensor for tensor in stripped.graph.initializer if tensor.name in used]
    del stripped.graph.initializer[:]
    stripped.graph.initializer.extend(kept)
    for tensor in stripped.graph.initializer:
        stored = model.file.tensors[tensor.name]
        content = None if tensor.name in model.names or stored.read is None else stored.read()
        name, dims, data_type = tensor.name, list(tensor.dims), tensor.data_type
        tensor.Clear()
        tensor.name, tensor.data_type = name, data_type
        tensor.dims.extend(dims)
        if content is not None:
            tensor.raw_data = content.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    notes = {
        TRAINABLE_KEY: json.dumps(sorted(set(model.module.initializers) & used)),
        _BIND_KEY: json.dumps(dict(model.bind)),
        _TRAINING_KEY: json.dumps(model.module.training),
    }
    del stripped.metadata_props[:]
    for key, text in notes.items():
        stripped.metadata_props.add(key=key, value=text)
    return stripped.SerializeToString(deterministic=True)


def _used_initializers(model: ImportedModel) -> set[str]:
    graph = model.file.model.graph
    used = {name for node in graph.node for name in node.input} | {output.name for output in graph.output}
    for node in graph.node:
        for attribute in node.attribute:
            used.update(name for inner in attribute.g.node for name in inner.input)
    return used


def _read(name: str, stored: StoredTensor) -> Tensor:
    if stored.read is None:
        raise ModelError(f"the initialiser {name!r} has no content; this is a structure without weights")
    return stored.read()


def _on_meta(stored: StoredTensor) -> Tensor:
    return torch.empty(stored.shape, dtype=stored.dtype, device="meta")


def _imported(file: OnnxFile, bind: Mapping[str, int], training: bool, source: Source) -> ImportedModel:
    try:
        inputs, rebound = bind_inputs(file, bind)
        trainable = trainable_initializers(file)
        program = fuse(build(file, inputs, trainable=trainable, rebound=rebound))
        module = ImportedModule(program, file, trainable, source).train(training)
    except ModelError as error:
        prefix = "" if str(error).startswith(file.name) else f"{file.name}: "
        raise type(error)(f"{prefix}{error}") from None
    outputs = tuple(entry.name for entry in file.model.graph.output)
    return ImportedModel(
        module, inputs, outputs, file.digest, file.opset, dict(module.names), dict(bind), file
    )


class ImportedModule(nn.Module):
    """Runs the steps of a program. Parameters and buffers have the initialisers' names, dots and all.

    Attributes:
        names: the state name of each initialiser that became a parameter or a buffer.
        initializers: the initialisers that became parameters.
    """

    def __init__(self, program: Program, file: OnnxFile, trainable: frozenset[str], source: Source) -> None:
        super().__init__()
        used = {value.slot: value for step in program.steps for value in step.operands if value}
        used.update({value.slot: value for value in program.outputs if value})
        states = [
            v for v in used.values() if v.state and (v.state in trainable or v.state in program.buffers)
        ]
        self.names = state_names([value.state for value in states if value.state])
        self.initializers = frozenset(value.state for value in states if value.state in trainable)
        self._homes: dict[int, tuple[nn.Module, str]] = {}
        for value in states:
            assert value.state is not None
            name = self.names[value.state]
            tensor = source(name, file.tensors[value.state])
            is_parameter = value.state in trainable and value.state not in program.buffers
            self._homes[value.slot] = _register(self, name, nn.Parameter(tensor) if is_parameter else tensor)
        self._constants: dict[int, str] = {}
        for value in used.values():
            if value.constant is not None and value.slot not in self._homes:
                self._constants[value.slot] = f"constant{len(self._constants)}"
                self.register_buffer(self._constants[value.slot], value.constant, persistent=False)
        self._inputs = program.inputs
        self._outputs = tuple(value.slot for value in program.outputs if value)
        self._calls = _calls(program)

    def forward(self, *inputs: Tensor) -> Tensor | tuple[Tensor, ...]:
        """The outputs of the model for ``inputs``, which have the bound shapes.

        Raises:
            ModelError: an input is missing, or has another shape or type than the model was bound to.
        """
        self._check(inputs)
        slots: dict[int, Tensor | Sequence[Tensor]] = {}
        slots.update(zip((value.slot for value in self._inputs), inputs, strict=True))
        for slot, (home, attribute) in self._homes.items():
            slots[slot] = getattr(home, attribute)
        for slot, name in self._constants.items():
            slots[slot] = getattr(self, name)
        for call in self._calls:
            run = call.train if self.training else call.evaluate
            result = run(*(None if slot is None else slots[slot] for slot in call.operands))
            for slot in call.last_reads:
                del slots[slot]
            if call.single:
                slots[call.outputs[0][1]] = result
            else:
                for index, slot in call.outputs:
                    slots[slot] = result[index]
        found = tuple(slots[slot] for slot in self._outputs)
        return found[0] if len(found) == 1 else found  # type: ignore[return-value]

    def _check(self, inputs: Sequence[Tensor]) -> None:
        if len(inputs) != len(self._inputs):
            raise ModelError(f"the model has {len(self._inputs)} inputs, {len(inputs)} were given")
        for value, tensor in zip(self._inputs, inputs, strict=True):
            assert isinstance(value.meta, Tensor)
            if tensor.shape != value.meta.shape or tensor.dtype != value.meta.dtype:
                raise ModelError(
                    f"input {value.name!r} is {list(tensor.shape)} {tensor.dtype}, "
                    f"expected {list(value.meta.shape)} {value.meta.dtype}"
                )


@dataclass(frozen=True)
class _Call:
    """A step, bound to slots; ``outputs`` pairs the index of a result with the slot that keeps it."""

    train: Run
    evaluate: Run
    operands: tuple[int | None, ...]
    outputs: tuple[tuple[int, int], ...]
    single: bool
    last_reads: tuple[int, ...]


def _calls(program: Program) -> tuple[_Call, ...]:
    held = {value.slot for value in program.outputs if value}
    calls: list[_Call] = []
    seen = set(held)
    for step in reversed(program.steps):
        reads = {value.slot for value in step.operands if value}
        outputs = tuple((index, value.slot) for index, value in enumerate(step.outputs) if value)
        single = len(step.outputs) == 1
        run = step.run
        train, evaluate = (run.train, run.evaluate) if isinstance(run, Modal) else (run, run)
        assert callable(train)
        assert callable(evaluate)
        operands = tuple(value.slot if value else None for value in step.operands)
        calls.append(_Call(train, evaluate, operands, outputs, single, tuple(reads - seen)))
        seen |= reads
    return tuple(reversed(calls))


def state_names(initializers: Sequence[str]) -> dict[str, str]:
    """A readable, unique name of a module's state for each initialiser.

    Dots stay, so that ``layer1.0.conv1.weight`` is what it was in torch; ``/`` becomes a dot, other signs
    an underscore. A name that is also the prefix of another gets an underscore.
    """
    names: dict[str, str] = {}
    taken: set[str] = set()
    for initializer in sorted(initializers):
        parts = [re.sub(r"\W+", "_", part) for part in re.split(r"[./]+", initializer)]
        path = [part + "_" if hasattr(nn.Module, part) else part for part in parts if part] or ["_"]
        name = ".".join(path)
        while name in taken or any(other.startswith(name + ".") for other in taken) or _under(name, names):
            name += "_"
        names[initializer] = name
        taken.add(name)
    return names


def _under(name: str, names: Mapping[str, str]) -> bool:
    """Whether a prefix of ``name`` is a tensor already."""
    parts = name.split(".")
    prefixes = {".".join(parts[:count]) for count in range(1, len(parts))}
    return not prefixes.isdisjoint(names.values())


def _register(root: nn.Module, name: str, tensor: Tensor) -> tuple[nn.Module, str]:
    *path, leaf = name.split(".")
    home = root
    for part in path:
        if part not in home._modules:
            home.add_module(part, nn.Module())
        child = home._modules[part]
        assert child is not None
        home = child
    if isinstance(tensor, nn.Parameter):
        home.register_parameter(leaf, tensor)
    else:
        home.register_buffer(leaf, tensor)
    return home, leaf
