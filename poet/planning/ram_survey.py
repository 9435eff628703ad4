"""Which RAM budgets make sense for a problem: from what keeping everything needs to the least possible."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from poet.errors import InputError
from poet.problem import Limits, Problem
from poet.problem.simulator import simulate
from poet.problem.solution import LowerBound, Solution, SolveOptions
from poet.solvers import minimum_ram_bytes, solve
from poet.solvers.heuristics.policies import keep_everything
from poet.util.brief import brief

SURVEY_SHARES = (0.8, 0.6, 0.4, 0.2, 0.0)
"""Budgets that a survey solves, as shares of the way from the lower bound to keeping everything."""


@dataclass(frozen=True, slots=True)
class Survey:
    """Which RAM budgets make sense.

    Attributes:
        keep_everything_bytes: what plain training needs, each tensor freed after its last use.
        lower_bound: below which no schedule exists.
        points: (RAM budget in bytes, answer), most RAM first; after Ctrl-C the last is the one it ended.
    """

    keep_everything_bytes: int
    lower_bound: LowerBound
    points: tuple[tuple[int, Solution], ...]

    __repr__ = brief


def survey(
    problem: Problem,
    limits: Limits | None = None,
    options: SolveOptions | None = None,
    *,
    shares: Iterable[float] = SURVEY_SHARES,
    of: Callable[[Problem, Limits], Problem] = lambda problem, _: problem,
) -> Survey:
    """What keeping everything needs, the lower bound, and the answers for budgets between.

    Args:
        problem: to survey.
        limits: all but the RAM budget, which is not used.
        options: for the search of each budget.
        shares: where the budgets lie, from the lower bound (0) to keeping everything (1).
        of: what is searched inside each of them: the problem, or a part of its choices.
    """
    limits, options = limits or Limits(), options or SolveOptions(time_limit_seconds=10.0)
    most, least = keep_everything_bytes(problem), minimum_ram_bytes(problem, limits)
    budgets = dict.fromkeys(budget_between(least.bytes, most, share) for share in shares)
    points = []
    for budget in budgets:
        inside = replace(limits, ram_budget_bytes=budget)
        points.append((budget, solve(of(problem, inside), inside, options)))
        if points[-1][1].was_interrupted:
            break
    return Survey(most, least, tuple(points))


def budget_between(least_bytes: int, most_bytes: int, share: float) -> int:
    """The budget that lies ``share`` of the way from ``least_bytes`` up to ``most_bytes``."""
    return least_bytes + round(share * max(0, most_bytes - least_bytes))


def keep_everything_bytes(problem: Problem) -> int:
    """RAM that plain training needs: every op once, each tensor freed after its last use, no alternatives.

    Raises:
        InputError: no RAM is enough, because storage does not hold what must be there.
    """
    schedule = keep_everything(problem.resolved(()) if problem.alternatives else problem, Limits())
    if schedule is None:
        raise InputError(
            f"{problem.name}: no RAM is enough: its storage of {problem.storage_capacity_bytes} bytes does "
            "not hold what must begin or end there; give it more"
        )
    return simulate(problem, schedule).peak_ram_bytes
