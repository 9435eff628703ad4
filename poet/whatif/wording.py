"""What answers share: which points count, and how a point is spoken of."""

from __future__ import annotations

import math
from collections.abc import Iterator

from poet.units import format_above, format_bytes, format_more, format_seconds, format_share
from poet.whatif.question import Duty
from poet.whatif.result import FoundPlan, Point, Setting, Usage, Verdict, WhatIf


def leanest(result: WhatIf, index: int) -> int:
    """The point of the same setting and deadline with the least RAM budget that has a plan."""
    point = result.points[index]
    mine = (
        (other.limits.ram_budget_bytes or 0, number)
        for number, other, _ in planned_points(result)
        if other.setting == point.setting and other.deadline == point.deadline
    )
    return min(mine)[1]


def planned_points(result: WhatIf) -> Iterator[tuple[int, Point, FoundPlan]]:
    """Index, point and plan of every point that has one."""
    for index, point in enumerate(result.points):
        plan = result.plan_of(point)
        if plan is not None:
            yield index, point, plan


def chosen_of(result: WhatIf) -> tuple[Point, Setting, FoundPlan, Usage]:
    """The chosen point with all that belongs to it; there must be one."""
    assert result.chosen is not None
    point, usage = result.points[result.chosen], result.usages[result.chosen]
    plan = result.plan_of(point)
    assert plan is not None
    assert usage is not None
    return point, result.setting_of(point), plan, usage


def per_sample(result: WhatIf, index: int) -> float:
    """Joules per sample, or per step where the batch is not known."""
    point = result.points[index]
    plan = result.plan_of(point)
    assert plan is not None
    return plan.joules / (result.setting_of(point).batch or 1)


def within_budget(plan: FoundPlan, duty: Duty) -> bool:
    """Whether at least one step of ``plan`` is within the energy budget."""
    return duty.energy_budget is None or plan.joules <= duty.energy_budget.joules * (1 + 1e-12)


def there(result: WhatIf, point: Point, plan: FoundPlan) -> bool:
    """Whether the device has the RAM that the plan takes; larger budgets ask about another board."""
    profile = result.setting_of(point).profile
    return profile is None or plan.peak_ram_bytes <= profile.memory.ram_bytes.value


def latest_seconds(point: Point) -> float:
    """Its deadline; infinite without one."""
    return math.inf if point.limits.deadline_seconds is None else point.limits.deadline_seconds


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


_NOTHING = 5e-6  # shares below it are rounding, and read as 0.000 %
_MINUTES_FROM, _MINUTES_TO = 120.0, 1e4


def overhead_text(share: float) -> str:
    """How much a plan takes beyond running every op once, a ``share`` of that."""
    if share < _NOTHING:
        return "as much as running every op once"
    if share < 1.0:
        return format_above(share, "running every op once")
    return f"{format_more(share)} as running every op once"


def duration_text(seconds: float) -> str:
    """``seconds`` for people: minutes where they are many."""
    if _MINUTES_FROM <= seconds < _MINUTES_TO:
        return f"{seconds / 60:.3g} min"
    return format_seconds(seconds)


def saving_text(share: float) -> str:
    """What saving a ``share`` of the energy is called; below 0 it costs more."""
    if abs(share) < _NOTHING:
        return "saves nothing"
    return f"saves {format_share(share)}" if share > 0 else f"costs {format_more(-share)}"


def duty_text(result: WhatIf) -> str:
    """Sessions a day and their steps."""
    duty = result.question.duty
    sessions = "one session" if duty.sessions_per_day == 1 else f"{duty.sessions_per_day:g} sessions"
    return f"{sessions} of {duty.steps_per_session} steps a day"
