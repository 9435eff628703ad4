"""From a recorded step to an offset for each of its requests.

Blocks of 64 KiB and more are placed on whole pages, so that storage can be read into and written from
them directly; smaller ones at multiples of 64 bytes, as torch does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import accumulate, groupby, pairwise

from poet.errors import ReplayError
from poet.ir.kernel_facts import KernelAllocation, ticks
from poet.memory.layout import Block, Span, lay_out
from poet.runtime.native.library import BETWEEN_STEPS, Library, RecordedRequest

ON_HEAP = -1
"""The offset of a request that is left on the heap."""

_SMALL_ALIGNMENT_BYTES = 64
_PAGE_BYTES = 4096
_LARGE_BYTES = 16 * _PAGE_BYTES


@dataclass(frozen=True, slots=True)
class Allocation:
    """One request for memory, in ticks (allocations, deaths and marks) since its step began.

    Attributes:
        size_bytes, op: how much, and in which op.
        born_tick: of the request.
        died_tick, died_op: of the release; ticks beyond the step's where a later step released it, ``None``
            if it was alive when the recording ended.
        parallel: made in a parallel region, so that the order among its like is chance.
        address: of its first byte.
    """

    size_bytes: int
    op: int
    born_tick: int
    died_tick: int | None
    died_op: int | None
    parallel: bool = False
    address: int = 0


@dataclass(frozen=True, slots=True)
class RecordedStep:
    """All requests of one step, in order."""

    allocations: tuple[Allocation, ...]
    ticks: int

    def workspace_bytes(self) -> dict[int, int]:
        """Per op that allocates: the most it held at once, less what was still there after it."""
        return {
            op: _workspace_bytes(list(group), self.ticks)
            for op, group in groupby(self.allocations, key=lambda a: a.op)
        }


@dataclass(frozen=True, slots=True)
class Placement:
    """Offsets for the requests of a step, ready to replay.

    Attributes:
        sizes_bytes, offsets_bytes: in parallel, by op, in recorded order; `ON_HEAP` for what lives too long.
        op_bounds: requests ``op_bounds[k]`` to ``op_bounds[k + 1]`` are those of op ``k``.
        resident_offsets_bytes: of what stays for good, as asked for.
        arena_bytes: what the arena must hold.
        lower_bound_bytes: the most bytes alive at once, unrounded; no arena is smaller.
    """

    sizes_bytes: tuple[int, ...]
    offsets_bytes: tuple[int, ...]
    op_bounds: tuple[int, ...]
    resident_offsets_bytes: tuple[int, ...]
    arena_bytes: int
    lower_bound_bytes: int

    @property
    def efficiency(self) -> float:
        """Lower bound over arena size: 1.0 wastes nothing."""
        return self.lower_bound_bytes / self.arena_bytes if self.arena_bytes else 1.0


def place(
    steps: Sequence[RecordedStep], *, residents_bytes: Sequence[int] = (), time_limit_seconds: float = 2.0
) -> Placement:
    """Offsets for the next steps, if they allocate like the last two of ``steps``.

    Record three where blocks live from step to step: in the first, those of the step before it are still
    there unseen. ``residents_bytes`` are sizes of blocks that stay in the arena throughout.

    Raises:
        ReplayError: fewer than two steps were recorded, or the last two allocate differently.
    """
    if len(steps) < 2:
        raise ReplayError(
            f"{len(steps)} steps were recorded; record two, to see when the first one's blocks die"
        )
    step = steps[-2]
    _check_alike(step, steps[-1])
    allocations = sorted(step.allocations, key=lambda allocation: allocation.op)
    lifetimes = [_spans(allocation, step.ticks) for allocation in _widened(allocations)]
    always = ((0, max(step.ticks - 1, 0)),)
    sizes_bytes = [*(allocation.size_bytes for allocation in allocations), *residents_bytes]
    spans = [*lifetimes, *(always for _ in residents_bytes)]
    placed = [index for index, when in enumerate(spans) if when]
    layout = lay_out(
        [_block(index, sizes_bytes[index], spans[index]) for index in placed],
        time_limit_seconds=time_limit_seconds,
    )
    offsets_bytes = [ON_HEAP] * len(sizes_bytes)
    for index, offset in zip(placed, layout.offsets_bytes, strict=True):
        offsets_bytes[index] = offset
    count = len(allocations)
    per_op = Counter(allocation.op for allocation in allocations)
    return Placement(
        sizes_bytes=tuple(sizes_bytes[:count]),
        offsets_bytes=tuple(offsets_bytes[:count]),
        op_bounds=(0, *accumulate(per_op[op] for op in range(max(per_op, default=-1) + 1))),
        resident_offsets_bytes=tuple(offsets_bytes[count:]),
        arena_bytes=layout.arena_bytes,
        lower_bound_bytes=_peak_bytes([(sizes_bytes[index], spans[index]) for index in placed]),
    )


def place_run(allocations: Sequence[KernelAllocation]) -> Placement:
    """Offsets for one run of one op by itself, as op 0 of a step."""
    end = ticks(allocations)
    layout = lay_out(
        [
            _block(number, item.size_bytes, ((item.born, end if item.died is None else item.died),))
            for number, item in enumerate(allocations)
        ],
        time_limit_seconds=0.0,
    )
    return Placement(
        sizes_bytes=tuple(item.size_bytes for item in allocations),
        offsets_bytes=layout.offsets_bytes,
        op_bounds=(0, len(allocations)),
        resident_offsets_bytes=(),
        arena_bytes=layout.arena_bytes,
        lower_bound_bytes=layout.lower_bound_bytes,
    )


def _block(index: int, size_bytes: int, spans: tuple[Span, ...]) -> Block:
    """Large blocks have whole pages to themselves."""
    alignment_bytes = _PAGE_BYTES if size_bytes >= _LARGE_BYTES else _SMALL_ALIGNMENT_BYTES
    rounded_bytes = -(-size_bytes // alignment_bytes) * alignment_bytes
    return Block(f"request {index}", None, rounded_bytes, spans, alignment_bytes)


def _peak_bytes(blocks: Iterable[tuple[int, tuple[Span, ...]]]) -> int:
    changes = []
    for size_bytes, spans in blocks:
        for first, last in spans:
            changes += [(first, size_bytes), (last + 1, -size_bytes)]
    return max(accumulate(change for _, change in sorted(changes)), default=0)


def _check_alike(step: RecordedStep, following: RecordedStep) -> None:
    first, second = (
        Counter((a.op, a.size_bytes) for a in recorded.allocations) for recorded in (step, following)
    )
    if first != second:
        (op, size_bytes), _ = next(iter(((first - second) + (second - first)).items()))
        raise ReplayError(
            f"two recorded steps allocate differently: op {op} asked for {size_bytes} bytes "
            f"{first[op, size_bytes]} times, then {second[op, size_bytes]} times; "
            "record after a first step that sets everything up"
        )


def _spans(allocation: Allocation, ticks: int) -> tuple[Span, ...]:
    """When the block is there in any one of equal steps; none if it would meet its own successor."""
    born, died = allocation.born_tick, allocation.died_tick
    if died is not None and died < ticks:
        return ((born, died),)
    if died is not None and died - ticks < born:
        return ((0, died - ticks), (born, ticks - 1))
    return ()


def _widened(allocations: Sequence[Allocation]) -> list[Allocation]:
    """Requests of a parallel region each as if alive from its first birth to its last death."""
    result: list[Allocation] = []
    for (parallel, _), group in groupby(allocations, key=lambda a: (a.parallel, a.op)):
        members = list(group)
        if parallel:
            born = min(member.born_tick for member in members)
            deaths = [member.died_tick for member in members]
            died = None if None in deaths else max(death for death in deaths if death is not None)
            members = [replace(m, born_tick=born, died_tick=died) for m in members]
        result += members
    return result


def _workspace_bytes(allocations: Sequence[Allocation], ticks: int) -> int:
    """Of the requests of one run of an op."""
    transient = {
        a for a in allocations if a.died_op == a.op and a.died_tick is not None and a.died_tick < ticks
    }
    changes = [(a.born_tick, a.size_bytes) for a in allocations]
    changes += [(a.died_tick, -a.size_bytes) for a in transient if a.died_tick is not None]
    left_behind = sum(a.size_bytes for a in allocations if a not in transient)
    return max(accumulate(change for _, change in sorted(changes)), default=0) - left_behind


class Recording:
    """Requests with their births and deaths, step by step.

    Run each step in `step`, and call `NativeAllocator.mark` before each op where ops matter, each once per
    step. A step's blocks may die in the next one (gradients usually do), so record two.
    """

    def __init__(self, library: Library) -> None:
        self._library = library
        self._starts: list[tuple[int, int]] = []
        self._steps: tuple[RecordedStep, ...] = ()

    @contextmanager
    def step(self) -> Iterator[None]:
        """The block is one step and begins with op 0; requests outside of it are not noted."""
        self._starts.append(self._library.record_position())
        self._library.mark(0)
        try:
            yield
        finally:
            self._library.mark(BETWEEN_STEPS)

    @property
    def steps(self) -> tuple[RecordedStep, ...]:
        """The steps recorded; there when the recording has ended."""
        return self._steps

    def close(self) -> None:
        """End the recording, and with it the last step."""
        bounds = [*self._starts, self._library.record_position()]
        requests = self._library.record_end(bounds[-1][0])
        self._steps = tuple(
            RecordedStep(
                tuple(_allocation(request, tick) for request in requests[first:last]), next_tick - tick
            )
            for (first, tick), (last, next_tick) in pairwise(bounds)
        )


def _allocation(request: RecordedRequest, step_tick: int) -> Allocation:
    alive = request.died < 0
    return Allocation(
        size_bytes=request.bytes,
        op=request.op,
        born_tick=request.born - step_tick,
        died_tick=None if alive else request.died - step_tick,
        died_op=None if alive else request.died_op,
        parallel=bool(request.parallel),
        address=request.address,
    )
