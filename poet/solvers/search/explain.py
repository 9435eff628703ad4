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
from dataclasses import dataclass, replace

from poet.errors import InvalidSchedule
from poet.problem import Limits, Objective, Problem
from poet.progress import stage
from poet.schedule import Schedule
from poet.simulator import Trace, simulate
from poet.solution import Solution, SolveOptions, Status, amount_of
from poet.solvers.search.messages import exact_joules, exact_seconds
from poet.solvers.search.objectives import least, limit_of
from poet.solvers.search.over_alternatives import solve
from poet.units import IN_ORDER, format_bytes, format_more


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
        exact_seconds,
    ),
    _Way(
        Objective.WRITES,
        lambda limits: replace(limits, written_budget_bytes=None),
        "writing {} per step",
        _whole_bytes,
    ),
    _Way(Objective.ENERGY, lambda limits: replace(limits, joules_budget=None), "{} per step", exact_joules),
)


def answered(problem: Problem, limits: Limits, options: SolveOptions) -> Solution:
    """`poet.solvers.solve`, and `explained` where there is no plan: both inside the time limit together.

    Raises:
        InputError: the engine named in ``options`` is not available.
    """
    stage("search")
    allowed, tuning = options.time_limit_seconds, options.tuning.explanation
    spare = 0.0 if allowed is None else min(tuning.most_seconds, tuning.spare_share * allowed)
    if problem.alternatives:  # how one choice could do is not how a plan could
        return solve(problem, limits, options)
    solution = solve(problem, limits, replace(options, spare_seconds=spare))
    return explained(problem, limits, options, solution)


def explained(problem: Problem, limits: Limits, options: SolveOptions, solution: Solution) -> Solution:
    """``solution``, its message completed by what would help if it has no plan.

    That takes up to ``most_seconds`` of `poet.tuning.search.ExplanationTuning`, or what ``solution`` left of
    the time limit if that is less. Ctrl-C ends it, and nothing is searched for where Ctrl-C ended the search
    itself.
    """
    if solution.status not in (Status.INFEASIBLE, Status.TIMEOUT) or solution.was_interrupted:
        return solution
    tuning = options.tuning.explanation
    left = tuning.most_seconds
    if options.time_limit_seconds is not None:
        left = min(left, options.time_limit_seconds - solution.solve_seconds)
    started = options.clock.now()
    set_limits = [way for way in _WAYS if math.isfinite(limit_of(limits, way.objective))]
    helps, tried = [], 0
    for number, way in enumerate(set_limits):
        seconds = (started + left - options.clock.now()) / (len(set_limits) - number)
        if seconds < tuning.least_seconds:
            break
        quiet = replace(
            options, objective=way.objective, time_limit_seconds=seconds, progress=None, start=None
        )
        try:
            loosened = least(problem, way.without(limits), quiet)
        except KeyboardInterrupt:
            break
        answer = _answer(problem, limits, solution, loosened)
        if answer is not None:
            spent_seconds = options.clock.now() - started
            return replace(answer, solve_seconds=solution.solve_seconds + spent_seconds)
        if loosened.amount is not None:
            helps.append(_sentence(way, limits, loosened))
        tried += 1
        if loosened.was_interrupted:
            break
    if not helps and tried and tried == len(set_limits):
        helps = [_NOTHING_HELPS]
    longer = ["A longer time limit may find more."] if solution.status is Status.TIMEOUT else []
    return replace(solution, message=" ".join(filter(None, [solution.message, *helps, *longer])))


def _answer(problem: Problem, limits: Limits, solution: Solution, loosened: Solution) -> Solution | None:
    """``solution`` with the plan of ``loosened``, where that keeps the very limits that none was found for.

    Its bound is at most the plan's joules. Where ``solution`` was infeasible, that proof was wrong, and the
    bound falls back to running every op once.
    """
    trace = _judged(problem, limits, loosened.schedule)
    if trace is None:
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


def _judged(problem: Problem, limits: Limits, schedule: Schedule | None) -> Trace | None:
    try:
        return None if schedule is None else simulate(problem, schedule, limits)
    except InvalidSchedule:
        return None


_NOTHING_HELPS = "No plan was found either with any one of the limits lifted."


def _sentence(way: _Way, limits: Limits, loosened: Solution) -> str:
    amount, bound = loosened.amount or 0.0, loosened.bound or 0.0
    works = way.called.format(way.show(amount))
    more = amount / limit_of(limits, way.objective) - 1.0 if limit_of(limits, way.objective) else math.inf
    above = f" ({format_more(more)})" if math.isfinite(more) else ""
    if loosened.status is Status.OPTIMAL:
        rest = f"works, and nothing less does {IN_ORDER}."
    else:
        rest = f"works; the least that does {IN_ORDER} is not proven, but is no less than {way.show(bound)}."
    sentence = f"{works}{above} {rest}"
    return sentence[0].upper() + sentence[1:]
