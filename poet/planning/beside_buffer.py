"""Searches for plans that have their arena beside a page buffer, where they page.

A plan that pages has what a budget leaves beside the page buffer, one that does not has all of it. Where
every schedule inside the budget pages, the search has what is left. Where a schedule may do without, a short
search of the whole budget looks whether good ones page. If so, another short one looks at plans that do not,
and the search of what is left has the rest of the time: the better plan is the answer, and no plan of either
kind takes less than the lower of the two bounds.

Where this machine's system maps the arena, its two parts take whole pages. A plan that fills what is left to
the last byte then has no arena, for want of some of two pages: so these are left as well.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from dataclasses import replace

from poet.errors import InvalidSchedule
from poet.memory.demand import PAGE_BYTES
from poet.plans.page_slots import is_paged, least_page_buffer_bytes
from poet.problem import Limits, Objective, Problem
from poet.progress import stage
from poet.search_record import MOST_ENTRIES, Advance, Phase, SearchRecord, joined
from poet.simulator import simulate
from poet.solution import WORD_OF, KnownBound, Solution, SolveOptions, Status, is_confirmed
from poet.solvers import has_schedules, solve
from poet.solvers.search.explain import answered
from poet.units import IN_ORDER, format_bytes

_BESIDE, _PAGES = " beside a page buffer of ", " in whole pages"
_BY_BOTH = f"{WORD_OF}a search for plans that page and one for plans that do not, not proven independently"


def less_page_buffer(limits: Limits, *, in_whole_pages: bool = False) -> Limits:
    """``limits`` less the page buffer; as they are where none page, or are too little for a buffer.

    ``in_whole_pages``: less what an arena may lose to whole pages as well.
    """
    if limits.ram_budget_bytes is None or not limits.paging:
        return limits
    buffer_bytes = least_page_buffer_bytes(limits.ram_budget_bytes)
    lost_bytes = 2 * PAGE_BYTES if in_whole_pages and buffer_bytes else 0
    return replace(limits, ram_budget_bytes=limits.ram_budget_bytes - buffer_bytes - lost_bytes)


def answered_beside(
    problem: Problem, limits: Limits, options: SolveOptions, *, in_whole_pages: bool = False
) -> Solution:
    """`poet.solvers.search.explain.answered` for plans whose arena lies beside the page buffer if they page.

    The scope of the bound says so: a schedule that uses the buffer's bytes as well may take less, but has no
    arena.

    Args:
        problem: that is searched.
        limits: of the budget.
        options: of all searches together.
        in_whole_pages: whether an arena takes whole pages, of which those that page leave two where they can.
    """
    stage("search")
    if in_whole_pages and not has_schedules(problem, less_page_buffer(limits, in_whole_pages=True)):
        in_whole_pages = False
    within = less_page_buffer(limits, in_whole_pages=in_whole_pages)
    if within == limits or not has_schedules(problem, within):
        return answered(problem, limits, options)
    if not has_schedules(problem, replace(limits, paging=False)):
        return _where_all_page(answered(problem, within, options), limits, within)
    if options.objective is not Objective.ENERGY:
        return answered(problem, limits, options)
    return _Search(problem, limits, within, options).run()


def bounded_limits(solution: Solution, limits: Limits) -> Limits:
    """Those that the bound of a solution of `answered_beside` holds for whether a plan pages or not."""
    if _BESIDE not in solution.bound_scope:
        return limits
    return less_page_buffer(limits, in_whole_pages=solution.bound_scope.endswith(_PAGES))


def _scope(scope: str, limits: Limits, within: Limits) -> str:
    """Of a bound for plans that page inside ``within``, of the budget of ``limits``."""
    pages = "" if within == less_page_buffer(limits) else _PAGES
    return f"{scope}{_BESIDE}{_buffer(limits)}{pages}"


def _buffer(limits: Limits) -> str:
    assert limits.ram_budget_bytes is not None
    return format_bytes(least_page_buffer_bytes(limits.ram_budget_bytes))


def _where_all_page(solution: Solution, limits: Limits, within: Limits) -> Solution:
    """A solution beside the page buffer, whose bound or, without a plan, message says so."""
    if solution.schedule is not None:
        return replace(solution, bound_scope=_scope(solution.bound_scope, limits, within))
    what = f"Every plan {IN_ORDER} pages, and {_buffer(limits)} of the budget are for the page buffer."
    return replace(solution, message=" ".join(filter(None, (what, solution.message))))


class _Search:
    """Where a schedule may page or not.

    Args:
        problem: that is searched.
        limits: of plans that do not page.
        within: of those that do.
        options: for all searches together.
    """

    def __init__(self, problem: Problem, limits: Limits, within: Limits, options: SolveOptions) -> None:
        self.problem, self.limits, self.within, self.options = problem, limits, within, options
        self.tuning = options.tuning.fitting
        self.started = options.clock.now()

    def run(self) -> Solution:
        look = self.short(self.limits, self.tuning.looking_share, self.options)
        if look.was_interrupted:
            return look
        if not self.lacks_buffer(look):
            return look if look.status is Status.OPTIMAL else self.whole(look)
        quiet = replace(self.options, progress=None, known_bound=self.known_bound(look))
        unpaged = self.short(replace(self.limits, paging=False), self.tuning.unpaged_share, quiet)
        if unpaged.was_interrupted:
            return replace(look, was_interrupted=True, solve_seconds=self.spent_seconds())
        begun_seconds = self.spent_seconds()
        paged = self.rest(self.within, look, unpaged)
        return self.of_both(look, unpaged, paged, begun_seconds)

    def lacks_buffer(self, look: Solution) -> bool:
        """Whether the plan pages, and leaves too little of the budget for the page buffer."""
        if look.schedule is None or look.trace is None or not is_paged(look.schedule):
            return False
        assert self.within.ram_budget_bytes is not None
        return look.trace.peak_ram_bytes > self.within.ram_budget_bytes

    def whole(self, look: Solution) -> Solution:
        """The answer where the whole budget may be taken."""
        begun_seconds = self.spent_seconds()
        answer = self.rest(self.limits, look)
        record = joined(look.record, answer.record, after_seconds=begun_seconds)
        return replace(answer, solve_seconds=self.spent_seconds(), record=record)

    def of_both(self, look: Solution, unpaged: Solution, paged: Solution, begun_seconds: float) -> Solution:
        """The better of the plans that page and those that do not, with a bound for both.

        Args:
            look: at the whole budget: its plan where the others have none, and a bound for both.
            unpaged: what is found without paging, in the whole budget.
            paged: what is found beside the page buffer.
            begun_seconds: when the search for that began.
        """
        best, joules = look, math.inf
        for each in (paged, unpaged):
            if each.joules is not None and each.joules < joules:
                best, joules = each, each.joules
        assert best.joules is not None
        lower = min(
            math.inf if each.status is Status.INFEASIBLE else each.bound_joules for each in (paged, unpaged)
        )
        bound_joules = min(max(look.bound_joules, lower), best.joules)
        allowed_joules = self.options.allowed_gap_joules(best.joules, best.baseline_joules)
        is_optimal = best is not look and best.joules - bound_joules <= allowed_joules
        is_sure = is_confirmed(paged.proof) and is_confirmed(unpaged.proof)
        return replace(
            best,
            status=Status.OPTIMAL if is_optimal else Status.FEASIBLE,
            bound_joules=bound_joules,
            bound_scope=_scope(look.bound_scope, self.limits, self.within),
            proof="" if not is_optimal else best.proof if is_sure else _BY_BOTH,
            message=paged.message if best is look else best.message,
            solve_seconds=self.spent_seconds(),
            was_interrupted=paged.was_interrupted,
            record=self.record(look, unpaged, paged, begun_seconds, bound_joules),
        )

    def record(
        self, look: Solution, unpaged: Solution, paged: Solution, begun_seconds: float, bound_joules: float
    ) -> SearchRecord:
        """Of all three: a bound of one kind of plans is none of both."""
        phase = Phase("plans that do not page", 0.0, unpaged.solve_seconds, plans=len(unpaged.record.plans))
        without = SearchRecord((phase,), unpaged.record.plans, rejected=unpaged.record.rejected)
        found = joined(look.record, without, after_seconds=begun_seconds - unpaged.solve_seconds)
        found = joined(found, replace(paged.record, bounds=()), after_seconds=begun_seconds)
        if bound_joules <= look.bound_joules:
            return found
        raised = Advance(self.spent_seconds(), bound_joules, "plans that page and plans that do not")
        return replace(found, bounds=(*found.bounds[-MOST_ENTRIES + 1 :], raised))

    def short(self, limits: Limits, share: float, options: SolveOptions) -> Solution:
        """The answer of a search that has a share of the time limit, or a little where there is none."""
        allowed_seconds, seconds = options.time_limit_seconds, self.tuning.short_seconds
        if allowed_seconds is not None:
            seconds = min(seconds, share * allowed_seconds)
        return solve(self.problem, limits, replace(options, time_limit_seconds=seconds))

    def rest(self, limits: Limits, *before: Solution) -> Solution:
        """The answer of a search that has the rest of the time, and what is known from ``before``."""
        options = self.started_within(limits, before)
        if options.time_limit_seconds is not None:
            left_seconds = max(options.time_limit_seconds - self.spent_seconds(), 0.0)
            options = replace(options, time_limit_seconds=left_seconds)
        return answered(self.problem, limits, replace(options, known_bound=self.known_bound(before[0])))

    def started_within(self, limits: Limits, before: Sequence[Solution]) -> SolveOptions:
        """The options with the start that takes least of those that ``limits`` allow."""
        options, least_joules = replace(self.options, start=None), math.inf
        starts = [
            (self.options.start, self.options.start_by),
            *((each.schedule, each.solver) for each in before),
        ]
        for schedule, by in starts:
            if schedule is None:
                continue
            with contextlib.suppress(InvalidSchedule):
                joules = simulate(self.problem, schedule, limits).joules
                if joules < least_joules:
                    options, least_joules = replace(options, start=schedule, start_by=by), joules
        return options

    def known_bound(self, look: Solution) -> KnownBound | None:
        """The higher of what ``look``, if it has a plan, and an earlier search know of the whole budget."""
        known = self.options.known_bound
        if look.schedule is None:
            return known
        found = KnownBound(self.problem, self.limits, look.bound_joules)
        if known is None or not known.holds_for(self.problem, self.limits) or known.joules < found.joules:
            return found
        return known

    def spent_seconds(self) -> float:
        """Of the time limit, so far."""
        return self.options.clock.now() - self.started
