"""Dimensions that are reduced, as one between those before and after them."""

from __future__ import annotations

import math
from collections.abc import Sequence

from poet.c99.calls import OpRun, Placed, in_order, memory_order
from poet.graph import TensorType


def folded(run: OpRun, dims: Sequence[int], x: TensorType) -> tuple[int, int, int]:
    """Elements before, in and after ``dims``, which lie side by side."""
    found = sorted(dim % len(x.shape) for dim in dims) if dims else list(range(len(x.shape)))
    if found and found != list(range(found[0], found[-1] + 1)):
        raise run.refuse(f"over dimensions {list(dims)}, which are not neighbours")
    first, end = (found[0], found[-1] + 1) if found else (0, 0)
    return math.prod(x.shape[:first]), math.prod(x.shape[first:end]), math.prod(x.shape[end:])


def aligned(
    run: OpRun, dims: Sequence[int], x: Placed, *made: Placed
) -> tuple[list[Placed], tuple[int, int, int]]:
    """``x`` and what is made of it in the order in which ``x`` lies; elements before, in and after ``dims``.

    Raises:
        UnsupportedOperator: nothing is reduced, or what is made is of another size.
    """
    rank = len(x.type.shape)
    if any(not -rank <= dim < rank for dim in dims):
        raise run.refuse(f"over dimensions {list(dims)} of {x.type}")
    reduced = {dim % rank for dim in dims} if dims else set(range(rank))
    order = memory_order(x.type)
    kept = [dim for dim in range(rank) if dim not in reduced]
    turned = [in_order(x, order)]
    for out in made:
        is_whole = len(out.type.shape) == rank
        left = order if is_whole else tuple(kept.index(dim) for dim in order if dim not in reduced)
        shape = tuple(1 if dim in reduced else size for dim, size in enumerate(x.type.shape))
        if out.type.shape != (shape if is_whole else tuple(x.type.shape[dim] for dim in kept)):
            raise run.refuse(f"from {x.type} to {out.type}")
        turned.append(in_order(out, left))
    sizes = folded(run, [order.index(dim) for dim in reduced], turned[0].type) if rank else (1, 1, 1)
    if sizes[1] < 1:
        raise run.refuse(f"over none of the elements of {x.type}")
    return turned, sizes
