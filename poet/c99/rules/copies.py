"""Rows of operators that put tensors together, resize planes, make windows of them, or draw numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from poet.c99.calls import WORD_BYTES, CCall, CStruct, OpRun, Placed, pointwise
from poet.ir.graph import ITEM_BYTES, Ref, TensorType


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


def bernoulli(run: OpRun) -> list[CCall]:
    """A mask of which each element is 1 with a probability."""
    y, p = run.output(), run.float_text(run.number(3))
    return [CCall("poet_bernoulli", (y.pointer(), p, str(y.type.elements), "net->seed", "&net->drawn"))]


def random_place(run: OpRun) -> list[CCall]:
    """Where the counter stands."""
    place = run.made()[0]
    return [CCall("poet_random_place", (place.pointer(), "&net->drawn"))]


def again(run: OpRun) -> list[CCall]:
    """What was drawn at a place, once more."""
    if run.argument(1) != "poet.bernoulli":
        raise run.refuse(f"to repeat {run.argument(1)}")
    place, y, p = run.tensor(0), run.output(), run.float_text(run.number(5))
    arguments = (y.pointer(), p, str(y.type.elements), "net->seed", place.pointer())
    return [CCall("poet_bernoulli_again", arguments)]


def _border(run: OpRun, x: TensorType, y: TensorType, pads: tuple[int, ...], *, is_mirrored: bool) -> CStruct:
    """The shape of planes, or rows, with so much around them."""
    count = len(pads) // 2
    left, right, top, bottom = (*pads, 0, 0)[:4]
    height, width = x.shape[-2:] if count == 2 else (1, x.shape[-1])
    outer = x.shape[:-count]
    made = (*outer, height + top + bottom, width + left + right)
    sides = ((height, top, bottom), (width, left, right))
    if count not in (1, 2) or y.shape != (made if count == 2 else (*outer, made[-1])) or min(pads) < 0:
        raise run.refuse(f"for a border of {list(pads)} around {x}")
    if any(size < 1 or (is_mirrored and max(border) >= size) for size, *border in sides):
        raise run.refuse(f"for a border of {list(pads)} around {x}")
    numbers = (math.prod(outer), height, width, *made[-2:], top, left)
    return CStruct("poet_pad2d_shape", tuple(map(str, numbers)))


def pad_edges(run: OpRun, *, is_mirrored: bool) -> list[CCall]:
    """A border of what is at the edge, or mirrored there."""
    x, y = run.dense(0), run.output()
    shape = _border(run, x.type, y.type, run.wholes(1), is_mirrored=is_mirrored)
    return [CCall("poet_pad_edges", (y.pointer(), x.pointer(), str(int(is_mirrored)), shape))]


def pad_edges_backward(run: OpRun, *, is_mirrored: bool) -> list[CCall]:
    """The way back."""
    gy, gx = run.dense(0), run.output()
    shape = _border(run, gx.type, gy.type, run.wholes(2), is_mirrored=is_mirrored)
    return [CCall("poet_pad_edges_backward", (gx.pointer(), gy.pointer(), str(int(is_mirrored)), shape))]


def _between(run: OpRun, small: TensorType, large: TensorType, at: int) -> CStruct:
    """The shape of planes, or rows, between whose places others are made.

    Argument ``at`` says whether the outermost places lie on each other, those after it what the sides are
    multiplied by; nothing: as the sizes say.
    """
    count = len(small.shape) - 2
    if count not in (1, 2) or small.shape[:2] != large.shape[:2] or not small.elements * large.elements:
        raise run.refuse(f"from {small} to {large}")
    is_aligned = run.argument(at) is True
    scales = []
    for axis in range(count):
        size, made = small.shape[2 + axis], large.shape[2 + axis]
        given = None if run.argument(at + 1 + axis) is None else run.number(at + 1 + axis)
        if is_aligned:
            scales.append((size - 1) / (made - 1) if made > 1 else 0.0)
        else:
            scales.append(1.0 / given if given else size / made)
    if count == 1:
        scales.insert(0, 0.0)
    sides = [(1, *kind.shape[2:])[-2:] for kind in (small, large)]
    numbers = (math.prod(small.shape[:2]), *sides[0], *sides[1], int(is_aligned))
    return CStruct("poet_resize_shape", (*map(str, numbers), *map(run.float_text, scales)))


def between(run: OpRun) -> list[CCall]:
    """Planes or rows made larger or smaller, linear between their places."""
    x, y = run.dense(0), run.output()
    shape = _between(run, x.type, y.type, 2)
    return [CCall("poet_resize", (y.pointer(), x.pointer(), shape))]


def between_backward(run: OpRun) -> list[CCall]:
    """The way back."""
    gy, gx = run.dense(0), run.output()
    shape = _between(run, gx.type, gy.type, 3)
    return [CCall("poet_resize_backward", (gx.pointer(), gy.pointer(), shape))]


def _windows(run: OpRun, x: TensorType, y: TensorType, first: int) -> CStruct:
    """The shape of windows; argument ``first`` is their size, then dilation, padding and stride."""
    kernel, dilation, pad, stride = (run.wholes(first + at) for at in range(4))
    if {len(kernel), len(dilation), len(pad), len(stride)} != {2} or len(x.shape) not in (3, 4):
        raise run.refuse(f"from {x} to {y}")
    if min(*kernel, *dilation, *stride) < 1 or min(pad) < 0:
        raise run.refuse(f"for windows {list(kernel)}")
    made = [
        (size + 2 * before - step * (taps - 1) - 1) // apart + 1
        for size, before, step, taps, apart in zip(x.shape[-2:], pad, dilation, kernel, stride, strict=True)
    ]
    *batch, channels = x.shape[:-2]
    if y.shape != (*batch, channels * math.prod(kernel), math.prod(made)) or min(made) < 1:
        raise run.refuse(f"from {x} to {y}")
    numbers = (*x.shape[-2:], *made, *kernel, *stride, *pad, *dilation)
    planes = (str(math.prod(x.shape[:-2])), "1")
    return CStruct("poet_pool_shape", (*planes, CStruct("poet_plane", tuple(map(str, numbers)))))


def unfold(run: OpRun) -> list[CCall]:
    """Windows beside each other."""
    x, y = run.dense(0), run.output()
    return [CCall("poet_unfold", (y.pointer(), x.pointer(), _windows(run, x.type, y.type, 1)))]


def fold(run: OpRun) -> list[CCall]:
    """The way back: their sums, place by place."""
    y, x = run.dense(0), run.output()
    return [CCall("poet_fold", (x.pointer(), y.pointer(), _windows(run, x.type, y.type, 2)))]
