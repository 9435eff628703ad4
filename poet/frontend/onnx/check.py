"""What of an ONNX model can be imported and trained, node by node."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx
import torch
from onnx import ModelProto
from torch import Tensor

from poet.errors import ModelError
from poet.frontend.onnx.build import BuiltModel, DependsOnFailure, Step, build, op_name
from poet.frontend.onnx.importer import MOST_ELEMENTS, Dims, bind_inputs, fixed_batch, input_dims
from poet.frontend.onnx.module import state_names
from poet.frontend.onnx.node import OnnxValue, describe
from poet.frontend.onnx.reader import DTYPES, OnnxFile, read_onnx
from poet.frontend.onnx.weights import trainable_initializers, with_own_weights
from poet.ir.loss import DEFAULT_LOSS, LossSpec, misfit
from poet.ir.micro import BATCH_NAMES
from poet.ir.named import Why, why
from poet.util.brief import brief
from poet.util.codec import encode
from poet.util.reading import MOST_DIMENSIONS

_NOWHERE = -1  # the slot of a parameter that no step reads
_ASSUMED_BATCH, _ASSUMED_PIXELS, _ASSUMED_LENGTH = 2, 64, 16


@dataclass(frozen=True)
class OperatorCheck:
    """One operator of the model.

    Attributes:
        op: its name.
        count: nodes with it.
        imported: nodes of them that import.
        constant: nodes of them that are computed at import and cost nothing later.
        with_gradient: nodes of them on a differentiable way from a parameter to the first output, the loss's.
    """

    op: str
    count: int
    imported: int
    constant: int
    with_gradient: int


@dataclass(frozen=True)
class NodeRemark:
    """A node that does not import, or stops the gradient, and why."""

    op: str
    node: str
    reason: str


@dataclass(frozen=True)
class ParameterCheck:
    """A parameter: its name in the module and in the file; whether a gradient reaches it, and why not."""

    name: str
    initializer: str
    shape: tuple[int, ...]
    dtype: str
    size_bytes: int
    trainable: bool
    why: Why | None = None


@dataclass(frozen=True)
class InputCheck:
    """An input; a dimension is a size, or the name to bind it by."""

    name: str
    dtype: str
    dims: tuple[int | str, ...]


@dataclass(frozen=True)
class CheckReport:
    """What ``poet check`` shows.

    Attributes:
        model: the file's name.
        digest: SHA-256 of the file and its external data.
        opset: version of the standard operator set.
        inputs: what a caller gives.
        outputs: names.
        unread_outputs: names of those that the loss, which is that of the first, does not read.
        loss: what it reads, or why it cannot be that of this model.
        open_dims: dimensions to bind.
        assumed: sizes this check took for those of them that were not bound.
        bind_hint: how to bind dimensions, as an argument of the command line; empty if there are none.
        operators: by falling count.
        not_imported: nodes that do not import.
        not_checked: nodes that follow one of those, where their inputs' shapes are unknown.
        gradient_stops: nodes with a parameter before them whose result has no gradient.
        parameters: in the order of their names.
        obstacles: what makes training impossible; empty if it is possible.
    """

    model: str
    digest: str
    opset: int
    inputs: tuple[InputCheck, ...]
    outputs: tuple[str, ...]
    unread_outputs: tuple[str, ...]
    loss: str
    open_dims: tuple[str, ...]
    assumed: dict[str, int]
    bind_hint: str
    operators: tuple[OperatorCheck, ...]
    not_imported: tuple[NodeRemark, ...]
    not_checked: tuple[NodeRemark, ...]
    gradient_stops: tuple[NodeRemark, ...]
    parameters: tuple[ParameterCheck, ...]
    obstacles: tuple[str, ...]

    __repr__ = brief

    @property
    def can_train(self) -> bool:
        """Whether the model can be trained as it is."""
        return not self.obstacles

    @property
    def exit_code(self) -> int:
        """0 if training is possible, else 2."""
        return 0 if self.can_train else 2

    def to_json(self) -> dict[str, object]:
        """The report as JSON objects."""
        data: dict[str, object] = encode(self)
        return {**data, "can_train": self.can_train}


def check_model(
    path: str | Path, bind: Mapping[str, int] | None = None, *, loss: str | None = None
) -> CheckReport:
    """Looks at every node of the model at ``path``; weights are not read, and nothing is run.

    Dimensions left open are taken to be 2 for a batch, 64 for pixels, 16 for other lengths. A ``loss``
    that is asked for (see `poet.ir.loss`) and cannot be that of the model is an obstacle; the one that is
    taken otherwise, cross-entropy, is not.

    Raises:
        ModelError: the file is damaged, ``bind`` names no dimension of it, or there is no such loss.
    """
    spec = LossSpec.parse(DEFAULT_LOSS if loss is None else loss)
    original = read_onnx(path)
    file = with_own_weights(original)
    dims = input_dims(file)
    assumed = _assumed(dims, bind or {})
    inputs, rebound = bind_inputs(file, {**assumed, **(bind or {})})
    trainable = trainable_initializers(file)
    shapes = {entry.name: entry.shape for entry in inputs}
    built = build(file, inputs, trainable=trainable, rebound=rebound, declared=_declared(file.model, shapes))
    way = _Way(built)
    not_checked = [f for f in built.failures if isinstance(f.error, DependsOnFailure)]
    not_imported = [f for f in built.failures if not isinstance(f.error, DependsOnFailure)]
    open_dims = tuple(sorted({dim for entry in dims for dim in entry.dims if isinstance(dim, str)}))
    parameters = _parameters(file, trainable, way)
    operators = _operators(original, file, built, way)
    reads, misfit = _loss(spec, file, built, dims, assumed)
    return CheckReport(
        model=Path(path).name,
        digest=file.digest,
        opset=file.opset,
        inputs=tuple(
            InputCheck(entry.name, _dtype_name(bound.dtype), entry.dims)
            for entry, bound in zip(dims, inputs, strict=True)
        ),
        outputs=tuple(entry.name for entry in file.model.graph.output),
        unread_outputs=way.unread_outputs(),
        loss=reads,
        open_dims=open_dims,
        assumed=assumed,
        bind_hint=_bind_hint(dims, open_dims),
        operators=operators,
        not_imported=tuple(NodeRemark(f.op, f.node, _reason(f.node, f.error)) for f in not_imported),
        not_checked=tuple(NodeRemark(f.op, f.node, _reason(f.node, f.error)) for f in not_checked),
        gradient_stops=tuple(way.stops()),
        parameters=parameters,
        obstacles=(
            *_obstacles(operators, len(not_imported), parameters, outputs=len(built.outputs)),
            *([misfit] if misfit and loss is not None else ()),
        ),
    )


class _Way:
    """Which steps lie between a parameter and the first output, whose loss is minimised."""

    def __init__(self, built: BuiltModel) -> None:
        self.built = built
        self.is_known = not built.failures
        ends = built.outputs[:1] if self.is_known else built.outputs
        wanted = {v.slot for v in ends if v and _has_gradient(v)}
        if not self.is_known:  # ways may be lost behind a failure: every end counts
            read = {v.slot for step in built.steps for v in step.operands if v}
            wanted |= {v.slot for v in built.values if v.slot not in read and _has_gradient(v)}
        self.reached: set[int] = set(wanted)
        self.nodes: set[str] = set()
        for step in reversed(built.steps):
            if any(v and v.slot in self.reached for v in step.outputs):
                self.nodes.add(step.node)
                self.reached |= {v.slot for v in step.operands if v and _has_gradient(v)}

    def unread_outputs(self) -> tuple[str, ...]:
        """Names of the outputs on which the first does not depend."""
        if not self.is_known:
            return ()
        before = self._leading_to(self.built.outputs[:1])
        return tuple(v.name for v in self.built.outputs[1:] if v and v.slot not in before)

    def why_not(self, slots: Mapping[str, int]) -> dict[str, Why]:
        """Per name of a parameter that no gradient reaches, the reason.

        Args:
            slots: of the parameters by name; one without a slot is not read at all.
        """
        to_loss = self._leading_to(self.built.outputs[:1])
        out = self._leading_to(self.built.outputs)
        return {
            name: why(leads_to_loss=slot in to_loss or not self.is_known, leads_out=slot in out)
            for name, slot in slots.items()
            if slot not in self.reached
        }

    def _leading_to(self, values: Sequence[OnnxValue | None]) -> set[int]:
        """Slots of what ``values`` depend on, differentiably or not."""
        found = {v.slot for v in values if v}
        for step in reversed(self.built.steps):
            if any(v and v.slot in found for v in step.outputs):
                found |= {v.slot for v in step.operands if v}
        return found

    def stops(self) -> list[NodeRemark]:
        """Steps behind a parameter whose outputs have no gradient."""
        return [
            NodeRemark(step.op, step.node, _stop_reason(step))
            for step in self.built.steps
            if any(v and _has_gradient(v) for v in step.operands)
            and not any(v and _has_gradient(v) for v in step.outputs)
        ]


def _stop_reason(step: Step) -> str:
    types = {v.meta.dtype for v in step.outputs if v and isinstance(v.meta, Tensor)}
    if types and not any(dtype.is_floating_point for dtype in types):
        return f"its result is {', '.join(sorted(map(_dtype_name, types)))}, which has no gradient"
    return "its result does not change smoothly with its inputs"


def _has_gradient(value: OnnxValue) -> bool:
    metas = value.meta if isinstance(value.meta, tuple) else (value.meta,)
    return any(meta.requires_grad for meta in metas)


def _operators(original: OnnxFile, file: OnnxFile, built: BuiltModel, way: _Way) -> tuple[OperatorCheck, ...]:
    written, imported = ([(op_name(n), describe(n)) for n in f.model.graph.node] for f in (original, file))
    branches = [entry for entry in built.ops if entry not in imported]
    failed = {failure.node for failure in built.failures}
    run = {step.node for step in built.steps}
    nodes: dict[str, list[str]] = defaultdict(list)
    for op, node in (*written, *branches):
        nodes[op].append(node)
    rows = [
        OperatorCheck(
            op=op,
            count=len(found),
            imported=sum(node not in failed for node in found),
            constant=sum(node not in failed and node not in run for node in found),
            with_gradient=sum(node in way.nodes for node in found),
        )
        for op, found in nodes.items()
    ]
    return tuple(sorted(rows, key=lambda row: (-row.count, row.op)))


def _parameters(file: OnnxFile, trainable: frozenset[str], way: _Way) -> tuple[ParameterCheck, ...]:
    slots = {value.state: value.slot for value in way.built.values if value.state}
    names = state_names(sorted(trainable))
    reasons = dict.fromkeys(file.constants, Why.CONSTANT)
    reasons |= way.why_not({initializer: slots.get(initializer, _NOWHERE) for initializer in trainable})
    rows = [
        ParameterCheck(
            name=names[initializer],
            initializer=initializer,
            shape=file.tensors[initializer].shape,
            dtype=_dtype_name(file.tensors[initializer].dtype),
            size_bytes=file.tensors[initializer].size_bytes,
            trainable=initializer not in reasons,
            why=reasons.get(initializer),
        )
        for initializer in trainable
    ]
    return tuple(sorted(rows, key=lambda row: row.name))


def _obstacles(
    operators: tuple[OperatorCheck, ...],
    failed: int,
    parameters: tuple[ParameterCheck, ...],
    *,
    outputs: int,
) -> list[str]:
    found = []
    if failed:
        found.append(f"{failed} of {sum(row.count for row in operators)} nodes cannot be imported")
    if not parameters:
        found.append("the model has no parameters")
    elif not failed and not any(parameter.trainable for parameter in parameters):
        constants = [parameter.name for parameter in parameters if parameter.why is Why.CONSTANT]
        which = "an output" if outputs == 1 else "the first output, whose loss is minimised,"
        found.append(
            f"all weights lie in Constant nodes; name those to train: poet solve --train {constants[0]}"
            if constants
            else f"no parameter reaches {which} by differentiable operators"
        )
    return found


def _loss(
    spec: LossSpec, file: OnnxFile, built: BuiltModel, dims: tuple[Dims, ...], assumed: Mapping[str, int]
) -> tuple[str, str]:
    """What the loss reads of the first output, with open dimensions by name; and why it cannot, or ""."""
    first = built.outputs[0] if built.outputs else None
    if first is None or not isinstance(first.meta, Tensor):
        return f"{spec}, of a first output that is not known", ""
    sizes: list[int | str] = list(first.meta.shape)
    declared = file.model.graph.output[0].type.tensor_type.shape.dim
    if len(declared) == len(sizes):
        sizes = [
            dim.dim_param if assumed.get(dim.dim_param) == size else size
            for dim, size in zip(declared, sizes, strict=True)
        ]
    batch = dims[0].dims[0] if dims and dims[0].dims else None
    if sizes and isinstance(batch, str) and assumed.get(batch) == sizes[0]:
        sizes[0] = batch
    try:
        reads = spec.reads(sizes, _dtype_name(first.meta.dtype))
        classes = sizes[spec.class_dim(len(sizes))] if spec.targets_are_classes and len(sizes) > 1 else None
        doubt = misfit(spec, _ending(built, first), classes)
        return "; ".join(filter(None, (reads, doubt))), ""
    except ModelError as error:
        return f"{spec} cannot be its loss: {error}", str(error)


_ENDINGS = {"Softmax": "softmax", "Sigmoid": "sigmoid"}
_COPIES = ("Cast", "CastLike", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose")


def _ending(built: BuiltModel, output: OnnxValue) -> str | None:
    """What makes the ``output``, but for its shape and type."""
    for step in reversed(built.steps):
        if any(value is not None and value.slot == output.slot for value in step.outputs):
            if step.op not in _COPIES or step.operands[0] is None:
                return _ENDINGS.get(step.op)
            output = step.operands[0]
    return None


def _assumed(dims: tuple[Dims, ...], bind: Mapping[str, int]) -> dict[str, int]:
    assumed: dict[str, int] = {}
    for entry in dims:
        for axis, dim in enumerate(entry.dims):
            if isinstance(dim, str) and dim not in bind and dim not in assumed:
                inner = _ASSUMED_PIXELS if len(entry.dims) >= 4 else _ASSUMED_LENGTH
                assumed[dim] = _ASSUMED_BATCH if axis == 0 else inner
    return assumed


def _bind_hint(dims: tuple[Dims, ...], open_dims: tuple[str, ...]) -> str:
    if open_dims:
        return " ".join(f"--bind {name}=8" for name in open_dims)
    size = fixed_batch(dims)
    return f"--bind {BATCH_NAMES[0]}=8" if size is not None else ""


def _declared(model: ModelProto, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Tensor]:
    """Shapes that the file declares, or ONNX's own inference finds, of values that we may fail to make."""
    bound = ModelProto()
    bound.CopyFrom(model)
    for entry in bound.graph.input:
        for axis, size in enumerate(shapes.get(entry.name, ())):
            entry.type.tensor_type.shape.dim[axis].dim_value = size
    del bound.graph.value_info[:]
    try:
        bound = onnx.shape_inference.infer_shapes(bound)
    except (RuntimeError, ValueError, onnx.shape_inference.InferenceError):
        bound = model
    found = {}
    for entry in (*bound.graph.value_info, *bound.graph.output):
        kind = entry.type.tensor_type
        sizes = [dim.dim_value for dim in kind.shape.dim]
        is_sized = len(sizes) <= MOST_DIMENSIONS and all(size > 0 for size in sizes)
        is_sized = is_sized and math.prod(sizes) <= MOST_ELEMENTS
        if kind.HasField("shape") and is_sized and kind.elem_type in DTYPES:
            found[entry.name] = torch.empty(sizes, dtype=DTYPES[kind.elem_type], device="meta")
    return found


def _reason(node: str, error: ModelError) -> str:
    return str(error).removeprefix(f"{node}: ")


def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
