"""In how many blocks strips run: what their common allowance of time pays for."""

from __future__ import annotations

import pytest

from poet.passes.block_choice import chosen_blocks
from poet.runtime.trials.blocks import Offer

MIB = 1 << 20


def offer(saved_mib: float, block_seconds: float, blocks: int = 16) -> Offer:
    return Offer(blocks, int(saved_mib * MIB), block_seconds)


def test_what_costs_nothing_is_taken_whole() -> None:
    assert chosen_blocks([offer(1, 0.0), offer(1, 0.0, 4)], 0.0) == (16, 4)


def test_without_time_to_spare_the_rest_stays_whole() -> None:
    assert chosen_blocks([offer(9, 1e-3), offer(1, 0.0)], 0.9e-3) == (1, 16)


def test_a_second_goes_where_it_saves_most() -> None:
    large, small = offer(9, 1e-3), offer(1, 1e-3)
    assert chosen_blocks([small, large], 1e-3) == (1, 2)
    assert chosen_blocks([small, large], 3e-3) == (1, 4)
    assert chosen_blocks([small, large], 4e-3) == (2, 4)  # 4 more blocks cannot be paid, one more can


def test_equal_ones_are_raised_in_their_order() -> None:
    assert chosen_blocks([offer(9, 1e-3)] * 3, 2e-3) == (2, 2, 1)


def test_what_is_barred_is_passed_over() -> None:
    large = offer(9, 1e-3)
    assert chosen_blocks([large], 20e-3, {(0, 2), (0, 16)}) == (8,)
    assert chosen_blocks([large], 20e-3, {(0, 2), (0, 4), (0, 8), (0, 16)}) == (1,)


@pytest.mark.parametrize("allowance_seconds", [0.0, 1e-3, 7e-3, 1.0])
def test_the_allowance_is_kept(allowance_seconds: float) -> None:
    offers = [offer(size, seconds * 1e-4, 8) for size in (1, 3, 9) for seconds in (1, 4, 9)]
    counts = chosen_blocks(offers, allowance_seconds)
    assert sum(given.takes(count) for given, count in zip(offers, counts, strict=True)) <= allowance_seconds
    assert all(1 <= count <= 8 for count in counts)
