"""A schedule by an online eviction policy, where a search has no plan in time: made at once.

DELTA pages or recomputes what was not used for long, DTR recomputes it, each when room is needed; where both
run out of memory, everything is paged, or recomputed. The simulator accepts what is taken, and it is laid out
like any plan. Its bound is that every op runs once, so that its gap shows what a search may still save.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import replace

from poet.baselines.nothing_kept import page_everything, recompute_all
from poet.baselines.online import delta, dtr
from poet.errors import InvalidSchedule
from poet.ir.kernel_facts import KernelFacts
from poet.planning.fit_layout import Fitted, fit_alone
from poet.plans.plan_parts import ONLINE
from poet.problem import Limits, Objective, Problem
from poet.problem.homes import DecidedProblem
from poet.problem.schedule import Schedule
from poet.problem.simulator import Trace, judge
from poet.problem.solution import Solution, SolveOptions, Status, amount_of
from poet.solvers.heuristics.policies import keep_everything
from poet.util.units import format_bytes

_POLICIES: dict[str, Callable[[Problem, Limits], Schedule | None]] = {
    "keep-everything": keep_everything,
    "delta": delta,
    "dtr": dtr,
}
_LAST: dict[str, Callable[[Problem, Limits], Schedule | None]] = {
    "page-everything": page_everything,
    "recompute-all": recompute_all,
}
_ROUNDS = 8
_LEAST_SHRINK = 0.002  # of the bytes, where a schedule leaves too large gaps
_log = logging.getLogger(__name__)


def guard(problem: DecidedProblem, limits: Limits, options: SolveOptions) -> Solution | None:
    """What takes least of the objective among the schedules of the policies; ``None``: none is in ``limits``.

    Args:
        problem: what to plan.
        limits: what the schedule must be within.
        options: whose objective counts, and whose clock; nothing is searched.
    """
    began = options.clock.now()
    found: tuple[float, float, str, Schedule, Trace] | None = None
    for name, schedule in _schedules(problem, limits):
        try:
            trace = judge(problem, schedule, limits)
        except InvalidSchedule:
            continue
        amount = amount_of(options.objective, trace)
        if found is None or (amount, trace.joules) < found[:2]:
            found = amount, trace.joules, name, schedule, trace
        if name == "keep-everything" and options.objective is not Objective.RAM:
            break
    if found is None:
        return None
    *_, name, schedule, trace = found
    least = problem.compute_joules
    return Solution(
        status=Status.FEASIBLE,
        schedule=schedule,
        trace=trace,
        bound_joules=least,
        baseline_joules=least,
        solve_seconds=options.clock.now() - began,
        solver=f"{ONLINE}{name}",
        message="No search had a plan in time: this one is of an online policy; a search may find better.",
        objective=options.objective,
    )


def _schedules(problem: Problem, limits: Limits) -> Iterator[tuple[str, Schedule]]:
    """Of each policy that does not run out of memory; the last ones only where all others do."""
    found = False
    for policies in (_POLICIES, _LAST):
        for name, policy in policies.items():
            schedule = policy(problem, limits)
            if schedule is not None:
                found = True
                yield name, schedule
        if found:
            return


def guarded(
    problem: DecidedProblem, limits: Limits, options: SolveOptions, *, kernels: KernelFacts | None = None
) -> Fitted | None:
    """`guard` with its arena inside the budget, in less RAM where that needs it; ``None``: there is no plan.

    Where no arena fits, the plan comes back that keeps within the budget from the heap.

    Args:
        problem: what to plan.
        limits: what the plan must be within.
        options: whose objective counts, and whose clock; nothing is searched but places.
        kernels: whose workspaces the problem counts.
    """
    at_once = replace(options, time_limit_seconds=0.0)
    loose: Fitted | None = None
    narrower = limits
    for _ in range(_ROUNDS):
        solution = guard(problem, narrower, options)
        if solution is None or solution.trace is None:
            break
        fitted = fit_alone(problem, limits, solution, at_once, kernels=kernels)
        missing_bytes = fitted.missing_bytes
        _log.info("%s: %s too much for its arena", solution.solver, format_bytes(missing_bytes))
        if missing_bytes == 0:
            return fitted
        loose = loose or fitted
        if narrower.ram_budget_bytes is None:
            break
        peak_bytes = solution.trace.peak_ram_bytes
        less_bytes = max(missing_bytes, round(_LEAST_SHRINK * peak_bytes))
        narrower = replace(narrower, ram_budget_bytes=peak_bytes - less_bytes)
    return loose
