"""``--compare``: the answer with the literature's planners beside it."""

from __future__ import annotations

from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from poet import codec
from poet.baselines.comparison import Comparison
from poet.plans.plan_parts import MeasuredShare, PriceRange
from poet.problem import Problem
from poet.report.compare import comparison_data, comparison_report
from poet.solution import Solution, solution_to_json


def report_with(report: RenderableType, comparison: Comparison | None) -> RenderableType:
    """``report``, followed by the comparison where there is one."""
    return report if comparison is None else Group(report, Text(), comparison_report(comparison))


def json_with(
    problem: Problem,
    solution: Solution,
    comparison: Comparison | None,
    price_range: PriceRange | None = None,
    measured: MeasuredShare | None = None,
) -> dict[str, Any]:
    """The ``--json`` answer, with the comparison where there is one, and the range of what a step takes."""
    data = solution_to_json(problem, solution)
    if measured is not None:
        data["measured"] = codec.encode(measured)
    if price_range is not None:
        data["range"] = codec.encode(price_range)
    return data if comparison is None else {**data, "comparison": comparison_data(comparison)}
