"""From an ONNX graph to a list of steps in plain torch: names resolved, shapes known, constants computed.

Each node is looked up in the operator table and tried on tensors without content, which gives shapes and
types. What depends on no input and no weight is computed at once, so that chains like Shape, Gather,
Concat, Reshape leave nothing but the reshape, and an ``If`` is the branch that is taken.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias, TypeVar

import torch
from onnx import AttributeProto, GraphProto, NodeProto
from torch import Tensor

from poet.errors import ModelError, UnsupportedOperator, nearest
from poet.frontend.onnx import ops_math, ops_nn, ops_resize, ops_rnn, ops_shape
from poet.frontend.onnx.node import (
    ROWS,
    Alias,
    Built,
    Modal,
    Node,
    OnnxValue,
    OperatorRow,
    Rebound,
    Run,
    check_results,
    defined,
    describe,
)  # fmt: skip
from poet.frontend.onnx.reader import OnnxFile, names_read

TABLES = (ops_math, ops_nn, ops_resize, ops_rnn, ops_shape)
"""The modules whose import fills the operator table."""

_MAX_CONSTANT_BYTES = 1 << 30
_MOST_ELEMENTS = 1 << 29
"""That import reads and writes to compute constants, all nodes together: some seconds and GiB."""
_MOST_HEAVY = 1 << 18
"""The same of one node whose work is more than reading and writing; a larger one is left to the step."""
_MOST_TRIED = 1 << 16
"""Elements of a result that is made once to see whether torch has a kernel for its rare types."""
_USUAL = frozenset({torch.float32, torch.float64, torch.int64, torch.int32, torch.bool})
_TORCH_ERRORS = (
    ArithmeticError, AttributeError, IndexError, KeyError, NotImplementedError, RuntimeError, TypeError,
    ValueError,
)  # fmt: skip
_Result = TypeVar("_Result")
_Meta: TypeAlias = Tensor | tuple[Tensor, ...] | None
_STANDARD_DOMAINS = ("", "ai.onnx")


@dataclass(frozen=True)
class Input:
    """An input of the model, with every dimension bound."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Step:
    """One call.

    Attributes:
        op: the ONNX operator, or what it was joined into.
        node: the node in words, for messages.
        inputs: the node's inputs; ``None`` where absent.
        operands: those of them that are passed when it runs, as slots; ``None`` is passed as such.
        outputs: slots written, one per output of the call; ``None`` where nobody reads it.
        run: the call, or one per mode.
        whole: its result is the one output (a tensor or a sequence), not a tuple of outputs.
        attributes: what rewriting rules need (``perm`` of a transposition, ``epsilon``).
    """

    op: str
    node: str
    inputs: tuple[OnnxValue | None, ...]
    operands: tuple[OnnxValue | None, ...]
    outputs: tuple[OnnxValue | None, ...]
    run: Built
    whole: bool = True
    attributes: Mapping[str, float | tuple[float, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class Failure:
    """A node that was not imported, and why."""

    op: str
    node: str
    error: ModelError


@dataclass(frozen=True)
class BuiltModel:
    """The steps of a model.

    Attributes:
        inputs: values of the model's inputs, in order.
        outputs: values of its outputs, in order; ``None`` where a failure left them unknown.
        steps: in a runnable order.
        values: all values, by slot.
        buffers: initialisers that a step changes itself (running statistics).
        failures: nodes left out, where these were to be collected.
        ops: operator and node of everything in the file, in order; also of what was computed at import.
    """

    inputs: tuple[OnnxValue, ...]
    outputs: tuple[OnnxValue | None, ...]
    steps: tuple[Step, ...]
    values: tuple[OnnxValue, ...]
    buffers: frozenset[str]
    failures: tuple[Failure, ...]
    ops: tuple[tuple[str, str], ...]


def build(
    file: OnnxFile,
    inputs: Sequence[Input],
    *,
    trainable: frozenset[str],
    rebound: Rebound | None = None,
    declared: Mapping[str, Tensor] | None = None,
) -> BuiltModel:
    """The steps of ``file``, in a runnable order.

    Args:
        file: the model.
        inputs: its inputs with shapes bound.
        trainable: initialisers that are parameters; all others are constants, or buffers of a step.
        rebound: a first dimension fixed in the file that the user bound to another size.
        declared: if given, go on after a node that cannot be imported and list it in ``failures``; its
            outputs are then taken to be of these shapes and types, as far as they are named here.

    Raises:
        UnsupportedOperator: the table has no row for a node's operator.
        ModelError: a node breaks its operator's rules, or needs content that only a run would give.
    """
    builder = _Builder(file, trainable, rebound, declared)
    scope: dict[str, OnnxValue | None] = {}
    for entry in inputs:
        meta = torch.empty(entry.shape, dtype=entry.dtype, device="meta")
        scope[entry.name] = builder.value(entry.name, meta)
    bound = tuple(value for value in scope.values() if value is not None)
    for name in file.tensors:
        scope[name] = builder.initializer(name)
    builder.graph(file.model.graph, scope)
    outputs = tuple(scope.get(entry.name) for entry in file.model.graph.output)
    for entry, value in zip(file.model.graph.output, outputs, strict=True):
        if value is None and declared is None:
            raise ModelError(f"no node gives the output {entry.name!r}")
    return BuiltModel(
        bound, outputs, tuple(builder.steps), tuple(builder.values), frozenset(builder.buffers),
        tuple(builder.failures), tuple(builder.ops),
    )  # fmt: skip


class _Builder:
    def __init__(
        self,
        file: OnnxFile,
        trainable: frozenset[str],
        rebound: Rebound | None,
        declared: Mapping[str, Tensor] | None,
    ) -> None:
        self.file = file
        self.read = names_read(file.model.graph)
        self.trainable = trainable
        self.rebound = rebound
        self.declared = declared
        self.steps: list[Step] = []
        self.values: list[OnnxValue] = []
        self.buffers: set[str] = set()
        self.failures: list[Failure] = []
        self.ops: list[tuple[str, str]] = []
        self.elements = 0

    def value(
        self,
        name: str,
        meta: Tensor | tuple[Tensor, ...],
        *,
        constant: Tensor | None = None,
        state: str | None = None,
    ) -> OnnxValue:
        value = OnnxValue(len(self.values), name, meta, constant, state)
        self.values.append(value)
        return value

    def initializer(self, name: str) -> OnnxValue:
        """A parameter stays on disk; a constant is read."""
        stored = self.file.tensors[name]
        meta = torch.empty(stored.shape, dtype=stored.dtype, device="meta")
        if name in self.trainable:
            return self.value(name, meta.requires_grad_(), state=name)
        if stored.read is None:  # weights of a stripped structure that a step keeps as buffers
            return self.value(name, meta, state=name)
        return self.value(name, meta, constant=stored.read(), state=name)

    def graph(self, graph: GraphProto, scope: dict[str, OnnxValue | None]) -> None:
        """Enters the values of ``graph``'s nodes into ``scope``."""
        for proto in graph.node:
            self.ops.append((op_name(proto), describe(proto)))
            try:
                self.node(proto, scope)
            except ModelError as error:
                if self.declared is None:
                    raise
                self.failures.append(Failure(op_name(proto), describe(proto), error))
                self.assume(proto, scope, self.declared)

    def assume(
        self, proto: NodeProto, scope: dict[str, OnnxValue | None], declared: Mapping[str, Tensor]
    ) -> None:
        """Enters the outputs of a node that failed, as the file declares them."""
        inputs = [scope.get(name) for name in proto.input]
        trained = any(isinstance(v.meta, Tensor) and v.meta.requires_grad for v in inputs if v)
        for name in filter(None, proto.output):
            meta = declared.get(name)
            if meta is None:
                scope[name] = None
            else:
                scope[name] = self.value(
                    name, meta.clone().requires_grad_(trained and meta.is_floating_point())
                )

    def node(self, proto: NodeProto, scope: dict[str, OnnxValue | None]) -> None:
        if proto.op_type == "If" and proto.domain in _STANDARD_DOMAINS:
            self.branch(proto, scope)
            return
        row = _row(proto)
        inputs = tuple(_resolve(proto, name, scope) for name in proto.input)
        outputs = list(proto.output)
        while outputs and not outputs[-1]:
            outputs.pop()
        read_count = max((place for place, name in enumerate(outputs, 1) if name in self.read), default=0)
        node = Node(proto, inputs, self.file.opset, len(outputs), read_count, self.rebound)
        node.definition = defined(node)
        built = _guarded(node, lambda: row.build(node))
        node.refuse_unseen(row.ignored)
        for index in node.buffers:
            state = node.value(index).state
            if state is not None:
                self.buffers.add(state)
        results = self.results(node, row, built)
        check_results(node, results)
        scope.update({name: result for name, result in zip(outputs, results, strict=False) if name})

    def results(self, node: Node, row: OperatorRow, built: Built) -> list[OnnxValue | None]:
        """The values of a node's outputs; appends a step unless they are known already."""
        name = next(filter(None, node.proto.output), "")
        if isinstance(built, Alias):
            return [node.value(built.index)]
        if isinstance(built, Tensor):
            _check_size(node, built)
            self.spend(node, built.numel())
            return [self.constant(name, built)]
        operands = [value for index, value in enumerate(node.inputs) if index not in node.taken]
        while operands and operands[-1] is None:
            operands.pop()
        known = all(value is None or value.constant is not None for value in operands)
        is_small = not row.heavy or _elements(operands) <= _MOST_HEAVY
        if known and is_small and not (row.random or node.buffers or node.proto.op_type in _MAKES_SEQUENCE):
            return self.folded(node, row, built, operands)
        if row.by_data:
            raise node.error("the shape of its output depends on data, which cannot be planned for")
        run = built.train if isinstance(built, Modal) else built
        metas = [value.meta if value is not None else None for value in operands]
        # what is made from nothing, as random numbers are, has no operand that says it is without content
        with contextlib.nullcontext() if operands else torch.device("meta"):
            found = _guarded(node, lambda: run(*(_as_list(meta) for meta in metas)))
        if not (row.random or node.buffers):
            _try_rare(node, run, metas, found)
        whole = isinstance(found, Tensor) or node.proto.op_type in _MAKES_SEQUENCE
        entries = [found if isinstance(found, Tensor) else tuple(found)] if whole else found
        names = [*node.proto.output, *[""] * len(entries)]
        outputs = tuple(
            self.value(names[index], entry) if names[index] else None for index, entry in enumerate(entries)
        )
        op = node.proto.op_type
        self.steps.append(
            Step(op, node.where, node.inputs, tuple(operands), outputs, built, whole, _facts(node))
        )
        return list(outputs)

    def folded(
        self, node: Node, row: OperatorRow, built: Built, operands: Sequence[OnnxValue | None]
    ) -> list[OnnxValue | None]:
        """The outputs of a node that depends on constants only; sizes are looked at before it runs."""
        assert not isinstance(built, Tensor | Alias)
        run = built.evaluate if isinstance(built, Modal) else built
        contents = [value.constant if value is not None else None for value in operands]
        if not row.by_data:
            metas = [None if content is None else content.to("meta") for content in contents]
            shapes = _guarded(node, lambda: run(*metas))
            for entry in [shapes] if isinstance(shapes, Tensor) else shapes:
                _check_size(node, entry)
                self.spend(node, entry.numel())
        self.spend(node, _elements(operands))
        with torch.no_grad():
            found = _guarded(node, lambda: run(*contents))
        entries = [found] if isinstance(found, Tensor) else list(found)
        names = [*node.proto.output, *[""] * len(entries)]
        return [self.constant(names[index], entry) for index, entry in enumerate(entries)]

    def spend(self, node: Node, elements: int) -> None:
        """Counts what import reads and writes for constants."""
        self.elements += elements
        if self.elements > _MOST_ELEMENTS:
            raise node.error(
                f"constants computed at import take {self.elements} elements up to here; the limit is "
                f"{_MOST_ELEMENTS}; export the model with its constants folded, or smaller ones"
            )

    def constant(self, name: str, content: Tensor) -> OnnxValue:
        meta = torch.empty_strided(content.shape, content.stride(), dtype=content.dtype, device="meta")
        return self.value(name, meta, constant=content)

    def branch(self, proto: NodeProto, scope: dict[str, OnnxValue | None]) -> None:
        """An ``If`` whose condition is known: the nodes of the branch taken."""
        if not proto.input:
            raise ModelError(f"{describe(proto)}: it has no condition")
        condition, outputs = _resolve(proto, proto.input[0], scope), len(proto.output)
        node = Node(proto, (condition,), self.file.opset, outputs, outputs)
        taken = "then_branch" if bool(node.scalar(0, "condition")) else "else_branch"
        attribute = node.attribute(taken)
        if attribute is None or attribute.type != AttributeProto.GRAPH:
            raise node.error(f"it has no {taken}")
        inner = dict(scope)
        for tensor in attribute.g.initializer:
            raise node.error(f"the initialiser {tensor.name!r} inside a branch is not supported")
        self.graph(attribute.g, inner)
        scope.update(
            (outer, inner.get(entry.name))
            for outer, entry in zip(proto.output, attribute.g.output, strict=False)
        )


_MAKES_SEQUENCE = frozenset({"SplitToSequence", "SequenceConstruct"})


def _facts(node: Node) -> Mapping[str, float | tuple[float, ...]]:
    """Attributes by which rewriting rules recognise a pattern."""
    if node.proto.op_type == "Transpose":
        return {"perm": tuple(node.int_list("perm", list(reversed(range(node.rank(0))))))}
    if node.proto.op_type == "InstanceNormalization":
        return {"epsilon": node.real("epsilon", 1e-5)}
    if node.proto.op_type == "RandomUniformLike":
        return {"range": (node.real("low", 0.0), node.real("high", 1.0))}
    if node.proto.op_type == "Softmax":
        return {"axis": (node.axis(node.integer("axis", -1 if node.opset >= 13 else 1)),)}
    if node.proto.op_type == "ReduceMean" and node.integer("keepdims", 1):
        axes = node.ints_or_attribute(1, "axes")
        return {} if axes is None else {"axes": tuple(node.axis(axis) for axis in axes)}
    return {}


def _as_list(meta: Tensor | tuple[Tensor, ...] | None) -> Tensor | list[Tensor] | None:
    return list(meta) if isinstance(meta, tuple) else meta


def op_name(proto: NodeProto) -> str:
    """The operator, with its domain where that is not the standard one."""
    return proto.op_type if proto.domain in _STANDARD_DOMAINS else f"{proto.domain}::{proto.op_type}"


_CONTROL = ("Loop", "Scan", "SequenceMap")


def _row(proto: NodeProto) -> OperatorRow:
    if proto.domain in _STANDARD_DOMAINS and proto.op_type in ROWS:
        return ROWS[proto.op_type]
    if proto.op_type in _CONTROL:
        raise UnsupportedOperator(
            f"{describe(proto)}: loops are not supported; export the model with its loops unrolled"
        )
    hint = nearest(proto.op_type, ROWS) if proto.domain in _STANDARD_DOMAINS else ""
    raise UnsupportedOperator(
        f"{describe(proto)}: the operator is not in the table of supported ones{hint}; export with "
        "torch's other exporter (dynamo=True with optimize=False, or dynamo=False), or plan the module itself"
    )


def _resolve(proto: NodeProto, name: str, scope: Mapping[str, OnnxValue | None]) -> OnnxValue | None:
    if not name:
        return None
    if name not in scope:
        raise ModelError(f"{describe(proto)}: no node before it gives its input {name!r}")
    value = scope[name]
    if value is None:
        raise DependsOnFailure(
            f"{describe(proto)}: its input {name!r} comes from a node that was not imported"
        )
    return value


class DependsOnFailure(ModelError):
    """A node whose input is unknown because an earlier node was not imported."""


def _elements(values: Sequence[OnnxValue | None]) -> int:
    return sum(value.constant.numel() for value in values if value and value.constant is not None)


def _try_rare(node: Node, run: Run, metas: Sequence[_Meta], found: Tensor | Sequence[Tensor]) -> None:
    """Runs a step of rare element types once: torch may have no kernel for them, which shapes do not tell."""
    results = [found] if isinstance(found, Tensor) else list(found)
    made = [meta for meta in (*metas, *results) if isinstance(meta, Tensor)]
    is_usual = {meta.dtype for meta in made} <= _USUAL or any(isinstance(meta, tuple) for meta in metas)
    if is_usual or sum(meta.numel() for meta in made) > _MOST_TRIED:
        return
    fill = {torch.int32: 0, torch.int64: 0}  # zeros are indices that exist, ones may divide
    given = [
        torch.full(m.shape, fill.get(m.dtype, 1), dtype=m.dtype) if isinstance(m, Tensor) else None
        for m in metas
    ]
    with torch.no_grad():
        _guarded(node, lambda: run(*given))


def _check_size(node: Node, meta: Tensor) -> None:
    size_bytes = math.prod(meta.shape) * meta.dtype.itemsize
    if size_bytes > _MAX_CONSTANT_BYTES:
        raise node.error(f"a constant of {size_bytes} bytes; the limit is {_MAX_CONSTANT_BYTES}")


def _guarded(node: Node, call: Callable[[], _Result]) -> _Result:
    """Runs ``call``; what torch finds wrong with a stranger's node is a :class:`ModelError` naming it."""
    try:
        return call()
    except ModelError:
        raise
    except _TORCH_ERRORS as error:
        shapes = ", ".join("-" if v is None else _shape_text(v) for v in node.inputs)
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise node.error(f"does not fit its inputs ({shapes}): {reason}") from None


def _shape_text(value: OnnxValue) -> str:
    if isinstance(value.meta, tuple):
        return f"sequence of {len(value.meta)}"
    return "x".join(map(str, value.meta.shape)) or "scalar"
