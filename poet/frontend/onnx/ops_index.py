"""Operator rows: indexing, padding, blocks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from poet.frontend.onnx.node import Alias, Built, Node, row

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
        if bool((index < 0).any()):
            return lambda x, i: _take(x, torch.where(i < 0, i + size, i), axis)
    return lambda x, i: _take(x, i, axis)


def _take(x: Tensor, index: Tensor, axis: int) -> Tensor:
    if axis == 0 and x.dim() == 2:
        return F.embedding(index, x)  # not index_select: their gradients add up in another order
    taken = x.index_select(axis, index.reshape(-1))
    return taken.reshape((*x.shape[:axis], *index.shape, *x.shape[axis + 1 :]))


@row("GatherElements")
def _gather_elements(node: Node) -> Built:
    axis = node.axis(node.integer("axis", 0))
    size = node.shape(0)[axis]
    return lambda x, i: torch.gather(x, axis, torch.where(i < 0, i + size, i))


@row("GatherND")
def _gather_nd(node: Node) -> Built:
    batch = node.integer("batch_dims", 0)
    if batch:
        raise node.error("batch_dims other than 0 are not supported")
    return lambda x, i: x[tuple(i.long().unbind(-1))]


_REDUCES = {"add": "sum", "mul": "prod", "max": "amax", "min": "amin"}


@row("ScatterElements", "Scatter")
def _scatter_elements(node: Node) -> Built:
    axis = node.axis(node.integer("axis", 0))
    size = node.shape(0)[axis]
    reduction = node.text("reduction", "none")
    if reduction == "none":
        return lambda x, i, updates: x.scatter(axis, torch.where(i < 0, i + size, i), updates)
    reduce = _REDUCES[reduction]
    return lambda x, i, updates: x.scatter_reduce(axis, torch.where(i < 0, i + size, i), updates, reduce)


@row("ScatterND")
def _scatter_nd(node: Node) -> Built:
    reduction = node.text("reduction", "none")
    if reduction not in ("none", "add"):
        raise node.error(f"reduction {reduction!r} is not supported")
    accumulate = reduction == "add"
    return lambda x, i, updates: x.index_put(tuple(i.unbind(-1)), updates, accumulate=accumulate)


@row("OneHot")
def _one_hot(node: Node) -> Built:
    depth = int(node.scalar(1, "depth"))
    off, on = node.constant(2, "values").tolist()
    dtype = node.meta(2).dtype
    axis = node.axis(node.integer("axis", -1), extra=1)

    def run(indices: Tensor) -> Tensor:
        classes = torch.arange(depth, device=indices.device)
        hot = (indices.unsqueeze(-1) % depth) == classes
        in_range = ((indices >= -depth) & (indices < depth)).unsqueeze(-1)
        return torch.where(hot & in_range, on, off).to(dtype).movedim(-1, axis)

    return run


@row("Trilu")
def _trilu(node: Node) -> Built:
    diagonal = int(node.optional_scalar(1, "diagonal") or 0)
    function = torch.triu if node.integer("upper", 1) else torch.tril
    return lambda x: function(x, diagonal)


# -- padding and blocks -----------------------------------------------------------------------------

_INDEXED_PADS = ("edge", "reflect", "wrap")


@row("Pad")
def _pad(node: Node) -> Built:
    mode = node.text("mode", "constant")
    rank = node.rank(0)
    if node.opset < 11:
        pads, fill = node.int_list("pads"), node.real("value", 0.0)
        axes = list(range(rank))
    else:
        pads = node.ints(1, "pads")
        fill = float(node.optional_scalar(2, "value") or 0.0)
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
    if mode not in _INDEXED_PADS:
        raise node.error(f"mode {mode!r} is not supported")
    return _pad_by_index(node, mode, before, after)


def _pad_by_index(node: Node, mode: str, before: Sequence[int], after: Sequence[int]) -> Built:
    """Reflect, edge and wrap: by torch's kernels on the inner dimensions of an image, else by indices."""
    rank = node.rank(0)
    inner = [pad for axis in reversed(range(2, rank)) for pad in (before[axis], after[axis])]
    if rank in (3, 4, 5) and not any((*before[:2], *after[:2])) and min(inner) >= 0 and mode != "wrap":
        torch_mode = "replicate" if mode == "edge" else "reflect"
        return lambda x: F.pad(x, inner, mode=torch_mode)
    padded = [
        (axis, torch.from_numpy(np.pad(np.arange(size), (low, high), mode=mode)))  # type: ignore[call-overload]
        for axis, (size, low, high) in enumerate(zip(node.shape(0), before, after, strict=True))
        if low or high
    ]

    def run(x: Tensor) -> Tensor:
        for axis, index in padded:
            x = x.index_select(axis, index.to(x.device))
        return x

    return run


@row("DepthToSpace")
def _depth_to_space(node: Node) -> Built:
    block = node.integer("blocksize", 1)
    if node.text("mode", "DCR") == "CRD":
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
    if node.text("mode", "DCR") == "CRD":
        return lambda x: F.pixel_unshuffle(x, block)

    def run(x: Tensor) -> Tensor:
        x = x.reshape(batch, channels, height // block, block, width // block, block)
        return x.permute(0, 3, 5, 1, 2, 4).reshape(
            batch, channels * block**2, height // block, width // block
        )

    return run


@row("ReverseSequence")
def _reverse_sequence(node: Node) -> Built:
    lengths = node.ints(1, "sequence lengths")
    time, batch = node.integer("time_axis", 0), node.integer("batch_axis", 1)
    if any(length != node.shape(0)[time] for length in lengths) or batch == time:
        raise node.error("only sequences of full length are supported")
    return lambda x: x.flip(time)
