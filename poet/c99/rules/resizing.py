"""Rows of planes that get borders, are made larger between their places, or become windows."""

from __future__ import annotations

import math

from poet.c99.calls import CCall, CStruct, OpRun
from poet.c99.rules.rule import Rule
from poet.graph import TensorType


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


def pad_edges(*, is_mirrored: bool) -> Rule:
    """A border of what is at the edge, or mirrored there."""

    def rule(run: OpRun) -> list[CCall]:
        x, y = run.dense(0), run.output()
        shape = _border(run, x.type, y.type, run.wholes(1), is_mirrored=is_mirrored)
        return [CCall("poet_pad_edges", (y.pointer(), x.pointer(), str(int(is_mirrored)), shape))]

    return rule


def pad_edges_backward(*, is_mirrored: bool) -> Rule:
    """The way back."""

    def rule(run: OpRun) -> list[CCall]:
        gy, gx = run.dense(0), run.output()
        shape = _border(run, gx.type, gy.type, run.wholes(2), is_mirrored=is_mirrored)
        return [CCall("poet_pad_edges_backward", (gx.pointer(), gy.pointer(), str(int(is_mirrored)), shape))]

    return rule


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
