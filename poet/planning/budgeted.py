"""Plans for several budgets in one file: the same training inside less RAM, to go to between steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from poet.errors import Infeasible, InputError, OutOfTime
from poet.planning.planned import Planned, price_range
from poet.planning.replanning import SEARCH_SECONDS, plan_again
from poet.plans.training_plan import Plan
from poet.problem import Limits, Problem
from poet.progress import stage
from poet.solution import SolveOptions
from poet.solvers import minimum_ram_bytes
from poet.units import IN_ORDER, format_bytes, parse_bytes


def with_budgets(
    planned: Planned,
    budgets: Sequence[str | int],
    *,
    time_limit_seconds: float = SEARCH_SECONDS,
    options: SolveOptions | None = None,
) -> Planned:
    """``planned``, its plan with one for each of ``budgets``, each with its auxiliary schedules.

    Those inside which none is found are left out, and a remark says why: the plan so far is kept.

    Args:
        planned: for the largest budget, with its evaluation and its other shapes.
        budgets: the others, in bytes or as text.
        time_limit_seconds: of each search.
        options: of each search otherwise, see `plan_again`.

    Raises:
        InputError: a budget is not smaller than that of ``planned``, or is given twice.
    """
    made, remarks = [], []
    for size_bytes in smaller_budgets(planned.plan.request.limits.ram_budget_bytes, budgets):
        stage(f"budget of {format_bytes(size_bytes)}")
        try:
            other = plan_again(
                planned.plan, size_bytes, time_limit_seconds=time_limit_seconds, options=options
            )
        except (Infeasible, OutOfTime) as error:
            remarks.append(f"no plan for the budget of {format_bytes(size_bytes)}: {error}")
            continue
        made.append(_priced(planned, other))
    plan = replace(planned.plan, budgets=tuple(made))
    return replace(planned, plan=plan, budgets_remark="; ".join(remarks))


def _priced(planned: Planned, other: Plan) -> Plan:
    """``other`` with what it takes at the ends of the device's figures."""
    prepared = replace(planned.prepared, problem=other.problem)
    found = price_range(prepared, other.schedule, other.arena)
    return replace(other, prediction=replace(other.prediction, range=found))


def check_reachable(problem: Problem, limits: Limits, budgets: Sequence[str | int]) -> None:
    """Do nothing if every one of ``budgets`` may have a schedule; before a long search for the largest.

    Raises:
        InputError: as of `smaller_budgets`.
        Infeasible: no schedule takes so little.
    """
    sizes = smaller_budgets(limits.ram_budget_bytes, budgets)
    if not sizes:
        return
    least_bytes = minimum_ram_bytes(problem, limits).bytes
    for size_bytes in sizes:
        if size_bytes < least_bytes:
            least, budget = (format_bytes(each, exact=True) for each in (least_bytes, size_bytes))
            raise Infeasible(
                f"no plan {IN_ORDER} exists inside the budget of {budget}: a step needs at least {least} of "
                "RAM; leave it out, or give more"
            )


def smaller_budgets(largest: str | int | None, budgets: Sequence[str | int]) -> list[int]:
    """The other budgets of a plan, in bytes; ``largest`` is its own, ``None``: there is none.

    Raises:
        InputError: one is not smaller, or is given twice.
    """
    largest_bytes = parse_bytes(largest) if isinstance(largest, str) else largest
    sizes = [parse_bytes(item) if isinstance(item, str) else item for item in budgets]
    for number, size_bytes in enumerate(sizes):
        if (largest_bytes is not None and size_bytes >= largest_bytes) or size_bytes in sizes[:number]:
            raise InputError(
                f"a plan for several budgets has the largest first and each once; {format_bytes(size_bytes)} "
                "is neither smaller nor new"
            )
    return sizes
