"""The questions of a team, answered in sentences from solved points.

Each function takes a sweep and gives an answer, or none where it was not asked. Where a number lies
between solved points the answer says that it is interpolated.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from poet.plans.page_slots import erases_text
from poet.util.units import (
    IN_ORDER,
    format_above,
    format_bytes,
    format_count,
    format_joules,
    format_more,
    format_seconds,
    format_share,
)
from poet.whatif.result import Answer, Basis, Marginal, Point, Setting, Verdict, WhatIf
from poet.whatif.usage import DAYS_PER_YEAR, endurance_of, wear_of

_FEW = 4
_NOTHING = 5e-6  # shares below it are rounding, and read as 0.000 %

LEAST_ENERGY = "least-energy"
"""The question that several answers of a sweep may be about, one per device."""

NEAR_BEST = 1.2
"""Times the least energy per sample that the headline's plan may take."""


def choose(result: WhatIf) -> int | None:
    """The point that the headline is about: the least RAM at which the energy is near the best.

    Plans within the energy budget count. Of the setting with the least energy per sample, those that
    take at most `NEAR_BEST` of it: of these the least RAM budget, then the least energy, then the latest
    deadline. The least energy itself is most often plain training's, which needs no plan.
    """
    planned = [
        (result.per_sample(index), point.limits.ram_budget_bytes or math.inf, -_latest_seconds(point), index)
        for index, point, plan in result.planned(usable=True)
    ]
    if not planned:
        return None
    best_joules, _, _, best = min(planned)
    setting = result.points[best].setting
    near = (
        (ram, joules, later, index)
        for joules, ram, later, index in planned
        if joules <= NEAR_BEST * best_joules and result.points[index].setting == setting
    )
    return min(near)[3]


def answers_of(result: WhatIf) -> tuple[Answer, ...]:
    """Every answer that the question asks for, the headline first."""
    makers: tuple[Callable[[WhatIf], Iterable[Answer]], ...] = (
        headline, which_device, micro_batches, least_ram, least_energy, energy_budget, battery, flash_life,
        wall_time, carbon, data_stalls, marginal_value,
    )  # fmt: skip
    return tuple(answer for maker in makers for answer in maker(result))


def least_joules_at(
    result: WhatIf, setting: int, ram_budget_bytes: float, deadline: str | None
) -> tuple[float, Basis] | None:
    """Joules of a step of a setting in a budget: of a solved point, or interpolated between two.

    Linear between the plans of the nearest solved budgets below and above; the truth lies between
    those two. ``None``: the budget is outside what was solved.
    """
    curve = sorted(
        (point.limits.ram_budget_bytes or math.inf, plan.joules)
        for _, point, plan in result.planned()
        if point.setting == setting and point.deadline == deadline
    )
    for ram, joules in curve:
        if ram == ram_budget_bytes:
            return joules, Basis.SOLVED
    below = [entry for entry in curve if entry[0] < ram_budget_bytes]
    above = [entry for entry in curve if entry[0] > ram_budget_bytes]
    if not below or not above:
        return None
    (low, low_joules), (high, high_joules) = below[-1], above[0]
    share = (ram_budget_bytes - low) / (high - low)
    return low_joules + share * (high_joules - low_joules), Basis.INTERPOLATED


# --- the answers ------------------------------------------------------------------------------


def headline(result: WhatIf) -> Iterator[Answer]:
    """Whether it trains, where best, and at what cost."""
    name = result.question.model
    if result.chosen is None:
        unsolved = any(point.verdict in (Verdict.TIMEOUT, Verdict.UNSOLVED) for point in result.points)
        excluded = f"no plan {IN_ORDER} exists inside the limits asked about"
        why = "no plan was found in time" if unsolved else excluded
        planned = [(point, plan) for _, point, plan in result.planned()]
        if any(result.is_there(point, plan) for point, plan in planned):
            why = "no plan found stays within the energy budget"
        reasons = dict.fromkeys(_why_not(result, setting.device) for setting in result.settings)
        text = f"{name}: {why} ({'; '.join(list(reasons)[:_FEW])})."
        yield Answer("headline", text, Basis.SOLVED, tuple(range(min(len(result.points), _FEW))))
        return
    point, setting, plan, _ = result.of_chosen()
    overhead = plan.joules - setting.compute_joules
    share = overhead / setting.compute_joules if setting.compute_joules else 0.0
    near, plain = format_share(NEAR_BEST - 1.0), format_bytes(setting.keep_everything_bytes)
    text = (
        f"{name} trains on {setting.label} in {budget_text(point)} of RAM{deadline_text(point)}: "
        f"{format_joules(plan.joules)} and {format_seconds(plan.seconds)} per step, "
        f"{overhead_text(share)}; {proof_text(point)}. Of the plans within {near} of the least energy it has "
        f"the least RAM; plain training needs {plain}."
    )
    figures = {"joules": plan.joules, "seconds": plan.seconds, "peak_ram_bytes": plan.peak_ram_bytes}
    yield from _of_chosen(result, "headline", text, **figures, overhead_share=share)


def which_device(result: WhatIf) -> Iterator[Answer]:
    """Devices by energy per sample at their best point; those where nothing fits, and why."""
    devices = dict.fromkeys(setting.device for setting in result.settings)
    if len(devices) < 2:
        return
    ranked, out = [], []
    for device in devices:
        mine = [
            (result.per_sample(index), index, plan.seconds)
            for index, point, plan in result.planned(usable=True)
            if result.settings[point.setting].device == device
        ]
        if mine:
            ranked.append((*min(mine), device))
        else:
            out.append(f"{device} has no plan ({_why_not(result, device)})")
    ranked.sort()
    each = (f"{name} {format_joules(joules)} ({format_seconds(s)} per step)" for joules, _, s, name in ranked)
    unit = "per sample" if all(setting.batch for setting in result.settings) else "per step"
    best = f"{ranked[0][-1]} takes the least energy {unit}: {', '.join(each)}" if ranked else ""
    text = ". ".join(filter(None, (best, *out))) + "."
    figures = tuple((f"{device}_joules", joules) for joules, _, _, device in ranked)
    yield Answer("which-device", text, Basis.SOLVED, tuple(index for _, index, _, _ in ranked), figures)


def micro_batches(result: WhatIf) -> Iterator[Answer]:
    """Per device, sizes and optimizer a sentence, where batches were planned in several numbers of pieces."""
    for numbers in _compared(result):
        parts, points = [], []
        figures: list[tuple[str, float]] = []
        for setting in (result.settings[number] for number in numbers):
            mine = [
                (result.per_sample(index), plan.peak_ram_bytes, index)
                for index, point, plan in result.planned(usable=True)
                if result.setting_of(point) is setting
            ]
            if not mine:
                parts.append(f"{setting.pieces}: no plan was found")
                continue
            joules, peak, best = min(mine)
            ram = min(peak for _, peak, _ in mine)
            takes = f"{format_joules(joules)} in {format_bytes(peak)} ({proof_text(result.points[best])})"
            parts.append(f"{setting.pieces}: {takes}, {format_bytes(ram)} at least")
            points.append(best)
            number = setting.micro_text or "1"
            figures += [(f"joules_{number}", joules), (f"peak_ram_bytes_{number}", float(ram))]
        setting = result.settings[numbers[0]]
        where, unit = replace(setting, micro=None).label, "per sample" if setting.batch else "per step"
        text = f"On {where}, least energy {unit} and least RAM of the plans found: {'; '.join(parts)}."
        yield Answer("micro-batches", text, Basis.SOLVED, tuple(points), tuple(figures))


def _compared(result: WhatIf) -> Iterator[list[int]]:
    """The settings that differ in their number of pieces alone, where there is more than one of them.

    A number that comes again is of other devices or optimizers of the same name, which are compared apart.
    """
    groups: dict[tuple[object, ...], list[dict[str | None, int]]] = {}
    for number, setting in enumerate(result.settings):
        mine = groups.setdefault((setting.device, setting.binding, setting.optimizer), [{}])
        if setting.micro_text in mine[-1]:
            mine.append({})
        mine[-1][setting.micro_text] = number
    return (list(group.values()) for mine in groups.values() for group in mine if len(group) > 1)


def least_ram(result: WhatIf) -> Iterator[Answer]:
    """Per device the least RAM of a plan for each deadline, and what is proven below it."""
    for number, setting in _one_per_device(result):
        found: dict[str, list[str | None]] = {}
        points, figures = [], []
        asked = tuple(dict.fromkeys(point.deadline for point in result.points if point.setting == number))
        for deadline in asked:
            mine = [
                (plan.peak_ram_bytes, index)
                for index, point, plan in result.planned()
                if point.setting == number and point.deadline == deadline
            ]
            if not mine:
                found.setdefault("none was found", []).append(deadline)
                continue
            peak, index = min(mine)
            below = _infeasible_below(result, number, deadline, peak)
            found.setdefault(f"{format_bytes(peak)}{_proven_below(below, peak)}", []).append(deadline)
            points.append(index)
            figures.append((f"peak_ram_bytes_{deadline or 'none'}", float(peak)))
        if points:
            parts = (f"{_within_deadlines(deadlines, asked)}{what}" for what, deadlines in found.items())
            text = f"On {setting.label} the least RAM of a plan found is {'; '.join(parts)}."
            yield Answer("least-ram", text, Basis.SOLVED, tuple(points), tuple(figures))


def least_energy(result: WhatIf) -> Iterator[Answer]:
    """Per device the least energy for some of the RAM budgets, at the latest deadline."""
    for number, setting in _one_per_device(result):
        mine = [entry for entry in result.planned() if entry[1].setting == number]
        if not mine:
            continue
        latest = max(_latest_seconds(point) for _, point, _ in mine)
        curve = sorted(
            (point.limits.ram_budget_bytes or 0, index, plan)
            for index, point, plan in mine
            if _latest_seconds(point) == latest
        )
        stride = max(1, math.ceil((len(curve) - 1) / _FEW))
        shown = [*curve[:-1:stride], curve[-1]]
        parts = (
            f"{format_joules(plan.joules)} in {format_bytes(ram)} ({proof_text(result.points[index])})"
            for ram, index, plan in shown
        )
        text = f"On {setting.label} the least energy of a step is {', '.join(parts)}."
        figures = tuple((f"joules_{ram}", plan.joules) for ram, _, plan in shown)
        yield Answer(LEAST_ENERGY, text, Basis.SOLVED, tuple(index for _, index, _ in shown), figures)


# --- what the chosen plan means in use --------------------------------------------------------


def _of_chosen(result: WhatIf, question: str, text: str, **figures: float | None) -> Iterator[Answer]:
    """An answer about the chosen point."""
    assert result.chosen is not None
    known = tuple((name, float(amount)) for name, amount in figures.items() if amount is not None)
    yield Answer(question, text, Basis.SOLVED, (result.chosen,), known)


def energy_budget(result: WhatIf) -> Iterator[Answer]:
    """What the energy budget buys."""
    budget = result.question.duty.energy_budget
    if budget is None or result.chosen is None:
        return
    _, setting, plan, usage = result.of_chosen()
    allowed = f"{format_joules(budget.joules)} per {budget.per}"
    steps, samples, epochs = usage.budget_steps, usage.budget_samples, usage.budget_epochs
    if budget.per == "step":
        text = f"{format_joules(plan.joules)} per step is within {allowed}, {setting.label}."
        yield from _of_chosen(result, "energy-budget", text, joules=plan.joules)
        return
    bought = [f"{'any number of' if steps is None else steps} steps"]
    bought += [] if samples is None else [f"{samples} samples"]
    bought += [] if epochs is None else [f"{epochs:.3g} epochs"]
    text = f"{allowed} buys {', '.join(bought)} per {budget.per} with the headline's plan, {setting.label}."
    yield from _of_chosen(result, "energy-budget", text, steps=steps, samples=samples, epochs=epochs)


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
    yield from _of_chosen(result, "battery", text, **figures)


def flash_life(result: WhatIf) -> Iterator[Answer]:
    """Steps and years until the storage is worn out, for the chosen and for the leanest plan."""
    for index in result.highlighted():
        point = result.points[index]
        setting, plan, usage = result.setting_of(point), result.plan_of(point), result.usages[index]
        assert plan is not None
        assert usage is not None
        steps, years = usage.flash_life_steps, usage.flash_life_years
        text = f"In {budget_text(point)} on {setting.label} "
        figures: tuple[tuple[str, float], ...] = ()
        if plan.worn_bytes == 0:
            text += "nothing is written: training wears no flash."
        elif steps is None or years is None:
            text += f"a step writes {format_bytes(plan.written_bytes)}; "
            text += "the endurance of this storage is not known."
        else:
            wears = f"wears {format_bytes(plan.worn_bytes)}"
            if endurance_of(setting.profile).cycles is not None:
                wears = erases_text(wear_of(setting, plan.schedule, plan.accumulating))
            text += (
                f"a step writes {format_bytes(plan.written_bytes)} and {wears}: the flash lasts "
                f"{format_count(steps)} steps, {format_count(years)} years at {_duty_text(result)}."
            )
            figures = ("steps", steps), ("years", years)
        yield Answer("flash-life", text, Basis.SOLVED, (index,), figures)


def wall_time(result: WhatIf) -> Iterator[Answer]:
    """How long a session takes."""
    if result.chosen is None:
        return
    _, setting, _, usage = result.of_chosen()
    steps = result.question.duty.steps_per_session
    stalls = ", waiting for data included" if result.question.data is not None else ""
    lasts = duration_text(usage.session_seconds)
    text = f"A session of {steps} steps lasts {lasts} on {setting.label}{stalls}."
    yield from _of_chosen(result, "wall-time", text, session_seconds=usage.session_seconds)


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
    yield from _of_chosen(result, "carbon", text, session_grams=grams, year_grams=yearly)


def data_stalls(result: WhatIf) -> Iterator[Answer]:
    """What binds a step with its data, and what a cache buys."""
    data = result.question.data
    basis = Basis.MEASURED if data is not None and data.measured else Basis.GIVEN
    for stall in result.stalls:
        point = result.points[stall.point]
        share = stall.stall_seconds / stall.step_seconds if stall.step_seconds else 0.0
        where = f"In {budget_text(point)} on {result.setting_of(point).label}"
        fetch, prepare = format_seconds(stall.fetch_seconds), format_seconds(stall.prepare_seconds)
        text = (
            f"{where} a step is bound by {stall.bound_by}: {format_seconds(stall.step_seconds)} with its "
            f"data, {format_seconds(stall.plan_seconds)} without; {format_share(share)} is a data stall "
            f"(fetch {fetch}, prepare {prepare}), and the storage is busy for "
            f"{format_seconds(stall.flash_seconds)} with pages and data."
        )
        if stall.cached_step_seconds is not None and stall.cached_share is not None:
            text += (
                f" A cache of {format_bytes(stall.cache_bytes or 0)} holds "
                f"{format_share(stall.cached_share)} of the data and makes it "
                f"{format_seconds(stall.cached_step_seconds)}."
            )
        figures = ("step_seconds", stall.step_seconds), ("stall_share", share)
        yield Answer("data-stalls", text, basis, (stall.point,), figures)


def marginal_value(result: WhatIf) -> Iterator[Answer]:
    """What each change buys."""
    for index in dict.fromkeys(marginal.point for marginal in result.marginals):
        point = result.points[index]
        mine = [marginal for marginal in result.marginals if marginal.point == index]
        figures = tuple((each.change, each.saved_share) for each in mine if each.saved_share is not None)
        where = f"{budget_text(point)} on {result.setting_of(point).label}{deadline_text(point)}"
        text = f"In energy, from {where}: {', '.join(map(_bought, mine))}."
        yield Answer("marginal-value", text, Basis.SOLVED, (index,), figures)


def _bought(marginal: Marginal) -> str:
    if marginal.saved_share is None:
        return f"{marginal.change}: no plan found"
    sure = "" if marginal.certain else " (within the gap)"
    return f"{marginal.change} {saving_text(marginal.saved_share)}{sure}"


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
    return "optimal" if point.verdict is Verdict.OPTIMAL else f"gap {format_share(point.gap or 0.0)}"


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


def _why_not(result: WhatIf, device: str) -> str:
    """Why none of a device's points can be chosen."""
    mine = [point for point in result.points if result.setting_of(point).device == device]
    profile = result.setting_of(mine[0]).profile if mine else None
    needed = [plan.peak_ram_bytes for point in mine if (plan := result.plan_of(point)) is not None]
    if profile is not None and needed and min(needed) > profile.memory.ram_bytes.value:
        has = format_bytes(profile.memory.ram_bytes.value)
        return f"the leanest plan takes {format_bytes(min(needed))}, and {device} has {has}"
    if needed:
        return f"every plan found on {device} takes more energy than the budget allows"
    reasons = (point.message.rstrip(".") for point in mine if point.message)
    return next(reasons, "none was found")


def _one_per_device(result: WhatIf) -> Iterator[tuple[int, Setting]]:
    """Per device the setting of its best point, or its first one."""
    for device in dict.fromkeys(setting.device for setting in result.settings):
        best = min(
            (
                (result.per_sample(index), point.setting)
                for index, point, plan in result.planned()
                if result.settings[point.setting].device == device and result.is_there(point, plan)
            ),
            default=None,
        )
        mine = (number for number, setting in enumerate(result.settings) if setting.device == device)
        number = next(mine) if best is None else best[1]
        yield number, result.settings[number]


def _infeasible_below(result: WhatIf, setting: int, deadline: str | None, peak_bytes: int) -> int:
    """The largest budget under ``peak_bytes`` that is proven infeasible."""
    budgets = (
        point.limits.ram_budget_bytes or 0
        for point in result.points
        if (point.setting, point.deadline, point.verdict) == (setting, deadline, Verdict.INFEASIBLE)
    )
    least = result.settings[setting].lower_bound.bytes - 1
    return max((budget for budget in budgets if budget < peak_bytes), default=least)


def _proven_below(budget: int, peak_bytes: int) -> str:
    if budget >= peak_bytes - 1:
        return f" (none {IN_ORDER} needs less)"
    return f" ({format_bytes(budget)} is proven too little {IN_ORDER})"


def _within_deadlines(deadlines: list[str | None], asked: tuple[str | None, ...]) -> str:
    """Which deadlines an amount holds for, before it; nothing where no other was asked about."""
    if asked == (None,):
        return ""
    timed = " or ".join(deadline for deadline in deadlines if deadline is not None)
    words = ([f"within {timed}"] if timed else []) + ["without a deadline"] * (None in deadlines)
    return f"{' or '.join(words)}: "


def _latest_seconds(point: Point) -> float:
    """Its deadline; infinite without one."""
    return math.inf if point.limits.deadline_seconds is None else point.limits.deadline_seconds
