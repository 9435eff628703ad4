"""Byte offsets for every buffer and workspace of a schedule in one arena.

A *block* is a number of bytes that must stay at one place during one or more spans of time: a tensor
from the step that allocates it to the one that frees it, a temporary while its kernel needs it, the
second copy of an output that is recomputed while its first is still there. A tensor that begins and ends
the step in RAM must end where it began, so both spans are one block. `poet.demand` makes the blocks.

Placing blocks with fixed spans is NP-hard (dynamic storage allocation); `lay_out` places them
greedily in several orders, into the tightest or into the lowest gap that holds, and then promotes, from
the best of these on, the blocks that stick out until nothing improves (the search of Sekiyama et al.,
"Profile-guided memory optimization for deep neural networks", 2018, with restarts). Which order is good
depends on the net: on one and the same, the arenas differ by up to 15 %. `check_layout` is the judge: it
knows only blocks and offsets.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
import numpy.typing as npt

from poet.errors import InvalidSchedule

Span = tuple[int, int]
"""First and last tick, both inclusive."""


@dataclass(frozen=True, slots=True)
class Block:
    """``size_bytes`` bytes needed during each of ``spans``.

    ``tensor`` is the tensor kept there, ``None`` for a workspace or a second copy; ``owner`` names
    the tensor or the op for reports. The offset is to be a multiple of ``alignment_bytes``.
    """

    owner: str
    tensor: str | None
    size_bytes: int
    spans: tuple[Span, ...]
    alignment_bytes: int = 1


@dataclass(frozen=True, slots=True)
class Layout:
    """Blocks with their offsets, in bytes from the arena's start.

    Attributes:
        blocks, offsets_bytes: in parallel.
        arena_bytes: what the arena must hold.
        lower_bound_bytes: the most bytes needed at any one step; no arena is smaller.
    """

    blocks: tuple[Block, ...]
    offsets_bytes: tuple[int, ...]
    arena_bytes: int
    lower_bound_bytes: int

    @property
    def efficiency(self) -> float:
        """Lower bound over arena size: 1.0 wastes nothing."""
        return self.lower_bound_bytes / self.arena_bytes if self.arena_bytes else 1.0


def lay_out(blocks: Sequence[Block], *, time_limit_seconds: float = 2.0, seed: int = 0) -> Layout:
    """Offsets for ``blocks``; the best arrangement found, optimal where its efficiency is 1.

    The search stops early when the arena meets its lower bound.
    """
    bound = _lower_bound_bytes(blocks)
    spans = _SpanTable(blocks)
    deadline = time.monotonic() + time_limit_seconds
    generator = random.Random(seed)  # noqa: S311 - a search, not a secret
    starts: list[tuple[int, list[int], list[int], Fit]] = []
    fits: tuple[Fit, ...] = (_tightest, _lowest)
    for order, fit in product(_first_orders(blocks), fits):
        offsets = _place(blocks, order, spans, fit)
        starts.append((_arena(blocks, offsets), offsets, order, fit))
        if starts[-1][0] == bound or time.monotonic() > deadline:
            break
    starts.sort(key=lambda start: start[0])
    best = starts[0][:2]
    for _, _, order, fit in starts:
        if best[0] == bound or time.monotonic() > deadline:
            break
        best = min(best, _promote(blocks, order, spans, bound, deadline, generator, fit))
    return Layout(tuple(blocks), tuple(best[1]), best[0], bound)


def check_layout(layout: Layout) -> None:
    """Judge a layout, every block against every other.

    Raises:
        InvalidSchedule: two blocks needed at the same tick overlap, one leaves the arena or is not aligned.
    """
    for block, offset in zip(layout.blocks, layout.offsets_bytes, strict=True):
        if offset < 0 or offset + block.size_bytes > layout.arena_bytes:
            raise _fault(block, "leaves the arena")
        if offset % block.alignment_bytes:
            raise _fault(block, f"is not at a multiple of {block.alignment_bytes} bytes")
    rows = [
        (index, *span, offset, offset + block.size_bytes)
        for index, (block, offset) in enumerate(zip(layout.blocks, layout.offsets_bytes, strict=True))
        for span in block.spans
    ]
    owner, first, last, start, end = np.array(rows, dtype=np.int64).reshape(-1, 5).T
    for mine, begins, ends, low, high in rows:
        in_time, in_space = (first <= ends) & (begins <= last), (start < high) & (low < end)
        clash = owner[in_time & in_space & (owner < mine)]
        if len(clash):
            raise _fault(layout.blocks[mine], f"overlaps {layout.blocks[clash[0]].owner}")


def _fault(block: Block, what: str) -> InvalidSchedule:
    return InvalidSchedule(f"{block.owner} {what}", rule="layout", step=block.spans[0][0])


def _lower_bound_bytes(blocks: Sequence[Block]) -> int:
    end = max((last for block in blocks for _, last in block.spans), default=-1)
    change = np.zeros(end + 2, dtype=np.int64)
    for block in blocks:
        for first, last in block.spans:
            change[first] += block.size_bytes
            change[last + 1] -= block.size_bytes
    return int(np.cumsum(change).max(initial=0))


class _SpanTable:
    """All spans flat, so that one block's conflicts are one vector operation."""

    def __init__(self, blocks: Sequence[Block]) -> None:
        flat = [(index, *span) for index, block in enumerate(blocks) for span in block.spans]
        table = np.array(flat, dtype=np.int64).reshape(-1, 3)
        self.owner, self.first, self.last = table[:, 0], table[:, 1], table[:, 2]

    def conflicts(self, block: Block) -> npt.NDArray[np.int64]:
        """Indices of the blocks needed at a step at which ``block`` is."""
        found = [self.owner[(self.first <= last) & (self.last >= first)] for first, last in block.spans]
        return np.unique(np.concatenate(found))


def _first_orders(blocks: Sequence[Block]) -> list[list[int]]:
    """By size, by length, by both, and by size with what spans the step's ends first."""
    size = [block.size_bytes for block in blocks]
    length = [sum(last - first + 1 for first, last in block.spans) for block in blocks]
    keys: list[Callable[[int], tuple[float, ...]]] = [
        lambda i: (-size[i], -length[i]),
        lambda i: (-size[i].bit_length(), -length[i]),
        lambda i: (len(blocks[i].spans) < 2, -size[i], -length[i]),
        lambda i: (-size[i] * length[i] ** 0.25,),
        lambda i: (-size[i] * length[i],),
        lambda i: (-length[i], -size[i]),
    ]
    return [sorted(range(len(blocks)), key=key) for key in keys]


Fit = Callable[[npt.NDArray[np.int64], npt.NDArray[np.int64]], int]
"""Chooses among the gaps that hold a block, given their numbers from the lowest on and all gaps' bytes."""


def _tightest(fitting: npt.NDArray[np.int64], gaps: npt.NDArray[np.int64]) -> int:
    return int(fitting[np.argmin(gaps[fitting])])


def _lowest(fitting: npt.NDArray[np.int64], gaps: npt.NDArray[np.int64]) -> int:
    del gaps
    return int(fitting[0])


def _place(blocks: Sequence[Block], order: Sequence[int], spans: _SpanTable, fit: Fit) -> list[int]:
    """Each block in turn into a gap between those placed before it, else on top."""
    unplaced = -1
    offsets = np.full(len(blocks), unplaced, dtype=np.int64)
    sizes = np.array([block.size_bytes for block in blocks], dtype=np.int64)
    for index in order:
        rivals = spans.conflicts(blocks[index])
        rivals = rivals[offsets[rivals] != unplaced]
        starts = offsets[rivals]
        by_start = np.argsort(starts, kind="stable")
        starts, ends = starts[by_start], (starts + sizes[rivals])[by_start]
        alignment = blocks[index].alignment_bytes
        gap_starts = -(-np.concatenate(([0], np.maximum.accumulate(ends))) // alignment) * alignment
        gaps = starts - gap_starts[:-1]
        fitting = np.flatnonzero(gaps >= sizes[index])
        choice = fit(fitting, gaps) if len(fitting) else len(starts)
        offsets[index] = gap_starts[choice]
    return [int(offset) for offset in offsets]


def _arena(blocks: Sequence[Block], offsets: Sequence[int]) -> int:
    return max((o + b.size_bytes for o, b in zip(offsets, blocks, strict=True)), default=0)


def _promote(
    blocks: Sequence[Block],
    order: Sequence[int],
    spans: _SpanTable,
    bound: int,
    deadline: float,
    generator: random.Random,
    fit: Fit,
) -> tuple[int, list[int]]:
    """Move a block that reaches the arena's top earlier in the order, while that does not hurt."""
    order = list(order)
    offsets = _place(blocks, order, spans, fit)
    arena = _arena(blocks, offsets)
    stale = 0
    while arena > bound and stale < 60 and time.monotonic() < deadline:
        top = [i for i in range(len(blocks)) if offsets[i] + blocks[i].size_bytes == arena]
        position = order.index(generator.choice(top))
        moved = list(order)
        moved.insert(generator.randint(0, position), moved.pop(position))
        tried = _place(blocks, moved, spans, fit)
        size = _arena(blocks, tried)
        stale = 0 if size < arena else stale + 1
        if size <= arena:
            order, offsets, arena = moved, tried, size
    return arena, offsets
