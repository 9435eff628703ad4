"""Rows of packed weights, which lie in flash: made float32 of as a whole, or inside the products that read them."""

from __future__ import annotations

from dataclasses import replace

from poet.c99.calls import LOOPS, Address, CCall, CStruct, Given, OpRun
from poet.errors import GraphError
from poet.ir.packed import Packed

WEIGHT_WORD = 1 << 40
"""Where a packed weight would lie as float32: outside of every arena."""
USES = frozenset(
    f"aten.{name}.default" for name in ("mm", "addmm", "convolution", "convolution_backward")
)
"""Operators that may read a packed weight themselves."""


def _weight(run: OpRun) -> tuple[Packed, Address, str]:
    """What a run makes float32 of: how it is packed, where it lies, and the function for its rows."""
    rows, shape = run.tensor(0), run.wholes(2)
    try:
        how = Packed(str(run.argument(1)), shape)
    except GraphError as error:
        raise run.refuse(f"({error})") from None
    if not rows.in_flash or rows.type.shape != how.packed_shape or not rows.is_dense or rows.type.offset:
        raise run.refuse(f"for {rows.type} that is no weight of shape {list(shape)} packed as {how.format}")
    return how, Address(rows.word, base="poet_packed"), f"poet_unpack_{how.format}"


def dequantise(run: OpRun) -> list[CCall]:
    """All of a weight as a tensor."""
    (how, place, unpack), out = _weight(run), run.output()
    rows, row_bytes = how.packed_shape
    if out.type.elements != rows * how.columns:
        raise run.refuse(f"for {out.type} of a weight of shape {list(how.shape)}")
    counts = map(str, (rows, row_bytes, how.columns))
    return [CCall("poet_dequantise", (out.pointer(), place, unpack, *counts))]


def inside(made_by: OpRun, calls: list[CCall], block: Address) -> list[CCall]:
    """``calls``, which read the weight that ``made_by`` gives as float32 at `WEIGHT_WORD`, reading packed rows.

    ``block``: room for `poet.ir.packed.USED_BYTES`.

    Raises:
        UnsupportedOperator: they do something else with it than to multiply.
    """
    how, place, unpack = _weight(made_by)
    made = [_packed_product(made_by, call, how, (place, block, unpack)) for call in calls]
    if made == calls:
        raise made_by.refuse("for a weight that is in no product")
    return made


def _is_weight(item: Given) -> bool:
    return isinstance(item, Address) and item.word >= WEIGHT_WORD


def _packed_product(
    run: OpRun, call: CCall, how: Packed, given: tuple[Address, Address, str]
) -> CCall:
    """``call`` with the weight read as it is packed, if it reads it."""
    if not any(map(_is_weight, call.arguments)):
        return call
    *places, shape = call.arguments
    steps = [0, 0, 0]
    loops = call.loops
    if call.function == "poet_matmul_images":
        y, y_step, start, a, a_step, b, b_step, images = places
        steps = [int(str(step)) for step in (y_step, a_step, b_step)]
        loops = (*loops, int(str(images))) if images != "1" else loops
        places = [y, start, a, b]
    is_right = len(places) == 4 and _is_weight(places[3])
    if call.function not in ("poet_matmul", "poet_matmul_images") or sum(map(_is_weight, places)) > 1:
        raise run.refuse(f"inside {call.function}")
    assert isinstance(shape, CStruct)
    is_turned = _is_turned(run, how, shape, is_right=is_right)
    y, start, a, b = places
    weight, other = (b, a) if is_right else (a, b)
    if weight != Address(WEIGHT_WORD) or steps[2 if is_right else 1]:
        raise run.refuse("for a part of a weight")
    y, other = _stepped(y, call, loops, steps[0]), _stepped(other, call, loops, steps[1 if is_right else 2])
    packed = CStruct("poet_packed_shape", (str(how.packed_shape[1]), str(int(is_right)), str(int(is_turned))))
    return CCall("poet_matmul_packed", (y, start, other, *given, packed, shape), loops)


def _stepped(place: Given, call: CCall, loops: tuple[int, ...], step: int) -> Given:
    """``place`` inside the loop over images that ``loops`` has beside those of ``call``."""
    if loops == call.loops or not step or not isinstance(place, Address):
        return place
    return replace(place, advance=f"{place.advance} + {LOOPS[len(call.loops)]} * {step}")


def _is_turned(run: OpRun, how: Packed, shape: CStruct, *, is_right: bool) -> bool:
    """Whether the rows of a packed factor are the inner numbers of a product, not its elements' ones."""
    numbers = [int(str(item)) for item in shape.fields]
    (rows, inner, columns), (a_row, a_inner, b_inner, b_column) = numbers[:3], numbers[-4:]
    sizes = (inner, columns) if is_right else (inner, rows)
    strides = (b_inner, b_column) if is_right else (a_inner, a_row)
    ways = {False: ((how.columns, how.shape[0]), (1, how.columns)), True: ((how.shape[0], how.columns), (how.columns, 1))}
    for is_turned, (expected, apart) in ways.items():
        fits = all(n == 1 or have == want for n, have, want in zip(sizes, strides, apart, strict=True))
        if sizes == expected and fits:
            return is_turned
    raise run.refuse("for a part of a weight")

