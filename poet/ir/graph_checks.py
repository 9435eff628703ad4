"""What makes a training graph well formed: names, strips, row shards, rows in storage, order of its ops."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from poet.errors import GraphError
from poet.ir.calls import Symbol, Value
from poet.ir.graph_parts import (
    LARGEST_WRITTEN_ROW_BYTES,
    STORED_ARGUMENTS,
    STORED_ROWS_SGD,
    GraphParts,
    Op,
    lasting_of,
    stored_row_of,
)
from poet.ir.strips import Strip, check_strip
from poet.ir.wholes import check_whole


def check(graph: GraphParts) -> None:
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
    _check_wholes(graph)
    _check_order(graph, set(buffers))


def _unique(names: Iterator[str], what: str) -> set[str]:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise GraphError(f"two {what} are called {name!r}")
        seen.add(name)
    return seen


def _check_named(graph: GraphParts, values: set[str]) -> None:
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


def _check_wholes(graph: GraphParts) -> None:
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


def _check_stored(graph: GraphParts) -> None:
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


def _check_order(graph: GraphParts, buffers: set[str]) -> None:
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
