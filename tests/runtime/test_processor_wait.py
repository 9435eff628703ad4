"""The clock of transfers: waits for storage count, waits for a processor do not."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from poet.runtime.system.processor_wait import UndisturbedClock


def test_what_a_thread_sleeps_counts_and_what_it_waits_for_a_processor_does_not(tmp_path: Path) -> None:
    told = tmp_path / "schedstat"
    told.write_text("7 1000 1\n")

    def disturbed() -> None:
        time.sleep(0.03)
        told.write_text("7 20001000 2\n")  # of these, 20 ms ready to run

    with UndisturbedClock(told) as clock:
        begin = time.perf_counter()
        seconds = clock.seconds(disturbed)
        wall_seconds = time.perf_counter() - begin
    assert 0.01 <= seconds <= wall_seconds - 0.02 + 1e-4


@pytest.mark.parametrize("content", [None, "", "0\n", "a b c\n"])
def test_a_system_that_does_not_tell_is_timed_by_the_wall_clock(content: str | None, tmp_path: Path) -> None:
    told = tmp_path / "schedstat"
    if content is not None:
        told.write_text(content)
    with UndisturbedClock(told) as clock:
        assert clock.seconds(lambda: time.sleep(0.005)) >= 0.005


def test_this_systems_own_record_never_makes_a_sleep_shorter() -> None:
    with UndisturbedClock() as clock:
        assert clock.seconds(lambda: time.sleep(0.005)) >= 0.0049
        assert clock.seconds(lambda: None) >= 0.0
