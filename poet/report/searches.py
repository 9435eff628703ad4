"""Answers that are several plans: other planners beside ours, a survey, a trade-off curve, a sweep."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from poet.baselines.comparison import Comparison, Rival
from poet.planning.ram_survey import Survey, TradeOff
from poet.problem import Problem
from poet.problem.solution import TITLES, Solution, Status, format_amount, solution_to_json
from poet.report import Column, listed, table
from poet.util.units import (
    IN_ORDER,
    format_bytes,
    format_gap,
    format_joules,
    format_part,
    format_seconds,
    format_share,
)
from poet.whatif.answers import LEAST_ENERGY
from poet.whatif.result import Answer, Basis, Point, Verdict, WhatIf

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
    said = "planners on the same problem, by the same simulator; * optimal for what it may do"
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


# --- a what-if sweep --------------------------------------------------------------------------

_MARKS = {
    Verdict.OPTIMAL: "",
    Verdict.FEASIBLE: "~",
    Verdict.INFEASIBLE: "infeasible",
    Verdict.TIMEOUT: "none found",
    Verdict.UNSOLVED: "not reached",
}


def what_if_report(result: WhatIf) -> RenderableType:
    """The answers in the order of their importance, and joules per step for each budget and deadline."""
    parts: list[RenderableType] = []
    if not result.complete:
        parts += [Text("The sweep was stopped: what follows rests on the points that were reached."), Text()]
    said = Table.grid(padding=(0, 2))
    for question, answers in groupby(result.answers, key=lambda answer: answer.question):
        several = list(answers)
        lines: list[RenderableType] = [Text(_in_words(answer)) for answer in several]
        if question == LEAST_ENERGY and len(several) > 1:
            lines = [table(least_energy_rows(result), *LEAST_ENERGY_COLUMNS)]
        for number, line in enumerate(lines):
            said.add_row("" if number else question.replace("-", " "), line)
    parts += [said, Text()]
    for number in range(len(result.settings)):
        parts += [*_table(result, number), Text()]
    parts.append(Text(how_decided(result)))
    return Group(*parts)


def _in_words(answer: Answer) -> str:
    return answer.sentence + ("" if answer.basis is Basis.SOLVED else f" ({answer.basis.value})")


LEAST_ENERGY_COLUMNS = (
    Column("setting", "setting"),
    Column("RAM", "ram_bytes", "B"),
    Column("energy of a step", "joules", "J"),
    Column("gap", "gap", "right"),
)
"""Of a table in place of the sentences on the least energy, where there are several."""


def least_energy_rows(result: WhatIf) -> list[dict[str, Any]]:
    """A row per point that the answers on the least energy rest on."""
    indices = [
        index for answer in result.answers if answer.question == LEAST_ENERGY for index in answer.points
    ]
    return [
        {
            "setting": result.setting_of(point).label,
            "ram_bytes": point.limits.ram_budget_bytes or plan.peak_ram_bytes,
            "joules": plan.joules,
            "gap": "optimal" if point.verdict is Verdict.OPTIMAL else format_share(point.gap or 0.0),
        }
        for point in (result.points[index] for index in indices)
        if (plan := result.plan_of(point)) is not None
    ]


def _table(result: WhatIf, number: int) -> Iterator[RenderableType]:
    setting = result.settings[number]
    mine = [point for point in result.points if point.setting == number]
    deadlines = list(dict.fromkeys(point.deadline for point in mine))
    ops = sum(times * len(part.problem.ops) for part, times in setting.schedules)
    yield Text(
        f"{setting.label}: {ops} ops, running every op once takes "
        f"{format_joules(setting.compute_joules)} and {format_seconds(setting.compute_seconds)}"
    )
    rows = []
    for budget in dict.fromkeys(point.limits.ram_budget_bytes for point in mine):
        at = {point.deadline: point for point in mine if point.limits.ram_budget_bytes == budget}
        cells = (_cell(result, at[deadline]) for deadline in deadlines)
        rows.append(("any" if budget is None else format_bytes(budget), *cells))
    yield listed(rows, "RAM", *(deadline or "no deadline" for deadline in deadlines), left=0)


def _cell(result: WhatIf, point: Point) -> str:
    plan = result.plan_of(point)
    if plan is None:
        return _MARKS[point.verdict]
    gap = f" (gap {format_share(point.gap)})" if point.verdict is Verdict.FEASIBLE and point.gap else ""
    return f"{format_joules(plan.joules)}{gap}"


def how_decided(result: WhatIf) -> str:
    """How many points there are, and in which way they were decided."""
    took = format_seconds(result.sweep_seconds)
    return (
        f"{len(result.points)} points in {took}, all simulated: {result.searched} by search, "
        f"{result.from_cache} from the cache, {result.by_monotonicity} from others; bounds hold {IN_ORDER}"
    )
