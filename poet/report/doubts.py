"""What the intervals of a device's figures mean for a plan, as text and as data: robust plan, sensitivity."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from poet.devices.profile import Profile
from poet.problem import Limits
from poet.units import IN_ORDER, format_joules, format_seconds, format_share
from poet.whatif.robust import Robust
from poet.whatif.sensitivity import Sensitivity, Shift, slack_words

FEW = 5
"""Slacks that are told; the rest is slower still."""


def with_doubts(
    report: RenderableType,
    robust: Robust | None,
    sensitivity: Sensitivity | None,
    profile: Profile,
    limits: Limits,
) -> RenderableType:
    """``report``, followed by what was asked about the figures of ``profile``."""
    parts = [report]
    if robust is not None:
        parts += [Text(), _robust(robust, profile, limits)]
    if sensitivity is not None:
        parts += [Text(), _sensitivity(sensitivity, profile, limits)]
    return Group(*parts)


def doubts_data(robust: Robust | None, sensitivity: Sensitivity | None) -> dict[str, Any]:
    """JSON-ready; empty where nothing was asked."""
    data: dict[str, Any] = {}
    if robust is not None:
        told = asdict(robust)
        del told["schedule"]
        told["corners"] = [{**asdict(corner), "ends": dict(corner.ends)} for corner in robust.corners]
        data["robust"] = _finite(told)
    if sensitivity is not None:
        data["sensitivity"] = {
            "shifts": [
                _finite({**asdict(shift), "regret": shift.regret, "regret_at_most": shift.regret_at_most})
                for shift in sensitivity.shifts
            ],
            "decides": [group for group in _groups(sensitivity) if sensitivity.decides(group)],
            "slacks": [asdict(slack) for slack in sensitivity.slacks],
            "complete": sensitivity.complete,
        }
    return data


def _finite(data: dict[str, Any]) -> dict[str, Any]:
    return {
        key: None if isinstance(item, float) and not math.isfinite(item) else item
        for key, item in data.items()
    }


def _robust(found: Robust, profile: Profile, limits: Limits) -> RenderableType:
    words = [
        f"robust: at the ends of {profile.name}'s figures this plan takes at most "
        f"{format_share(found.regret)} more than the best plan known there; no plan's largest regret "
        f"{IN_ORDER} is below {format_share(found.regret_bound)}. {_nominal_words(found)}"
    ]
    if limits.deadline_seconds is not None:
        words.append(
            f"with every figure at its bad end it takes {format_seconds(found.slow_seconds)} of the "
            f"{format_seconds(limits.deadline_seconds)} allowed"
        )
    searches = f"{found.searches} further searches, {format_seconds(found.search_seconds)}"
    words.append(searches if found.complete else f"{searches}, until they were interrupted")
    table = _table("figures", "this plan", "stated figures' plan", "best known", "regret")
    for corner in found.corners:
        table.add_row(
            corner.name,
            format_joules(corner.joules),
            format_joules(corner.nominal_joules),
            format_joules(corner.best_joules),
            format_share(max(0.0, corner.joules / corner.best_joules - 1.0)),
        )
    return Group(*map(Text, words), Text(), table)


def _nominal_words(found: Robust) -> str:
    if found.nominal_is_late:
        return "The plan of the stated figures may miss a limit at the bad end."
    if found.nominal_regret <= found.regret:
        return "It is the plan of the stated figures."
    return f"That of the plan of the stated figures is {format_share(found.nominal_regret)}."


def _sensitivity(found: Sensitivity, profile: Profile, limits: Limits) -> RenderableType:
    deciding = [group for group in _groups(found) if found.decides(group)]
    others = [group for group in _groups(found) if group not in deciding]
    words = []
    if deciding:
        words.append(f"figures of {profile.name} that decide about the plan: {', '.join(deciding)}")
    if others:
        verb = "do" if len(others) > 1 else "does"
        words.append(f"the plan stays as good as any that is known wherever these are: {', '.join(others)}"
                     if not deciding else f"{', '.join(others)} {verb} not")  # fmt: skip
    if not found.shifts:
        words.append(f"no figure of {profile.name} may be off")
    if not found.complete:
        words.append("the searches were interrupted; what they did not come to is not listed")
    table = _table("figures at", "this plan", "best known", "regret", "no more than")
    for shift in sorted(found.shifts, key=lambda shift: -shift.regret):
        table.add_row(*_shift_row(shift))
    told: list[RenderableType] = [*map(Text, words), Text(), table]
    if found.slacks and limits.deadline_seconds is not None:
        told += [Text(), Text(f"the deadline of {format_seconds(limits.deadline_seconds)}")]
        told += [Text(f"  {slack_words(slack)}") for slack in found.slacks[:FEW]]
    return Group(*told)


def _shift_row(shift: Shift) -> Iterator[str]:
    yield f"{shift.group}, {shift.side} end"
    yield format_joules(shift.joules) + ("" if shift.in_time else ", too late")
    yield "none in time" if shift.best_joules is None else format_joules(shift.best_joules)
    yield format_share(max(0.0, shift.regret)) if shift.in_time else ""
    at_most = shift.regret_at_most
    yield format_share(max(0.0, at_most)) if shift.in_time and math.isfinite(at_most) else ""


def _groups(found: Sensitivity) -> tuple[str, ...]:
    return tuple(dict.fromkeys(shift.group for shift in found.shifts))


def _table(*headers: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for index, header in enumerate(headers):
        table.add_column(header, no_wrap=True, justify="left" if index == 0 else "right")
    return table
