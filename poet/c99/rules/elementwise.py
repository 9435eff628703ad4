"""Rows of operators that work element by element, copy or fill."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from poet.c99.calls import WORD_BYTES, CCall, CStruct, OpRun, Placed, pointwise
from poet.c99.rules import selection
from poet.ir.graph import ITEM_BYTES

_MOST_FACTORS = 8


def each(
    run: OpRun, function: str, read: Sequence[int], numbers: Sequence[int | tuple[int, float]]
) -> list[CCall]:
    """A function of operands and numbers, each by its place; a number may have a default."""
    given = (run.number(*item) if isinstance(item, tuple) else run.number(item) for item in numbers)
    tensors = [run.tensor(place) for place in read]
    return pointwise(run, function, run.made(), tensors, *map(run.float_text, given))


def add(run: OpRun, sign: float = 1.0) -> list[CCall]:
    """A sum with a factor on the second operand, a number, or a count."""
    alpha = sign * run.number(2, 1, name="alpha")
    out, other = run.made()[0], run.optional(1)
    if out.type.dtype == "int64":
        amount = alpha * run.number(1) if other is None else math.nan
        if out.type.elements != 1 or not float(amount).is_integer():
            raise run.refuse("for whole numbers, except for counters")
        return [CCall("poet_count", (out.pointer(), run.tensor(0).pointer(), str(int(amount))))]
    if other is None:
        added = run.float_text(alpha * run.number(1))
        return pointwise(run, "poet_add_scalar", [out], [run.tensor(0)], added)
    return pointwise(run, "poet_add", [out], [run.tensor(0), other], run.float_text(alpha))


def mul(run: OpRun) -> list[CCall]:
    """A product with a tensor, a mask or a number."""
    other = run.optional(1)
    if other is not None and "bool" in (run.tensor(0).type.dtype, other.type.dtype):
        return selection.times_mask(run)
    if other is None:
        factor = run.float_text(run.number(1))
        return pointwise(run, "poet_mul_scalar", run.made(), [run.tensor(0)], factor)
    return pointwise(run, "poet_mul", run.made(), [run.tensor(0), other])


def neg(run: OpRun) -> list[CCall]:
    """With the other sign."""
    return pointwise(run, "poet_mul_scalar", run.made(), [run.tensor(0)], "-1.0f")


def div(run: OpRun) -> list[CCall]:
    """By a tensor, whole numbers among them, or a number."""
    other = run.optional(1)
    if other is not None and other.type.dtype == "int64":
        return selection.over_count(run)
    if other is not None:
        return pointwise(run, "poet_div", run.made(), [run.tensor(0), other])
    divisor = run.float_text(run.number(1))
    return pointwise(run, "poet_div_scalar", run.made(), [run.tensor(0)], divisor)


def power(run: OpRun) -> list[CCall]:
    """To a whole number from 1 on, or to quarters of either sign."""
    exponent = run.number(1)
    quarters = abs(exponent) * 4
    named = {0.5: "poet_root", -0.5: "poet_inverse_root", -1.0: "poet_inverse", 1.0: "poet_copy"}
    if exponent in named:
        return pointwise(run, named[exponent], run.made(), [run.tensor(0)])
    if quarters.is_integer() and 0 < quarters < 4 * _MOST_FACTORS and not 0 < exponent == int(exponent):
        numbers = (int(quarters) // 4, int(quarters) % 4, int(exponent < 0))
        return pointwise(run, "poet_power_of_quarters", run.made(), [run.tensor(0)], *map(str, numbers))
    if not exponent.is_integer() or not 1 <= exponent <= _MOST_FACTORS:
        raise run.refuse(f"to the power of {exponent:g}; write it as products, or exp of a log")
    return pointwise(run, "poet_power", run.made(), [run.tensor(0)], str(int(exponent)))


def power_of_number(run: OpRun) -> list[CCall]:
    """A positive number to the power of each element."""
    base = run.number(0)
    if not 0.0 < base < math.inf:
        raise run.refuse(f"of {base:g}")
    octaves = math.log2(base)
    mantissa, power = math.frexp(octaves)
    rough = math.ldexp(round(mantissa * 4096), power - 12)  # of 12 bits: exact times 12 others
    numbers = (run.float_text(rough), run.float_text(octaves - rough))
    return pointwise(run, "poet_powers_of_number", run.made(), [run.tensor(1)], *numbers)


def taken_from(run: OpRun) -> list[CCall]:
    """A number, less a tensor times a factor."""
    out, factor = run.made(), run.float_text(-run.number(2, 1, name="alpha"))
    first = pointwise(run, "poet_mul_scalar", out, [run.tensor(0)], factor)
    return [*first, *pointwise(run, "poet_add_scalar", out, out, run.float_text(run.number(1)))]


def clamp(run: OpRun) -> list[CCall]:
    """Between two numbers, of which one may not be there."""
    if run.argument(1) is not None and run.argument(2) is not None:
        return hardtanh(run)
    return bounded(run, 1, "1.0f") if run.argument(1) is not None else bounded(run, 2, "-1.0f")


def bounded(run: OpRun, place: int, sign: str) -> list[CCall]:
    """Above a number, or with ``sign`` -1 below it."""
    bound = run.float_text(run.number(place))
    return pointwise(run, "poet_bounded", run.made(), [run.tensor(0)], sign, bound)


def prelu_backward(run: OpRun) -> list[CCall]:
    """The way back to both."""
    written = [run.output(0), run.output(1)]
    return pointwise(run, "poet_prelu_backward", written, [run.tensor(place) for place in range(3)])


def log_sigmoid(run: OpRun) -> list[CCall]:
    """The logarithm of the sigmoid, and what the way back reads."""
    return pointwise(run, "poet_log_sigmoid", [run.output(0), run.output(1)], [run.tensor(0)])


_GELU = {"none": "poet_gelu", "tanh": "poet_gelu_tanh"}
_GELU_BACKWARD = {"none": "poet_gelu_backward", "tanh": "poet_gelu_tanh_backward"}


def _approximation(run: OpRun, index: int) -> str:
    found = run.argument(index, "none", name="approximate")
    if found not in _GELU:
        raise run.refuse(f"for the approximation {found}")
    return str(found)


def gelu(run: OpRun) -> list[CCall]:
    """By the error function, or by tanh."""
    return pointwise(run, _GELU[_approximation(run, 1)], run.made(), [run.tensor(0)])


def gelu_backward(run: OpRun) -> list[CCall]:
    """The way back through it."""
    function = _GELU_BACKWARD[_approximation(run, 2)]
    return pointwise(run, function, run.made(), [run.tensor(0), run.tensor(1)])


def hardtanh(run: OpRun) -> list[CCall]:
    """Between two numbers."""
    ends = (run.float_text(run.number(1, -1.0)), run.float_text(run.number(2, 1.0)))
    return pointwise(run, "poet_hardtanh", run.made(), [run.tensor(0)], *ends)


def leaky_relu_backward(run: OpRun) -> list[CCall]:
    """The way back, from what was given or, where the slope keeps its sign, from what came out."""
    slope = run.number(2)
    if slope < 0 and bool(run.argument(3)):
        raise run.refuse("from the result of a slope below 0, which hides the sign")
    read = [run.tensor(0), run.tensor(1)]
    return pointwise(run, "poet_leaky_relu_backward", run.made(), read, run.float_text(slope))


def elu(run: OpRun) -> list[CCall]:
    """Exponential below 0, with its factors."""
    alpha, scale, inner = run.number(1, 1.0), run.number(2, 1.0), run.number(3, 1.0)
    factors = (run.float_text(alpha * scale), run.float_text(scale), run.float_text(inner))
    return pointwise(run, "poet_elu", run.made(), [run.tensor(0)], *factors)


def celu(run: OpRun) -> list[CCall]:
    """Likewise, by one number."""
    alpha = run.number(1, 1.0)
    factors = (run.float_text(alpha), run.float_text(1.0), run.float_text(1.0 / alpha))
    return pointwise(run, "poet_elu", run.made(), [run.tensor(0)], *factors)


def elu_backward(run: OpRun) -> list[CCall]:
    """The way back, from what was given or from what came out."""
    alpha, scale, inner = run.number(1), run.number(2), run.number(3)
    factors = (run.float_text(alpha * scale), run.float_text(scale), run.float_text(inner))
    is_result = str(int(bool(run.argument(4))))
    read = [run.tensor(0), run.tensor(5)]
    return pointwise(run, "poet_elu_backward", run.made(), read, *factors, is_result)


def full(run: OpRun) -> list[CCall]:
    """One number, or truth, everywhere."""
    if run.made()[0].type.dtype == "bool":
        return selection.fill_mask(run)
    if not math.isfinite(run.number(3)):
        return selection.fill_bits(run)
    return pointwise(run, "poet_fill", run.made(), [], run.float_text(run.number(3)))


def assign(run: OpRun) -> list[CCall]:
    """A buffer's new contents."""
    state, source = run.tensor(0), run.tensor(1)
    if state.type.dtype != source.type.dtype or not (state.is_dense and source.is_dense):
        raise run.refuse(f"for {source.type} that is put into {state.type}")
    words = state.type.elements * ITEM_BYTES[state.type.dtype] // WORD_BYTES
    return [CCall("poet_assign", (state.pointer(), source.pointer(), str(words)))]


def pad(run: OpRun) -> list[CCall]:
    """A border of one number, around at most two dimensions; unpadded ones behind these count as one."""
    x, y = run.dense(0), run.output()
    pads, sides = list(run.wholes(1)), (1, 1, *x.type.shape)
    while len(pads) > 4 and not any(pads[:4]):
        pads, sides = pads[2:], (*sides[:-2], sides[-2] * sides[-1])
    if not 0 < len(pads) <= 4 or not x.type.shape:
        raise run.refuse("for more than two dimensions")
    left, right, top, bottom = (*pads, 0, 0)[:4]
    height, width = sides[-2:]
    planes = x.type.elements // max(height * width, 1)
    sizes = (planes, height, width, height + top + bottom, width + left + right, top, left)
    if y.type.elements != planes * max(sizes[3], 0) * max(sizes[4], 0):
        raise run.refuse(f"for a border of {list(run.wholes(1))} from {x.type} to {y.type}")
    shape = CStruct("poet_pad2d_shape", tuple(map(str, sizes)))
    return [CCall("poet_pad2d", (y.pointer(), x.pointer(), run.float_text(run.number(2, 0.0)), shape))]


def convert(run: OpRun) -> list[CCall]:
    """Whole numbers or truths as floats, or floats laid out otherwise."""
    x, out = run.tensor(0), run.made()[0]
    if x.type.shape != out.type.shape:
        raise run.refuse(f"from {x.type} to {out.type}")
    if x.type.dtype == "float32":
        return pointwise(run, "poet_copy", [out], [x])
    count = out.type.elements
    if x.type.dtype == "int64":
        pointer, name = selection.whole_numbers(run, x, count).pointer(), "poet_floats_of_numbers"
    else:
        pointer, name = selection.mask_of(run, x).pointer(), "poet_floats_of_mask"
    return [CCall(name, (run.checked(out).pointer(), pointer, str(count)))]


def glu(run: OpRun) -> list[CCall]:
    """One half, times the sigmoid of the other."""
    first, second = _halves(run, run.floats(0), run.whole(1, -1))
    return pointwise(run, "poet_glu", run.made(), [first, second])


def glu_backward(run: OpRun) -> list[CCall]:
    """The way back to both halves."""
    dim = run.whole(2)
    made, read = _halves(run, run.made()[0], dim), _halves(run, run.floats(1), dim)
    return pointwise(run, "poet_glu_backward", made, [run.tensor(0), *read])


def _halves(run: OpRun, x: Placed, dim: int) -> list[Placed]:
    kind, rank = x.type, len(x.type.shape)
    if not -rank <= dim < rank or kind.shape[dim] % 2:
        raise run.refuse(f"for halves along dimension {dim} of {kind}")
    dim %= rank
    half = replace(kind, shape=(*kind.shape[:dim], kind.shape[dim] // 2, *kind.shape[dim + 1 :]))
    return [Placed(half, x.word), Placed(half, x.word + half.shape[dim] * kind.strides[dim])]


def identity(run: OpRun) -> list[CCall]:
    """Ones from corner to corner, zeros beside them."""
    out = run.output()
    height, width = out.type.shape
    corners = replace(out.type, shape=(min(height, width),), strides=(width + 1,))
    zeros = pointwise(run, "poet_fill", [out], [], "0.0f")
    return [*zeros, *pointwise(run, "poet_fill", [Placed(corners, out.word)], [], "1.0f")]
