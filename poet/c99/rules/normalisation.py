"""Rows of batch norm."""

from __future__ import annotations

import math

from poet.c99.calls import CCall, CStruct, OpRun, pointer_or_null
from poet.graph import TensorType


def _norm_shape(run: OpRun, x: TensorType, momentum: float, eps: float) -> CStruct:
    images, channels = x.shape[:2]
    sizes = (images, channels, math.prod(x.shape[2:]))
    numbers = (run.float_text(momentum), run.float_text(eps))
    return CStruct("poet_batch_norm_shape", (*map(str, sizes), *numbers))


def batch_norm(run: OpRun) -> list[CCall]:
    """With the statistics of the batch in training, with the running ones in evaluation."""
    x, y = run.dense(0), run.output(0)
    shape = _norm_shape(run, x.type, run.number(6), run.number(7))
    given = [run.optional_dense(index) for index in range(1, 5)]
    if run.argument(5) is True:
        saved = (run.output(1).pointer(), run.output(2).pointer())
        pointers = (y.pointer(), *saved, x.pointer(), *map(pointer_or_null, given))
        return [CCall("poet_batch_norm", (*pointers, shape))]
    if given[2] is None or given[3] is None:
        raise run.refuse("without running statistics in evaluation")
    pointers = (y.pointer(), x.pointer(), *map(pointer_or_null, given))
    return [CCall("poet_batch_norm_fixed", (*pointers, shape))]


def batch_norm_backward(run: OpRun) -> list[CCall]:
    """Of training mode."""
    if run.argument(7) is not True:
        raise run.refuse("in evaluation mode")
    gy, x = run.dense(0), run.dense(1)
    made = [None if out is None else run.checked(out) for out in (*run.outputs, None, None, None)[:3]]
    given = (run.optional_dense(2), run.dense(5), run.dense(6))
    pointers = (*map(pointer_or_null, made), gy.pointer(), x.pointer(), *map(pointer_or_null, given))
    return [CCall("poet_batch_norm_backward", (*pointers, _norm_shape(run, x.type, 0.0, 0.0)))]
