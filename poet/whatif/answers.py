"""The questions of a team, answered in sentences from solved points.

Each function takes a sweep and gives an answer, or none where it was not asked. Where a number lies
between solved points the answer says that it is interpolated.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator

from poet.units import format_bytes, format_joules, format_seconds, format_share
from poet.whatif.question import Duty
from poet.whatif.result import Answer, Basis, FoundPlan, Point, Setting, Usage, Verdict, WhatIf

_FEW = 4


def choose(result: WhatIf) -> int | None:
    """The point that the headline speaks of: the best plan within the energy budget.

    Best is the least energy per sample, then the least RAM budget, then the latest deadline.
    """
    duty = result.question.duty
    planned = [
        (_per_sample(result, index), point.limits.ram_budget_bytes or 0, -_deadline(point), index)
        for index, point, plan in _planned(result)
        if _within(plan, duty) and _there(result, point, plan)
    ]
    return min(planned, default=(0.0, 0, 0.0, None))[3]


def answers_of(result: WhatIf) -> tuple[Answer, ...]:
    """Every answer that the question asks for, the headline first."""
    makers: tuple[Callable[[WhatIf], Iterable[Answer]], ...] = (
        headline, which_device, least_ram, least_energy, energy_budget, battery, flash_life, wall_time,
        carbon, data_stalls, marginal_value,
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
        for _, point, plan in _planned(result)
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
        why = "no plan was found in time" if unsolved else "no plan exists inside the limits asked about"
        planned = [(point, plan) for _, point, plan in _planned(result)]
        if any(_there(result, point, plan) for point, plan in planned):
            why = "no plan found stays within the energy budget"
        reasons = dict.fromkeys(_why_not(result, setting.device) for setting in result.settings)
        text = f"{name}: {why} ({'; '.join(list(reasons)[:_FEW])})."
        yield Answer("headline", text, Basis.SOLVED, tuple(range(min(len(result.points), _FEW))))
        return
    point, setting, plan, _ = _chosen(result)
    overhead = plan.joules - setting.problem.compute_joules
    share = overhead / setting.problem.compute_joules if setting.problem.compute_joules else 0.0
    yield Answer(
        "headline",
        f"{name} trains on {setting.label} in {_budget(point)} of RAM{_by(point)}: "
        f"{format_joules(plan.joules)} and {format_seconds(plan.seconds)} per step, "
        f"{format_share(max(0.0, share))} above running every op once; {_proof(point)}.",
        Basis.SOLVED,
        (result.chosen,),
        (
            ("joules", plan.joules),
            ("seconds", plan.seconds),
            ("peak_ram_bytes", float(plan.peak_ram_bytes)),
            ("overhead_share", share),
        ),
    )


def which_device(result: WhatIf) -> Iterator[Answer]:
    """Devices by energy per sample at their best point; those where nothing fits, and why."""
    devices = dict.fromkeys(setting.device for setting in result.settings)
    if len(devices) < 2:
        return
    ranked, out = [], []
    for device in devices:
        mine = [
            (_per_sample(result, index), index)
            for index, point, plan in _planned(result)
            if result.settings[point.setting].device == device
            and _within(plan, result.question.duty)
            and _there(result, point, plan)
        ]
        if mine:
            ranked.append((*min(mine), device))
        else:
            out.append(f"{device} has no plan ({_why_not(result, device)})")
    ranked.sort()
    parts = [f"{device} {format_joules(joules)} ({_time(result, index)})" for joules, index, device in ranked]
    unit = "per sample" if all(setting.batch for setting in result.settings) else "per step"
    best = f"{ranked[0][2]} takes the least energy {unit}: {', '.join(parts)}" if ranked else ""
    yield Answer(
        "which-device",
        ". ".join(filter(None, (best, *out))) + ".",
        Basis.SOLVED,
        tuple(index for _, index, _ in ranked),
        tuple((f"{device}_joules", joules) for joules, _, device in ranked),
    )


def least_ram(result: WhatIf) -> Iterator[Answer]:
    """Per device the least RAM of a plan for each deadline, and what is proven below it."""
    for number, setting in _one_per_device(result):
        found: dict[str, list[str | None]] = {}
        points, figures = [], []
        for deadline in dict.fromkeys(point.deadline for point in result.points if point.setting == number):
            mine = [
                (plan.peak_ram_bytes, index)
                for index, point, plan in _planned(result)
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
            parts = (f"{_within_deadlines(deadlines)} {what}" for what, deadlines in found.items())
            text = f"On {setting.label} the least RAM of a plan found is, {', '.join(parts)}."
            yield Answer("least-ram", text, Basis.SOLVED, tuple(points), tuple(figures))


def least_energy(result: WhatIf) -> Iterator[Answer]:
    """Per device the least energy for some of the RAM budgets, at the latest deadline."""
    for number, setting in _one_per_device(result):
        mine = [entry for entry in _planned(result) if entry[1].setting == number]
        if not mine:
            continue
        latest = max(_deadline(point) for _, point, _ in mine)
        curve = sorted(
            (point.limits.ram_budget_bytes or 0, index, plan)
            for index, point, plan in mine
            if _deadline(point) == latest
        )
        stride = max(1, math.ceil((len(curve) - 1) / _FEW))
        shown = [*curve[:-1:stride], curve[-1]]
        parts = [
            f"{format_joules(plan.joules)} in {format_bytes(ram)} ({_proof(result.points[index])})"
            for ram, index, plan in shown
        ]
        yield Answer(
            "least-energy",
            f"On {setting.label} a step takes at least-energy plans of {', '.join(parts)}.",
            Basis.SOLVED,
            tuple(index for _, index, _ in shown),
            tuple((f"joules_{ram}", plan.joules) for ram, _, plan in shown),
        )


def energy_budget(result: WhatIf) -> Iterator[Answer]:
    """What the energy budget buys."""
    budget = result.question.duty.energy_budget
    if budget is None or result.chosen is None:
        return
    _, setting, plan, usage = _chosen(result)
    allowed = f"{format_joules(budget.joules)} per {budget.per}"
    if budget.per == "step":
        text = f"{format_joules(plan.joules)} per step is within {allowed}, {setting.label}."
        yield Answer("energy-budget", text, Basis.SOLVED, (result.chosen,), (("joules", plan.joules),))
        return
    steps = usage.budget_steps or 0
    bought = [f"{steps} steps"]
    figures = [("steps", float(steps))]
    if usage.budget_samples is not None:
        bought.append(f"{usage.budget_samples} samples")
        figures.append(("samples", float(usage.budget_samples)))
    if usage.budget_epochs is not None:
        bought.append(f"{usage.budget_epochs:.3g} epochs")
        figures.append(("epochs", usage.budget_epochs))
    yield Answer(
        "energy-budget",
        f"{allowed} buys {', '.join(bought)} per {budget.per} with the best plan, {setting.label}.",
        Basis.SOLVED,
        (result.chosen,),
        tuple(figures),
    )


def battery(result: WhatIf) -> Iterator[Answer]:
    """Share of charge per session, sessions per charge."""
    duty = result.question.duty
    if duty.battery_joules is None or result.chosen is None:
        return
    _, setting, _, usage = _chosen(result)
    share, sessions = usage.battery_share_per_session, usage.sessions_per_charge
    assert share is not None
    yield Answer(
        "battery",
        f"A session of {duty.steps_per_session} steps takes {format_share(share)} of a full charge of "
        f"{format_joules(duty.battery_joules)} on {setting.label}; a charge lasts for "
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
        where = f"In {_budget(point)} on {setting.label}"
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
        yield Answer(
            "flash-life",
            f"{written} and wears {format_bytes(plan.worn_bytes)}: the flash lasts "
            f"{usage.flash_life_steps:.3g} steps, {usage.flash_life_years:.3g} years at {_duty(result)}.",
            Basis.SOLVED,
            (index,),
            (("steps", usage.flash_life_steps), ("years", usage.flash_life_years)),
        )


def wall_time(result: WhatIf) -> Iterator[Answer]:
    """How long a session takes."""
    if result.chosen is None:
        return
    _, setting, _, usage = _chosen(result)
    steps = result.question.duty.steps_per_session
    stalls = ", waiting for data included" if result.question.data is not None else ""
    yield Answer(
        "wall-time",
        f"A session of {steps} steps lasts {format_seconds(usage.session_seconds)} on {setting.label}"
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
    _, setting, _, usage = _chosen(result)
    grams = usage.session_grams or 0.0
    yearly = grams * result.question.duty.sessions_per_day * 365.25
    yield Answer(
        "carbon",
        f"A session on {setting.label} stands for {grams:.3g} g of carbon dioxide at "
        f"{intensity * 3.6e6:.4g} g/kWh, a year of {_duty(result)} for {yearly:.3g} g.",
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
        text = (
            f"In {_budget(point)} on {result.setting_of(point).label} a step is bound by {stall.bound_by}: "
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
            word = "saves" if marginal.saved_share >= 0 else "costs"
            sure = "" if marginal.certain else " (within the gap)"
            parts.append(f"{marginal.change} {word} {format_share(abs(marginal.saved_share))} energy{sure}")
            figures.append((marginal.change, marginal.saved_share))
        yield Answer(
            "marginal-value",
            f"From {_budget(point)} on {result.setting_of(point).label}{_by(point)}: {', '.join(parts)}.",
            Basis.SOLVED,
            (index,),
            tuple(figures),
        )


def leanest(result: WhatIf, index: int) -> int:
    """The point of the same setting and deadline with the least RAM budget that has a plan."""
    point = result.points[index]
    mine = (
        (other.limits.ram_budget_bytes or 0, number)
        for number, other, _ in _planned(result)
        if other.setting == point.setting and other.deadline == point.deadline
    )
    return min(mine)[1]


# --- words ------------------------------------------------------------------------------------


def _planned(result: WhatIf) -> Iterator[tuple[int, Point, FoundPlan]]:
    for index, point in enumerate(result.points):
        plan = result.plan_of(point)
        if plan is not None:
            yield index, point, plan


def _chosen(result: WhatIf) -> tuple[Point, Setting, FoundPlan, Usage]:
    assert result.chosen is not None
    point, usage = result.points[result.chosen], result.usages[result.chosen]
    plan = result.plan_of(point)
    assert plan is not None
    assert usage is not None
    return point, result.setting_of(point), plan, usage


def _per_sample(result: WhatIf, index: int) -> float:
    """Joules per sample, or per step where the batch is not known."""
    point = result.points[index]
    plan = result.plan_of(point)
    assert plan is not None
    return plan.joules / (result.setting_of(point).batch or 1)


def _within(plan: FoundPlan, duty: Duty) -> bool:
    """Whether at least one step of ``plan`` is within the energy budget."""
    return duty.energy_budget is None or plan.joules <= duty.energy_budget.joules * (1 + 1e-12)


def _there(result: WhatIf, point: Point, plan: FoundPlan) -> bool:
    """Whether the device has the RAM that the plan takes; larger budgets ask about another board."""
    profile = result.setting_of(point).profile
    return profile is None or plan.peak_ram_bytes <= profile.memory.ram_bytes.value


def _why_not(result: WhatIf, device: str) -> str:
    """Why none of a device's points can be chosen."""
    mine = [point for point in result.points if result.setting_of(point).device == device]
    profile = result.setting_of(mine[0]).profile if mine else None
    needed = [plan.peak_ram_bytes for point in mine if (plan := result.plan_of(point)) is not None]
    if profile is not None and needed and min(needed) > profile.memory.ram_bytes.value:
        has = format_bytes(profile.memory.ram_bytes.value)
        return f"the leanest plan takes {format_bytes(min(needed))}, and {device} has {has}"
    if needed:
        return f"every plan on {device} takes more energy than the budget allows"
    reasons = (point.message.rstrip(".") for point in mine if point.message)
    return next(reasons, "none was found")


def _one_per_device(result: WhatIf) -> Iterator[tuple[int, Setting]]:
    """Per device the setting of its best point, or its first one."""
    for device in dict.fromkeys(setting.device for setting in result.settings):
        best = min(
            (
                (_per_sample(result, index), point.setting)
                for index, point, plan in _planned(result)
                if result.settings[point.setting].device == device and _there(result, point, plan)
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
        return " (none needs less)"
    return f" ({format_bytes(budget)} is proven too little)"


def _deadline(point: Point) -> float:
    return math.inf if point.limits.deadline_seconds is None else point.limits.deadline_seconds


def _within_deadlines(deadlines: list[str | None]) -> str:
    timed = " or ".join(deadline for deadline in deadlines if deadline is not None)
    words = ([f"within {timed}"] if timed else []) + ["without a deadline"] * (None in deadlines)
    return " or ".join(words)


def _by(point: Point) -> str:
    return "" if point.deadline is None else f" within {point.deadline}"


def _budget(point: Point) -> str:
    budget = point.limits.ram_budget_bytes
    return "any amount" if budget is None else format_bytes(budget)


def _time(result: WhatIf, index: int) -> str:
    plan = result.plan_of(result.points[index])
    assert plan is not None
    return f"{format_seconds(plan.seconds)} per step"


def _proof(point: Point) -> str:
    if point.verdict is Verdict.OPTIMAL:
        return "proven optimal"
    return f"within {format_share(point.gap or 0.0)} of the best"


def _duty(result: WhatIf) -> str:
    duty = result.question.duty
    sessions = "one session" if duty.sessions_per_day == 1 else f"{duty.sessions_per_day:g} sessions"
    return f"{sessions} of {duty.steps_per_session} steps a day"
