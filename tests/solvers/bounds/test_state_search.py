"""Label-setting over states: never above the optimum, equal to it where everything is followed."""

from __future__ import annotations

import dataclasses
from itertools import pairwise

import pytest
from helpers.clocks import counted
from helpers.oracle import least_joules
from helpers.random_problems import floor_bytes, keep_bytes, mixed_problem, random_limits, training_like

from poet.clock import WALL, WorkClock
from poet.problem import Limits, Problem
from poet.simulator import simulate
from poet.solvers import solve
from poet.solvers.bounds.state_search import StateBound, state_bounds
from poet.solvers.engines import Outcome
from poet.solvers.instance.instance import Instance, instance_of
from poet.solvers.instance.timeline import Timeline, timeline_of
from poet.solvers.literature.page_everything import page_everything
from poet.solvers.search import least_energy as search
from poet.solvers.search import model_runs
from poet.solvers.search.finders import STATES
from poet.tuning import DEFAULT


def bounds(
    problem: Problem, limits: Limits, *, below_joules: float = 1e9, most_states: int = 100_000
) -> list[StateBound]:
    tuning = DEFAULT.having("states.alike_factor", 1.0)  # each size is a level of its own
    instance = instance_of(problem, limits, tuning=tuning)
    found = state_bounds(instance, below_joules=below_joules, most_states=most_states, clock=WALL)
    return list(found)


def tight(problem: Problem, share: float) -> Limits:
    least = floor_bytes(problem)
    return Limits(ram_budget_bytes=least + round(share * (keep_bytes(problem) - least)))


def _ram_alone(limits: Limits) -> Limits:
    return Limits(limits.ram_budget_bytes, recompute=limits.recompute, paging=limits.paging)


@pytest.mark.parametrize("block", range(4))
def test_no_level_is_above_the_optimum_and_the_last_reaches_it(block: int) -> None:
    """Limits beside RAM are none of the search's: with them it is a bound, without them the optimum."""
    reached = compared = 0
    for seed in range(40 * block, 40 * block + 40):
        problem = dataclasses.replace(mixed_problem(seed, largest=5), background_storage=False)
        limits = random_limits(problem, seed, deadline=seed % 3 == 0)
        best = least_joules(problem, limits)
        levels = bounds(problem, limits)
        if best is None or not levels:
            continue
        overhead = simulate(problem, best, limits).joules - problem.compute_joules
        allowed = overhead + 1e-9 * problem.compute_joules
        joules = [level.overhead_joules for level in levels]
        assert max(joules) <= allowed, seed
        assert all(after >= before - 1e-9 * allowed for before, after in pairwise(joules)), seed
        if problem.storage_capacity_bytes is None and limits == _ram_alone(limits):
            compared += 1
            reached += joules[-1] >= overhead - 1e-9 * problem.compute_joules
    assert compared > 5
    assert reached == compared


def test_nothing_below_what_was_asked_for_is_a_proof() -> None:
    problem, limits, overhead = _remaking()
    exact = bounds(problem, limits, below_joules=1.01 * overhead)[-1]
    assert exact.overhead_joules == pytest.approx(overhead, rel=1e-9)
    assert exact.reruns
    below = bounds(problem, limits, below_joules=0.9 * overhead)[-1]
    assert below.overhead_joules == pytest.approx(0.9 * overhead)
    assert not below.reruns


def test_an_interrupted_search_tells_of_its_open_labels_and_all_states_are_counted() -> None:
    problem = training_like(3, seed=1)
    instance, clock = instance_of(problem, tight(problem, 0.2)), WorkClock()
    found = list(state_bounds(instance, below_joules=1e9, most_states=3, clock=clock))
    assert [bound.ended for bound in found] == [False]
    assert not found[0].reruns
    assert clock.now() == pytest.approx(4 * DEFAULT.states.state_seconds)
    assert not list(
        state_bounds(instance, below_joules=1e9, most_states=9, clock=clock, finished=lambda: True)
    )


def test_no_interrupted_search_is_above_the_optimum() -> None:
    above_zero = 0
    for seed in range(300, 340):
        problem = dataclasses.replace(mixed_problem(seed, largest=5), background_storage=False)
        limits = _ram_alone(random_limits(problem, seed))
        best = least_joules(problem, limits)
        if best is None:
            continue
        overhead = simulate(problem, best, limits).joules - problem.compute_joules
        for most_states in (1, 2, 5, 12, 30, 80):
            levels = bounds(problem, limits, most_states=most_states)
            last = levels[-1].overhead_joules if levels else 0.0
            assert last <= overhead + 1e-9 * problem.compute_joules, (seed, most_states)
            above_zero += bool(levels) and not levels[-1].ended and last > 0.0
    assert above_zero > 10


def test_what_it_does_not_know_it_leaves_alone() -> None:
    problem = training_like(2, seed=3)
    background = dataclasses.replace(problem, background_storage=True)
    assert not bounds(background, tight(problem, 0.2))
    assert not bounds(problem, Limits())


def test_the_search_takes_its_bound_and_offers_its_reruns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where engines find nothing, the bound is the optimum, by arithmetic alone."""
    problem, limits, overhead = _remaking()
    offered = list[dict[int, set[int]]]()

    def silent(*arguments: object, **options: object) -> Outcome:
        return Outcome(None, 0.0, False, False, False)

    def noted(instance: Instance, reruns: dict[int, tuple[int, ...]]) -> Timeline:
        offered.append({stage: set(tasks) for stage, tasks in reruns.items()})
        return timeline_of(instance, reruns)

    monkeypatch.setattr(model_runs, "run_engine", silent)
    monkeypatch.setattr(search, "search_large", lambda *arguments, **options: True)
    monkeypatch.setattr(search, "greedy", lambda *arguments, **options: None)
    for module in (search, model_runs):
        monkeypatch.setattr(module, "timeline_of", noted)
    start = page_everything(problem, limits)
    assert start is not None
    tuning = DEFAULT.having("search.small_ops", 1).having("copies.most_arcs", 0)
    tuning = tuning.having("copies_search.patience_tries", 0).having("bound_rounds.first_time_share", 0.0)
    solution = solve(problem, limits, counted(1.0, engine="highs", tuning=tuning, start=start))
    assert any(bound.by == STATES for bound in solution.record.bounds)
    assert solution.bound_joules == pytest.approx(problem.compute_joules + overhead, rel=1e-9)
    path = bounds(problem, limits)[-1].reruns
    assert any(
        all(set(tasks) <= reruns.get(stage, set()) for stage, tasks in path.items()) for reruns in offered
    )


def _remaking() -> tuple[Problem, Limits, float]:
    """A problem whose best plan runs an op again, and its overhead in joules."""
    for seed in range(100):
        problem = dataclasses.replace(mixed_problem(seed, largest=6), background_storage=False)
        limits = _ram_alone(random_limits(problem, seed))
        best = least_joules(problem, limits) if page_everything(problem, limits) else None
        if best is not None and bounds(problem, limits):
            trace = simulate(problem, best, limits)
            if trace.recomputed_runs:
                return problem, limits, trace.joules - problem.compute_joules
    raise AssertionError("no random problem runs an op again")
