"""Rows of lengths, and of weights that are a direction and a length."""

from __future__ import annotations

from poet.c99.calls import CCall, OpRun, Placed
from poet.c99.rules.folds import folded


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
