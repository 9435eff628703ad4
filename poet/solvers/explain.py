"""What would help where there is no plan: for each limit, the least of it that works, found by solving.

An infeasible answer says why (`poet.solvers.search`); here each limit is loosened alone, the others
kept, and the least that works is searched for with `poet.solvers.objectives`: a judged plan shows
that it works, and where the search ends with a proof, that nothing less does. After a time-out the
same is done quickly, and what was found is told without that claim.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from poet.problem import Limits, Objective, Problem
from poet.solution import Solution, SolveOptions, Status
from poet.solvers.objectives import limit_of, solve
from poet.units import format_bytes, format_joules, format_more, format_seconds

MOST_SECONDS = 10.0
"""For all that an explanation searches for; less where the search itself was allowed less."""

_LEAST_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class _Way:
    """A limit that can be loosened.

    Attributes:
        without: the limits without it.
        called: it, with its amount.
        show: the amount for people.
    """

    objective: Objective
    without: Callable[[Limits], Limits]
    called: str
    show: Callable[[float], str]


def _whole_bytes(amount: float) -> str:
    size_bytes = math.ceil(amount)
    return f"{size_bytes} bytes" + (f" ({format_bytes(size_bytes)})" if size_bytes >= 1024 else "")


_WAYS = (
    _Way(Objective.RAM, lambda limits: replace(limits, ram_budget_bytes=None), "RAM of {}", _whole_bytes),
    _Way(
        Objective.TIME,
        lambda limits: replace(limits, deadline_seconds=None),
        "a deadline of {}",
        format_seconds,
    ),
    _Way(
        Objective.WRITES,
        lambda limits: replace(limits, written_budget_bytes=None),
        "writing {} per step",
        _whole_bytes,
    ),
    _Way(Objective.ENERGY, lambda limits: replace(limits, joules_budget=None), "{} per step", format_joules),
)


def explained(problem: Problem, limits: Limits, options: SolveOptions, solution: Solution) -> Solution:
    """``solution``, its message completed by what would help if it has no plan.

    Takes a few seconds where there is no plan: up to `MOST_SECONDS`, or the time limit if that is less.
    """
    if solution.status not in (Status.INFEASIBLE, Status.TIMEOUT):
        return solution
    allowed = MOST_SECONDS if options.time_limit_seconds is None else options.time_limit_seconds
    end = time.monotonic() + min(max(allowed, _LEAST_SECONDS), MOST_SECONDS)
    set_limits = [way for way in _WAYS if math.isfinite(limit_of(limits, way.objective))]
    helps = []
    for number, way in enumerate(set_limits):
        seconds = (end - time.monotonic()) / (len(set_limits) - number)
        quiet = replace(
            options, objective=way.objective, time_limit_seconds=max(seconds, 0.3), progress=None, start=None
        )
        loosened = solve(problem, way.without(limits), quiet)
        if loosened.amount is not None:
            helps.append(_sentence(way, limits, loosened))
    if not helps and set_limits:
        helps = [_NOTHING_HELPS]
    longer = ["A longer time limit may find more."] if solution.status is Status.TIMEOUT else []
    return replace(solution, message=" ".join(filter(None, [solution.message, *helps, *longer])))


_NOTHING_HELPS = "No plan was found either with any one of the limits lifted."


def _sentence(way: _Way, limits: Limits, loosened: Solution) -> str:
    amount, bound = loosened.amount or 0.0, loosened.bound or 0.0
    works = way.called.format(way.show(amount))
    more = amount / limit_of(limits, way.objective) - 1.0 if limit_of(limits, way.objective) else math.inf
    above = f" ({format_more(more)})" if math.isfinite(more) else ""
    if loosened.status is Status.OPTIMAL:
        rest = "works, and nothing less does."
    else:
        rest = f"works; the least that does is not proven, but is no less than {way.show(bound)}."
    sentence = f"{works}{above} {rest}"
    return sentence[0].upper() + sentence[1:]
