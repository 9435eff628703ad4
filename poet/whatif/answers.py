"""The questions of a team, answered in sentences from solved points.

Each function takes a sweep and gives an answer, or none where it was not asked. Where a number lies
between solved points the answer says that it is interpolated.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator

from poet.util.units import IN_ORDER, format_bytes, format_joules, format_seconds, format_share
from poet.whatif.daily import (
    battery,
    budget_text,
    carbon,
    data_stalls,
    deadline_text,
    energy_budget,
    flash_life,
    marginal_value,
    overhead_text,
    proof_text,
    wall_time,
)
from poet.whatif.result import Answer, Basis, Point, Setting, Verdict, WhatIf, micro_words

_FEW = 4

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
        for index, point, plan in result.planned()
        if result.is_usable(point, plan)
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
    yield Answer(
        "headline",
        f"{name} trains on {setting.label} in {budget_text(point)} of RAM{deadline_text(point)}: "
        f"{format_joules(plan.joules)} and {format_seconds(plan.seconds)} per step, "
        f"{overhead_text(share)}; {proof_text(point)}. {_least_text(setting)}",
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
            (result.per_sample(index), index)
            for index, point, plan in result.planned()
            if result.settings[point.setting].device == device and result.is_usable(point, plan)
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


def micro_batches(result: WhatIf) -> Iterator[Answer]:
    """Per device, sizes and optimizer a sentence, where batches were planned in several numbers of pieces."""
    for numbers in _compared(result):
        parts: list[str] = []
        points: list[int] = []
        figures: list[tuple[str, float]] = []
        for number in numbers:
            setting = result.settings[number]
            mine = [
                (result.per_sample(index), plan.peak_ram_bytes, index)
                for index, point, plan in result.planned()
                if point.setting == number and result.is_usable(point, plan)
            ]
            if not mine:
                parts.append(f"{_called(setting)}: no plan was found")
                continue
            joules, _, best = min(mine)
            ram = min(peak for _, peak, _ in mine)
            plan = result.plan_of(result.points[best])
            assert plan is not None
            parts.append(
                f"{_called(setting)}: {format_joules(joules)} in {format_bytes(plan.peak_ram_bytes)} "
                f"({proof_text(result.points[best])}), {format_bytes(ram)} at least"
            )
            points.append(best)
            pieces = setting.micro_text or "1"
            figures += [(f"joules_{pieces}", joules), (f"peak_ram_bytes_{pieces}", float(ram))]
        where = ", ".join(filter(None, (setting.device, *_sizes(setting), setting.optimizer)))
        unit = "per sample" if setting.batch else "per step"
        yield Answer(
            "micro-batches",
            f"On {where}, least energy {unit} and least RAM of the plans found: {'; '.join(parts)}.",
            Basis.SOLVED,
            tuple(points),
            tuple(figures),
        )


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


def _called(setting: Setting) -> str:
    return "whole batches" if setting.micro is None else micro_words(setting.micro)


def _sizes(setting: Setting) -> Iterator[str]:
    return (f"{name}={size}" for name, size in setting.binding)


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
        parts = [
            f"{format_joules(plan.joules)} in {format_bytes(ram)} ({proof_text(result.points[index])})"
            for ram, index, plan in shown
        ]
        yield Answer(
            "least-energy",
            f"On {setting.label} the least energy of a step is {', '.join(parts)}.",
            Basis.SOLVED,
            tuple(index for _, index, _ in shown),
            tuple((f"joules_{ram}", plan.joules) for ram, _, plan in shown),
        )


# --- words ------------------------------------------------------------------------------------


def _least_text(setting: Setting) -> str:
    """What the headline's RAM is the least of, and what plain training needs."""
    near = format_share(NEAR_BEST - 1.0)
    plain = format_bytes(setting.keep_everything_bytes)
    return (
        f"Of the plans within {near} of the least energy it has the least RAM; plain training needs {plain}."
    )


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


def _time(result: WhatIf, index: int) -> str:
    plan = result.plan_of(result.points[index])
    assert plan is not None
    return f"{format_seconds(plan.seconds)} per step"


def _latest_seconds(point: Point) -> float:
    """Its deadline; infinite without one."""
    return math.inf if point.limits.deadline_seconds is None else point.limits.deadline_seconds
