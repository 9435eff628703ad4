"""What a plan means in daily use: battery, energy budget, flash life, time, carbon, and sentences on it."""

from __future__ import annotations

import math
from collections.abc import Iterator

from poet.devices.profile import Profile
from poet.plans.page_slots import Wear, erases_text, life_steps, step_wear
from poet.plans.plan_parts import Endurance
from poet.problem.schedule import Schedule
from poet.util.units import (
    format_above,
    format_bytes,
    format_count,
    format_joules,
    format_more,
    format_seconds,
    format_share,
)
from poet.whatif.question import Duty
from poet.whatif.result import Answer, Basis, FoundPlan, Point, Setting, Usage, Verdict, WhatIf

DAYS_PER_YEAR = 365.25
_NOTHING = 5e-6  # shares below it are rounding, and read as 0.000 %


def endurance_of(profile: Profile | None) -> Endurance:
    """What the storage of a device survives."""
    storage = profile.storage if profile is not None else None
    if storage is None:
        return Endurance()
    cycles = storage.block_cycles
    written_bytes = storage.lifetime_written_bytes if cycles is None else None
    return Endurance(written_bytes, cycles, storage.erase_block_bytes)


def wear_of(setting: Setting, schedule: Schedule, accumulating: Schedule | None) -> Wear:
    """What a step takes of the storage, all its pieces together; schedules are those of a `FoundPlan`."""
    runs = [(setting.problem, schedule, 1)]
    if accumulating is not None and setting.accumulating is not None:
        runs.append((setting.accumulating.problem, accumulating, setting.accumulating_runs))
    return step_wear(runs, endurance_of(setting.profile).block_bytes)


def life_of(plan: FoundPlan, setting: Setting) -> float | None:
    """Steps until the storage is worn out; infinite where nothing is written, ``None``: not known."""
    return life_steps(endurance_of(setting.profile), wear_of(setting, plan.schedule, plan.accumulating))


def usage_of(
    plan: FoundPlan, setting: Setting, duty: Duty, *, stall_seconds: float = 0.0, stall_joules: float = 0.0
) -> Usage:
    """What ``plan`` means under ``duty``; each step also waits ``stall_seconds`` for its data."""
    step_joules = plan.joules + stall_joules
    session_joules = step_joules * duty.steps_per_session
    battery, budget, grams = duty.battery_joules, duty.energy_budget, duty.grid_grams_per_joule
    steps = None if budget is None else _times(budget.joules * (1 + 1e-12), step_joules)
    samples = None if steps is None or setting.batch is None else steps * setting.batch
    life = life_of(plan, setting)
    steps_per_year = duty.steps_per_session * duty.sessions_per_day * DAYS_PER_YEAR
    return Usage(
        joules_per_sample=None if setting.batch is None else step_joules / setting.batch,
        session_joules=session_joules,
        session_seconds=(plan.seconds + stall_seconds) * duty.steps_per_session,
        battery_share_per_session=None if battery is None else session_joules / battery,
        sessions_per_charge=None if battery is None else _times(battery, session_joules),
        budget_steps=steps,
        budget_samples=samples,
        budget_epochs=None if samples is None or not duty.dataset_samples else samples / duty.dataset_samples,
        flash_life_steps=life,
        flash_life_years=None if life is None else life / steps_per_year,
        session_grams=None if grams is None else session_joules * grams,
    )


def _times(joules: float, each_joules: float) -> int | None:
    """How often ``joules`` are enough; ``None``: for any number, as each time takes none."""
    return math.floor(joules / each_joules) if each_joules else None


# --- words ------------------------------------------------------------------------------------


def deadline_text(point: Point) -> str:
    """`` within 1.3x``, or nothing without a deadline."""
    return "" if point.deadline is None else f" within {point.deadline}"


def budget_text(point: Point) -> str:
    """Its RAM budget."""
    budget = point.limits.ram_budget_bytes
    return "any amount" if budget is None else format_bytes(budget)


def proof_text(point: Point) -> str:
    """How good its plan is known to be: a point's bound may be that of a single solver, or a neighbour's."""
    if point.verdict is Verdict.OPTIMAL:
        return "at its bound"
    return f"within {format_share(point.gap or 0.0)} of the best"


def overhead_text(share: float) -> str:
    """How much a plan takes beyond running every op once, a ``share`` of that."""
    if share < _NOTHING:
        return "as much as running every op once"
    if share < 1.0:
        return format_above(share, "running every op once")
    return f"{format_more(share)} as running every op once"


def duration_text(seconds: float) -> str:
    """``seconds`` for people: minutes where they are many."""
    return f"{seconds / 60:.3g} min" if 120.0 <= seconds < 1e4 else format_seconds(seconds)


def saving_text(share: float) -> str:
    """What saving a ``share`` of the energy is called; below 0 it costs more."""
    if abs(share) < _NOTHING:
        return "saves nothing"
    return f"saves {format_share(share)}" if share > 0 else f"costs {format_more(-share)}"


def _duty_text(result: WhatIf) -> str:
    """Sessions a day and their steps."""
    duty = result.question.duty
    sessions = "one session" if duty.sessions_per_day == 1 else f"{duty.sessions_per_day:g} sessions"
    return f"{sessions} of {duty.steps_per_session} steps a day"


# --- answers ----------------------------------------------------------------------------------


def _of_chosen(result: WhatIf, question: str, text: str, **figures: float | None) -> Answer:
    """An answer about the chosen point."""
    assert result.chosen is not None
    known = tuple((name, float(amount)) for name, amount in figures.items() if amount is not None)
    return Answer(question, text, Basis.SOLVED, (result.chosen,), known)


def energy_budget(result: WhatIf) -> Iterator[Answer]:
    """What the energy budget buys."""
    budget = result.question.duty.energy_budget
    if budget is None or result.chosen is None:
        return
    _, setting, plan, usage = result.of_chosen()
    allowed = f"{format_joules(budget.joules)} per {budget.per}"
    if budget.per == "step":
        text = f"{format_joules(plan.joules)} per step is within {allowed}, {setting.label}."
        yield _of_chosen(result, "energy-budget", text, joules=plan.joules)
        return
    steps, samples, epochs = usage.budget_steps, usage.budget_samples, usage.budget_epochs
    bought = [f"{'any number of' if steps is None else steps} steps"]
    bought += [] if samples is None else [f"{samples} samples"]
    bought += [] if epochs is None else [f"{epochs:.3g} epochs"]
    text = f"{allowed} buys {', '.join(bought)} per {budget.per} with the headline's plan, {setting.label}."
    yield _of_chosen(result, "energy-budget", text, steps=steps, samples=samples, epochs=epochs)


def battery(result: WhatIf) -> Iterator[Answer]:
    """Share of charge per session, sessions per charge."""
    duty = result.question.duty
    if duty.battery_joules is None or result.chosen is None:
        return
    _, setting, _, usage = result.of_chosen()
    share, sessions = usage.battery_share_per_session, usage.sessions_per_charge
    assert share is not None
    text = (
        f"A session of {duty.steps_per_session} steps takes {format_share(share)} of a full charge of "
        f"{format_joules(duty.battery_joules)} ({duty.battery_joules / 3600:.3g} Wh) on {setting.label}; "
        f"a charge lasts for {'any number of' if sessions is None else sessions} sessions."
    )
    figures = {"battery_share_per_session": share, "sessions_per_charge": sessions or 0}
    yield _of_chosen(result, "battery", text, **figures)


def flash_life(result: WhatIf) -> Iterator[Answer]:
    """Steps and years until the storage is worn out, for the chosen and for the leanest plan."""
    if result.chosen is None:
        return
    for index in dict.fromkeys((result.chosen, result.leanest(result.chosen))):
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
            wears = erases_text(wear_of(setting, plan.schedule, plan.accumulating))
        yield Answer(
            "flash-life",
            f"{written} and {wears}: the flash lasts "
            f"{format_count(usage.flash_life_steps)} steps, {format_count(usage.flash_life_years)} years at "
            f"{_duty_text(result)}.",
            Basis.SOLVED,
            (index,),
            (("steps", usage.flash_life_steps), ("years", usage.flash_life_years)),
        )


def wall_time(result: WhatIf) -> Iterator[Answer]:
    """How long a session takes."""
    if result.chosen is None:
        return
    _, setting, _, usage = result.of_chosen()
    steps = result.question.duty.steps_per_session
    stalls = ", waiting for data included" if result.question.data is not None else ""
    lasts = duration_text(usage.session_seconds)
    text = f"A session of {steps} steps lasts {lasts} on {setting.label}{stalls}."
    yield _of_chosen(result, "wall-time", text, session_seconds=usage.session_seconds)


def carbon(result: WhatIf) -> Iterator[Answer]:
    """Grams of carbon dioxide."""
    intensity = result.question.duty.grid_grams_per_joule
    if intensity is None or result.chosen is None:
        return
    _, setting, _, usage = result.of_chosen()
    grams = usage.session_grams or 0.0
    yearly = grams * result.question.duty.sessions_per_day * DAYS_PER_YEAR
    text = (
        f"A session on {setting.label} stands for {grams:.3g} g of carbon dioxide at "
        f"{intensity * 3.6e6:.4g} g/kWh, a year of {_duty_text(result)} for {yearly:.3g} g."
    )
    yield _of_chosen(result, "carbon", text, session_grams=grams, year_grams=yearly)


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
