"""Makes the arena, not only the live tensors, fit the budget: fixed places, moves, or a search with less RAM.

Tensors of different sizes leave gaps between them, so an arena may need more than the schedule's peak.
`fit` lays the schedule out; where the arena does not fit, tensors are moved between steps, which takes time
and energy. Where that cannot be, or is dear, it solves again with the missing bytes reserved, a few times at
most, and takes what costs least. The bound stays that of the whole budget: a plan that fits with its gaps
also fits without them. Where this machine's system maps the arena, whole pages count.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass, replace

from poet.errors import InvalidSchedule
from poet.homes import DecidedProblem, decided
from poet.kernel_facts import KernelFacts
from poet.memory.compaction import compact
from poet.memory.demand import PAGE_BYTES, Demand, demand_of, whole_pages_bytes
from poet.memory.layout import Layout, lay_out, lower_bound_bytes
from poet.planning.exact_layout import exact_layout
from poet.plans.page_slots import is_paged, least_page_buffer_bytes
from poet.plans.plan_parts import Arena
from poet.problem import Limits, Problem
from poet.schedule import Schedule
from poet.search_record import Phase, SearchRecord, joined
from poet.simulator import Trace, judge
from poet.solution import Solution, SolveOptions, Status, amount_of
from poet.solvers import minimum_ram_bytes, solve
from poet.solvers.heuristics.following import followed
from poet.units import format_bytes, format_joules

_LEAST_EXACT_SECONDS = 1.0  # its process has to come up
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

    The search is not repeated after Ctrl-C, nor when the time limit is used up, but shortly where nothing
    fits by then. Where no layout fits, the first solution comes back with an arena that is larger
    than the budget, and a message that says so: such a plan runs from the heap.

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
    return _Fit(problem, limits, first, options, kernels).run()


def lay_out_instead(
    fitted: Fitted,
    limits: Limits,
    solution: Solution,
    options: SolveOptions,
    *,
    kernels: KernelFacts | None = None,
) -> tuple[Fitted, bool]:
    """Another ``solution`` of the same problem in an arena of its own, and whether that is in the budget."""
    made, missing_bytes = laid_out_alone(fitted.problem, limits, solution, options, kernels=kernels)
    return replace(made, reserved_bytes=fitted.reserved_bytes), missing_bytes == 0


def laid_out_alone(
    problem: DecidedProblem,
    limits: Limits,
    solution: Solution,
    options: SolveOptions,
    *,
    kernels: KernelFacts | None = None,
) -> tuple[Fitted, int]:
    """A ``solution`` in an arena, without another search, and the bytes that the budget lacks for it."""
    assert solution.schedule is not None
    fitting = _Fit(problem, limits, solution, options, kernels)
    laid = fitting.laid_out(solution.schedule)
    missing_bytes = 0
    if limits.ram_budget_bytes is not None:
        missing_bytes = fitting.missing_bytes(solution, laid, 0, solution.record)
        if fitting.best is not None:
            return fitting.best, 0
    return Fitted(fitting.problem, solution, _arena(laid.layout), 0), missing_bytes


@dataclass(frozen=True, slots=True)
class _LaidOut:
    """A schedule with fixed places, and the bytes of RAM that its arena takes."""

    demand: Demand
    layout: Layout
    ram_bytes: int


class _Fit:
    """The rounds of search and layout."""

    def __init__(
        self,
        problem: Problem,
        limits: Limits,
        first: Solution,
        options: SolveOptions,
        kernels: KernelFacts | None,
    ) -> None:
        assert first.schedule is not None
        self.problem, self.limits, self.first, self.options = (
            decided(problem, first.schedule),
            limits,
            first,
            options,
        )
        self.kernels, self.tuning = kernels, options.tuning.fitting
        self.is_mapped = kernels is not None and kernels.threads is not None
        self.started = options.clock.now()
        self.exact_seconds = self.tuning.exact_seconds  # that are left of it, for all rounds
        if options.time_limit_seconds is not None:
            left_seconds = options.time_limit_seconds - first.solve_seconds
            self.exact_seconds = min(self.exact_seconds, self.tuning.exact_share * left_seconds)
        self.best: Fitted | None = None

    def run(self) -> Fitted:
        first, budget_bytes = self.first, self.limits.ram_budget_bytes
        assert first.schedule is not None
        laid = self.laid_out(first.schedule)
        loose = Fitted(self.problem, first, _arena(laid.layout), 0)
        if budget_bytes is None:
            return loose
        record, reserved_bytes, answer = first.record, 0, first
        least_bytes = minimum_ram_bytes(self.problem, self.limits).bytes
        graces = self.tuning.graces if self.tuning.grace_seconds > 0.0 else 0
        for round_ in range(self.tuning.rounds):
            missing_bytes = self.missing_bytes(answer, laid, reserved_bytes, record)
            if missing_bytes <= 0:
                break
            assert answer.trace is not None
            peak_bytes = answer.trace.peak_ram_bytes  # holding back less than leads below it changes nothing
            wanted_bytes = peak_bytes - round(missing_bytes * (self.tuning.growth_factor if round_ else 1.0))
            allowed_bytes = max(wanted_bytes, (peak_bytes + least_bytes) // 2)
            rounds_left = self.tuning.rounds - round_
            if self.may_move():  # one more search mostly ends it
                rounds_left = min(rounds_left, 2)
            again = _with_a_share(self.options, first, self.started, rounds_left=rounds_left)
            if again is None and self.best is None and graces:
                graces -= 1
                again = replace(self.options, time_limit_seconds=self.tuning.grace_seconds)
            if allowed_bytes >= peak_bytes or again is None or answer.was_interrupted:
                break
            reserved_bytes = budget_bytes - allowed_bytes
            _log.info(
                "the arena is %s too large: again, with %s held back",
                format_bytes(missing_bytes),
                format_bytes(reserved_bytes),
            )
            spent_seconds = self.spent_seconds()
            narrower = replace(self.limits, ram_budget_bytes=allowed_bytes)
            exponents = self.options.tuning.walks.price_exponents
            start = followed(self.problem, first.schedule, narrower, exponents)
            again = replace(again, start=start, start_by="the plan of the whole budget, in less RAM")
            answer = solve(self.problem, narrower, again)
            record = _with_another(record, answer, spent_seconds, reserved_bytes)
            if answer.schedule is None:
                break
            laid = self.laid_out(answer.schedule)
        return self.best or _from_the_heap(loose, format_bytes(self.ram_bytes(loose)))

    def missing_bytes(
        self, answer: Solution, laid: _LaidOut, reserved_bytes: int, record: SearchRecord
    ) -> int:
        """What an answer's arena lacks of RAM, 0 where nothing is left to search for; the best is kept."""
        assert answer.schedule is not None
        assert answer.trace is not None
        room_bytes = self.room_bytes(answer.schedule, laid.demand)
        missing_bytes = laid.ram_bytes - self.left_bytes(answer.schedule)
        if missing_bytes <= 0:
            self.keep(answer, _arena(laid.layout), reserved_bytes, record)
            return 0
        if laid.layout.lower_bound_bytes > room_bytes and self.may_move():
            return laid.layout.lower_bound_bytes - room_bytes  # as much is missing with moves
        moved = self.with_moves(answer, laid, room_bytes)
        price_joules = math.inf if moved is None else moved[1].joules - answer.trace.joules
        if price_joules > self.options.overhead_gap * (answer.overhead_joules or 0.0):
            exact = self.placed_exactly(laid, room_bytes)
            if exact is not None:
                self.keep(answer, _arena(exact), reserved_bytes, record)
                return 0
        if moved is None:
            return missing_bytes
        arena, trace = moved
        self.keep(replace(answer, trace=trace), arena, reserved_bytes, record)
        _log.info(
            "%d moves within the arena, of %s, make the plan fit; they take %s",
            trace.moves,
            format_bytes(trace.moved_bytes),
            format_joules(price_joules),
        )
        return 0 if price_joules <= self.tuning.moving_share * trace.joules else missing_bytes

    def placed_exactly(self, laid: _LaidOut, room_bytes: int) -> Layout | None:
        """Fixed places inside ``room_bytes``, where the second search finds some."""
        layout, seconds = laid.layout, self.exact_seconds
        if seconds < _LEAST_EXACT_SECONDS or layout.lower_bound_bytes > room_bytes:
            return None
        before = self.options.clock.now()
        found = exact_layout(
            layout.blocks,
            room_bytes,
            near_bytes=layout.offsets_bytes,
            time_limit_seconds=seconds,
            clock=self.options.clock,
        )
        self.exact_seconds -= self.options.clock.now() - before
        if found.is_impossible:
            _log.info("fixed places do not fit, which is proven")
        return found.layout

    def with_moves(self, answer: Solution, laid: _LaidOut, room_bytes: int) -> tuple[Arena, Trace] | None:
        """Places for an answer where tensors may move, and what it takes then; ``None``: there are none."""
        if not self.may_move() or answer.schedule is None:
            return None
        costs = {tensor.name: tensor.move for tensor in self.problem.tensors}
        idle_watts = self.problem.idle_watts

        def price(tensor: str) -> float:
            cost = costs[tensor]
            return math.inf if cost is None else cost.joules + idle_watts * cost.seconds + 1e-12

        found = compact(
            laid.demand,
            room_bytes,
            guide_bytes=laid.layout.offsets_bytes,
            weights=price,
            time_limit_seconds=self.seconds_for_moves(),
        )
        if found is None:
            return None
        try:
            trace = judge(self.problem, answer.schedule, self.limits, found.places.moved())
        except InvalidSchedule:  # too late or too dear with its moves
            return None
        return Arena(found.arena_bytes, found.offsets_bytes, found.moves), trace

    def may_move(self) -> bool:
        return self.tuning.moving_seconds > 0 and any(tensor.move for tensor in self.problem.tensors)

    def keep(self, answer: Solution, arena: Arena, reserved_bytes: int, record: SearchRecord) -> None:
        """``answer`` if it takes less than the best one that fits so far."""
        assert answer.trace is not None
        if self.best is not None:
            assert self.best.solution.trace is not None
            objective = self.options.objective
            traces = self.best.solution.trace, answer.trace
            before, now = ((amount_of(objective, trace), trace.joules) for trace in traces)
            if before <= now:
                return
        if reserved_bytes:
            answer = _for_the_budget(answer, self.first, self.options, reserved_bytes)
            answer = replace(answer, solve_seconds=self.spent_seconds(), record=record)
        elif arena.moves:
            answer = _with_its_moves(answer, self.options)
        self.best = Fitted(self.problem, answer, arena, reserved_bytes)

    def spent_seconds(self) -> float:
        return self.first.solve_seconds + self.options.clock.now() - self.started

    def laid_out(self, schedule: Schedule) -> _LaidOut:
        """Fixed places for what ``schedule`` asks for."""
        demand = demand_of(self.problem, schedule, self.kernels)
        room_bytes = max(self.room_bytes(schedule, demand), 0)
        layout = lay_out(
            demand.blocks,
            enough_bytes=room_bytes,
            time_limit_seconds=self.layout_seconds(demand, room_bytes),
        )
        mapped_bytes = demand.mapped_bytes(layout.offsets_bytes, layout.arena_bytes)
        return _LaidOut(demand, layout, mapped_bytes if self.is_mapped else layout.arena_bytes)

    def layout_seconds(self, demand: Demand, room_bytes: int) -> float:
        """For one layout: a share of the time that is left, and little where no places can be enough."""
        seconds = self.tuning.layout_seconds
        if self.limits.ram_budget_bytes is None:
            return seconds
        if lower_bound_bytes(demand.blocks) > room_bytes:  # with the page buffer, mostly: solved again
            seconds *= self.tuning.hopeless_share
        if self.options.time_limit_seconds is not None:
            left_seconds = self.options.time_limit_seconds - self.spent_seconds()
            seconds = min(seconds, max(self.tuning.layout_share * left_seconds, self.tuning.least_seconds))
        return seconds

    def seconds_for_moves(self) -> float:
        """For one search for moves, which make a plan fit at all: never less than one needs."""
        tuning = self.tuning
        if self.options.time_limit_seconds is None:
            return tuning.moving_seconds
        left_seconds = self.options.time_limit_seconds - self.spent_seconds()
        share_seconds = max(tuning.layout_share * left_seconds, tuning.moving_least_seconds)
        return min(tuning.moving_seconds, share_seconds)

    def ram_bytes(self, fitted: Fitted) -> int:
        assert fitted.solution.schedule is not None
        if not self.is_mapped:
            return fitted.arena.size_bytes
        demand = demand_of(self.problem, fitted.solution.schedule, self.kernels)
        return demand.mapped_bytes(fitted.arena.offsets_bytes, fitted.arena.size_bytes)

    def left_bytes(self, schedule: Schedule) -> int:
        """What the budget leaves for an arena beside the page buffer."""
        budget_bytes = self.limits.ram_budget_bytes
        assert budget_bytes is not None
        return budget_bytes - (least_page_buffer_bytes(budget_bytes) if is_paged(schedule) else 0)

    def room_bytes(self, schedule: Schedule, demand: Demand) -> int:
        """How large an arena may be; where the system maps it, each of its two parts takes whole pages."""
        if self.limits.ram_budget_bytes is None:
            return 0
        left_bytes = self.left_bytes(schedule)
        if not self.is_mapped:
            return left_bytes
        standing_bytes = sum(demand.blocks[number].size_bytes for number in demand.standing)
        rest_bytes = left_bytes - whole_pages_bytes(standing_bytes)
        return rest_bytes // PAGE_BYTES * PAGE_BYTES + standing_bytes


def _from_the_heap(loose: Fitted, size: str) -> Fitted:
    _log.info("no layout inside the budget was found; the plan takes %s with its gaps", size)
    what = f"With the gaps between its tensors the plan takes {size}: it runs from the heap."
    message = " ".join(filter(None, (loose.solution.message, what)))
    return replace(loose, solution=replace(loose.solution, message=message))


def _arena(layout: Layout) -> Arena:
    return Arena(layout.arena_bytes, layout.offsets_bytes)


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
    closed = _is_closed(whole, options)
    if first.status is not Status.OPTIMAL:
        return whole
    if closed:
        return replace(whole, status=Status.OPTIMAL, proof=first.proof)
    held = format_bytes(reserved_bytes)
    return replace(
        whole, message=f"{held} of the budget are held back for gaps between tensors: the gap is their price."
    )


def _with_its_moves(answer: Solution, options: SolveOptions) -> Solution:
    """``answer``, whose trace has moves within the arena: it may be no more the best that there is."""
    if answer.status is not Status.OPTIMAL or _is_closed(answer, options):
        return answer
    assert answer.trace is not None
    return replace(
        answer,
        status=Status.FEASIBLE,
        proof="",
        message=f"{answer.trace.moves} moves within the arena make the plan fit: the gap is their price.",
    )


def _is_closed(answer: Solution, options: SolveOptions) -> bool:
    return (answer.objective_gap or 0.0) <= options.relative_gap and (
        answer.overhead_gap is None or answer.overhead_gap <= options.overhead_gap
    )
