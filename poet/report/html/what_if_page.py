"""``poet what-if -o report.html``: the page that answers the questions of a sweep."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from poet.report.html import points
from poet.report.html.page import PageContent, render
from poet.report.html.plan_page import Tile, figures_of, plan_content, plan_context, unbroken
from poet.report.html.subject import subject_of_point
from poet.report.rows import DASH
from poet.util.units import IN_ORDER, format_bytes, format_count, format_joules, format_seconds, format_share
from poet.whatif import export
from poet.whatif.result import Answer, Basis, WhatIf, micro_words

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


def what_if_page(result: WhatIf) -> str:
    """The page as text.

    Raises:
        InputError: the packages of the extra ``report`` are not there.
    """
    found = points.planned(result)
    subject = None if result.chosen is None else subject_of_point(result, result.chosen)
    fronts = (("answer", "ram", "energy"), ("ram-time", "ram", "time"), ("time-energy", "time", "energy"))
    drawn = {
        "status": points.status_chart(result),
        "marginal": points.marginal_chart(result),
        "stalls": points.stall_chart(result),
        **{name: points.front_chart(result, found, x, y) for name, x, y in fronts if found},
    }
    charts = {name: spec for name, spec in drawn.items() if spec is not None}
    tables = {"points": points.points_table(result), "daily": points.daily_table(result, found)}
    downloads = {"csv": export.to_csv(result), "json": export.to_json(result)}
    commands = [("this report", result.question.command)] if result.question.command else []
    context, line = _context(result, charts) | {"commands": commands, "chosen": None}, None
    if subject is not None and result.chosen is not None:
        of_plan = plan_content(subject)
        charts, tables, line = {**charts, **of_plan.charts}, {**tables, **of_plan.tables}, of_plan.timeline
        shown = plan_context(subject, commands=commands)
        context = {**shown, **context, "chosen": result.points[result.chosen]}
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
        "answers": list(_grouped(result.answers[1:])),
        "drawn": charts,
        "counts": _counts(result),
        "marginals": points.marginal_table(result),
        "stalls": points.stall_table(result),
        "each": "per sample" if points.per_sample(result) else "per step",
        "devices": [(profile, figures_of(profile)) for profile in profiles.values()],
        "measured": result.question.data is not None and result.question.data.measured,
    }


def _part(result: WhatIf) -> str:
    """Which of two schedules the page shows of a step in micro-batches; empty where one is all."""
    setting = None if result.chosen is None else result.setting_of(result.points[result.chosen])
    if setting is None or setting.accumulating is None or setting.micro is None:
        return ""
    return f": the last of {micro_words(setting.micro)}, which sums gradients and updates"


def _grouped(answers: Sequence[Answer]) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """Each question once, with its sentences and what they rest on where that is not solved points."""
    for key in dict.fromkeys(answer.question for answer in answers):
        yield (
            QUESTIONS.get(key, key.replace("-", " ").capitalize()),
            [
                (answer.sentence, "" if answer.basis is Basis.SOLVED else answer.basis.value)
                for answer in answers
                if answer.question == key
            ],
        )


def _counts(result: WhatIf) -> str:
    return (
        f"{len(result.points)} points in {format_seconds(result.sweep_seconds)}: {result.searched} searched, "
        f"{result.from_cache} from the cache, {result.by_monotonicity} by monotonicity or arithmetic. "
        f"The simulator accepted every plan; bounds hold {IN_ORDER}."
    )


def _tiles(result: WhatIf) -> Iterator[Tile]:
    """What the chosen plan takes, and what it means in daily use where that was asked."""
    if result.chosen is None:
        return
    point, usage = result.points[result.chosen], result.usages[result.chosen]
    plan, duty = result.plan_of(point), result.question.duty
    if plan is None:
        return
    budget = point.limits.ram_budget_bytes
    deadline = "no deadline" if point.deadline is None else f"deadline {point.deadline}"
    ram = "no budget" if budget is None else f"budget {format_bytes(budget)}"
    gap = points.gap_text(point)
    above = "at its bound" if gap == "closed" else f"at most {gap} above the least"
    yield Tile("Energy per step", format_joules(plan.joules), above)
    yield Tile("Time per step", format_seconds(plan.seconds), deadline)
    yield Tile("RAM at the peak", format_bytes(plan.peak_ram_bytes), ram)
    if usage is None:
        return
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
