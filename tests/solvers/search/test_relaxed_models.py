"""Relaxed event models for bounds: which engine is asked, and which one after it."""

from __future__ import annotations

import pytest
from helpers.random_problems import training_like

from poet.clock import WorkClock
from poet.problem import Limits
from poet.solution import SolveOptions
from poet.solvers import minimum_ram_bytes
from poet.solvers.engines import Outcome, available_engines
from poet.solvers.event_model.model import build
from poet.solvers.instance.timeline import timeline_of
from poet.solvers.search.finders import COPIES
from poet.solvers.search.model_runs import ModelRuns
from poet.solvers.search.standing import Standing

STEP = training_like(8, seed=3)


@pytest.mark.skipif("cpsat" not in available_engines(), reason="there is one engine alone")
@pytest.mark.parametrize(("share", "engines"), [(0.5, [None]), (0.9, [None, "cpsat"])])
def test_a_second_engine_is_asked_unless_the_first_has_shown_far_less_than_is_known(
    monkeypatch: pytest.MonkeyPatch, share: float, engines: list[str | None]
) -> None:
    limits = Limits(ram_budget_bytes=minimum_ram_bytes(STEP, Limits()).bytes)
    standing = Standing(STEP, limits, SolveOptions(100.0, clock=WorkClock()), "highs", None)
    known_joules = 0.1 * standing.baseline_joules
    standing.take_bound(known_joules, COPIES)
    runs, asked = ModelRuns(standing, "highs"), list[str | None]()

    def run(*_: object, engine: str | None = None, **__: object) -> Outcome:
        asked.append(engine)
        return Outcome((0.0,), share * known_joules, False, False, False)

    monkeypatch.setattr(runs, "run", run)
    runs.relax(build(timeline_of(standing.instance, {}), relaxed=True))
    assert asked == engines
