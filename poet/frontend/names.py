"""Names that say where in the model an op belongs: ``layer1.0.conv1.convolution``.

A trace numbers its nodes (``convolution_7``). An op that reads a parameter, or makes its gradient,
belongs to the module that has the parameter, and is named after it, its outputs too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace

from poet.graph import Argument, Call, Graph, Op, Ref

_NUMBER = re.compile(r"_*\d*$")


def with_speaking_names(graph: Graph) -> Graph:
    """``graph`` with gradients named after their parameters and ops after their modules."""
    gradients = {item.gradient: item.name for item in graph.parameters if item.gradient is not None}
    owners = {graph.buffer_of(value): name for name, value in graph.states}
    owners |= {graph.buffer_of(item.value): item.name for item in graph.parameters}
    owners |= {graph.buffer_of(value): name for value, name in gradients.items()}
    taken = {value.name for value in graph.values} | {buffer.name for buffer in graph.buffers}
    taken_ops = {op.name for op in graph.ops}
    values, ops = {}, {}
    for gradient, parameter in gradients.items():
        values[gradient] = _free(f"{parameter}.grad", taken)
    for op in graph.ops:
        module = _module(op, graph, owners)
        if module and op.outputs:
            ops[op.name] = _free(_within(module, op.name), taken_ops)
            for output in op.outputs:
                if output is not None and output not in values:
                    values[output] = _free(_within(module, output), taken)
    return renamed(graph, values, ops)


def _module(op: Op, graph: Graph, owners: Mapping[str, str]) -> str:
    """The path of the module whose parameter or state the op reads or makes the gradient of, or ``""``."""
    for buffer in (*graph.reads(op.call), *graph.writes(op)):
        if buffer in owners:
            return owners[buffer].rpartition(".")[0]
    return ""


def _within(module: str, name: str) -> str:
    node, dot, part = name.partition(".")
    return f"{module}.{_NUMBER.sub('', node)}{dot}{part}"


def _free(wanted: str, taken: set[str]) -> str:
    name = next(name for name in _numbered(wanted) if name not in taken)
    taken.add(name)
    return name


def _numbered(name: str) -> Iterator[str]:
    yield name
    number = 1
    while True:
        yield f"{name}_{number}"
        number += 1


def renamed(graph: Graph, values: Mapping[str, str], ops: Mapping[str, str]) -> Graph:
    """``graph`` with new names for some values, for the buffers of the same names, and for some ops."""

    def value(old: str) -> str:
        return values.get(old, old)

    def argument(given: Argument) -> Argument:
        if isinstance(given, Ref):
            return Ref(value(given.value))
        return tuple(map(argument, given)) if isinstance(given, tuple) else given

    def call(given: Call) -> Call:
        named = tuple((key, argument(item)) for key, item in given.kwargs)
        return Call(given.target, tuple(map(argument, given.args)), named)

    def op(old: Op) -> Op:
        return replace(
            old,
            name=ops.get(old.name, old.name),
            call=call(old.call),
            repeat_call=call(old.repeat_call) if old.repeat_call is not None else None,
            outputs=tuple(value(item) if item is not None else None for item in old.outputs),
            updates=tuple(map(value, old.updates)),
        )

    return replace(
        graph,
        buffers=tuple(replace(item, name=value(item.name)) for item in graph.buffers),
        values=tuple(
            replace(item, name=value(item.name), buffer=value(item.buffer)) for item in graph.values
        ),
        ops=tuple(map(op, graph.ops)),
        inputs=tuple(map(value, graph.inputs)),
        loss=value(graph.loss),
        predictions=tuple(map(value, graph.predictions)),
        parameters=tuple(
            replace(item, gradient=value(item.gradient) if item.gradient is not None else None)
            for item in graph.parameters
        ),
    )
