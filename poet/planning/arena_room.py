"""What a RAM budget leaves for a plan's arena: beside the page buffer, in whole pages where these count."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from poet.memory.demand import PAGE_BYTES, Demand, whole_pages_bytes
from poet.plans.page_slots import is_paged, least_page_buffer_bytes
from poet.problem import Limits, Problem
from poet.schedule import Schedule
from poet.solution import Solution, SolveOptions
from poet.solvers import minimum_ram_bytes
from poet.solvers.search.explain import answered
from poet.units import format_bytes


@dataclass(frozen=True, slots=True)
class ArenaRoom:
    """What a RAM budget allows an arena.

    Attributes:
        ram_budget_bytes: for everything; ``None``: as much as there is.
        is_mapped: whether this machine's system maps the arena, in whole pages.
    """

    ram_budget_bytes: int | None
    is_mapped: bool

    def left_bytes(self, schedule: Schedule) -> int:
        """What the budget leaves beside the page buffer, where ``schedule`` needs one."""
        assert self.ram_budget_bytes is not None
        buffer_bytes = least_page_buffer_bytes(self.ram_budget_bytes) if is_paged(schedule) else 0
        return self.ram_budget_bytes - buffer_bytes

    def arena_bytes(self, schedule: Schedule, demand: Demand) -> int:
        """How large an arena may be; where it is mapped, each of its two parts takes whole pages.

        0 or less: there is no room for one, or no budget.
        """
        if self.ram_budget_bytes is None:
            return 0
        left_bytes = self.left_bytes(schedule)
        if not self.is_mapped:
            return left_bytes
        standing_bytes = sum(demand.blocks[number].size_bytes for number in demand.standing)
        rest_bytes = left_bytes - whole_pages_bytes(standing_bytes)
        return rest_bytes // PAGE_BYTES * PAGE_BYTES + standing_bytes

    def taken_bytes(self, demand: Demand, offsets_bytes: Sequence[int], arena_bytes: int) -> int:
        """The RAM that an arena of ``arena_bytes`` takes, with a block at each offset."""
        return demand.mapped_bytes(offsets_bytes, arena_bytes) if self.is_mapped else arena_bytes


def beside_page_buffer(problem: Problem, limits: Limits) -> Limits:
    """The limits of a search: ``limits`` less the page buffer, where every schedule of ``problem`` pages.

    A plan that pages has its arena beside that buffer. Where some schedule may do without paging, where
    budgets are too little for a buffer, and where none would be left for a schedule, ``limits`` stay.
    """
    budget_bytes = limits.ram_budget_bytes
    if budget_bytes is None or not limits.paging:
        return limits
    left_bytes = budget_bytes - least_page_buffer_bytes(budget_bytes)
    unpaged_bytes = minimum_ram_bytes(problem, replace(limits, paging=False)).bytes
    if unpaged_bytes <= budget_bytes or minimum_ram_bytes(problem, limits).bytes > left_bytes:
        return limits
    return replace(limits, ram_budget_bytes=left_bytes)


def with_buffer_named(solution: Solution, limits: Limits, within: Limits) -> Solution:
    """A solution within the limits of `beside_page_buffer`, whose bound or, without a plan, message says so.

    A schedule that uses the page buffer's bytes as well may take less, but has no arena beside the buffer.
    """
    if within == limits:
        return solution
    assert limits.ram_budget_bytes is not None
    assert within.ram_budget_bytes is not None
    buffer = format_bytes(limits.ram_budget_bytes - within.ram_budget_bytes)
    if solution.schedule is not None:
        return replace(solution, bound_scope=f"{solution.bound_scope} beside a page buffer of {buffer}")
    what = f"Every plan pages, and {buffer} of the budget are for the page buffer."
    return replace(solution, message=" ".join(filter(None, (what, solution.message))))


def answered_beside(problem: Problem, limits: Limits, options: SolveOptions) -> Solution:
    """`poet.solvers.search.explain.answered` within the limits of `beside_page_buffer`."""
    within = beside_page_buffer(problem, limits)
    return with_buffer_named(answered(problem, within, options), limits, within)
