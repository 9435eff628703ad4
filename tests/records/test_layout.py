"""Layouts: judged pair by pair, never below the bytes that are live, tight where that is known."""

from __future__ import annotations

import random

import pytest
from helpers.pace import with_slow

from poet.errors import InvalidSchedule
from poet.memory.layout import Block, Layout, Span, check_layout, lay_out


def _block(name: str, size: int, first: int, last: int) -> Block:
    return Block(name, name, size, ((first, last),))


def test_blocks_that_never_meet_share_bytes() -> None:
    layout = lay_out([_block("a", 64, 0, 3), _block("b", 64, 4, 6)])
    check_layout(layout)
    assert layout.offsets_bytes == (0, 0)
    assert layout.efficiency == 1.0


def test_an_overlap_is_rejected_and_named() -> None:
    blocks = (_block("a", 64, 0, 3), _block("b", 64, 3, 6))
    with pytest.raises(InvalidSchedule, match="b overlaps a"):
        check_layout(Layout(blocks, (0, 32), 128, 128))
    with pytest.raises(InvalidSchedule, match="b leaves the arena"):
        check_layout(Layout(blocks, (0, 96), 128, 128))


def test_blocks_of_different_alignment_share_an_arena() -> None:
    blocks = [Block("page", "page", 4096, ((0, 3),), 4096), Block("small", "small", 100, ((0, 9),), 64)]
    blocks += [Block(f"page {i}", None, 4096, ((i, 9),), 4096) for i in (4, 5)]
    layout = lay_out(blocks)
    check_layout(layout)
    assert layout.arena_bytes == 2 * 4096 + 100
    with pytest.raises(InvalidSchedule, match="page is not at a multiple of 4096 bytes"):
        check_layout(Layout(tuple(blocks[:1]), (64,), 8192, 4096))


@pytest.mark.parametrize("seed", with_slow(range(20), range(6, 20)))
def test_random_blocks_are_laid_out_tightly(seed: int) -> None:
    generator = random.Random(seed)
    blocks = []
    for index in range(60):
        first = generator.randrange(80)
        size = 64 * generator.randint(1, 40)
        blocks.append(_block(f"b{index}", size, first, first + generator.randrange(25)))
    layout = lay_out(blocks, time_limit_seconds=0.5, seed=seed)
    check_layout(layout)
    live = max(sum(b.size_bytes for b in blocks if b.spans[0][0] <= t <= b.spans[0][1]) for t in range(110))
    assert layout.lower_bound_bytes == live
    assert layout.efficiency > 0.9


def test_the_judge_bites_wherever_a_block_is_moved() -> None:
    """Against a judge of its own: every byte of every tick, one owner at most."""
    generator = random.Random(7)
    accepted = rejected = 0
    for _ in range(200):
        blocks = []
        for index in range(6):
            first = generator.randrange(6)
            spans: tuple[Span, ...] = ((first, first + generator.randrange(3)),)
            if generator.random() < 0.3:
                spans += ((10, 10 + generator.randrange(2)),)
            blocks.append(Block(f"b{index}", None, generator.randint(1, 4), spans))
        offsets = tuple(generator.randrange(12) for _ in blocks)
        layout = Layout(tuple(blocks), offsets, 14, 0)
        cells = [
            (byte, tick)
            for block, offset in zip(blocks, offsets, strict=True)
            for first, last in block.spans
            for tick in range(first, last + 1)
            for byte in range(offset, offset + block.size_bytes)
        ]
        fine = len(cells) == len(set(cells)) and all(byte < 14 for byte, _ in cells)
        try:
            check_layout(layout)
            accepted += 1
            assert fine
        except InvalidSchedule:
            rejected += 1
            assert not fine
    assert accepted > 10
    assert rejected > 100


def test_one_arrangement_is_made_whatever_the_time() -> None:
    blocks = [_block(f"b{i}", 10 + i, i, i + 7) for i in range(50)]
    layout = lay_out(blocks, time_limit_seconds=0.0)
    check_layout(layout)
    assert lay_out([]).arena_bytes == 0
