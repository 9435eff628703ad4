"""From a recorded step to an offset for each of its requests.

Blocks of 64 KiB and more are placed on whole pages, so that storage can be read into and written from
them directly; smaller ones at multiples of 64 bytes, as torch does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, groupby

from poet.errors import ReplayError
from poet.ir.kernel_facts import KernelAllocation, ticks
from poet.memory.layout import Block, Span, lay_out

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
        died_tick: of the release; beyond the step's where a later step released it, ``None`` if it was alive
            when the recording ended.
        parallel: made in a parallel region, so that the order among its like is chance.
        address: of its first byte.
    """

    size_bytes: int
    op: int
    born_tick: int
    died_tick: int | None
    parallel: bool = False
    address: int = 0


@dataclass(frozen=True, slots=True)
class RecordedStep:
    """All requests of one step, in order."""

    allocations: tuple[Allocation, ...]
    ticks: int


@dataclass(frozen=True, slots=True)
class Placement:
    """Offsets for the requests of a step, ready to replay.

    Attributes:
        sizes_bytes, offsets_bytes: in parallel, by op, in recorded order; `ON_HEAP` for what lives too long.
        op_bounds: requests ``op_bounds[k]`` to ``op_bounds[k + 1]`` are those of op ``k``.
        arena_bytes: what the arena must hold.
    """

    sizes_bytes: tuple[int, ...]
    offsets_bytes: tuple[int, ...]
    op_bounds: tuple[int, ...]
    arena_bytes: int


def place(steps: Sequence[RecordedStep], *, time_limit_seconds: float = 2.0) -> Placement:
    """Offsets for the next steps, if they allocate like the last two of ``steps``.

    Record three where blocks live from step to step: in the first, those of the step before it are still
    there unseen.

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
    spans = [_spans(allocation, step.ticks) for allocation in _widened(allocations)]
    placed = [index for index, when in enumerate(spans) if when]
    layout = lay_out(
        [_block(index, allocations[index].size_bytes, spans[index]) for index in placed],
        time_limit_seconds=time_limit_seconds,
    )
    offsets_bytes = [ON_HEAP] * len(allocations)
    for index, offset in zip(placed, layout.offsets_bytes, strict=True):
        offsets_bytes[index] = offset
    per_op = Counter(allocation.op for allocation in allocations)
    return Placement(
        sizes_bytes=tuple(allocation.size_bytes for allocation in allocations),
        offsets_bytes=tuple(offsets_bytes),
        op_bounds=(0, *accumulate(per_op[op] for op in range(max(per_op, default=-1) + 1))),
        arena_bytes=layout.arena_bytes,
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
        arena_bytes=layout.arena_bytes,
    )


def _block(index: int, size_bytes: int, spans: tuple[Span, ...]) -> Block:
    """Large blocks have whole pages to themselves."""
    alignment_bytes = _PAGE_BYTES if size_bytes >= _LARGE_BYTES else _SMALL_ALIGNMENT_BYTES
    rounded_bytes = -(-size_bytes // alignment_bytes) * alignment_bytes
    return Block(f"request {index}", None, rounded_bytes, spans, alignment_bytes)


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
