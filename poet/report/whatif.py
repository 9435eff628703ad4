"""A what-if sweep as text: the answers, then a table of points per setting."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from poet.report.rows import listed
from poet.util.units import IN_ORDER, format_bytes, format_joules, format_seconds, format_share
from poet.whatif.result import Basis, Point, Setting, Verdict, WhatIf

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
    shown = ""
    for answer in result.answers:
        name = answer.question.replace("-", " ")
        basis = "" if answer.basis is Basis.SOLVED else f" ({answer.basis.value})"
        said.add_row("" if name == shown else name, Text(f"{answer.sentence}{basis}"))
        shown = name
    parts += [said, Text()]
    for number in range(len(result.settings)):
        parts += [*_table(result, number), Text()]
    parts.append(Text(_how(result)))
    return Group(*parts)


def _table(result: WhatIf, number: int) -> Iterator[RenderableType]:
    setting = result.settings[number]
    mine = [point for point in result.points if point.setting == number]
    deadlines = list(dict.fromkeys(point.deadline for point in mine))
    yield Text(
        f"{setting.label}: {_ops(setting)} ops, running every op once takes "
        f"{format_joules(setting.compute_joules)} and {format_seconds(setting.compute_seconds)}"
    )
    rows = []
    for budget in dict.fromkeys(point.limits.ram_budget_bytes for point in mine):
        at = {point.deadline: point for point in mine if point.limits.ram_budget_bytes == budget}
        cells = (_cell(result, at[deadline]) for deadline in deadlines)
        rows.append(("any" if budget is None else format_bytes(budget), *cells))
    yield listed(rows, "RAM", *(deadline or "no deadline" for deadline in deadlines), left=0)


def _ops(setting: Setting) -> int:
    """That a step runs once each, in all its pieces."""
    beside = setting.accumulating
    return len(setting.problem.ops) + (
        0 if beside is None else setting.accumulating_runs * len(beside.problem.ops)
    )


def _cell(result: WhatIf, point: Point) -> str:
    plan = result.plan_of(point)
    if plan is None:
        return _MARKS[point.verdict]
    gap = f" (gap {format_share(point.gap)})" if point.verdict is Verdict.FEASIBLE and point.gap else ""
    return f"{format_joules(plan.joules)}{gap}"


def _how(result: WhatIf) -> str:
    took = format_seconds(result.sweep_seconds)
    return (
        f"{len(result.points)} points in {took}, all judged: {result.searched} by search, "
        f"{result.from_cache} from the cache, {result.by_monotonicity} from others; bounds hold {IN_ORDER}"
    )
