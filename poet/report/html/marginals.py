"""What each change that a sweep was asked about would buy, as rows of a table and a chart."""

from __future__ import annotations

from collections.abc import Iterator

from poet.report.html.charts import ACCENT, QUIET, Spec, ladder
from poet.report.html.points import series_labels
from poet.report.html.tables import DASH
from poet.units import format_bytes, format_joules, format_seconds
from poet.whatif.result import WhatIf
from poet.whatif.wording import saving_text


def marginal_rows(result: WhatIf) -> Iterator[dict[str, str]]:
    """What each change buys, in words."""
    labels = series_labels(result)
    for marginal in result.marginals:
        point = result.points[marginal.point]
        budget = point.limits.ram_budget_bytes
        yield {
            "from": f"{labels[point.setting]}, {'no budget' if budget is None else format_bytes(budget)}",
            "change": marginal.change,
            "before": format_joules(marginal.joules_before),
            "after": DASH if marginal.joules_after is None else format_joules(marginal.joules_after),
            "seconds": DASH if marginal.seconds_after is None else format_seconds(marginal.seconds_after),
            "saved": DASH if marginal.saved_share is None else saving_text(marginal.saved_share),
            "certain": "yes" if marginal.certain else "within the gaps",
        }


def marginal_chart(result: WhatIf) -> Spec | None:
    """Energy that each change of the chosen point saves; ``None``: none was asked about."""
    rows = [
        {
            "name": marginal.change,
            "amount": max(0.0, 100 * marginal.saved_share),
            "text": saving_text(marginal.saved_share),
            "colour": ACCENT if marginal.certain else QUIET,
        }
        for marginal in result.marginals
        if marginal.saved_share is not None and marginal.point == result.chosen
    ]
    return ladder(rows, title="% of the energy", text_pixels=120) if rows else None
