"""How much work a call of a C kernel has: multiply-adds, elements, rows, each of which costs something.

What one of each costs stands in ``instructions.toml``. Names of functions and of their parts are those of
``kernels/*.c``: a part that several functions share is counted under its own name.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping

from poet.c99 import window_amounts as windows
from poet.c99.calls import WORD_BYTES, CCall, CStruct
from poet.c99.window_amounts import Amounts, added, amounts

_TILE, _RUN = 4, 32
"""Rows and columns of a block of a product, and how many numbers are added before the sum is."""
_UPDATE = re.compile(r"&\(poet_update\)\{(\w+), .*\{(.*)\}\}")
Sizes = Mapping[str, int]
"""Bytes of each buffer, which transfers name."""
Rule = Callable[[CCall, Sizes], Amounts]


def amounts_of(call: CCall, sizes_bytes: Sizes) -> Amounts:
    """What ``call`` does, inside its loops.

    Raises:
        KeyError: its function is not known.
    """
    return added(_RULES[call.function](call, sizes_bytes), times=math.prod(call.loops))


def known_functions() -> frozenset[str]:
    """The C functions whose work is known."""
    return frozenset(_RULES)


def _numbers(record: str | CStruct) -> list[int]:
    """The whole numbers of a record, those of inner records in their place; 0 for others."""
    if isinstance(record, str):
        return [int(record)] if record.lstrip("-").isdigit() else [0]
    return [number for field in record.fields for number in _numbers(field)]


def _whole(call: CCall, place: int) -> int:
    return int(str(call.arguments[place]).rstrip("u"))


def _runs(n: int) -> int:
    return -(-n // _RUN)


def _applied(call: CCall, calls: int, elements: int) -> Amounts:
    """What becomes of so many elements that are handed on as they are made."""
    found = _UPDATE.fullmatch(str(call.arguments[0]))
    assert found is not None, call
    decays = found[1] == "poet_apply_sgd" and found[2].split(", ")[1] != "0.0f"
    return amounts(found[1], **{"decayed" if decays else "element": elements}, call=calls)


def _convolution(call: CCall, _: Sizes) -> Amounts:
    return windows.conv2d(call.function, _numbers(call.arguments[-1]))


def _convolution_weight(call: CCall, _: Sizes) -> Amounts:
    own, calls, elements = windows.weight(_numbers(call.arguments[-1]))
    return added(own, _applied(call, calls, elements))


def _block(record: list[int]) -> str:
    """The function that makes blocks of 4 x 4, as ``poet_matmul_fastest``."""
    y_column, (a_row, a_inner, b_inner, b_column) = record[4], record[7:11]
    if y_column == b_column == 1 and a_inner == 1:
        return "poet_matmul_block_of_rows"
    if y_column == b_column == 1 and a_row == 1:
        return "poet_matmul_block_of_columns"
    is_lines = y_column == a_inner == b_inner == 1
    return "poet_matmul_block_of_lines" if is_lines else "poet_matmul_block"


def _tiles(record: list[int]) -> Amounts:
    """Of one image: in blocks of 4 x 4, and element by element beside them."""
    rows, inner, columns = record[:3]
    blocks = (rows // _TILE) * (columns // _TILE)
    beside = rows * columns - blocks * _TILE**2
    return added(
        amounts(_block(record), step=blocks * inner, call=blocks * _runs(inner)),
        amounts("poet_matmul_one", multiply_add=beside * inner, call=beside * _runs(inner)),
    )


def _product(call: CCall, _: Sizes) -> Amounts:
    record = _numbers(call.arguments[-1])
    rows, _inner, columns = record[:3]
    images = 1 if call.function == "poet_matmul" else _whole(call, -2)
    start = call.arguments[1 if call.function == "poet_matmul" else 2]
    across = -(-columns // _TILE)
    own = amounts(
        "poet_matmul",
        **{"element" if start == "0" else "started": rows * columns},
        line=rows * across,
        tile=-(-rows // _TILE) * across,
        call=1,
    )
    return added(own, _tiles(record), times=images)


def _product_gradient(call: CCall, _: Sizes) -> Amounts:
    record = _numbers(call.arguments[-1])
    record[4] = 1
    rows, _inner, columns = record[:3]
    images, across = _whole(call, -2), -(-columns // _TILE)
    tiles = -(-rows // _TILE) * across
    own = amounts("poet_matmul_gradient", tile=tiles, image=tiles * images, line=rows * across, call=1)
    return added(own, added(_tiles(record), times=images), _applied(call, rows * across, rows * columns))


def _product_narrow(call: CCall, _: Sizes) -> Amounts:
    rows, _inner, columns = _numbers(call.arguments[-1])[:3]
    lines = rows * -(-columns // 16)
    own = amounts("poet_matmul_gradient_narrow", element=rows * columns, line=lines, call=1)
    return added(own, _applied(call, lines, rows * columns))


def _batch_norm(call: CCall, _: Sizes) -> Amounts:
    images, channels, plane = _numbers(call.arguments[-1])[:3]
    lines = images * channels
    return amounts(
        call.function,
        element=lines * plane,
        rest=lines * (plane % 4),
        run=lines * _runs(plane),
        line=lines,
        channel=channels,
    )


def _group_norm(call: CCall, _: Sizes) -> Amounts:
    images, groups, channels, plane = _numbers(call.arguments[-1])
    planes = images * groups * channels
    return amounts(
        call.function,
        element=planes * plane,
        run=planes * _runs(plane),
        plane=planes,
        group=images * groups,
    )


def _layer_norm(call: CCall, _: Sizes) -> Amounts:
    outer, inner, n = _numbers(call.arguments[-1])[:3]
    rows = outer * inner
    if call.function == "poet_layer_norm_gradients":
        rows, n = n, rows
    return amounts(call.function, element=rows * n, row=rows, call=1)


def _padding(call: CCall, _: Sizes) -> Amounts:
    planes, height, width, out_height, out_width, top, left = _numbers(call.arguments[-1])
    rows = max(0, min(top + height, out_height) - max(0, top))
    columns = max(0, min(left + width, out_width) - max(0, left))
    copied = planes * rows * columns
    made = planes * out_height * out_width
    return amounts(call.function, element=copied, border=made - copied, row=planes * out_height)


def _max_pool_backward(call: CCall, _: Sizes) -> Amounts:
    planes, size, n = (_whole(call, place) for place in (3, 4, 5))
    return amounts(call.function, element=planes * size, window=planes * n)


def _sums(call: CCall, _: Sizes) -> Amounts:
    """Over outer x n x inner."""
    outer, n, inner = (_whole(call, place) for place in (2, 3, 4))
    sums = outer * inner
    own = amounts(call.function, element=sums * n, run=sums * _runs(n), sum=sums)
    return added(own, _applied(call, sums, sums))


def _channel_sums(call: CCall, _: Sizes) -> Amounts:
    images, channels, plane = (_whole(call, place) for place in (2, 3, 4))
    lines = images * channels
    own = amounts(call.function, element=lines * plane, run=lines * _runs(plane), line=lines)
    return added(own, _applied(call, channels, channels))


def _sum_apart(call: CCall, _: Sizes) -> Amounts:
    rows, n = _whole(call, 2), _whole(call, 4)
    own = amounts(call.function, element=rows * n, run=rows * _runs(n), row=rows, sum=1)
    return added(own, _applied(call, 1, 1))


def _elements(place: int = -1) -> Rule:
    """So many elements as argument ``place`` says."""
    return lambda call, _: amounts(call.function, element=_whole(call, place), call=1)


def _values(call: CCall, _: Sizes) -> Amounts:
    return amounts(call.function, element=_whole(call, -1))


def _rows(*places: int, n: int) -> Rule:
    """As many rows as the product of arguments ``places``, each of as many elements as ``n`` says."""

    def rule(call: CCall, _: Sizes) -> Amounts:
        rows = math.prod(_whole(call, place) for place in places)
        return amounts(call.function, element=rows * _whole(call, n), row=rows, call=1)

    return rule


def _variance(call: CCall, _: Sizes) -> Amounts:
    outer, n, inner = (_whole(call, place) for place in (4, 5, 6))
    rows = outer * inner
    return amounts(call.function, element=rows * n, run=rows * _runs(n), row=rows, call=1)


def _power(call: CCall, _: Sizes) -> Amounts:
    n, exponent = _whole(call, -1), _whole(call, -2)
    return amounts(call.function, element=n, product=n * (exponent - 1), call=1)


def _sgd(call: CCall, _: Sizes) -> Amounts:
    what = "element" if call.arguments[-2] == "0.0f" else "decayed"
    return amounts(call.function, **{what: _whole(call, -1)}, call=1)


def _adamw(call: CCall, _: Sizes) -> Amounts:
    return amounts(call.function, element=_numbers(call.arguments[-1])[0], call=1)


def _upsample(call: CCall, _: Sizes) -> Amounts:
    planes, height, width, down, across = (_whole(call, place) for place in range(2, 7))
    small = planes * height * width
    rows = planes * height * (down if call.function == "poet_upsample" else width)
    return amounts(call.function, element=small * down * across, row=rows)


def _picked(call: CCall, _: Sizes) -> Amounts:
    return amounts(call.function, element=math.prod(_whole(call, place) for place in (5, 6, 7)), call=1)


def _first_of(call: CCall, _: Sizes) -> Amounts:
    """Of numbers in any order: each goes past half of those of the first k that are there."""
    k, outer, n, inner = (_whole(call, place) for place in (4, 5, 6, 7))
    rows = outer * inner
    first = min(k, n)
    past = first * first / 4 + sum(k / (j + 1) * k / 2 for j in range(first, n))
    return amounts(call.function, element=rows * n, past=round(rows * past), row=rows, call=1)


def _borders(call: CCall, _: Sizes) -> Amounts:
    planes, _height, _width, height, width, _top, _left = _numbers(call.arguments[-1])
    return amounts(call.function, element=planes * height * width, row=planes * height, call=1)


def _resized(call: CCall, _: Sizes) -> Amounts:
    planes, _height, _width, height, width, *_rest = _numbers(call.arguments[-1])
    return amounts(call.function, element=planes * height * width, row=planes * height, call=1)


def _folded(call: CCall, _: Sizes) -> Amounts:
    planes, _padding, _height, _width, *sizes = _numbers(call.arguments[-1])
    return amounts(
        call.function, element=planes * math.prod(sizes[:4]), row=planes * math.prod(sizes[2:4]), call=1
    )


def _shared_out(call: CCall, _: Sizes) -> Amounts:
    """Windows that may overlap by a row and a column."""
    planes, _padding, height, width, down, across, *_rest = _numbers(call.arguments[-1])
    rows, columns = (
        sum(-(-(at + 1) * size // made) - at * size // made for at in range(made))
        for size, made in ((height, down), (width, across))
    )
    return amounts(
        call.function,
        element=planes * rows * columns,
        row=planes * rows * across,
        window=planes * down * across,
    )


def _drawn(call: CCall, _: Sizes) -> Amounts:
    """For the first time, or once more."""
    return amounts("poet_bernoulli", element=_whole(call, 2), call=1)


def _transfer(call: CCall, sizes_bytes: Sizes) -> Amounts:
    """Words of what is copied."""
    names = [str(item)[1:] for item in call.arguments if str(item).startswith("@")]
    size_bytes = sizes_bytes[names[0]] if names else _whole(call, -1)
    return amounts(call.function, word=-(-size_bytes // WORD_BYTES), call=1)


def _move(call: CCall, _: Sizes) -> Amounts:
    """Words; newlib's memmove copies byte by byte, backward, to a place that begins inside the tensor."""
    to, begin, size_bytes = (_whole(call, place) for place in (1, 2, 3))
    words = -(-size_bytes // WORD_BYTES)
    what = "backward" if begin < to < begin + words else "word"
    return amounts(call.function, **{what: words}, call=1)


TRANSFERS = ("home_in", "home_out", "page_in", "page_out", "move", "restore")
_BY_LAST = (
    "absolute", "add", "add_scalar", "assign", "both_masks", "bounded", "compared", "compared_to",
    "copy", "count_up", "div", "div_count", "div_scalar", "fill", "fill_bits", "fill_mask",
    "floats_of_mask", "floats_of_numbers", "floor", "hardshrink",
    "hardsigmoid", "hardsigmoid_backward", "hardswish", "hardswish_backward", "hardtanh",
    "hardtanh_backward", "inverse", "inverse_root", "leaky_relu", "leaky_relu_backward",
    "masked_fill", "maximum", "minimum", "momentum", "mul", "mul_mask", "mul_scalar", "not",
    "numbers_compared_to", "power_of_quarters", "shrink_backward", "softshrink", "threshold",
    "prelu", "prelu_backward", "relu", "root", "sigmoid_backward", "sign", "tanh_backward",
    "threshold_backward", "where",
)  # fmt: skip
"""Functions of elements whose last argument says how many."""
_BY_VALUE = (
    "cosine", "elu", "elu_backward", "exponential", "gelu", "gelu_backward", "gelu_tanh",
    "gelu_tanh_backward", "glu", "glu_backward", "log_sigmoid", "log_sigmoid_backward", "logarithm", "mish",
    "powers_of_number",
    "mish_backward", "sigmoid", "silu", "silu_backward", "sine", "softplus", "softplus_backward", "tanh",
)  # fmt: skip
"""Likewise; what an element takes depends on its value, so that calls are not told from elements."""

_RULES: dict[str, Rule] = {
    **{f"poet_{name}": _elements() for name in _BY_LAST},
    **{f"poet_{name}": _values for name in _BY_VALUE},
    **dict.fromkeys(("poet_conv2d", "poet_conv2d_backward_input"), _convolution),
    "poet_conv2d_scatter": lambda call, _: windows.scatter(_numbers(call.arguments[-1])),
    "poet_conv2d_backward_weight": _convolution_weight,
    **dict.fromkeys(("poet_matmul", "poet_matmul_images"), _product),
    "poet_matmul_gradient": _product_gradient,
    "poet_matmul_gradient_narrow": _product_narrow,
    **dict.fromkeys(
        ("poet_batch_norm", "poet_batch_norm_backward", "poet_batch_norm_fixed", "poet_norm_relu",
         "poet_norm_relu_backward"),
        _batch_norm,
    ),
    "poet_group_norm": _group_norm,
    "poet_group_norm_backward": _group_norm,
    "poet_group_norm_gradients": _group_norm,
    "poet_layer_norm": _layer_norm,
    "poet_layer_norm_backward": _layer_norm,
    "poet_layer_norm_gradients": _layer_norm,
    "poet_pad2d": _padding,
    **dict.fromkeys(
        ("poet_avg_pool2d", "poet_avg_pool2d_backward"),
        lambda call, _: windows.avg_pool(call.function, _numbers(call.arguments[-1])),
    ),
    "poet_max_pool2d": lambda call, _: windows.max_pool(_numbers(call.arguments[-1])),
    "poet_max_pool2d_backward": _max_pool_backward,
    **dict.fromkeys(("poet_upsample", "poet_upsample_backward"), _upsample),
    "poet_sum_blocks": _sums,
    "poet_channel_sums": _channel_sums,
    "poet_sum_apart": _sum_apart,
    "poet_add_channels": _rows(2, 3, n=4),
    **dict.fromkeys(("poet_log_softmax", "poet_softmax", "poet_lengths"), _rows(2, 4, n=3)),
    **dict.fromkeys(("poet_log_softmax_backward", "poet_softmax_backward"), _rows(3, 5, n=4)),
    "poet_nll_loss": lambda call, _: amounts(call.function, row=_whole(call, 4) * _whole(call, 6), call=1),
    "poet_nll_loss_backward": _rows(4, 6, n=5),
    "poet_mse_loss": _elements(3),
    "poet_mse_loss_backward": _elements(4),
    **dict.fromkeys(
        ("poet_bce", "poet_bce_with_logits"), lambda call, _: amounts(call.function, element=_whole(call, 3))
    ),
    "poet_bce_backward": _elements(4),
    **dict.fromkeys(("poet_gather", "poet_scatter_add"), _picked),
    "poet_first_of": _first_of,
    **dict.fromkeys(("poet_sum_up", "poet_log_sum_exp"), _rows(-3, -1, n=-2)),
    "poet_flip": _rows(2, 3, n=4),
    **dict.fromkeys(("poet_pad_edges", "poet_pad_edges_backward"), _borders),
    **dict.fromkeys(("poet_resize", "poet_resize_backward"), _resized),
    **dict.fromkeys(("poet_unfold", "poet_fold"), _folded),
    **dict.fromkeys(("poet_adaptive_avg_pool2d", "poet_adaptive_avg_pool2d_backward"), _shared_out),
    **dict.fromkeys(("poet_weight_norm", "poet_weight_norm_backward"), _rows(-2, n=-1)),
    **dict.fromkeys(("poet_embedding", "poet_embedding_backward"), _rows(3, n=5)),
    **dict.fromkeys(("poet_extreme", "poet_extreme_at"), _rows(-3, -1, n=-2)),
    "poet_scatter_at": lambda call, _: amounts(
        call.function, element=math.prod(_whole(call, place) for place in (3, 4, 5)), call=1
    ),
    "poet_variance": _variance,
    "poet_count_set": _rows(2, 4, n=3),
    "poet_triangle": _rows(4, 5, n=6),
    **dict.fromkeys(("poet_bernoulli", "poet_bernoulli_again"), _drawn),
    **dict.fromkeys(("poet_random_place", "poet_count"), lambda call, _: amounts(call.function, call=1)),
    "poet_power": _power,
    "poet_sgd": _sgd,
    "poet_adamw": _adamw,
    **dict.fromkeys(TRANSFERS, _transfer),
    "move": _move,
}  # fmt: skip
