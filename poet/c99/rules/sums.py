"""Rows of sums and means over neighbouring dimensions, and of sums over all but those."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from poet.c99.calls import CCall, OpRun, Placed, in_order, memory_order
from poet.c99.rules import extremes
from poet.c99.rules.folds import folded
from poet.c99.rules.updates import use


def total(run: OpRun, *, is_mean: bool = False) -> list[CCall]:
    """The sum over some dimensions, whose elements may be an update's gradient; of a mask, how many are 1."""
    dims = run.wholes(1, ()) if len(run.call.args) > 1 and run.argument(1) is not None else ()
    if run.tensor(0).type.dtype == "bool" and not is_mean and not run.taken:
        return extremes.count_set(run, dims)
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
    stored = f"&(poet_update){{poet_apply_store, {target}, 0, 0, {{0.0f}}}}"
    numbers = ("1", *map(str, sizes), divisor)
    arguments = (stored, x.pointer(kind.strides[:first]), *numbers)
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
    stored = f"&(poet_update){{poet_apply_store, {target}, 0, 0, {{0.0f}}}}"
    numbers = (*map(str, (*rows, *row)), divisor)
    place = x.pointer((*kind.strides[:first], *kind.strides[end:]))
    return [CCall("poet_sum_apart", (stored, place, *numbers), sizes)]


def mean(run: OpRun) -> list[CCall]:
    """Likewise, over how many there are."""
    return total(run, is_mean=True)
