"""What a RAM budget leaves for a plan's arena: beside the page buffer, in whole pages where these count."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from poet.kernel_facts import KernelFacts
from poet.memory.demand import PAGE_BYTES, Demand, whole_pages_bytes
from poet.plans.page_slots import is_paged, least_page_buffer_bytes
from poet.schedule import Schedule


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


def is_mapped(kernels: KernelFacts | None) -> bool:
    """Whether steps with these kernels run here, in an arena that the system maps."""
    return kernels is not None and kernels.threads is not None
