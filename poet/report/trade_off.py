"""A trade-off curve, as text and as data."""

from __future__ import annotations

import math
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from poet.problem import Problem
from poet.report.columns import columns
from poet.solution import TITLES, Status, format_amount, solution_to_json
from poet.trade_off_curve import TradeOff
from poet.units import IN_ORDER, format_gap


def trade_off_report(curve: TradeOff) -> RenderableType:
    """A line per point, and whether they are all."""
    x, y = curve.x, curve.y
    if not curve.points:
        return Text(f"No plan {IN_ORDER} exists inside the limits, or none was found in time.")
    said = f"Every point that no plan {IN_ORDER} dominates" if curve.exact else "A sample of the curve"
    table = columns(TITLES[x], TITLES[y], "bound", "gap", "answer", left=0)
    for point in curve.points:
        table.add_row(
            format_amount(x, point.x),
            format_amount(y, point.y),
            format_amount(y, point.y_bound),
            format_gap(
                point.solution.objective_gap or 0.0,
                optimal=point.solution.status is Status.OPTIMAL,
                confirmed=point.solution.is_confirmed,
            ),
            point.solution.status.word,
        )
    heading = f"{said}: the least {TITLES[y]} for each amount of {TITLES[x]}."
    return Group(Text(heading, style="bold"), Text(), table)


def trade_off_data(problem: Problem, curve: TradeOff) -> dict[str, Any]:
    """JSON-ready; each point is what ``poet solve --json`` gives, without its schedule."""
    points = []
    for point in curve.points:
        data = solution_to_json(problem, point.solution)
        del data["schedule"]
        limit = None if math.isinf(point.x_limit) else point.x_limit
        points.append({"x": point.x, "y": point.y, "y_bound": point.y_bound, "x_limit": limit, **data})
    return {
        "problem": problem.name,
        "x": curve.x.value,
        "y": curve.y.value,
        "exact": curve.exact,
        "points": points,
    }
