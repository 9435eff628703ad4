"""Rows of a report: a record becomes rows once; text, JSON and pages are renderings of them.

A row is a mapping, which JSON takes as it is, or a record. A `Column` says what of a row a table shows, and
in which unit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.table import Table

from poet.util.units import format_bytes, format_joules, format_seconds, format_share

DASH = "–"
"""Of a page's cell without a value."""
_ROUNDING = 1e-12  # shares below this are what sums of floats leave
_LEAST_SHARE = 1e-4  # of a column that compares many: what is less is marked as less


def format_share_of_many(part: float) -> str:
    """A share in per cent of what is one among many: the smallest need not be distinguished."""
    tiny = _ROUNDING < abs(part) < _LEAST_SHARE
    return f"< {format_share(_LEAST_SHARE)}" if tiny else _share(part)


def _share(part: float) -> str:
    return format_share(part if abs(part) > _ROUNDING else 0.0)


def _count(number: float) -> str:
    if math.isinf(number):
        return "unlimited"
    return f"{number:,.0f}" if number >= 1000 else f"{number:.4g}"


FORMATS: Mapping[str, Callable[[Any], str]] = {
    "": str,
    "B": format_bytes,
    "s": format_seconds,
    "J": format_joules,
    "%": _share,
    "<%": format_share_of_many,
    "n": _count,
    "right": str,
}
"""By unit: text, bytes, seconds, joules, a share, one of many shares, a number, text flush right."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table.

    Attributes:
        heading: of it.
        value: the key or attribute of a row, or a function of it; no value is an empty cell.
        unit: of `FORMATS`; amounts are flush right.
        shown: what is shown of a row in place of the value in its unit.
        sparse: nothing is shown of 0.
        choice: a page's table can be filtered by its values.
        code: holds names as they stand in a model.
        note: holds sentences, which stand below a row's first cell in a page.
        hidden: is filtered by in a page and not shown.
    """

    heading: str
    value: str | Callable[[Any], Any]
    unit: str = ""
    shown: Callable[[Any], str] | None = None
    sparse: bool = False
    choice: bool = False
    code: bool = False
    note: bool = False
    hidden: bool = False

    def of(self, row: Any) -> Any:
        """The value of ``row``."""
        if callable(self.value):
            return self.value(row)
        return row[self.value] if isinstance(row, Mapping) else getattr(row, self.value)

    def text(self, row: Any, *, nothing: str = "") -> str:
        """The value for people; ``nothing`` where there is none."""
        value = self.of(row)
        if value is None or (self.sparse and not value):
            return nothing
        return FORMATS[self.unit](value) if self.shown is None else self.shown(row)


def table(rows: Iterable[Any], *columns: Column, left: int = 1) -> Table:
    """A table of text without lines; amounts are flush right, and all but the first ``left`` columns."""
    made = headed(*(column.heading for column in columns), left=left)
    for row in rows:
        made.add_row(*(column.text(row) for column in columns))
    return made


def headed(*headings: str, left: int = 1) -> Table:
    """An empty table without lines; all but the first ``left`` columns are flush right."""
    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for index, heading in enumerate(headings):
        made.add_column(heading, justify="left" if index < left else "right", overflow="fold")
    return made


def listed(rows: Iterable[Sequence[str]], *headings: str, left: int = 1) -> Table:
    """A table of cells that are text."""
    made = headed(*headings, left=left)
    for row in rows:
        made.add_row(*row)
    return made


def page_table(
    rows: Iterable[Any], *columns: Column, sort: int | None = None, noun: str = "rows"
) -> dict[str, Any]:
    """The same for a page: amounts as numbers to sort by, with their text.

    ``sort`` is the column that orders it at first, largest on top.
    """

    def cell(column: Column, row: Any) -> Any:
        text = column.text(row, nothing=DASH)
        return text if column.unit in ("", "right") else (column.of(row), text)

    flags = ("choice", "code", "note", "hidden")
    return {
        "columns": [
            {"heading": column.heading, "numeric": bool(column.unit)}
            | {flag: getattr(column, flag) for flag in flags}
            for column in columns
        ],
        "rows": [[cell(column, row) for column in columns] for row in rows],
        "sort": sort,
        "noun": noun,
    }
