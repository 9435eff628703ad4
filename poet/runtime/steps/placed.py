"""Steps in one piece of memory: each tensor and temporary at its planned place, from the first step on.

Giving every freed tensor back to the system costs a page fault per page and step. With the native
allocator (`poet.runtime.native`) a step's tensors and hidden temporaries lie in an arena that stays mapped:

- at the places that the plan gives them, where its kernels' memory was measured at this number of threads;
- else, or where this processor's kernels ask for something else, at places found here, after a few
  steps on the heap were recorded.

Where neither can be had, or would not fit the budget, steps stay on the heap: `how` says why, and the log of
``poet.runtime`` does once, with the way out.
"""

from __future__ import annotations

import contextlib
import logging
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate

import torch

from poet.errors import ReplayError
from poet.memory.demand import BEFORE, whole_pages_bytes
from poet.plans.training_plan import Plan
from poet.runtime import native
from poet.runtime.kernels import ALIGNMENT_BYTES
from poet.runtime.steps.instructions import Mark, Moving
from poet.runtime.system.outputs import Outputs
from poet.util.reading import Closing
from poet.util.units import format_bytes

_SETTLING_STEPS = 1  # checks its results, and libraries set themselves up
_RECORDED_STEPS = 3  # in the first, what lives across steps was still allocated unseen
_WATCHED_STEPS = 3  # at planned places, after the settling one
_PLACING_SECONDS = 1.0
_STRAYING_STEPS = 2  # what kernels ask for comes again in every step; what another thread asks for does not
_STRAY_SHARE = 0.01
"""Of the arena: what may come from the heap beside it before places are looked for again."""

_log = logging.getLogger("poet.runtime")
_announced: set[str] = set()


class _Arena(Closing):
    """Memory for the tensors and temporaries of steps, at the places of one schedule at a time.

    It lies in huge pages where the system has them: weights are read once per step, at a table walk per page.
    """

    def __init__(
        self,
        allocator: native.NativeAllocator,
        size_bytes: int,
        placement_of: Callable[[Plan], native.Placement],
    ) -> None:
        self.memory = allocator.arena(size_bytes, huge_pages=True)
        self.replay: native.Replay | None = None
        self._placement_of = placement_of
        self._placements: dict[int, tuple[Plan, native.Placement]] = {}  # by identity of a plan
        self._plan: Plan | None = None  # whose placement answers requests
        self._replaying = contextlib.ExitStack()
        self._missed = 0  # under placements that were left

    def place_as(self, plan: Plan | None) -> None:
        """Answer requests with the places of ``plan``, or with none."""
        if plan is self._plan:
            return
        self._leave()
        if plan is not None:
            if id(plan) not in self._placements:
                self._placements[id(plan)] = plan, self._placement_of(plan)
            replay = self.memory.replay(self._placements[id(plan)][1])
            self.replay, self._plan = self._replaying.enter_context(replay), plan

    @property
    def misses(self) -> int:
        return self._missed + (0 if self.replay is None else self.replay.counts().misses)

    def _leave(self) -> None:
        self._missed = self.misses
        self._replaying.close()
        self.replay = self._plan = None

    def close(self) -> None:
        self._leave()
        self.memory.close()


class _Planned(Closing):
    """The places that a plan gives its tensors: those that stand throughout lie in memory of their own."""

    def __init__(
        self, plan: Plan, allocator: native.NativeAllocator, divide_bytes: int, size_bytes: int
    ) -> None:
        self.divide_bytes = divide_bytes  # the offset at which tensors that stay begin
        self.offsets_bytes = plan.begun_bytes  # of what begins in RAM
        self.standing = allocator.arena(size_bytes, huge_pages=True) if size_bytes else None

    def standing_offsets(self) -> dict[str, int]:
        """Of the buffers that stand throughout, in their own memory."""
        divide_bytes = self.divide_bytes
        return {name: at - divide_bytes for name, at in self.offsets_bytes.items() if at >= divide_bytes}

    def close(self) -> None:
        if self.standing is not None:
            self.standing.close()


class PlacedSteps(Closing):
    """Where the memory of a trainer's steps comes from.

    Attributes:
        how: for reports, where it comes from now.
        peak_bytes: what a step held at most, to the byte, with all that stands across steps; ``None``: none
            was counted.
        obstacle: why steps do not lie at the plan's places, and the way out; empty where they do.
        refusal: why the next step must not be made; empty where it may.
        mark: during a step, to be called with 1 + the number of each instruction before it runs; ``None``:
            there is nobody to be told.
    """

    def __init__(
        self,
        plan: Plan,
        limit_bytes: int | None,
        *,
        is_required: bool = False,
        moving: Moving,
        standing_bytes: Callable[[bool], int],
    ) -> None:
        """Prepare.

        Args:
            plan: to be replayed.
            limit_bytes: what an arena found here may take; ``None``: anything.
            is_required: whether steps must lie at the plan's places.
            moving: who makes the plan's moves, while steps lie at the plan's places.
            standing_bytes: what is held across steps, where there is an arena, in which the rest lies, and
                where there is none.

        Raises:
            ReplayError: they must and cannot.
        """
        self._plan, self._limit_bytes = plan, limit_bytes
        self._is_required = is_required
        self._moving, self._standing_bytes = moving, standing_bytes
        self.how, self.obstacle, self.refusal = "heap", "", ""
        self.peak_bytes: int | None = None
        self.mark: Mark = None
        self._steps = self._strayed_steps = 0
        self._is_in_use = False  # the arena
        self._handed: Callable[[], Outputs | None] = _nothing  # a weak reference
        self._arena: _Arena | None = None
        self._planned: _Planned | None = None
        self._recording: native.Recording | None = None
        self._scopes = contextlib.ExitStack()  # of the recording
        self._tracking = contextlib.ExitStack()
        self._allocator = self._meter = native.load()
        if self._allocator is None:
            self._stay_on_the_heap(native.why_unavailable())
        else:
            try:  # so that it knows what steps give back
                self._tracking.enter_context(self._allocator.tracking())
            except ReplayError:  # which is told below
                self._meter = None
            self.obstacle = self._open_planned(self._allocator)
            if self.obstacle:
                self._refuse_if_required(self.obstacle)
        if self.refusal:
            self.close()
            raise ReplayError(self.refusal)

    @property
    def is_settled(self) -> bool:
        """Whether the memory of steps comes from where it will come from."""
        if self._planned is not None:
            return self._steps > _SETTLING_STEPS and not self._strayed_steps
        return self._allocator is None or self._is_in_use

    @property
    def resident_bytes(self) -> int:
        """What the arena of the steps holds between them."""
        return self._arena.memory.size_bytes if self._arena is not None and self._is_in_use else 0

    def padding_bytes(self, sizes_bytes: Mapping[str, int]) -> int:
        """Of the memory of what stands throughout, in whole pages, what none of its tensors takes.

        ``sizes_bytes``: of buffers.
        """
        if self._planned is None or self._planned.standing is None:
            return 0
        taken_bytes = sum(sizes_bytes[name] for name in self._planned.standing_offsets())
        return max(0, self._planned.standing.size_bytes - taken_bytes)

    @property
    def misses(self) -> int:
        """Requests that had to be served from the heap since steps are placed."""
        return 0 if self._arena is None else self._arena.misses

    def empty(self, buffer: str, size_bytes: int) -> torch.Tensor | None:
        """Memory for a tensor that begins each step in RAM, at its planned place; ``None``: it has none."""
        planned, arena = self._planned, self._arena
        if planned is None or arena is None or buffer not in planned.offsets_bytes:
            return None
        offset, memory = planned.offsets_bytes[buffer], arena.memory
        if planned.standing is not None and offset >= planned.divide_bytes:
            offset, memory = offset - planned.divide_bytes, planned.standing
        return memory.empty(offset, (size_bytes,), torch.uint8)

    @contextlib.contextmanager
    def step(self, *, is_watchable: bool = True) -> Iterator[None]:
        """The block is one step; it is not watched if others may allocate meanwhile."""
        self._make_room()
        if self._arena is not None:
            self._arena.place_as(self._plan)
        elif self._allocator is not None and self._steps == _SETTLING_STEPS:
            self._record(self._allocator)
        watched = is_watchable and self._planned is not None
        watched = watched and _SETTLING_STEPS <= self._steps < _SETTLING_STEPS + _WATCHED_STEPS
        with self._counted() as taken:
            yield
            stray_bytes = taken() if taken is not None and watched else 0
        self._steps += 1
        if self._arena is not None:
            self._is_in_use = True
            if stray_bytes > _STRAY_SHARE * self._arena.memory.size_bytes:
                self._strayed_steps += 1
                if self._strayed_steps == _STRAYING_STEPS:
                    self._leave_planned(stray_bytes)
        if self._recording is not None and self._steps == _SETTLING_STEPS + _RECORDED_STEPS:
            self._place(self._recording)

    @contextlib.contextmanager
    def _counted(self) -> Iterator[Callable[[], int] | None]:
        """The block is a step, of what is in flight if anything is; `peak_bytes` knows of it afterwards.

        Gives what says how many bytes the step has taken on the heap; ``None``: that is not counted.
        """
        if self._meter is None:
            yield None
            return
        arena = self._arena
        under_way = self._recording if arena is None else arena.replay
        with self._meter.taking(under_way) as taken:
            held_bytes = self._standing_bytes(arena is not None)
            held_bytes += 0 if arena is None else arena.memory.size_bytes
            self.mark = None if taken is None else self._meter.mark
            try:
                yield taken
            finally:
                self.mark = None
            if taken is not None:
                self.peak_bytes = max(self.peak_bytes or 0, held_bytes + taken())

    def close(self) -> None:
        """Place nothing any more."""
        with contextlib.suppress(RuntimeError):  # without room for a copy they keep the arena's memory
            self._make_room()
        self._leave_arena()
        self._tracking.close()

    def _leave_arena(self) -> None:
        self._moving.close()
        self._scopes.close()
        for memory in (self._arena, self._planned):
            if memory is not None:
                memory.close()
        self._recording = self._arena = self._planned = None
        self._is_in_use = False

    @contextlib.contextmanager
    def beside(self, companion: Plan) -> Iterator[Mark]:
        """The block replays a ``companion`` of the plan, between its steps and in the same arena.

        Gives what `mark` is meanwhile. Where steps do not lie at the plan's places, nor does this.
        """
        if self._arena is not None:
            is_placed = self._planned is not None and companion.arena is not None
            self._arena.place_as(companion if is_placed else None)
            if is_placed:
                self._make_room()
                self._is_in_use = True
        with self._counted():
            yield self.mark

    def hand_over(self, outputs: Sequence[torch.Tensor]) -> Outputs:
        """The outputs of the step that was made last; copied before the next one if they are still held."""
        handed = Outputs(outputs, None if self._arena is None else self._arena.memory.holds)
        self._handed = weakref.ref(handed)
        return handed

    def _make_room(self) -> None:
        """Outputs that the caller keeps leave the places of the step to come."""
        kept, self._handed = self._handed(), _nothing
        if kept is not None:
            _ = kept.own

    # --- at the plan's places ---

    def _open_planned(self, allocator: native.NativeAllocator) -> str:
        """Open the arena that the plan describes; what is in its way, empty where nothing is."""
        plan = self._plan
        layout, threads = plan.layout, plan.kernels.threads
        if layout is None or threads is None or plan.host_kernels is not None:
            return "the plan does not say where tensors lie; plan again, on a machine with a C++ compiler"
        if any(offset % ALIGNMENT_BYTES for offset in layout.offsets_bytes):
            return (
                f"the plan's places are no multiples of {ALIGNMENT_BYTES} bytes, as torch's are; plan again"
            )
        if threads != torch.get_num_threads():
            return (
                f"the plan's memory was measured with {threads} threads and torch has "
                f"{torch.get_num_threads()}; call torch.set_num_threads({threads}) (--threads {threads})"
            )
        if set(plan.own_threads().values()) - {threads}:
            return "its ops have several numbers of threads, and memory was measured with one"
        if not plan.has_fitting_arena:
            return (
                f"with its gaps the plan takes {format_bytes(plan.arena_ram_bytes)}, more than its budget; "
                "plan with more RAM"
            )
        standing = set(plan.demand.standing)
        ends = [
            offset + block.size_bytes
            for number, (block, offset) in enumerate(zip(layout.blocks, layout.offsets_bytes, strict=True))
            if number not in standing
        ]
        moves = () if plan.arena is None else plan.arena.moves
        ends += [move.to_bytes + layout.blocks[move.block].size_bytes for move in moves]
        divide_bytes, standing_bytes = plan.demand.parts_bytes(layout.offsets_bytes, layout.arena_bytes)
        if max(ends, default=0) > divide_bytes:  # it was not made by `poet.memory.layout.lay_out`
            return "the plan's layout mixes what stands throughout with what does not; plan again"
        try:
            self._planned = _Planned(plan, allocator, divide_bytes, standing_bytes)
            self._arena = _Arena(allocator, divide_bytes, lambda plan: _placement(plan, divide_bytes))
            self._arena.place_as(plan)
        except ReplayError as error:
            self.close()
            self._stay_on_the_heap(str(error))
            return str(error)
        self._moving.open(self._arena.memory)
        self.how = f"arena of {format_bytes(layout.arena_bytes)}, as planned"
        return ""

    def _leave_planned(self, stray_bytes: int) -> None:
        """Kernels here ask for other memory than those of the machine that planned: record them."""
        self._leave_arena()
        self._steps = 0
        self.obstacle = f"kernels here need {format_bytes(stray_bytes)} that were not planned for; plan here"
        self.how = f"heap: {self.obstacle}"
        self._refuse_if_required(self.obstacle)

    # --- at places found here ---

    def _record(self, allocator: native.NativeAllocator) -> None:
        if self._plan.accumulation is not None or self._plan.shapes:
            # an arena that is laid out here would lie beside what the other schedules ask for
            self._stay_on_the_heap(
                f"{self.obstacle}; that of micro-batches and of several shapes is not laid out again"
            )
            return
        try:
            self._recording = self._scopes.enter_context(allocator.recording())
        except ReplayError as error:
            self._stay_on_the_heap(str(error))

    def _place(self, recording: native.Recording) -> None:
        """End the recording and open the arena."""
        assert self._allocator is not None
        self._scopes.close()
        self._recording = None
        try:
            placement = native.place(recording.steps, time_limit_seconds=_PLACING_SECONDS)
            needed_bytes = whole_pages_bytes(placement.arena_bytes)
            if self._limit_bytes is not None and needed_bytes > self._limit_bytes:
                size, limit = format_bytes(needed_bytes), format_bytes(self._limit_bytes)
                raise ReplayError(
                    f"the arena would take {size}, the budget leaves {limit}; plan with more RAM"
                )
            self._arena = _Arena(self._allocator, placement.arena_bytes, lambda _: placement)
            self._arena.place_as(self._plan)
        except ReplayError as error:
            self._leave_arena()
            self._stay_on_the_heap(str(error))
            return
        self.how = f"arena of {format_bytes(self._arena.memory.size_bytes)}, laid out here"

    def _stay_on_the_heap(self, reason: str) -> None:
        self._allocator = None
        self.obstacle = self.obstacle or reason
        self.how = f"heap: {reason}"
        self._refuse_if_required(reason)
        if not self._is_required and reason not in _announced:
            _announced.add(reason)
            _log.warning(
                "poet: training steps take their memory from the heap: %s. "
                'arena="require" (poet run --arena require) refuses instead of this.',
                reason,
            )

    def _refuse_if_required(self, reason: str) -> None:
        if self._is_required:
            self.refusal = f'arena="require": steps cannot have their planned places: {reason}'


def _nothing() -> None:
    """What a weak reference to nothing gives."""


def _placement(plan: Plan, divide_bytes: int) -> native.Placement:
    """The plan's places for what is asked for within a step.

    Op 0 takes the inputs, op k + 1 is step k with the moves before it, and one more the moves after all
    steps.
    """
    layout, places = plan.layout, plan.places
    assert layout is not None
    assert places is not None
    inputs = {plan.graph.buffer_of(name): place for place, name in enumerate(plan.graph.inputs)}
    asked: list[tuple[int, int, int, int]] = []  # op, order within it, size, offset
    for item, offset in zip(plan.demand.requests, places.requests_bytes, strict=True):
        tensor = layout.blocks[item.block].tensor
        if item.step != BEFORE:
            asked.append((item.step + 1, 1, item.size_bytes, offset))
        elif tensor is not None and tensor in inputs:
            asked.append((0, inputs[tensor], item.size_bytes, offset))
    asked += [(move.step + 1, 0, move.size_bytes, move.to_bytes) for move in places.moves]
    asked.sort(key=lambda each: each[:2])
    per_op = [0] * (len(plan.schedule) + 2)
    for op, *_ in asked:
        per_op[op] += 1
    return native.Placement(
        sizes_bytes=tuple(size for _, _, size, _ in asked),
        offsets_bytes=tuple(offset for _, _, _, offset in asked),
        op_bounds=(0, *accumulate(per_op)),
        arena_bytes=divide_bytes,
    )
