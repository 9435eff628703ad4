"""How much work the C kernels with windows have: convolutions, both ways back through them, pooling."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

Amounts = dict[tuple[str, str], float]
"""How often a C function does each of the things that cost something: by function and thing."""


def amounts(function: str, **counts: float) -> Amounts:
    """Of one function."""
    return {(function, what): count for what, count in counts.items()}


def added(*parts: Amounts, times: float = 1.0) -> Amounts:
    """The sum of ``parts``, ``times`` over."""
    total: Amounts = {}
    for part in parts:
        for key, count in part.items():
            total[key] = total.get(key, 0.0) + times * count
    return total


class _Sizes(NamedTuple):
    """In the order of a ``poet_plane``."""

    height: int
    width: int
    out_height: int
    out_width: int
    kernel_height: int
    kernel_width: int
    stride_y: int
    stride_x: int
    pad_y: int
    pad_x: int
    dilation_y: int
    dilation_x: int


def _inside(count: int, stride: int, pad: int, taps: int, dilation: int, size: int) -> list[int]:
    """For each of ``count`` places along an axis, how many taps lie inside."""
    lefts = (place * stride - pad for place in range(count))
    return [sum(0 <= left + tap * dilation < size for tap in range(taps)) for left in lefts]


def _first_place(distance: int, stride: int, limit: int) -> int:
    return min(limit, 0 if distance <= 0 else -(-distance // stride))


class Plane(_Sizes):
    """A ``poet_plane``, and which way the kernels go through it."""

    @cached_property
    def rows_inside(self) -> list[int]:
        """Of the kernel, for each row of places."""
        return _inside(
            self.out_height, self.stride_y, self.pad_y, self.kernel_height, self.dilation_y, self.height
        )

    @cached_property
    def columns_inside(self) -> list[int]:
        """Likewise."""
        return _inside(
            self.out_width, self.stride_x, self.pad_x, self.kernel_width, self.dilation_x, self.width
        )

    @property
    def taps(self) -> int:
        return self.kernel_height * self.kernel_width

    @property
    def places(self) -> int:
        return self.out_height * self.out_width

    @property
    def multiply_adds(self) -> int:
        """Inside the image."""
        return sum(self.rows_inside) * sum(self.columns_inside)

    @property
    def rolls(self) -> bool:
        """As ``poet_rolls``."""
        by_1 = (
            self.stride_x == 1 and 0 <= self.pad_x <= 1 and self.out_width == self.width + 2 * self.pad_x - 2
        )
        by_2 = self.stride_x == 2 and self.pad_x == 0 and 2 * self.out_width <= self.width
        return (
            (self.kernel_height, self.kernel_width, self.dilation_y, self.dilation_x) == (3, 3, 1, 1)
            and (by_1 or by_2)
            and 0 <= self.pad_y <= 1
            and (self.out_height - 1) * self.stride_y + 2 <= self.height + self.pad_y
        )

    @property
    def gathers(self) -> bool:
        """As ``poet_gathers``."""
        return (
            self[4:] == (3, 3, 2, 2, 0, 0, 1, 1)
            and 2 * self.out_width <= self.width
            and 2 * self.out_height <= self.height
        )

    @property
    def is_wide_4(self) -> bool:
        """Whether all columns of four taps, or of several fours, lie inside."""
        reach = (self.out_width - 1) * self.stride_x + self.kernel_width
        return self.kernel_width % 4 == 0 and (self.dilation_x, self.pad_x) == (1, 0) and reach <= self.width

    @property
    def middle(self) -> int:
        """How many places of a row have all three columns of a kernel inside."""
        first = _first_place(self.pad_x, self.stride_x, self.out_width)
        return max(0, _first_place(self.width + self.pad_x - 2, self.stride_x, self.out_width) - first)

    def rolling(self, what: str) -> Amounts:
        """Windows of 3 x 3 that roll, ``what``: the way there, or for gradients."""
        if self.stride_x != 1:
            return amounts(f"poet_{what}rows_of_3x3_by_2", place=self.places, row=self.out_height)
        pairs = self.rows_inside.count(3) // 2 if self.stride_y == 1 else 0
        single = self.out_height - 2 * pairs
        return added(
            amounts(f"poet_{what}pairs_of_3x3", place=pairs * self.out_width, pair=pairs),
            amounts(f"poet_{what}rows_of_3x3", place=single * self.out_width, row=single),
        )


def taps(p: Plane, *, is_turned: bool) -> Amounts:
    """Of ``poet_taps`` for one plane through one kernel."""
    if p.rolls:
        return added(p.rolling(""), amounts("poet_taps_3x3", plane=1))
    if (p.taps, p.pad_x, p.pad_y) == (1, 0, 0):
        return amounts("poet_tap_of_1x1", place=p.places, row=p.out_height, plane=1)
    around = amounts("poet_taps_by_row", row=p.out_height, plane=1)
    if p.is_wide_4 and p.kernel_width == 4 and not is_turned:
        rows = sum(p.rows_inside) * p.out_width
        return added(around, amounts("poet_taps_of_rows_of_4", place=p.places, row=rows, call=p.out_height))
    is_wide_3 = p.kernel_width == 3 and p.dilation_x == 1 and p.middle > 0
    first = _first_place(p.pad_x, p.stride_x, p.out_width)
    sides = [*p.columns_inside[:first], *p.columns_inside[first + p.middle :]]
    parts = [around]
    for rows in set(p.rows_inside):
        lines = p.rows_inside.count(rows)
        if is_wide_3 and rows in (2, 3):
            middle = amounts(f"poet_taps_of_{rows}x3", place=p.middle, row=1)
            parts.append(added(middle, _by_place(p, rows, sides), times=lines))
        else:
            parts.append(added(_by_place(p, rows, p.columns_inside), times=lines))
    return added(*parts)


def _by_place(p: Plane, rows: int, columns: Sequence[int]) -> Amounts:
    """Places that are not alike: each finds its own taps."""
    return amounts(
        "poet_taps_of_row",
        multiply_add=rows * sum(columns),
        row=rows * len(columns),
        place=len(columns),
        outside=p.kernel_width * len(columns) - sum(columns),
        call=1,
    )


def conv2d(function: str, record: Sequence[int]) -> Amounts:
    """``poet_conv2d``, or the way back to its input with strides of 1, whose plane is turned."""
    images, groups, ins, outs = record[:4]
    p, is_turned = Plane(*record[4:]), function != "poet_conv2d"
    made = images * groups * (ins if is_turned else outs)
    own = amounts(function, element=made * p.places, plane=made, call=1)
    return added(own, added(taps(p, is_turned=is_turned), times=images * groups * ins * outs))


def scatter(record: Sequence[int]) -> Amounts:
    """``poet_conv2d_scatter``."""
    images, groups, ins, outs = record[:4]
    p = Plane(*record[4:])
    made = images * groups * ins
    own = amounts("poet_conv2d_scatter", element=made * p.height * p.width, plane=made, call=1)
    if p.gathers:
        each = amounts("poet_gather_3x3", place=p.places, row=p.out_height, plane=1)
    else:
        rows = sum(p.rows_inside) * p.kernel_width
        each = amounts("poet_scatter_taps", multiply_add=p.multiply_adds, row=rows, tap=p.taps, plane=1)
    return added(own, added(each, times=images * groups * ins * outs))


def weight(record: Sequence[int]) -> tuple[Amounts, int, int]:
    """``poet_conv2d_backward_weight``; how often it hands on elements, and how many."""
    images, groups, ins, outs = record[:4]
    p = Plane(*record[4:])
    kernels, rows = groups * ins * outs, sum(p.rows_inside)
    if p.rolls:
        n, each = 9, added(p.rolling("gradient_"), amounts("poet_gradients_3x3", plane=1))
    else:
        is_3 = p.kernel_width == 3 and p.dilation_x == 1
        n = 4 if p.is_wide_4 else 3 if is_3 else 1
        across = p.kernel_width // n
        if n == 4:
            made = amounts("poet_gradients_of_4", place=rows * across * p.out_width, row=rows * across)
        elif n == 3:
            beside = p.out_width - p.middle
            made = amounts("poet_gradients_of_3", place=rows * p.middle, side=rows * beside, row=rows)
        else:
            made = amounts("poet_tap_gradient", multiply_add=p.multiply_adds, row=rows * across)
        looked = p.out_height * p.taps // n
        each = added(made, amounts("poet_gradients_of_taps", row=looked, call=p.taps // n))
    handed = kernels * p.taps // n
    own = amounts("poet_conv2d_backward_weight", part=handed, image=handed * images, call=1)
    return added(own, added(each, times=kernels * images)), handed, kernels * p.taps


def avg_pool(function: str, record: Sequence[int]) -> Amounts:
    """``poet_avg_pool2d``, and the way back."""
    planes, p = record[0], Plane(*record[2:])
    is_back = function != "poet_avg_pool2d"
    rows = sum(p.rows_inside) * p.out_width
    each = amounts(function, place=p.multiply_adds, row=rows, window=p.places, plane=1)
    zeros = amounts(function, element=p.height * p.width) if is_back else {}
    return added(each, zeros, times=planes)


def max_pool(record: Sequence[int]) -> Amounts:
    """``poet_max_pool2d``."""
    planes, p = record[0], Plane(*record[2:])
    outside = p.places * p.taps - p.multiply_adds
    each = amounts("poet_max_pool2d", place=p.multiply_adds, outside=outside, window=p.places, plane=1)
    return added(each, times=planes)
