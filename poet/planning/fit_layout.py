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

from poet.homes import DecidedProblem, decided
from poet.kernel_facts import KernelFacts
from poet.planning.arena_search import ArenaSearch, LaidOut
from poet.planning.held_back import for_the_budget, with_another, with_its_moves
from poet.plans.plan_parts import Arena
from poet.problem import Limits, Problem
from poet.search_record import SearchRecord
from poet.solution import Solution, SolveOptions, amount_of
from poet.solvers import minimum_ram_bytes, solve
from poet.solvers.heuristics.following import followed
from poet.units import format_bytes, format_joules

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
    laid = fitting.arenas.laid_out(solution.schedule)
    missing_bytes = 0
    if limits.ram_budget_bytes is not None:
        missing_bytes = fitting.missing_bytes(solution, laid, 0, solution.record)
        if fitting.best is not None:
            return fitting.best, 0
    return Fitted(fitting.problem, solution, laid.arena, 0), missing_bytes


class _Fit:
    """The rounds of search and layout.

    Attributes:
        arenas: the search for places.
        best: what takes least of what fits so far, with its arena.
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
        self.options, self.tuning = options, options.tuning.fitting
        self.arenas = ArenaSearch(self.problem, limits, options, kernels, spent_seconds=first.solve_seconds)
        self.best: Fitted | None = None

    def run(self) -> Fitted:
        first, budget_bytes = self.first, self.limits.ram_budget_bytes
        assert first.schedule is not None
        laid = self.arenas.laid_out(first.schedule)
        loose, loose_bytes = Fitted(self.problem, first, laid.arena, 0), laid.ram_bytes
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
            if self.arenas.may_move:  # one more search mostly ends it
                rounds_left = min(rounds_left, 2)
            again = self.with_a_share(rounds_left)
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
            spent_seconds = self.arenas.spent_seconds()
            narrower = replace(self.limits, ram_budget_bytes=allowed_bytes)
            exponents = self.options.tuning.walks.price_exponents
            start = followed(self.problem, first.schedule, narrower, exponents)
            again = replace(again, start=start, start_by="the plan of the whole budget, in less RAM")
            answer = solve(self.problem, narrower, again)
            record = with_another(record, answer, spent_seconds, reserved_bytes)
            if answer.schedule is None:
                break
            laid = self.arenas.laid_out(answer.schedule)
        return self.best or _from_the_heap(loose, loose_bytes)

    def missing_bytes(
        self, answer: Solution, laid: LaidOut, reserved_bytes: int, record: SearchRecord
    ) -> int:
        """What an answer's arena lacks of RAM, 0 where nothing is left to search for; the best is kept."""
        assert answer.trace is not None
        missing_bytes = self.arenas.missing_bytes(laid)
        if missing_bytes <= 0:
            self.keep(answer, laid.arena, reserved_bytes, record)
            return 0
        if laid.lacking_bytes and self.arenas.may_move:
            return laid.lacking_bytes  # as much is missing with moves
        moved = self.arenas.with_moves(laid)
        price_joules = math.inf if moved is None else moved[1].joules - answer.trace.joules
        if price_joules > self.options.overhead_gap * (answer.overhead_joules or 0.0):
            exact = self.arenas.placed_exactly(laid)
            if exact is not None:
                self.keep(answer, exact, reserved_bytes, record)
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
            answer = for_the_budget(answer, self.first, self.options, reserved_bytes)
            answer = replace(answer, solve_seconds=self.arenas.spent_seconds(), record=record)
        elif arena.moves:
            answer = with_its_moves(answer, self.options)
        self.best = Fitted(self.problem, answer, arena, reserved_bytes)

    def with_a_share(self, rounds_left: int) -> SolveOptions | None:
        """Options with an equal share of what is left of the time limit; ``None`` where that is nothing."""
        if self.options.time_limit_seconds is None:
            return self.options
        share_seconds = self.arenas.left_seconds() / rounds_left
        if share_seconds < self.tuning.least_seconds:
            return None
        return replace(self.options, time_limit_seconds=share_seconds)


def _from_the_heap(loose: Fitted, taken_bytes: int) -> Fitted:
    """``loose``, which takes ``taken_bytes`` with its arena, more than the budget, and says so."""
    size = format_bytes(taken_bytes)
    _log.info("no layout inside the budget was found; the plan takes %s with its gaps", size)
    what = f"With the gaps between its tensors the plan takes {size}: it runs from the heap."
    message = " ".join(filter(None, (loose.solution.message, what)))
    return replace(loose, solution=replace(loose.solution, message=message))


def searching(options: SolveOptions, limits: Limits) -> SolveOptions:
    """``options`` of a first search that leaves some of the time limit to `fit`."""
    if options.time_limit_seconds is None or limits.ram_budget_bytes is None:
        return options
    share = 1.0 - options.tuning.fitting.laying_share
    return replace(options, time_limit_seconds=share * options.time_limit_seconds)
