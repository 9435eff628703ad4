"""What more RAM or energy would let a plan train, as text and as a page with the bound drawn."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from poet.report import Column, page_table, table
from poet.report.html import PageContent, render
from poet.report.html.charts import ChartAxis, Spec, search
from poet.util import codec
from poet.util.units import IN_ORDER, format_bytes, format_share, scale_of
from poet.whatif.choices import ChoicePoint, ChoiceSweep

_COLUMNS = (
    Column("RAM", "ram_budget_bytes", "B"),
    Column("energy", "joules_budget", "J"),
    Column("contribution", "contribution", "%"),
    Column("at most", "bound", "%"),
    Column("RAM of the plan", "peak_ram_bytes", "B"),
    Column("energy of a step", "joules", "J"),
    Column("trained", lambda point: " ".join(point.groups), note=True),
)
_HOVER = (("series", " "), ("amount", "contribution"), ("when", "inside"), ("by", "trained"))


def choices_report(sweep: ChoiceSweep) -> RenderableType:
    """Both lists of points in one table."""
    said = f"{_headline(sweep)}; no set contributes more than the bound {IN_ORDER}"
    return Group(Text(said, style="bold"), table((*sweep.by_ram, *sweep.by_energy), *_COLUMNS[:-1], left=0))


def choices_page(sweep: ChoiceSweep, command: str) -> str:
    """The page as text.

    Raises:
        InputError: the packages of the extra ``report`` are not there.
    """
    charts = {"ram": _chart(sweep.by_ram, "B")}
    if sweep.by_energy:
        charts["energy"] = _chart(sweep.by_energy, "J")
    tables = {"points": page_table((*sweep.by_ram, *sweep.by_energy), *_COLUMNS, noun="points")}
    content = PageContent(charts, tables, downloads={"json": codec.encode(sweep)})
    context = {"title": f"{sweep.model}: what to train", "headline": _headline(sweep)}
    return render(
        "choices.html",
        content,
        context | {"over_energy": bool(sweep.by_energy), "commands": [("this report", command)]},
    )


def _headline(sweep: ChoiceSweep) -> str:
    best = sweep.by_ram[-1]
    inside = format_bytes(best.ram_budget_bytes)
    contributes = f"contribute {format_share(best.contribution)} of all scores"
    return (
        f"{len(best.groups)} of {sweep.candidates} groups of {sweep.model} {contributes} in {inside} "
        f"on {sweep.device}{'' if sweep.complete else ' (interrupted)'}"
    )


def _chart(points: Sequence[ChoicePoint], unit: str) -> Spec:
    """Over RAM (``B``) or over energy (``J``)."""
    column = _COLUMNS[unit == "J"]
    budgets = [float(column.of(point)) for point in points]
    factor, name = scale_of(max(budgets), unit)
    rows = [
        {
            "x": budget / factor,
            "y": 100 * amount,
            "series": series,
            "found": True,
            "amount": format_share(amount),
            "when": column.text(point),
            "by": by,
        }
        for point, budget in zip(points, budgets, strict=True)
        for series, amount, by in (
            ("best plan", point.contribution, " ".join(point.groups)),
            ("bound", point.bound, ""),
        )
    ]
    x = ChartAxis(f"{column.heading}, {name}", min(budgets) / factor, max(budgets) / factor)
    return search(rows, x=x, y=ChartAxis("contribution, %", 0.0, 100.0), hover=_HOVER)
