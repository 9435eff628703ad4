"""The intermediate representation: buffers, values, ops, and the training graph made of them.

It knows no torch, no ONNX and no kernels (see `poet.ir.kernel_facts`). An op is one call of a functional
operator on named values with static shapes; a value is a typed, strided view of a buffer; a buffer is the
bytes that memory, paging and freeing refer to. A view is a second value on the same buffer and needs no op.

A record that exists is well formed: `Graph` checks itself when it is made.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from poet.errors import GraphError, spelled_out
from poet.ir.calls import ITEM_BYTES, Argument, Blank, Call, Ref, Symbol, TensorType, Value, contiguous
from poet.ir.packed import IN_FLASH, Packed
from poet.ir.strips import Link, Strip, check_strip
from poet.ir.wholes import Whole, check_whole
from poet.util import codec
from poet.util.brief import shortened, told
from poet.util.reading import shown

__all__ = [
    "ITEM_BYTES",
    "Argument",
    "Blank",
    "Buffer",
    "Call",
    "Graph",
    "Link",
    "Op",
    "Parameter",
    "Ref",
    "Role",
    "Strip",
    "Symbol",
    "TensorType",
    "Value",
    "Whole",
]

FORMAT_VERSION = 2

STORED_ROWS = "poet.stored_rows"
"""The operator that looks rows of a table up where it lies in storage."""
STORED_ROWS_SGD = "poet.stored_rows_sgd"
"""The operator that updates the rows of a table that were looked up, where it lies in storage."""

LARGEST_WRITTEN_ROW_BYTES = 48 * 1024
"""A row that is changed in storage passes the smallest page buffer whole, with the pages around it."""
STORED_ARGUMENTS = {STORED_ROWS: 4, STORED_ROWS_SGD: 7}
"""Operators that read rows in storage, and how many arguments they have."""


class Role(enum.Enum):
    """What a buffer is for; every memory report is broken down by it."""

    INPUT = "input"
    PARAMETER = "parameter"
    STATE = "module state"  # batch-norm statistics, constants: in RAM across steps, not trained
    OPTIMIZER_STATE = "optimizer state"
    ACCUMULATED = "accumulated gradient"  # summed over the micro-batches of a step
    GRADIENT = "gradient"  # of a trained parameter
    ACTIVATION = "activation"  # forward values that no backward op reads, and backward's own values
    SAVED = "saved-for-backward"
    WORKSPACE = "workspace"


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
class Op:
    """One call, what it writes, and how to get its outputs again.

    Attributes:
        name: unique among ops.
        call: the first run.
        outputs: names of the values it allocates, each the first value of a buffer of its own;
            ``None`` where the operator returns nothing in that place.
        updates: buffers that the first run writes in place (parameters, statistics), in storage where they
            are ``stored``.
        repeatable: whether the op may be run again.
        repeat_call: the call that gives the same outputs again without the first run's effects;
            ``None`` where that is ``call`` itself, as it is for a pure op.
        random: the first run draws from the generator, so first runs keep their order.
        strip: the calls that run block by block in place of ``call``, which then names what they are given;
            ``None``: the op is the one call.
        stored: buffers of which each run reads rows where they lie in storage: a table's, its first rows
            first. They need not be in RAM, and the call does not name them.
    """

    name: str
    call: Call
    outputs: tuple[str | None, ...]
    updates: tuple[str, ...] = ()
    repeatable: bool = True
    repeat_call: Call | None = None
    random: bool = False
    strip: Strip | None = None
    stored: tuple[str, ...] = ()

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
        gradient: the value of its gradient, perhaps an inner one of a strip; where rows of it are updated in
            storage, that of what was looked up; ``None`` where it is frozen.
        optimizer_state: per state name (``momentum_buffer``, ``exp_avg`` ...) the value.
        accumulator: the value that sums its gradient over micro-batches; ``None``: there are none.
        packed: how the bytes of ``value`` are to be read, where it is frozen in fewer bits; ``None``: it is
            as the module has it.
    """

    name: str
    value: str
    gradient: str | None = None
    optimizer_state: tuple[tuple[str, str], ...] = ()
    accumulator: str | None = None
    packed: Packed | None = None


@dataclass(frozen=True, slots=True, repr=False)
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
        wholes: parameters of the module that are several of ``parameters`` here, some rows each.

    Raises:
        GraphError: it is not well formed.
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
    wholes: tuple[Whole, ...] = ()
    _buffer_of: dict[str, str] = field(init=False, repr=False, compare=False, default_factory=dict)

    def __post_init__(self) -> None:
        self._buffer_of.update({value.name: value.buffer for value in self.values})
        _check(self)

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
        """Buffers that hold parameters, optimizer state, sums of gradients, module state or constants."""
        values = [p.value for p in self.parameters]
        values += [p.accumulator for p in self.parameters if p.accumulator is not None]
        values += [value for p in self.parameters for _, value in p.optimizer_state]
        values += [value for _, value in (*self.states, *self.constants)]
        return frozenset(self._buffer_of[value] for value in values)

    def in_flash(self, library: str) -> frozenset[str]:
        """Buffers that the kernels of ``library`` read where they lie in flash: they take no RAM."""
        packed = (item.value for item in self.parameters if item.packed is not None)
        return frozenset(map(self.buffer_of, packed)) if library in IN_FLASH else frozenset()

    def classes_in_strips(self) -> int | None:
        """How many classes the last layer has whose logits are made in strips; ``None``: there is none."""
        for op in self.ops:
            if op.call.target == "poet.logits_loss":
                weight = op.call.args[1]
                assert isinstance(weight, Ref)
                return next(value.type.shape[0] for value in self.values if value.name == weight.value)
        return None

    def __repr__(self) -> str:
        parts = f"{len(self.ops)} ops, {len(self.buffers)} buffers, {len(self.parameters)} parameters"
        return told(self, f"of {shortened(self.name)}: {parts}")

    def to_text(self, remarks: Mapping[str, str] | None = None) -> str:
        """The graph as a person reads it: sources, then one line per op, with its remark."""
        return "\n".join(map(spelled_out, _text_lines(self, remarks or {}))) + "\n"

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


def lasting_of(parameter: Parameter) -> tuple[tuple[str, str], ...]:
    """What lives across steps for a parameter, as (what it is, its value); first the parameter itself."""
    summed = parameter.accumulator
    sums = () if summed is None else (("its sum of gradients", summed),)
    return (("its content", parameter.value), *parameter.optimizer_state, *sums)


def floats_within(graph: Graph) -> frozenset[str]:
    """Buffers of float32 numbers that nobody has after the step, each with a value that fills it.

    Neither parameters, optimizer state and module state nor what is handed to the caller.
    """
    kept = graph.persistent().union(map(graph.buffer_of, (graph.loss, *graph.predictions)))
    other = {value.buffer for value in graph.values if value.type.dtype != "float32"}
    sizes_bytes = {buffer.name: buffer.size_bytes for buffer in graph.buffers}
    filled = {value.buffer for value in graph.values if 4 * value.type.elements == sizes_bytes[value.buffer]}
    return frozenset(name for name in filled - kept - other if sizes_bytes[name])


def stored_row_of(op: Op) -> tuple[int, int]:
    """Bytes of a row of the table that ``op`` reads by row in storage, and how many rows that has.

    Raises:
        GraphError: its arguments do not say.
    """
    _, count, width, element = (*op.call.args[:4], None, None, None, None)[:4]
    item_bytes = ITEM_BYTES.get(element.name, 0) if isinstance(element, Symbol) else 0
    sizes = [item for item in (count, width) if type(item) is int and item > 0]
    arguments = STORED_ARGUMENTS.get(op.call.target)
    if len(sizes) < 2 or not item_bytes or len(op.call.args) != arguments or op.call.kwargs:
        raise GraphError(f"op {op.name}: {op.call} does not say what rows it reads")
    return sizes[1] * item_bytes, sizes[0]


def stored_row_bytes(graph: Graph) -> dict[str, int]:
    """The buffers of ``graph`` that are read by row in storage, with the bytes of a row."""
    return {name: stored_row_of(op)[0] for op in graph.ops for name in op.stored}


# --- text -------------------------------------------------------------------------------------


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
        notes += [f"reads rows of @{name} in storage" for name in op.stored]
        notes += ["random"] if op.random else []
        notes += [] if op.repeatable else ["never recomputed"]
        notes += [f"recomputed by {op.repeat_call}"] if op.repeat_call is not None else []
        suffix = f"    # {'; '.join(notes)}" if notes else ""
        yield f"  {', '.join(outputs) or '_'} = {op.call}{suffix}"
        if op.strip is not None:
            links = "; ".join(str(link.call) for link in op.strip.links)
            yield f"    in {len(op.strip.bounds)} blocks: {links}"
        for written in graph.writes(op):
            for view in views[written]:
                if view.name not in op.outputs:
                    yield f"    %{view.name}: {view.type} views @{written}"
    yield f"  loss %{graph.loss}; predictions {', '.join('%' + name for name in graph.predictions)}"


# --- what is well formed ------------------------------------------------------------------------


def _check(graph: Graph) -> None:
    """What every record of a graph is held against when it is made.

    Raises:
        GraphError: names the part that cannot be.
    """
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
    by_name = {value.name: value for value in graph.values}
    for op in graph.ops:
        _check_strip(op, by_name)
    _check_stored(graph)
    _check_packed(graph)
    _check_wholes(graph)
    _check_order(graph, set(buffers))


def _unique(names: Iterator[str], what: str) -> set[str]:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise GraphError(f"two {what} are called {name!r}")
        seen.add(name)
    return seen


def _check_named(graph: Graph, values: set[str]) -> None:
    inner = set(_unique((value.name for op in graph.ops if op.strip for value in op.strip.inner), "values"))
    for name in sorted(inner & values):
        raise GraphError(f"two values are called {name!r}")
    named = [*graph.inputs, graph.loss, *graph.predictions]
    named += [value for _, value in (*graph.states, *graph.constants)]
    for parameter in graph.parameters:
        named += [parameter.value, *(value for _, value in parameter.optimizer_state)]
        if parameter.gradient is not None and parameter.gradient not in inner:
            named.append(parameter.gradient)
        if parameter.accumulator is not None:
            named.append(parameter.accumulator)
    for op in graph.ops:
        named += [name for name in op.outputs if name is not None]
        named += op.call.refs()
        named += op.recall.refs() if op.recall is not None else ()
    for name in named:
        if name not in values:
            raise GraphError(f"{graph.name}: there is no value {name!r}")
    if not 0 <= graph.targets <= len(graph.inputs):
        raise GraphError(f"{graph.name}: {graph.targets} targets among {len(graph.inputs)} inputs")
    if graph.targets and not graph.predictions and graph.classes_in_strips() is None:
        raise GraphError(f"{graph.name}: targets, but no prediction to hold against them")


def _check_packed(graph: Graph) -> None:
    """What is packed is rows of bytes, frozen, and as many as its format has."""
    types = {value.name: value.type for value in graph.values}
    updated = {name for op in graph.ops for name in op.updates}
    for item in graph.parameters:
        if item.packed is None:
            continue
        if types[item.value] != contiguous("uint8", item.packed.packed_shape):
            raise GraphError(f"parameter {item.name}: {types[item.value]} is not {item.packed}")
        if (
            item.gradient
            or item.optimizer_state
            or item.accumulator
            or graph.buffer_of(item.value) in updated
        ):
            raise GraphError(f"parameter {item.name} is packed as {item.packed.format} and trained")


def _check_wholes(graph: Graph) -> None:
    """Parameters in parts are made of parameters of the graph, each of one of them."""
    parameters = {parameter.name: parameter for parameter in graph.parameters}
    types = {value.name: value.type for value in graph.values}
    _unique((name for whole in graph.wholes for name in (whole.name, *whole.parts)), "parts")
    for whole in graph.wholes:
        if whole.name in parameters or not parameters.keys() >= set(whole.parts):
            raise GraphError(f"parameter {whole.name} in parts: its parts are not parameters of the graph")
        parts = [parameters[name] for name in whole.parts]
        check_whole(whole, [[(what, types[value]) for what, value in lasting_of(part)] for part in parts])
        if len({part.gradient is None for part in parts}) > 1:
            raise GraphError(f"parameter {whole.name} in parts: not all of them are trained")
        if len({part.packed and part.packed.with_rows(1) for part in parts}) > 1:
            raise GraphError(f"parameter {whole.name} in parts: not all of them are packed alike")


def _check_strip(op: Op, values: Mapping[str, Value]) -> None:
    """An op is one call or a strip, and a strip says of itself what the op says."""
    strip, where = op.strip, f"op {op.name}"
    if strip is None:
        if op.call.target == Strip.TARGET:
            raise GraphError(f"{where} calls {Strip.TARGET} and has no strip")
        return
    written = check_strip(where, strip, op.outputs, values)
    if op.call != strip.call or op.repeat_call is not None or op.random:
        raise GraphError(f"{where}: its call is not that of its strip")
    if written != set(op.updates):
        raise GraphError(f"{where}: its strip updates other buffers than the op")


def _check_stored(graph: Graph) -> None:
    """What is read by row in storage lives across steps, changes by row or not at all, and makes up a table.

    What changes by row is in RAM for no op, and is not read again by the same one.
    """
    readers = [op for op in graph.ops if op.stored or op.call.target in STORED_ARGUMENTS]
    if not readers:
        return
    sizes_bytes = {buffer.name: buffer.size_bytes for buffer in graph.buffers}
    persistent, updated = graph.persistent(), {name for op in graph.ops for name in op.updates}
    calls = [call for op in graph.ops for call in (op.call, op.recall) if call is not None]
    in_ram = {name for call in calls for name in graph.reads(call)} if updated else set[str]()
    row_sizes_bytes: dict[str, int] = {}
    for op in readers:
        updates = op.stored if op.call.target == STORED_ROWS_SGD else ()
        if op.call.target not in STORED_ARGUMENTS or op.repeat_call is not None or op.updates != updates:
            raise GraphError(f"op {op.name} reads rows from storage, which {op.call.target} does not")
        for name in op.stored:
            changes = name in updated and (name in in_ram or op.repeatable)
            if name not in persistent or changes:
                raise GraphError(f"op {op.name}: rows of {name} are read from storage, where it may change")
        row_bytes, rows = stored_row_of(op)
        if updates and (
            row_bytes > LARGEST_WRITTEN_ROW_BYTES or op.call.args[3] != Symbol("dtype", "float32")
        ):
            raise GraphError(f"op {op.name} updates rows of {row_bytes} bytes in storage that are too large")
        whole = all(sizes_bytes[name] and sizes_bytes[name] % row_bytes == 0 for name in op.stored)
        whole = whole and all(row_sizes_bytes.setdefault(name, row_bytes) == row_bytes for name in op.stored)
        if not whole or sum(sizes_bytes[name] for name in op.stored) != rows * row_bytes:
            raise GraphError(f"op {op.name} does not read rows of {row_bytes} bytes of a table of {rows}")


def _check_order(graph: Graph, buffers: set[str]) -> None:
    produced_later = {written for op in graph.ops for written in graph.writes(op)}
    present = buffers - produced_later
    sums = [parameter.accumulator for parameter in graph.parameters if parameter.accumulator is not None]
    for value in (*graph.inputs, *(parameter.value for parameter in graph.parameters), *sums):
        if graph.buffer_of(value) in produced_later:
            raise GraphError(f"{value} is given from outside and produced by an op as well")
    for op in graph.ops:
        reads = {*graph.reads(op.call), *(graph.reads(op.recall) if op.recall else ())}
        for name in sorted(reads - present):
            raise GraphError(f"op {op.name} reads buffer {name} before it is produced")
        for name in op.updates:
            if name not in reads and name not in op.stored:
                raise GraphError(f"op {op.name} updates buffer {name} but is not given it")
        for name in graph.writes(op):
            if name in present:
                raise GraphError(f"op {op.name} produces buffer {name} a second time")
            present.add(name)
