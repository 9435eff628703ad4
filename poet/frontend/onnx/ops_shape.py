"""Operator rows: constants, shapes, joining and parting, sequences."""

from __future__ import annotations

import math

import numpy as np
import torch
from onnx import AttributeProto
from torch import Tensor

from poet.frontend.onnx.node import Alias, Built, Node, row, shortest
from poet.frontend.onnx.reader import dtype_of, tensor_value
from poet.util.reading import MOST_DIMENSIONS

# -- constants --------------------------------------------------------------------------------------


@row("Constant")
def _constant(node: Node) -> Built:
    if len(node.proto.attribute) != 1:
        raise node.error(f"{len(node.proto.attribute)} values, expected one")
    for attribute in node.proto.attribute:
        node.seen.add(attribute.name)
        if attribute.name == "value":
            return tensor_value(attribute.t, node.where)
        if attribute.type == AttributeProto.FLOAT:
            return torch.tensor(shortest(attribute.f), dtype=torch.float32)
        if attribute.type == AttributeProto.INT:
            return torch.tensor(attribute.i, dtype=torch.int64)
        if attribute.type == AttributeProto.FLOATS:
            return torch.tensor(list(attribute.floats), dtype=torch.float32)
        if attribute.type == AttributeProto.INTS:
            return torch.tensor(list(attribute.ints), dtype=torch.int64)
    raise node.error("a constant of this kind is not supported; only tensors and numbers are")


@row("ConstantOfShape")
def _constant_of_shape(node: Node) -> Built:
    shape = node.ints(0, "shape")
    fill = torch.zeros(1)
    given = node.attribute("value")
    if given is not None:
        fill = tensor_value(given.t, node.where)
    if any(size < 0 for size in shape) or fill.numel() != 1:
        raise node.error(f"shape {shape} with {fill.numel()} values to fill it")
    return fill.reshape(()).expand(shape)


@row("Range")
def _range(node: Node) -> Built:
    start, limit, step = (node.scalar(i, what) for i, what in enumerate(("start", "limit", "step")))
    count = max(0, math.ceil((limit - start) / step)) if step else -1
    if count < 0:
        raise node.error(f"from {start} to {limit} in steps of {step}")
    return torch.arange(node.limited(count), dtype=node.meta(0).dtype) * step + start


@row("EyeLike")
def _eye_like(node: Node) -> Built:
    node.drop(0)
    rows, columns = node.shape(0)
    node.limited(rows * columns)
    offset = node.integer("k", 0)
    kind = node.integer("dtype", 0)
    dtype = dtype_of(kind, node.where) if kind else node.meta(0).dtype
    return torch.ones(rows, columns, dtype=dtype).tril(offset).triu(offset)


@row("Shape")
def _shape(node: Node) -> Built:
    shape = node.shape(0)
    start, end = node.integer("start", 0), node.integer("end", len(shape))
    return torch.tensor(shape[slice(start, end)], dtype=torch.int64)


@row("Size")
def _size(node: Node) -> Built:
    return torch.tensor(node.prod(0), dtype=torch.int64)


# -- views ------------------------------------------------------------------------------------------


@row("Identity")
def _identity(node: Node) -> Built:
    return Alias()


@row("Reshape")
def _reshape(node: Node) -> Built:
    wanted = node.ints(1, "shape")
    old = node.shape(0)
    if not node.flag("allowzero"):
        if any(size == 0 and i >= len(old) for i, size in enumerate(wanted)):
            raise node.error(f"cannot copy a dimension of {list(old)} for shape {wanted}")
        wanted = [old[i] if size == 0 else size for i, size in enumerate(wanted)]
    shape = _rebound_shape(node, old, wanted)
    return lambda x: x.reshape(shape)


def _rebound_shape(node: Node, old: tuple[int, ...], wanted: list[int]) -> list[int]:
    """``wanted`` for another batch: a file with a fixed batch has it baked into its reshapes.

    With ``-1`` in the shape the first dimension decides; without, the number of elements does, and the
    first dimension takes the factor (a batch folded into it, as in ``[N * T, C]``, scales likewise).
    """
    rebound = node.rebound
    if rebound is None or not wanted or len(wanted) > MOST_DIMENSIONS:
        return wanted
    if -1 in wanted:
        batch_leads = bool(old) and old[0] == rebound.new and wanted[0] == rebound.old
        return node.rebind_shape(wanted) if batch_leads else wanted
    if math.prod(wanted) * rebound.new == math.prod(old) * rebound.old:
        leading = wanted[0] * rebound.new
        if leading % rebound.old == 0:
            return [leading // rebound.old, *wanted[1:]]
    return wanted


@row("Flatten")
def _flatten(node: Node) -> Built:
    axis = node.integer("axis", 1)
    shape = node.shape(0)
    if not -len(shape) <= axis <= len(shape):
        raise node.error(f"axis {axis} of a tensor with {len(shape)} dimensions")
    axis = axis + len(shape) if axis < 0 else axis
    matrix = (math.prod(shape[:axis]), math.prod(shape[axis:]))
    return lambda x: x.reshape(matrix)


@row("Transpose")
def _transpose(node: Node) -> Built:
    order = node.int_list("perm", list(reversed(range(node.rank(0)))))
    return lambda x: x.permute(order)


@row("Squeeze")
def _squeeze(node: Node) -> Built:
    axes = node.ints_or_attribute(1, "axes")
    if axes is None:
        return torch.squeeze
    dims = tuple(node.axis(axis) for axis in axes)
    if any(node.shape(0)[axis] != 1 for axis in dims):
        raise node.error(f"cannot squeeze axes {list(dims)} of shape {list(node.shape(0))}")
    return lambda x: x.squeeze(dims)


@row("Unsqueeze")
def _unsqueeze(node: Node) -> Built:
    axes = node.ints_or_attribute(1, "axes") or []
    dims = sorted(node.axis(axis, extra=len(axes)) for axis in axes)
    if len(set(dims)) < len(dims):
        raise node.error(f"axes {axes} name one twice")

    def run(x: Tensor) -> Tensor:
        for dim in dims:
            x = x.unsqueeze(dim)
        return x

    return run


@row("Expand")
def _expand(node: Node) -> Built:
    wanted = node.rebind_shape(node.ints(1, "shape"))
    shape = np.broadcast_shapes(node.shape(0), tuple(wanted))
    return lambda x: x.expand(shape)


@row("Tile")
def _tile(node: Node) -> Built:
    repeats = node.ints(1, "repeats")
    if len(repeats) != node.rank(0):
        raise node.error(f"{len(repeats)} repeats for {node.rank(0)} dimensions")
    return lambda x: x.repeat(repeats)


# -- joining and parting ----------------------------------------------------------------------------


@row("Concat")
def _concat(node: Node) -> Built:
    axis = node.axis(node.integer("axis", 0))
    rebound = node.rebound
    if len({node.rank(i) for i in range(len(node.inputs))}) > 1:
        raise node.error("its inputs differ in their number of dimensions")
    first = {node.shape(i)[0] for i in range(len(node.inputs)) if node.rank(i) > 0}
    if rebound is None or axis == 0 or first != {rebound.old, rebound.new}:
        return lambda *tensors: torch.cat(tensors, axis)

    def run(*tensors: Tensor) -> Tensor:
        # a class token that was expanded to the exported batch
        whole = [x if x.shape[0] == rebound.new else x[:1].expand(rebound.new, *x.shape[1:]) for x in tensors]
        return torch.cat(whole, axis)

    return run


@row("Split")
def _split(node: Node) -> Built:
    axis = node.axis(node.integer("axis", 0))
    size = node.shape(0)[axis]
    sizes = node.ints_or_attribute(1, "split")
    if sizes is None:
        count = node.integer("num_outputs", node.output_count)
        if count < 1 or (node.opset < 18 and size % count):
            raise node.error(f"{count} equal parts from a dimension of {size}")
        part = -(-size // count)
        sizes = [part] * (count - 1) + [size - part * (count - 1)]
    if sum(sizes) != size or min(sizes) < 0 or len(sizes) < node.output_count:
        raise node.error(f"parts of {sizes} from a dimension of {size}")
    return lambda x: torch.split(x, sizes, axis)


@row("SplitToSequence", ignored=("keepdims",))
def _split_to_sequence(node: Node) -> Built:
    axis = node.axis(node.integer("axis", 0))
    if not node.has(1):
        if node.flag("keepdims", 1):
            return lambda x: torch.split(x, 1, axis)
        return lambda x: torch.unbind(x, axis)
    parts = node.constant(1, "split")
    sizes = parts.tolist()
    return lambda x: torch.split(x, sizes, axis)


@row("SequenceConstruct")
def _sequence_construct(node: Node) -> Built:
    return lambda *tensors: list(tensors)


@row("SequenceAt")
def _sequence_at(node: Node) -> Built:
    position = int(node.scalar(1, "position"))
    return lambda sequence: sequence[position]


@row("SequenceLength")
def _sequence_length(node: Node) -> Built:
    meta = node.value(0).meta
    return torch.tensor(len(meta), dtype=torch.int64)


@row("ConcatFromSequence")
def _concat_from_sequence(node: Node) -> Built:
    axis, stacked = node.integer("axis", 0), node.flag("new_axis")
    return lambda sequence: torch.stack(sequence, axis) if stacked else torch.cat(sequence, axis)
