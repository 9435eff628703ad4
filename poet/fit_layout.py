"""From an answer to a plan that fits as a whole: its arena is inside the budget, not only what is live.

Tensors of different sizes leave gaps between them, so an arena may need more than the schedule's peak.
`settle` lays the schedule out; where the arena does not fit it solves again with the missing bytes held
back, a few times at most. The bound stays that of the budget asked for: whatever fits with its gaps
also fits without them. Where the arena is mapped by this machine's system, its pages count.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from poet.demand import PAGE_BYTES, demand_of
from poet.kernel_facts import KernelFacts
from poet.layout import Layout, lay_out
from poet.problem import Limits, Problem
from poet.schedule import Schedule
from poet.solution import Solution, SolveOptions, Status
from poet.solvers import minimum_ram_bytes, solve
from poet.training_plan import Arena, is_paged, least_page_buffer_bytes
from poet.units import format_bytes

_ROUNDS = 6
_GROWTH = 1.5  # of what is missing, from the second round on
_LAYOUT_SECONDS = 2.0
_MOST_ROUNDED_BYTES = 2 * PAGE_BYTES  # an arena has two parts
_LAYING_SHARE = 0.2  # of the time limit, that the search leaves to laying its plan out
_LEAST_SECONDS = 0.05  # with less, nothing is solved again


@dataclass(frozen=True, slots=True)
class Settled:
    """An answer with the layout of its schedule.

    Attributes:
        solution: its bound and gap are for the whole budget.
        arena: places for all that the schedule asks for.
        reserved_bytes: of the budget, held back for gaps between tensors and for the page buffer.
    """

    solution: Solution
    arena: Arena
    reserved_bytes: int


def settle(
    problem: Problem,
    limits: Limits,
    first: Solution,
    options: SolveOptions,
    *,
    kernels: KernelFacts | None = None,
) -> Settled | None:
    """Lay the answer out inside the RAM budget, solving again with less where that is needed.

    Nothing is solved again after Ctrl-C, nor when the time limit is used up. Where no layout fits, the first
    answer comes back with an arena that is larger than the budget, and a message that says so: such a plan
    runs from the heap.

    Args:
        problem: that was solved.
        limits: inside which.
        first: what `poet.solvers.solve` answered.
        options: with the time limit for everything; solving again takes what ``first`` left of it.
        kernels: whose workspaces the problem counts, where more is known about them.

    Returns:
        ``None`` where ``first`` has no schedule.
    """
    if first.schedule is None:
        return None
    budget_bytes = limits.ram_budget_bytes
    layout, ram_bytes = _laid_out(problem, first.schedule, kernels, budget_bytes)
    loose, loose_bytes = Settled(first, _arena(layout), 0), ram_bytes
    if budget_bytes is None:
        return loose
    started, reserved_bytes, answer = options.clock.now(), 0, first
    least_bytes = minimum_ram_bytes(problem, limits).bytes
    for round_ in range(_ROUNDS):
        assert answer.schedule is not None
        missing_bytes = ram_bytes + _buffer_bytes(answer.schedule, budget_bytes) - budget_bytes
        if missing_bytes <= 0:
            return Settled(_for_the_budget(answer, first, options), _arena(layout), reserved_bytes)
        assert answer.trace is not None
        peak_bytes = answer.trace.peak_ram_bytes  # holding back less than leads below it changes nothing
        wanted_bytes = peak_bytes - round(missing_bytes * (_GROWTH if round_ else 1.0))
        allowed_bytes = max(wanted_bytes, (peak_bytes + least_bytes) // 2)
        again = _with_a_share(options, first, started, rounds_left=_ROUNDS - round_)
        if allowed_bytes >= peak_bytes or again is None or answer.was_interrupted:
            break
        reserved_bytes = budget_bytes - allowed_bytes
        held_back = replace(limits, ram_budget_bytes=allowed_bytes)
        answer = solve(problem, held_back, again)
        if answer.schedule is None:
            break
        layout, ram_bytes = _laid_out(problem, answer.schedule, kernels, budget_bytes)
    size = format_bytes(loose_bytes)
    what = f"With the gaps between its tensors the plan takes {size}: it runs from the heap."
    message = " ".join(filter(None, (first.message, what)))
    return replace(loose, solution=replace(first, message=message))


def _laid_out(
    problem: Problem, schedule: Schedule, kernels: KernelFacts | None, budget_bytes: int | None
) -> tuple[Layout, int]:
    """The layout, and what its arena takes of RAM."""
    demand = demand_of(problem, schedule, kernels)
    is_mapped = kernels is not None and kernels.threads is not None
    enough_bytes = 0
    if budget_bytes is not None:
        rounded_bytes = _MOST_ROUNDED_BYTES if is_mapped else 0
        enough_bytes = max(budget_bytes - _buffer_bytes(schedule, budget_bytes) - rounded_bytes, 0)
    layout = lay_out(demand.blocks, enough_bytes=enough_bytes, time_limit_seconds=_LAYOUT_SECONDS)
    if not is_mapped:
        return layout, layout.arena_bytes
    return layout, demand.mapped_bytes(layout.offsets_bytes, layout.arena_bytes)


def _arena(layout: Layout) -> Arena:
    return Arena(layout.arena_bytes, layout.offsets_bytes)


def _buffer_bytes(schedule: Schedule, budget_bytes: int) -> int:
    return least_page_buffer_bytes(budget_bytes) if is_paged(schedule) else 0


def searching(options: SolveOptions, limits: Limits) -> SolveOptions:
    """``options`` of a first search that leaves some of the time limit to `settle`."""
    if options.time_limit_seconds is None or limits.ram_budget_bytes is None:
        return options
    return replace(options, time_limit_seconds=(1.0 - _LAYING_SHARE) * options.time_limit_seconds)


def _with_a_share(
    options: SolveOptions, first: Solution, started: float, *, rounds_left: int
) -> SolveOptions | None:
    """``options`` with an equal share of what is left of the time limit; ``None`` where that is nothing."""
    if options.time_limit_seconds is None:
        return options
    left_seconds = options.time_limit_seconds - first.solve_seconds - (options.clock.now() - started)
    share_seconds = left_seconds / rounds_left
    return None if share_seconds < _LEAST_SECONDS else replace(options, time_limit_seconds=share_seconds)


def _for_the_budget(answer: Solution, first: Solution, options: SolveOptions) -> Solution:
    """``answer``, which was found with less RAM, held against the bound for all of it."""
    if answer is first:
        return first
    whole = replace(
        answer,
        status=Status.FEASIBLE,
        bound_joules=first.bound_joules,
        bound_scope=first.bound_scope,
        objective_bound=first.objective_bound,
        solve_seconds=first.solve_seconds + answer.solve_seconds,
        message=first.message,
    )
    proven = (whole.objective_gap or 0.0) <= options.relative_gap and (
        whole.overhead_gap is None or whole.overhead_gap <= options.overhead_gap
    )
    return replace(whole, status=Status.OPTIMAL) if proven and first.status is Status.OPTIMAL else whole
