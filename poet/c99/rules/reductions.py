"""Rows of sums, means, extremes, variances and lengths along dimensions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from poet.c99.calls import CCall, Given, OpRun, Placed, in_order, memory_order, pointwise
from poet.c99.rules.selection import mask_of, whole_numbers
from poet.c99.rules.updates import stored_at, use
from poet.ir.graph import TensorType


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


def extreme(run: OpRun, sign: int) -> list[CCall]:
    """The largest, or with ``sign`` -1 the smallest, over some dimensions."""
    (x, out), sizes = aligned(run, run.wholes(1, ()), run.tensor(0), run.made()[0])
    pointers = (run.checked(out).pointer(), run.checked(x).pointer())
    return [CCall("poet_extreme", (*pointers, f"{sign}.0f", *map(str, sizes)))]


def extreme_at(run: OpRun, sign: int) -> list[CCall]:
    """Likewise over one dimension, and where it is."""
    (x, out, places), sizes = aligned(run, (run.whole(1),), run.tensor(0), *run.made()[:2])
    numbers = whole_numbers(run, places, out.type.elements)
    pointers = (run.checked(out).pointer(), numbers.pointer(), run.checked(x).pointer())
    return [CCall("poet_extreme_at", (*pointers, f"{sign}.0f", *map(str, sizes)))]


def log_sum_exp(run: OpRun) -> list[CCall]:
    """The logarithm of a sum of exponentials, over some dimensions."""
    (x, out), sizes = aligned(run, run.wholes(1), run.tensor(0), run.made()[0])
    pointers = (run.checked(out).pointer(), run.checked(x).pointer())
    return [CCall("poet_log_sum_exp", (*pointers, *map(str, sizes)))]


def count_set(run: OpRun, dims: Sequence[int]) -> list[CCall]:
    """How many bytes of a mask are set, over some dimensions."""
    (x, out), sizes = aligned(run, dims, run.tensor(0), run.made()[0])
    numbers = whole_numbers(run, out, out.type.elements)
    return [CCall("poet_count_set", (numbers.pointer(), mask_of(run, x).pointer(), *map(str, sizes)))]


def scatter_at(run: OpRun) -> list[CCall]:
    """A tensor, with elements of another in the places that whole numbers give along a dimension."""
    out, base, source = run.output(), run.tensor(0), run.dense(3)
    shape, other, rank = out.type.shape, source.type.shape, len(out.type.shape)
    dim = run.whole(1)
    if not -rank <= dim < rank or base.type.shape != shape:
        raise run.refuse(f"for dimension {dim} of {base.type}")
    dim %= rank
    places = whole_numbers(run, run.tensor(2), source.type.elements)
    kept = [[size for at, size in enumerate(sizes) if at != dim] for sizes in (shape, other)]
    if places.type.shape != other or kept[0] != kept[1]:
        raise run.refuse(f"for {source.type} by numbers {places.type} in {out.type}")
    outer, n, inner = folded(run, (dim,), out.type)
    whole = [] if out == base else pointwise(run, "poet_copy", [out], [base])
    pointers = (out.pointer(), places.pointer(), source.pointer())
    sizes_given = (outer, other[dim], inner, n)
    return [*whole, CCall("poet_scatter_at", (*pointers, *map(str, sizes_given)))]


def variance(run: OpRun, *, is_root: bool) -> list[CCall]:
    """The mean square from the mean, or the root of that; a correction is taken off the count."""
    dims = run.wholes(1, ()) if run.argument(1) is not None else ()
    (x, out), sizes = aligned(run, dims, run.tensor(0), run.made()[0])
    given = run.argument(2, None, name="correction")
    correction = 1.0 if given is None else run.number(2, name="correction")
    if sizes[1] <= correction:
        raise run.refuse(f"of {sizes[1]} elements less {correction:g}")
    numbers = (run.float_text(sizes[1] - correction), str(int(is_root)), *map(str, sizes))
    pointers = (run.checked(out).pointer(), run.checked(x).pointer())
    return [CCall("poet_variance", (*pointers, *numbers))]


def vector_norm(run: OpRun) -> list[CCall]:
    """The Euclidean length over some dimensions."""
    x, out = run.dense(0), run.output()
    if run.number(1, 2.0) != 2.0:
        raise run.refuse(f"of order {run.number(1)}; of order 2 it has")
    dims = run.wholes(2, ()) if len(run.call.args) > 2 and run.argument(2) is not None else ()
    sizes = folded(run, dims, x.type)
    return [CCall("poet_lengths", (out.pointer(), x.pointer(), *map(str, sizes)))]


def _rows(run: OpRun, v: Placed, dim: int, *lengths: Placed) -> tuple[str, str]:
    rows = v.type.shape[0] if v.type.shape else 0
    if dim != 0 or not rows or any(item.type.elements != rows for item in lengths):
        raise run.refuse(f"for the lengths of {v.type} along dimension {dim}; along 0 it has")
    return str(rows), str(v.type.elements // rows)


def weight_norm(run: OpRun) -> list[CCall]:
    """A weight of a direction and lengths."""
    v, g, w, length = run.dense(0), run.dense(1), run.output(0), run.output(1)
    sizes = _rows(run, v, run.whole(2, 0), g, length)
    pointers = (w.pointer(), length.pointer(), v.pointer(), g.pointer())
    return [CCall("poet_weight_norm", (*pointers, *sizes))]


def weight_norm_backward(run: OpRun) -> list[CCall]:
    """The way back."""
    gw, v, g, length = (run.dense(index) for index in range(4))
    gv, gg = run.output(0), run.output(1)
    sizes = _rows(run, v, run.whole(4), g, length, gg)
    pointers = (gv.pointer(), gg.pointer(), gw.pointer(), v.pointer(), g.pointer(), length.pointer())
    return [CCall("poet_weight_norm_backward", (*pointers, *sizes))]


def total(run: OpRun, *, is_mean: bool = False) -> list[CCall]:
    """The sum over some dimensions, whose elements may be an update's gradient; of a mask, how many are 1."""
    dims = run.wholes(1, ()) if len(run.call.args) > 1 and run.argument(1) is not None else ()
    if run.tensor(0).type.dtype == "bool" and not is_mean and not run.taken:
        return count_set(run, dims)
    x = run.floats(0)
    if not is_mean and (sizes_apart := _around(dims, x)) is not None:
        return [CCall("poet_channel_sums", (use(run), x.pointer(), *map(str, sizes_apart)))]
    outer, count, inner = folded(run, dims, x.type)
    divisor = run.float_text(float(count) if is_mean else 1.0)
    if not x.is_dense and dims and not run.taken:
        rank = len(x.type.shape)
        first, end = min(dim % rank for dim in dims), max(dim % rank for dim in dims) + 1
        rest = replace(x.type, shape=x.type.shape[first:], strides=x.type.strides[first:])
        if Placed(rest, x.word).is_dense:
            return _each(run, x, first, (count, inner), divisor)
        return _apart(run, x, (first, end), divisor)
    if not dims and not x.is_dense:
        x = in_order(x, memory_order(x.type))
    x = run.checked(x)
    sizes = (str(outer), str(count), str(inner), divisor)
    return [CCall("poet_sum_blocks", (use(run), x.pointer(), *sizes))]


def _around(dims: Sequence[int], x: Placed) -> tuple[int, int, int] | None:
    """Elements before, in and after the neighbours that stay, where some on both sides of them are summed."""
    shape, rank = x.type.shape, len(x.type.shape)
    summed = {dim % rank for dim in dims} if rank else set()
    kept = [dim for dim in range(rank) if dim not in summed]
    if not kept or not x.is_dense or kept != list(range(kept[0], kept[-1] + 1)):
        return None
    first, end = kept[0], kept[-1] + 1
    if first == 0 or end == rank:
        return None
    return math.prod(shape[:first]), math.prod(shape[first:end]), math.prod(shape[end:])


def _each(run: OpRun, x: Placed, first: int, sizes: tuple[int, int], divisor: str) -> list[CCall]:
    """Of a tensor that is dense from dimension ``first`` on: a sum for each place before it."""
    kind, out = x.type, run.output()
    run.checked(Placed(replace(kind, shape=kind.shape[first:], strides=kind.strides[first:]), x.word))
    target = out.pointer(out.type.strides[:first])
    numbers = ("1", *map(str, sizes), divisor)
    arguments: tuple[Given, ...] = (stored_at(target), x.pointer(kind.strides[:first]), *numbers)
    return [CCall("poet_sum_blocks", arguments, kind.shape[:first])]


def _apart(run: OpRun, x: Placed, dims: tuple[int, int], divisor: str) -> list[CCall]:
    """Of a tensor that lies anywhere, over dimensions from a first to a last: rows at two distances."""
    kind, out, (first, end) = x.type, run.output(), dims
    joined: list[tuple[int, int]] = []  # sizes and strides of the dimensions, neighbours made one
    for size, stride in zip(kind.shape[first:end], kind.strides[first:end], strict=True):
        if joined and joined[-1][1] == stride * size:
            joined[-1] = (joined[-1][0] * size, stride)
        else:
            joined.append((size, stride))
    if len(joined) > 2:
        raise run.refuse(f"over three dimensions of {kind} with strides {list(kind.strides)}")
    rows, row = joined[0] if len(joined) > 1 else (1, 0), joined[-1]
    sizes = (*kind.shape[:first], *kind.shape[end:])
    steps = tuple(math.prod(sizes[d + 1 :]) for d in range(len(sizes)))
    target = out.pointer(steps)
    numbers = (*map(str, (*rows, *row)), divisor)
    place = x.pointer((*kind.strides[:first], *kind.strides[end:]))
    return [CCall("poet_sum_apart", (stored_at(target), place, *numbers), sizes)]
