"""Which RAM budgets make sense for a problem, as text and as data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from poet.problem import Problem
from poet.ram_survey import Survey
from poet.report.columns import columns
from poet.solution import LowerBound, Solution, solution_to_json
from poet.units import IN_ORDER, format_bytes, format_joules, format_part, format_seconds

LARGEST_SHOWN = 2
"""How many of the tensors that make the lower bound are named."""


def survey_report(survey: Survey, about: Sequence[str] = ()) -> RenderableType:
    """The lines ``about`` the model; keep-everything peak, lower bound and its reason, a row per budget."""
    most, bound = survey.keep_everything_bytes, survey.lower_bound
    table = columns("--ram", "", "answer", "energy above", "time", "recomputed", "paged out", left=1)
    for budget, solution in survey.points:
        table.add_row(f"{budget}B", format_bytes(budget), solution.status.word, *_costs(solution))
    return Group(
        *map(Text, about),
        Text(f"keeping everything needs {format_bytes(most)} ({most} B) of RAM"),
        Text(f"no schedule {IN_ORDER} needs less than {format_bytes(bound.bytes)} ({bound.bytes} B)"),
        *(Text(f"  {line}") for line in _reasons(bound)),
        Text(),
        table,
    )


def _reasons(bound: LowerBound) -> Iterator[str]:
    names = ", ".join(bound.tensors[:LARGEST_SHOWN])
    more = len(bound.tensors) - LARGEST_SHOWN
    where = "at the start or the end of a step" if bound.op is None else f"while op {bound.op} runs"
    yield f"{where}, with {names}{f' and {more} more' if more > 0 else ''} in RAM"


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
    points = []
    for budget, solution in survey.points:
        data = solution_to_json(problem, solution)
        del data["schedule"]
        points.append({"ram_budget_bytes": budget, **data})
    return {
        "problem": problem.name,
        "keep_everything_bytes": survey.keep_everything_bytes,
        "lower_bound_bytes": survey.lower_bound.bytes,
        "lower_bound_op": survey.lower_bound.op,
        "lower_bound_tensors": list(survey.lower_bound.tensors),
        "points": points,
    }
