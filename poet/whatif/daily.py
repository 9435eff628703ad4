"""Answers about use: energy budget, battery, flash life, time, carbon, data, and what changes buy."""

from __future__ import annotations

from collections.abc import Iterator

from poet.plans.flash_life import erases_text
from poet.units import format_bytes, format_count, format_joules, format_seconds, format_share
from poet.whatif.result import Answer, Basis, WhatIf
from poet.whatif.usage import DAYS_PER_YEAR, endurance_of, wear_of
from poet.whatif.wording import (
    budget_text,
    chosen_of,
    deadline_text,
    duration_text,
    duty_text,
    leanest,
    saving_text,
)


def energy_budget(result: WhatIf) -> Iterator[Answer]:
    """What the energy budget buys."""
    budget = result.question.duty.energy_budget
    if budget is None or result.chosen is None:
        return
    _, setting, plan, usage = chosen_of(result)
    allowed = f"{format_joules(budget.joules)} per {budget.per}"
    if budget.per == "step":
        text = f"{format_joules(plan.joules)} per step is within {allowed}, {setting.label}."
        yield Answer("energy-budget", text, Basis.SOLVED, (result.chosen,), (("joules", plan.joules),))
        return
    steps = usage.budget_steps
    bought = [f"{'any number of' if steps is None else steps} steps"]
    figures = [] if steps is None else [("steps", float(steps))]
    if usage.budget_samples is not None:
        bought.append(f"{usage.budget_samples} samples")
        figures.append(("samples", float(usage.budget_samples)))
    if usage.budget_epochs is not None:
        bought.append(f"{usage.budget_epochs:.3g} epochs")
        figures.append(("epochs", usage.budget_epochs))
    yield Answer(
        "energy-budget",
        f"{allowed} buys {', '.join(bought)} per {budget.per} with the headline's plan, {setting.label}.",
        Basis.SOLVED,
        (result.chosen,),
        tuple(figures),
    )


def battery(result: WhatIf) -> Iterator[Answer]:
    """Share of charge per session, sessions per charge."""
    duty = result.question.duty
    if duty.battery_joules is None or result.chosen is None:
        return
    _, setting, _, usage = chosen_of(result)
    share, sessions = usage.battery_share_per_session, usage.sessions_per_charge
    assert share is not None
    yield Answer(
        "battery",
        f"A session of {duty.steps_per_session} steps takes {format_share(share)} of a full charge of "
        f"{format_joules(duty.battery_joules)} ({duty.battery_joules / 3600:.3g} Wh) on {setting.label}; "
        f"a charge lasts for "
        f"{'any number of' if sessions is None else sessions} sessions.",
        Basis.SOLVED,
        (result.chosen,),
        (("battery_share_per_session", share), ("sessions_per_charge", float(sessions or 0))),
    )


def flash_life(result: WhatIf) -> Iterator[Answer]:
    """Steps and years until the storage is worn out, for the chosen and for the leanest plan."""
    if result.chosen is None:
        return
    for index in dict.fromkeys((result.chosen, leanest(result, result.chosen))):
        point = result.points[index]
        setting, plan, usage = result.setting_of(point), result.plan_of(point), result.usages[index]
        assert plan is not None
        assert usage is not None
        where = f"In {budget_text(point)} on {setting.label}"
        if plan.worn_bytes == 0:
            yield Answer(
                "flash-life", f"{where} nothing is written: training wears no flash.", Basis.SOLVED, (index,)
            )
            continue
        written = f"{where} a step writes {format_bytes(plan.written_bytes)}"
        if usage.flash_life_steps is None or usage.flash_life_years is None:
            text = f"{written}; the endurance of this storage is not known."
            yield Answer("flash-life", text, Basis.SOLVED, (index,))
            continue
        wears = f"wears {format_bytes(plan.worn_bytes)}"
        if endurance_of(setting.profile).cycles is not None:
            wears = erases_text(wear_of(plan, setting))
        yield Answer(
            "flash-life",
            f"{written} and {wears}: the flash lasts "
            f"{format_count(usage.flash_life_steps)} steps, {format_count(usage.flash_life_years)} years at "
            f"{duty_text(result)}.",
            Basis.SOLVED,
            (index,),
            (("steps", usage.flash_life_steps), ("years", usage.flash_life_years)),
        )


def wall_time(result: WhatIf) -> Iterator[Answer]:
    """How long a session takes."""
    if result.chosen is None:
        return
    _, setting, _, usage = chosen_of(result)
    steps = result.question.duty.steps_per_session
    stalls = ", waiting for data included" if result.question.data is not None else ""
    yield Answer(
        "wall-time",
        f"A session of {steps} steps lasts {duration_text(usage.session_seconds)} on {setting.label}"
        f"{stalls}.",
        Basis.SOLVED,
        (result.chosen,),
        (("session_seconds", usage.session_seconds),),
    )


def carbon(result: WhatIf) -> Iterator[Answer]:
    """Grams of carbon dioxide."""
    intensity = result.question.duty.grid_grams_per_joule
    if intensity is None or result.chosen is None:
        return
    _, setting, _, usage = chosen_of(result)
    grams = usage.session_grams or 0.0
    yearly = grams * result.question.duty.sessions_per_day * DAYS_PER_YEAR
    yield Answer(
        "carbon",
        f"A session on {setting.label} stands for {grams:.3g} g of carbon dioxide at "
        f"{intensity * 3.6e6:.4g} g/kWh, a year of {duty_text(result)} for {yearly:.3g} g.",
        Basis.SOLVED,
        (result.chosen,),
        (("session_grams", grams), ("year_grams", yearly)),
    )


def data_stalls(result: WhatIf) -> Iterator[Answer]:
    """What binds a step with its data, and what a cache buys."""
    data = result.question.data
    for stall in result.stalls if data is not None else ():
        point = result.points[stall.point]
        share = stall.stall_seconds / stall.step_seconds if stall.step_seconds else 0.0
        where = f"In {budget_text(point)} on {result.setting_of(point).label}"
        text = (
            f"{where} a step is bound by {stall.bound_by}: "
            f"{format_seconds(stall.step_seconds)} with its data, {format_seconds(stall.plan_seconds)} "
            f"without; {format_share(share)} is a data stall (fetch {format_seconds(stall.fetch_seconds)}, "
            f"prepare {format_seconds(stall.prepare_seconds)}), and the storage is busy for "
            f"{format_seconds(stall.flash_seconds)} with pages and data."
        )
        if stall.cached_step_seconds is not None and stall.cached_share is not None:
            text += (
                f" A cache of {format_bytes(stall.cache_bytes or 0)} holds "
                f"{format_share(stall.cached_share)} of the data and makes it "
                f"{format_seconds(stall.cached_step_seconds)}."
            )
        yield Answer(
            "data-stalls",
            text,
            Basis.MEASURED if data is not None and data.measured else Basis.GIVEN,
            (stall.point,),
            (("step_seconds", stall.step_seconds), ("stall_share", share)),
        )


def marginal_value(result: WhatIf) -> Iterator[Answer]:
    """What each change buys."""
    for index in dict.fromkeys(marginal.point for marginal in result.marginals):
        point = result.points[index]
        parts, figures = [], []
        for marginal in (marginal for marginal in result.marginals if marginal.point == index):
            if marginal.saved_share is None:
                parts.append(f"{marginal.change}: no plan found")
                continue
            sure = "" if marginal.certain else " (within the gap)"
            parts.append(f"{marginal.change} {saving_text(marginal.saved_share)}{sure}")
            figures.append((marginal.change, marginal.saved_share))
        yield Answer(
            "marginal-value",
            f"In energy, from {budget_text(point)} on {result.setting_of(point).label}"
            f"{deadline_text(point)}: {', '.join(parts)}.",
            Basis.SOLVED,
            (index,),
            tuple(figures),
        )
