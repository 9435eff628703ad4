"""Rows of tables that are looked up by whole numbers, and of those numbers."""

from __future__ import annotations

from poet.c99.calls import CCall, OpRun, Placed, pointwise

_LARGEST = 2**31 - 1


def _numbers(run: OpRun, index: int) -> Placed:
    found = run.tensor(index)
    if found.type.dtype != "int64" or not found.is_dense:
        raise run.refuse(f"for numbers {found.type} with strides {list(found.type.strides)}")
    return found


def _check(run: OpRun, rows: Placed, numbers: Placed, table: tuple[int, ...]) -> tuple[int, int, int]:
    """How many numbers, rows of the table, and floats of a row."""
    if len(table) != 2 or rows.type.shape != (*numbers.type.shape, table[1]):
        raise run.refuse(f"for {rows.type} by numbers {numbers.type} from a table {list(table)}")
    return numbers.type.elements, table[0], table[1]


def embedding(run: OpRun) -> list[CCall]:
    """The rows of a table whose numbers are given."""
    table, numbers, y = run.dense(0), _numbers(run, 1), run.output()
    sizes = _check(run, y, numbers, table.type.shape)
    return [CCall("poet_embedding", (y.pointer(), table.pointer(), numbers.pointer(), *map(str, sizes)))]


def embedding_backward(run: OpRun) -> list[CCall]:
    """What the table gets, from rows that may lie apart."""
    gy, numbers, made = run.floats(0), _numbers(run, 1), run.output()
    if run.argument(4, False) is not False:
        raise run.refuse("that divides by how often a row is asked for")
    count, rows, width = _check(run, gy, numbers, made.type.shape)
    if run.whole(2) != rows or (width > 1 and gy.type.strides[-1] != 1):
        raise run.refuse(f"for {gy.type} with strides {list(gy.type.strides)} and a table {made.type}")
    loops = () if gy.is_dense else numbers.type.shape
    strides = ((), ()) if gy.is_dense else (gy.type.strides[:-1], numbers.type.strides)
    pointers = (made.pointer(), gy.pointer(strides[0]), numbers.pointer(strides[1]))
    sizes = (count if gy.is_dense else 1, rows, width, run.whole(3, -1))
    fills = pointwise(run, "poet_fill", [made], [], "0.0f")
    return [*fills, CCall("poet_embedding_backward", (*pointers, *map(str, sizes)), loops)]


def arange(run: OpRun) -> list[CCall]:
    """Whole numbers in order, from 0."""
    return _in_order(run, 0, run.whole(0), 1)


def arange_between(run: OpRun) -> list[CCall]:
    """Likewise, from a first one."""
    return _in_order(run, run.whole(0), run.whole(1), 1)


def arange_from(run: OpRun) -> list[CCall]:
    """Likewise, from a first one by steps."""
    return _in_order(run, run.whole(0), run.whole(1), run.whole(2, 1))


def _in_order(run: OpRun, first: int, end: int, step: int) -> list[CCall]:
    out = run.made()[0]
    count = max(0, -((first - end) // step)) if step else -1
    if out.type.dtype != "int64" or not out.is_dense or out.type.shape != (count,):
        raise run.refuse(f"for {out.type} from {first} to {end} by {step}")
    if max(abs(first), abs(end), abs(step)) > _LARGEST:
        raise run.refuse(f"for numbers from {first} to {end}")
    return [CCall("poet_count_up", (out.pointer(), str(first), str(step), str(count)))]
