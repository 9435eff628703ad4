"""Rows of sums and means over neighbouring dimensions."""

from __future__ import annotations

import math
from collections.abc import Sequence

from poet.c99.calls import CCall, OpRun
from poet.c99.rules.updates import use
from poet.graph import TensorType


def folded(run: OpRun, dims: Sequence[int], x: TensorType) -> tuple[int, int, int]:
    """Elements before, in and after ``dims``, which lie side by side."""
    found = sorted(dim % len(x.shape) for dim in dims) if dims else list(range(len(x.shape)))
    if found and found != list(range(found[0], found[-1] + 1)):
        raise run.refuse(f"over dimensions {list(dims)}, which are not neighbours")
    first, end = (found[0], found[-1] + 1) if found else (0, 0)
    return math.prod(x.shape[:first]), math.prod(x.shape[first:end]), math.prod(x.shape[end:])


def total(run: OpRun, *, is_mean: bool = False) -> list[CCall]:
    """The sum over some dimensions; its elements may be an update's gradient."""
    x = run.dense(0)
    dims = run.wholes(1, ()) if len(run.call.args) > 1 and run.argument(1) is not None else ()
    outer, count, inner = folded(run, dims, x.type)
    divisor = run.float_text(float(count) if is_mean else 1.0)
    sizes = (str(outer), str(count), str(inner), divisor)
    return [CCall("poet_sum_blocks", (use(run), x.pointer(), *sizes))]


def mean(run: OpRun) -> list[CCall]:
    """Likewise, over how many there are."""
    return total(run, is_mean=True)
