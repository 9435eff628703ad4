"""Objectives beside energy, and the energy budget, in terms of the one search that minimises joules.

Least time and least writes are the same problem at other prices: where nothing costs energy but a
watt of idle power, a step takes as many joules as it lasts seconds; where only a page-out costs
energy, a joule for each byte, it takes as many as it writes bytes. The bound of that search is a
bound in the objective's own unit. Least RAM is found by halving: each budget either holds a plan or
is proven to hold none. The plan that comes out is judged on the problem itself, and among the plans
that take as little of the objective a second search looks for the one of least energy.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from poet.pins import permitted
from poet.problem import Limits, Objective, Pins, Problem, ProblemOp, Tensor, Transfer
from poet.schedule import Schedule
from poet.simulator import Trace, simulate
from poet.solution import PROVEN, Solution, SolveOptions, Status
from poet.solvers.instance.instance import Metered
from poet.solvers.instance.ram_bound import minimum_ram_bytes
from poet.solvers.search.least_energy import solve as least_energy
from poet.units import format_joules

_FIRST_SHARE = 0.6  # of the time for the objective; the rest breaks ties
_PINS_SECONDS = 1.0  # to see whether the pins are what asks for too much
_PROBE_SHARE = 0.3  # of the time left that one RAM budget may take
_PROBE_SECONDS = 0.5  # that it may take where that is less
_TOLERANCE = 1e-9  # relative, of sums of seconds and joules


def solve(problem: Problem, limits: Limits | None = None, options: SolveOptions | None = None) -> Solution:
    """The plan of ``problem`` inside ``limits`` that takes least of what ``options`` ask for, with a bound.

    First runs keep the listed order. Ties are broken by energy. Ctrl-C ends the search and keeps the
    best plan.

    Raises:
        InputError: the engine asked for is not available.
    """
    limits, options = limits or Limits(), options or SolveOptions()
    left = _seconds_left(options.clock.now(), options)
    found = _solve(permitted(problem, limits), limits, options)
    seconds = min(_PINS_SECONDS, left())
    if found.status is not Status.INFEASIBLE or limits.pins == Pins() or seconds <= 0.0:
        return found
    free = replace(limits, pins=Pins())
    without = _least_joules(problem, free, replace(_any_plan(limits, options), time_limit_seconds=seconds))
    if without.schedule is None:
        return found
    return replace(found, message="Without the pins there is a plan: one of them asks for too much.")


def least(problem: Problem, limits: Limits, options: SolveOptions) -> Solution:
    """As `solve`, but of the plans that take as little of the objective any one, not that of least energy."""
    return _least(permitted(problem, limits), limits, options)


def _least(problem: Problem, limits: Limits, options: SolveOptions) -> Solution:
    match options.objective:
        case Objective.ENERGY:
            return _least_joules(problem, limits, options)
        case Objective.RAM:
            return _least_ram(problem, limits, options)
        case Objective.TIME | Objective.WRITES:
            return _least_priced(problem, limits, options)


def _solve(problem: Problem, limits: Limits, options: SolveOptions) -> Solution:
    if options.objective is Objective.ENERGY:
        return _least_joules(problem, limits, options)
    started = options.clock.now()
    first = replace(options, time_limit_seconds=_part(options.time_limit_seconds, _FIRST_SHARE))
    best = _least(problem, limits, first)
    if best.schedule is None or best.trace is None or best.was_interrupted:
        return best
    spent_seconds = options.clock.now() - started
    left = None if options.time_limit_seconds is None else options.time_limit_seconds - spent_seconds
    cheapest = _cheapest_as_good(problem, limits, replace(options, time_limit_seconds=left), best)
    return replace(cheapest, solve_seconds=options.clock.now() - started)


def priced(problem: Problem, objective: Objective) -> Problem:
    """``problem`` at prices at which the joules of a schedule are its seconds, or its bytes written.

    Only for `Objective.TIME` and `Objective.WRITES`; RAM is no sum of prices.
    """
    of_time = objective is Objective.TIME
    return replace(
        problem,
        ops=tuple(_free_op(op) for op in problem.ops),
        tensors=tuple(_priced_tensor(tensor, by_byte=not of_time) for tensor in problem.tensors),
        idle_watts=1.0 if of_time else 0.0,
    )


def _free_op(op: ProblemOp) -> ProblemOp:
    return replace(op, joules=0.0)


def _priced_tensor(tensor: Tensor, *, by_byte: bool) -> Tensor:
    page_in, page_out = tensor.page_in, tensor.page_out
    written_joules = float(tensor.storage_bytes) if by_byte else 0.0
    return replace(
        tensor,
        page_in=None if page_in is None else Transfer(page_in.seconds, 0.0),
        page_out=None if page_out is None else Transfer(page_out.seconds, written_joules),
    )


# --- energy, with a budget for it ---


def _least_joules(problem: Problem, limits: Limits, options: SolveOptions) -> Solution:
    found = least_energy(problem, replace(limits, joules_budget=None), options)
    budget = limits.joules_budget
    if budget is None or found.status is Status.INFEASIBLE:
        return found
    if found.bound_joules > budget * (1 + _TOLERANCE):
        least, allowed = format_joules(found.bound_joules), format_joules(budget)
        message = f"Inside the other limits a step takes at least {least}; the energy budget is {allowed}."
        return replace(found, status=Status.INFEASIBLE, schedule=None, trace=None, message=message)
    if found.trace is not None and found.trace.joules > budget * (1 + _TOLERANCE):
        best = format_joules(found.trace.joules)
        message = f"The best plan found takes {best}, above the energy budget of {format_joules(budget)}."
        return replace(found, status=Status.TIMEOUT, schedule=None, trace=None, message=message)
    return found


# --- time and writes ---


def _least_priced(problem: Problem, limits: Limits, options: SolveOptions) -> Solution:
    """The least time or writes; its joules are judged on ``problem``, those of its bound are not known."""
    metered = None
    if limits.joules_budget is not None:
        metered = Metered(problem, limits.joules_budget)
        start = _least_joules(problem, limits, _any_plan(limits, options))
        if start.status is Status.INFEASIBLE:
            return replace(start, objective=options.objective, objective_bound=math.inf)
        if start.was_interrupted and start.schedule is None:
            return replace(start, objective=options.objective, objective_bound=None)
        if start.schedule is not None:
            options = replace(options, start=start.schedule, start_by=start.solver)
    within = replace(limits, joules_budget=None)
    at_prices = priced(problem, options.objective)
    found = least_energy(at_prices, within, replace(options, enough_joules=None), metered=metered)
    return _in_its_unit(problem, limits, found, options.objective, found.bound_joules)


def _in_its_unit(
    problem: Problem, limits: Limits, found: Solution, objective: Objective, bound: float
) -> Solution:
    """An answer about other prices as one about ``problem``."""
    if objective is not Objective.TIME:
        bound = _next_sum(bound, _unit_bytes(problem, objective))
    trace = None if found.schedule is None else simulate(problem, found.schedule, limits)
    solution = replace(
        found,
        trace=trace,
        bound_joules=problem.compute_joules,
        baseline_joules=problem.compute_joules,
        objective=objective,
        objective_bound=bound,
    )
    if trace is None or solution.amount is None:
        return solution
    reached = solution.amount <= bound * (1 + _TOLERANCE)
    return replace(
        solution,
        status=Status.OPTIMAL if reached else found.status,
        message="" if reached and not found.was_interrupted else found.message,
        objective_bound=min(bound, solution.amount),
    )


def _unit_bytes(problem: Problem, objective: Objective) -> int:
    """The unit of which every sum of the objective is a multiple."""
    if objective is Objective.WRITES:
        parts = [t.storage_bytes for t in problem.tensors]
    else:
        parts = [problem.aligned_bytes(tensor.bytes) for tensor in problem.tensors]
        parts += [problem.aligned_bytes(op.workspace_bytes) for op in problem.ops]
    return max(1, math.gcd(*parts))


def _next_sum(bound: float, unit: int) -> float:
    """The least multiple of ``unit`` that is not below ``bound``, rounding aside."""
    return bound if math.isinf(bound) else float(math.ceil(bound * (1 - _TOLERANCE) / unit - 1e-6) * unit)


# --- RAM ---


@dataclass(slots=True)
class _Halving:
    """Which RAM budgets hold a plan: none below ``proven_bytes``; the best plan found so far."""

    proven_bytes: int
    schedule: Schedule | None = None
    trace: Trace | None = None
    solver: str = "none"
    proof: str = ""  # of ``proven_bytes``

    @property
    def peak_bytes(self) -> float:
        return math.inf if self.trace is None else self.trace.peak_ram_bytes


def _least_ram(problem: Problem, limits: Limits, options: SolveOptions) -> Solution:
    """Halve the budgets between the proven bound and the best plan's peak."""
    started = options.clock.now()
    unit = _unit_bytes(problem, Objective.RAM)
    halving = _Halving(minimum_ram_bytes(problem, limits).bytes, proof=PROVEN)
    left = _seconds_left(started, options)
    wide = _probe(problem, limits, options, left(), halving, limits.ram_budget_bytes)
    if halving.trace is None:
        return replace(wide, objective=Objective.RAM, objective_bound=float(halving.proven_bytes))
    low = halving.proven_bytes  # below it nothing is worth a try
    budget = low
    while low < halving.peak_bytes and left() > 0.0 and not wide.was_interrupted:
        wide = _probe(problem, limits, options, left(), halving, budget)
        if options.progress is not None:
            gap = 1.0 - halving.proven_bytes / halving.peak_bytes
            options.progress(halving.peak_bytes, halving.proven_bytes, gap, options.clock.now() - started)
        if wide.status is Status.INFEASIBLE and halving.proven_bytes == low:
            halving.proven_bytes, halving.proof = (budget // unit + 1) * unit, wide.proof
        if wide.schedule is None:
            low = (budget // unit + 1) * unit
        budget = low + int((halving.peak_bytes - low) / unit) // 2 * unit
    bound = min(float(halving.proven_bytes), halving.peak_bytes)
    return replace(
        wide,
        status=Status.OPTIMAL if bound == halving.peak_bytes else Status.FEASIBLE,
        schedule=halving.schedule,
        trace=halving.trace,
        solver=halving.solver,
        proof=halving.proof if bound == halving.peak_bytes else "",
        message=wide.message if wide.was_interrupted else "",
        bound_joules=problem.compute_joules,
        objective=Objective.RAM,
        objective_bound=bound,
    )


def _probe(
    problem: Problem,
    limits: Limits,
    options: SolveOptions,
    seconds: float,
    halving: _Halving,
    budget_bytes: int | None,
) -> Solution:
    """Any plan within ``budget_bytes``, taken over where it is the leanest."""
    share = None if math.isinf(seconds) else max(_PROBE_SHARE * seconds, min(seconds, _PROBE_SECONDS))
    asked = replace(_any_plan(limits, options), time_limit_seconds=share)
    found = _least_joules(problem, replace(limits, ram_budget_bytes=budget_bytes), asked)
    if found.trace is not None and found.trace.peak_ram_bytes < halving.peak_bytes:
        halving.schedule, halving.trace, halving.solver = found.schedule, found.trace, found.solver
    return found


# --- what they share ---


def _any_plan(limits: Limits, options: SolveOptions) -> SolveOptions:
    """Options that end a search with the first plan inside the energy budget."""
    enough = math.inf if limits.joules_budget is None else limits.joules_budget
    return replace(
        options, objective=Objective.ENERGY, enough_joules=enough, progress=None, spare_seconds=0.0
    )


def _cheapest_as_good(problem: Problem, limits: Limits, options: SolveOptions, best: Solution) -> Solution:
    """Of the plans that take no more of the objective than ``best``, the one of least energy found."""
    assert best.schedule is not None
    assert best.trace is not None
    asked = replace(
        options, objective=Objective.ENERGY, start=best.schedule, start_by=best.solver, progress=None
    )
    within = limited(limits, best.objective, amount=best.amount or 0.0)
    cheapest = _least_joules(problem, within, asked)
    schedule, trace = cheapest.schedule or best.schedule, cheapest.trace or best.trace
    return replace(
        best,
        schedule=schedule,
        trace=trace,
        bound_joules=min(cheapest.bound_joules, trace.joules),
        solver=best.solver if schedule == best.schedule else cheapest.solver,
        message=cheapest.message if cheapest.was_interrupted else best.message,
        was_interrupted=cheapest.was_interrupted,
    )


def limited(limits: Limits, objective: Objective, *, amount: float) -> Limits:
    """``limits`` with ``amount`` of ``objective`` as one more, unless they are narrower already."""
    least = min(amount, limit_of(limits, objective))
    match objective:
        case Objective.ENERGY:
            return replace(limits, joules_budget=least)
        case Objective.TIME:
            return replace(limits, deadline_seconds=least)
        case Objective.RAM:
            return replace(limits, ram_budget_bytes=math.floor(least))
        case Objective.WRITES:
            return replace(limits, written_budget_bytes=math.floor(least))


def limit_of(limits: Limits, objective: Objective) -> float:
    """What ``limits`` allow of ``objective``; infinite where they do not limit it."""
    allowed = {
        Objective.ENERGY: limits.joules_budget,
        Objective.TIME: limits.deadline_seconds,
        Objective.RAM: limits.ram_budget_bytes,
        Objective.WRITES: limits.written_budget_bytes,
    }[objective]
    return math.inf if allowed is None else allowed


def _part(seconds: float | None, share: float) -> float | None:
    return None if seconds is None else share * seconds


def _seconds_left(started: float, options: SolveOptions) -> Callable[[], float]:
    limit = math.inf if options.time_limit_seconds is None else options.time_limit_seconds
    return lambda: limit - (options.clock.now() - started)
