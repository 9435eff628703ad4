"""A program in whole numbers, for an engine that takes nothing else, and why its bound holds.

A plan is a point x of 0s and 1s with A x ≤ b and cost c·x. The integer program keeps every such x
and never charges it more than its cost:

* a row of whole factors is divided by their common divisor g and its right side rounded down: for
  whole x, Σ (a/g)·x is whole, so nothing is cut off;
* any other row is multiplied by a power of two (exact in floating point), its factors rounded down
  and its right side up: as x ≥ 0, Σ ⌊a⌋·x ≤ Σ a·x ≤ b ≤ ⌈b⌉;
* the objective's factors are multiplied by a power of two, ``scale``, and rounded down: as x ≥ 0,
  Σ ⌊scale·c⌋·x ≤ scale·c·x.

So the integer optimum, and with it every lower bound on it, is at most ``scale`` times the optimum;
dividing by a power of two is exact again. What rounding loses is less than one per term. A point of
the integer program may break a rounded row by as little; the judge sees to that.

A column that is not 0 or 1 in every plan (a sum of bytes kept, as a share of the budget) counts
units of the common divisor of the bytes. Its defining rows bound it from below by whole units, so
rounding a solution's value down to whole units breaks none of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from poet.solvers.engines.matrix import Matrix, MatrixBuilder

_LARGEST_SUM = 2.0**52  # of a row or the objective: exact as a double, far from overflow in the engine
_ROW_PRECISION = 2.0**30  # to which rows of real numbers are rounded, relative to their sum


class NotWhole(Exception):
    """The model has a column that no whole number stands for."""


@dataclass(frozen=True, slots=True)
class IntegerProgram:
    """Minimise ``costs`` over whole columns from 0 to ``largest`` within ``rows``.

    Attributes:
        largest: per column; 1 but for sums of bytes.
        costs: (column, factor) pairs.
        rows: (columns, factors, right side) of Σ factor·column ≤ right side.
        scale: units of the objective per joule, a power of two.
        constant_joules: what the objective adds to the scaled sum.
    """

    largest: tuple[int, ...]
    costs: tuple[tuple[int, int], ...]
    rows: tuple[tuple[tuple[int, ...], tuple[int, ...], int], ...]
    scale: float
    constant_joules: float

    def joules(self, units: float) -> float:
        """Of a value of the integer objective."""
        return units / self.scale + self.constant_joules

    def whole(self, values: Sequence[float]) -> list[int]:
        """Column values of the model as those of this program."""
        pairs = zip(values, self.largest, strict=True)
        return [max(0, min(round(value * most), most)) for value, most in pairs]

    def values(self, whole: Sequence[int]) -> tuple[float, ...]:
        """And back."""
        return tuple(value / most for value, most in zip(whole, self.largest, strict=True))

    def matrix(self) -> Matrix:
        """For an engine of real numbers: each row's largest factor is 1, the objective is in units."""
        builder = MatrixBuilder()
        costs = dict(self.costs)
        for column, most in enumerate(self.largest):
            builder.column(float(costs.get(column, 0) * most), integer=most == 1)
        for columns, factors, right in self.rows:
            sized = [float(f * self.largest[c]) for c, f in zip(columns, factors, strict=True)]
            unit = max(map(abs, sized), default=0.0) or 1.0
            builder.row([(f / unit, c) for c, f in zip(columns, sized, strict=True)], right / unit)
        return builder.matrix()

    def to_json(self) -> dict[str, Any]:
        """What a child process is sent."""
        return {"largest": self.largest, "costs": self.costs, "rows": self.rows}


def integer_program(matrix: Matrix, *, absolute_joules: float) -> IntegerProgram:
    """``matrix`` in whole numbers, its objective to a tenth of ``absolute_joules`` where that can be had.

    Raises:
        NotWhole: a column that is not 0 or 1 has different factors in different rows.
    """
    rows = [(columns, factors, right) for columns, factors, right in matrix.by_row() if columns]
    shares = _shares(matrix, rows)
    largest = [1] * len(matrix.costs)
    units: dict[int, float] = {}  # bytes per unit of the column
    for column, (factor, unit) in shares.items():
        largest[column], units[column] = max(1, math.floor(factor / unit)), unit
    whole_rows = tuple(_whole_row(columns, factors, right, units) for columns, factors, right in rows)
    terms = [(column, cost) for column, cost in enumerate(matrix.costs.tolist()) if cost]
    scale = _objective_scale([cost for _, cost in terms], absolute_joules)
    costs = tuple((column, math.floor(scale * cost)) for column, cost in terms)
    return IntegerProgram(tuple(largest), costs, whole_rows, scale, matrix.offset)


def _objective_scale(costs: list[float], absolute_joules: float) -> float:
    """A power of two: fine enough that rounding every term loses a tenth of the gap at most."""
    total = sum(abs(cost) for cost in costs)
    if not total:
        return 1.0
    coarsest = _LARGEST_SUM / total
    wanted = 10.0 * len(costs) / absolute_joules if absolute_joules > 0.0 else coarsest
    return 2.0 ** math.floor(math.log2(min(max(wanted, 2.0**20 / total), coarsest)))


_Row = tuple[list[int], list[float], float]


def _shares(matrix: Matrix, rows: list[_Row]) -> dict[int, tuple[float, float]]:
    """Per column that is a sum of bytes: its factor, and the bytes of which all others are multiples."""
    loose = {number for number, whole in enumerate(matrix.whole.tolist()) if not whole}
    factors: dict[int, set[float]] = {number: set() for number in loose}
    divisor = 0
    for columns, row_factors, _ in rows if loose else ():
        if loose.isdisjoint(columns):
            continue
        for column, factor in zip(columns, row_factors, strict=True):
            if column in loose:
                factors[column].add(abs(factor))
            elif not factor.is_integer():
                raise NotWhole
            else:
                divisor = math.gcd(divisor, int(factor))
    if any(len(found) > 1 for found in factors.values()):
        raise NotWhole
    return {column: (found.pop(), float(divisor or 1)) for column, found in factors.items() if found}


def _whole_row(
    columns: list[int], factors: list[float], right: float, units: dict[int, float]
) -> tuple[tuple[int, ...], tuple[int, ...], int]:
    pairs = zip(columns, factors, strict=True)
    terms = {c: math.copysign(units[c], f) if c in units else f for c, f in pairs}
    if all(factor.is_integer() for factor in terms.values()):
        divisor = math.gcd(*(int(factor) for factor in terms.values()))
        quotients = tuple(int(factor) // divisor for factor in terms.values())
        descends = any(column in units and factor < 0 for column, factor in terms.items())
        whole_right = math.ceil(right / divisor) if descends else math.floor(right / divisor)
        return tuple(terms), quotients, whole_right
    total = sum(abs(factor) for factor in terms.values()) + abs(right)
    scale = 2.0 ** math.floor(math.log2(_ROW_PRECISION / total))
    return tuple(terms), tuple(math.floor(scale * f) for f in terms.values()), math.ceil(scale * right)
