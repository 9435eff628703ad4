"""The intermediate representation: buffers, values, ops, and the training graph made of them.

It knows no torch, no ONNX and no kernels (see `poet.kernel_facts`). An op is one call of a functional
operator on named values with static shapes; a value is a typed, strided view of a buffer; a buffer is the
bytes that memory, paging and freeing refer to. A view is a second value on the same buffer and needs no op.

A record that exists is well formed: `Graph` checks itself when it is made.
"""

from __future__ import annotations

import enum
import functools
import math
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from poet import codec
from poet.brief import shortened, told
from poet.errors import GraphError
from poet.files.reading import LARGEST_WHOLE, MOST_DIMENSIONS, is_whole, shown

FORMAT_VERSION = 2

ITEM_BYTES = {
    "float64": 8, "float32": 4, "float16": 2, "bfloat16": 2,
    "int64": 8, "int32": 4, "int16": 2, "int8": 1, "uint8": 1, "bool": 1,
}  # fmt: skip
"""The element types a graph may use, by torch's name, and their size in bytes."""


class Role(enum.Enum):
    """What a buffer is for; every memory report is broken down by it."""

    INPUT = "input"
    PARAMETER = "parameter"
    STATE = "module state"  # batch-norm statistics, constants: in RAM across steps, not trained
    OPTIMIZER_STATE = "optimizer state"
    GRADIENT = "gradient"  # of a trained parameter
    ACTIVATION = "activation"  # forward values that no backward op reads, and backward's own values
    SAVED = "saved-for-backward"
    WORKSPACE = "workspace"


@dataclass(frozen=True, slots=True)
class TensorType:
    """Element type, shape, strides and offset (in elements, from the start of the buffer)."""

    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int = 0

    def __post_init__(self) -> None:
        if self.dtype not in ITEM_BYTES:
            raise GraphError(f"element type {self.dtype!r} is not one of {', '.join(ITEM_BYTES)}")
        if len(self.shape) != len(self.strides):
            raise GraphError(f"shape {self.shape} and strides {self.strides} differ in length")
        if len(self.shape) > MOST_DIMENSIONS:
            raise GraphError(f"{len(self.shape)} dimensions; a tensor has at most {MOST_DIMENSIONS}")
        if self.offset < 0 or any(size < 0 for size in (*self.shape, *self.strides)):
            raise GraphError(f"negative size, stride or offset in {self}")
        if self.elements > LARGEST_WHOLE:
            raise GraphError(f"{self} has more elements than 64 bits can count")

    @property
    def elements(self) -> int:
        """Number of elements."""
        return functools.reduce(lambda product, size: product * size, self.shape, 1)

    @property
    def extent_bytes(self) -> int:
        """Bytes from the buffer's start to the end of the last element addressed."""
        if self.elements == 0:
            return 0
        last = sum((size - 1) * stride for size, stride in zip(self.shape, self.strides, strict=True))
        return (self.offset + last + 1) * ITEM_BYTES[self.dtype]

    @property
    def overlaps_itself(self) -> bool:
        """Whether two elements may lie at one place, as after an expansion; such a value cannot be filled."""
        reach = 0
        for stride, size in sorted(zip(self.strides, self.shape, strict=True)):
            if size > 1:
                if stride <= reach:
                    return self.elements > 0
                reach += (size - 1) * stride
        return False

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"


@dataclass(frozen=True, slots=True)
class Buffer:
    """``size_bytes`` bytes behind one or more values."""

    name: str
    size_bytes: int
    role: Role

    def __post_init__(self) -> None:
        if self.size_bytes < 0:
            raise GraphError(f"buffer {self.name}: size {self.size_bytes} is negative")


@dataclass(frozen=True, slots=True)
class Value:
    """A typed view of a buffer."""

    name: str
    buffer: str
    type: TensorType


@dataclass(frozen=True, slots=True)
class Ref:
    """An argument that is the value of this name."""

    value: str


@dataclass(frozen=True, slots=True)
class Symbol:
    """An argument that torch spells as an object of its own.

    ``kind`` is ``dtype``, ``layout``, ``memory_format`` or ``device`` (``name`` is torch's name for
    it), or ``hyperparameter`` (``name`` is one of the optimizer's per-step scalars).
    """

    kind: str
    name: str

    KINDS: ClassVar[tuple[str, ...]] = ("dtype", "layout", "memory_format", "device", "hyperparameter")

    def __post_init__(self) -> None:
        if self.kind not in Symbol.KINDS:
            raise GraphError(f"symbol kind {self.kind!r} is not one of {', '.join(Symbol.KINDS)}")


@dataclass(frozen=True, slots=True)
class Blank:
    """A tensor argument of which the operator reads the type and never the contents.

    A convolution's input gradient is given the forward input, a pooling's too, for its shape only:
    nothing need be kept in RAM for it. Whoever runs the call gives any tensor of this type.
    """

    type: TensorType


Argument = None | bool | int | float | str | Ref | Symbol | Blank | tuple["Argument", ...]
"""What an operator may be given; floats may be infinite."""


@dataclass(frozen=True, slots=True)
class Call:
    """An operator and its arguments: ``target`` is ``aten.<name>.<overload>`` or ``poet.<name>``."""

    target: str
    args: tuple[Argument, ...]
    kwargs: tuple[tuple[str, Argument], ...] = ()

    def refs(self) -> Iterator[str]:
        """Names of the values that this call is given, in order, with repetitions."""
        pending: list[Argument] = [*self.args, *(argument for _, argument in self.kwargs)]
        for argument in pending:
            if isinstance(argument, Ref):
                yield argument.value
            elif isinstance(argument, tuple):
                pending.extend(argument)

    def to_data(self) -> dict[str, object]:
        """JSON-ready form, read back by `from_data`."""
        data: dict[str, object] = {"target": self.target, "args": [_encode_argument(a) for a in self.args]}
        if self.kwargs:
            data["kwargs"] = {key: _encode_argument(argument) for key, argument in self.kwargs}
        return data

    @staticmethod
    def from_data(data: Any, where: str) -> Call:
        """The call that `to_data` wrote.

        Raises:
            GraphError: ``data`` is not of that form.
        """
        if not isinstance(data, dict) or not {"target", "args"} <= data.keys() <= {
            "target",
            "args",
            "kwargs",
        }:
            raise GraphError(f"{where}: a call has a target, args and perhaps kwargs")
        target, args, kwargs = data["target"], data["args"], data.get("kwargs", {})
        if not isinstance(target, str) or not isinstance(args, list) or not isinstance(kwargs, dict):
            raise GraphError(f"{where}: a call is a string, a list and an object")
        return Call(
            target,
            tuple(_decode_argument(argument, where, 0) for argument in args),
            tuple((key, _decode_argument(argument, where, 0)) for key, argument in kwargs.items()),
        )

    def __str__(self) -> str:
        given = [_show(argument) for argument in self.args]
        given += [f"{key}={_show(argument)}" for key, argument in self.kwargs]
        return f"{self.target}({', '.join(given)})"


@dataclass(frozen=True, slots=True)
class Op:
    """One call, what it writes, and how to get its outputs again.

    Attributes:
        name: unique among ops.
        call: the first run.
        outputs: names of the values it allocates, each the first value of a buffer of its own;
            ``None`` where the operator returns nothing in that place.
        updates: buffers that the first run writes in place (parameters, statistics).
        repeatable: whether the op may be run again.
        repeat_call: the call that gives the same outputs again without the first run's effects;
            ``None`` where that is ``call`` itself, as it is for a pure op.
        random: the first run draws from the generator, so first runs keep their order.
    """

    name: str
    call: Call
    outputs: tuple[str | None, ...]
    updates: tuple[str, ...] = ()
    repeatable: bool = True
    repeat_call: Call | None = None
    random: bool = False

    def __post_init__(self) -> None:
        if self.repeat_call is None and self.repeatable and (self.updates or self.random):
            raise GraphError(f"op {self.name} has an effect: it needs a repeat_call or is not repeatable")

    @property
    def recall(self) -> Call | None:
        """The call that recomputes the outputs, or ``None`` where the op must not run again."""
        return (self.repeat_call or self.call) if self.repeatable else None


@dataclass(frozen=True, slots=True)
class Parameter:
    """A tensor of the module that lives across steps.

    Attributes:
        name: the module's own name for it, e.g. ``layer4.0.conv1.weight``.
        value: its value in the graph.
        gradient: the value of its gradient, ``None`` where it is frozen.
        optimizer_state: per state name (``momentum_buffer``, ``exp_avg`` ...) the value.
    """

    name: str
    value: str
    gradient: str | None = None
    optimizer_state: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Graph:
    """A training step: forward, loss, backward and update as one list of ops in a runnable order.

    Attributes:
        name: of the model.
        buffers, values, ops: the parts; a buffer without a producing op is present from the start.
        inputs: values the caller gives each step, the model's inputs first, then the targets.
        targets: how many of ``inputs`` are targets of the loss, usually 0 or 1.
        loss: the scalar value that is minimised.
        predictions: the model's outputs, handed back to the caller.
        parameters: trained and frozen, in the module's order.
        states: the module's buffers, as (module's name, value).
        constants: values baked into the model, as (name, value).
    """

    name: str
    buffers: tuple[Buffer, ...]
    values: tuple[Value, ...]
    ops: tuple[Op, ...]
    inputs: tuple[str, ...]
    targets: int
    loss: str
    predictions: tuple[str, ...]
    parameters: tuple[Parameter, ...] = ()
    states: tuple[tuple[str, str], ...] = ()
    constants: tuple[tuple[str, str], ...] = ()
    _buffer_of: dict[str, str] = field(init=False, repr=False, compare=False, default_factory=dict)

    def __post_init__(self) -> None:
        self._buffer_of.update({value.name: value.buffer for value in self.values})
        _check(self)

    def __repr__(self) -> str:
        parts = f"{len(self.ops)} ops, {len(self.buffers)} buffers, {len(self.parameters)} parameters"
        return told(self, f"of {shortened(self.name)}: {parts}")

    def buffer_of(self, value: str) -> str:
        """The name of the buffer behind ``value``."""
        return self._buffer_of[value]

    def reads(self, call: Call) -> tuple[str, ...]:
        """Names of the buffers that ``call`` reads or updates, each once, in order."""
        return tuple(dict.fromkeys(self._buffer_of[name] for name in call.refs()))

    def writes(self, op: Op) -> tuple[str, ...]:
        """Names of the buffers that ``op`` allocates."""
        return tuple(self._buffer_of[name] for name in op.outputs if name is not None)

    def persistent(self) -> frozenset[str]:
        """Buffers that hold parameters, optimizer state, module state or constants."""
        values = [p.value for p in self.parameters]
        values += [value for p in self.parameters for _, value in p.optimizer_state]
        values += [value for _, value in (*self.states, *self.constants)]
        return frozenset(self._buffer_of[value] for value in values)

    def to_text(self, remarks: Mapping[str, str] | None = None) -> str:
        """The graph as a person reads it: sources, then one line per op, with its remark."""
        return "\n".join(_text_lines(self, remarks or {})) + "\n"

    def to_json(self) -> dict[str, object]:
        """JSON-ready form; `from_json` gives an equal graph back."""
        return {"format": "poet-graph", "version": FORMAT_VERSION, **codec.encode(self)}

    @staticmethod
    def from_json(data: object, *, where: str = "graph") -> Graph:
        """The graph that `to_json` wrote.

        Raises:
            GraphError: another format or version, a key too many or missing, or a malformed graph.
        """
        if not isinstance(data, dict) or data.get("format") != "poet-graph":
            raise GraphError(f"{where}: not a poet-graph")
        if data.get("version") != FORMAT_VERSION:
            raise GraphError(
                f"{where}: version {shown(data.get('version'))}, this poet reads {FORMAT_VERSION}"
            )
        fields = {key: item for key, item in data.items() if key not in ("format", "version")}
        return codec.decode(Graph, fields, where=where, error=GraphError)


# --- checks -----------------------------------------------------------------------------------


def _unique(names: Iterator[str], what: str) -> set[str]:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise GraphError(f"two {what} are called {name!r}")
        seen.add(name)
    return seen


def _check(graph: Graph) -> None:
    buffers = {buffer.name: buffer for buffer in graph.buffers}
    _unique((buffer.name for buffer in graph.buffers), "buffers")
    values = _unique((value.name for value in graph.values), "values")
    _unique((op.name for op in graph.ops), "ops")
    _unique((parameter.name for parameter in graph.parameters), "parameters")
    for value in graph.values:
        if value.buffer not in buffers:
            raise GraphError(f"value {value.name}: there is no buffer {value.buffer!r}")
        if value.type.extent_bytes > buffers[value.buffer].size_bytes:
            raise GraphError(
                f"value {value.name} reaches byte {value.type.extent_bytes} of buffer "
                f"{value.buffer}, which has {buffers[value.buffer].size_bytes}"
            )
    _check_named(graph, values)
    _check_order(graph, set(buffers))


def _check_named(graph: Graph, values: set[str]) -> None:
    named = [*graph.inputs, graph.loss, *graph.predictions]
    named += [value for _, value in (*graph.states, *graph.constants)]
    for parameter in graph.parameters:
        named += [parameter.value, *(value for _, value in parameter.optimizer_state)]
        named += [parameter.gradient] if parameter.gradient is not None else []
    for op in graph.ops:
        named += [name for name in op.outputs if name is not None]
        named += op.call.refs()
        named += op.recall.refs() if op.recall is not None else ()
    for name in named:
        if name not in values:
            raise GraphError(f"{graph.name}: there is no value {name!r}")
    if not 0 <= graph.targets <= len(graph.inputs):
        raise GraphError(f"{graph.name}: {graph.targets} targets among {len(graph.inputs)} inputs")
    if graph.targets and not graph.predictions:
        raise GraphError(f"{graph.name}: targets, but no prediction to hold against them")


def _check_order(graph: Graph, buffers: set[str]) -> None:
    produced_later = {written for op in graph.ops for written in graph.writes(op)}
    present = buffers - produced_later
    for value in (*graph.inputs, *(parameter.value for parameter in graph.parameters)):
        if graph.buffer_of(value) in produced_later:
            raise GraphError(f"{value} is given from outside and produced by an op as well")
    for op in graph.ops:
        reads = {*graph.reads(op.call), *(graph.reads(op.recall) if op.recall else ())}
        for name in sorted(reads - present):
            raise GraphError(f"op {op.name} reads buffer {name} before it is produced")
        for name in op.updates:
            if name not in reads:
                raise GraphError(f"op {op.name} updates buffer {name} but is not given it")
        for name in graph.writes(op):
            if name in present:
                raise GraphError(f"op {op.name} produces buffer {name} a second time")
            present.add(name)


# --- text and JSON ----------------------------------------------------------------------------


def _show(argument: Argument) -> str:
    if isinstance(argument, Ref):
        return f"%{argument.value}"
    if isinstance(argument, Symbol):
        return argument.name
    if isinstance(argument, Blank):
        return f"blank {argument.type}"
    if isinstance(argument, tuple):
        return f"[{', '.join(map(_show, argument))}]"
    return repr(argument)


def _text_lines(graph: Graph, remarks: Mapping[str, str]) -> Iterator[str]:
    types = {value.name: value.type for value in graph.values}
    buffers = {buffer.name: buffer for buffer in graph.buffers}
    produced = {written for op in graph.ops for written in graph.writes(op)}
    yield f"graph {graph.name}"
    for value in graph.values:
        buffer = buffers[value.buffer]
        if value.buffer not in produced:
            place = f"@{buffer.name} ({buffer.size_bytes} B)"
            yield f"  %{value.name}: {value.type} = {buffer.role.value} {place}"
    views: dict[str, list[Value]] = {}
    for value in graph.values:
        views.setdefault(value.buffer, []).append(value)
    for op in graph.ops:
        outputs = [f"%{name}: {types[name]}" if name is not None else "_" for name in op.outputs]
        notes = [remarks[op.name]] if op.name in remarks else []
        notes += [f"updates @{name}" for name in op.updates]
        notes += ["random"] if op.random else []
        notes += [] if op.repeatable else ["never recomputed"]
        notes += [f"recomputed by {op.repeat_call}"] if op.repeat_call is not None else []
        suffix = f"    # {'; '.join(notes)}" if notes else ""
        yield f"  {', '.join(outputs) or '_'} = {op.call}{suffix}"
        for written in graph.writes(op):
            for view in views[written]:
                if view.name not in op.outputs:
                    yield f"    %{view.name}: {view.type} views @{written}"
    yield f"  loss %{graph.loss}; predictions {', '.join('%' + name for name in graph.predictions)}"


_SPELLED_FLOATS = {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}  # JSON has no word for these


def _encode_argument(argument: Argument) -> Any:
    if isinstance(argument, Ref):
        return {"value": argument.value}
    if isinstance(argument, Symbol):
        return {argument.kind: argument.name}
    if isinstance(argument, Blank):
        return {"blank": codec.encode(argument.type)}
    if isinstance(argument, tuple):
        return [_encode_argument(item) for item in argument]
    if isinstance(argument, float) and not math.isfinite(argument):
        return {"float": str(argument)}
    return argument


def _decode_argument(data: Any, where: str, depth: int) -> Argument:
    if data is None or isinstance(data, bool | float | str) or is_whole(data):
        return typing.cast(Argument, data)
    if isinstance(data, list) and depth < 8:
        return tuple(_decode_argument(item, where, depth + 1) for item in data)
    if isinstance(data, dict) and len(data) == 1:
        kind, name = next(iter(data.items()))
        if kind == "blank":
            return Blank(codec.decode(TensorType, name, where=where, error=GraphError))
        if isinstance(name, str):
            if kind == "value":
                return Ref(name)
            if kind == "float" and name in _SPELLED_FLOATS:
                return _SPELLED_FLOATS[name]
            if kind in Symbol.KINDS:
                return Symbol(kind, name)
    raise GraphError(f"{where}: {shown(data)} is not an operator's argument")
