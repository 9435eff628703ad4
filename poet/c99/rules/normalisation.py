"""Rows of batch norm, group norm and layer norm, of softmax, and of losses."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from poet.c99.calls import CCall, CStruct, OpRun, Placed, pointer_or_null, pointwise
from poet.c99.rules.reductions import folded
from poet.ir.graph import TensorType


def _norm_shape(run: OpRun, x: TensorType, momentum: float, eps: float) -> CStruct:
    if len(x.shape) < 2:
        raise run.refuse(f"for {x}")
    images, channels = x.shape[:2]
    sizes = (images, channels, math.prod(x.shape[2:]))
    numbers = (run.float_text(momentum), run.float_text(eps))
    return CStruct("poet_batch_norm_shape", (*map(str, sizes), *numbers))


def _check_like(run: OpRun, x: TensorType, *others: Placed | None) -> None:
    for other in others:
        if other is not None and other.type.shape != x.shape:
            raise run.refuse(f"for {other.type} beside {x}")


def _check_channels(run: OpRun, channels: int, tensors: Sequence[Placed | None]) -> None:
    for tensor in tensors:
        if tensor is not None and tensor.type.shape != (channels,):
            raise run.refuse(f"for {tensor.type} of {channels} channels")


def batch_norm(run: OpRun, function: str) -> list[CCall]:
    """With the statistics of the batch in training, with the running ones in evaluation."""
    x, y = run.dense(0), run.output(0)
    shape = _norm_shape(run, x.type, run.number(6), run.number(7))
    given = [run.optional_dense(index) for index in range(1, 5)]
    _check_like(run, x.type, y)
    _check_channels(run, x.type.shape[1], given)
    if (given[2] is None) is not (given[3] is None):
        raise run.refuse("with one of two running statistics")
    if run.argument(5) is True:
        saved = (run.output(1), run.output(2))
        _check_channels(run, x.type.shape[1], saved)
        pointers = (y.pointer(), *(item.pointer() for item in saved), x.pointer())
        return [CCall(function, (*pointers, *map(pointer_or_null, given), shape))]
    if given[2] is None or given[3] is None:
        raise run.refuse("without running statistics in evaluation")
    read = (x.pointer(), *map(pointer_or_null, given))
    relu = pointwise(run, "poet_relu", [y], [y]) if function == "poet_norm_relu" else []
    return [CCall("poet_batch_norm_fixed", (y.pointer(), *read, shape)), *relu]


def batch_norm_backward(
    run: OpRun, function: str, weights: Sequence[int], saved: Sequence[int], training: int
) -> list[CCall]:
    """Of training mode, with a rectifier behind it or without.

    Args:
        run: of the op, which reads a gradient and the input first.
        function: ``poet_...``.
        weights: places of weight and bias, as far as they are read.
        saved: places of the mean and the scale.
        training: place of the flag.
    """
    if run.argument(training) is not True:
        raise run.refuse("in evaluation mode")
    gy, x = run.dense(0), run.dense(1)
    made = [None if out is None else run.checked(out) for out in (*run.outputs, None, None, None)[:3]]
    if made[0] is None and function == "poet_norm_relu_backward":
        raise run.refuse("without a gradient of its input")
    given = (*map(run.optional_dense, weights), *map(run.dense, saved))
    shape = _norm_shape(run, x.type, 0.0, 0.0)
    _check_like(run, x.type, gy, made[0])
    _check_channels(run, x.type.shape[1], [*given, *made[1:]])
    pointers = (*map(pointer_or_null, made), gy.pointer(), x.pointer(), *map(pointer_or_null, given))
    return [CCall(function, (*pointers, shape))]


def _groups(run: OpRun, first: int, x: TensorType, saved: Sequence[Placed]) -> CStruct:
    """Images, groups, channels of a group and plane, from argument ``first`` on."""
    images, channels, plane, groups = (run.whole(first + item) for item in range(4))
    is_right = x.shape[:2] == (images, channels) and math.prod(x.shape[2:]) == plane
    if not is_right or groups < 1 or channels % groups:
        raise run.refuse(f"for {groups} groups of {images} images, {channels} channels and {plane} in {x}")
    for item in saved:
        if item.type.elements != images * groups:
            raise run.refuse(f"for {item.type} of {images} images and {groups} groups")
    numbers = (images, groups, channels // groups, plane)
    return CStruct("poet_group_norm_shape", tuple(map(str, numbers)))


def group_norm(run: OpRun) -> list[CCall]:
    """Over the channels of each group."""
    x, y, mean, scale = run.dense(0), run.output(0), run.output(1), run.output(2)
    given = (run.optional_dense(1), run.optional_dense(2))
    shape = _groups(run, 3, x.type, (mean, scale))
    _check_like(run, x.type, y)
    _check_channels(run, x.type.shape[1], given)
    pointers = (y.pointer(), mean.pointer(), scale.pointer(), x.pointer(), *map(pointer_or_null, given))
    return [CCall("poet_group_norm", (*pointers, run.float_text(run.number(7)), shape))]


def group_norm_backward(run: OpRun) -> list[CCall]:
    """The way back: of the input, of weight and bias, each where it is wanted."""
    gy, x, mean, scale, weight = *map(run.dense, range(4)), run.optional_dense(4)
    gx, gw, gb = (None if out is None else run.checked(out) for out in (*run.outputs, None, None, None)[:3])
    shape = _groups(run, 5, x.type, (mean, scale))
    _check_like(run, x.type, gy, gx)
    _check_channels(run, x.type.shape[1], [weight, gw, gb])
    read = (gy.pointer(), x.pointer(), mean.pointer(), scale.pointer())
    calls = []
    if gw is not None or gb is not None:
        made = (pointer_or_null(gw), pointer_or_null(gb))
        calls.append(CCall("poet_group_norm_gradients", (*made, *read, shape)))
    if gx is not None:
        pointers = (gx.pointer(), *read, pointer_or_null(weight))
        calls.append(CCall("poet_group_norm_backward", (*pointers, shape)))
    return calls


def _step(row: tuple[int, ...], strides: tuple[int, ...]) -> int:
    """From one element of a row to the next; 0: they are not one distance apart."""
    dims = [(size, stride) for size, stride in zip(row, strides, strict=True) if size != 1]
    if any(outer != inner * size for (_, outer), (size, inner) in pairwise(dims)):
        return 0
    return dims[-1][1] if dims else 1


def _rows(run: OpRun, shape: int, y: Placed, x: Placed, gx: Placed, saved: Placed) -> CStruct:
    """Rows of neighbours, which may themselves lie anywhere; their shape is argument ``shape``."""
    first = len(x.type.shape) - len(run.wholes(shape))
    before, row = x.type.shape[:first], x.type.shape[first:]
    sizes = (1, 1, *before)[-2:]
    found: list[int] = []
    steps: list[int] = []
    for tensor in (y, x, gx, saved):
        own = tensor.type
        step = 1 if tensor is saved else _step(row, own.strides[first:])
        is_row = step > 0
        is_like = own.shape[:first] == before and (tensor is saved or own.shape[first:] == row)
        if own.dtype != "float32" or not is_row or not is_like:
            raise run.refuse(f"for {own} with strides {list(own.strides)}; write .contiguous() before it")
        strides = own.strides[:first]
        for d in range(first - 2):  # of more than two dimensions the first must be one
            if strides[d] != strides[d + 1] * before[d + 1]:
                raise run.refuse(f"for {own} with strides {list(own.strides)}")
        found += (0, 0, *strides)[-2:]
        steps += [] if tensor is saved else [step]
    numbers = (math.prod(before[: first - 1]), sizes[1], math.prod(row), *found, *steps)
    return CStruct("poet_layer_norm_shape", tuple(map(str, numbers)))


def _check_saved(run: OpRun, mean: Placed, scale: Placed) -> None:
    if (mean.type.shape, mean.type.strides) != (scale.type.shape, scale.type.strides):
        raise run.refuse("where mean and scale lie in different ways")


def _check_weights(run: OpRun, row: tuple[int, ...], weights: Sequence[Placed | None]) -> None:
    for weight in weights:
        if weight is not None and weight.type.elements != math.prod(row):
            raise run.refuse(f"for weights {weight.type} of rows {list(row)}")


def layer_norm(run: OpRun) -> list[CCall]:
    """Over the last dimensions."""
    x, (y, mean, scale) = run.floats(0), run.made()
    _check_saved(run, mean, scale)
    given = (x, run.optional_dense(2), run.optional_dense(3))
    _check_weights(run, run.wholes(1), given[1:])
    pointers = (y.pointer(), mean.pointer(), scale.pointer(), *map(pointer_or_null, given))
    shape = _rows(run, 1, y, x, y, mean)
    return [CCall("poet_layer_norm", (*pointers, run.float_text(run.number(4)), shape))]


def layer_norm_backward(run: OpRun) -> list[CCall]:
    """The way back: of the input, of weight and bias, each where it is wanted."""
    gy, x, mean, scale = (run.floats(index) for index in (0, 1, 3, 4))
    gx, gw, gb = (*run.outputs, None, None)[:3]
    _check_saved(run, mean, scale)
    given = (gy.pointer(), x.pointer(), mean.pointer(), scale.pointer())
    shape = _rows(run, 2, gy, x, x if gx is None else gx, mean)
    calls = []
    if gw is not None or gb is not None:
        made = tuple(None if out is None else run.checked(out) for out in (gw, gb))
        _check_weights(run, run.wholes(2), made)
        calls.append(CCall("poet_layer_norm_gradients", (*map(pointer_or_null, made), *given, shape)))
    if gx is not None:
        weight = run.optional_dense(5)
        _check_weights(run, run.wholes(2), (weight,))
        pointers = (gx.pointer(), *given, pointer_or_null(weight))
        calls.append(CCall("poet_layer_norm_backward", (*pointers, shape)))
    return calls


def _softmax_sizes(run: OpRun, x: TensorType, dim: int, *others: Placed) -> tuple[str, ...]:
    _check_like(run, x, *others)
    if x.shape and not -len(x.shape) <= dim < len(x.shape):
        raise run.refuse(f"over dimension {dim} of {x}")
    return tuple(map(str, folded(run, (dim,), x)))


def _check_one(run: OpRun, *numbers: Placed) -> None:
    for number in numbers:
        if number.type.elements != 1:
            raise run.refuse(f"for {number.type} in the place of one number")


def along(run: OpRun, function: str, *flags: str) -> list[CCall]:
    """Softmax over one dimension."""
    x, y = run.dense(0), run.output()
    sizes = _softmax_sizes(run, x.type, run.whole(1), y)
    return [CCall(function, (y.pointer(), x.pointer(), *sizes, *flags))]


def along_backward(run: OpRun, function: str) -> list[CCall]:
    """The way back."""
    gy, y, gx = run.dense(0), run.dense(1), run.output()
    sizes = _softmax_sizes(run, y.type, run.whole(2), gy, gx)
    return [CCall(function, (gx.pointer(), gy.pointer(), y.pointer(), *sizes))]


def _nll_sizes(run: OpRun, scores: TensorType, first: int) -> tuple[str, ...]:
    """Rows, classes, elements of a plane, the class that is ignored and whether the mean is wanted."""
    if (
        len(scores.shape) not in (2, 4)
        or run.argument(first) is not None
        or run.whole(first + 1) not in (1, 2)
    ):
        raise run.refuse("except for the mean or the sum over rows, without weights of classes")
    sizes = (*scores.shape[:2], math.prod(scores.shape[2:]), run.whole(first + 2))
    return (*map(str, sizes), str(int(run.whole(first + 1) == 1)))


def _classes(run: OpRun, index: int, scores: TensorType) -> Placed:
    classes, own = run.tensor(index), (*scores.shape[:1], *scores.shape[2:])
    if classes.type.dtype != "int64" or not classes.is_dense or classes.type.shape != own:
        raise run.refuse(f"for classes of type {classes.type}")
    return classes


def nll_loss(run: OpRun) -> list[CCall]:
    """Of class numbers."""
    y = run.dense(0)
    classes = _classes(run, 1, y.type)
    _check_one(run, run.output(0), run.output(1))
    pointers = (run.output(0).pointer(), run.output(1).pointer(), y.pointer(), classes.pointer())
    return [CCall("poet_nll_loss", (*pointers, *_nll_sizes(run, y.type, 2)))]


def nll_loss_backward(run: OpRun) -> list[CCall]:
    """The way back."""
    gradient, classes, counted = run.dense(0), _classes(run, 2, run.type_of(1)), run.dense(6)
    _check_like(run, run.type_of(1), run.output())
    _check_one(run, gradient, counted)
    pointers = (run.output().pointer(), gradient.pointer(), classes.pointer(), counted.pointer())
    return [CCall("poet_nll_loss_backward", (*pointers, *_nll_sizes(run, run.type_of(1), 3)))]


def compared(run: OpRun, function: str, *weights: int) -> list[CCall]:
    """The mean or the sum of errors of a tensor beside its target; ``weights`` must not be there."""
    x, target = run.dense(0), run.dense(1)
    is_mean = _is_mean(run, max((1, *weights)) + 1, weights, x, target)
    _check_one(run, run.output())
    count = x.type.elements
    pointers = (run.output().pointer(), x.pointer(), target.pointer())
    return [CCall(function, (*pointers, str(count), run.float_text(float(count) if is_mean else 1.0)))]


def compared_backward(run: OpRun, function: str, factor: float, *weights: int) -> list[CCall]:
    """The way back, by a factor of each element's share."""
    gradient, x, target = run.dense(0), run.dense(1), run.dense(2)
    is_mean = _is_mean(run, max((2, *weights)) + 1, weights, x, target)
    _check_one(run, gradient)
    _check_like(run, x.type, run.output())
    count = x.type.elements
    pointers = (run.output().pointer(), gradient.pointer(), x.pointer(), target.pointer())
    share = run.float_text(factor / count if is_mean else factor)
    return [CCall(function, (*pointers, str(count), share))]


def _is_mean(run: OpRun, reduction: int, weights: Sequence[int], x: Placed, target: Placed) -> bool:
    """Whether the mean is wanted, not the sum."""
    is_weighted = any(run.argument(place) is not None for place in weights)
    if run.whole(reduction, 1) not in (1, 2) or is_weighted or x.type.shape != target.type.shape:
        without = ", without weights" if weights else ""
        raise run.refuse(f"except for the mean or the sum over tensors of one shape{without}")
    return run.whole(reduction, 1) == 1
