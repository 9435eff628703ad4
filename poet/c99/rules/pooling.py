"""Rows of poolings."""

from __future__ import annotations

import math
from dataclasses import replace

import torch

from poet.c99.calls import CCall, CStruct, OpRun
from poet.ir.graph import TensorType


def _both(run: OpRun, index: int, otherwise: tuple[int, ...] | None = None) -> tuple[int, int]:
    """An argument for height and width; one number stands for the width alone, or for both in a pooling."""
    found = run.wholes(index, otherwise)
    return (found[0], found[1]) if len(found) > 1 else (found[0], found[0])


def _check_planes(run: OpRun, x: TensorType, y: TensorType) -> None:
    if len(x.shape) not in (3, 4) or x.shape[:-2] != y.shape[:-2]:
        raise run.refuse(f"from {x} to {y}")


def _over_channels(run: OpRun, first: int, *kinds: TensorType) -> list[TensorType]:
    """Volumes side by side, whose windows have one place of each plane, as planes of channels and places.

    Raises:
        UnsupportedOperator: windows are of another kind.
    """
    kernel, stride = run.wholes(first), run.wholes(first + 1, ())
    others = (*kernel[-2:], *stride[-2:])
    if len(kernel) != 3 or set(others) - {1} or any(run.wholes(first + 2, (0, 0, 0))[-2:]):
        raise run.refuse("for windows over more than the first of three dimensions")
    made = []
    for kind in kinds:
        shape = (*kind.shape[:-2], math.prod(kind.shape[-2:]))
        strides = tuple(math.prod(shape[at + 1 :]) for at in range(len(shape)))
        made.append(replace(kind, shape=shape, strides=strides))
    return made


def _pool_shape(run: OpRun, first: int, x: TensorType, y: TensorType) -> CStruct:
    if len(run.wholes(first)) == 3:
        x, y = _over_channels(run, first, x, y)
        if x.shape[-1] != y.shape[-1]:
            raise run.refuse(f"from {x} to {y}")
    _check_planes(run, x, y)
    kernel = _both(run, first)
    stride = _both(run, first + 1) if run.wholes(first + 1, ()) else kernel
    pad = _both(run, first + 2, (0, 0))
    if run.argument(first + 5) is not None:
        raise run.refuse("with a divisor of its own")
    numbers = (*x.shape[-2:], *y.shape[-2:], *kernel, *stride, *pad, 1, 1)
    planes = (str(math.prod(x.shape[:-2])), str(int(run.argument(first + 4, True) is not False)))
    return CStruct("poet_pool_shape", (*planes, CStruct("poet_plane", tuple(map(str, numbers)))))


def avg_pool(run: OpRun) -> list[CCall]:
    """Means of windows."""
    x, y = run.dense(0), run.output()
    return [CCall("poet_avg_pool2d", (y.pointer(), x.pointer(), _pool_shape(run, 1, x.type, y.type)))]


def avg_pool_backward(run: OpRun) -> list[CCall]:
    """The gradient of each window, shared out."""
    gy, gx = run.dense(0), run.output()
    shape = _pool_shape(run, 2, gx.type, gy.type)
    return [CCall("poet_avg_pool2d_backward", (gx.pointer(), gy.pointer(), shape))]


def _adaptive_shape(run: OpRun, x: TensorType, y: TensorType) -> CStruct:
    """Windows that share out an image, evenly where its sides can be divided so."""
    _check_planes(run, x, y)
    sides = tuple(zip(x.shape[-2:], y.shape[-2:], strict=True))
    if any(made < 1 or size < 1 for size, made in sides):
        raise run.refuse(f"from {x} to {y}")
    kernel = tuple(size // made for size, made in sides)
    numbers = (*x.shape[-2:], *y.shape[-2:], *kernel, *kernel, 0, 0, 1, 1)
    planes = str(math.prod(x.shape[:-2]))
    return CStruct("poet_pool_shape", (planes, "1", CStruct("poet_plane", tuple(map(str, numbers)))))


def adaptive_avg_pool(run: OpRun) -> list[CCall]:
    """Means of windows that share out the image."""
    x, y = run.dense(0), run.output()
    shape = _adaptive_shape(run, x.type, y.type)
    name = "poet_avg_pool2d" if _is_even(x.type, y.type) else "poet_adaptive_avg_pool2d"
    return [CCall(name, (y.pointer(), x.pointer(), shape))]


def adaptive_avg_pool_backward(run: OpRun) -> list[CCall]:
    """The way back through them."""
    gy, gx = run.dense(0), run.output()
    shape = _adaptive_shape(run, gx.type, gy.type)
    is_even = _is_even(gx.type, gy.type)
    name = "poet_avg_pool2d_backward" if is_even else "poet_adaptive_avg_pool2d_backward"
    return [CCall(name, (gx.pointer(), gy.pointer(), shape))]


def _is_even(x: TensorType, y: TensorType) -> bool:
    """Whether windows that share out an image are all of one size, side by side."""
    return not any(size % made for size, made in zip(x.shape[-2:], y.shape[-2:], strict=True))


def _max_pool_shape(run: OpRun, first: int, x: TensorType, y: TensorType) -> CStruct:
    kernel = _both(run, first)
    stride = _both(run, first + 1) if run.wholes(first + 1, ()) else kernel
    pad, dilation = _both(run, first + 2, (0, 0)), _both(run, first + 3, (1, 1))
    _check_planes(run, x, y)
    for axis in (0, 1):
        sizes = (x.shape[axis - 2], kernel[axis], stride[axis], pad[axis], dilation[axis])
        if min(kernel[axis], dilation[axis]) < 1 or not _are_inside(y.shape[axis - 2], *sizes):
            raise run.refuse("where a window lies in the padding alone")
    numbers = (*x.shape[-2:], *y.shape[-2:], *kernel, *stride, *pad, *dilation)
    planes = str(math.prod(x.shape[:-2]))
    return CStruct("poet_pool_shape", (planes, "1", CStruct("poet_plane", tuple(map(str, numbers)))))


def _are_inside(windows: int, size: int, kernel: int, stride: int, pad: int, dilation: int) -> bool:
    """Whether each window along an axis has a tap on one of ``size`` places."""
    firsts = (index * stride - pad for index in range(windows))
    taps = ((first, max(0, -(first // dilation))) for first in firsts)  # the first tap at 0 or behind it
    return all(tap < kernel and first + tap * dilation < size for first, tap in taps)


def max_pool(run: OpRun, *, is_adaptive: bool = False) -> list[CCall]:
    """The largest of windows, and where they are."""
    x, y, places = run.dense(0), run.output(), run.made()[-1]
    if places.type.dtype != "int64" or not places.is_dense or places.type.shape != y.type.shape:
        raise run.refuse("without the places of what is largest")
    if is_adaptive and not _is_even(x.type, y.type):
        raise run.refuse(f"from {x.type} to {y.type}; to what divides height and width it has")
    shape = _adaptive_shape(run, x.type, y.type) if is_adaptive else _max_pool_shape(run, 1, x.type, y.type)
    return [CCall("poet_max_pool2d", (y.pointer(), places.pointer(), x.pointer(), shape))]


def max_pool_backward(run: OpRun, index: int) -> list[CCall]:
    """The gradient of each window at the place in its plane that argument ``index`` gives."""
    gy, places, gx = run.dense(0), run.tensor(index), run.output()
    if places.type.dtype != "int64" or not places.is_dense:
        raise run.refuse(f"for places of type {places.type}")
    _check_planes(run, gx.type, gy.type)
    if places.type.shape != gy.type.shape:
        raise run.refuse(f"for places of type {places.type} beside a gradient {gy.type}")
    sizes = (math.prod(gx.type.shape[:-2]), math.prod(gx.type.shape[-2:]), math.prod(gy.type.shape[-2:]))
    pointers = (gx.pointer(), gy.pointer(), places.pointer())
    return [CCall("poet_max_pool2d_backward", (*pointers, *map(str, sizes)))]


def _repeats(run: OpRun, first: int, small: TensorType, large: TensorType) -> tuple[str, ...]:
    """Planes, height and width of the small image, and how often its rows and columns are repeated.

    Argument ``first`` and the one after it are the scales that torch finds a row and a column by.
    """
    height, width = small.shape[-2:]
    down, across = (of // max(size, 1) for of, size in zip(large.shape[-2:], small.shape[-2:], strict=True))
    grown = (*small.shape[:-2], height * down, width * across)
    if len(small.shape) != 4 or not down or not across or large.shape != grown:
        raise run.refuse(f"from {small} to {large}; to a whole multiple of height and width it has")
    for index, size, times in ((first, height, down), (first + 1, width, across)):
        scale = None if run.argument(index) is None else run.number(index)
        if size * times > _LONGEST_SIDE or not _repeats_each(size, times, scale):
            raise run.refuse(
                f"from {small} to {large} by a scale of {scale}, where torch does not repeat each row or "
                f"column {times} times; write size= in place of scale_factor=, or a smaller whole factor"
            )
    planes = small.elements // (height * width)
    return tuple(map(str, (planes, height, width, down, across)))


_LONGEST_SIDE = 65_536
"""Of an image that is enlarged; each of its rows and columns is asked for."""


def _repeats_each(size: int, times: int, scale: float | None) -> bool:
    """Whether torch takes each of ``size`` rows ``times`` times, both ways; it rounds to find them."""
    aten = torch.ops.aten
    small, large = [1, 1, size, 1], [size * times, 1]
    rows = torch.arange(size, dtype=torch.float32)
    taken = aten.upsample_nearest2d(rows.view(small), large, scale, None).flatten()
    ones = torch.ones(1, 1, *large)
    counted = aten.upsample_nearest2d_backward(ones, large, small, scale, None).flatten()
    return torch.equal(taken, rows.repeat_interleave(times)) and bool((counted == times).all())


def upsample_nearest(run: OpRun) -> list[CCall]:
    """Each element repeated."""
    x, y = run.dense(0), run.output()
    return [CCall("poet_upsample", (y.pointer(), x.pointer(), *_repeats(run, 2, x.type, y.type)))]


def upsample_nearest_backward(run: OpRun) -> list[CCall]:
    """The way back."""
    gy, gx = run.dense(0), run.output()
    return [
        CCall("poet_upsample_backward", (gx.pointer(), gy.pointer(), *_repeats(run, 3, gx.type, gy.type)))
    ]
