"""Rows of operators that put tensors together, or one into the place of a part of another."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from poet.c99.calls import WORD_BYTES, CCall, OpRun, Placed, pointwise
from poet.graph import ITEM_BYTES, Ref, TensorType


def _part(run: OpRun, whole: Placed, shape: Sequence[int], strides: Sequence[int], elements: int) -> Placed:
    """A view of a tensor that begins ``elements`` after it.

    Raises:
        UnsupportedOperator: it reaches out of the tensor.
    """
    kind = replace(whole.type, shape=tuple(shape), strides=tuple(strides))
    is_view = len(shape) == len(strides) and min((elements, *shape, *strides)) >= 0
    if not is_view or (kind.elements and elements + _reach(kind) > _reach(whole.type)):
        raise run.refuse(f"for a part {list(shape)} that does not lie inside its {whole.type}")
    return Placed(kind, whole.word + elements * ITEM_BYTES[kind.dtype] // WORD_BYTES)


def _reach(kind: TensorType) -> int:
    """The number of the last element, counted from the first; -1 where there is none."""
    if not kind.elements:
        return -1
    return sum((size - 1) * stride for size, stride in zip(kind.shape, kind.strides, strict=True))


def _dimension(run: OpRun, kind: TensorType, index: int) -> int:
    """Argument ``index``, a dimension of ``kind``, counted from the first."""
    dim, count = run.whole(index, 0), len(kind.shape)
    if not -count <= dim < count:
        raise run.refuse(f"for dimension {dim} of {kind}")
    return dim % count


def _given(run: OpRun) -> list[Placed]:
    """The tensors of a list, the first argument; those of a torch of old that have no elements left out."""
    listed = run.argument(0)
    if not isinstance(listed, tuple):
        raise run.refuse("where its first argument is no list of tensors")
    found = [run.values[item.value] for item in listed if isinstance(item, Ref)]
    return [item for item in found if item.type.elements]


def cat(run: OpRun) -> list[CCall]:
    """One after the other along a dimension."""
    out = run.made()[0]
    dim = _dimension(run, out.type, 1)
    calls, begin = [], 0
    for tensor in _given(run):
        part = _part(run, out, tensor.type.shape, out.type.strides, begin * out.type.strides[dim])
        calls += pointwise(run, "poet_copy", [part], [tensor])
        begin += tensor.type.shape[dim]
    return calls


def stack(run: OpRun) -> list[CCall]:
    """Along a new dimension."""
    out = run.made()[0]
    dim = _dimension(run, out.type, 1)
    strides, calls = out.type.strides, []
    for index, tensor in enumerate(_given(run)):
        part = _part(run, out, tensor.type.shape, (*strides[:dim], *strides[dim + 1 :]), index * strides[dim])
        calls += pointwise(run, "poet_copy", [part], [tensor])
    return calls


def select_backward(run: OpRun) -> list[CCall]:
    """Zeros, with a tensor in the place of one index of a dimension."""
    out, gy = run.made()[0], run.tensor(0)
    shape, strides = out.type.shape, out.type.strides
    dim, index = _dimension(run, out.type, 2), run.whole(3)
    if not -shape[dim] <= index < shape[dim]:
        raise run.refuse(f"for index {index} of dimension {dim} of {out.type}")
    begin = index % shape[dim] * strides[dim]
    part = _part(run, out, (*shape[:dim], *shape[dim + 1 :]), (*strides[:dim], *strides[dim + 1 :]), begin)
    return [*pointwise(run, "poet_fill", [out], [], "0.0f"), *pointwise(run, "poet_copy", [part], [gy])]


def slice_backward(run: OpRun) -> list[CCall]:
    """Likewise, in the place of every so many indices from one on."""
    out, gy = run.made()[0], run.tensor(0)
    strides = list(out.type.strides)
    dim = _dimension(run, out.type, 2)
    size, start = out.type.shape[dim], run.whole(3)
    begin = max(0, min(start + size if start < 0 else start, size)) * strides[dim]
    strides[dim] *= run.whole(5)
    part = _part(run, out, gy.type.shape, strides, begin)
    return [*pointwise(run, "poet_fill", [out], [], "0.0f"), *pointwise(run, "poet_copy", [part], [gy])]


def scatter(run: OpRun) -> list[CCall]:
    """A copy, or the tensor itself where the result lies on it, with another in the place of a view of it."""
    out, base, source = run.made()[0], run.tensor(0), run.tensor(1)
    part = _part(run, out, run.wholes(2), run.wholes(3), run.whole(4))
    whole = [] if out == base else pointwise(run, "poet_copy", [out], [base])
    return [*whole, *pointwise(run, "poet_copy", [part], [source])]


def repeat(run: OpRun) -> list[CCall]:
    """A tensor, repeated along each dimension."""
    out, x, times = run.output(), run.floats(0), run.wholes(1)
    missing = len(times) - len(x.type.shape)
    sizes, strides = (1,) * missing + x.type.shape, (0,) * missing + x.type.strides
    if missing < 0 or out.type.shape != tuple(a * b for a, b in zip(times, sizes, strict=True)):
        raise run.refuse(f"from {x.type} to {out.type}")
    shape = tuple(number for pair in zip(times, sizes, strict=True) for number in pair)
    whole = _part(run, out, shape, _dense_strides(shape), 0)
    read = replace(x.type, shape=shape, strides=tuple(n for stride in strides for n in (0, stride)))
    return pointwise(run, "poet_copy", [whole], [Placed(read, x.word)])


def pixel_shuffle(run: OpRun) -> list[CCall]:
    """Channels laid out as pixels."""
    x, out = run.dense(0), run.output()
    return _pixels(run, x, out, small=x)


def pixel_unshuffle(run: OpRun) -> list[CCall]:
    """The way back."""
    x, out = run.dense(0), run.output()
    return _pixels(run, x, out, small=out)


def _pixels(run: OpRun, x: Placed, out: Placed, *, small: Placed) -> list[CCall]:
    """Copies between planes, where ``small`` has r x r of them in the place of one of the other."""
    r, large = run.whole(1), (x if small is out else out).type.shape
    if len(large) < 3 or r < 1 or large[-2] % r or large[-1] % r:
        raise run.refuse(f"from {x.type} to {out.type}")
    *batch, channels, height, width = (*large[:-2], large[-2] // r, large[-1] // r)
    if small.type.shape != (*batch, channels * r * r, height, width):
        raise run.refuse(f"from {x.type} to {out.type}")
    planes = math.prod(batch) * channels
    shape = (planes, height, r, width, r)  # as the large one lies
    apart = (r * r * height * width, width, r * height * width, 1, height * width)
    side_by_side = _dense_strides(shape)
    written, read = (apart, side_by_side) if small is out else (side_by_side, apart)
    made = _part(run, out, shape, written, 0)
    return pointwise(run, "poet_copy", [made], [_part(run, x, shape, read, 0)])


def _dense_strides(shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(math.prod(shape[d + 1 :]) for d in range(len(shape)))
