"""The points of a sweep as charts and tables: fronts, statuses, daily use, changes, data stalls."""

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
    bars,
    fronts,
    ladder,
    squares,
)
from poet.report.rows import DASH, Column, page_table
from poet.util.units import format_bytes, format_gap, format_joules, format_seconds, format_share, scale_of
from poet.whatif.daily import duration_text, saving_text
from poet.whatif.result import FoundPlan, Point, Setting, Verdict, WhatIf, micro_words

PROOFS = {Verdict.OPTIMAL: "optimal", Verdict.FEASIBLE: "feasible within a gap"}
STATUS_MARKS = {
    Verdict.OPTIMAL.word: (ACCENT, "square"),
    Verdict.FEASIBLE.word: (SERIES[5], "triangle-up"),
    Verdict.INFEASIBLE.word: (QUIET, "circle"),
    Verdict.TIMEOUT.word: (WARNING, "cross"),
    Verdict.UNSOLVED.word: ("var(--line)", "diamond"),
}
"""Colour and shape."""


@dataclass(frozen=True, slots=True)
class PlannedPoint:
    """A point with a plan.

    Attributes:
        index: of the point.
        point, plan: what it is.
        keep_everything_bytes: what plain training needs.
        series: what distinguishes its setting from the others.
        samples: by which its joules and seconds are divided to be compared with others.
    """

    index: int
    point: Point
    plan: FoundPlan
    keep_everything_bytes: int
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
    for index, point, plan in result.planned():
        setting = result.setting_of(point)
        samples = (setting.batch or 1) if divide else 1
        label = labels[point.setting]
        found.append(PlannedPoint(index, point, plan, setting.keep_everything_bytes, label, samples))
    return tuple(found)


_TELLING: tuple[tuple[str, Callable[[Setting], str]], ...] = (
    ("device", lambda setting: setting.device),
    ("sizes", lambda setting: ", ".join(f"{name}={length}" for name, length in setting.binding)),
    ("optimizer", lambda setting: setting.optimizer),
    ("micro-batches", lambda setting: setting.micro_text or ""),
)
"""What may set settings apart."""


def _varied(result: WhatIf) -> list[tuple[str, Callable[[Setting], str]]]:
    return [(what, of) for what, of in _TELLING if len({of(setting) for setting in result.settings}) > 1]


def series_labels(result: WhatIf) -> tuple[str, ...]:
    """Per setting, what sets it apart from the others, e.g. ``rpi4b, N=4``; the device where nothing does."""

    def pieces(setting: Setting) -> str:
        return "whole batches" if setting.micro is None else micro_words(setting.micro)

    telling = [pieces if what == "micro-batches" else of for what, of in _varied(result) or _TELLING[:1]]
    return tuple(", ".join(filter(None, (of(setting) for of in telling))) for setting in result.settings)


# --- fronts and statuses ----------------------------------------------------------------------


def front_of(amounts: Sequence[tuple[float, float]]) -> frozenset[int]:
    """Indices of the pairs that no other beats: less in one and not more in the other."""
    best, kept = float("inf"), set()
    for index in sorted(range(len(amounts)), key=lambda index: amounts[index]):
        if amounts[index][1] < best:
            best = amounts[index][1]
            kept.add(index)
    return frozenset(kept)


_HOVER = (
    ("series", "setting"), ("ram", "RAM budget"), ("peak", "RAM at the peak"), ("deadline", "deadline"),
    ("joules", "energy"), ("seconds", "time"), ("status", "proof"), ("gap", "gap"),
    ("recomputed", "recomputed runs"), ("written", "written"),
)  # fmt: skip
_STATUS_HOVER = (
    ("name", "setting"), ("ram", "RAM budget"), ("joules", "energy"), ("status", "status"), ("why", "why"),
    ("origin", "decided by"),
)  # fmt: skip
_AXES: dict[str, tuple[str, str, Callable[[PlannedPoint], float]]] = {
    "ram": ("RAM budget", "B", lambda point: float(point.ram_bytes)),
    "energy": ("energy", "J", lambda point: point.joules),
    "time": ("time", "s", lambda point: point.seconds),
}


def front_chart(result: WhatIf, points: Sequence[PlannedPoint], x: str, y: str) -> Spec:
    """Points and fronts over two of ``ram``, ``energy`` and ``time``."""
    references = dict(_plain_needs(points)) if x == "ram" else {}
    across, by_x = _amounts(result, points, x, extra=list(references))
    upwards, by_y = _amounts(result, points, y)
    pairs = [(_AXES[x][2](point) / by_x, _AXES[y][2](point) / by_y) for point in points]
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
            **_hovered(point),
        }
        for number, point in enumerate(points)
    ]
    return fronts(
        rows,
        x=across,
        y=upwards,
        series=series,
        proofs=[proof for proof in PROOFS.values() if any(row["proof"] == proof for row in rows)],
        hover=_HOVER,
        height=320,
        references=[{"x": size / by_x, "words": words} for size, words in references.items()],
    )


def _plain_needs(points: Sequence[PlannedPoint]) -> Iterator[tuple[int, str]]:
    """Bytes that plain training needs, once per amount, named where the settings differ in it."""
    needs: dict[int, dict[str, None]] = {}
    for point in points:
        needs.setdefault(point.keep_everything_bytes, {})[point.series] = None
    for size_bytes, series in needs.items():
        of = f" ({', '.join(series)})" if len(needs) > 1 else ""
        yield size_bytes, f"plain training{of}"


def _amounts(
    result: WhatIf, points: Sequence[PlannedPoint], name: str, extra: Sequence[float] = ()
) -> tuple[ChartAxis, float]:
    """One of `_AXES`, and what its amounts are divided by; it reaches to the ``extra`` amounts as well."""
    title, unit, amount = _AXES[name]
    values = [amount(point) for point in points]
    factor, scaled = scale_of(max(values), unit)
    each = "" if name == "ram" else " per sample" if per_sample(result) else " per step"
    ends = [*values, *extra]
    return ChartAxis(f"{title}{each} ({scaled})", min(ends) / factor, max(ends) / factor), factor


def _hovered(point: PlannedPoint) -> dict[str, str]:
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
        "gap": gap_text(point.point),
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
                "name": f"{labels[point.setting]}, {point.deadline or 'no deadline'}",
                "status": point.verdict.word,
                "ram": format_bytes(budget) if budget else "none",
                "joules": DASH if plan is None else format_joules(plan.joules),
                "why": point.message or point.verdict.value,
                "origin": point.origin.value,
            }
        )
    known = [budget / factor for budget in budgets if budget] or [0.0]
    axis = ChartAxis(f"RAM budget ({unit})", min(known), max(known))
    seen = {str(row["status"]) for row in rows}
    marks = {word: mark for word, mark in STATUS_MARKS.items() if word in seen}
    return squares(rows, x=axis, marks=marks, hover=_STATUS_HOVER)


def gap_text(point: Point) -> str:
    """How far a plan may be above the best."""
    return format_gap(point.gap or 0.0, optimal=point.verdict is Verdict.OPTIMAL, confirmed=False)


# --- tables -----------------------------------------------------------------------------------


def points_table(result: WhatIf) -> dict[str, Any]:
    """Every point, with what its plan takes; what all settings have in common has no column."""

    def told(heading: str, of: Callable[[Setting], str]) -> Column:
        return Column(heading, lambda point: of(result.setting_of(point)) or DASH, choice=True)

    def planned(heading: str, figure: str, unit: str) -> Column:
        def value(point: Point) -> Any:
            plan = result.plan_of(point)
            return None if plan is None else getattr(plan, figure)

        return Column(heading, value, unit)

    varied = [(what, of) for what, of in _TELLING if what == "device" or (what, of) in _varied(result)]
    timed = len({point.deadline for point in result.points}) > 1
    columns = (
        *(told(what, of) for what, of in varied),
        Column("RAM budget", lambda point: point.limits.ram_budget_bytes, "B"),
        *([Column("deadline", lambda point: point.deadline or "none", choice=True)] if timed else []),
        Column("status", lambda point: point.verdict.word, choice=True),
        planned("energy", "joules", "J"),
        planned("time", "seconds", "s"),
        planned("RAM at the peak", "peak_ram_bytes", "B"),
        Column("gap", "gap", "%", shown=gap_text),
        planned("recomputed", "recomputed_runs", "n"),
        planned("written", "written_bytes", "B"),
        Column("origin", lambda point: point.origin.value, choice=True, hidden=True),
        Column("why", "message", note=True),
    )
    return page_table(result.points, *columns, noun="points")


_DAILY = (
    Column("energy per sample", "joules_per_sample", "J"),
    Column("session energy", "session_joules", "J"),
    Column("session time", "session_seconds", "s", shown=lambda usage: duration_text(usage.session_seconds)),
    Column("of a charge per session", "battery_share_per_session", "%"),
    Column("sessions per charge", "sessions_per_charge", "n"),
    Column("steps in the energy budget", "budget_steps", "n"),
    Column("samples in it", "budget_samples", "n"),
    Column("epochs in it", "budget_epochs", "n"),
    Column("flash life, steps", "flash_life_steps", "n"),
    Column("flash life, years", "flash_life_years", "n"),
    Column("CO₂ per session, g", "session_grams", "n"),
)


def daily_table(result: WhatIf, points: Iterable[PlannedPoint]) -> dict[str, Any]:
    """What the cheapest plan of each setting means daily; columns that nobody asked for are left out."""
    best: dict[int, PlannedPoint] = {}
    for point in sorted(points, key=lambda point: point.joules):
        best.setdefault(point.point.setting, point)
    usages = [(point, result.usages[point.index]) for point in best.values()]
    rows = [(point, usage) for point, usage in usages if usage is not None]
    known = [column for column in _DAILY if any(column.of(usage) is not None for _, usage in rows)]
    columns = (
        Column("setting", lambda row: row[0].series),
        Column("RAM budget", lambda row: row[0].ram_bytes, "B"),
        *(_of_usage(column) for column in known),
    )
    return page_table(rows, *columns, noun="settings")


def _of_usage(column: Column) -> Column:
    """A column of usages for rows of a point and its usage."""
    shown = column.shown
    return Column(
        column.heading,
        lambda row: column.of(row[1]),
        column.unit,
        shown=None if shown is None else lambda row: shown(row[1]),
    )


# --- what changes buy, and data stalls --------------------------------------------------------


def marginal_table(result: WhatIf) -> dict[str, Any] | None:
    """What each change buys; ``None``: none was asked about."""
    labels = series_labels(result)

    def place(row: Any) -> str:
        point = result.points[row.point]
        budget = point.limits.ram_budget_bytes
        return f"{labels[point.setting]}, {'no budget' if budget is None else format_bytes(budget)}"

    columns = (
        Column("from", place),
        Column("change", "change"),
        Column("energy before", "joules_before", "J"),
        Column("after", "joules_after", "J"),
        Column("time after", "seconds_after", "s"),
        Column("energy", "saved_share", shown=lambda row: saving_text(row.saved_share)),
        Column("certain", lambda row: "yes" if row.certain else "within the gaps"),
    )
    return page_table(result.marginals, *columns) if result.marginals else None


def marginal_chart(result: WhatIf) -> Spec | None:
    """Energy that each change of the chosen point saves; ``None``: none was asked about."""
    found = [
        (marginal, marginal.saved_share)
        for marginal in result.marginals
        if marginal.saved_share is not None and marginal.point == result.chosen
    ]
    rows = [
        (marginal.change, max(0.0, 100 * share), ACCENT if marginal.certain else QUIET)
        for marginal, share in found
    ]
    texts = [saving_text(share) for _, share in found]
    return ladder(rows, unit="%", title="{} of the energy", texts=texts, text_pixels=120) if rows else None


def stall_table(result: WhatIf) -> dict[str, Any] | None:
    """Steps with their data; ``None``: data were not asked about."""
    labels = series_labels(result)

    def cached(stall: Any) -> str | None:
        if stall.cached_step_seconds is None or stall.cached_share is None:
            return None
        return f"{format_seconds(stall.cached_step_seconds)}, {format_share(stall.cached_share)} held"

    columns = (
        Column("setting", lambda stall: labels[result.points[stall.point].setting]),
        Column("RAM budget", lambda stall: result.points[stall.point].limits.ram_budget_bytes or 0, "B"),
        Column("bound by", "bound_by"),
        Column("without data", "plan_seconds", "s"),
        Column("with data", "step_seconds", "s"),
        Column("fetch", "fetch_seconds", "s"),
        Column("prepare", "prepare_seconds", "s"),
        Column("stall", "stall_seconds", "s"),
        Column("flash busy", "flash_seconds", "s"),
        Column("energy of it", "stall_joules", "J"),
        Column("with the cache", cached, "right"),
    )
    return page_table(result.stalls, *columns) if result.stalls else None


def stall_chart(result: WhatIf) -> Spec | None:
    """Seconds of a step with its data: of the plan, and waiting; ``None``: data were not asked about."""
    labels, rows = series_labels(result), []
    for stall in result.stalls:
        point = result.points[stall.point]
        name = f"{labels[point.setting]}, {format_bytes(point.limits.ram_budget_bytes or 0)}"
        whole, waiting = stall.step_seconds, stall.stall_seconds
        for series, seconds in (("the plan", whole - waiting), ("waiting for data", waiting)):
            text = f"{series}: {format_seconds(seconds)} of {format_seconds(whole)}"
            rows.append((name, series, seconds, text))
    colours = {"the plan": QUIET, "waiting for data": WARNING}
    return bars(rows, unit="s", title="step ({})", colours=colours) if rows else None
