"""Objectives other than energy, and the energy budget, reduced to the search for least joules.

Least time and least writes are the same problem at other prices. Where nothing costs energy but one
watt of idle power, the joules of a step are its seconds; where only page-outs cost energy, one joule
per byte, they are its bytes written. The bound of that search is a bound in the objective's own unit.
Least RAM is found by bisection: a budget has a plan, or is proven to have none, or leaves a gap. The plan
is simulated on the problem itself; a second search then looks for the plan of least energy among those that
take no more of the objective.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from poet.problem import Limits, Objective, Pins, Problem, ProblemOp, Tensor, Transfer
from poet.problem.pins import permitted
from poet.problem.search_record import NO_SEARCH, Phase, SearchRecord, joined
from poet.problem.simulator import simulate
from poet.problem.solution import PROVEN, Solution, SolveOptions, Start, Status
from poet.solvers.instance.feasibility import minimum_ram_bytes
from poet.solvers.instance.instance import Metered
from poet.solvers.portfolio.state import Recorder
from poet.solvers.search.least_energy import solve as least_energy
from poet.solvers.search.messages import exact_joules, time_up_sentence
from poet.util.units import IN_ORDER, format_bytes

_TOLERANCE = 1e-9  # relative, of sums of seconds and joules

PROBE_SHARE = 1.0 / 3.0
"""Of the time left, for one of several searches, such as a budget of a bisection; with all, it has all."""

PROBE_SECONDS = 0.5
"""For that at least; with less, a search has neither greedy plans nor a first bound."""

EXPLAIN_SECONDS = 2.0
"""For all that is searched to explain that there is no plan; without, none says what would help."""


def solve(problem: Problem, limits: Limits, options: SolveOptions) -> Solution:
    """The plan inside ``limits`` that takes least of the objective in ``options``, with a bound.

    First runs keep the listed order. Ties are broken by energy. Ctrl-C ends the search and keeps the
    best plan.

    Raises:
        InputError: the engine named in ``options`` is not available.
    """
    left, allowed = seconds_left(options), permitted(problem, limits)
    if options.objective is Objective.ENERGY:
        found = _least_joules(allowed, limits, options)
    else:  # without a plan its last third is left
        found = _with_ties_broken(allowed, limits, options)
    if found.status is not Status.INFEASIBLE or limits.pins == Pins() or left() <= 0.0:
        return found
    any_plan = timed(_any_plan(limits, options), min(EXPLAIN_SECONDS / 2.0, left()))
    if _least_joules(problem, replace(limits, pins=Pins()), any_plan).schedule is None:
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


def _with_ties_broken(problem: Problem, limits: Limits, options: SolveOptions) -> Solution:
    """Of the plans found that take as little of the objective as the best one, that of least energy."""
    started, left = options.clock.now(), seconds_left(options)
    best = _least(problem, limits, timed(options, (1.0 - PROBE_SHARE) * left()))
    if best.schedule is None or best.trace is None or best.was_interrupted:
        return best
    spent_seconds = options.clock.now() - started
    start = replace(options.start, schedule=best.schedule, by=best.solver)
    asked = replace(timed(options, left()), objective=Objective.ENERGY, start=start, progress=None)
    cheapest = _least_joules(problem, limited(limits, best.objective, amount=best.amount or 0.0), asked)
    schedule, trace = cheapest.schedule or best.schedule, cheapest.trace or best.trace
    whole_seconds = options.clock.now() - started
    ties = "of the plans that take as little, one of least energy"
    return replace(
        best,
        schedule=schedule,
        trace=trace,
        bound_joules=min(cheapest.bound_joules, trace.joules),
        solver=best.solver if schedule == best.schedule else cheapest.solver,
        message=cheapest.message if cheapest.was_interrupted else best.message,
        was_interrupted=cheapest.was_interrupted,
        solve_seconds=whole_seconds,
        record=joined(
            best.record,
            _as_phase(ties, whole_seconds - spent_seconds, cheapest.record),
            after_seconds=spent_seconds,
        ),
    )


def priced(problem: Problem, objective: Objective) -> Problem:
    """``problem`` at prices at which the joules of a schedule are its seconds, or its bytes written.

    Only for `Objective.TIME` and `Objective.WRITES`; RAM is no sum of prices.
    """
    of_time = objective is Objective.TIME

    def op(one: ProblemOp) -> ProblemOp:
        price = 0.0 if of_time else float(one.stored_written_bytes)
        on = tuple(replace(each, joules=price) for each in one.on)
        return replace(one, joules=price, on=on)

    def tensor(one: Tensor) -> Tensor:
        written = 0.0 if of_time else float(one.storage_bytes)
        return replace(
            one,
            page_in=None if one.page_in is None else Transfer(one.page_in.seconds, 0.0),
            page_out=None if one.page_out is None else Transfer(one.page_out.seconds, written),
        )

    return replace(
        problem,
        ops=tuple(map(op, problem.ops)),
        tensors=tuple(map(tensor, problem.tensors)),
        alternatives=tuple(
            replace(each, ops=tuple(map(op, each.ops)), tensors=tuple(map(tensor, each.tensors)))
            for each in problem.alternatives
        ),
        idle_watts=1.0 if of_time else 0.0,
        units=tuple(
            replace(unit, handing=unit.handing and replace(unit.handing, joules=0.0, joules_per_byte=0.0))
            for unit in problem.units
        ),
    )


# --- energy, with a budget for it ---


def _least_joules(problem: Problem, limits: Limits, options: SolveOptions) -> Solution:
    budget, within = limits.joules_budget, replace(limits, joules_budget=None)
    found = least_energy(problem, within, options)
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
    metered, before, started, left = None, NO_SEARCH, options.clock.now(), seconds_left(options)
    if limits.joules_budget is not None:
        metered = Metered(problem, limits.joules_budget)
        start = _least_joules(
            problem, limits, timed(_any_plan(limits, options), (1.0 - PROBE_SHARE) * left())
        )
        if start.status is Status.INFEASIBLE or (start.was_interrupted and start.schedule is None):
            bound = math.inf if start.status is Status.INFEASIBLE else None
            return replace(start, objective=options.objective, objective_bound=bound, record=NO_SEARCH)
        if start.schedule is not None:
            options = replace(options, start=Start(start.schedule, start.solver))
        before = _as_phase("any plan inside the energy budget", options.clock.now() - started, start.record)
    before_seconds = options.clock.now() - started
    asked = replace(timed(options, left()), enough_joules=None)
    at_prices, within = priced(problem, options.objective), replace(limits, joules_budget=None)
    found = least_energy(at_prices, within, asked, metered=metered)
    bound = found.bound_joules
    if options.objective is Objective.WRITES and math.isfinite(bound):  # up to a sum that there is
        unit = _unit_bytes(problem, options.objective)
        bound = float(math.ceil(bound * (1 - _TOLERANCE) / unit - 1e-6) * unit)
    solution = replace(
        found,
        solve_seconds=options.clock.now() - started,
        trace=None if found.schedule is None else simulate(problem, found.schedule, limits),
        bound_joules=problem.compute_joules,
        baseline_joules=problem.compute_joules,
        objective=options.objective,
        objective_bound=bound,
        record=joined(before, found.record, after_seconds=before_seconds),
    )
    if solution.amount is None:
        return solution
    if solution.amount <= bound * (1 + _TOLERANCE):
        message = solution.message if solution.was_interrupted else ""
        solution = replace(solution, status=Status.OPTIMAL, message=message)
    return replace(solution, objective_bound=min(bound, solution.amount or 0.0))


def _unit_bytes(problem: Problem, objective: Objective) -> int:
    """Bytes of which every amount of the objective is a multiple."""
    if objective is Objective.WRITES:
        parts = [t.storage_bytes for t in problem.tensors]
    else:
        parts = [problem.aligned_bytes(tensor.bytes) for tensor in problem.tensors]
        parts += [problem.aligned_bytes(op.workspace_bytes) for op in problem.ops]
    return max(1, math.gcd(*parts))


# --- RAM ---


def _least_ram(problem: Problem, limits: Limits, options: SolveOptions) -> Solution:
    """Bisect the RAM budgets between the proven bound and the best plan's peak."""
    started, unit = options.clock.now(), _unit_bytes(problem, Objective.RAM)
    recorder, left = Recorder(clock=options.clock.now), seconds_left(options)
    proven, proof = minimum_ram_bytes(problem, limits).bytes, PROVEN  # below these bytes there is no plan
    recorder.bound(proven, "what one op needs at once")
    found = best = _probe(problem, limits, options, left(), recorder, math.inf)
    if best.trace is None:
        bound = float(proven)
        return replace(best, objective=Objective.RAM, objective_bound=bound, record=recorder.record())
    peak = best.trace.peak_ram_bytes
    low = budget = proven  # below ``low`` nothing is worth a try
    while proven < peak and left() > 0.0 and not found.was_interrupted:
        if low >= peak:  # between the proven bytes and here every search was cut short
            low = budget = proven
            options.clock.spend(programs=1)  # so that searches that count no work end by any clock
        found = _probe(problem, replace(limits, ram_budget_bytes=budget), options, left(), recorder, peak)
        if found.trace is not None and found.trace.peak_ram_bytes < peak:
            best, peak = found, found.trace.peak_ram_bytes
        if options.progress is not None:
            options.progress(peak, proven, 1.0 - proven / peak, options.clock.now() - started)
        above = (budget // unit + 1) * unit
        if found.status is Status.INFEASIBLE and proven == low:
            proven, proof = above, found.proof
            recorder.bound(proven, "no plan with less")
        if found.schedule is None:
            low = above
        budget = low + int((peak - low) / unit) // 2 * unit
    is_optimal, record = proven >= peak, recorder.record()
    message = found.message if found.was_interrupted else ""
    if not is_optimal and not found.was_interrupted:
        plan, bound = (max((one.seconds for one in of), default=0.0) for of in (record.plans, record.bounds))
        message = time_up_sentence(options.engine, plan_seconds=plan, bound_seconds=bound)
    return replace(
        best,
        status=Status.OPTIMAL if is_optimal else Status.FEASIBLE,
        proof=proof if is_optimal else "",
        message=message,
        was_interrupted=found.was_interrupted,
        bound_joules=problem.compute_joules,
        objective=Objective.RAM,
        objective_bound=float(min(proven, peak)),
        record=record,
    )


def _probe(
    problem: Problem, limits: Limits, options: SolveOptions, seconds: float, recorder: Recorder, peak: float
) -> Solution:
    """Search for any plan for a part of ``seconds``; it is noted where it needs less RAM than ``peak``."""
    allowed = min(seconds, max(PROBE_SHARE * seconds, PROBE_SECONDS))
    asked, budget = timed(_any_plan(limits, options), allowed), limits.ram_budget_bytes
    with recorder.phase(f"any plan with {'any RAM' if budget is None else f'{format_bytes(budget)} of RAM'}"):
        found = _least_joules(problem, limits, asked)
        recorder.count(found.record.rejected)
        if found.trace is not None and found.trace.peak_ram_bytes < peak:
            recorder.plan(found.trace.peak_ram_bytes, found.solver)
    return found


# --- what they share ---


def _any_plan(limits: Limits, options: SolveOptions) -> SolveOptions:
    """Options that end a search with the first plan inside the energy budget."""
    enough = math.inf if limits.joules_budget is None else limits.joules_budget
    return replace(options, objective=Objective.ENERGY, enough_joules=enough, progress=None)


def timed(options: SolveOptions, seconds: float) -> SolveOptions:
    """``options`` with a time limit; infinite: none."""
    return replace(options, time_limit_seconds=None if math.isinf(seconds) else seconds)


def _as_phase(name: str, seconds: float, record: SearchRecord) -> SearchRecord:
    """A search within another, of whose record only what the simulator rejected is kept."""
    return SearchRecord(phases=(Phase(name, 0.0, seconds),), rejected=record.rejected)


LIMIT_FIELDS = {
    Objective.ENERGY: "joules_budget", Objective.TIME: "deadline_seconds",
    Objective.RAM: "ram_budget_bytes", Objective.WRITES: "written_budget_bytes",
}  # fmt: skip
"""The field of `poet.problem.Limits` that limits each objective."""


def limited(limits: Limits, objective: Objective, *, amount: float) -> Limits:
    """``limits`` with at most ``amount`` of ``objective``, unless they are narrower already."""
    least = min(amount, limit_of(limits, objective))
    is_whole = objective in (Objective.RAM, Objective.WRITES)
    changed: dict[str, Any] = {LIMIT_FIELDS[objective]: math.floor(least) if is_whole else least}
    return replace(limits, **changed)


def limit_of(limits: Limits, objective: Objective) -> float:
    """What ``limits`` allow of ``objective``; infinite where they do not limit it."""
    allowed: float | None = getattr(limits, LIMIT_FIELDS[objective])
    return math.inf if allowed is None else allowed


def seconds_left(options: SolveOptions) -> Callable[[], float]:
    """Of the time limit, from now on; infinite without one."""
    started, limit = options.clock.now(), options.time_limit_seconds
    return lambda: math.inf if limit is None else max(0.0, limit - (options.clock.now() - started))
