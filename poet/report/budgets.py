"""The other budgets that a plan file has plans for, in lines and as data."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from poet.plans.training_plan import Plan
from poet.units import format_bytes, format_joules, format_seconds


def budget_rows(plan: Plan, says: str = "") -> Iterator[tuple[str, str]]:
    """Title and text of each row; none where a plan has one budget."""
    for other in plan.budgets:
        yield (
            f"in {format_bytes(other.request.limits.ram_budget_bytes or 0)}",
            f"{format_joules(other.step_joules)}, {format_seconds(other.step_seconds)}, "
            f"{format_bytes(other.step_peak_ram_bytes)} at the peak, "
            f"{other.trace.recomputed_runs} recomputed runs, {format_bytes(other.step_written_bytes)} out, "
            f"{says}{other.outcome.status}",
        )


def budget_data(plan: Plan) -> list[dict[str, Any]] | None:
    """The same as JSON-ready objects."""
    if not plan.budgets:
        return None
    return [
        {
            "ram_budget_bytes": other.request.limits.ram_budget_bytes,
            "joules": other.step_joules,
            "seconds": other.step_seconds,
            "peak_ram_bytes": other.step_peak_ram_bytes,
            "recomputed_runs": other.trace.recomputed_runs,
            "written_bytes": other.step_written_bytes,
            "status": other.outcome.status,
        }
        for other in plan.budgets
    ]
