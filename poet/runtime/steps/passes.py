"""The memory of passes through a wrapped module: an arena that stays mapped from pass to pass.

The caller makes its loss between both halves of a pass, and holds outputs for as long as it wants: those lie
on the heap. Gradients lie in the arena: a loop that sets them to ``None`` has given them back when the next
pass begins. Where one is left, or an arena takes more than the plan counts, passes take their memory from
the heap. There is one arena in the process: that of the last pass.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator, Set
from dataclasses import replace
from itertools import accumulate

import torch

from poet.errors import ReplayError
from poet.memory.demand import BEFORE, whole_pages_bytes
from poet.memory.layout import lay_out
from poet.plans.training_plan import Plan
from poet.runtime import native
from poet.runtime.kernels import ALIGNMENT_BYTES
from poet.runtime.steps.instructions import Mark
from poet.util.reading import Closing
from poet.util.units import format_bytes

_GAPS_SHARE = 0.01  # of what the plan counts, that gaps may take beside it
_LAYOUT_SECONDS = 1.0
_SETTLING_PASSES = 1  # libraries set themselves up
_STRAY_SHARE = 0.01  # of the arena: what kernels may ask for that no plan foresaw


class PassMemory(Closing):
    """Where the memory of a plan's passes comes from.

    Attributes:
        obstacle: why it is the heap; empty where it is an arena.
    """

    def __init__(self, plan: Plan, outside: Set[str]) -> None:
        """Lay the plan out; ``outside``: buffers that are the caller's."""
        threads = {*plan.own_threads().values(), plan.kernels.threads, torch.get_num_threads()}
        is_measured = len(threads) == 1 and plan.host_kernels is None
        self._allocator = native.load() if is_measured else None
        self._placement: native.Placement | None = None
        self._arena: native.ArenaMemory | None = None
        self._is_in_flight = False
        self._passes = self._taken_bytes = 0
        if self._allocator is None:
            self.obstacle = "what its kernels ask for was not measured here, with as many threads"
            return
        self.obstacle = ""
        self._outside_bytes, self._placement = _placed(plan, outside)
        demand = plan.demand
        held_bytes = sum(demand.blocks[number].size_bytes for number in demand.standing)
        held_bytes += self._outside_bytes + plan.page_buffer_bytes
        held_bytes += whole_pages_bytes(self._placement.arena_bytes)
        allowed_bytes = int((1 + _GAPS_SHARE) * plan.held_bytes)
        budget_bytes = plan.request.limits.ram_budget_bytes
        if held_bytes > (allowed_bytes if budget_bytes is None else min(budget_bytes, allowed_bytes)):
            self.obstacle = "with the gaps between its tensors, an arena takes more than the plan"

    @property
    def arena_bytes(self) -> int:
        """Of the arena that is open; 0 where none is."""
        return 0 if self._arena is None else self._arena.size_bytes

    def begin(self) -> None:
        """A pass begins."""
        global _last
        if (before := _last()) is not None and before is not self:
            before.rest()
            if before.arena_bytes:  # its pass is in flight
                return
        _last = weakref.ref(self)
        if self._arena is not None and not self._arena.is_empty:
            self._leave("something that a pass made lives into the next one, as gradients may")
        if self.obstacle or self._allocator is None or self._placement is None:
            return
        with contextlib.suppress(ReplayError):  # the system has no more
            if self._arena is None:
                self._arena = self._allocator.arena(self._placement.arena_bytes, huge_pages=True)
            self._is_in_flight = True

    @contextlib.contextmanager
    def half(self) -> Iterator[Mark]:
        """The block is a half of a pass; gives what is told of each instruction before it runs."""
        with contextlib.ExitStack() as replaying:
            mark = taken = None
            if self._is_in_flight and self._allocator and self._arena and self._placement:
                with contextlib.suppress(ReplayError):  # a trainer's steps are replayed
                    replay = replaying.enter_context(self._arena.replay(self._placement))
                    taken = replaying.enter_context(self._allocator.taking(replay))
                    mark = self._allocator.mark
            yield mark
            self._taken_bytes = max(self._taken_bytes, 0 if taken is None else taken())

    def end(self) -> None:
        """The pass is over, or is stopped."""
        if not self._is_in_flight:
            return
        self._is_in_flight = False
        stray_bytes, self._taken_bytes = self._taken_bytes - self._outside_bytes, 0
        self._passes += 1
        if self._passes <= _SETTLING_PASSES or self._arena is None:
            return
        if stray_bytes > _STRAY_SHARE * self._arena.size_bytes:
            self._leave(f"kernels here need {format_bytes(stray_bytes)} that were not planned for")

    def rest(self) -> None:
        """Give the memory back until the next pass, unless one is in flight."""
        if not self._is_in_flight and self._arena is not None:
            self._arena.close()
            self._arena = None

    def close(self) -> None:
        """Give the memory back."""
        self.end()
        self.rest()

    def _leave(self, obstacle: str) -> None:
        self.obstacle = obstacle
        self.rest()


_last: Callable[[], PassMemory | None] = lambda: None  # noqa: E731 - as a weak reference to nothing


def rest() -> None:
    """Let no arena stay mapped between passes, for work of another kind that follows."""
    if (last := _last()) is not None:
        last.rest()


def _placed(plan: Plan, outside: Set[str]) -> tuple[int, native.Placement]:
    """The bytes that are the caller's, and places for all others that a pass asks for.

    Op k + 1 is step k of the schedule. What stands throughout is the caller's too, and never asked for.
    """
    demand = plan.demand
    alone = {number for number, block in enumerate(demand.blocks) if block.tensor in outside}
    inside = [
        number
        for number in range(len(demand.blocks))
        if number not in alone and number not in demand.standing
    ]
    blocks = [replace(demand.blocks[number], alignment_bytes=ALIGNMENT_BYTES) for number in inside]
    layout = lay_out(blocks, time_limit_seconds=_LAYOUT_SECONDS)
    places = dict.fromkeys(alone, native.ON_HEAP) | dict(zip(inside, layout.offsets_bytes, strict=True))
    asked = sorted((item for item in demand.requests if item.step != BEFORE), key=lambda item: item.step)
    per_op = [0] * (len(plan.schedule) + 1)
    for item in asked:
        per_op[item.step + 1] += 1
    placement = native.Placement(
        sizes_bytes=tuple(item.size_bytes for item in asked),
        offsets_bytes=tuple(places[item.block] for item in asked),
        op_bounds=(0, *accumulate(per_op)),
        arena_bytes=layout.arena_bytes,
    )
    return sum(demand.blocks[number].size_bytes for number in alone), placement
