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
from dataclasses import replace

from poet.errors import InvalidSchedule
from poet.homes import DecidedProblem, decided
from poet.kernel_facts import KernelFacts
from poet.planning.arena_search import ArenaSearch
from poet.planning.fitted import Candidate, Fitted, from_the_heap
from poet.planning.held_back import for_the_budget, with_another, with_its_moves
from poet.planning.least_held import LeastHeld
from poet.plans.plan_parts import Arena
from poet.problem import Limits, Objective, Problem
from poet.simulator import Trace, judge
from poet.solution import Solution, SolveOptions, Status, amount_of
from poet.solvers import minimum_ram_bytes, solve
from poet.solvers.heuristics.lp_guided import PRICE_EXPONENTS, followed
from poet.units import format_bytes, format_joules

_log = logging.getLogger(__name__)


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
        missing_bytes = fitting.missing_bytes(Candidate(solution, laid, 0, solution.record))
        if fitting.best is not None:
            fitting.move_less()
            return fitting.best, 0
    return Fitted(fitting.problem, solution, laid.arena, 0), missing_bytes


class _Fit:
    """The rounds of search and layout.

    Attributes:
        arenas: the search for places.
        best: what takes least of what fits so far, with its arena.
        cheapest: the candidate that this was.
        moves_come_last: fixed places in less RAM are found sooner.
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
        self.cheapest: Candidate | None = None
        self.moves_come_last = False

    def run(self) -> Fitted:
        first, budget_bytes = self.first, self.limits.ram_budget_bytes
        assert first.schedule is not None
        laid = self.arenas.laid_out(first.schedule)
        loose, loose_bytes = Fitted(self.problem, first, laid.arena, 0), laid.ram_bytes
        if budget_bytes is None:
            return loose
        candidate = Candidate(first, laid, 0, first.record)
        least_bytes = minimum_ram_bytes(self.problem, self.limits).bytes
        graces = self.tuning.graces if self.tuning.grace_seconds > 0.0 else 0
        for round_ in range(self.tuning.rounds):
            answer = candidate.answer
            if not round_ and self.is_crowded(candidate):
                self.moves_come_last = True
                self.follow_until_fixed(candidate)
            missing_bytes = self.missing_bytes(candidate)
            if missing_bytes <= 0:
                break
            held_bytes = 0 if self.is_near(answer) else self.follow(candidate)
            self.move_less()
            asks_for_search = self.best is None and held_bytes > 0
            if not (round_ or self.moves_come_last or asks_for_search or self.is_near(answer)):
                self.follow_until_fixed(candidate)
            if self.is_near(answer):
                break
            if not held_bytes:
                held_bytes = round(missing_bytes * (self.tuning.growth_factor if round_ else 1.0))
            peak_bytes = candidate.peak_bytes  # holding back less than leads below it changes nothing
            allowed_bytes = max(peak_bytes - held_bytes, (peak_bytes + least_bytes) // 2)
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
            exponents = PRICE_EXPONENTS
            start = followed(self.problem, first.schedule, narrower, exponents)
            again = replace(again, start=start, start_by="the plan of the whole budget, in less RAM")
            answer = solve(self.problem, narrower, again)
            if answer.schedule is None:
                break
            record = with_another(candidate.record, answer, spent_seconds, reserved_bytes)
            candidate = Candidate(answer, self.arenas.laid_out(answer.schedule), reserved_bytes, record)
        return self.best or from_the_heap(loose, loose_bytes)

    def missing_bytes(self, candidate: Candidate) -> int:
        """What its arena lacks of RAM at fixed places, or even with moves; 0: it fits. What fits is kept."""
        answer, laid = candidate.answer, candidate.laid
        missing_bytes = self.arenas.missing_bytes(laid)
        if missing_bytes <= 0:
            self.keep(candidate, answer, laid.arena)
            return 0
        if laid.lacking_bytes and self.arenas.may_move:
            return laid.lacking_bytes
        moved = self.with_moves(candidate, most_seconds=self.tuning.glance_seconds)
        traces = [trace for trace in (moved and moved[1], self.best and self.best.solution.trace) if trace]
        price_joules = min((trace.joules for trace in traces), default=math.inf) - candidate.trace.joules
        if price_joules > self.options.overhead_gap * (answer.overhead_joules or 0.0):
            exact = self.arenas.placed_exactly(laid)
            if exact is not None:
                self.keep(candidate, answer, exact)
                return 0
        if moved is not None:
            arena, trace = moved
            self.keep(candidate, replace(answer, trace=trace), arena)
        return missing_bytes

    def is_crowded(self, candidate: Candidate, *, tries: int = 1) -> bool:
        """Whether so much is there at once that ``tries`` searches for moves take too long."""
        needed_seconds = tries * self.tuning.crowding_seconds * candidate.laid.demand.crowding()
        return needed_seconds > self.tuning.moves_share * self.arenas.left_seconds()

    def follow_until_fixed(self, candidate: Candidate) -> None:
        """Keep a plan that follows ``candidate`` in so much less RAM that it fits at fixed places."""
        tuning, peak_bytes, cheapest_bytes = self.tuning, candidate.peak_bytes, 0
        missing_bytes = self.arenas.missing_bytes(candidate.laid)
        few_bytes = tuning.fixed_missing_share * peak_bytes
        if candidate.answer.was_interrupted or not tuning.fixed_tries or missing_bytes <= few_bytes:
            return
        until_seconds = (1.0 - tuning.fixed_share) * self.arenas.left_seconds()
        held = LeastHeld(0, missing_bytes)
        for _ in range(tuning.fixed_tries):
            held_bytes = held.next_bytes
            is_late = self.arenas.left_seconds() < max(until_seconds, tuning.least_seconds)
            if is_late or held.is_close(round(tuning.fixed_close_share * peak_bytes)):
                break
            following = self.followed_below(candidate, peak_bytes - held_bytes)
            if following is None or self.is_dear(following, candidate):
                if held.high_bytes is None:
                    break
                held.tell(held_bytes, held.missing_bytes)
                continue
            missing_bytes = self.arenas.missing_bytes(following.laid)
            held.tell(held_bytes, missing_bytes)
            if missing_bytes > few_bytes or not self.is_less(following.answer):
                continue
            if self.is_kept(following, most_seconds=tuning.glance_seconds):
                cheapest_bytes = held_bytes
        self.log_followed(cheapest_bytes)

    def follow(self, candidate: Candidate) -> int:
        """Keep the cheapest plan that follows ``candidate`` in a little less RAM, in its arena.

        A few thousandths of the RAM held back may take fewer joules than the moves that gaps ask for.

        Args:
            candidate: whose moves are dear, or that has no arena.

        Returns:
            The bytes below its peak that the cheapest was without, or that a search is to be without, where
            nothing fits yet and following is dear; 0: none takes less than what fits already, or too many are
            lacking.
        """
        tuning, peak_bytes = self.tuning, candidate.peak_bytes
        lacking_bytes, cheapest_bytes = candidate.laid.lacking_bytes, 0
        if candidate.answer.was_interrupted or lacking_bytes > tuning.followed_lacking_share * peak_bytes:
            return 0
        until_seconds = (1.0 - tuning.followed_share) * self.arenas.left_seconds()
        is_one_try = self.best is None and self.is_crowded(candidate, tries=2)
        for share in tuning.crowded_shares if is_one_try else tuning.followed_shares:
            if self.arenas.left_seconds() < max(until_seconds, tuning.least_seconds):
                break
            held_bytes = lacking_bytes + round(share * peak_bytes)
            following = self.followed_below(candidate, peak_bytes - held_bytes)
            if following is None or not self.is_less(following.answer):
                break
            if self.is_dear(following, candidate):
                if self.best is not None:
                    break
                if self.arenas.left_seconds() >= tuning.searched_seconds:
                    return lacking_bytes + round(tuning.searched_share * peak_bytes)
            if self.is_kept(following, most_seconds=tuning.glance_seconds):
                cheapest_bytes = held_bytes
        self.log_followed(cheapest_bytes)
        return cheapest_bytes

    def log_followed(self, held_bytes: int) -> None:
        """Say what the best takes that follows a plan without ``held_bytes``; 0: none does."""
        if held_bytes and self.best is not None:
            _log.info(
                "the plan followed with %s less RAM takes %s in its arena",
                format_bytes(held_bytes),
                format_joules(self.best.solution.joules or 0.0),
            )

    def followed_below(self, candidate: Candidate, allowed_bytes: int) -> Candidate | None:
        """``candidate`` followed in ``allowed_bytes``; ``None``: it cannot be, or not within the limits."""
        assert candidate.answer.schedule is not None
        assert self.limits.ram_budget_bytes is not None
        narrower = replace(self.limits, ram_budget_bytes=allowed_bytes)
        exponents = PRICE_EXPONENTS
        schedule = followed(self.problem, candidate.answer.schedule, narrower, exponents)
        if schedule is None:
            return None
        try:
            trace = judge(self.problem, schedule, narrower)
        except InvalidSchedule:  # too late or too dear
            return None
        answer = replace(candidate.answer, status=Status.FEASIBLE, schedule=schedule, trace=trace)
        laid = self.arenas.laid_out(schedule, most_seconds=self.tuning.glance_seconds)
        return Candidate(answer, laid, self.limits.ram_budget_bytes - allowed_bytes, candidate.record)

    def move_less(self) -> None:
        """Search for longer what the best one needs to move."""
        if self.arenas.left_seconds() < self.tuning.least_seconds:
            return
        if self.cheapest is not None and self.best is not None and self.best.arena.moves:
            self.is_kept(self.cheapest)
            _log.info(
                "%d moves within the arena make the plan fit; it takes %s with them",
                len(self.best.arena.moves),
                format_joules(self.best.solution.joules or 0.0),
            )

    def is_kept(self, candidate: Candidate, *, most_seconds: float = math.inf) -> bool:
        """Keep it at its fixed places, else with moves, if it then takes less than all before."""
        answer, laid = candidate.answer, candidate.laid
        if self.arenas.missing_bytes(laid) <= 0:
            return self.keep(candidate, answer, laid.arena)
        moved = self.with_moves(candidate, most_seconds=most_seconds)
        return moved is not None and self.keep(candidate, replace(answer, trace=moved[1]), moved[0])

    def with_moves(self, candidate: Candidate, *, most_seconds: float) -> tuple[Arena, Trace] | None:
        """An arena with moves, and what a step then takes; ``None``: there is none.

        Where passes are long, those that come to take more than the best are given up.
        """
        less_than_joules = math.inf
        is_in_joules = self.options.objective is Objective.ENERGY
        if self.moves_come_last and is_in_joules and self.best is not None:
            assert self.best.solution.trace is not None
            less_than_joules = self.best.solution.trace.joules - candidate.trace.joules
        return self.arenas.with_moves(
            candidate.laid, most_seconds=most_seconds, less_than_joules=less_than_joules
        )

    def keep(self, candidate: Candidate, answer: Solution, arena: Arena) -> bool:
        """Keep ``answer``, a candidate's with its moves, if it takes the least so far; whether it does."""
        if not self.is_less(answer):
            return False
        reserved_bytes = candidate.reserved_bytes
        if reserved_bytes:
            answer = for_the_budget(answer, self.first, self.options, reserved_bytes)
            answer = replace(answer, solve_seconds=self.arenas.spent_seconds(), record=candidate.record)
        elif arena.moves:
            answer = with_its_moves(answer, self.options)
        self.best, self.cheapest = Fitted(self.problem, answer, arena, reserved_bytes), candidate
        return True

    def is_near(self, answer: Solution) -> bool:
        """Whether the best that fits takes so little more than ``answer`` that no search is worth it."""
        assert answer.trace is not None
        if self.best is None or self.best.solution.trace is None:
            return False
        objective = self.options.objective
        now, least = (amount_of(objective, trace) for trace in (self.best.solution.trace, answer.trace))
        return now - least <= self.tuning.moving_share * least

    def is_dear(self, following: Candidate, candidate: Candidate) -> bool:
        """Whether following ``candidate`` takes so much more that a search mostly finds a better way."""
        objective = self.options.objective
        now, before = (amount_of(objective, each.trace) for each in (following, candidate))
        return now > (1.0 + self.tuning.followed_dear_share) * before

    def is_less(self, answer: Solution) -> bool:
        """Whether ``answer`` takes less than the best one that fits so far."""
        assert answer.trace is not None
        if self.best is None:
            return True
        assert self.best.solution.trace is not None
        objective = self.options.objective
        traces = answer.trace, self.best.solution.trace
        now, before = ((amount_of(objective, trace), trace.joules) for trace in traces)
        return now < before

    def with_a_share(self, rounds_left: int) -> SolveOptions | None:
        """Options with an equal share of what is left of the time limit; ``None`` where that is nothing."""
        if self.options.time_limit_seconds is None:
            return self.options
        share_seconds = self.arenas.left_seconds() / rounds_left
        if share_seconds < self.tuning.least_seconds:
            return None
        return replace(self.options, time_limit_seconds=share_seconds)


def searching(options: SolveOptions, limits: Limits, problem: Problem) -> SolveOptions:
    """``options`` of a first search that leaves some of the time limit to `fit`, more for many tensors."""
    allowed_seconds, tuning = options.time_limit_seconds, options.tuning.fitting
    if allowed_seconds is None or limits.ram_budget_bytes is None:
        return options
    needed_seconds = min(
        tuning.laying_tensor_seconds * len(problem.tensors), tuning.laying_most_share * allowed_seconds
    )
    laying_seconds = max(tuning.laying_share * allowed_seconds, needed_seconds)
    return replace(options, time_limit_seconds=allowed_seconds - laying_seconds)
