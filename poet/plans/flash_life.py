"""How long storage lasts: what a step erases of it, and how many erases it survives."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from poet.plans.page_slots import lay_out_slots
from poet.plans.plan_parts import Endurance
from poet.plans.training_plan import Plan
from poet.problem import Problem
from poet.problem.schedule import PageOut, Schedule

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


def wear_of_plan(plan: Plan) -> Wear:
    """What a step of ``plan`` takes, all its pieces together."""
    runs = ((part.problem, part.schedule, times) for part, times in plan.runs)
    return step_wear(runs, plan.device.endurance.block_bytes)


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
