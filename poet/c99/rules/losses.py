"""Rows of losses, and of softmax."""

from __future__ import annotations

import math

from poet.c99.calls import CCall, OpRun, Placed
from poet.c99.rules.folds import folded
from poet.c99.rules.rule import Rule
from poet.graph import TensorType


def _softmax_sizes(run: OpRun, x: TensorType, dim: int, *others: Placed) -> tuple[str, ...]:
    _check_like(run, x, *others)
    if x.shape and not -len(x.shape) <= dim < len(x.shape):
        raise run.refuse(f"over dimension {dim} of {x}")
    return tuple(map(str, folded(run, (dim,), x)))


def _check_like(run: OpRun, x: TensorType, *others: Placed) -> None:
    for other in others:
        if other.type.shape != x.shape:
            raise run.refuse(f"for {other.type} beside {x}")


def _check_one(run: OpRun, *numbers: Placed) -> None:
    for number in numbers:
        if number.type.elements != 1:
            raise run.refuse(f"for {number.type} in the place of one number")


def log_softmax(run: OpRun) -> list[CCall]:
    """Over one dimension."""
    x, y = run.dense(0), run.output()
    sizes = _softmax_sizes(run, x.type, run.whole(1), y)
    return [CCall("poet_log_softmax", (y.pointer(), x.pointer(), *sizes))]


def log_softmax_backward(run: OpRun) -> list[CCall]:
    """The way back."""
    gy, y, gx = run.dense(0), run.dense(1), run.output()
    sizes = _softmax_sizes(run, y.type, run.whole(2), gy, gx)
    return [CCall("poet_log_softmax_backward", (gx.pointer(), gy.pointer(), y.pointer(), *sizes))]


def softmax(run: OpRun, *, is_safe: bool = False) -> list[CCall]:
    """Over one dimension."""
    x, y = run.dense(0), run.output()
    sizes = _softmax_sizes(run, x.type, run.whole(1), y)
    return [CCall("poet_softmax", (y.pointer(), x.pointer(), *sizes, str(int(is_safe))))]


def safe_softmax(run: OpRun) -> list[CCall]:
    """Likewise, 0 where a mask leaves nothing."""
    return softmax(run, is_safe=True)


def softmax_backward(run: OpRun) -> list[CCall]:
    """The way back through both."""
    gy, y, gx = run.dense(0), run.dense(1), run.output()
    sizes = _softmax_sizes(run, y.type, run.whole(2), gy, gx)
    return [CCall("poet_softmax_backward", (gx.pointer(), gy.pointer(), y.pointer(), *sizes))]


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


def mse_loss(run: OpRun) -> list[CCall]:
    """The mean or the sum of squares."""
    x, target, reduction = run.dense(0), run.dense(1), run.whole(2, 1)
    if reduction not in (1, 2) or x.type.shape != target.type.shape:
        raise run.refuse("except for the mean or the sum over tensors of one shape")
    _check_one(run, run.output())
    count = x.type.elements
    divisor = run.float_text(float(count) if reduction == 1 else 1.0)
    pointers = (run.output().pointer(), x.pointer(), target.pointer())
    return [CCall("poet_mse_loss", (*pointers, str(count), divisor))]


def mse_loss_backward(run: OpRun) -> list[CCall]:
    """The way back."""
    gradient, x, target, reduction = run.dense(0), run.dense(1), run.dense(2), run.whole(3)
    if reduction not in (1, 2) or gradient.type.elements != 1 or x.type.shape != target.type.shape:
        raise run.refuse("except for the mean or the sum over tensors of one shape")
    _check_like(run, x.type, run.output())
    count = x.type.elements
    factor = run.float_text(2.0 / count if reduction == 1 else 2.0)
    pointers = (run.output().pointer(), gradient.pointer(), x.pointer(), target.pointer())
    return [CCall("poet_mse_loss_backward", (*pointers, str(count), factor))]


def bce(function: str) -> Rule:
    """The mean or the sum of binary cross-entropies, without weights."""
    places = (2, 3) if function == "poet_bce_with_logits" else (2,)

    def rule(run: OpRun) -> list[CCall]:
        x, target, reduction = run.dense(0), run.dense(1), run.whole(places[-1] + 1, 1)
        is_weighted = any(run.argument(place) is not None for place in places)
        if reduction not in (1, 2) or is_weighted or x.type.shape != target.type.shape:
            raise run.refuse("except for the mean or the sum over tensors of one shape, without weights")
        _check_one(run, run.output())
        count = x.type.elements
        divisor = run.float_text(float(count) if reduction == 1 else 1.0)
        pointers = (run.output().pointer(), x.pointer(), target.pointer())
        return [CCall(function, (*pointers, str(count), divisor))]

    return rule


def bce_backward(run: OpRun) -> list[CCall]:
    """The way back from probabilities."""
    gradient, x, target, reduction = run.dense(0), run.dense(1), run.dense(2), run.whole(4, 1)
    is_weighted = run.argument(3) is not None
    if (
        reduction not in (1, 2)
        or is_weighted
        or gradient.type.elements != 1
        or x.type.shape != target.type.shape
    ):
        raise run.refuse("except for the mean or the sum over tensors of one shape, without weights")
    _check_like(run, x.type, run.output())
    count = x.type.elements
    factor = run.float_text(1.0 / count if reduction == 1 else 1.0)
    pointers = (run.output().pointer(), gradient.pointer(), x.pointer(), target.pointer())
    return [CCall("poet_bce_backward", (*pointers, str(count), factor))]
