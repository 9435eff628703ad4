"""Plans of whole nets have an arena inside their budget, even where the search took all its time."""

from __future__ import annotations

import arenas
import pytest


@pytest.mark.slow
@pytest.mark.parametrize("net", ["squeezenet", "mobilenet_v2"])
def test_no_plan_runs_from_the_heap(net: str) -> None:
    """At 40 and 5 % of the way from the lower bound to keeping everything, as on the page of models."""
    prepared, budgets = arenas.prepared_for("models", net, 1)
    rows = list(arenas.measured(prepared, net, budgets, 5.0))
    assert len(rows) == 2
    for row in rows:
        assert not row.is_from_heap, row
        assert row.peak_bytes <= row.arena_bytes <= row.budget_bytes, row
