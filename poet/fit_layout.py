"""Repeats the search with reserved bytes until the arena, not only the live tensors, fits the budget.

Tensors of different sizes leave gaps between them, so an arena may need more than the schedule's peak.
`fit` lays the schedule out; where the arena does not fit, it solves again with the missing bytes
reserved, a few times at most. The bound stays that of the whole budget: a plan that fits with its gaps
also fits without them. Where this machine's system maps the arena, whole pages count.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace

from poet.demand import PAGE_BYTES, demand_of
from poet.homes import DecidedProblem, decided
from poet.kernel_facts import KernelFacts
from poet.layout import Layout, lay_out
from poet.problem import Limits, Problem
from poet.schedule import Schedule
from poet.search_record import Phase, SearchRecord, joined
from poet.solution import Solution, SolveOptions, Status
from poet.solvers import minimum_ram_bytes, solve
from poet.training_plan import Arena, is_paged, least_page_buffer_bytes
from poet.units import format_bytes

_MOST_ROUNDED_BYTES = 2 * PAGE_BYTES  # an arena has two parts
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Fitted:
    """A solution with the layout of its schedule.

    Attributes:
        problem: that was solved, with every home as the schedule has it.
        solution: its bound and gap are for the whole budget.
        arena: offsets of all blocks that the schedule needs.
        reserved_bytes: of the budget, for gaps between tensors and for the page buffer.
    """

    problem: DecidedProblem
    solution: Solution
    arena: Arena
    reserved_bytes: int


def fit(
    problem: Problem,
    limits: Limits,
    first: Solution,
    options: SolveOptions,
    *,
    kernels: KernelFacts | None = None,
) -> Fitted | None:
    """Lay out a solution's schedule inside the RAM budget, repeating the search with less RAM where needed.

    The search is not repeated after Ctrl-C, nor when the time limit is used up. Where no layout fits, the
    first solution comes back with an arena that is larger than the budget, and a message that says so: such
    a plan runs from the heap.

    Args:
        problem: that was solved. Where it is solved again, homes stay as the first answer has them.
        limits: inside which.
        first: the solution of `poet.solvers.solve`.
        options: with the time limit for everything; repeats take what ``first`` left of it.
        kernels: whose workspaces the problem counts, where more is known about them.

    Returns:
        ``None`` where ``first`` has no schedule.
    """
    if first.schedule is None:
        return None
    budget_bytes = limits.ram_budget_bytes
    problem = decided(problem, first.schedule)
    laying_seconds = options.tuning.fitting.layout_seconds
    layout, ram_bytes = _laid_out(problem, first.schedule, kernels, budget_bytes, laying_seconds)
    loose, loose_bytes = Fitted(problem, first, _arena(layout), 0), ram_bytes
    if budget_bytes is None:
        return loose
    started, reserved_bytes, answer, record = options.clock.now(), 0, first, first.record
    least_bytes = minimum_ram_bytes(problem, limits).bytes
    tuning = options.tuning.fitting
    for round_ in range(tuning.rounds):
        assert answer.schedule is not None
        missing_bytes = ram_bytes + _buffer_bytes(answer.schedule, budget_bytes) - budget_bytes
        if missing_bytes <= 0:
            if answer is not first:
                spent_seconds = first.solve_seconds + options.clock.now() - started
                answer = _for_the_budget(answer, first, options, reserved_bytes)
                answer = replace(answer, solve_seconds=spent_seconds, record=record)
            return Fitted(problem, answer, _arena(layout), reserved_bytes)
        assert answer.trace is not None
        peak_bytes = answer.trace.peak_ram_bytes  # holding back less than leads below it changes nothing
        wanted_bytes = peak_bytes - round(missing_bytes * (tuning.growth_factor if round_ else 1.0))
        allowed_bytes = max(wanted_bytes, (peak_bytes + least_bytes) // 2)
        again = _with_a_share(options, first, started, rounds_left=tuning.rounds - round_)
        if allowed_bytes >= peak_bytes or again is None or answer.was_interrupted:
            break
        reserved_bytes = budget_bytes - allowed_bytes
        _log.info(
            "the arena is %s too large: again, with %s held back",
            format_bytes(missing_bytes),
            format_bytes(reserved_bytes),
        )
        held_back = replace(limits, ram_budget_bytes=allowed_bytes)
        spent_seconds = first.solve_seconds + options.clock.now() - started
        answer = solve(problem, held_back, again)
        record = _with_another(record, answer, spent_seconds, reserved_bytes)
        if answer.schedule is None:
            break
        layout, ram_bytes = _laid_out(problem, answer.schedule, kernels, budget_bytes, laying_seconds)
    size = format_bytes(loose_bytes)
    _log.info("no layout inside the budget was found; the plan takes %s with its gaps", size)
    what = f"With the gaps between its tensors the plan takes {size}: it runs from the heap."
    message = " ".join(filter(None, (first.message, what)))
    return replace(loose, solution=replace(first, message=message))


def _laid_out(
    problem: Problem,
    schedule: Schedule,
    kernels: KernelFacts | None,
    budget_bytes: int | None,
    laying_seconds: float,
) -> tuple[Layout, int]:
    """The layout of ``schedule``, and the bytes of RAM that its arena takes."""
    demand = demand_of(problem, schedule, kernels)
    is_mapped = kernels is not None and kernels.threads is not None
    enough_bytes = 0
    if budget_bytes is not None:
        rounded_bytes = _MOST_ROUNDED_BYTES if is_mapped else 0
        enough_bytes = max(budget_bytes - _buffer_bytes(schedule, budget_bytes) - rounded_bytes, 0)
    layout = lay_out(demand.blocks, enough_bytes=enough_bytes, time_limit_seconds=laying_seconds)
    if not is_mapped:
        return layout, layout.arena_bytes
    return layout, demand.mapped_bytes(layout.offsets_bytes, layout.arena_bytes)


def _arena(layout: Layout) -> Arena:
    return Arena(layout.arena_bytes, layout.offsets_bytes)


def _buffer_bytes(schedule: Schedule, budget_bytes: int) -> int:
    return least_page_buffer_bytes(budget_bytes) if is_paged(schedule) else 0


def searching(options: SolveOptions, limits: Limits) -> SolveOptions:
    """``options`` of a first search that leaves some of the time limit to `fit`."""
    if options.time_limit_seconds is None or limits.ram_budget_bytes is None:
        return options
    share = 1.0 - options.tuning.fitting.laying_share
    return replace(options, time_limit_seconds=share * options.time_limit_seconds)


def _with_a_share(
    options: SolveOptions, first: Solution, started: float, *, rounds_left: int
) -> SolveOptions | None:
    """``options`` with an equal share of what is left of the time limit; ``None`` where that is nothing."""
    if options.time_limit_seconds is None:
        return options
    left_seconds = options.time_limit_seconds - first.solve_seconds - (options.clock.now() - started)
    share_seconds = left_seconds / rounds_left
    return (
        None
        if share_seconds < options.tuning.fitting.least_seconds
        else replace(options, time_limit_seconds=share_seconds)
    )


def _with_another(
    record: SearchRecord, answer: Solution, after_seconds: float, reserved_bytes: int
) -> SearchRecord:
    """``record`` with a search that had less RAM: its plans count, its bounds hold for less RAM only."""
    name = f"again, with {format_bytes(reserved_bytes)} held back for gaps between tensors"
    phase = Phase(name, 0.0, answer.solve_seconds, plans=len(answer.record.plans))
    another = SearchRecord((phase,), answer.record.plans, rejected=answer.record.rejected)
    return joined(record, another, after_seconds=after_seconds)


def _for_the_budget(
    answer: Solution, first: Solution, options: SolveOptions, reserved_bytes: int
) -> Solution:
    """``answer``, which was found with less RAM, with the bound of ``first`` for all of it.

    Args:
        answer: of the last search, without ``reserved_bytes``.
        first: of the search with the whole budget.
        options: whose gaps say what is optimal.
        reserved_bytes: of the budget, for gaps between tensors and for the page buffer.
    """
    whole = replace(
        answer,
        status=Status.FEASIBLE,
        bound_joules=first.bound_joules,
        bound_scope=first.bound_scope,
        objective_bound=first.objective_bound,
        message=first.message,
        proof="",  # that of ``answer`` holds for less RAM, and so does its class bound
        class_bound=None,
    )
    closed = (whole.objective_gap or 0.0) <= options.relative_gap and (
        whole.overhead_gap is None or whole.overhead_gap <= options.overhead_gap
    )
    if first.status is not Status.OPTIMAL:
        return whole
    if closed:
        return replace(whole, status=Status.OPTIMAL, proof=first.proof)
    held = format_bytes(reserved_bytes)
    return replace(
        whole, message=f"{held} of the budget are held back for gaps between tensors: the gap is their price."
    )
