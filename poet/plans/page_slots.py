"""Places in the page file for what a schedule pages, RAM that transfers pass through, and wear of flash."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from poet.errors import PlanError
from poet.plans.plan_parts import Endurance, PageSlot
from poet.problem import Place, Problem
from poet.problem.schedule import PageIn, PageOut, Schedule, Step

SLOT_ALIGNMENT_BYTES = 4096
"""Slots begin at multiples of this: what direct transfers to storage ask for."""

_SMALLEST_PAGE_BUFFER_BYTES, _LARGEST_PAGE_BUFFER_BYTES = 64 * 1024, 1024 * 1024
_RESERVED_SHARE = 64


def lay_out_slots(problem: Problem, schedule: Schedule) -> tuple[PageSlot, ...]:
    """One slot per tensor that is paged, read by row or lives in storage, one after the other."""
    paged = _paged(schedule).union(*(op.stored for op in problem.ops))
    return slots_for(
        {
            tensor.name: tensor.coded_bytes
            for tensor in problem.tensors
            if tensor.name in paged or Place.STORAGE in (tensor.initially, tensor.finally_)
        }
    )


def slots_for(sizes_bytes: Mapping[str, int]) -> tuple[PageSlot, ...]:
    """A slot of each size, by name, one after the other."""
    slots: list[PageSlot] = []
    end = 0
    for name, size_bytes in sizes_bytes.items():
        slots.append(PageSlot(name, end, size_bytes))
        end += -(-size_bytes // SLOT_ALIGNMENT_BYTES) * SLOT_ALIGNMENT_BYTES
    return tuple(slots)


def least_page_buffer_bytes(ram_budget_bytes: int) -> int:
    """What a plan that pages should leave of its budget for the page buffer; little budgets leave nothing."""
    return (
        _SMALLEST_PAGE_BUFFER_BYTES
        if ram_budget_bytes >= _RESERVED_SHARE * _SMALLEST_PAGE_BUFFER_BYTES
        else 0
    )


def is_paged(schedule: Schedule) -> bool:
    """Whether any tensor is moved to or from storage."""
    return any(isinstance(step, PageIn | PageOut) for step in schedule)


def _paged(schedule: Iterable[Step]) -> set[str]:
    return {step.tensor for step in schedule if isinstance(step, PageIn | PageOut)}


def page_buffer_of(spare_bytes: int) -> int:
    """Of ``spare_bytes``, those for the buffer of direct transfers: whole units, 0 where too few are left."""
    if spare_bytes < _SMALLEST_PAGE_BUFFER_BYTES:
        return 0
    return min(spare_bytes, _LARGEST_PAGE_BUFFER_BYTES) // SLOT_ALIGNMENT_BYTES * SLOT_ALIGNMENT_BYTES


def check_slots(slots: Iterable[PageSlot], problem: Problem, schedule: Schedule) -> None:
    """Every paged tensor has one slot that holds it; slots are aligned, apart, and leave no gap.

    The file is preallocated: a gap would be a way to take a stranger's disk.

    Raises:
        PlanError: one breaks that.
    """
    slots = tuple(slots)
    sizes = {tensor.name: tensor.coded_bytes for tensor in problem.tensors}
    slotted = {slot.tensor for slot in slots}
    if len(slotted) < len(slots):
        raise PlanError("a tensor has two page slots")
    needed = {slot.tensor for slot in lay_out_slots(problem, schedule)}
    if slotted != needed:
        raise PlanError(f"page slots and paged tensors differ: {min(slotted ^ needed)}")
    end = 0
    for slot in sorted(slots, key=lambda slot: (slot.offset_bytes, slot.size_bytes)):
        if slot.size_bytes != sizes[slot.tensor]:
            raise PlanError(f"the page slot of {slot.tensor} is not of its size")
        if slot.offset_bytes != end:
            raise PlanError(f"the page slot of {slot.tensor} is at {slot.offset_bytes}, not at {end}")
        end += -(-slot.size_bytes // SLOT_ALIGNMENT_BYTES) * SLOT_ALIGNMENT_BYTES


# --- how long storage lasts -------------------------------------------------------------------

Runs = Iterable[tuple[Problem, Schedule, int]]
"""The schedules of a step, each with how often it runs."""


@dataclass(frozen=True, slots=True)
class Wear:
    """What a step takes of storage.

    Attributes:
        bytes: that are erased: each tensor paged out fills whole blocks.
        most_erases: of a single block, with a place of its own for each tensor.
    """

    bytes: int
    most_erases: int


def most_erased(writes: Iterable[tuple[int, int]], block_bytes: int) -> int:
    """How often the block is erased that is erased most.

    Args:
        writes: offset and size in bytes of each; each erases all blocks that it touches.
        block_bytes: of an erase.
    """
    changes = Counter[int]()
    for offset, size in writes:
        if size:
            changes[offset // block_bytes] += 1
            changes[(offset + size - 1) // block_bytes + 1] -= 1
    most = now = 0
    for block in sorted(changes):
        now += changes[block]
        most = max(most, now)
    return most


def step_wear(runs: Runs, block_bytes: int) -> Wear:
    """What a step takes, which erases blocks of ``block_bytes``."""
    worn_bytes = most_erases = 0
    for problem, schedule, times in runs:
        slots = {slot.tensor: slot.offset_bytes for slot in lay_out_slots(problem, schedule)}
        sizes = {tensor.name: tensor.storage_bytes for tensor in problem.tensors}
        out = [step.tensor for step in schedule if isinstance(step, PageOut)]
        worn_bytes += times * sum(-(-sizes[name] // block_bytes) for name in out) * block_bytes
        most_erases += times * most_erased(((slots[name], sizes[name]) for name in out), block_bytes)
    return Wear(worn_bytes, most_erases)


def life_steps(endurance: Endurance, wear: Wear) -> float | None:
    """Steps until the storage is worn out; infinite where nothing is written, ``None``: not known."""
    if not wear.bytes:
        return math.inf
    if endurance.cycles is not None:
        return endurance.cycles / wear.most_erases
    return None if endurance.written_bytes is None else endurance.written_bytes / wear.bytes


def erases_text(wear: Wear) -> str:
    """What a step does to the block that ends the life of storage without wear levelling."""
    return f"erases its busiest block {wear.most_erases} time{'s' if wear.most_erases > 1 else ''}"
