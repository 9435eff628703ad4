"""Answers that are several plans: other planners beside ours, a survey of RAM budgets, a trade-off curve."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from poet.baselines.comparison import Comparison, Rival
from poet.planning.ram_survey import Survey, TradeOff
from poet.problem import Problem
from poet.problem.solution import TITLES, Solution, Status, format_amount, solution_to_json
from poet.report.rows import Column, listed, table
from poet.util.units import IN_ORDER, format_bytes, format_gap, format_joules, format_part, format_seconds

# --- other planners ---------------------------------------------------------------------------

_NO_PLAN = {Status.INFEASIBLE: "none exists", Status.TIMEOUT: "none in time", None: "none found"}
"""What stands in place of an energy."""
_FIGURES = ("joules", "seconds", "peak_ram_bytes", "recomputed_runs", "written_bytes", "read_bytes")
_PLANNERS = (
    Column("planner", lambda row: f"{row['planner']} *" if row["status"] == "optimal" else row["planner"]),
    Column("energy", lambda row: row["none"] or format_joules(row["joules"]), "right"),
    Column("above", lambda row: None if row["above"] is None else format_part(row["above"]), "right"),
    Column("x ours", lambda row: _digits(row["joules_ratio"]), "right"),
    Column("time", "seconds", "s"),
    Column("x ours", lambda row: _digits(row["seconds_ratio"]), "right"),
    Column("RAM", "peak_ram_bytes", "B"),
    Column("again", "recomputed_runs", "right"),
    Column("paged", "paged_bytes", "B"),
    Column("search", "solve_seconds", "s"),
)


def comparison_report(comparison: Comparison) -> RenderableType:
    """A row for ours and one per planner, cheapest first, those without a plan last."""
    ours = comparison.ours
    known = [rival for rival in comparison.rivals if rival.trace is not None]
    rivals = sorted(known, key=lambda rival: rival.trace.joules if rival.trace else math.inf)
    rivals += [rival for rival in comparison.rivals if rival.trace is None]
    if ours.trace is not None:
        rivals.insert(0, Rival("poet", ours.status, None, ours.trace, ours.solve_seconds))
    said = "planners on the same problem, by the same judge; * at its bound for what it may do"
    parts: list[RenderableType] = [Text(f"{said}, {IN_ORDER}", style="bold")]
    parts.append(table([_shown(rival, comparison) for rival in rivals], *_PLANNERS))
    if comparison.started_from is not None:
        parts.append(
            Text(f"poet's own search cost more than {comparison.started_from}'s plan and went on from it")
        )
    return Group(*parts)


def comparison_data(comparison: Comparison) -> dict[str, Any]:
    """JSON-ready: per planner its figures and their ratio to ours; ``null`` where there is no plan."""
    return {
        "started_from": comparison.started_from,
        "planners": [_rival(rival, comparison) for rival in comparison.rivals],
    }


def _rival(rival: Rival, comparison: Comparison) -> dict[str, Any]:
    """A planner's row."""
    trace, ours = rival.trace, comparison.ours

    def ratio(figure: str) -> float | None:
        if trace is None or ours.trace is None or not getattr(ours.trace, figure):
            return None
        return float(getattr(trace, figure) / getattr(ours.trace, figure))

    return {
        "planner": rival.name,
        "status": None if rival.status is None else rival.status.word,
        "solve_seconds": rival.solve_seconds,
        **{figure: None if trace is None else getattr(trace, figure) for figure in _FIGURES},
        "overhead_joules": None if trace is None else trace.joules - ours.baseline_joules,
        "joules_ratio": ratio("joules"),
        "seconds_ratio": ratio("seconds"),
    }


def _shown(rival: Rival, comparison: Comparison) -> dict[str, Any]:
    """The same with what only people are shown."""
    row, once_joules = _rival(rival, comparison), comparison.ours.baseline_joules
    if rival.trace is None:
        return row | {"none": _NO_PLAN.get(rival.status, " "), "above": None, "paged_bytes": None}
    above = row["overhead_joules"] / once_joules if once_joules else 0.0
    return row | {"none": "", "above": above, "paged_bytes": row["written_bytes"] + row["read_bytes"]}


def _digits(ratio: float | None) -> str | None:
    return None if ratio is None else f"{ratio:.4g}"


# --- a survey of RAM budgets ------------------------------------------------------------------

LARGEST_SHOWN = 2
"""How many of the tensors that make the lower bound are named."""


def survey_report(survey: Survey, about: Sequence[str] = ()) -> RenderableType:
    """The lines ``about`` the model; keep-everything peak, lower bound and its reason, a row per budget."""
    most, bound = survey.keep_everything_bytes, survey.lower_bound
    names = ", ".join(bound.tensors[:LARGEST_SHOWN])
    more = len(bound.tensors) - LARGEST_SHOWN
    where = "at the start or the end of a step" if bound.op is None else f"while op {bound.op} runs"
    lines = [
        *about,
        f"keeping everything needs {format_bytes(most)} ({most} B) of RAM",
        f"no schedule {IN_ORDER} needs less than {format_bytes(bound.bytes)} ({bound.bytes} B)",
        f"  {where}, with {names}{f' and {more} more' if more > 0 else ''} in RAM",
        "",
    ]
    rows = [
        (f"{budget}B", format_bytes(budget), solution.status.word, *_costs(solution))
        for budget, solution in survey.points
    ]
    headings = ("--ram", "", "answer", "energy above", "time", "recomputed", "paged out")
    return Group(*map(Text, lines), listed(rows, *headings))


def _costs(solution: Solution) -> tuple[str, ...]:
    trace, once_joules = solution.trace, solution.baseline_joules
    if trace is None:
        return ("", "", "", "")
    above = solution.overhead_joules or 0.0
    return (
        f"{format_joules(above)} ({format_part(above / once_joules if once_joules else 0.0)})",
        format_seconds(trace.seconds),
        f"{trace.recomputed_runs} runs",
        format_bytes(trace.written_bytes),
    )


def survey_data(problem: Problem, survey: Survey) -> dict[str, Any]:
    """JSON-ready; each point is what ``poet solve --json`` gives, without its schedule."""
    return {
        "problem": problem.name,
        "keep_everything_bytes": survey.keep_everything_bytes,
        "lower_bound_bytes": survey.lower_bound.bytes,
        "lower_bound_op": survey.lower_bound.op,
        "lower_bound_tensors": list(survey.lower_bound.tensors),
        "points": [
            {"ram_budget_bytes": budget, **_answer(problem, solution)} for budget, solution in survey.points
        ],
    }


def _answer(problem: Problem, solution: Solution) -> dict[str, Any]:
    return {key: item for key, item in solution_to_json(problem, solution).items() if key != "schedule"}


# --- a trade-off curve ------------------------------------------------------------------------


def trade_off_report(curve: TradeOff) -> RenderableType:
    """A line per point, and whether they are all."""
    x, y = curve.x, curve.y
    if not curve.points:
        return Text(f"No plan {IN_ORDER} exists inside the limits, or none was found in time.")
    said = f"Every point that no plan {IN_ORDER} dominates" if curve.exact else "A sample of the curve"
    rows = []
    for point in curve.points:
        solution, amounts = point.solution, (point.y, point.y_bound)
        optimal = solution.status is Status.OPTIMAL
        gap = format_gap(solution.objective_gap or 0.0, optimal=optimal, confirmed=solution.is_confirmed)
        of_y = (format_amount(y, amount) for amount in amounts)
        rows.append((format_amount(x, point.x), *of_y, gap, solution.status.word))
    heading = f"{said}: the least {TITLES[y]} for each amount of {TITLES[x]}."
    headings = (TITLES[x], TITLES[y], "bound", "gap", "answer")
    return Group(Text(heading, style="bold"), Text(), listed(rows, *headings, left=0))


def trade_off_data(problem: Problem, curve: TradeOff) -> dict[str, Any]:
    """JSON-ready; each point is what ``poet solve --json`` gives, without its schedule."""
    return {
        "problem": problem.name,
        "x": curve.x.value,
        "y": curve.y.value,
        "exact": curve.exact,
        "points": [
            {
                "x": point.x,
                "y": point.y,
                "y_bound": point.y_bound,
                "x_limit": None if math.isinf(point.x_limit) else point.x_limit,
                **_answer(problem, point.solution),
            }
            for point in curve.points
        ],
    }
