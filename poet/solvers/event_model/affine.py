"""Linear expressions over the columns of the event model, and the rows and columns made of them."""

from __future__ import annotations

from dataclasses import dataclass


class Affine:
    """A linear expression over column numbers."""

    __slots__ = ("constant", "terms")

    def __init__(self, constant: float = 0.0, column: int | None = None) -> None:
        self.constant = constant
        self.terms: dict[int, float] = {} if column is None else {column: 1.0}

    def add(self, other: Affine, factor: float = 1.0) -> Affine:
        """Add ``factor`` times ``other`` in place; returns itself."""
        self.constant += factor * other.constant
        for column, coefficient in other.terms.items():
            self.terms[column] = self.terms.get(column, 0.0) + factor * coefficient
        return self


def total(*parts: tuple[float, Affine]) -> Affine:
    """The sum of ``factor * expression``."""
    result = Affine()
    for factor, part in parts:
        result.add(part, factor)
    return result


@dataclass(frozen=True, slots=True)
class Row:
    """``expression <= 0``, named by its family."""

    family: str
    expression: Affine


@dataclass(frozen=True, slots=True)
class Column:
    """A variable between 0 and 1, named by its kind and its indices.

    ``integer``: an engine must choose 0 or 1; ``whole``: it is 0 or 1 in every plan.
    """

    name: str
    integer: bool
    whole: bool = True
