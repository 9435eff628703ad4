"""A table of text: the form that reports share."""

from __future__ import annotations

from rich.table import Table


def columns(*headings: str, left: int = 1) -> Table:
    """An empty table without lines; all but the first ``left`` columns are flush right."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for index, heading in enumerate(headings):
        table.add_column(heading, justify="left" if index < left else "right", overflow="fold")
    return table
