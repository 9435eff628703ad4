"""The plans that a training may go to when its budget changes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from poet.errors import Infeasible, InvalidSchedule, PlanError
from poet.training_plan import Plan, Shape
from poet.units import format_bytes

Planner = Callable[[Plan, int], Plan]
"""Makes the plan for another budget, as `poet.replanning.plan_again` does."""


class Budgets:
    """Plans for one training, of which the one of least energy inside a budget is taken."""

    def __init__(self, plan: Plan) -> None:
        """Begin with the plan that was opened."""
        self._opened = plan
        self._made: dict[int, Plan] = {}

    def plan_for(self, ram_bytes: int, planner: Planner | None) -> Plan:
        """That of least energy inside ``ram_bytes``: the one that was opened, one made before, or a new one.

        A new one is made where none of the others fits, or the budget is larger than that of the opened one.

        Raises:
            Infeasible: none fits, and none can be made.
            OutOfTime: the planner found none in time.
        """
        if ram_bytes not in self._made:
            opened_bytes = self._opened.request.limits.ram_budget_bytes
            known = within(self._opened, ram_bytes)
            may_gain = opened_bytes is not None and ram_bytes > opened_bytes
            if planner is not None and (known is None or may_gain):
                made = planner(self._opened, ram_bytes)
                known = made if known is None or made.step_joules < known.step_joules else known
            known = known or self._smaller(ram_bytes)
            if known is None:
                raise Infeasible(
                    f"the plan takes {format_bytes(self._opened.held_bytes)}, more than "
                    f"{format_bytes(ram_bytes)}; give set_budget planner=poet.replanning.plan_again, or plan "
                    "for less RAM"
                )
            self._made[ram_bytes] = known
        return self._made[ram_bytes]

    def _smaller(self, ram_bytes: int) -> Plan | None:
        """The best plan that was made for less."""
        fitting = (within(plan, ram_bytes) for size, plan in self._made.items() if size <= ram_bytes)
        return min(filter(None, fitting), key=lambda plan: plan.step_joules, default=None)


def within(plan: Plan, ram_bytes: int) -> Plan | None:
    """``plan`` as one for this budget; ``None``: it takes more."""

    def bounded(part: Plan) -> Plan:
        limits = replace(part.request.limits, ram_budget_bytes=ram_bytes)
        return replace(part, request=replace(part.request, limits=limits))

    def maybe(part: Plan | None) -> Plan | None:
        return None if part is None else bounded(part)

    try:
        made = replace(
            plan,
            request=replace(plan.request, limits=replace(plan.request.limits, ram_budget_bytes=ram_bytes)),
            evaluation=maybe(plan.evaluation),
            accumulation=maybe(plan.accumulation),
            shapes=tuple(Shape(bounded(item.step), maybe(item.evaluation)) for item in plan.shapes),
        )
    except (PlanError, InvalidSchedule):
        return None
    is_placed = made.has_fitting_arena or not plan.has_fitting_arena
    return made if is_placed and made.held_bytes <= ram_bytes else None
