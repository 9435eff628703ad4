"""Rows of what is looked up in tables, picked, sorted, summed up, turned or moved along a dimension."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

from poet.c99.calls import WORD_BYTES, Address, CCall, OpRun, Placed, pointwise
from poet.c99.rules.reductions import folded
from poet.c99.rules.selection import whole_numbers
from poet.ir.graph import ITEM_BYTES, Argument, Ref, TensorType

_LARGEST = 2**31 - 1


def _row_numbers(run: OpRun, index: int) -> Placed:
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
    table, numbers, y = run.dense(0), _row_numbers(run, 1), run.output()
    sizes = _check(run, y, numbers, table.type.shape)
    return [CCall("poet_embedding", (y.pointer(), table.pointer(), numbers.pointer(), *map(str, sizes)))]


def embedding_backward(run: OpRun) -> list[CCall]:
    """What the table gets, from rows that may lie apart."""
    gy, numbers, made = run.floats(0), _row_numbers(run, 1), run.output()
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
    """Whole numbers in order: up to one, or between two, perhaps by steps."""
    given = [run.whole(place) for place in range(len(run.call.args))]
    first, end, step = (*([0] if len(given) == 1 else []), *given, 1)[:3]
    out = run.made()[0]
    count = max(0, -((first - end) // step)) if step else -1
    if out.type.dtype != "int64" or not out.is_dense or out.type.shape != (count,):
        raise run.refuse(f"for {out.type} from {first} to {end} by {step}")
    if max(abs(first), abs(end), abs(step)) > _LARGEST:
        raise run.refuse(f"for numbers from {first} to {end}")
    return [CCall("poet_count_up", (out.pointer(), str(first), str(step), str(count)))]


def _dimension(run: OpRun, kind: TensorType, dim: int) -> int:
    if not -len(kind.shape) <= dim < len(kind.shape):
        raise run.refuse(f"for dimension {dim} of {kind}")
    return dim % len(kind.shape)


def _numbers(run: OpRun, index: int, picked: TensorType, dim: int) -> tuple[Address, str, str]:
    """The places that are argument ``index``, for how many neighbours each holds, and how many repeat.

    They are of the shape of ``picked``, or one for each along ``dim``; repeated ones may lie in one place.
    """
    found = run.tensor(index)
    shape, strides = found.type.shape, found.type.strides
    inner = math.prod(picked.shape[dim + 1 :])
    if shape == (picked.shape[dim],):
        return whole_numbers(run, found, picked.shape[dim]).pointer(), str(inner), str(picked.shape[dim])
    if shape != picked.shape:
        raise run.refuse(f"for {picked} by numbers {found.type}")
    if inner > 1 and not any(strides[dim + 1 :]):
        kept = replace(found.type, shape=shape[: dim + 1], strides=strides[: dim + 1])
        listed = whole_numbers(run, replace(found, type=kept), kept.elements)
        return listed.pointer(), str(inner), str(max(kept.elements, 1))
    return whole_numbers(run, found, picked.elements).pointer(), "1", str(max(picked.elements, 1))


def _sizes(run: OpRun, picked: TensorType, whole: TensorType, dim: int) -> tuple[str, ...]:
    """Of what is picked from, or added to, a whole along ``dim``."""
    apart = [[size for at, size in enumerate(kind.shape) if at != dim] for kind in (picked, whole)]
    if len(picked.shape) != len(whole.shape) or apart[0] != apart[1]:
        raise run.refuse(f"for {picked} along dimension {dim} of {whole}")
    outer, count, inner = folded(run, (dim,), picked)
    return tuple(map(str, (outer, count, inner, whole.shape[dim])))


def _picked(run: OpRun, x: Placed, index: int, dim: int, made: TensorType) -> list[CCall]:
    numbers = _numbers(run, index, made, dim)
    sizes = _sizes(run, made, x.type, dim)
    return [CCall("poet_gather", (run.output().pointer(), *numbers, x.pointer(), *sizes))]


def gather(run: OpRun) -> list[CCall]:
    """The elements at places of a dimension, each by its number or row by row."""
    x = run.dense(0)
    dim = _dimension(run, x.type, run.whole(1))
    return _picked(run, x, 2, dim, run.output().type)


def scatter_add(run: OpRun) -> list[CCall]:
    """A tensor, to which another is added at places of a dimension."""
    if run.number(4, 1, name="alpha") != 1:
        raise run.refuse("with a factor")
    base, source, out = run.tensor(0), run.dense(3), run.output()
    dim = _dimension(run, base.type, run.whole(1))
    return _added(run, base, source, out, 2, dim)


def _added(run: OpRun, base: Placed, source: Placed, out: Placed, index: int, dim: int) -> list[CCall]:
    if base.type.shape != out.type.shape:
        raise run.refuse(f"from {base.type} to {out.type}")
    numbers, sizes = _numbers(run, index, source.type, dim), _sizes(run, source.type, out.type, dim)
    whole = [] if out == base else pointwise(run, "poet_copy", [out], [base])
    return [*whole, CCall("poet_scatter_add", (out.pointer(), *numbers, source.pointer(), *sizes))]


def _listed(run: OpRun) -> tuple[int, TensorType, OpRun]:
    """Which dimension the one tensor of a list of numbers picks along, its type, and a run that names it."""
    listed: Argument = run.argument(1)
    given = listed if isinstance(listed, tuple) else ()
    named = [(dim, item) for dim, item in enumerate(given) if isinstance(item, Ref)]
    if len(named) != 1 or any(item is not None for item in given if not isinstance(item, Ref)):
        raise run.refuse("for places by more than one list of numbers; write one number for each element")
    dim, item = named[0]
    flat = run.values[item.value]
    if flat.type.dtype != "int64" or not flat.is_dense:
        raise run.refuse(f"for places {flat.type}")
    kind = replace(flat.type, shape=(flat.type.elements,), strides=(1,))
    call = replace(run.call, args=(run.call.args[0], item, *run.call.args[2:]))
    return (
        dim,
        flat.type,
        replace(run, call=call, values={**run.values, item.value: replace(flat, type=kind)}),
    )


def _as_one(run: OpRun, tensor: Placed, dim: int, numbers: TensorType) -> Placed:
    """``tensor``, whose dimensions from ``dim`` on are those of ``numbers``, with these as one."""
    shape, end = tensor.type.shape, dim + len(numbers.shape)
    if shape[dim:end] != numbers.shape:
        raise run.refuse(f"for {tensor.type} by numbers {numbers}")
    sizes = (*shape[:dim], numbers.elements, *shape[end:])
    strides = tuple(math.prod(sizes[at + 1 :]) for at in range(len(sizes)))
    return replace(tensor, type=replace(tensor.type, shape=sizes, strides=strides))


def index(run: OpRun) -> list[CCall]:
    """The rows of a dimension that whole numbers name."""
    x, out = run.dense(0), run.output()
    dim, numbers, named = _listed(run)
    return _picked(named, x, 1, dim, _as_one(run, out, dim, numbers).type)


def index_put(run: OpRun) -> list[CCall]:
    """A tensor, to which rows are added where whole numbers name them."""
    if run.argument(3, False, name="accumulate") is not True:
        raise run.refuse("that writes rows and does not add to them")
    base, out = run.tensor(0), run.output()
    dim, numbers, named = _listed(run)
    return _added(named, base, _as_one(run, run.dense(2), dim, numbers), out, 1, dim)


def first_of(run: OpRun, k: int, dim: int, sign: int) -> list[CCall]:
    """The ``k`` largest, or smallest, in order, and where they are."""
    x, out, places = run.dense(0), run.output(), run.made()[-1]
    dim = _dimension(run, x.type, dim)
    outer, n, inner = folded(run, (dim,), x.type)
    if not 0 <= k <= n or folded(run, (dim,), out.type) != (outer, k, inner):
        raise run.refuse(f"from {x.type} to {out.type}")
    pointers = (out.pointer(), whole_numbers(run, places, out.type.elements).pointer(), x.pointer())
    return [CCall("poet_first_of", (*pointers, f"{sign}.0f", *map(str, (k, outer, n, inner))))]


def top_k(run: OpRun) -> list[CCall]:
    """The largest, or smallest, few."""
    return first_of(run, run.whole(1), run.whole(2, -1), 1 if run.argument(3, True) is not False else -1)


def ordered(run: OpRun, first: int) -> list[CCall]:
    """All in order; argument ``first`` is the dimension."""
    kind, dim = run.tensor(0).type, run.argument(first, -1, name="dim")
    sign = 1 if run.argument(first + 1, False, name="descending") is True else -1
    at = _dimension(run, kind, dim if isinstance(dim, int) else -1)
    return first_of(run, kind.shape[at], at, sign)


def cumulative_sum(run: OpRun) -> list[CCall]:
    """The sums of the first, the first two, and so on."""
    x, out = run.dense(0), run.output()
    if x.type.shape != out.type.shape:
        raise run.refuse(f"from {x.type} to {out.type}")
    sizes = folded(run, (_dimension(run, x.type, run.whole(1)),), x.type)
    return [CCall("poet_sum_up", (out.pointer(), x.pointer(), *map(str, sizes)))]


def flip(run: OpRun) -> list[CCall]:
    """From the last to the first, along dimensions side by side."""
    x, out = run.dense(0), run.output()
    if x.type.shape != out.type.shape:
        raise run.refuse(f"from {x.type} to {out.type}")
    dims = [_dimension(run, x.type, dim) for dim in run.wholes(1)]
    sizes = folded(run, dims, x.type) if dims else (1, 1, x.type.elements)
    return [CCall("poet_flip", (out.pointer(), x.pointer(), *map(str, sizes)))]


def _block(tensor: Placed, starts: tuple[int, ...], sizes: tuple[int, ...]) -> Placed:
    begin = sum(start * stride for start, stride in zip(starts, tensor.type.strides, strict=True))
    word = tensor.word + begin * ITEM_BYTES[tensor.type.dtype] // WORD_BYTES
    return Placed(replace(tensor.type, shape=sizes), word)


def roll(run: OpRun) -> list[CCall]:
    """What leaves at the end of a dimension comes back at its beginning: copies of blocks."""
    x, out, shifts = run.floats(0), run.made()[0], run.wholes(1)
    dims = run.wholes(2, ())
    if x.type.shape != out.type.shape:
        raise run.refuse(f"from {x.type} to {out.type}")
    if not dims:  # all elements as one row
        row = replace(x.type, shape=(x.type.elements,), strides=(1,))
        x, out = (Placed(replace(row, dtype="float32"), run.checked(item).word) for item in (x, out))
        dims = (0,)
    if len(shifts) != len(dims):
        raise run.refuse(f"for {len(shifts)} shifts of {len(dims)} dimensions")
    by_dim: dict[int, int] = {}
    for dim, shift in zip(dims, shifts, strict=True):
        at = _dimension(run, x.type, dim)
        by_dim[at] = (by_dim.get(at, 0) + shift) % max(x.type.shape[at], 1)
    cuts = []  # along each dimension, where parts come from, where they go, and how long they are
    for at, size in enumerate(x.type.shape):
        shift = by_dim.get(at, 0)
        parts = ((0, shift, size - shift), (size - shift, 0, shift))
        cuts.append([part for part in parts if part[2]])
    calls: list[CCall] = []
    for chosen in itertools.product(*cuts):
        begins, ends, sizes = zip(*chosen, strict=True) if chosen else ((), (), ())
        calls += pointwise(run, "poet_copy", [_block(out, ends, sizes)], [_block(x, begins, sizes)])
    return calls
