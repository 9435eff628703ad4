"""The least bytes that are held back for an arena: found by jumps and halving."""

from __future__ import annotations

import pytest

from poet.planning.least_held import LeastHeld


@pytest.mark.parametrize("needed_bytes", [1, 70, 100, 130, 999])
def test_what_is_enough_is_reached_and_narrowed(needed_bytes: int) -> None:
    held, tried = LeastHeld(0, 100), list[int]()
    while not held.is_close(4):
        tried.append(held.next_bytes)
        held.tell(tried[-1], max(0, needed_bytes - tried[-1]))
        assert len(tried) < 20
    assert tried[0] == 100
    assert held.high_bytes is not None
    assert held.low_bytes < needed_bytes <= held.high_bytes <= held.low_bytes + 4


def test_nothing_is_close_before_anything_fitted() -> None:
    held = LeastHeld(0, 10)
    assert not held.is_close(10**9)
    held.tell(10, 3)
    assert (held.next_bytes, held.high_bytes) == (13, None)
