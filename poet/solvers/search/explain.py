"""What would help where there is no plan: for each limit, the least of it that works, found by solving.

An infeasible answer gives the reason (`poet.solvers.search.least_energy`); here each limit is loosened
alone, the others kept, and the least that works is searched for with `poet.solvers.search.objectives`: a
judged plan shows that it works, and where the search ends with a proof, that nothing less does. What was
found without a proof is reported without that claim. A plan found on the way that keeps all limits is no
explanation: it is the answer.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from poet.errors import InvalidSchedule
from poet.problem import Limits, Objective, Problem
from poet.problem.progress import stage
from poet.problem.simulator import simulate
from poet.problem.solution import Solution, SolveOptions, Start, Status, amount_of
from poet.solvers.search import objectives, orders
from poet.solvers.search.alternatives import solve
from poet.solvers.search.messages import exact_joules, exact_seconds
from poet.solvers.search.objectives import EXPLAIN_SECONDS, LIMIT_FIELDS, least, limit_of
from poet.util.units import IN_ORDER, format_bytes, format_more


def _whole_bytes(amount: float) -> str:
    size_bytes = math.ceil(amount)
    return f"{size_bytes} bytes" + (f" ({format_bytes(size_bytes)})" if size_bytes >= 1024 else "")


_WAYS: tuple[tuple[Objective, str, Callable[[float], str]], ...] = (
    (Objective.RAM, "RAM of {}", _whole_bytes),
    (Objective.TIME, "a deadline of {}", exact_seconds),
    (Objective.WRITES, "writing {} per step", _whole_bytes),
    (Objective.ENERGY, "{} per step", exact_joules),
)
"""Limits that can be loosened: what is then minimised, the limit with its amount, the amount."""


def answered(problem: Problem, limits: Limits, options: SolveOptions, *, any_order: bool = False) -> Solution:
    """`poet.solvers.solve`, and `explained` where there is no plan: both inside the time limit together.

    Raises:
        InputError: the engine named in ``options`` is not available.
    """
    stage("search")
    allowed = options.time_limit_seconds
    if problem.alternatives or problem.chooses_units:  # how one choice could do is not how a plan could
        return solve(problem, limits, options)
    left = options  # for the search; the rest of the time is for what would help
    if allowed is not None:
        left = replace(options, time_limit_seconds=allowed - min(EXPLAIN_SECONDS, allowed / 10.0))
    searched = orders.solve if any_order else objectives.solve
    return explained(problem, limits, options, searched(problem, limits, left))


def explained(problem: Problem, limits: Limits, options: SolveOptions, solution: Solution) -> Solution:
    """``solution``, its message completed by what would help if it has no plan.

    That takes up to ``EXPLAIN_SECONDS``, or what ``solution`` left of the time limit if that is less. Ctrl-C
    ends it, and nothing is searched for where Ctrl-C ended the search itself.
    """
    if solution.status not in (Status.INFEASIBLE, Status.TIMEOUT) or solution.was_interrupted:
        return solution
    left, started = EXPLAIN_SECONDS, options.clock.now()
    if options.time_limit_seconds is not None:
        left = min(left, options.time_limit_seconds - solution.solve_seconds)
    set_limits = [way for way in _WAYS if math.isfinite(limit_of(limits, way[0]))]
    helps, tried, quiet = [], 0, replace(options, progress=None, start=Start())
    for number, (objective, called, show) in enumerate(set_limits):
        seconds = (started + left - options.clock.now()) / (len(set_limits) - number)
        if seconds <= 0.02:  # in which nothing is found
            break
        asked = replace(quiet, objective=objective, time_limit_seconds=seconds)
        try:
            without: dict[str, Any] = {LIMIT_FIELDS[objective]: None}
            loosened = least(problem, replace(limits, **without), asked)
        except KeyboardInterrupt:
            break
        answer = _answer(problem, limits, solution, loosened)
        if answer is not None:
            spent_seconds = options.clock.now() - started
            return replace(answer, solve_seconds=solution.solve_seconds + spent_seconds)
        if loosened.amount is not None:
            helps.append(_sentence(limit_of(limits, objective), loosened, called, show))
        tried += 1
        if loosened.was_interrupted:
            break
    if not helps and tried and tried == len(set_limits):
        helps = ["No plan was found either with any one of the limits lifted."]
    longer = ["A longer time limit may find more."] if solution.status is Status.TIMEOUT else []
    return replace(solution, message=" ".join(filter(None, [solution.message, *helps, *longer])))


def _answer(problem: Problem, limits: Limits, solution: Solution, loosened: Solution) -> Solution | None:
    """``solution`` with the plan of ``loosened``, where that keeps the very limits that none was found for.

    Its bound is at most the plan's joules. Where ``solution`` was infeasible, that proof was wrong, and the
    bound falls back to running every op once.
    """
    if loosened.schedule is None:
        return None
    try:
        trace = simulate(problem, loosened.schedule, limits)
    except InvalidSchedule:
        return None
    refuted = solution.status is Status.INFEASIBLE
    amount, bound = amount_of(solution.objective, trace), solution.objective_bound
    return replace(
        solution,
        status=Status.FEASIBLE,
        schedule=loosened.schedule,
        trace=trace,
        bound_joules=problem.compute_joules if refuted else min(solution.bound_joules, trace.joules),
        objective_bound=None if bound is None else 0.0 if refuted else min(bound, amount),
        solver=loosened.solver,
        message="The plan was found after the search for it, while looking for what would help.",
        proof="",
    )


def _sentence(limit: float, loosened: Solution, called: str, show: Callable[[float], str]) -> str:
    amount, bound = loosened.amount or 0.0, loosened.bound or 0.0
    above = f" ({format_more(amount / limit - 1.0)})" if limit else ""
    if loosened.status is Status.OPTIMAL:
        rest = f"works, and nothing less does {IN_ORDER}."
    else:
        rest = f"works; the least that does {IN_ORDER} is not proven, but is no less than {show(bound)}."
    sentence = f"{called.format(show(amount))}{above} {rest}"
    return sentence[0].upper() + sentence[1:]
