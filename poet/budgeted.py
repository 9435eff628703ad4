"""Plans for several budgets in one file: the same training inside less RAM, to go to between steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from poet.errors import Infeasible, InputError, OutOfTime
from poet.planned import Planned
from poet.replanning import SEARCH_SECONDS, plan_again
from poet.units import format_bytes, parse_bytes


def with_budgets(
    planned: Planned, budgets: Sequence[str | int], *, time_limit_seconds: float = SEARCH_SECONDS
) -> Planned:
    """``planned``, its plan with one for each of ``budgets`` beside it, with all that stands beside its step.

    Args:
        planned: for the largest budget, with its evaluation and its other shapes.
        budgets: the others, in bytes or as text.
        time_limit_seconds: of each search.

    Raises:
        InputError: a budget is not smaller than that of ``planned``, or is given twice.
        Infeasible: no plan exists inside one of them.
        OutOfTime: none was found in time.
    """
    made = []
    for size_bytes in smaller_budgets(planned.plan.request.limits.ram_budget_bytes, budgets):
        try:
            made.append(plan_again(planned.plan, size_bytes, time_limit_seconds=time_limit_seconds))
        except (Infeasible, OutOfTime) as error:
            raise type(error)(f"for the budget of {format_bytes(size_bytes)}: {error}") from None
    return replace(planned, plan=replace(planned.plan, budgets=tuple(made)))


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
