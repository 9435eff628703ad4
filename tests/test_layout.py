"""Layouts: judged pair by pair, never below the bytes that are live, tight where that is known."""

from __future__ import annotations

import random

import pytest

from poet.errors import InvalidSchedule
from poet.layout import Block, Layout, blocks_of, check_layout, lay_out
from poet.problem import Place, Problem, ProblemOp, Tensor, Transfer
from poet.schedule import Compute, Free, PageIn, PageOut
from poet.simulator import simulate


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


@pytest.mark.parametrize("seed", range(20))
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


def _paged_parameter() -> Problem:
    cost = Transfer(1e-3, 1e-3)
    return Problem(
        name="paged-parameter",
        tensors=(
            Tensor("p", 100, cost, cost, initially=Place.RAM, finally_=Place.RAM),
            Tensor("a", 300, cost, cost),
            Tensor("b", 200, cost, cost),
        ),
        ops=(
            ProblemOp("first", ("p",), ("a",), 1.0, 1.0, workspace_bytes=70),
            ProblemOp("second", ("a",), ("b",), 1.0, 1.0),
            ProblemOp("update", ("p", "b"), (), 1.0, 1.0, updates=("p",)),
        ),
        alignment_bytes=64,
    )


def test_a_parameter_that_leaves_and_returns_comes_back_to_its_place() -> None:
    problem = _paged_parameter()
    schedule = (
        Compute("first"), PageOut("p"), Free("p"), Compute("second"), Free("a"),
        PageIn("p"), Compute("update"), Free("b"),
    )  # fmt: skip
    trace = simulate(problem, schedule)
    blocks = blocks_of(problem, schedule)
    tied = [block for block in blocks if block.tensor == "p"]
    assert [block.spans for block in tied] == [((0, 2), (5, 7))]
    layout = lay_out(blocks)
    check_layout(layout)
    assert layout.lower_bound_bytes == trace.peak_ram_bytes


def test_a_second_copy_and_a_workspace_are_blocks_of_one_step() -> None:
    problem = _paged_parameter()
    schedule = (Compute("first"), Compute("first"), Compute("second"), Free("a"), Compute("update"))
    blocks = blocks_of(problem, schedule)
    transient = [(block.owner, block.size_bytes, block.spans) for block in blocks if block.tensor is None]
    assert transient == [
        ("first", 128, ((0, 0),)),
        ("first", 128, ((1, 1),)),
        ("a", 320, ((1, 1),)),
    ]
    assert lay_out(blocks).lower_bound_bytes == simulate(problem, schedule).peak_ram_bytes
