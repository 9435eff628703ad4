"""Makes the arena, not only the live tensors, fit the budget: fixed places, moves, or less RAM for the plan.

Tensors of different sizes leave gaps between them, so an arena may need more than the schedule's peak. A
schedule is placed; where it does not fit, tensors are moved between steps, or a plan follows the schedule in
less RAM (`poet.solvers.heuristics.policies`), which is less by a geometric step of what was missing. The
rest of the time is for searches in as much less RAM as was best. What takes the least with its moves is the
plan. Its bound is that of the whole budget: a plan that fits with its gaps also fits without them.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from poet.errors import InvalidSchedule
from poet.ir.kernel_facts import KernelFacts
from poet.memory.compaction import compact
from poet.memory.demand import PAGE_BYTES, Demand, demand_of, whole_pages_bytes
from poet.memory.layout import Layout, lay_out
from poet.plans.page_slots import is_paged, least_page_buffer_bytes
from poet.plans.plan_parts import Arena
from poet.problem import Limits, Objective, Problem
from poet.problem.homes import DecidedProblem, decided
from poet.problem.schedule import Schedule
from poet.problem.search_record import Phase, SearchRecord, joined
from poet.problem.simulator import Trace, judge
from poet.problem.solution import Solution, SolveOptions, Status, amount_of
from poet.solvers import minimum_ram_bytes, solve
from poet.solvers.heuristics.policies import followed
from poet.util.units import format_bytes, format_joules

FITTING_SHARE = 0.25
"""Of the time limit, or of a minute, that the first search leaves for arenas; without, none is improved."""
ENOUGH_SHARE = 0.002
"""Of the objective, that moves and less RAM may take with no search to follow; without, one always does."""
GLANCE_SECONDS = 0.1
"""Of one layout of many that are compared; with much more, few are."""
SEARCH_SECONDS = 0.5
"""Of another search at least, as shorter ones find nothing; where nothing fits, also past the limit."""
LATE_SEARCHES = 3
CROWDING_SECONDS = 1e-8  # of a pass for moves, per unit of `Demand.crowding`
FINEST_FACTOR = 1.1  # from one reserved amount to the next

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


@dataclass(frozen=True, slots=True)
class _Placed:
    """An answer at fixed places that may not fit, found without ``reserved_bytes`` of the budget.

    Attributes:
        answer: with a schedule.
        trace: of a step without moves.
        demand: what the schedule asks for.
        layout: where that lies.
        room_bytes: how large the arena may be.
        missing_bytes: of RAM, for this arena; 0 or less: it fits.
        reserved_bytes: see above.
    """

    answer: Solution
    schedule: Schedule
    trace: Trace
    demand: Demand
    layout: Layout
    room_bytes: int
    missing_bytes: int
    reserved_bytes: int

    @property
    def arena(self) -> Arena:
        """As a plan has it."""
        return Arena(self.layout.arena_bytes, self.layout.offsets_bytes)


def searching(options: SolveOptions, limits: Limits) -> SolveOptions:
    """``options`` of a first search that leaves some of the time limit to `fit`."""
    if options.time_limit_seconds is None or limits.ram_budget_bytes is None:
        return options
    return replace(options, time_limit_seconds=(1.0 - FITTING_SHARE) * options.time_limit_seconds)


def is_mapped(kernels: KernelFacts | None) -> bool:
    """Whether steps with these kernels run here, in an arena that the system maps in whole pages."""
    return kernels is not None and kernels.threads is not None


def fit(
    problem: Problem,
    limits: Limits,
    first: Solution,
    options: SolveOptions,
    *,
    kernels: KernelFacts | None = None,
) -> Fitted | None:
    """Place a solution's schedule inside the RAM budget, in less RAM where that takes less than its moves.

    Nothing is searched after Ctrl-C, nor when the time limit is used up, but shortly where nothing fits by
    then. Where no layout fits, the first solution comes back with an arena that is larger than the budget,
    and a message that says so: such a plan runs from the heap.

    Args:
        problem: that was solved. Homes stay as the first answer has them.
        limits: inside which.
        first: the solution of `poet.solvers.solve`.
        options: with the time limit for everything, of which ``first`` has taken its part; 0: no search.
        kernels: whose workspaces the problem counts, where more is known about them.

    Returns:
        ``None`` where ``first`` has no schedule.
    """
    return None if first.schedule is None else _Fit(problem, limits, first, options, kernels).run()


class _Fit:
    """Schedules in their arenas, compared.

    Attributes:
        best: what takes the least of what fits so far; ``None``: nothing does.
        kept: the candidate that it was.
        record: of all searches.
        late_searches: past the time limit, that may still be made where nothing fits.
    """

    def __init__(
        self,
        problem: Problem,
        limits: Limits,
        first: Solution,
        options: SolveOptions,
        kernels: KernelFacts | None,
    ) -> None:
        assert first.schedule is not None
        self.problem, self.limits, self.first = decided(problem, first.schedule), limits, first
        self.options, self.kernels, self.record = options, kernels, first.record
        limit_seconds = options.time_limit_seconds
        if limit_seconds is None:
            limit_seconds = first.solve_seconds + FITTING_SHARE * 60.0
        self.began = options.clock.now() - first.solve_seconds
        self.until = self.began + limit_seconds
        self.best: Fitted | None = None
        self.kept: _Placed | None = None
        self.late_searches = LATE_SEARCHES if limit_seconds else 0

    def run(self) -> Fitted:
        """What takes the least, after as many searches as there is time for."""
        first = self.placed(self.first, 0, seconds=self.share_seconds(8))
        again: _Placed | None = first
        while again is not None:
            base = again
            self.place_in_less(base)
            if self.is_enough(base) or base.answer.was_interrupted:
                break
            self.improve()
            again = self.searched(base)
        return self.best or self.from_the_heap(first)

    def place_in_less(self, base: _Placed) -> None:
        """Keep the cheapest of ``base`` and of what follows it in less RAM, in their arenas.

        First what is missing is reserved, then, where tensors can be moved, an eighth of it. Then twice as
        much as was best so far is tried, and half as much, then the same by the root of that factor, and so
        on. More is not tried where fixed places fit, or where following takes more by itself than the best.
        """
        if self.place(base):
            return
        until_seconds, most_bytes, tried = self.left_seconds() / 3, math.inf, set[int]()
        center_bytes = math.ceil(base.missing_bytes / (8.0 if self.can_move(base) else 1.0))
        factor = 2.0
        while factor > FINEST_FACTOR and not (base.answer.was_interrupted or self.is_enough(base)):
            steps = (
                base.missing_bytes,
                center_bytes,
                round(factor * center_bytes),
                round(center_bytes / factor),
            )
            held_bytes = next((step for step in steps if step < most_bytes and step not in tried), None)
            if held_bytes is None:
                factor = math.sqrt(factor)
                continue
            is_late = self.left_seconds() <= until_seconds
            if is_late and (self.best is not None or most_bytes < math.inf):
                break
            tried.add(held_bytes)
            before, following = self.best, self.followed(base, held_bytes)
            if following is None or self.place(following):
                most_bytes = held_bytes
            if self.best is None or self.best is not before:
                center_bytes = held_bytes
        if self.best is None:
            self.place_with_moves(base, seconds=GLANCE_SECONDS)

    def improve(self) -> None:
        """Look for longer whether the best can do with cheaper moves."""
        if self.best is not None and self.kept is not None and self.best.arena.moves:
            parts = 2 if self.left_seconds() >= 4 * SEARCH_SECONDS else 1
            if self.can_move(self.kept):
                self.place_with_moves(self.kept, seconds=self.share_seconds(parts))

    def place(self, candidate: _Placed) -> bool:
        """Keep ``candidate`` in its arena if it takes the least; whether it fits at fixed places."""
        if candidate.missing_bytes <= 0:
            self.keep(candidate, candidate.answer, candidate.arena)
            return True
        if self.can_move(candidate):
            self.place_with_moves(candidate, seconds=self.share_seconds(8))
        return False

    def place_with_moves(self, candidate: _Placed, *, seconds: float) -> None:
        """Keep ``candidate`` with moves if it then takes the least."""
        if candidate.layout.lower_bound_bytes > candidate.room_bytes:
            return  # of what is live at once
        moved = with_moves(
            self.problem,
            candidate.schedule,
            candidate.demand,
            candidate.room_bytes,
            limits=self.limits,
            objective=self.options.objective,
            guide_bytes=candidate.layout.offsets_bytes,
            time_limit_seconds=seconds,
        )
        if moved is not None:
            self.keep(candidate, replace(candidate.answer, trace=moved[1]), moved[0])

    def from_the_heap(self, first: _Placed) -> Fitted:
        """The first solution at places that take more than the budget, with a message that says so."""
        assert self.limits.ram_budget_bytes is not None
        size = format_bytes(self.limits.ram_budget_bytes + first.missing_bytes)
        _log.info("no layout inside the budget was found; the plan takes %s with its gaps", size)
        what = f"With the gaps between its tensors the plan takes {size}: it runs from the heap."
        message = " ".join(filter(None, (self.first.message, what)))
        solution = replace(self.first, message=message)
        return Fitted(self.problem, solution, first.arena, 0)

    def keep(self, candidate: _Placed, answer: Solution, arena: Arena) -> None:
        """Keep ``answer``, a candidate's with its moves, if it takes the least."""
        if not self.is_less(answer):
            return
        reserved_bytes = candidate.reserved_bytes
        if reserved_bytes or arena.moves:
            answer = in_its_arena(answer, self.first, self.options, reserved_bytes=reserved_bytes)
        if reserved_bytes:
            answer = replace(answer, solve_seconds=self.spent_seconds(), record=self.record)
        self.best, self.kept = Fitted(self.problem, answer, arena, reserved_bytes), candidate
        told = format_joules(answer.joules or 0.0), format_bytes(reserved_bytes), len(arena.moves)
        _log.info("%s in its arena, with %s reserved and %d moves", *told)

    def placed(self, answer: Solution, reserved_bytes: int, *, seconds: float = GLANCE_SECONDS) -> _Placed:
        """``answer`` at fixed places, in what the budget leaves beside the page buffer.

        Where the system maps the arena, each of its two parts takes whole pages.
        """
        assert answer.schedule is not None
        assert answer.trace is not None
        budget_bytes = self.limits.ram_budget_bytes
        demand = demand_of(self.problem, answer.schedule, self.kernels)
        left_bytes = room_bytes = 0
        if budget_bytes is not None:
            buffer_bytes = least_page_buffer_bytes(budget_bytes) if is_paged(answer.schedule) else 0
            left_bytes = room_bytes = budget_bytes - buffer_bytes
        mapped = is_mapped(self.kernels)
        if mapped and budget_bytes is not None:
            standing_bytes = sum(demand.blocks[number].size_bytes for number in demand.standing)
            rest_bytes = left_bytes - whole_pages_bytes(standing_bytes)
            room_bytes = rest_bytes // PAGE_BYTES * PAGE_BYTES + standing_bytes
        layout = lay_out(demand.blocks, enough_bytes=max(room_bytes, 0), time_limit_seconds=seconds)
        arena_bytes = layout.arena_bytes
        ram_bytes = demand.mapped_bytes(layout.offsets_bytes, arena_bytes) if mapped else arena_bytes
        missing_bytes = 0 if budget_bytes is None else ram_bytes - left_bytes
        return _Placed(
            answer, answer.schedule, answer.trace, demand, layout, room_bytes, missing_bytes, reserved_bytes
        )

    def followed(self, base: _Placed, held_bytes: int) -> _Placed | None:
        """``base`` followed in so much less RAM than its peak; ``None``: it takes too much, or cannot be."""
        assert self.limits.ram_budget_bytes is not None
        narrower = replace(self.limits, ram_budget_bytes=base.trace.peak_ram_bytes - held_bytes)
        schedule = followed(self.problem, base.schedule, narrower)
        if schedule is None:
            return None
        try:
            trace = judge(self.problem, schedule, narrower)
        except InvalidSchedule:  # too late or too expensive
            return None
        answer = replace(base.answer, status=Status.FEASIBLE, schedule=schedule, trace=trace)
        if not self.is_less(answer):
            return None
        return self.placed(answer, self.limits.ram_budget_bytes - base.trace.peak_ram_bytes + held_bytes)

    def searched(self, base: _Placed) -> _Placed | None:
        """What a search in as much less RAM as was best finds; ``None``: nothing better, or no time."""
        seconds, budget_bytes, schedule = self.left_seconds() / 2, self.limits.ram_budget_bytes, None
        assert budget_bytes is not None
        if seconds < SEARCH_SECONDS:
            if self.best is not None or not self.late_searches:
                return None
            seconds, self.late_searches = SEARCH_SECONDS, self.late_searches - 1
        if self.kept is not None and self.kept.reserved_bytes:
            allowed_bytes, schedule = budget_bytes - self.kept.reserved_bytes, self.kept.schedule
        else:
            peak_bytes = base.trace.peak_ram_bytes
            least_bytes = minimum_ram_bytes(self.problem, self.limits).bytes
            allowed_bytes = max(peak_bytes - base.missing_bytes, (peak_bytes + least_bytes) // 2)
            if allowed_bytes >= peak_bytes:
                return None
        start = replace(self.options.start, schedule=schedule, by=self.first.solver)
        options = replace(self.options, time_limit_seconds=seconds, start=start)
        began_seconds, reserved_bytes = self.spent_seconds(), budget_bytes - allowed_bytes
        reserved = format_bytes(reserved_bytes)
        _log.info("searching with %s reserved", reserved)
        answer = solve(self.problem, replace(self.limits, ram_budget_bytes=allowed_bytes), options)
        if answer.schedule is None:
            return None
        name = f"again, with {reserved} reserved for gaps between tensors"
        phase = Phase(name, 0.0, answer.solve_seconds, plans=len(answer.record.plans))
        plans_alone = SearchRecord((phase,), answer.record.plans, rejected=answer.record.rejected)
        self.record = joined(self.record, plans_alone, after_seconds=began_seconds)
        return self.placed(answer, reserved_bytes) if self.is_less(answer) else None

    def can_move(self, candidate: _Placed) -> bool:
        """Whether a search for moves leaves time for anything else; one of 2,000 ops would take all of it."""
        needed_seconds = CROWDING_SECONDS * candidate.demand.crowding()
        return may_move(self.problem) and 2 * needed_seconds <= self.left_seconds()

    def is_enough(self, base: _Placed) -> bool:
        """Whether the best takes so little more than ``base`` without moves that no search is worth it."""
        if self.best is None or self.best.solution.amount is None:
            return False
        least = amount_of(self.options.objective, base.trace)
        return self.best.solution.amount <= (1.0 + ENOUGH_SHARE) * least

    def is_less(self, answer: Solution) -> bool:
        """Whether ``answer`` takes less than the best."""
        if self.best is None:
            return True
        assert answer.trace is not None
        assert self.best.solution.trace is not None
        traces, objective = (answer.trace, self.best.solution.trace), self.options.objective
        now, before = ((amount_of(objective, trace), trace.joules) for trace in traces)
        return now < before

    def spent_seconds(self) -> float:
        """Of the time limit, so far."""
        return self.options.clock.now() - self.began

    def left_seconds(self) -> float:
        """Of the time limit; negative where it is over."""
        return self.until - self.options.clock.now()

    def share_seconds(self, parts: int) -> float:
        """One of so many parts of the time that is left, or a glance."""
        return max(GLANCE_SECONDS, self.left_seconds() / parts)


def in_its_arena(
    answer: Solution, first: Solution, options: SolveOptions, *, reserved_bytes: int = 0
) -> Solution:
    """``answer`` with the bound of ``first``, which had all of the budget and no moves, and what gaps cost.

    A plan in less RAM, or with moves, fits the budget as well; proofs that hold for less RAM do not.

    Args:
        answer: ``first`` with the trace of its moves, or a plan that is without ``reserved_bytes``.
        first: of the search with the whole budget.
        options: whose gaps say what is optimal.
        reserved_bytes: of the budget, for gaps between tensors and for the page buffer.
    """
    found = replace(
        answer,
        status=Status.FEASIBLE,
        bound_joules=first.bound_joules,
        bound_scope=first.bound_scope,
        bound_ram_bytes=first.bound_ram_bytes,
        objective_bound=first.objective_bound,
        message=first.message,
        proof="",
    )
    if first.status is not Status.OPTIMAL:
        return found
    is_closed = found.overhead_gap is None or found.overhead_gap <= options.overhead_gap
    if is_closed and (found.objective_gap or 0.0) <= options.relative_gap:
        return replace(found, status=Status.OPTIMAL, proof=first.proof)
    assert answer.trace is not None
    what = f"{answer.trace.moves} moves within the arena make the plan fit"
    if reserved_bytes:
        what = f"{format_bytes(reserved_bytes)} of the budget are reserved for gaps between tensors"
    return replace(found, message=f"{what}: the gap is their price.")


def may_move(problem: DecidedProblem) -> bool:
    """Whether anything may be moved within the arena."""
    return any(tensor.move for tensor in problem.tensors)


def with_moves(
    problem: DecidedProblem,
    schedule: Schedule,
    demand: Demand,
    below_bytes: int,
    *,
    limits: Limits | None = None,
    guide_bytes: Sequence[int] = (),
    fixed_bytes: Mapping[int, int] | None = None,
    objective: Objective = Objective.ENERGY,
    time_limit_seconds: float,
) -> tuple[Arena, Trace] | None:
    """Places with the cheapest moves that are found, and what a step takes with them.

    Args:
        problem: whose tensors say what a move takes.
        schedule: a solution of it.
        demand: what it asks for.
        below_bytes: what the arena may take, see `poet.memory.compaction.compact`, as for what follows.
        limits: of the step with its moves.
        guide_bytes: the offsets of a layout that is too large.
        fixed_bytes: of a step beside another: the place of each block that has one when it begins.
        objective: that moves take the least of: seconds, else joules, idle power included.
        time_limit_seconds: of the search.

    Returns:
        ``None`` where no places are found, or the simulated step with its moves is late or too expensive.
    """
    if not may_move(problem):
        return None
    costs = {tensor.name: tensor.move for tensor in problem.tensors}

    def price(tensor: str) -> float:
        cost = costs[tensor]
        if cost is None:
            return math.inf
        joules = cost.joules + problem.idle_watts * cost.seconds + 1e-12
        return cost.seconds + 1e-6 * joules if objective is Objective.TIME else joules

    found = compact(
        demand,
        below_bytes,
        guide_bytes=guide_bytes,
        fixed_bytes=fixed_bytes,
        weights=price,
        time_limit_seconds=time_limit_seconds,
    )
    if found is None:
        return None
    try:
        trace = judge(problem, schedule, limits, found.places.moved())
    except InvalidSchedule:
        return None
    return Arena(found.arena_bytes, found.offsets_bytes, found.moves), trace
