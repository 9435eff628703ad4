"""``poet diff --html``: the page about what changed from one plan to another."""

from __future__ import annotations

from poet.report.diff import PlanDiff, change_columns, headline, moves_by_kind, term_columns
from poet.report.html.charts import ACCENT, QUIET, Spec, ladder
from poet.report.html.page import PageContent, render
from poet.report.rows import Column, page_table

CHARTED = ("energy", "time", "RAM at the peak")
_KINDS = (
    Column("was", lambda row: row[0]),
    Column("is", lambda row: row[1] if row[1] != row[0] else f"{row[1]}, another number of times"),
    Column("tensors", lambda row: row[2], "n"),
    Column("bytes", lambda row: row[3], "B"),
)


def diff_page(diff: PlanDiff, *, command: str = "") -> str:
    """The page as text.

    Raises:
        InputError: the packages of the extra ``report`` are not there.
    """
    columns = (
        Column("tensor", "tensor", code=True),
        Column("role", "role", choice=True),
        Column("size", "bytes", "B"),
        Column("was", "before", choice=True),
        Column("is", "after", choice=True),
        Column(f"in {diff.before}", "before_words"),
        Column(f"in {diff.after}", "after_words"),
    )
    charts = {f"change-{number}": _chart(diff, what) for number, what in enumerate(CHARTED)}
    context = {
        "title": f"{diff.before} and {diff.after}",
        "headline": f"{headline(diff)}.",
        "diff": diff,
        "changes": page_table(diff.changes, *change_columns(diff)),
        "terms": page_table(diff.terms, *term_columns(diff)),
        "kinds": page_table(moves_by_kind(diff), *_KINDS),
        "charts": dict(zip(charts, CHARTED, strict=True)),
        "commands": [("this page", command)] if command else [],
    }
    tables = {"moves": page_table(diff.moves, *columns, sort=2, noun="tensors")}
    return render("diff.html", PageContent(charts, tables), context)


def _chart(diff: PlanDiff, what: str) -> Spec:
    change = next(change for change in diff.changes if change.what == what)
    amounts = (diff.before, change.before or 0.0, QUIET), (diff.after, change.after or 0.0, ACCENT)
    return ladder(amounts, unit=change.unit)
