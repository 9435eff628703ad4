"""A program is given up when its gap has hardly closed for too long."""

from __future__ import annotations

import math

import pytest
from helpers.clocks import Ticking

from poet.solvers.search.patience import Patience


@pytest.mark.parametrize(
    ("open_joules", "news_at", "over_at"),
    [
        ([math.inf, 10.0, 9.5, 9.1, 8.9], None, 3.5),  # 9.1 is not below nine tenths of 10
        ([math.inf, 10.0, 8.9, 8.8, 7.9], None, None),
        ([math.inf, 10.0, 9.5, 9.1, 9.1], 2.5, None),
        ([math.inf, math.inf, math.inf, math.inf, math.inf], None, 2.5),
    ],
)
def test_what_is_news(open_joules: list[float], news_at: float | None, over_at: float | None) -> None:
    clock = Ticking()
    patience, found = Patience(clock, 2.0, closing_share=0.9), None
    for seconds, joules in zip((0.0, 1.0, 2.5, 3.5, 4.4), open_joules, strict=True):
        clock.seconds = seconds
        if found is None and patience.is_over(joules, has_news=seconds == news_at):
            found = seconds
    assert found == over_at
