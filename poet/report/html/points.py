"""The points of a sweep as rows of charts and tables: fronts, statuses, daily use."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from poet.report.html.charts import (
    ACCENT,
    QUIET,
    SERIES,
    WARNING,
    ChartAxis,
    Spec,
    fronts,
    squares,
)
from poet.report.html.tables import DASH, Cell, TableColumn, TableData, count, duration, energy, share, size
from poet.units import format_bytes, format_gap, format_joules, format_seconds, scale_of
from poet.whatif.result import FoundPlan, Point, Setting, Usage, Verdict, WhatIf, micro_words
from poet.whatif.wording import duration_text

PROOFS = {Verdict.OPTIMAL: "optimal", Verdict.FEASIBLE: "feasible within a gap"}
STATUS_COLOURS = {
    Verdict.OPTIMAL.word: ACCENT,
    Verdict.FEASIBLE.word: SERIES[5],
    Verdict.INFEASIBLE.word: QUIET,
    Verdict.TIMEOUT.word: WARNING,
    Verdict.UNSOLVED.word: "var(--line)",
}


@dataclass(frozen=True, slots=True)
class PlannedPoint:
    """A point with a plan.

    Attributes:
        index: of the point.
        point, setting, plan: what it is.
        usage: what it means in daily use, if known.
        series: what distinguishes its setting from the others.
        samples: by which its joules and seconds are divided to be compared with others.
    """

    index: int
    point: Point
    setting: Setting
    plan: FoundPlan
    usage: Usage | None
    series: str
    samples: int

    @property
    def joules(self) -> float:
        """Per sample where batches differ, else per step."""
        return self.plan.joules / self.samples

    @property
    def seconds(self) -> float:
        """Likewise."""
        return self.plan.seconds / self.samples

    @property
    def ram_bytes(self) -> int:
        """The budget; where there is none, what the plan takes."""
        return self.point.limits.ram_budget_bytes or self.plan.peak_ram_bytes


def per_sample(result: WhatIf) -> bool:
    """Whether amounts are per sample: batches differ and are known."""
    batches = {setting.batch for setting in result.settings}
    return len(batches) > 1 and None not in batches


def planned(result: WhatIf) -> tuple[PlannedPoint, ...]:
    """The points that have a plan."""
    labels, divide = series_labels(result), per_sample(result)
    found = []
    for index, point in enumerate(result.points):
        plan, setting = result.plan_of(point), result.setting_of(point)
        if plan is not None:
            samples = (setting.batch or 1) if divide else 1
            usage = result.usages[index]
            found.append(PlannedPoint(index, point, setting, plan, usage, labels[point.setting], samples))
    return tuple(found)


def series_labels(result: WhatIf) -> tuple[str, ...]:
    """Per setting, what sets it apart from the others, e.g. ``rpi4b, N=4``; the device where nothing does."""
    settings = result.settings
    telling: list[Callable[[Setting], str]] = [
        lambda setting: setting.device,
        lambda setting: ", ".join(f"{name}={length}" for name, length in setting.binding),
        lambda setting: setting.optimizer,
        _pieces,
    ]
    varied = [word for word in telling if len({word(setting) for setting in settings}) > 1] or telling[:1]
    return tuple(", ".join(filter(None, (word(setting) for word in varied))) for setting in settings)


def _pieces(setting: Setting) -> str:
    return "whole batches" if setting.micro is None else micro_words(setting.micro)


# --- fronts ---------------------------------------------------------------------------------------


def front_of(amounts: Sequence[tuple[float, float]]) -> frozenset[int]:
    """Indices of the pairs that no other beats: less in one and not more in the other."""
    best, kept = float("inf"), set()
    for index in sorted(range(len(amounts)), key=lambda index: amounts[index]):
        if amounts[index][1] < best:
            best = amounts[index][1]
            kept.add(index)
    return frozenset(kept)


_TOOLTIP = (
    ("series", "setting"), ("ram", "RAM budget"), ("peak", "RAM at the peak"), ("deadline", "deadline"),
    ("joules", "energy"), ("seconds", "time"), ("status", "proof"), ("gap", "gap"),
    ("recomputed", "recomputed runs"), ("written", "written"),
)  # fmt: skip

_AXES: dict[str, tuple[str, str, Callable[[PlannedPoint], float]]] = {
    "ram": ("RAM budget", "B", lambda point: float(point.ram_bytes)),
    "energy": ("energy", "J", lambda point: point.joules),
    "time": ("time", "s", lambda point: point.seconds),
}


def front_chart(
    result: WhatIf, points: Sequence[PlannedPoint], x: str, y: str, *, height: int, legend: bool = False
) -> Spec:
    """Points and fronts over two of ``ram``, ``energy`` and ``time``."""
    across, upwards = _amounts(result, points, x), _amounts(result, points, y)
    references = list(_plain_needs(points)) if x == "ram" else []
    if references:
        factor = scale_of(max(point.ram_bytes for point in points), "B")[0]
        references = [{**line, "x": line["bytes"] / factor} for line in references]
        values = [*across[1], *(line["x"] for line in references)]
        across = (ChartAxis(across[0].title, min(values), max(values)), across[1])
    pairs = list(zip(across[1], upwards[1], strict=True))
    series = list(dict.fromkeys(point.series for point in points))
    best = set[int]()
    for name in series:
        mine = [number for number, point in enumerate(points) if point.series == name]
        best |= {mine[kept] for kept in front_of([pairs[number] for number in mine])}
    rows = [
        {
            "x": pairs[number][0],
            "y": pairs[number][1],
            "proof": PROOFS[point.point.verdict],
            "front": number in best,
            "chosen": point.index == result.chosen,
            **_hover(point),
        }
        for number, point in enumerate(points)
    ]
    return fronts(
        rows,
        x=across[0],
        y=upwards[0],
        series=series,
        proofs=[proof for proof in PROOFS.values() if any(row["proof"] == proof for row in rows)],
        tooltip=_TOOLTIP,
        height=height,
        legend=legend,
        references=references,
    )


def _plain_needs(points: Sequence[PlannedPoint]) -> Iterator[dict[str, Any]]:
    """What plain training needs, once per amount, named where the settings differ in it."""
    needs: dict[int, list[str]] = {}
    for point in points:
        needs.setdefault(point.setting.keep_everything_bytes, []).append(point.series)
    for size_bytes, series in needs.items():
        of = f" ({', '.join(dict.fromkeys(series))})" if len(needs) > 1 else ""
        yield {"bytes": size_bytes, "words": f"plain training{of}"}


def _amounts(result: WhatIf, points: Sequence[PlannedPoint], name: str) -> tuple[ChartAxis, list[float]]:
    """One of `_AXES` with the points' amounts in its unit."""
    title, unit, amount = _AXES[name]
    values = [amount(point) for point in points]
    factor, prefixed = scale_of(max(values), unit)
    each = "" if name == "ram" else " per sample" if per_sample(result) else " per step"
    return _axis(f"{title}{each} ({prefixed})", values, factor), [value / factor for value in values]


def _axis(title: str, values: Sequence[float], factor: float) -> ChartAxis:
    return ChartAxis(title, min(values, default=0.0) / factor, max(values, default=0.0) / factor)


def _hover(point: PlannedPoint) -> dict[str, str]:
    plan, limits = point.plan, point.point.limits
    each = " per sample" if point.samples > 1 else ""
    return {
        "series": point.series,
        "ram": "none" if limits.ram_budget_bytes is None else format_bytes(limits.ram_budget_bytes),
        "peak": format_bytes(plan.peak_ram_bytes),
        "deadline": point.point.deadline or "none",
        "joules": format_joules(point.joules) + each,
        "seconds": format_seconds(point.seconds) + each,
        "status": point.point.verdict.word,
        "gap": gap(point.point)[1],
        "recomputed": str(plan.recomputed_runs),
        "written": format_bytes(plan.written_bytes),
    }


def status_chart(result: WhatIf) -> Spec:
    """Every point of the sweep by its RAM budget, coloured by what is known of it."""
    labels = series_labels(result)
    budgets = [point.limits.ram_budget_bytes or 0 for point in result.points]
    factor, unit = scale_of(max(budgets, default=0), "B")
    rows = []
    for point, budget in zip(result.points, budgets, strict=True):
        plan = result.plan_of(point)
        rows.append(
            {
                "x": budget / factor,
                "row": f"{labels[point.setting]}, {point.deadline or 'no deadline'}",
                "status": point.verdict.word,
                "ram": format_bytes(budget) if budget else "none",
                "joules": DASH if plan is None else format_joules(plan.joules),
                "why": point.message or point.verdict.value,
                "origin": point.origin.value,
            }
        )
    axis = _axis(f"RAM budget ({unit})", [budget for budget in budgets if budget], factor)
    seen = {str(row["status"]) for row in rows}
    colours = {word: colour for word, colour in STATUS_COLOURS.items() if word in seen}
    return squares(rows, x=axis, colours=colours)


# --- tables ---------------------------------------------------------------------------------------


def points_table(result: WhatIf) -> TableData:
    """Every point, with what its plan takes; what all settings have in common has no column."""
    telling: tuple[tuple[str, Callable[[Setting], str]], ...] = (
        ("device", lambda setting: setting.device),
        ("sizes", lambda setting: ", ".join(f"{name}={size}" for name, size in setting.binding) or DASH),
        ("optimizer", lambda setting: setting.optimizer or DASH),
        ("micro-batches", lambda setting: setting.micro_text or DASH),
    )
    varied = [
        (heading, word)
        for heading, word in telling
        if heading == "device" or len({word(setting) for setting in result.settings}) > 1
    ]
    timed = len({point.deadline for point in result.points}) > 1
    columns = (
        *(TableColumn(heading, choice=True) for heading, _ in varied),
        TableColumn("RAM budget", numeric=True),
        *([TableColumn("deadline", choice=True)] if timed else []),
        TableColumn("status", choice=True),
        TableColumn("energy", numeric=True),
        TableColumn("time", numeric=True),
        TableColumn("RAM at the peak", numeric=True),
        TableColumn("gap", numeric=True),
        TableColumn("recomputed", numeric=True),
        TableColumn("written", numeric=True),
        TableColumn("origin", choice=True, hidden=True),
        TableColumn("why", note=True),
    )
    rows: list[tuple[Cell, ...]] = []
    for point in result.points:
        setting, plan = result.setting_of(point), result.plan_of(point)
        rows.append(
            (
                *(word(setting) for _, word in varied),
                size(point.limits.ram_budget_bytes),
                *([point.deadline or "none"] if timed else []),
                point.verdict.word,
                energy(plan.joules if plan else None),
                duration(plan.seconds if plan else None),
                size(plan.peak_ram_bytes if plan else None),
                gap(point),
                count(plan.recomputed_runs if plan else None),
                size(plan.written_bytes if plan else None),
                point.origin.value,
                point.message,
            )
        )
    return TableData(columns, rows, noun="points")


def gap(point: Point) -> tuple[float | None, str]:
    """A cell with how far its plan may be above the best."""
    if point.gap is None:
        return (None, DASH)
    return (point.gap, format_gap(point.gap, optimal=point.verdict is Verdict.OPTIMAL, confirmed=False))


def best_of_settings(points: Iterable[PlannedPoint]) -> list[PlannedPoint]:
    """Per setting the point of the least energy."""
    best: dict[int, PlannedPoint] = {}
    for point in points:
        known = best.get(point.point.setting)
        if known is None or point.joules < known.joules:
            best[point.point.setting] = point
    return sorted(best.values(), key=lambda point: point.joules)


_DAILY: tuple[tuple[str, Callable[[Usage], Cell]], ...] = (
    ("energy per sample", lambda usage: energy(usage.joules_per_sample)),
    ("session energy", lambda usage: energy(usage.session_joules)),
    ("session time", lambda usage: (usage.session_seconds, duration_text(usage.session_seconds))),
    ("of a charge per session", lambda usage: share(usage.battery_share_per_session)),
    ("sessions per charge", lambda usage: count(usage.sessions_per_charge)),
    ("steps in the energy budget", lambda usage: count(usage.budget_steps)),
    ("samples in it", lambda usage: count(usage.budget_samples)),
    ("epochs in it", lambda usage: count(usage.budget_epochs)),
    ("flash life, steps", lambda usage: count(usage.flash_life_steps)),
    ("flash life, years", lambda usage: count(usage.flash_life_years)),
    ("CO₂ per session, g", lambda usage: count(usage.session_grams)),
)


def daily_table(points: Iterable[PlannedPoint]) -> TableData:
    """What the cheapest plan of each setting means daily; columns that nobody asked for are left out."""
    rows = [(point, point.usage) for point in best_of_settings(points)]
    known = [
        (heading, cell)
        for heading, cell in _DAILY
        if any(usage is not None and cell(usage)[0] is not None for _, usage in rows)
    ]
    columns = (
        TableColumn("setting"),
        TableColumn("RAM budget", numeric=True),
        *(TableColumn(heading, numeric=True) for heading, _ in known),
    )
    return TableData(
        columns,
        [
            (
                point.series,
                size(point.ram_bytes),
                *((None, DASH) if usage is None else cell(usage) for _, cell in known),
            )
            for point, usage in rows
        ],
        noun="settings",
    )
