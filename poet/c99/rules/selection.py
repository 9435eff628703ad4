"""Rows of masks, and of choices by them.

A mask is of bytes that lie one after the other. It may be of fewer dimensions than what it chooses from, and
is repeated then.
"""

from __future__ import annotations

import math
import struct

from poet.c99.calls import CCall, Given, OpRun, Placed, in_order, memory_order


def mask_of(run: OpRun, found: Placed | None) -> Placed:
    """``found``, if it is of bytes that lie one after the other."""
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
    out = mask_of(run, run.outputs[0])
    return [CCall("poet_fill_mask", (out.pointer(), str(int(bool(run.argument(3)))), str(out.type.elements)))]


def fill_bits(run: OpRun) -> list[CCall]:
    """One number everywhere that is not finite."""
    out = run.output()
    return [CCall("poet_fill_bits", (out.pointer(), _bits(run.number(3)), str(out.type.elements)))]


def triangle(run: OpRun, *, is_lower: bool) -> list[CCall]:
    """Below or above a diagonal; 0 elsewhere."""
    x, out = mask_of(run, run.tensor(0)), mask_of(run, run.outputs[0])
    if len(x.type.shape) < 2 or x.type.shape != out.type.shape:
        raise run.refuse(f"for {x.type}")
    height, width = x.type.shape[-2:]
    planes = x.type.elements // max(height * width, 1)
    numbers = (int(is_lower), run.whole(1, 0), planes, height, width)
    return [CCall("poet_triangle", (out.pointer(), x.pointer(), *map(str, numbers)))]


_LARGEST = 2**31 - 1
_LESS, _EQUAL, _MORE, _UNORDERED = 1, 2, 4, 8
_STANDING = {
    "eq": _EQUAL,
    "ne": _LESS | _MORE | _UNORDERED,
    "lt": _LESS,
    "le": _LESS | _EQUAL,
    "gt": _MORE,
    "ge": _MORE | _EQUAL,
}
"""How a number may stand to another, by the name of the comparison."""


def repeats(run: OpRun, small: Placed, shape: tuple[int, ...]) -> tuple[str, str]:
    """How often a tensor side by side is repeated, in runs of how many elements, until it has ``shape``."""
    kind = small.type
    sizes = (1,) * (len(shape) - len(kind.shape)) + kind.shape
    wide = [dim for dim, size in enumerate(shape) if size != 1]
    missing = [place for place, dim in enumerate(wide) if sizes[dim] == 1]
    kept = [dim for dim in wide if sizes[dim] != 1]
    if len(sizes) != len(shape) or not small.is_dense or any(sizes[dim] != shape[dim] for dim in kept):
        raise run.refuse(f"for {kind} beside a result of shape {list(shape)}")
    if not missing:
        return "1", "1"
    first, end = missing[0], missing[-1] + 1
    if len(missing) != end - first:
        raise run.refuse(f"for {kind} repeated in dimensions of {list(shape)} that are not neighbours")
    count = math.prod(shape[dim] for dim in wide[first:end])
    return str(count), str(math.prod(shape[dim] for dim in wide[end:]))


def _aligned(run: OpRun, *places: int) -> list[Placed]:
    """The first result and arguments, with their dimensions in the order in which those of the result lie."""
    out = run.made()[0]
    order, given = memory_order(out.type), [run.tensor(place) for place in places]
    if any(len(tensor.type.shape) > len(order) for tensor in given):
        raise run.refuse(f"from {', '.join(str(tensor.type) for tensor in given)} to {out.type}")
    return [in_order(tensor, order) for tensor in (out, *given)]


def compared(run: OpRun, how: str) -> list[CCall]:
    """Whether elements stand so to those of another tensor, or to a number."""
    wanted = _STANDING[how]
    if run.optional(1) is None and run.tensor(0).type.dtype == "int64":
        return _numbers_compared_to(run, wanted)
    if run.optional(1) is None:
        return _compared_to(run, wanted, run.float_text(run.number(1)))
    out, *pair = _aligned(run, 0, 1)
    mask = mask_of(run, out)
    read: list[Given] = []
    for x in pair:
        read += [run.checked(x).pointer(), *repeats(run, x, out.type.shape)]
    return [CCall("poet_compared", (mask.pointer(), str(wanted), *read, str(out.type.elements)))]


def _compared_to(run: OpRun, wanted: int, number: str) -> list[CCall]:
    out, x = _aligned(run, 0)
    if x.type.shape != out.type.shape:
        raise run.refuse(f"for {x.type} beside a result {out.type}")
    pointers = (mask_of(run, out).pointer(), str(wanted), run.checked(x).pointer())
    return [CCall("poet_compared_to", (*pointers, number, str(out.type.elements)))]


def _numbers_compared_to(run: OpRun, wanted: int) -> list[CCall]:
    out, number = mask_of(run, run.outputs[0]), run.number(1)
    if not number.is_integer() or abs(number) > _LARGEST:
        raise run.refuse(f"for whole numbers beside {number}")
    numbers = whole_numbers(run, run.tensor(0), out.type.elements)
    arguments = (out.pointer(), str(wanted), numbers.pointer(), str(int(number)), str(out.type.elements))
    return [CCall("poet_numbers_compared_to", arguments)]


def is_no_number(run: OpRun) -> list[CCall]:
    """Whether each element is none."""
    return _compared_to(run, _UNORDERED, "0.0f")


def joined(run: OpRun, *, is_either: bool) -> list[CCall]:
    """Whether both masks, or either, are set."""
    out, *pair = (mask_of(run, found) for found in _aligned(run, 0, 1))
    read = [text for mask in pair for text in (mask.pointer(), *repeats(run, mask, out.type.shape))]
    arguments = (out.pointer(), str(int(is_either)), *read, str(out.type.elements))
    return [CCall("poet_both_masks", arguments)]


def times_mask(run: OpRun) -> list[CCall]:
    """A product with a mask, on either side."""
    out, x, mask = _aligned(run, *((1, 0) if run.tensor(0).type.dtype == "bool" else (0, 1)))
    if mask.type.shape != out.type.shape:
        raise run.refuse(f"for a mask {mask.type} beside {list(out.type.shape)}")
    read = (run.checked(x).pointer(), *repeats(run, x, out.type.shape), mask_of(run, mask).pointer())
    return [CCall("poet_mul_mask", (run.checked(out).pointer(), *read, str(out.type.elements)))]


def whole_numbers(run: OpRun, tensor: Placed | None, elements: int) -> Placed:
    """``tensor``, if it is of so many whole numbers of 8 bytes that lie one after the other."""
    is_right = tensor is not None and tensor.type.dtype == "int64" and tensor.is_dense
    if tensor is None or not is_right or tensor.type.elements != elements:
        found = "nothing" if tensor is None else f"{tensor.type}"
        raise run.refuse(f"for {found} in the place of {elements} whole numbers side by side")
    return tensor


def over_count(run: OpRun) -> list[CCall]:
    """A quotient by whole numbers."""
    x, out = run.dense(0), run.output()
    counts = whole_numbers(run, run.tensor(1), out.type.elements)
    if x.type.elements != out.type.elements:
        raise run.refuse(f"for {x.type} beside a result of shape {list(out.type.shape)}")
    count = str(out.type.elements)
    return [CCall("poet_div_count", (out.pointer(), x.pointer(), counts.pointer(), count))]


def negated(run: OpRun) -> list[CCall]:
    """The other truth."""
    x, out = mask_of(run, run.tensor(0)), mask_of(run, run.outputs[0])
    return [CCall("poet_not", (out.pointer(), x.pointer(), str(x.type.elements)))]


def where(run: OpRun) -> list[CCall]:
    """One of two tensors, or numbers, by a mask."""
    mask, out = mask_of(run, run.tensor(0)), run.output()
    sizes = _repeated(run, mask, out.type.shape)
    read: list[Given] = []
    for index in (1, 2):
        tensor = run.dense(index)
        if tensor.type.elements != 1 and tensor.type.shape != out.type.shape:
            raise run.refuse(f"for {tensor.type} beside a result of shape {list(out.type.shape)}")
        read += [tensor.pointer(), str(int(tensor.type.elements > 1))]
    return [CCall("poet_where", (out.pointer(), mask.pointer(), *sizes, *read, str(out.type.elements)))]


def masked_fill(run: OpRun) -> list[CCall]:
    """A number where the mask is set."""
    x, mask, out = run.dense(0), mask_of(run, run.tensor(1)), run.output()
    if x.type.shape != out.type.shape:
        raise run.refuse(f"for {x.type} beside a result of shape {list(out.type.shape)}")
    sizes, value = _repeated(run, mask, out.type.shape), _bits(run.number(2))
    pointers = (out.pointer(), x.pointer(), mask.pointer())
    return [CCall("poet_masked_fill", (*pointers, *sizes, value, str(out.type.elements)))]
