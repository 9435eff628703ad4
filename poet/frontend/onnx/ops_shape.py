"""Operator rows: constants, shapes, joining and parting, sequences, indexing, padding, blocks."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from onnx import AttributeProto
from torch import Tensor
from torch.nn import functional as F

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


@row("Range", fixed=(0, 1, 2))
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


# -- indexing ---------------------------------------------------------------------------------------


@row("Slice")
def _slice(node: Node) -> Built:
    if node.opset < 10:
        starts, ends = node.int_list("starts"), node.int_list("ends")
        axes = node.int_list("axes", range(len(starts)))
        steps = [1] * len(starts)
    else:
        starts, ends = node.ints(1, "starts"), node.ints(2, "ends")
        axes = node.ints(3, "axes") if node.has(3) else list(range(len(starts)))
        steps = node.ints(4, "steps") if node.has(4) else [1] * len(starts)
    if not len(starts) == len(ends) == len(axes) == len(steps) or 0 in steps:
        raise node.error(f"starts {starts}, ends {ends}, axes {axes}, steps {steps}")
    cuts = [slice(None)] * node.rank(0)
    flipped = []
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        axis, size = node.axis(axis), node.shape(0)[node.axis(axis)]
        cut = range(size)[start:end:step]
        if step < 0:  # torch has no negative steps: the same range on the reversed axis
            flipped.append(axis)
            cut = range(size - 1 - cut.start, size - 1 - cut.stop, -step)
        cuts[axis] = slice(cut.start, max(cut.start, cut.stop), cut.step)
    index = tuple(cuts)
    if flipped:
        return lambda x: x.flip(flipped)[index]
    return lambda x: x[index]


@row("Gather")
def _gather(node: Node) -> Built:
    axis = node.axis(node.integer("axis", 0))
    size = node.shape(0)[axis]
    if node.is_constant(1):
        index = node.constant(1, "indices")
        if index.numel() and not -size <= int(index.min()) <= int(index.max()) < size:
            raise node.error(
                f"indices from {int(index.min())} to {int(index.max())} of a dimension of {size}"
            )
        if index.dim() == 0:
            position = int(index)
            return lambda x: x.select(axis, position)
        node.taken.discard(1)
        if not bool((index < 0).any()):
            return lambda x, i: _take(x, i, axis)
    elif node.value(0).state is not None and axis == 0 and node.rank(0) == 2:
        return lambda x, i: _take(x, i, axis)  # rows of a table: what is given is held against their number
    return lambda x, i: _take(x, _from_front(i, size), axis)


def _from_front(index: Tensor, size: int) -> Tensor:
    return torch.where(index < 0, index + size, index)


def _take(x: Tensor, index: Tensor, axis: int) -> Tensor:
    if axis == 0 and x.dim() == 2:
        return F.embedding(index, x)  # not index_select: their gradients add up in another order
    taken = x.index_select(axis, index.reshape(-1))
    return taken.reshape((*x.shape[:axis], *index.shape, *x.shape[axis + 1 :]))


@row("GatherElements")
def _gather_elements(node: Node) -> Built:
    axis = node.axis(node.integer("axis", 0))
    size = node.shape(0)[axis]
    return lambda x, i: torch.gather(x, axis, _from_front(i, size).long())


@row("GatherND")
def _gather_nd(node: Node) -> Built:
    batch, rank = node.integer("batch_dims", 0), node.rank(1) - 1
    if not 0 <= batch <= min(rank, node.rank(0) - 1) or node.shape(0)[:batch] != node.shape(1)[:batch]:
        raise node.error(f"batch_dims {batch} of shapes {list(node.shape(0))} and {list(node.shape(1))}")
    places = [
        torch.arange(node.limited(size)).reshape([-1 if d == dim else 1 for d in range(rank)])
        for dim, size in enumerate(node.shape(0)[:batch])
    ]
    if not rank:  # one element's place
        return lambda x, i: x[i.unsqueeze(0).unbind(-1)].squeeze(0)
    return lambda x, i: x[(*(place.to(i.device) for place in places), *i.unbind(-1))]


_REDUCES = {"add": "sum", "mul": "prod", "max": "amax", "min": "amin"}


@row("ScatterElements", "Scatter")
def _scatter_elements(node: Node) -> Built:
    axis = node.axis(node.integer("axis", 0))
    size = node.shape(0)[axis]
    reduction = node.text("reduction", "none", ("none", *_REDUCES))
    if reduction == "none":
        return lambda x, i, updates: x.scatter(axis, _from_front(i, size).long(), updates)
    reduce = _REDUCES[reduction]
    return lambda x, i, updates: x.scatter_reduce(axis, _from_front(i, size).long(), updates, reduce)


@row("ScatterND")
def _scatter_nd(node: Node) -> Built:
    reduction = node.text("reduction", "none")
    if reduction not in ("none", "add"):
        raise node.error(f"reduction {reduction!r} is not supported")
    accumulate = reduction == "add"
    return lambda x, i, updates: x.index_put(tuple(i.unbind(-1)), updates, accumulate=accumulate)


@row("OneHot", fixed=(1, 2))
def _one_hot(node: Node) -> Built:
    depth = int(node.scalar(1, "depth"))
    axis = node.axis(node.integer("axis", -1), extra=1)

    def run(indices: Tensor, values: Tensor) -> Tensor:
        classes = torch.arange(depth, device=indices.device)
        hot = _from_front(indices, depth).unsqueeze(-1) == classes
        return torch.where(hot, values[1], values[0]).movedim(-1, axis)

    return run


@row("Trilu")
def _trilu(node: Node) -> Built:
    diagonal = int(node.optional_scalar(1, "diagonal") or 0)
    function = torch.triu if node.flag("upper", 1) else torch.tril
    return lambda x: function(x, diagonal)


# -- padding and blocks -----------------------------------------------------------------------------

_INDEXED_PADS = ("edge", "reflect", "wrap")


@row("Pad", fixed=(1, 2, 3))
def _pad(node: Node) -> Built:
    mode = node.text("mode", "constant", ("constant", *_INDEXED_PADS[: 3 if node.opset >= 19 else 2]))
    rank = node.rank(0)
    if node.opset < 11:
        pads, fill = node.int_list("pads"), node.real("value", 0.0)
        axes = list(range(rank))
    else:
        pads = node.ints(1, "pads")
        fill = node.optional_scalar(2, "value") or 0
        axes = [node.axis(axis) for axis in node.ints(3, "axes")] if node.has(3) else list(range(rank))
    if len(pads) != 2 * len(axes):
        raise node.error(f"{len(pads)} pads for {len(axes)} axes")
    before, after = [0] * rank, [0] * rank
    for position, axis in enumerate(axes):
        before[axis], after[axis] = pads[position], pads[position + len(axes)]
    if not any(before) and not any(after):
        return Alias()
    if mode == "constant":
        flat = [pad for axis in reversed(range(rank)) for pad in (before[axis], after[axis])]
        return lambda x: F.pad(x, flat, value=fill)
    return _pad_by_index(node, mode, before, after)


def _pad_by_index(node: Node, mode: str, before: Sequence[int], after: Sequence[int]) -> Built:
    """Reflect, edge and wrap: by torch's kernels on the inner dimensions of an image, else by indices."""
    rank = node.rank(0)
    inner = [pad for axis in reversed(range(2, rank)) for pad in (before[axis], after[axis])]
    plain = rank in (3, 4, 5) and not any((*before[:2], *after[:2])) and mode != "wrap"
    if plain and 0 <= min(inner) <= max(inner) < min(node.shape(0)[2:]) and node.meta(0).is_floating_point():
        torch_mode = "replicate" if mode == "edge" else "reflect"
        return lambda x: F.pad(x, inner, mode=torch_mode)
    padded = [
        (axis, torch.from_numpy(np.pad(np.arange(size), (low, high), mode=mode)))  # type: ignore[call-overload]
        for axis, (size, low, high) in enumerate(zip(node.shape(0), before, after, strict=True))
        if (low or high) and node.limited(size + low + high) >= 0
    ]

    def run(x: Tensor) -> Tensor:
        for axis, index in padded:
            x = x.index_select(axis, index.to(x.device))
        return x

    return run


@row("DepthToSpace")
def _depth_to_space(node: Node) -> Built:
    block = node.integer("blocksize", 1)
    if node.text("mode", "DCR", ("DCR", "CRD")) == "CRD":
        return lambda x: F.pixel_shuffle(x, block)
    batch, channels, height, width = node.shape(0)

    def run(x: Tensor) -> Tensor:
        x = x.reshape(batch, block, block, channels // block**2, height, width)
        return x.permute(0, 3, 4, 1, 5, 2).reshape(batch, channels // block**2, height * block, width * block)

    return run


@row("SpaceToDepth")
def _space_to_depth(node: Node) -> Built:
    block = node.integer("blocksize", 1)
    batch, channels, height, width = node.shape(0)

    def run(x: Tensor) -> Tensor:
        x = x.reshape(batch, channels, height // block, block, width // block, block)
        return x.permute(0, 3, 5, 1, 2, 4).reshape(
            batch, channels * block**2, height // block, width // block
        )

    return run


@row("ReverseSequence")
def _reverse_sequence(node: Node) -> Built:
    time, batch = node.integer("time_axis", 0), node.integer("batch_axis", 1)
    if {time, batch} != {0, 1}:
        raise node.error(f"time_axis {time} and batch_axis {batch}; expected 0 and 1")
    rank = node.rank(0)

    def run(x: Tensor, lengths: Tensor) -> Tensor:
        moments = torch.arange(x.shape[time], device=x.device).unsqueeze(batch)
        last = lengths.unsqueeze(time) - 1
        places = torch.where(moments <= last, last - moments, moments)
        return x.gather(time, places.reshape(*places.shape, *[1] * (rank - 2)).expand_as(x))

    return run
