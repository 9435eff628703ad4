"""Fixed places by constraint programming: judged, proven where there are none, silent without OR-tools."""

from __future__ import annotations

import csv
import itertools
import random
from pathlib import Path

import pytest

from poet.memory.layout import Block, check_layout, lay_out, lower_bound_bytes
from poet.planning import exact_layout as module
from poet.planning.exact_layout import exact_layout
from poet.solvers.engines import has_cpsat
from poet.util.clock import WorkClock

needs_cpsat = pytest.mark.skipif(not has_cpsat(), reason="needs OR-tools")
INSTANCES = sorted((Path(__file__).parents[1] / "instances" / "layouts").glob("minimalloc.*.csv"))
ROOM_BYTES = 1048576


def _least_arena(blocks: list[Block]) -> int:
    """By trying every order of placing each block as low as it goes: one of them is best."""
    best = sum(block.size_bytes for block in blocks)
    for order in itertools.permutations(blocks):
        placed: list[tuple[int, Block]] = []
        for block in order:
            start = 0
            for low, other in sorted(placed, key=lambda pair: pair[0]):
                meet = any(a <= d and c <= b for a, b in block.spans for c, d in other.spans)
                if meet and low < start + block.size_bytes and start < low + other.size_bytes:
                    start = low + other.size_bytes
            placed.append((start, block))
        best = min(best, max(start + block.size_bytes for start, block in placed))
    return best


@needs_cpsat
@pytest.mark.parametrize("seed", range(3))
def test_it_agrees_with_trying_every_order(seed: int) -> None:
    generator = random.Random(seed)
    blocks = []
    for index in range(6):
        first = generator.randrange(4)  # some have the same times
        spans = [(first, first + generator.randrange(3))]
        if index == 0:
            spans.append((20, 22))
        blocks.append(Block(str(index), None, 8 * generator.randint(1, 9), tuple(spans), 8))
    least = _least_arena(blocks)
    found = exact_layout(blocks, least, clock=WorkClock())
    assert found.layout is not None
    check_layout(found.layout)
    assert found.layout.arena_bytes <= least
    below = exact_layout(blocks, least - 8, clock=WorkClock())
    assert below.is_impossible
    assert below.layout is None


@needs_cpsat
def test_what_is_always_there_is_stacked_on_top() -> None:
    blocks = [Block("s", "s", 128, ((0, 9),), 64), Block("a", "a", 64, ((2, 5),), 64)]
    found = exact_layout(blocks, 192, clock=WorkClock())
    assert found.layout is not None
    assert found.layout.offsets_bytes == (64, 0)


def _challenge(path: Path) -> list[Block]:
    with path.open(newline="") as file:
        rows = [tuple(map(int, row.values())) for row in csv.DictReader(file)]
    return [Block(str(name), None, size, ((begin, end - 1),)) for name, begin, end, size in rows]


def test_all_challenging_instances_are_here_and_may_fit() -> None:
    assert len(INSTANCES) == 11
    assert all(lower_bound_bytes(_challenge(path)) <= ROOM_BYTES for path in INSTANCES)


@needs_cpsat
@pytest.mark.slow
@pytest.mark.parametrize("path", INSTANCES, ids=lambda path: path.name)
def test_a_challenging_instance_of_minimalloc_fits(path: Path) -> None:
    blocks = _challenge(path)
    assert lay_out(blocks, time_limit_seconds=0.2).arena_bytes > ROOM_BYTES
    found = exact_layout(blocks, ROOM_BYTES, time_limit_seconds=40.0, clock=WorkClock())
    assert found.layout is not None
    check_layout(found.layout)
    assert found.layout.arena_bytes <= ROOM_BYTES


def test_without_or_tools_nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "has_cpsat", lambda: False)
    found = exact_layout([Block("a", "a", 64, ((2, 5),), 64)], 64)
    assert found.layout is None
    assert not found.is_impossible
    assert exact_layout([Block("a", "a", 64, ((2, 5),), 64)], 63).is_impossible
