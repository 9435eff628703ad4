"""Steps of a sweep that wait for their data, as rows of a table and a chart."""

from __future__ import annotations

from collections.abc import Iterator

from poet.report.html.charts import QUIET, WARNING, Spec, bars
from poet.report.html.points import series_labels
from poet.report.html.tables import DASH
from poet.units import format_bytes, format_joules, format_seconds, format_share, scale_of
from poet.whatif.result import WhatIf


def stall_rows(result: WhatIf) -> Iterator[dict[str, str]]:
    """Data stalls, in words."""
    labels = series_labels(result)
    for stall in result.stalls:
        point = result.points[stall.point]
        yield {
            "setting": labels[point.setting],
            "ram": format_bytes(point.limits.ram_budget_bytes or 0),
            "bound": stall.bound_by,
            "plan": format_seconds(stall.plan_seconds),
            "step": format_seconds(stall.step_seconds),
            "fetch": format_seconds(stall.fetch_seconds),
            "prepare": format_seconds(stall.prepare_seconds),
            "stall": format_seconds(stall.stall_seconds),
            "flash": format_seconds(stall.flash_seconds),
            "joules": format_joules(stall.stall_joules),
            "cached": DASH
            if stall.cached_step_seconds is None or stall.cached_share is None
            else f"{format_seconds(stall.cached_step_seconds)}, {format_share(stall.cached_share)} held",
        }


def stall_chart(result: WhatIf) -> Spec | None:
    """Seconds of a step with its data: of the plan, and waiting; ``None``: data were not asked about."""
    if not result.stalls:
        return None
    labels = series_labels(result)
    factor, unit = scale_of(max(stall.step_seconds for stall in result.stalls), "s")
    rows = []
    for stall in result.stalls:
        point = result.points[stall.point]
        name = f"{labels[point.setting]}, {format_bytes(point.limits.ram_budget_bytes or 0)}"
        for series, seconds in (
            ("the plan", stall.step_seconds - stall.stall_seconds),
            ("waiting for data", stall.stall_seconds),
        ):
            text = f"{series}: {format_seconds(seconds)} of {format_seconds(stall.step_seconds)}"
            rows.append({"name": name, "series": series, "amount": seconds / factor, "text": text})
    return bars(rows, title=f"step ({unit})", colours={"the plan": QUIET, "waiting for data": WARNING})
