"""``poet diff --html``: the page about what changed from one plan to another."""

from __future__ import annotations

from poet.report.diff import PlanDiff, format_amount, format_change, headline, moves_by_kind
from poet.report.html.charts import ACCENT, QUIET, ladder
from poet.report.html.page import PageContent, render
from poet.report.html.tables import TableColumn, TableData, size
from poet.units import format_bytes, scale_of

CHARTED = ("energy", "time", "RAM at the peak")


def diff_page(diff: PlanDiff, *, command: str = "") -> str:
    """The page as text.

    Raises:
        InputError: the packages of the extra ``report`` are not there.
    """
    columns = (
        TableColumn("tensor", code=True),
        TableColumn("role", choice=True),
        TableColumn("size", numeric=True),
        TableColumn("was", choice=True),
        TableColumn("is", choice=True),
        TableColumn(f"in {diff.before}"),
        TableColumn(f"in {diff.after}"),
    )
    rows = [
        (m.tensor, m.role, size(m.bytes), m.before, m.after, m.before_words, m.after_words)
        for m in diff.moves
    ]
    context = {
        "title": f"{diff.before} and {diff.after}",
        "headline": f"{headline(diff)}.",
        "diff": diff,
        "changes": [
            (c.what, format_amount(c.before, c.unit), format_amount(c.after, c.unit), format_change(c))
            for c in diff.changes
        ],
        "kinds": [
            (before, after, number, format_bytes(bytes_))
            for before, after, number, bytes_ in moves_by_kind(diff)
        ],
        "charts": [f"change-{number}" for number in range(len(CHARTED))],
        "charted": CHARTED,
        "commands": [("this page", command)] if command else [],
    }
    charts = {f"change-{number}": _chart(diff, what) for number, what in enumerate(CHARTED)}
    tables = {"moves": TableData(columns, rows, sort=2, noun="tensors")}
    return render("diff.html", PageContent(charts, tables), context)


def _chart(diff: PlanDiff, what: str) -> dict[str, object]:
    change = next(change for change in diff.changes if change.what == what)
    amounts = [(diff.before, change.before or 0.0, QUIET), (diff.after, change.after or 0.0, ACCENT)]
    factor, unit = scale_of(max(amount for _, amount, _ in amounts), change.unit)
    return ladder(
        [
            {
                "name": name,
                "amount": amount / factor,
                "text": format_amount(amount, change.unit),
                "colour": colour,
            }
            for name, amount, colour in amounts
        ],
        title=unit,
    )
