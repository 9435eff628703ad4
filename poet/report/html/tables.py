"""Tables that a page's script sorts, filters and pages through."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from poet.units import format_bytes, format_joules, format_seconds, format_share

Cell = str | tuple[float | None, str]
"""Text, or a number to sort by and the text to show."""


@dataclass(frozen=True, slots=True)
class TableColumn:
    """A column of a table.

    Attributes:
        heading: of the column.
        numeric: its cells are numbers with their text; it is flush right.
        choice: the table can be filtered by its values.
        code: holds names as they stand in a model.
        note: holds sentences, which stand below the row's first cell.
        hidden: is filtered by and not shown.
    """

    heading: str
    numeric: bool = False
    choice: bool = False
    code: bool = False
    note: bool = False
    hidden: bool = False


@dataclass(frozen=True, slots=True)
class TableData:
    """Columns and rows; ``sort`` is the column that orders it at first, largest on top."""

    columns: Sequence[TableColumn]
    rows: Sequence[Sequence[Cell]]
    sort: int | None = None
    noun: str = "rows"

    def to_data(self) -> dict[str, Any]:
        """JSON-ready form."""
        return {
            "columns": [dataclasses.asdict(column) for column in self.columns],
            "rows": [list(row) for row in self.rows],
            "sort": self.sort,
            "noun": self.noun,
        }


DASH = "–"

ROUNDING = 1e-12
"""Shares below this are what sums of floats leave."""

LEAST_SHARE = 1e-4
"""Of a column that compares many: what is less is marked as less."""


def size(size_bytes: float | None) -> Cell:
    """A cell in bytes."""
    return (size_bytes, DASH if size_bytes is None else format_bytes(size_bytes))


def energy(joules: float | None) -> Cell:
    """A cell in joules."""
    return (joules, DASH if joules is None else format_joules(joules))


def duration(seconds: float | None) -> Cell:
    """A cell in seconds."""
    return (seconds, DASH if seconds is None else format_seconds(seconds))


def share(part: float | None) -> Cell:
    """A cell in per cent."""
    return (part, DASH if part is None else format_share(part if abs(part) > ROUNDING else 0.0))


def small_share(part: float | None) -> Cell:
    """A cell in per cent of what is one among many: the smallest need not be distinguished."""
    tiny = part is not None and ROUNDING < abs(part) < LEAST_SHARE
    return (part, f"< {format_share(LEAST_SHARE)}") if tiny else share(part)


def count(number: float | None) -> Cell:
    """A cell with a plain number."""
    if number is None or math.isinf(number):
        return (number, DASH if number is None else "unlimited")
    return (number, f"{number:,.0f}" if number >= 1000 else f"{number:.4g}")
