"""Plans of least time at shares of a net's activation memory: placed, within bounds, with equal bits."""

from __future__ import annotations

from pathlib import Path

import pytest
from time_rows import ROUNDS, SHARES, measured, planned


@pytest.mark.slow
def test_plans_of_least_time_train_alike(tmp_path: Path) -> None:
    rows = planned("squeezenet", 3.0, tmp_path)  # one of 1 s had no bound, beside other tests
    assert [row.share for row in rows] == list(SHARES)
    for row in rows:
        assert row.always_bytes < row.least_bytes < row.budget_bytes < row.kept_bytes
        assert not row.is_from_heap, row
        assert row.slower is not None
        assert row.bound is not None
        assert 0.0 < row.bound <= row.slower
    steps = measured("squeezenet", tmp_path, seconds=0.0)
    assert [(step.share, step.rounds, step.is_equal) for step in steps] == [
        (share, ROUNDS, True) for share in SHARES
    ]


@pytest.mark.slow
def test_the_amount_that_plain_training_saves_is_counted_too(tmp_path: Path) -> None:
    """SqueezeNet's saves are bits in short form: in shares of their long forms, plans have more RAM."""
    short, long = (planned("squeezenet", 0.5, tmp_path, long_forms=form) for form in (False, True))
    for less, more in zip(short, long, strict=True):
        assert less.always_bytes == more.always_bytes
        assert less.budget_bytes < more.budget_bytes
    assert planned("mobilenet_v2", 0.5, tmp_path, long_forms=True) == []
    assert not list(tmp_path.glob("mobilenet_v2*"))
