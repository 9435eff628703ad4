"""Our plan beside the other planners', as text and as data."""

from __future__ import annotations

from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from poet.baselines.comparison import Comparison, Rival
from poet.report.columns import columns
from poet.simulator import Trace
from poet.solution import Status
from poet.units import IN_ORDER, format_bytes, format_joules, format_part, format_seconds

_NO_PLAN = {Status.INFEASIBLE: "none exists", Status.TIMEOUT: "none in time", None: "none found"}
"""What stands in place of an energy."""


def comparison_report(comparison: Comparison) -> RenderableType:
    """A row for ours and one per planner, cheapest first, those without a plan last."""
    ours = comparison.ours
    headings = ("energy", "above", "x ours", "time", "x ours", "RAM", "again", "paged", "search")
    table = columns("planner", *headings)
    if ours.trace is not None:
        table.add_row(
            _name("poet", ours.status), *_figures(ours.trace, comparison), format_seconds(ours.solve_seconds)
        )
    for rival in sorted(comparison.rivals, key=_dearness):
        none = [_NO_PLAN.get(rival.status, ""), *[""] * 7]
        figures = none if rival.trace is None else _figures(rival.trace, comparison)
        table.add_row(_name(rival.name, rival.status), *figures, format_seconds(rival.solve_seconds))
    parts: list[RenderableType] = [
        Text(
            f"planners on the same problem, by the same judge; * at its bound for what it may do, {IN_ORDER}",
            style="bold",
        ),
        table,
    ]
    if comparison.started_from is not None:
        parts.append(
            Text(f"poet's own search ended dearer than {comparison.started_from} and went on from it")
        )
    return Group(*parts)


def comparison_data(comparison: Comparison) -> dict[str, Any]:
    """JSON-ready: per planner its figures and their ratio to ours; ``null`` where there is no plan."""
    return {
        "started_from": comparison.started_from,
        "planners": [_rival_data(rival, comparison) for rival in comparison.rivals],
    }


def _rival_data(rival: Rival, comparison: Comparison) -> dict[str, Any]:
    trace, ours = rival.trace, comparison.ours
    row: dict[str, Any] = {
        "planner": rival.name,
        "status": None if rival.status is None else rival.status.word,
        "solve_seconds": rival.solve_seconds,
    }
    figures = ("joules", "seconds", "peak_ram_bytes", "recomputed_runs", "written_bytes", "read_bytes")
    row |= {figure: None if trace is None else getattr(trace, figure) for figure in figures}
    row["overhead_joules"] = None if trace is None else trace.joules - ours.baseline_joules
    for figure in ("joules", "seconds"):
        row[f"{figure}_ratio"] = _ratio(trace, comparison, figure)
    return row


def _ratio(trace: Trace | None, comparison: Comparison, figure: str) -> float | None:
    ours = comparison.ours.trace
    if trace is None or ours is None or not getattr(ours, figure):
        return None
    return float(getattr(trace, figure) / getattr(ours, figure))


def _figures(trace: Trace, comparison: Comparison) -> list[str]:
    once_joules = comparison.ours.baseline_joules
    above = trace.joules - once_joules
    ratios = [_ratio(trace, comparison, figure) for figure in ("joules", "seconds")]
    energy_ratio, time_ratio = ("" if ratio is None else f"{ratio:.4g}" for ratio in ratios)
    return [
        format_joules(trace.joules),
        format_part(above / once_joules if once_joules else 0.0),
        energy_ratio,
        format_seconds(trace.seconds),
        time_ratio,
        format_bytes(trace.peak_ram_bytes),
        str(trace.recomputed_runs),
        format_bytes(trace.written_bytes + trace.read_bytes),
    ]


def _name(planner: str, status: Status | None) -> str:
    return f"{planner} *" if status is Status.OPTIMAL else planner


def _dearness(rival: Rival) -> float:
    return float("inf") if rival.trace is None else rival.trace.joules
