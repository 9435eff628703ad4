"""What a process holds, as it counts it, and with its children, as benchmarks measure it."""

from __future__ import annotations

from pathlib import Path

import pytest

from poet.solvers.engines.process import BEGIN_BYTES, CHILD_BYTES, HELD_BYTES, most_child_bytes
from poet.util.children import counted_from_here, held_bytes, own_bytes

MIB = 1 << 20


def test_a_process_knows_what_it_holds(tmp_path: Path) -> None:
    before = held_bytes()
    kept = b"x" * (50 * MIB)
    assert 49 * MIB <= held_bytes() - before < 60 * MIB  # what else is held may shrink
    assert len(kept) == 50 * MIB
    assert held_bytes(tmp_path / "none") == 0


@pytest.mark.skipif(not held_bytes(), reason="the system does not tell what a process holds")
def test_what_was_there_before_a_search_is_none_of_its_own() -> None:
    before = b"x" * (50 * MIB)
    assert own_bytes(3 * MIB) == 3 * MIB  # no search runs: nothing came since
    with counted_from_here():
        assert _own_bytes() < 6 * MIB
        since = b"y" * (40 * MIB)
        with counted_from_here():  # a search of a search: the outer one's begin counts
            assert 40 * MIB <= _own_bytes() < 50 * MIB
        assert held_bytes() - _own_bytes() > 50 * MIB
        assert len(before) + len(since) == 90 * MIB
        del before, since
        assert _own_bytes() == 0  # less than when it began
    assert own_bytes(3 * MIB) == 3 * MIB


def test_where_the_system_does_not_tell_there_is_no_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("poet.util.children.held_bytes", lambda: 0)
    assert own_bytes(3 * MIB) is None
    with counted_from_here():
        assert own_bytes(3 * MIB) is None
    assert most_child_bytes(100) == 0


def _own_bytes() -> int:
    found = own_bytes(3 * MIB)
    assert found is not None
    return found


@pytest.mark.skipif(not held_bytes(), reason="the system does not tell what a process holds")
def test_a_child_of_a_large_app_may_hold_what_one_of_a_small_app_may() -> None:
    small_bytes = most_child_bytes(100)
    app = b"x" * (500 * MIB)
    assert most_child_bytes(100) == small_bytes == HELD_BYTES - BEGIN_BYTES
    with counted_from_here():
        assert most_child_bytes(100) == pytest.approx(small_bytes, abs=5 * MIB)
        search = b"y" * (500 * MIB)
        assert most_child_bytes(100) == CHILD_BYTES
    assert len(app) == len(search)
