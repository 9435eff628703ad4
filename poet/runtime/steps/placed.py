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
from poet.runtime.steps.instructions import Moving
from poet.runtime.system.outputs import Outputs
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


class PlacedSteps:
    """Where the memory of a trainer's steps comes from.

    Attributes:
        how: for reports, where it comes from now.
        peak_bytes: what a step held at most, to the byte, with all that stands across steps; ``None``: none
            was counted.
        obstacle: why steps do not lie at the plan's places, and the way out; empty where they do.
        refusal: why the next step must not be made; empty where it may.
    """

    def __init__(
        self,
        plan: Plan,
        limit_bytes: int | None,
        *,
        is_required: bool = False,
        announces: bool = True,
        moving: Moving | None = None,
        standing_bytes: Callable[[bool], int] = lambda _: 0,
    ) -> None:
        """Prepare.

        Args:
            plan: to be replayed.
            limit_bytes: what an arena found here may take; ``None``: anything.
            is_required: whether steps must lie at the plan's places.
            announces: whether a fallback to the heap is logged.
            moving: who makes the plan's moves, while steps lie at the plan's places; ``None``: nobody.
            standing_bytes: what is held across steps, where there is an arena, in which the rest lies, and
                where there is none.

        Raises:
            ReplayError: they must and cannot.
        """
        self._plan = plan
        self._is_required, self._announces = is_required, announces
        self._moving = moving
        self.obstacle = self.refusal = ""
        self._limit_bytes = limit_bytes
        self._scopes = contextlib.ExitStack()  # of the steps' arena or the recording
        self._replaying = contextlib.ExitStack()  # closed before the arena is
        self._standing_scope = contextlib.ExitStack()
        self._allocator = self._meter = native.load()
        self._standing_bytes = standing_bytes
        self.peak_bytes: int | None = None
        self._is_marked = False  # whether a step in flight is to be told of its instructions
        self._recording: native.Recording | None = None
        self._arena: native.ArenaMemory | None = None
        self._standing: native.ArenaMemory | None = None
        self._replay: native.Replay | None = None
        self._offsets_bytes: dict[str, int] = {}  # of what begins in RAM
        self._beside: dict[int, tuple[Plan, native.Placement]] = {}  # by identity of an auxiliary plan
        self._placing: Plan | None = None  # whose placement answers requests
        self._missed = 0  # under placements that were left
        self._shares = plan.accumulation is not None or bool(plan.shapes)
        self._divide_bytes = 0  # the offset at which tensors that stay begin
        self._is_planned = False
        self._steps = self._replayed_steps = self._strayed_steps = 0
        self._handed: Callable[[], Outputs | None] = _nothing  # a weak reference
        self.how = "heap"
        if self._allocator is None:
            self._stay_on_the_heap(native.why_unavailable())
        else:
            try:  # so that it knows what steps give back
                self._standing_scope.enter_context(self._allocator.tracking())
            except ReplayError:  # which is told below
                self._meter = None
            self.obstacle = self._open_planned(self._allocator)
            if is_required and self.obstacle:
                self._refuse(self.obstacle)
        if self.refusal:
            self.close()
            raise ReplayError(self.refusal)

    @property
    def mark(self) -> Callable[[int], object] | None:
        """To be called with 1 + the number of each instruction before it runs, if there is one to call."""
        return self._meter.mark if self._meter is not None and self._is_marked else None

    @property
    def is_settled(self) -> bool:
        """Whether the memory of steps comes from where it will come from."""
        if self._is_planned:
            return self._steps > _SETTLING_STEPS and not self._strayed_steps
        return self._allocator is None or self._replayed_steps > 0

    @property
    def resident_bytes(self) -> int:
        """What the arena of the steps holds between them."""
        return self._arena.size_bytes if self._arena is not None and self._replayed_steps else 0

    def padding_bytes(self, sizes_bytes: Mapping[str, int]) -> int:
        """Of the memory of what stands throughout, in whole pages, what none of its tensors takes.

        ``sizes_bytes``: of buffers.
        """
        if self._standing is None or not self._is_planned:
            return 0
        standing = (name for name, offset in self._offsets_bytes.items() if offset >= self._divide_bytes)
        return max(0, self._standing.size_bytes - sum(sizes_bytes[name] for name in standing))

    @property
    def misses(self) -> int:
        """Requests that had to be served from the heap since steps are placed."""
        return self._missed + (0 if self._replay is None else self._replay.counts().misses)

    def empty(self, buffer: str, size_bytes: int) -> torch.Tensor | None:
        """Memory for a tensor that begins each step in RAM, at its planned place; ``None``: it has none."""
        offset = self._offsets_bytes.get(buffer)
        if offset is None or self._arena is None:
            return None
        if self._standing is not None and offset >= self._divide_bytes:
            return self._standing.empty(offset - self._divide_bytes, (size_bytes,), torch.uint8)
        return self._arena.empty(offset, (size_bytes,), torch.uint8)

    @contextlib.contextmanager
    def step(self, *, is_watchable: bool = True) -> Iterator[None]:
        """The block is one step; it is not watched if others may allocate meanwhile."""
        allocator = self._allocator
        self._make_room()
        if self._arena is not None:
            self._place_as(self._plan)
        if allocator is not None and self._replay is None and self._steps == _SETTLING_STEPS:
            self._record(allocator)
        under_way = self._replay or self._recording
        watched = is_watchable and self._is_planned
        watched = watched and _SETTLING_STEPS <= self._steps < _SETTLING_STEPS + _WATCHED_STEPS
        with contextlib.ExitStack() as scopes:
            taken = scopes.enter_context(self._counted(under_way))
            yield
            stray_bytes = taken() if taken is not None and watched else 0
        self._steps += 1
        self._replayed_steps += self._replay is not None
        if self._arena is not None and stray_bytes > _STRAY_SHARE * self._arena.size_bytes:
            self._strayed_steps += 1
            if self._strayed_steps == _STRAYING_STEPS:
                self._leave_planned(stray_bytes)
        if self._recording is not None and self._steps == _SETTLING_STEPS + _RECORDED_STEPS:
            self._place()

    @contextlib.contextmanager
    def _counted(
        self, under_way: native.Replay | native.Recording | None
    ) -> Iterator[Callable[[], int] | None]:
        """The block is a step, of what is in flight if anything is; `peak_bytes` knows of it afterwards.

        Gives what says how many bytes the step has taken on the heap; ``None``: that is not counted.
        """
        if self._meter is None:
            yield None
            return
        with self._meter.taking(is_marked=under_way is not None) as taken:
            held_bytes = self._standing_bytes(self._arena is not None)
            held_bytes += 0 if self._arena is None else self._arena.size_bytes
            self._is_marked = taken is not None
            try:
                with contextlib.nullcontext() if under_way is None else under_way.step():
                    yield taken
            finally:
                self._is_marked = False
            if taken is not None:
                self.peak_bytes = max(self.peak_bytes or 0, held_bytes + taken())

    def close(self) -> None:
        """Place nothing any more."""
        with contextlib.suppress(RuntimeError):  # without room for a copy they keep the arena's memory
            self._make_room()
        self._end_steps()
        self._standing_scope.close()
        self._recording = self._replay = self._arena = self._standing = None

    def _end_steps(self) -> None:
        if self._moving is not None:
            self._moving.close()
        self._replaying.close()
        self._placing = None
        self._scopes.close()

    @contextlib.contextmanager
    def beside(self, companion: Plan) -> Iterator[Callable[[int], object] | None]:
        """The block replays a ``companion`` of the plan, between its steps and in the same arena.

        Gives what `mark` gives. Where steps do not lie at the plan's places, nor does this.
        """
        self._place_as(companion if self._is_planned and companion.arena is not None else None)
        if self._replay is not None:
            self._make_room()
            self._replayed_steps += 1
        with self._counted(self._replay):
            yield self.mark

    def hand_over(self, outputs: Sequence[torch.Tensor]) -> Outputs:
        """The outputs of the step that was made last; copied before the next one if they are still held."""
        handed = Outputs(outputs, None if self._arena is None else self._arena.holds)
        self._handed = weakref.ref(handed)
        return handed

    def _make_room(self) -> None:
        """Outputs that the caller keeps leave the places of the step to come."""
        kept, self._handed = self._handed(), _nothing
        if kept is not None:
            _ = kept.own

    def _place_as(self, plan: Plan | None) -> None:
        """Answer requests with the places of ``plan``, or with none; one placement at a time."""
        if plan is self._placing:
            return
        self._missed = self.misses
        self._replaying.close()
        self._replay, self._placing = None, plan
        if plan is None:
            return
        assert self._arena is not None
        if plan is not self._plan and id(plan) not in self._beside:
            self._beside[id(plan)] = plan, _placement(plan, self._divide_bytes)
        chosen = self._placement if plan is self._plan else self._beside[id(plan)][1]
        self._replay = self._replaying.enter_context(self._arena.replay(chosen))

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
            if standing_bytes:
                arena = _arena(allocator, standing_bytes)
                self._standing = self._standing_scope.enter_context(arena)
            self._arena = self._scopes.enter_context(_arena(allocator, divide_bytes))
            self._placement = _placement(plan, divide_bytes)
            self._replay = self._replaying.enter_context(self._arena.replay(self._placement))
            self._placing = plan
        except ReplayError as error:
            self.close()
            self._stay_on_the_heap(str(error))
            return str(error)
        if self._moving is not None:
            self._moving.open(self._arena)
        self._divide_bytes, self._is_planned = divide_bytes, True
        self._offsets_bytes = plan.begun_bytes
        self.how = f"arena of {format_bytes(layout.arena_bytes)}, as planned"
        return ""

    def _leave_planned(self, stray_bytes: int) -> None:
        """Kernels here ask for other memory than those of the machine that planned: record them."""
        self._end_steps()
        self._replay = self._arena = None
        self._is_planned, self._offsets_bytes = False, {}
        self._steps = self._replayed_steps = 0
        self.obstacle = reason = (
            f"kernels here need {format_bytes(stray_bytes)} that were not planned for; plan here"
        )
        self.how = f"heap: {reason}"
        if self._is_required:
            self._refuse(reason)

    # --- at places found here ---

    def _record(self, allocator: native.NativeAllocator) -> None:
        if self._shares:  # an arena that is laid out here would lie beside what the other schedules ask for
            self._stay_on_the_heap(
                f"{self.obstacle}; that of micro-batches and of several shapes is not laid out again"
            )
            return
        try:
            self._recording = self._scopes.enter_context(allocator.recording())
        except ReplayError as error:
            self._stay_on_the_heap(str(error))

    def _place(self) -> None:
        """End the recording and open the arena."""
        assert self._recording is not None
        assert self._allocator is not None
        self._scopes.close()
        recorded, self._recording = self._recording.steps, None
        try:
            placement = native.place(recorded, time_limit_seconds=_PLACING_SECONDS)
            needed_bytes = whole_pages_bytes(placement.arena_bytes)
            if self._limit_bytes is not None and needed_bytes > self._limit_bytes:
                size, limit = format_bytes(needed_bytes), format_bytes(self._limit_bytes)
                raise ReplayError(
                    f"the arena would take {size}, the budget leaves {limit}; plan with more RAM"
                )
            self._arena = self._scopes.enter_context(_arena(self._allocator, placement.arena_bytes))
            self._placement = placement
            self._place_as(self._plan)
        except ReplayError as error:
            self._end_steps()
            self._arena = self._replay = None
            self._stay_on_the_heap(str(error))
            return
        self.how = f"arena of {format_bytes(self._arena.size_bytes)}, laid out here"

    def _stay_on_the_heap(self, reason: str) -> None:
        self._allocator = None
        self.obstacle = self.obstacle or reason
        self.how = f"heap: {reason}"
        if self._is_required:
            self._refuse(reason)
        elif self._announces and reason not in _announced:
            _announced.add(reason)
            _log.warning(
                "poet: training steps take their memory from the heap: %s. "
                'arena="require" (poet run --arena require) refuses instead of this.',
                reason,
            )

    def _refuse(self, reason: str) -> None:
        self.refusal = f'arena="require": steps cannot have their planned places: {reason}'


def _nothing() -> None:
    """What a weak reference to nothing gives."""


def _arena(allocator: native.NativeAllocator, size_bytes: int) -> native.ArenaMemory:
    """In huge pages where the system has them: weights are read once per step, at a table walk per page."""
    return allocator.arena(size_bytes, huge_pages=True)


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
        resident_offsets_bytes=(),
        arena_bytes=divide_bytes,
        lower_bound_bytes=layout.lower_bound_bytes,
    )
