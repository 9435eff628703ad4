"""Rows of masks, and of choices by them.

A mask is of bytes that lie one after the other. It may be of fewer dimensions than what it chooses from, and
is repeated then.
"""

from __future__ import annotations

import struct

from poet.c99.calls import CCall, OpRun, Placed


def _mask(run: OpRun, found: Placed | None) -> Placed:
    if found is None or found.type.dtype != "bool" or not found.is_dense or found.type.offset:
        raise run.refuse("where a mask is not of bytes side by side")
    return found


def _repeated(run: OpRun, mask: Placed, shape: tuple[int, ...]) -> tuple[str, str]:
    """How often each byte of a mask counts, and how many bytes repeat, until it has ``shape``."""
    sizes, each = list(mask.type.shape), 1
    while sizes and sizes[0] == 1:
        del sizes[0]
    last = len(shape)
    while sizes and sizes[-1] == 1:
        del sizes[-1]
        last -= 1
        each *= shape[last]
    if len(sizes) > last or sizes != list(shape[last - len(sizes) : last]):
        raise run.refuse(f"for a mask {mask.type} beside {list(shape)}")
    return str(max(each, 1)), str(max(mask.type.elements, 1))


def _bits(number: float) -> str:
    return f"UINT32_C({struct.unpack('<I', struct.pack('<f', number))[0]:#010x})"


def fill_mask(run: OpRun) -> list[CCall]:
    """One truth everywhere."""
    out = _mask(run, run.outputs[0])
    return [CCall("poet_fill_mask", (out.pointer(), str(int(bool(run.argument(3)))), str(out.type.elements)))]


def fill_bits(run: OpRun) -> list[CCall]:
    """One number everywhere that is not finite."""
    out = run.output()
    return [CCall("poet_fill_bits", (out.pointer(), _bits(run.number(3)), str(out.type.elements)))]


def triangle(run: OpRun, *, is_lower: bool) -> list[CCall]:
    """Below or above a diagonal; 0 elsewhere."""
    x, out = _mask(run, run.tensor(0)), _mask(run, run.outputs[0])
    if len(x.type.shape) < 2 or x.type.shape != out.type.shape:
        raise run.refuse(f"for {x.type}")
    height, width = x.type.shape[-2:]
    planes = x.type.elements // max(height * width, 1)
    numbers = (int(is_lower), run.whole(1, 0), planes, height, width)
    return [CCall("poet_triangle", (out.pointer(), x.pointer(), *map(str, numbers)))]


def lower(run: OpRun) -> list[CCall]:
    """At and below a diagonal."""
    return triangle(run, is_lower=True)


def upper(run: OpRun) -> list[CCall]:
    """At and above a diagonal."""
    return triangle(run, is_lower=False)


def equal(run: OpRun) -> list[CCall]:
    """Whether each element is a number."""
    x, out = run.dense(0), _mask(run, run.outputs[0])
    value = run.float_text(run.number(1))
    return [CCall("poet_equal", (out.pointer(), x.pointer(), value, str(x.type.elements)))]


def negated(run: OpRun) -> list[CCall]:
    """The other truth."""
    x, out = _mask(run, run.tensor(0)), _mask(run, run.outputs[0])
    return [CCall("poet_not", (out.pointer(), x.pointer(), str(x.type.elements)))]


def where(run: OpRun) -> list[CCall]:
    """One of two tensors, or numbers, by a mask."""
    mask, out = _mask(run, run.tensor(0)), run.output()
    sizes, read = _repeated(run, mask, out.type.shape), []
    for index in (1, 2):
        tensor = run.dense(index)
        if tensor.type.elements != 1 and tensor.type.shape != out.type.shape:
            raise run.refuse(f"for {tensor.type} beside a result of shape {list(out.type.shape)}")
        read += [tensor.pointer(), str(int(tensor.type.elements > 1))]
    return [CCall("poet_where", (out.pointer(), mask.pointer(), *sizes, *read, str(out.type.elements)))]


def masked_fill(run: OpRun) -> list[CCall]:
    """A number where the mask is set."""
    x, mask, out = run.dense(0), _mask(run, run.tensor(1)), run.output()
    if x.type.shape != out.type.shape:
        raise run.refuse(f"for {x.type} beside a result of shape {list(out.type.shape)}")
    sizes, value = _repeated(run, mask, out.type.shape), _bits(run.number(2))
    pointers = (out.pointer(), x.pointer(), mask.pointer())
    return [CCall("poet_masked_fill", (*pointers, *sizes, value, str(out.type.elements)))]
