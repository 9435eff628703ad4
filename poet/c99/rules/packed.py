"""Rows of packed weights in flash: made float32 of as a whole, or inside the products that read them."""

from __future__ import annotations

from dataclasses import replace

from poet.c99.calls import LOOPS, Address, CCall, CStruct, Given, OpRun
from poet.errors import GraphError
from poet.ir.packed import Packed

WEIGHT_WORD = 1 << 40
"""Where a packed weight would lie as float32: outside of every arena."""
USES = frozenset(f"aten.{name}.default" for name in ("mm", "addmm", "convolution", "convolution_backward"))
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
    if out.type.elements != how.shape[0] * how.columns:
        raise run.refuse(f"for {out.type} of a weight of shape {list(how.shape)}")
    counts = map(str, (*how.packed_shape, how.columns))
    return [CCall("poet_dequantise", (out.pointer(), place, unpack, *counts))]


def inside(made_by: OpRun, calls: list[CCall], block: Address) -> list[CCall]:
    """``calls``, which read what ``made_by`` makes as float32 at `WEIGHT_WORD`, reading packed rows.

    ``block``: room for `poet.ir.packed.USED_BYTES`.

    Raises:
        UnsupportedOperator: they do something else with it than to multiply.
    """
    how, place, unpack = _weight(made_by)
    made = []
    for call in calls:
        if not any(map(_is_weight, call.arguments)):
            made.append(call)
            continue
        loops, (y, start, *factors), shape = _product(made_by, call)
        is_right = _is_weight(factors[1])
        if factors[is_right] != Address(WEIGHT_WORD) or _is_weight(factors[not is_right]):
            raise made_by.refuse("for a part of a weight, or for a product with itself")
        is_turned = _is_turned(made_by, how, shape, is_right=is_right)
        counts = map(str, (how.packed_shape[1], int(is_right), int(is_turned)))
        given = (y, start, factors[not is_right], place, block, unpack, *counts, shape)
        made.append(CCall("poet_matmul_packed", given, loops))
    if made == calls:
        raise made_by.refuse("for a weight that is in no product")
    return made


def _is_weight(item: Given) -> bool:
    return isinstance(item, Address) and item.word >= WEIGHT_WORD


def _product(run: OpRun, call: CCall) -> tuple[tuple[int, ...], list[Given], CStruct]:
    """The loops of ``call``, where it is a product; what is made, the start and both factors; the shape."""
    *places, shape = call.arguments
    loops, is_product = call.loops, call.function == "poet_matmul"
    if call.function == "poet_matmul_images":
        y, y_step, start, a, a_step, b, b_step, images = places
        pairs, loop = ((y, y_step), (start, "0"), (a, a_step), (b, b_step)), LOOPS[len(loops)]
        places = [
            replace(place, advance=f"{place.advance} + {loop} * {step}")
            if isinstance(place, Address) and step != "0"
            else place
            for place, step in pairs
        ]
        loops, is_product = (*loops, int(str(images))), True
    if not is_product or not isinstance(shape, CStruct):
        raise run.refuse(f"inside {call.function}")
    return loops, places, shape


def _is_turned(run: OpRun, how: Packed, shape: CStruct, *, is_right: bool) -> bool:
    """Whether the rows of a packed factor are the inner numbers of a product, not the elements of each."""
    rows, inner, columns, *_, a_row, a_inner, b_inner, b_column = (int(str(item)) for item in shape.fields)
    sizes = (inner, columns) if is_right else (inner, rows)
    strides = (b_inner, b_column) if is_right else (a_inner, a_row)
    plain = ((how.columns, how.shape[0]), (1, how.columns))
    for is_turned, (expected, apart) in enumerate((plain, tuple(pair[::-1] for pair in plain))):
        fits = all(n == 1 or have == want for n, have, want in zip(sizes, strides, apart, strict=True))
        if sizes == expected and fits:
            return bool(is_turned)
    raise run.refuse("for a part of a weight")
