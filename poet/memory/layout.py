"""Byte offsets for every buffer and workspace of a schedule in one arena.

A *block* is a number of bytes that must stay at one place during one or more spans of time: a tensor
from the step that allocates it to the one that frees it, a temporary while its kernel needs it, the
second copy of an output that is recomputed while its first is still there. A tensor that begins and ends
the step in RAM must end where it began, so both spans are one block. `poet.memory.demand` makes the blocks.

Placing blocks with fixed spans is NP-hard (dynamic storage allocation); `lay_out` places them
greedily in several orders, into the tightest or into the lowest gap that holds, and then promotes, from
the best of these on, the blocks that stick out until nothing improves (the search of Sekiyama et al.,
"Profile-guided memory optimization for deep neural networks", 2018, with restarts). Which order is good
depends on the net: on one and the same, the arenas differ by up to 15 %. `check_layout` validates: it
knows only blocks and offsets.
"""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from poet.errors import InvalidSchedule
from poet.util.brief import brief

Numbers = npt.NDArray[np.int64]


def lowest_first(
    sizes_bytes: Numbers,
    alignments_bytes: Numbers,
    conflicts: Sequence[Numbers],
    keys: npt.NDArray[np.float64],
    *,
    slack_bytes: int = 0,
) -> Numbers:
    """Offsets of blocks, in bytes.

    Args:
        sizes_bytes: of the blocks.
        alignments_bytes: of which their offsets are to be multiples.
        conflicts: per block, those that are needed at a time at which it is.
        keys: of blocks that could lie equally low, the one of the least comes first.
        slack_bytes: by which a block may lie higher and counts as equally low.
    """
    count = len(sizes_bytes)
    rank = np.empty(count, dtype=np.int64)
    rank[np.argsort(keys, kind="stable")] = np.arange(count)
    heights = np.zeros(count, dtype=np.int64)
    offsets = np.full(count, -1, dtype=np.int64)
    placed = np.iinfo(np.int64).max
    open_heights = heights.copy()  # those of blocks without a place
    for _ in range(count):
        lowest = np.flatnonzero(open_heights <= open_heights.min() + slack_bytes)
        block = lowest[rank[lowest].argmin()]
        offsets[block] = heights[block]
        top = heights[block] + sizes_bytes[block]
        open_heights[block] = placed
        others = conflicts[block]
        others = others[offsets[others] < 0]
        alignments = alignments_bytes[others]
        raised = np.maximum(heights[others], -(-top // alignments) * alignments)
        heights[others] = open_heights[others] = raised
    return offsets


Span = tuple[int, int]
"""First and last tick, both inclusive."""
Fit = Callable[[Sequence[Span], int, int], int]
"""Chooses an offset, given the (start, end) of what is in the way, in order, a size and an alignment."""

_LARGE_SHARES = (0.01, 0.002, 0.0)  # of the bytes to fill: what counts as large, level by level
_RESTARTS, _REPEATS, _STALE = 4, 5, 200
_ORDERS_FACTOR = 3.0  # times what quick arrangements took, that a search for orders needs at least
_SLACK_SHARES = (0.0, 0.01)  # of the bytes to fill, by which a block may lie higher and yet be next
_UNPLACED = -1


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
class _Found:
    """An order of some blocks, placed; the offsets of all others are `_UNPLACED`."""

    size_bytes: int
    order: list[int]
    fit: Fit
    offsets: list[int]


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

    __repr__ = brief

    @property
    def efficiency(self) -> float:
        """Lower bound over arena size: 1.0 wastes nothing."""
        return self.lower_bound_bytes / self.arena_bytes if self.arena_bytes else 1.0


def lay_out(
    blocks: Sequence[Block], *, enough_bytes: int = 0, time_limit_seconds: float = 2.0, seed: int = 0
) -> Layout:
    """Offsets for ``blocks``; the best arrangement found, optimal where its efficiency is 1.

    Args:
        blocks: what to place.
        enough_bytes: an arena of no more than this ends the search, as one that meets the lower bound does.
        time_limit_seconds: of the search, as time of this thread.
        seed: of its choices.
    """
    least = lower_bound_bytes(blocks)
    end = max((last for block in blocks for _, last in block.spans), default=0)
    always = [i for i, block in enumerate(blocks) if block.spans == ((0, end),)]
    others = sorted(set(range(len(blocks))) - set(always))
    always_bytes = sum(blocks[i].size_bytes for i in always)
    search = _Search([blocks[i] for i in others], max(least, enough_bytes) - always_bytes)
    found = search.run(time.thread_time() + time_limit_seconds, random.Random(seed))  # noqa: S311 - no secret
    offsets = dict(zip(others, found, strict=True))
    top = max((offsets[i] + blocks[i].size_bytes for i in others), default=0)
    for index in sorted(
        always, key=lambda i: -blocks[i].alignment_bytes
    ):  # nothing is lost by stacking these
        offsets[index] = _aligned(top, blocks[index].alignment_bytes)
        top = offsets[index] + blocks[index].size_bytes
    placed = tuple(offsets[i] for i in range(len(blocks)))
    return Layout(tuple(blocks), placed, top, least)


def lay_out_around(
    blocks: Sequence[Block], fixed_bytes: Mapping[int, int], *, below_bytes: int
) -> tuple[int, ...] | None:
    """Offsets for ``blocks`` of which some have their places already; ``None`` where none were found.

    Args:
        blocks: what to place.
        fixed_bytes: offset of each block, by its number, that has one.
        below_bytes: where all others must end.
    """
    search = _Search(blocks, below_bytes, fixed_bytes)
    free = [index for index in range(len(blocks)) if index not in fixed_bytes]
    for key, fit in itertools.product(search.keys(), (_tightest, _lowest)):
        found = search.placed(sorted(free, key=key), fit)
        if found.size_bytes <= below_bytes:
            return tuple(found.offsets)
    return None


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


def lower_bound_bytes(blocks: Sequence[Block]) -> int:
    """The most bytes needed at any one tick."""
    end = max((last for block in blocks for _, last in block.spans), default=-1)
    change = np.zeros(end + 2, dtype=np.int64)
    for block in blocks:
        for first, last in block.spans:
            change[first] += block.size_bytes
            change[last + 1] -= block.size_bytes
    return int(np.cumsum(change).max(initial=0))


class _Search:
    """Orders of blocks, each placed into gaps between those before it; the best so far.

    Large blocks decide: their order is searched first, alone, then smaller ones join behind.
    """

    def __init__(
        self, blocks: Sequence[Block], goal_bytes: int, fixed_bytes: Mapping[int, int] | None = None
    ) -> None:
        self.goal_bytes = goal_bytes
        self.fixed_bytes = fixed_bytes or {}
        self.sizes = [block.size_bytes for block in blocks]
        self.alignments = [block.alignment_bytes for block in blocks]
        self.lengths = [sum(last - first + 1 for first, last in block.spans) for block in blocks]
        self.births = np.array([block.spans[0][0] for block in blocks], dtype=np.float64)
        self.pieces = [len(block.spans) for block in blocks]
        self.rivals = _conflicts(blocks)
        self.conflicts = [numbers.tolist() for numbers in self.rivals]

    def run(self, deadline: float, generator: random.Random) -> list[int]:
        """The offsets of the best arrangement found."""
        if not self.sizes:
            return []
        began = time.thread_time()
        size_bytes, lowest = self.lowest_first(deadline)
        needed_seconds = _ORDERS_FACTOR * (time.thread_time() - began)
        if size_bytes <= self.goal_bytes or time.thread_time() + needed_seconds > deadline:
            return lowest
        best = self.ordered(deadline, generator)
        return best.offsets if best.size_bytes <= size_bytes else lowest

    def lowest_first(self, deadline: float) -> tuple[int, list[int]]:
        """The size and offsets of the best of a few quick arrangements; past the deadline of the first."""
        sizes, alignments = np.array(self.sizes, dtype=np.int64), np.array(self.alignments, dtype=np.int64)
        lengths = np.array(self.lengths, dtype=np.float64)
        best: tuple[int, list[int]] | None = None
        for key, share in itertools.product((-lengths, -lengths * sizes, self.births), _SLACK_SHARES):
            if best is not None and (best[0] <= self.goal_bytes or time.thread_time() > deadline):
                break
            slack_bytes = int(share * self.goal_bytes)
            offsets = lowest_first(sizes, alignments, self.rivals, key, slack_bytes=slack_bytes)
            size_bytes = int((offsets + sizes).max())
            if best is None or size_bytes < best[0]:
                best = size_bytes, offsets.tolist()
        assert best is not None
        return best

    def ordered(self, deadline: float, generator: random.Random) -> _Found:
        """The best order found."""
        kept: list[int] = []
        fit: Fit = _tightest
        for share in _LARGE_SHARES:
            chosen = [i for i, size in enumerate(self.sizes) if size >= share * self.goal_bytes]
            if len(chosen) == len(kept):
                continue
            starts = self.starts(chosen, kept, fit, deadline)
            best = starts[0]
            until = (
                deadline
                if share == 0
                else min(deadline, time.thread_time() + (deadline - time.thread_time()) / 2)
            )
            for start in starts[:_RESTARTS] * _REPEATS:
                if best.size_bytes <= self.goal_bytes or time.thread_time() > until:
                    break
                best = min(best, self.promoted(start, until, generator), key=lambda found: found.size_bytes)
            kept, fit = best.order, best.fit
        return best

    def keys(self) -> tuple[Callable[[int], tuple[float, ...]], ...]:
        """By which blocks are sorted, to begin with."""
        size, length = self.sizes, self.lengths
        return (
            lambda i: (-size[i], -length[i]),
            lambda i: (-size[i].bit_length(), -length[i]),
            lambda i: (self.pieces[i] < 2, -size[i], -length[i]),
            lambda i: (-size[i] * length[i] ** 0.25,),
            lambda i: (-size[i] * length[i],),
            lambda i: (-length[i], -size[i]),
        )

    def starts(self, chosen: list[int], kept: list[int], fit: Fit, deadline: float) -> list[_Found]:
        """Orders to begin with, best first: those that sort all, and what was kept with the rest behind.

        Past the deadline there is one.
        """
        keys = self.keys()
        added = set(chosen) - set(kept)
        found = [self.placed([*kept, *sorted(added, key=key)], fit) for key in keys[: 2 if kept else 0]]
        for key, other in itertools.product(keys, (_tightest, _lowest)):
            if min((f.size_bytes for f in found), default=self.goal_bytes + 1) <= self.goal_bytes:
                break
            if found and time.thread_time() > deadline:
                break
            found.append(self.placed(sorted(chosen, key=key), other))
        return sorted(found, key=lambda item: item.size_bytes)

    def promoted(self, start: _Found, deadline: float, generator: random.Random) -> _Found:
        """Move a block that reaches the top earlier in the order, while that does not hurt."""
        best, stale = start, 0
        while best.size_bytes > self.goal_bytes and stale < _STALE and time.thread_time() < deadline:
            top = [i for i in best.order if best.offsets[i] + self.sizes[i] == best.size_bytes]
            position = best.order.index(generator.choice(top))
            order = list(best.order)
            order.insert(generator.randint(0, position), order.pop(position))
            tried = self.placed(order, best.fit)
            stale = 0 if tried.size_bytes < best.size_bytes else stale + 1
            best = tried if tried.size_bytes <= best.size_bytes else best
        return best

    def placed(self, order: list[int], fit: Fit) -> _Found:
        """Each block of ``order`` into a gap between those before it, else on top."""
        sizes, offsets = self.sizes, [_UNPLACED] * len(self.sizes)
        for index, offset in self.fixed_bytes.items():
            offsets[index] = offset
        arena = 0
        for index in order:
            rivals = [(offsets[j], offsets[j] + sizes[j]) for j in self.conflicts[index] if offsets[j] >= 0]
            offsets[index] = fit(sorted(rivals), sizes[index], self.alignments[index])
            arena = max(arena, offsets[index] + sizes[index])
        return _Found(arena, order, fit, offsets)


def _conflicts(blocks: Sequence[Block]) -> list[Numbers]:
    """Per block, those needed at a tick at which it is, in order."""
    rows = [(index, *span) for index, block in enumerate(blocks) for span in block.spans]
    owner, first, last = np.array(rows, dtype=np.int64).reshape(-1, 3).T.copy()
    is_single = len(rows) == len(blocks)
    found = []
    for index, block in enumerate(blocks):
        meets = np.zeros(len(rows), dtype=bool)
        for begins, ends in block.spans:
            meets |= (first <= ends) & (last >= begins)
        others = owner[meets] if is_single else np.unique(owner[meets])
        found.append(others[others != index])
    return found


def _tightest(rivals: Sequence[Span], size: int, alignment: int) -> int:
    """The start of the smallest gap between ``rivals`` that holds ``size``, else their end."""
    least, choice, position = None, None, 0
    for start, end in rivals:
        gap = start - position
        if gap >= size and (least is None or gap < least):
            least, choice = gap, position
        if end > position:
            position = _aligned(end, alignment)
    return position if choice is None else choice


def _lowest(rivals: Sequence[Span], size: int, alignment: int) -> int:
    """The start of the first gap between ``rivals`` that holds ``size``, else their end."""
    position = 0
    for start, end in rivals:
        if start - position >= size:
            return position
        if end > position:
            position = _aligned(end, alignment)
    return position


def _aligned(offset: int, alignment: int) -> int:
    return -(-offset // alignment) * alignment
