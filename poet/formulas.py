"""Numbers that follow from sizes: found from a few examples, given for other sizes.

The trace of a training step holds numbers that depend on the sizes of its inputs: shapes, strides, bytes,
divisors of means. Where the step was traced for some sizes, each number is told by the simplest formula that
gives it for all of them: a multiple of a product of powers of sizes, or, from three examples on, a sum of
such a multiple and a constant.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

Sizes = tuple[int, ...]
"""One number per size that may vary."""

_POWERS = (0, 1, 2, -1, -2)
_LEAST_FOR_SUMS = 3  # two points lie on every line


@dataclass(frozen=True, slots=True)
class Formula:
    """``constant + factor * product of sizes[i] ** powers[i]``.

    Attributes:
        powers: one per size.
        factor, constant: exact.
        is_float: whether it gives floats.
    """

    powers: tuple[int, ...]
    factor: Fraction
    constant: Fraction
    is_float: bool

    def at(self, sizes: Sizes) -> int | float | None:
        """The number for ``sizes``; ``None``: it is no whole number, and should be one."""
        exact = self.exact(sizes)
        if self.is_float:
            return float(exact)
        return int(exact) if exact.denominator == 1 else None

    def exact(self, sizes: Sizes) -> Fraction:
        """What the formula gives for ``sizes``."""
        return self.constant + self.factor * _product(sizes, self.powers)


def formula_of(values: Sequence[int | float], sizes: Sequence[Sizes]) -> Formula | None:
    """The simplest formula for ``values`` at ``sizes``; ``None``: there is none.

    Args:
        values: one per example, all whole or all floats.
        sizes: of the examples.
    """
    is_float = isinstance(values[0], float)
    if any(isinstance(value, float) != is_float or not math.isfinite(value) for value in values):
        return None
    return _found(tuple(values), tuple(sizes), is_float)


@functools.lru_cache(maxsize=4096)
def _found(values: tuple[int | float, ...], sizes: tuple[Sizes, ...], is_float: bool) -> Formula | None:
    for powers in _every_powers(len(sizes[0])):
        products = [_product(each, powers) for each in sizes]
        for factor, constant in _fits(values, products):
            formula = Formula(powers, factor, constant, is_float)
            if all(formula.at(each) == value for each, value in zip(sizes, values, strict=True)):
                return formula
    return None


@functools.cache
def _every_powers(count: int) -> tuple[tuple[int, ...], ...]:
    """From the simplest on; all but that of the constant."""
    every = itertools.product(_POWERS, repeat=count)
    return tuple(sorted((item for item in every if any(item)), key=lambda item: sum(map(_weight, item))))


def _weight(power: int) -> int:
    return abs(power) if power >= 0 else 3 - power


def _fits(values: Sequence[int | float], products: Sequence[Fraction]) -> Iterator[tuple[Fraction, Fraction]]:
    """Factors and constants that may be meant: floats are roundings of simple numbers."""
    first = Fraction(values[0])
    factor = first / products[0]
    yield factor, Fraction(0)
    yield factor.limit_denominator(1024), Fraction(0)
    if len(values) < _LEAST_FOR_SUMS or len(set(products)) < _LEAST_FOR_SUMS:
        return
    other = next(place for place, product in enumerate(products) if product != products[0])
    slope = (Fraction(values[other]) - first) / (products[other] - products[0])
    yield slope, first - slope * products[0]


def _product(sizes: Iterable[int], powers: Iterable[int]) -> Fraction:
    found = Fraction(1)
    for size, power in zip(sizes, powers, strict=True):
        if power:
            found *= Fraction(size) ** power
    return found
