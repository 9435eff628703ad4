"""The event model: what it claims the simulator says, every family is needed, cuts cut no optimum off."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from helpers.oracle import least_joules
from helpers.random_problems import mixed_problem, random_limits, random_problem, with_homes

from poet.errors import InvalidSchedule
from poet.problem import Limits, Objective, Problem, ProblemOp, Tensor, Transfer
from poet.problem.simulator import simulate
from poet.solvers.engines import Effort, Outcome, run_engine
from poet.solvers.event_model.decisions import EventModel
from poet.solvers.event_model.families import CUTS, FAMILIES, Family
from poet.solvers.event_model.model import build, matrix_of, schedule_of, values_of
from poet.solvers.instance.candidates import candidates
from poet.solvers.instance.instance import Metered, instance_of, timeline_of
from poet.solvers.search.objectives import priced

EFFORT = Effort(seconds=20.0, threads=1, seed=0, absolute_joules=1e-7)


def small(seed: int) -> tuple[Problem, Limits]:
    problem = mixed_problem(seed, smallest=3, largest=5)
    problem = dataclasses.replace(problem, background_storage=False)
    return problem, random_limits(problem, seed, deadline=seed % 3 == 0)


def exact_model(
    problem: Problem, limits: Limits, *, families: tuple[Family, ...] = FAMILIES + CUTS, passes: int = 1
) -> EventModel:
    instance = instance_of(problem, limits)
    if limits.joules_budget is not None:  # it is a row of the model where something else is minimised
        metered = Metered(problem, limits.joules_budget)
        instance = instance_of(priced(problem, Objective.TIME), limits, metered=metered)
    return build(timeline_of(instance, candidates(instance, None, passes=passes)), families=families)


def claimed_joules(model: EventModel, outcome: Outcome) -> float:
    assert outcome.values is not None
    terms = model.overhead_joules.terms.items()
    overhead = model.overhead_joules.constant + sum(f * outcome.values[c] for c, f in terms)
    return model.timeline.instance.problem.compute_joules + overhead


def oracle_joules(problem: Problem, limits: Limits) -> float | None:
    best = least_joules(problem, limits)
    return None if best is None else simulate(problem, best, limits).joules


def test_what_the_model_claims_is_what_the_judge_says() -> None:
    for seed in range(60):
        problem, limits = small(seed)
        model = exact_model(problem, limits)
        outcome = run_engine("highs", matrix_of(model), EFFORT)
        if outcome.values is not None:
            trace = simulate(problem, schedule_of(model, outcome.values), limits)
            assert trace.joules == pytest.approx(claimed_joules(model, outcome), rel=1e-6, abs=1e-9), seed


BITES: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "need": (("unpageable",), {}),
    "hold": (("unpageable",), {}),
    "store": ((), {}),
    "memory": ((), {}),
    "come_home": (("updates", "initially"), {}),
    "deadline": ((), {"deadline_seconds": 7.0}),
    "capacity": (("capacity",), {}),
    "wear": ((), {"written_budget_bytes": 6}),
    "energy": ((), {"joules_budget": 7.0}),
}


def test_every_family_has_a_way_to_bite() -> None:
    assert list(BITES) == [family.__name__ for family in FAMILIES]


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.__name__)
def test_leaving_out_a_family_lets_invalid_plans_through(family: Family) -> None:
    others = tuple(other for other in FAMILIES if other is not family)
    features, tweaks = BITES[family.__name__]
    rejected = 0
    for seed in range(30):
        problem = random_problem(seed, ops=6, features=features)
        if "initially" in features:
            problem = with_homes(problem, seed)
        if "capacity" in features:
            problem = dataclasses.replace(problem, storage_capacity_bytes=8)
        plain = dataclasses.replace(random_limits(problem, seed), recompute=True, paging=True)
        limits = dataclasses.replace(plain, **tweaks)
        model = exact_model(problem, limits, families=others)
        outcome = run_engine("highs", matrix_of(model), EFFORT)
        if outcome.values is not None:
            try:
                simulate(problem, schedule_of(model, outcome.values), limits)
            except InvalidSchedule:
                rejected += 1
    assert rejected > 0


def test_cuts_do_not_change_the_optimum() -> None:
    for seed in range(40):
        problem, limits = small(seed)
        with_cuts, without = exact_model(problem, limits), exact_model(problem, limits, families=FAMILIES)
        first, second = (
            run_engine("highs", matrix_of(with_cuts), EFFORT),
            run_engine("highs", matrix_of(without), EFFORT),
        )
        assert first.infeasible == second.infeasible, seed
        if first.values is not None:
            assert claimed_joules(with_cuts, first) == pytest.approx(
                claimed_joules(without, second), rel=1e-6
            )


def test_a_schedule_becomes_the_values_that_it_came_from() -> None:
    for seed in range(60):
        problem, limits = small(seed)
        model = exact_model(problem, limits)
        outcome = run_engine("highs", matrix_of(model), EFFORT)
        if outcome.values is None:
            continue
        schedule = schedule_of(model, outcome.values)
        values = values_of(model, schedule)
        assert values is not None
        again = schedule_of(model, values)
        assert simulate(problem, again, limits).joules == pytest.approx(
            simulate(problem, schedule, limits).joules
        ), seed


def test_running_again_while_an_output_is_there_costs_it_twice() -> None:
    page = Transfer(1.0, 100.0)
    tensors = (
        Tensor("x", 1),
        Tensor("kept", 4),
        Tensor("dropped", 4),
        Tensor("big", 6, page, page),
        Tensor("y", 1),
    )
    ops = (
        ProblemOp("split", ("x",), ("kept", "dropped"), 1.0, 1.0),
        ProblemOp("wide", ("x", "kept"), ("big",), 1.0, 1.0),
        ProblemOp("use", ("kept", "dropped"), ("y",), 1.0, 1.0),
    )
    problem = Problem("twice", tensors, ops)
    for budget, expected in ((15, 3.0), (14, 4.0), (11, 4.0), (10, None)):
        limits = Limits(ram_budget_bytes=budget)
        assert oracle_joules(problem, limits) == expected
        model = exact_model(problem, limits)
        outcome = run_engine("highs", matrix_of(model), EFFORT)
        found = None if outcome.values is None else claimed_joules(model, outcome)
        assert found == (None if expected is None else pytest.approx(expected))


def test_a_candidate_that_paging_dominates_is_not_offered() -> None:
    cheap, dear = Transfer(0.1, 0.1), Transfer(9.0, 9.0)
    tensors = (Tensor("a", 4, cheap, cheap), Tensor("b", 4, dear, dear), Tensor("c", 9), Tensor("d", 1))
    ops = (
        ProblemOp("a", (), ("a",), 1.0, 1.0),
        ProblemOp("b", (), ("b",), 1.0, 1.0),
        ProblemOp("c", (), ("c",), 1.0, 1.0),
        ProblemOp("d", ("a", "b"), ("d",), 1.0, 1.0),
    )
    problem = Problem("dominance", tensors, ops)
    offered = candidates(instance_of(problem, Limits(ram_budget_bytes=9)), 1)
    assert offered == {3: (1,)}
    hurried = Limits(ram_budget_bytes=9, deadline_seconds=100.0)
    assert candidates(instance_of(problem, hurried), 1) == {3: (1,)}
    limited = Limits(ram_budget_bytes=9, written_budget_bytes=100)
    assert candidates(instance_of(problem, limited), 1) == {3: (0, 1)}
