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


@row("OneHot")
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


@row("Pad")
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
