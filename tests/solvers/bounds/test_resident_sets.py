"""The program over resident sets: no bound above the optimum, equal to it where everything is tracked."""

from __future__ import annotations

from types import ModuleType

import pytest
from helpers.pace import few_or_many, with_slow
from helpers.resident_sets_bounds import bounds, case, check

from poet.solvers.bounds import resident_sets
from poet.solvers.bounds.resident_sets import resident_sets_bounds
from poet.util.clock import WALL, WorkClock


@pytest.mark.parametrize("block", with_slow(range(4), {1, 3}))
def test_no_bound_is_above_the_optimum_and_the_last_reaches_it(block: int) -> None:
    """Limits beside RAM are none of the search's: with them it is a bound, without them the optimum."""
    assert check(range(30 * block, 30 * block + 30)) > 5


@few_or_many("seeds", range(12), range(1000, 1200))
def test_with_homes_that_the_plan_chooses_no_bound_is_above_the_optimum(seeds: range) -> None:
    assert check(seeds, homes=True) == 0


@pytest.mark.parametrize(
    ("module", "name", "value"),
    with_slow(
        [
            (resident_sets, "MOST_ARCS", 60),
            (resident_sets, "PATIENCE_SECONDS", 0.0),
            (resident_sets, "MOST_SETS", 3),
            (resident_sets, "COLUMNS", 1),
        ],
        {(resident_sets, "COLUMNS", 1)},
    ),
)
@pytest.mark.parametrize("homes", [False, True])
def test_with_less_work_no_bound_is_above_the_optimum(
    module: ModuleType, name: str, value: float, monkeypatch: pytest.MonkeyPatch, *, homes: bool
) -> None:
    """With fewer sets, spills or columns it may be lower; of programs left early the last reaches it."""
    below = check(range(200, 225), homes=homes) if name == "PATIENCE_SECONDS" else 0
    monkeypatch.setattr(module, name, value)
    assert check(range(200, 225), homes=homes, must_reach=bool(below)) >= below


@pytest.mark.slow
def test_no_bound_is_above_the_optimum_of_many() -> None:
    assert check(range(1000, 1400)) > 50


def test_what_is_not_below_is_a_proof_of_what_was_asked_for() -> None:
    instance, overhead = next((of, joules) for of, joules in map(case, range(100)) if joules)
    assert overhead is not None
    below = bounds(instance, 0.9 * overhead)[-1]
    assert below == pytest.approx(0.9 * overhead)


def test_too_many_sets_are_no_bound_and_work_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    instance, overhead = next((of, joules) for of, joules in map(case, range(100)) if joules)
    assert overhead is not None
    clock = WorkClock()
    assert list(resident_sets_bounds(instance, below_joules=overhead, clock=clock))
    assert clock.now() > 0.0
    monkeypatch.setattr(resident_sets, "MOST_ARCS", 1)
    assert not bounds(instance, overhead)


def test_it_stops_when_it_is_asked_to() -> None:
    instance, overhead = next((of, joules) for of, joules in map(case, range(100)) if joules)
    assert overhead is not None
    assert not list(resident_sets_bounds(instance, below_joules=overhead, clock=WALL, finished=lambda: True))
