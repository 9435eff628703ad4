"""Second opinions on what cannot be, and what would help: both against the oracle."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers.clocks import counted
from helpers.oracle import least_joules
from helpers.pace import few_or_many
from helpers.random_problems import mixed_problem, random_limits

from poet.problem import Limits, Place, Problem, ProblemOp, Tensor, Transfer
from poet.problem.solution import Solution, Status
from poet.solvers import solve
from poet.solvers.engines import Effort, Outcome, run_engine
from poet.solvers.engines.highs import LinearProgram, minimise
from poet.solvers.engines.proof import Confidence, confirm, is_proven
from poet.solvers.event_model.decisions import EventModel
from poet.solvers.event_model.model import build, matrix_of
from poet.solvers.instance.candidates import candidates
from poet.solvers.instance.instance import instance_of, timeline_of
from poet.solvers.search.explain import explained
from poet.solvers.search.messages import budget_sentence

EFFORT = Effort(seconds=20.0, threads=1, seed=0, absolute_joules=1e-9)
OPTIONS = counted(5.0)
INSTANCES = Path(__file__).parents[2] / "instances"


def small(seed: int) -> tuple[Problem, Limits]:
    problem = dataclasses.replace(mixed_problem(seed, smallest=3, largest=5), background_storage=False)
    return problem, random_limits(problem, seed, deadline=seed % 3 == 0)


def model_of(problem: Problem, limits: Limits) -> EventModel:
    instance = instance_of(problem, limits)
    return build(timeline_of(instance, candidates(instance, None)))


@functools.cache
def solved() -> list[tuple[int, EventModel, Outcome]]:
    """Small models and what HiGHS says of each; three tests ask about them."""
    models = [model_of(*small(seed)) for seed in range(60)]
    return [(seed, model, run_engine("highs", matrix_of(model), EFFORT)) for seed, model in enumerate(models)]


def test_what_an_engine_calls_infeasible_is_proven_and_nothing_else_is() -> None:
    proven = 0
    for seed, model, outcome in solved():
        proof = is_proven(matrix_of(model), seconds=5.0)
        assert proof == outcome.infeasible, seed
        proven += proof
    assert proven >= 5


def test_an_optimum_is_proven_from_below_and_refused_from_above() -> None:
    branched = 0
    for seed, model, outcome in solved():
        if outcome.values is None:
            continue
        least = matrix_of(model).joules(outcome.values)
        margin = 1e-3 * abs(least) + 1e-6
        assert is_proven(matrix_of(model), seconds=5.0, below_joules=least - margin), seed
        branched += minimise(matrix_of(model), seconds=5.0).bound < least - margin
        assert not is_proven(matrix_of(model), seconds=0.5, below_joules=least + margin)
    assert branched >= 2


def test_prices_that_prove_nothing_prove_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sums are ours: whatever prices an engine gives, no bound is above the optimum."""
    _, model, outcome = solved()[3]
    assert outcome.values is not None
    least, right = matrix_of(model).joules(outcome.values), LinearProgram._certified
    for factor in (1.0, -1.0, 1e6, 1e-6):

        def lie(program: LinearProgram, share: float, duals: Any, factor: float = factor) -> float:
            return right(program, share, -abs(factor * (duals - 0.5)))

        monkeypatch.setattr(LinearProgram, "_certified", lie)
        assert minimise(matrix_of(model), seconds=1.0).bound <= least + 1e-9
        assert not is_proven(matrix_of(model), seconds=0.2)


@few_or_many("models", 25, 60)
def test_where_a_proof_takes_too_long_a_second_engine_is_asked(models: int) -> None:
    agreed = 0
    for seed, model, outcome in solved()[:models]:
        if outcome.infeasible and model.columns:
            confirmation = confirm(matrix_of(model), "highs", EFFORT, proof_seconds=-1.0)
            assert confirmation.confidence is Confidence.AGREED, seed
            agreed += 1
            assert "highs" not in confirmation.engines[1:]
    assert agreed >= 2


@few_or_many("seeds", (3,), (3, 9, 17))
def test_a_second_engine_agrees_by_its_own_bound_where_rounding_hides_the_cut_off(
    seeds: tuple[int, ...],
) -> None:
    """In whole numbers the row that cuts dearer solutions off is rounded: the optimum may slip through."""
    slipped = 0
    for seed in seeds:
        model = model_of(*small(seed))
        outcome = run_engine("highs", matrix_of(model), EFFORT)
        assert outcome.values is not None
        least = matrix_of(model).joules(outcome.values)
        below = least * (1.0 - 1e-11)
        slipped += not run_engine("cpsat", matrix_of(model).cut_off(below), EFFORT).infeasible
        exact = dataclasses.replace(EFFORT, absolute_joules=0.0)
        confirmation = confirm(matrix_of(model), "highs", exact, proof_seconds=-1.0, below_joules=below)
        assert confirmation.confidence in (Confidence.AGREED, Confidence.EXACT), seed
    assert slipped


@few_or_many("seeds", (3,), (3, 9, 17))
def test_a_false_bound_is_refuted_by_a_solution(seeds: tuple[int, ...]) -> None:
    for seed in seeds:
        model = model_of(*small(seed))
        outcome = run_engine("highs", matrix_of(model), EFFORT)
        assert outcome.values is not None
        above = matrix_of(model).joules(outcome.values) + 1.0
        confirmation = confirm(matrix_of(model), "highs", EFFORT, proof_seconds=0.1, below_joules=above)
        assert confirmation.confidence is Confidence.REFUTED
        assert confirmation.engines == ("highs", "cpsat")


@few_or_many("seeds", 8, 25)
def test_every_proof_of_the_search_is_signed(seeds: int) -> None:
    for seed in range(seeds):
        problem, limits = small(seed)
        solution = solve(problem, limits, OPTIONS)
        if solution.status in (Status.OPTIMAL, Status.INFEASIBLE):
            assert re.fullmatch("proven in exact arithmetic|highs and .* agree", solution.proof), seed
    unasked = solve(*small(3), dataclasses.replace(OPTIONS, confirm=False))
    assert unasked.proof.startswith("the word of highs")
    assert not unasked.is_confirmed
    assert unasked.status is Status.OPTIMAL
    assert unasked.sentence == f"The plan is optimal in the listed order only by {unasked.proof}."
    assert Status.OPTIMAL.value not in unasked.sentence


# --- what would help ---


def answers() -> Iterator[tuple[int, Problem, Limits, Solution]]:
    for seed in range(60):
        problem, limits = small(seed)
        solution = solve(problem, limits, OPTIONS)
        if solution.status is Status.INFEASIBLE:
            yield seed, problem, limits, explained(problem, limits, OPTIONS, solution)


@pytest.mark.slow
def test_the_least_that_works_is_the_least_by_the_oracle() -> None:
    checked = 0
    for seed, problem, limits, solution in answers():
        least_ram = re.search(r"RAM of (\d+) bytes .*?works, and nothing less", solution.message)
        if least_ram is not None:
            budget = int(least_ram[1])
            assert limits.ram_budget_bytes is not None
            assert budget > limits.ram_budget_bytes
            works = dataclasses.replace(limits, ram_budget_bytes=budget)
            fails = dataclasses.replace(limits, ram_budget_bytes=budget - 1)
            assert least_joules(problem, works) is not None, seed
            assert least_joules(problem, fails) is None, seed
            checked += 1
        writes = re.search(r"Writing (\d+) bytes per step .*?works, and nothing less", solution.message)
        if writes is not None:
            allowed = dataclasses.replace(limits, written_budget_bytes=int(writes[1]))
            assert least_joules(problem, allowed) is not None, seed
            less = dataclasses.replace(limits, written_budget_bytes=int(writes[1]) - 1)
            assert least_joules(problem, less) is None, seed
            checked += 1
    assert checked >= 5


@pytest.mark.slow
def test_a_deadline_that_works_is_named_and_by_how_much_it_is_later() -> None:
    problem = Problem.load(INSTANCES / "transformer.m4.json")
    limits = Limits(ram_budget_bytes=32 * 2**20, deadline_seconds=problem.compute_seconds * 1.0001)
    solution = explained(problem, limits, OPTIONS, solve(problem, limits, OPTIONS))
    assert solution.status is Status.INFEASIBLE
    assert (
        "No plan in the listed order keeps the RAM budget of 32 MiB and the deadline of" in solution.message
    )
    named = re.search(r"A deadline of ([\d.]+) s \(([\d.]+) % more\)", solution.message)
    assert named is not None
    later = dataclasses.replace(limits, deadline_seconds=float(named[1]) * 1.001)
    assert solve(problem, later, OPTIONS).schedule is not None


def test_a_time_out_says_what_was_found_otherwise() -> None:
    problem = Problem.load(INSTANCES / "transformer.m4.json")
    limits = Limits(ram_budget_bytes=33 * 2**20, deadline_seconds=problem.compute_seconds * 1.0001)
    found = solve(problem, limits, OPTIONS)
    gave_up = dataclasses.replace(
        found, status=Status.TIMEOUT, message=f"The time limit passed. {budget_sentence(problem, limits)}"
    )
    told = explained(problem, limits, OPTIONS, gave_up).message
    assert "above the least that op" in told
    assert re.search(r"RAM of \d+ bytes .* works", told)
    assert told.endswith("A longer time limit may find more.")


@pytest.mark.slow
def test_a_search_that_time_ends_says_when_it_last_got_on() -> None:
    problem = Problem.load(INSTANCES / "resnet18_cifar.m4.json")
    cut_short = solve(problem, Limits(ram_budget_bytes=490_752), counted(0.3))
    assert cut_short.status is Status.FEASIBLE
    assert re.match(r"The plan was last improved after .*s, the bound after .*s: a longer", cut_short.message)


def test_a_floor_at_the_steps_ends_is_called_that() -> None:
    """Two parameters must be in RAM when the step begins and ends; its only op needs one of them."""
    move = Transfer(seconds=1.0, joules=1.0)
    tensors = tuple(Tensor(name, 100, move, move, finally_=Place.RAM) for name in ("p", "q"))
    problem = Problem("ends", (*tensors, Tensor("o", 10)), (ProblemOp("f", ("p",), ("o",), 1.0, 1.0),))
    told = budget_sentence(problem, Limits(ram_budget_bytes=300))
    least = "the least that the start and the end of the step need in the listed order"
    assert told == f"The budget of 300 B is 50 % above {least}."
