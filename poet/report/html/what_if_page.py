"""``poet what-if -o report.html``: the page that answers the questions of a sweep."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from poet.problem.solution import Status
from poet.report import DASH, Column, page_table
from poet.report.html import PageContent, render
from poet.report.html.charts import (
    ACCENT,
    LABEL_PIXELS,
    LOGARITHMIC_FROM,
    QUIET,
    SERIES,
    WARNING,
    ChartAxis,
    Spec,
    fronts,
    ladder,
    look_of,
    squares,
)
from poet.report.html.plan_page import Tile, badge, figures_of, plan_content, plan_context, unbroken
from poet.report.html.subject import subject_of_point
from poet.report.searches import LEAST_ENERGY_COLUMNS, how_decided, least_energy_rows
from poet.util.units import (
    format_bytes,
    format_count,
    format_joules,
    format_seconds,
    format_share,
    scale_of,
)
from poet.whatif.answers import LEAST_ENERGY, duration_text, proof_text, saving_text
from poet.whatif.result import Answer, Basis, FoundPlan, Point, Setting, Verdict, WhatIf
from poet.whatif.run import to_csv, to_json

QUESTIONS = {
    "which-device": "Which device?",
    "micro-batches": "In how many micro-batches?",
    "least-ram": "What is the least RAM?",
    "least-energy": "What is the least energy?",
    "energy-budget": "What does the energy budget buy?",
    "battery": "What does it take from the battery?",
    "flash-life": "How long does the flash last?",
    "wall-time": "How long does a session take?",
    "carbon": "What does it emit?",
    "data-stalls": "Does the step wait for data?",
    "marginal-value": "What would more of something buy?",
}
"""Headings of answers by their key; a key that is not here is its own heading."""
RAM_LOGARITHMIC_FROM = 2.5
"""Settings of several batches each have a few budgets close together, and lie far from each other."""
_WIDE, _NARROW = 430, 250  # least width of a panel with names of series, and without
FRONTS = {"answer": ("ram", "energy"), "ram-time": ("ram", "time"), "time-energy": ("time", "energy")}
"""By place in the page, what the charts show over what."""


def what_if_page(result: WhatIf) -> str:
    """The page as text.

    Raises:
        InputError: the packages of the extra ``report`` are not there.
    """
    found = planned(result)
    subject = None if result.chosen is None else subject_of_point(result, result.chosen)
    charts = {"status": status_chart(result)}
    if (bought := marginal_chart(result)) is not None:
        charts["marginal"] = bought
    panels: dict[str, list[tuple[str, str]]] = {}
    for name, axes in FRONTS.items():
        made = front_charts(result, found, *axes) if found else {}
        charts |= {f"{name}-{number}": spec for number, spec in enumerate(made.values())}
        panels[name] = [(f"{name}-{number}", device) for number, device in enumerate(made)]
    tables = {"points": points_table(result), "daily": daily_table(result, found)}
    downloads = {"csv": to_csv(result), "json": to_json(result)}
    commands = [("this report", result.question.command)] if result.question.command else []
    context, line = _context(result, charts), None
    context |= {"commands": commands, "panels": panels, "chosen": None}
    context["panel_pixels"] = _WIDE if any(series_labels(result, device=False)) else _NARROW
    if subject is not None and result.chosen is not None:
        of_plan = plan_content(subject)
        charts, tables, line = {**charts, **of_plan.charts}, {**tables, **of_plan.tables}, of_plan.timeline
        shown, point = plan_context(subject, commands=commands), result.points[result.chosen]
        context = {**shown, **context, "chosen": badge(Status[point.verdict.name], point.gap)}
    return render("what_if.html", PageContent(charts, tables, line, downloads), context)


def _context(result: WhatIf, charts: Mapping[str, Any]) -> dict[str, Any]:
    said = result.answers[0].sentence if result.answers else result.question.model
    sentence, _, after = said.partition("; ")
    profiles = {setting.device: setting.profile for setting in result.settings if setting.profile is not None}
    return {
        "title": f"{result.question.model}: what if",
        "result": result,
        "headline": unbroken(sentence),
        "standing": after[:1].upper() + after[1:],
        "part": _part(result),
        "tiles": list(_tiles(result)),
        "answers": list(_grouped(result)),
        "drawn": charts,
        "counts": how_decided(result),
        "marginals": marginal_table(result),
        "stalls": stall_table(result),
        "each": "per sample" if per_sample(result) else "per step",
        "devices": [(profile, figures_of(profile)) for profile in profiles.values()],
        "measured": result.question.data is not None and result.question.data.measured,
    }


def _part(result: WhatIf) -> str:
    """Which of two schedules the page shows of a step in micro-batches; empty where one is all."""
    setting = None if result.chosen is None else result.setting_of(result.points[result.chosen])
    if setting is None or setting.accumulating is None:
        return ""
    return f": the last of {setting.pieces}, which sums gradients and updates"


def _grouped(result: WhatIf) -> Iterator[tuple[str, list[tuple[str, str]], dict[str, Any] | None]]:
    """Each question once, with its sentences and what they rest on where that is not solved points.

    Several sentences on the least energy are a table.
    """
    by_question: dict[str, list[Answer]] = {}
    for answer in result.answers[1:]:
        by_question.setdefault(answer.question, []).append(answer)
    for key, answers in by_question.items():
        heading = QUESTIONS.get(key, key.replace("-", " ").capitalize())
        if key == LEAST_ENERGY and len(answers) > 1:
            yield heading, [], page_table(least_energy_rows(result), *LEAST_ENERGY_COLUMNS)
        else:
            told = [
                (each.sentence, "" if each.basis is Basis.SOLVED else each.basis.value) for each in answers
            ]
            yield heading, told, None


def _tiles(result: WhatIf) -> Iterator[Tile]:
    """What the chosen plan takes, and what it means in daily use where that was asked."""
    if result.chosen is None:
        return
    (point, _, plan, usage), duty = result.of_chosen(), result.question.duty
    budget = point.limits.ram_budget_bytes
    deadline = "no deadline" if point.deadline is None else f"deadline {point.deadline}"
    ram = "no budget" if budget is None else f"budget {format_bytes(budget)}"
    yield Tile("Energy per step", format_joules(plan.joules), proof_text(point))
    yield Tile("Time per step", format_seconds(plan.seconds), deadline)
    yield Tile("RAM at the peak", format_bytes(plan.peak_ram_bytes), ram)
    if usage.battery_share_per_session is not None:
        number = usage.sessions_per_charge
        sessions = "unlimited" if number is None else format_count(number)
        yield Tile(
            "Charge per session",
            format_share(usage.battery_share_per_session),
            f"{duty.steps_per_session} steps; {sessions} sessions per charge",
        )
    if usage.budget_steps is not None and duty.energy_budget is not None:
        yield Tile(
            f"Steps per {duty.energy_budget.per}",
            format_count(usage.budget_steps),
            f"within {format_joules(duty.energy_budget.joules)} per {duty.energy_budget.per}",
        )
    years = usage.flash_life_years
    yield Tile(
        "Flash life",
        DASH if years is None else "not worn" if years == float("inf") else f"{format_count(years)} years",
        f"{format_bytes(plan.written_bytes)} written per step",
    )


# --- the points of the sweep ------------------------------------------------------------------

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
        point, plan, setting: what it is.
        series: what sets its setting apart from the others.
        ram_bytes: the budget; where there is none, what the plan takes.
        joules, seconds: per sample where batches differ, else per step.
    """

    index: int
    point: Point
    plan: FoundPlan
    setting: Setting
    series: str
    ram_bytes: int
    joules: float
    seconds: float


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
        ram_bytes, series = point.limits.ram_budget_bytes or plan.peak_ram_bytes, labels[point.setting]
        takes = plan.joules / samples, plan.seconds / samples
        found.append(PlannedPoint(index, point, plan, setting, series, ram_bytes, *takes))
    return tuple(found)


_TELLING: tuple[tuple[str, Callable[[Setting], str]], ...] = (
    ("device", lambda setting: setting.device),
    ("sizes", lambda setting: setting.sizes),
    ("optimizer", lambda setting: setting.optimizer),
    ("micro-batches", lambda setting: setting.pieces),
)
"""What may set settings apart."""


def _varied(result: WhatIf) -> list[tuple[str, Callable[[Setting], str]]]:
    return [(what, of) for what, of in _TELLING if len({of(setting) for setting in result.settings}) > 1]


def series_labels(result: WhatIf, *, device: bool = True) -> tuple[str, ...]:
    """Per setting, what sets it apart from the others, e.g. ``rpi4b, N=4``; the device where nothing does.

    Without ``device``: from those of the same device; empty where nothing does.
    """
    telling = [of for what, of in _varied(result) or _TELLING[:1] if device or what != "device"]
    return tuple(", ".join(filter(None, (of(setting) for of in telling))) for setting in result.settings)


# --- fronts and statuses ----------------------------------------------------------------------


def front_of(amounts: Sequence[tuple[float, float]]) -> frozenset[int]:
    """Indices of the pairs that no other beats: less in one and not more in the other."""
    best, kept = float("inf"), []
    for index in sorted(range(len(amounts)), key=amounts.__getitem__):
        if amounts[index][1] < best:
            best = amounts[index][1]
            kept.append(index)
    return frozenset(kept)


_HOVER = (
    ("setting", "setting"), ("ram", "RAM budget"), ("peak", "RAM at the peak"), ("deadline", "deadline"),
    ("joules", "energy"), ("seconds", "time"), ("gap", "gap"), ("recomputed", "recomputed runs"),
    ("written", "written"),
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


def front_charts(result: WhatIf, points: Sequence[PlannedPoint], x: str, y: str) -> dict[str, Spec]:
    """Per device its points and fronts over two of `_AXES`, all on the same axes."""
    labels = series_labels(result, device=False)
    names = dict.fromkeys(labels)
    looks = {name: look_of(number) for number, name in enumerate(names)}
    needs = [float(point.setting.keep_everything_bytes) for point in points] if x == "ram" else []
    across, by_x = _amounts(result, points, x, extra=needs)
    upwards, by_y = _amounts(result, points, y)
    charts = {}
    for device in dict.fromkeys(point.setting.device for point in points):
        rows: list[dict[str, Any]] = []
        feet: dict[tuple[float, str, str], None] = {}
        of_device = [point for point in points if point.setting.device == device]
        for series in names:
            mine = [point for point in of_device if labels[point.point.setting] == series]
            pairs = [(_AXES[x][2](point) / by_x, _AXES[y][2](point) / by_y) for point in mine]
            best = front_of(pairs)
            for number, (point, pair) in enumerate(zip(mine, pairs, strict=True)):
                chosen, optimal = point.index == result.chosen, point.point.verdict is Verdict.OPTIMAL
                marks = {"front": number in best, "chosen": chosen, "optimal": optimal}
                rows.append({"x": pair[0], "y": pair[1], **marks, **_hovered(point), "series": series})
                if needs:
                    plain = point.setting.keep_everything_bytes
                    feet[plain / by_x, series, f"{format_bytes(plain)}, {point.series}"] = None
        height = max(230 if len(result.settings) > len(names) else 320, LABEL_PIXELS * (len(names) + 1))
        made = fronts(rows, x=across, y=upwards, looks=looks, hover=_HOVER, height=height, feet=list(feet))
        charts[device] = made
    return charts


def _amounts(
    result: WhatIf, points: Sequence[PlannedPoint], name: str, extra: Sequence[float] = ()
) -> tuple[ChartAxis, float]:
    """One of `_AXES`, and what its amounts are divided by; it reaches to the ``extra`` amounts as well."""
    title, unit, amount = _AXES[name]
    values = [amount(point) for point in points]
    factor, scaled = scale_of(max(values), unit)
    each = "" if name == "ram" else " per sample" if per_sample(result) else " per step"
    ends = [*values, *extra]
    spread = RAM_LOGARITHMIC_FROM if name == "ram" else LOGARITHMIC_FROM
    return ChartAxis(f"{title}{each} ({scaled})", min(ends) / factor, max(ends) / factor, spread), factor


def _hovered(point: PlannedPoint) -> dict[str, str]:
    plan, limits = point.plan, point.point.limits
    each = " per sample" if point.joules != plan.joules else ""
    return {
        "setting": point.series,
        "ram": "none" if limits.ram_budget_bytes is None else format_bytes(limits.ram_budget_bytes),
        "peak": format_bytes(plan.peak_ram_bytes),
        "deadline": point.point.deadline or "none",
        "joules": format_joules(point.joules) + each,
        "seconds": format_seconds(point.seconds) + each,
        "gap": gap_text(point.point),
        "recomputed": str(plan.recomputed_runs),
        "written": format_bytes(plan.written_bytes),
    }


def status_chart(result: WhatIf) -> Spec:
    """Every point of the sweep by its RAM budget, coloured by what is known of it."""
    labels, timed = series_labels(result), len({point.deadline for point in result.points}) > 1
    budgets = [point.limits.ram_budget_bytes or 0 for point in result.points]
    factor, unit = scale_of(max(budgets, default=0), "B")
    rows = []
    for point, budget in zip(result.points, budgets, strict=True):
        plan = result.plan_of(point)
        rows.append(
            {
                "x": budget / factor,
                "name": labels[point.setting] + f", {point.deadline or 'no deadline'}" * timed,
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
    return "optimal" if point.verdict is Verdict.OPTIMAL else format_share(point.gap or 0.0)


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


def _use(heading: str, figure: str, unit: str, shown: Callable[[Any], str] | None = None) -> Column:
    """A column of rows of a point and its usage."""
    return Column(heading, lambda row: getattr(row[1], figure), unit, shown=shown)


_DAILY = (
    _use("energy per sample", "joules_per_sample", "J"),
    _use("session energy", "session_joules", "J"),
    _use("session time", "session_seconds", "s", lambda row: duration_text(row[1].session_seconds)),
    _use("of a charge per session", "battery_share_per_session", "%"),
    _use("sessions per charge", "sessions_per_charge", "n"),
    _use("steps in the energy budget", "budget_steps", "n"),
    _use("samples in it", "budget_samples", "n"),
    _use("epochs in it", "budget_epochs", "n"),
    _use("flash life, steps", "flash_life_steps", "n"),
    _use("flash life, years", "flash_life_years", "n"),
    _use("CO₂ per session, g", "session_grams", "n"),
)


def daily_table(result: WhatIf, points: Iterable[PlannedPoint]) -> dict[str, Any]:
    """What the cheapest plan of each setting means daily; columns that nobody asked for are left out."""
    best: dict[int, PlannedPoint] = {}
    for point in sorted(points, key=lambda point: point.joules):
        best.setdefault(point.point.setting, point)
    rows = [(point, result.usages[point.index]) for point in best.values()]
    columns = (
        Column("setting", lambda row: row[0].series),
        Column("RAM budget", lambda row: row[0].ram_bytes, "B"),
        *(column for column in _DAILY if any(column.of(row) is not None for row in rows)),
    )
    return page_table(rows, *columns, noun="settings")


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
