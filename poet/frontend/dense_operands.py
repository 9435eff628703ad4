"""Copies side by side of what kernels cannot read as it lies, for libraries whose kernels have few strides.

torch's own kernels make such copies inside, so that their bits stay what they are; here a copy is an op that
a plan may drop and make again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace

from poet.frontend.layouts import layout_arguments
from poet.graph import ITEM_BYTES, Argument, Buffer, Call, Graph, Op, Ref, Role, TensorType, Value

WantsDense = Callable[[Op, Mapping[str, TensorType]], tuple[int, ...]]
"""Places of an op's operands that a library's kernel reads only where they lie side by side, and do not."""


def with_dense_operands(graph: Graph, wants: WantsDense) -> Graph:
    """``graph`` with a copy before each op that ``wants`` one; those of what no op changes are made once."""
    types = {value.name: value for value in graph.values}
    by_name = {name: value.type for name, value in types.items()}
    changed = {buffer for op in graph.ops for buffer in op.updates}
    copies: dict[str, Value] = {}
    made: list[Value] = []
    ops: list[Op] = []
    for op in graph.ops:
        for place in wants(op, by_name) if op.strip is None and op.repeat_call is None else ():
            operand = op.call.args[place]
            if not isinstance(operand, Ref):
                continue
            source = types[operand.value]
            copy = copies.get(source.name)
            if copy is None:
                name = f"{source.name}.dense" if source.buffer not in changed else f"{op.name}.dense{place}"
                shape = source.type.shape
                strides = tuple(math.prod(shape[d + 1 :]) for d in range(len(shape)))
                copy = Value(name, name, replace(source.type, strides=strides, offset=0))
                ops.append(
                    Op(name, Call("poet.copy", (Ref(source.name), *layout_arguments(copy.type))), (name,))
                )
                made.append(copy)
                if source.buffer not in changed:
                    copies[source.name] = copy
            arguments: list[Argument] = list(op.call.args)
            arguments[place] = Ref(copy.name)
            op = replace(op, call=replace(op.call, args=tuple(arguments)))
        ops.append(op)
    if not made:
        return graph
    buffers = (
        Buffer(value.name, value.type.elements * ITEM_BYTES[value.type.dtype], Role.ACTIVATION)
        for value in made
    )
    return replace(graph, ops=tuple(ops), buffers=(*graph.buffers, *buffers), values=(*graph.values, *made))
