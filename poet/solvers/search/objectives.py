"""Objectives other than energy, and the energy budget, reduced to the search for least joules.

Least time and least writes are the same problem at other prices. Where nothing costs energy but one
watt of idle power, the joules of a step are its seconds; where only page-outs cost energy, one joule
per byte, they are its bytes written. The bound of that search is a bound in the objective's own unit.
Least RAM is found by bisection: a budget has a plan, or is proven to have none, or leaves a gap. The plan
is judged on the problem itself; a second search then looks for the plan of least energy among those that
take no more of the objective.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from poet.pins import permitted
from poet.problem import Limits, Objective, Pins, Problem, ProblemOp, Tensor, Transfer
from poet.schedule import Schedule
from poet.search_record import NO_SEARCH, Phase, SearchRecord, joined
from poet.simulator import Trace, simulate
from poet.solution import PROVEN, Solution, SolveOptions, Status
from poet.solvers.instance.feasibility import minimum_ram_bytes
from poet.solvers.instance.instance import Metered
from poet.solvers.portfolio.recorder import Recorder
from poet.solvers.search.least_energy import solve as least_energy
from poet.solvers.search.messages import exact_joules, time_up_sentence
from poet.units import IN_ORDER, format_bytes

_TOLERANCE = 1e-9  # relative, of sums of seconds and joules


def solve(problem: Problem, limits: Limits | None = None, options: SolveOptions | None = None) -> Solution:
    """The plan inside ``limits`` that takes least of the objective in ``options``, with a bound.

    First runs keep the listed order. Ties are broken by energy. Ctrl-C ends the search and keeps the
    best plan.

    Raises:
        InputError: the engine named in ``options`` is not available.
    """
    limits, options = limits or Limits(), options or SolveOptions()
    left = _seconds_left(options.clock.now(), options)
    found = _solve(permitted(problem, limits), limits, options)
    seconds = min(options.tuning.objectives.pins_seconds, left())
    if found.status is not Status.INFEASIBLE or limits.pins == Pins() or seconds <= 0.0:
        return found
    free = replace(limits, pins=Pins())
    without = _least_joules(problem, free, replace(_any_plan(limits, options), time_limit_seconds=seconds))
    if without.schedule is None:
        return found
    return replace(found, message="Without the pins there is a plan: one of them asks for too much.")


def least(problem: Problem, limits: Limits, options: SolveOptions) -> Solution:
    """As `solve`, but ties are not broken by energy."""
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
    first_seconds = _part(options.time_limit_seconds, options.tuning.objectives.first_share)
    first = replace(options, time_limit_seconds=first_seconds)
    best = _least(problem, limits, first)
    if best.schedule is None or best.trace is None or best.was_interrupted:
        return best
    spent_seconds = options.clock.now() - started
    left = None if options.time_limit_seconds is None else options.time_limit_seconds - spent_seconds
    cheapest = _cheapest_as_good(problem, limits, replace(options, time_limit_seconds=left), best)
    whole_seconds = options.clock.now() - started
    ties = Phase("of the plans that take as little, one of least energy", 0.0, whole_seconds - spent_seconds)
    others = SearchRecord(phases=(ties,), rejected=cheapest.record.rejected)
    record = joined(best.record, others, after_seconds=spent_seconds)
    return replace(cheapest, solve_seconds=whole_seconds, record=record)


def priced(problem: Problem, objective: Objective) -> Problem:
    """``problem`` at prices at which the joules of a schedule are its seconds, or its bytes written.

    Only for `Objective.TIME` and `Objective.WRITES`; RAM is no sum of prices.
    """
    of_time = objective is Objective.TIME

    def at_prices(tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return tuple(_priced_tensor(tensor, by_byte=not of_time) for tensor in tensors)

    return replace(
        problem,
        ops=tuple(_priced_op(op, by_byte=not of_time) for op in problem.ops),
        tensors=at_prices(problem.tensors),
        alternatives=tuple(
            replace(
                each,
                ops=tuple(_priced_op(op, by_byte=not of_time) for op in each.ops),
                tensors=at_prices(each.tensors),
            )
            for each in problem.alternatives
        ),
        idle_watts=1.0 if of_time else 0.0,
    )


def _priced_op(op: ProblemOp, *, by_byte: bool) -> ProblemOp:
    return replace(op, joules=float(op.stored_written_bytes) if by_byte else 0.0)


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
        least, allowed = map(exact_joules, (found.bound_joules, budget))
        rest = f"takes at least {least} {IN_ORDER}; the energy budget is {allowed}."
        message = f"Inside the other limits a step {rest}"
        return replace(found, status=Status.INFEASIBLE, schedule=None, trace=None, message=message)
    if found.trace is not None and found.trace.joules > budget * (1 + _TOLERANCE):
        best, allowed = map(exact_joules, (found.trace.joules, budget))
        message = f"The best plan found takes {best}, above the energy budget of {allowed}."
        return replace(found, status=Status.TIMEOUT, schedule=None, trace=None, message=message)
    return found


# --- time and writes ---


def _least_priced(problem: Problem, limits: Limits, options: SolveOptions) -> Solution:
    """The least time or writes: joules of the plan are judged on ``problem``, of the bound unknown."""
    metered, before, started = None, NO_SEARCH, options.clock.now()
    if limits.joules_budget is not None:
        metered = Metered(problem, limits.joules_budget)
        start = _least_joules(problem, limits, _any_plan(limits, options))
        if start.status is Status.INFEASIBLE:
            return replace(start, objective=options.objective, objective_bound=math.inf, record=NO_SEARCH)
        if start.was_interrupted and start.schedule is None:
            return replace(start, objective=options.objective, objective_bound=None, record=NO_SEARCH)
        if start.schedule is not None:
            options = replace(options, start=start.schedule, start_by=start.solver)
        any_plan = Phase("any plan inside the energy budget", 0.0, options.clock.now() - started)
        before = SearchRecord(phases=(any_plan,), rejected=start.record.rejected)
    before_seconds = options.clock.now() - started
    within = replace(limits, joules_budget=None)
    at_prices = priced(problem, options.objective)
    found = least_energy(at_prices, within, replace(options, enough_joules=None), metered=metered)
    found = replace(found, record=joined(before, found.record, after_seconds=before_seconds))
    return _in_its_unit(problem, limits, found, options.objective, found.bound_joules)


def _in_its_unit(
    problem: Problem, limits: Limits, found: Solution, objective: Objective, bound: float
) -> Solution:
    """A solution of the problem at other prices as one of ``problem``; ``bound`` is of the objective."""
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
    """Bytes of which every amount of the objective is a multiple."""
    if objective is Objective.WRITES:
        parts = [t.storage_bytes for t in problem.tensors]
    else:
        parts = [problem.aligned_bytes(tensor.bytes) for tensor in problem.tensors]
        parts += [problem.aligned_bytes(op.workspace_bytes) for op in problem.ops]
    return max(1, math.gcd(*parts))


def _next_sum(bound: float, unit: int) -> float:
    """The least multiple of ``unit`` that is not below ``bound``, within rounding."""
    return bound if math.isinf(bound) else float(math.ceil(bound * (1 - _TOLERANCE) / unit - 1e-6) * unit)


# --- RAM ---


@dataclass(slots=True)
class _Halving:
    """Bisection over RAM budgets: none below ``proven_bytes`` has a plan; the leanest plan found so far."""

    proven_bytes: int
    recorder: Recorder
    schedule: Schedule | None = None
    trace: Trace | None = None
    solver: str = "none"
    proof: str = ""  # of ``proven_bytes``

    @property
    def peak_bytes(self) -> float:
        return math.inf if self.trace is None else self.trace.peak_ram_bytes


def _least_ram(problem: Problem, limits: Limits, options: SolveOptions) -> Solution:
    """Bisect the RAM budgets between the proven bound and the best plan's peak."""
    started = options.clock.now()
    unit = _unit_bytes(problem, Objective.RAM)
    recorder = Recorder(Objective.RAM, clock=options.clock.now)
    halving = _Halving(minimum_ram_bytes(problem, limits).bytes, recorder, proof=PROVEN)
    halving.recorder.bound(halving.proven_bytes, "what one op needs at once")
    left = _seconds_left(started, options)
    wide = _probe(problem, limits, options, left(), halving, limits.ram_budget_bytes)
    if halving.trace is None:
        return replace(
            wide,
            objective=Objective.RAM,
            objective_bound=float(halving.proven_bytes),
            record=halving.recorder.record(),
        )
    low = halving.proven_bytes  # below it nothing is worth a try
    budget = low
    while halving.proven_bytes < halving.peak_bytes and left() > 0.0 and not wide.was_interrupted:
        if low >= halving.peak_bytes:  # between the proven bytes and here every search was cut short
            low = budget = halving.proven_bytes
            options.clock.spend(programs=1)  # so that searches that count no work end by any clock
        wide = _probe(problem, limits, options, left(), halving, budget)
        if options.progress is not None:
            gap = 1.0 - halving.proven_bytes / halving.peak_bytes
            options.progress(halving.peak_bytes, halving.proven_bytes, gap, options.clock.now() - started)
        if wide.status is Status.INFEASIBLE and halving.proven_bytes == low:
            halving.proven_bytes, halving.proof = (budget // unit + 1) * unit, wide.proof
            halving.recorder.bound(halving.proven_bytes, "no plan with less")
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
        message=_open_sentence(wide, halving, options, bound),
        bound_joules=problem.compute_joules,
        objective=Objective.RAM,
        objective_bound=bound,
        record=halving.recorder.record(),
    )


def _open_sentence(last: Solution, halving: _Halving, options: SolveOptions, bound: float) -> str:
    """Why the bisection ended with a gap, after the probe ``last``; empty where it left none."""
    if last.was_interrupted:
        return last.message
    if bound == halving.peak_bytes:
        return ""
    record = halving.recorder.record()
    plan_seconds = max((found.seconds for found in record.plans), default=0.0)
    bound_seconds = max((found.seconds for found in record.bounds), default=0.0)
    return time_up_sentence(options.engine, plan_seconds=plan_seconds, bound_seconds=bound_seconds)


def _probe(
    problem: Problem,
    limits: Limits,
    options: SolveOptions,
    seconds: float,
    halving: _Halving,
    budget_bytes: int | None,
) -> Solution:
    """Search for any plan within ``budget_bytes``; ``halving`` takes it over if its peak is the least."""
    tuning = options.tuning.objectives
    least_seconds = min(seconds, tuning.probe_least_seconds)
    share = None if math.isinf(seconds) else max(tuning.probe_share * seconds, least_seconds)
    asked = replace(_any_plan(limits, options), time_limit_seconds=share)
    budget = "any RAM" if budget_bytes is None else f"{format_bytes(budget_bytes)} of RAM"
    with halving.recorder.phase(f"any plan with {budget}"):
        found = _least_joules(problem, replace(limits, ram_budget_bytes=budget_bytes), asked)
        _keep_leanest(found, halving)
    return found


def _keep_leanest(found: Solution, halving: _Halving) -> None:
    halving.recorder.count(found.record.rejected)
    if found.trace is not None and found.trace.peak_ram_bytes < halving.peak_bytes:
        halving.schedule, halving.trace, halving.solver = found.schedule, found.trace, found.solver
        halving.recorder.plan(found.trace.peak_ram_bytes, found.solver)


# --- what they share ---


def _any_plan(limits: Limits, options: SolveOptions) -> SolveOptions:
    """Options that end a search with the first plan inside the energy budget."""
    enough = math.inf if limits.joules_budget is None else limits.joules_budget
    return replace(
        options, objective=Objective.ENERGY, enough_joules=enough, progress=None, spare_seconds=0.0
    )


def _cheapest_as_good(problem: Problem, limits: Limits, options: SolveOptions, best: Solution) -> Solution:
    """The plan of least energy found among those that take no more of the objective than ``best``."""
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
        record=cheapest.record,
        solver=best.solver if schedule == best.schedule else cheapest.solver,
        message=cheapest.message if cheapest.was_interrupted else best.message,
        was_interrupted=cheapest.was_interrupted,
    )


def limited(limits: Limits, objective: Objective, *, amount: float) -> Limits:
    """``limits`` with at most ``amount`` of ``objective``, unless they are narrower already."""
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
