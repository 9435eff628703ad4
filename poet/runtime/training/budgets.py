"""The plans that a training may go to when its budget changes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from poet.errors import Infeasible, InvalidSchedule, OutOfTime, PlanError
from poet.plans.plan_parts import Request
from poet.plans.training_plan import Plan
from poet.problem import Objective
from poet.util.units import format_bytes

Planner = Callable[[Plan, int], Plan]
"""Makes the plan for another budget, as `poet.plan_again` does."""


class Budgets:
    """Plans for one training, of which the one that takes the least inside a budget is taken."""

    def __init__(self, plan: Plan) -> None:
        """Begin with the plan that was opened, and those that its file has for other budgets."""
        self._opened = replace(plan, budgets=()) if plan.budgets else plan
        self._made: dict[int, Plan] = {  # by the budget that each was made for
            made_for: made for made in plan.budgets if (made_for := made.request.limits.ram_budget_bytes)
        }

    @property
    def sizes_bytes(self) -> tuple[int, ...]:
        """The budgets, rising, that plans were made for."""
        opened_bytes = self._opened.request.limits.ram_budget_bytes
        return tuple(sorted({*self._made} | ({opened_bytes} if opened_bytes is not None else set())))

    def plan_for(self, ram_bytes: int, planner: Planner | None) -> Plan:
        """That which takes least inside ``ram_bytes``: the plan opened, one made before, or a new one.

        The least of what the opened one was to take the least of, then of energy.

        A new one is made where none of the others fits, or each that does was made for a smaller budget or by
        an online policy, for want of a search.

        Raises:
            Infeasible: none fits, and none can be made.
            OutOfTime: none fits, and the planner found none in time.
        """
        opened_bytes = self._opened.request.limits.ram_budget_bytes
        asked = [(opened_bytes, self._opened), *self._made.items()]
        fitting = [
            (made_for, plan) for made_for, made in asked if (plan := within(made, ram_bytes)) is not None
        ]
        may_gain = all(
            plan.outcome.is_online or (made_for is not None and made_for < ram_bytes)
            for made_for, plan in fitting
        )
        known = [plan for _, plan in fitting]
        objective = self._opened.outcome.objective

        def amounts(plan: Plan) -> tuple[float, float]:
            return _step_amount(plan, objective), plan.step_joules

        if planner is not None and may_gain:
            try:
                made, before = planner(self._opened, ram_bytes), self._made.get(ram_bytes)
                if before is None or amounts(made) < amounts(before):
                    self._made[ram_bytes] = made
                known.append(made)
            except (Infeasible, OutOfTime):
                if not known:
                    raise
        if not known:
            raise Infeasible(
                f"the plan takes {format_bytes(min(plan.held_bytes for _, plan in asked))}, more than "
                f"{format_bytes(ram_bytes)}; give set_budget planner=poet.plan_again, or plan "
                "for less RAM"
            )
        return min(known, key=amounts)


def _step_amount(plan: Plan, objective: Objective) -> float:
    """What a whole step takes of ``objective``: joules, seconds or bytes."""
    if objective is Objective.ENERGY:
        return plan.step_joules
    if objective is Objective.TIME:
        return plan.step_seconds
    return float(plan.step_peak_ram_bytes if objective is Objective.RAM else plan.step_written_bytes)


def _bounded(part: Plan, ram_bytes: int) -> Plan:
    return replace(part, request=_request(part, ram_bytes))


def _request(plan: Plan, ram_bytes: int) -> Request:
    return replace(plan.request, limits=replace(plan.request.limits, ram_budget_bytes=ram_bytes))


def within(plan: Plan, ram_bytes: int) -> Plan | None:
    """``plan`` as one for this budget; ``None``: it takes more."""
    try:
        others = [replace(other, plan=_bounded(other.plan, ram_bytes)) for other in plan.auxiliaries]
        made = plan.with_auxiliaries(others, request=_request(plan, ram_bytes))
    except (PlanError, InvalidSchedule):
        return None
    is_placed = made.has_fitting_arena or not plan.has_fitting_arena
    return made if is_placed and made.held_bytes <= ram_bytes else None
