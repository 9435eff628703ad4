"""How tensors lie in memory, and copies side by side for libraries whose kernels have few strides."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from poet.ir.calls import contiguous
from poet.ir.graph import ITEM_BYTES, Argument, Buffer, Call, Graph, Op, Ref, Role, Symbol, TensorType, Value
from poet.runtime.kernels.arguments import same_layout, tensor_type

__all__ = [
    "WantsDense", "compact", "contiguous", "dense_like", "is_dense", "layout_arguments", "same_layout",
    "tensor_type", "with_dense_operands",
]  # fmt: skip


WantsDense = Callable[[Op, Mapping[str, TensorType]], tuple[int, ...]]
"""Places of an op's operands that a library's kernel reads only where they lie side by side, and do not."""


def layout_arguments(type_: TensorType) -> tuple[Argument, ...]:
    """Shape, strides and element type, as our own operators take them."""
    return (type_.shape, type_.strides, Symbol("dtype", type_.dtype))


def is_dense(type_: TensorType) -> bool:
    """Whether each element from the buffer's start on is addressed exactly once, with no gap."""
    return type_.elements == 0 or (type_.offset == 0 and type_.is_dense)


def dense_like(type_: TensorType) -> TensorType:
    """The type of a tensor of its own with this shape and, where they leave no holes, these strides."""
    at_start = replace(type_, offset=0)
    if is_dense(at_start):
        return at_start
    template = torch.empty_strided(type_.shape, type_.strides, device="meta")
    return replace(at_start, strides=tuple(torch.empty_like(template).stride()))


def compact(tensor: Tensor) -> Tensor:
    """``tensor``, detached, where it fills its storage; else a copy of the same strides that does."""
    tensor = tensor.detach()
    strides = torch.empty_like(tensor, device="meta").stride()
    if tensor.stride() == strides and tensor.untyped_storage().nbytes() == tensor.nbytes:
        return tensor
    return torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype).copy_(tensor)


def with_dense_operands(graph: Graph, wants: WantsDense) -> Graph:
    """``graph`` with a copy before each op that ``wants`` one; those of what no op changes are made once.

    torch's own kernels make such copies inside; here a copy is an op that a plan may drop and make again.
    """
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
