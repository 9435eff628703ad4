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
from dataclasses import replace

from poet.errors import InvalidSchedule
from poet.memory.demand import PAGE_BYTES
from poet.plans.page_slots import is_paged, least_page_buffer_bytes
from poet.problem import Limits, Objective, Problem
from poet.problem.progress import stage
from poet.problem.search_record import MOST_ENTRIES, Advance, Phase, SearchRecord, joined
from poet.problem.simulator import simulate
from poet.problem.solution import WORD_OF, KnownBound, Solution, SolveOptions, Start, Status, is_confirmed
from poet.solvers import has_schedules, solve
from poet.solvers.search.explain import answered
from poet.util.units import IN_ORDER, format_bytes

LOOK_SHARE = 0.05
"""Of a minute or a shorter time limit, for a look whether good plans page, and twice that for plans that do
not; without, plans that page are searched beside no buffer, and then have no arena."""

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

    The scope of the bound says so, and `Solution.bound_ram_bytes`: a schedule that uses the buffer's bytes as
    well may take less, but has no arena.

    Args:
        problem: that is searched.
        limits: of the budget.
        options: of all searches together.
        in_whole_pages: whether an arena takes whole pages, of which those that page leave two where they can.
    """
    stage("search")
    within = less_page_buffer(limits, in_whole_pages=in_whole_pages)
    if not has_schedules(problem, within):
        within = less_page_buffer(limits)
    if within == limits or not has_schedules(problem, within):
        return answered(problem, limits, options)
    if not has_schedules(problem, replace(limits, paging=False)):
        return _beside(answered(problem, within, options), limits, within)
    if options.objective is not Objective.ENERGY:
        return answered(problem, limits, options)
    return _Search(problem, limits, within, options).run()


def bounded_limits(solution: Solution, limits: Limits) -> Limits:
    """Those that the bound of a solution of `answered_beside` holds for whether a plan pages or not."""
    if solution.bound_ram_bytes is None:
        return limits
    return replace(limits, ram_budget_bytes=solution.bound_ram_bytes)


def with_another(record: SearchRecord, answer: Solution, name: str, *, after_seconds: float) -> SearchRecord:
    """``record`` with a search inside other limits: its plans count, its bounds are none of the budget."""
    phase = Phase(name, 0.0, answer.solve_seconds, plans=len(answer.record.plans))
    another = SearchRecord((phase,), answer.record.plans, rejected=answer.record.rejected)
    return joined(record, another, after_seconds=after_seconds)


def _beside(solution: Solution, limits: Limits, within: Limits) -> Solution:
    """A solution for plans that page ``within`` the budget of ``limits``, whose bound or message says so."""
    assert limits.ram_budget_bytes is not None
    buffer = format_bytes(least_page_buffer_bytes(limits.ram_budget_bytes))
    if solution.schedule is None:
        what = f"Every plan {IN_ORDER} pages, and {buffer} of the budget are for the page buffer."
        return replace(solution, message=" ".join(filter(None, (what, solution.message))))
    pages = "" if within == less_page_buffer(limits) else " in whole pages"
    scope = f"{solution.bound_scope} beside a page buffer of {buffer}{pages}"
    return replace(solution, bound_scope=scope, bound_ram_bytes=within.ram_budget_bytes)


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
        self.began = options.clock.now()

    def run(self) -> Solution:
        """The better of the plans that page and those that do not, with a bound for both."""
        look = self.short(self.limits, LOOK_SHARE, self.options)
        if look.was_interrupted:
            return look
        if not self.lacks_buffer(look):
            return look if look.status is Status.OPTIMAL else self.rest(self.limits, look)
        start = replace(self.options.start, bound=self.known_bound(look))
        quiet = replace(self.options, progress=None, start=start)
        unpaged = self.short(replace(self.limits, paging=False), 2 * LOOK_SHARE, quiet)
        if unpaged.was_interrupted:
            return replace(look, was_interrupted=True, solve_seconds=self.spent_seconds())
        after_seconds = self.spent_seconds() - unpaged.solve_seconds
        record = with_another(look.record, unpaged, "plans that do not page", after_seconds=after_seconds)
        return self.of_both(replace(look, record=record), unpaged, self.rest(self.within, look, unpaged))

    def lacks_buffer(self, look: Solution) -> bool:
        """Whether the plan pages, and leaves too little of the budget for the page buffer."""
        if look.schedule is None or look.trace is None or not is_paged(look.schedule):
            return False
        assert self.within.ram_budget_bytes is not None
        return look.trace.peak_ram_bytes > self.within.ram_budget_bytes

    def of_both(self, look: Solution, unpaged: Solution, paged: Solution) -> Solution:
        """The better of both kinds of plans; that of ``look``, at the whole budget, if neither has any."""
        both = (paged, unpaged)
        best = min((look, *both), key=lambda each: math.inf if each is look else each.joules or math.inf)
        best = look if best.joules is None else best
        assert best.joules is not None
        lower = min(math.inf if each.status is Status.INFEASIBLE else each.bound_joules for each in both)
        bound_joules = min(max(look.bound_joules, lower), best.joules)
        allowed_joules = self.options.allowed_gap_joules(best.joules, best.baseline_joules)
        is_optimal = best is not look and best.joules - bound_joules <= allowed_joules
        is_sure = all(is_confirmed(each.proof) for each in both)
        record = joined(look.record, replace(paged.record, bounds=()), after_seconds=look.solve_seconds)
        if bound_joules > look.bound_joules:
            raised = Advance(self.spent_seconds(), bound_joules, "plans that page and plans that do not")
            record = replace(record, bounds=(*record.bounds[-MOST_ENTRIES + 1 :], raised))
        found = replace(
            best,
            status=Status.OPTIMAL if is_optimal else Status.FEASIBLE,
            bound_joules=bound_joules,
            bound_scope=look.bound_scope,
            proof="" if not is_optimal else best.proof if is_sure else _BY_BOTH,
            message=paged.message if best is look else best.message,
            solve_seconds=self.spent_seconds(),
            was_interrupted=paged.was_interrupted,
            record=record,
        )
        return _beside(found, self.limits, self.within)

    def short(self, limits: Limits, share: float, options: SolveOptions) -> Solution:
        """The answer of a search that has a share of a minute, or of a shorter time limit."""
        seconds = share * min(60.0, options.time_limit_seconds or 60.0)
        return solve(self.problem, limits, replace(options, time_limit_seconds=seconds))

    def rest(self, limits: Limits, *before: Solution) -> Solution:
        """The answer of a search that has the rest of the time, and what is known from ``before``."""
        look, spent_seconds = before[0], self.spent_seconds()
        start, least_joules = Start(), math.inf
        for each in (self.options.start, *(Start(answer.schedule, answer.solver) for answer in before)):
            with contextlib.suppress(InvalidSchedule):
                if each.schedule is not None:
                    joules = simulate(self.problem, each.schedule, limits).joules
                    if joules < least_joules:
                        start, least_joules = each, joules
        options = replace(self.options, start=replace(start, bound=self.known_bound(look)))
        if options.time_limit_seconds is not None:
            left_seconds = max(options.time_limit_seconds - spent_seconds, 0.0)
            options = replace(options, time_limit_seconds=left_seconds)
        answer = answered(self.problem, limits, options)
        if limits != self.limits:
            return answer
        record = joined(look.record, answer.record, after_seconds=spent_seconds)
        return replace(answer, solve_seconds=self.spent_seconds(), record=record)

    def known_bound(self, look: Solution) -> KnownBound | None:
        """The higher of what ``look``, if it has a plan, and an earlier search know of the whole budget."""
        known = self.options.start.bound
        if look.schedule is None:
            return known
        found = KnownBound(self.problem, self.limits, look.bound_joules)
        if known is None or not known.holds_for(self.problem, self.limits) or known.joules < found.joules:
            return found
        return known

    def spent_seconds(self) -> float:
        """Of the time limit, so far."""
        return self.options.clock.now() - self.began
