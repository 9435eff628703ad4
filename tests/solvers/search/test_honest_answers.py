"""An answer says who found its plan, why a gap is left, and whose word a proof is."""

from __future__ import annotations

import dataclasses
import logging
from typing import Any

import pytest
from helpers.clocks import Ticking
from helpers.pace import with_slow
from helpers.random_problems import mixed_problem, random_limits, training_like
from test_time_limit import nothing

from poet.baselines import comparison
from poet.baselines.comparison import compare
from poet.planning.ram_survey import budget_between, keep_everything_bytes
from poet.problem import Limits, Objective
from poet.problem.schedule import Compute, PageIn
from poet.problem.simulator import simulate
from poet.problem.solution import Solution, SolveOptions, Start, Status
from poet.report.plan import solution_report
from poet.solvers import minimum_ram_bytes, solve
from poet.solvers.engines import proof as confirm_module
from poet.solvers.heuristics.greedy import greedy
from poet.solvers.heuristics.policies import keep_everything
from poet.solvers.instance.incumbent import Incumbent
from poet.solvers.instance.instance import Metered
from poet.solvers.portfolio.relaxations import whole_relaxation
from poet.solvers.portfolio.retention_intervals import retention_intervals
from poet.solvers.portfolio.state import WAITS, SearchState, Steps
from poet.solvers.search import least_energy as search
from poet.solvers.search import objectives

STEP = training_like(1)
OPTIONS = SolveOptions(time_limit_seconds=None, engine="highs")


def tight(share: float = 0.3) -> Limits:
    most, least = keep_everything_bytes(STEP), minimum_ram_bytes(STEP).bytes
    return Limits(ram_budget_bytes=budget_between(least, most, share))


def show(solution: Solution, limits: Limits) -> str:
    from rich.console import Console

    console = Console(width=300)
    with console.capture() as captured:
        console.print(solution_report(STEP, limits, solution))
    return captured.get()


# --- who found the plan ---


def _idle(state: SearchState) -> Steps:
    """A member that never brings anything."""
    while True:
        yield WAITS


@pytest.fixture
def members_find_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "MEMBERS", (("idle", _idle, 1.0),))


def _whole_numbers_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine's search is the only proof."""
    members = (("exact models", retention_intervals, 1.0), ("whole numbers", whole_relaxation, 1.0))
    monkeypatch.setattr(search, "MEMBERS", members)


def ticking(**others: Any) -> SolveOptions:
    """For a search that only its limit ends."""
    return SolveOptions(time_limit_seconds=2.0, engine="highs", clock=Ticking(0.01), **others)


@pytest.mark.usefixtures("members_find_nothing")
def test_the_callers_plan_and_greedys_are_called_that(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = tight()
    assert solve(STEP, limits, ticking()).solver == "greedy"
    mine = greedy(STEP, limits)
    monkeypatch.setattr(search, "greedy", lambda *arguments, **options: None)
    assert solve(STEP, limits, ticking(start=Start(mine))).solver == "the plan given as a start"
    assert solve(STEP, limits, ticking(start=Start(mine, "my own"))).solver == "my own"


def test_a_rivals_plan_keeps_its_makers_name(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = Limits(ram_budget_bytes=keep_everything_bytes(STEP))
    plan = keep_everything(STEP, limits)
    assert plan is not None
    monkeypatch.setattr(comparison, "BASELINES", {"keep-everything": lambda problem, limits: plan})
    monkeypatch.setattr(comparison, "EXACT_BASELINES", {})
    monkeypatch.setattr(search, "greedy", lambda *arguments, **options: None)
    told = compare(STEP, limits, OPTIONS, nothing(STEP))
    assert told.started_from == "keep-everything"
    assert told.ours.schedule is not None
    assert told.ours.solver == "keep-everything"


def test_breaking_ties_does_not_rename_the_plan() -> None:
    limits = Limits(ram_budget_bytes=keep_everything_bytes(STEP))
    for objective in (Objective.TIME, Objective.WRITES, Objective.RAM):
        solution = solve(STEP, limits, dataclasses.replace(OPTIONS, objective=objective))
        assert solution.schedule is not None
        assert solution.solver != "the plan given as a start", objective
        assert solution.solver != "none", objective


# --- what the judge rejects ---


def test_a_schedule_of_ours_that_breaks_a_rule_is_counted_and_logged(
    rejections: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    plan = keep_everything(STEP, Limits())
    assert plan is not None
    first = next(tensor.name for tensor in STEP.tensors if tensor.page_in is not None)
    best = Incumbent(STEP, Limits())
    with caplog.at_level(logging.WARNING):
        assert not best.consider((Compute(STEP.ops[-1].name),), "a careless maker")
        assert not best.consider((*plan, PageIn(first)), "a careless maker")
        assert not best.consider(plan[: len(plan) // 2], "a careless maker")
    assert best.schedule is None
    assert sum(best.rejections.faults.values()) == 3
    assert {"input", "missing"} <= set(best.rejections.faults)
    assert "rule input" in caplog.text
    assert "a careless maker" in caplog.text
    assert len(rejections) == 3
    rejections.clear()


def test_what_a_maker_cannot_know_is_no_bug(rejections: list[str]) -> None:
    """Deadline, energy and pins are rules of the whole step; a caller's plan may break any."""
    plan = keep_everything(STEP, Limits())
    assert plan is not None
    late = Incumbent(STEP, Limits(deadline_seconds=1e-12))
    assert not late.consider(plan)
    dear = Incumbent(STEP, Limits(), Metered(STEP, 1e-12))
    assert not dear.consider(plan)
    theirs = Incumbent(STEP, Limits(ram_budget_bytes=1))
    assert not theirs.consider(plan, is_ours=False)
    assert not late.rejections.faults + dear.rejections.faults + theirs.rejections.faults
    assert not rejections
    assert theirs.consider(None) is False


@pytest.mark.parametrize("block", with_slow(range(2), {1}))
def test_no_maker_breaks_a_rule_it_looks_after(block: int) -> None:
    """The fixture ``rejections`` of every test counts; here are the problems with most features."""
    for seed in range(15 * block, 15 * block + 15):
        problem = mixed_problem(seed, largest=6)
        limits = random_limits(problem, seed, deadline=seed % 3 == 0)
        solution = solve(problem, limits, SolveOptions(time_limit_seconds=None, engine="highs"))
        if solution.schedule is not None:
            simulate(problem, solution.schedule, limits)


# --- why a gap is left ---


@pytest.mark.usefixtures("members_find_nothing")
def test_a_search_with_a_gap_left_goes_on_to_its_limit_and_says_so() -> None:
    solution = solve(STEP, tight(), ticking())
    assert solution.status is Status.FEASIBLE
    assert solution.solve_seconds >= 2.0
    assert solution.message.endswith(
        "a longer time limit may close the gap, and so may two threads with CP-SAT installed."
    )
    assert solve(STEP, tight(), ticking(enough_joules=float("inf"))).message == ""


def test_a_bound_that_is_refuted_is_named_and_the_search_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    limits, asked = tight(), list[str]()
    confirmation = confirm_module.Confirmation(confirm_module.Confidence.REFUTED, ("highs", "cpsat"))

    def refuted(matrix: object, engine: str, *arguments: object, **options: object) -> object:
        asked.append(engine)
        return confirmation

    monkeypatch.setattr(search, "confirm", refuted)
    _whole_numbers_alone(monkeypatch)  # what sums of our own prove, nobody refutes
    solution = solve(STEP, limits, ticking())
    assert solution.status is Status.FEASIBLE
    assert solution.message == "Cpsat found what highs says cannot be: the gap is open again."
    assert asked
    assert solution.solve_seconds >= 2.0


# --- whose word it is ---


def test_optimal_by_one_engines_word_is_worded_so(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = tight()
    _whole_numbers_alone(monkeypatch)  # sums of our own are nobody's word
    sure = solve(STEP, limits, OPTIONS)
    assert sure.status is Status.OPTIMAL
    assert sure.is_confirmed
    assert sure.sentence == Status.OPTIMAL.value
    monkeypatch.setattr(confirm_module, "is_proven", lambda *arguments, **options: False)
    monkeypatch.setattr(confirm_module, "available_engines", lambda: ("highs",))
    alone = solve(STEP, limits, OPTIONS)
    unasked = solve(STEP, limits, dataclasses.replace(OPTIONS, confirm=False))
    for answer in (alone, unasked):
        assert answer.status is Status.OPTIMAL
        assert not answer.is_confirmed
        assert Status.OPTIMAL.value not in show(answer, limits)
        assert (
            "optimal in the listed order only by the word of highs alone, not proven independently"
            in show(answer, limits)
        )
    assert Status.OPTIMAL.value in show(sure, limits)


def test_what_one_engine_closed_is_nowhere_called_proven(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = tight()
    _whole_numbers_alone(monkeypatch)
    assert "proven: no valid plan in the listed order takes less" in show(
        solve(STEP, limits, OPTIONS), limits
    )
    alone = solve(STEP, limits, dataclasses.replace(OPTIONS, confirm=False))
    shown = show(alone, limits)
    assert "no valid plan in the listed order takes less, by the bound of a single solver" in shown
    assert "proven" not in shown.replace("not proven independently", "")
    assert "proven" not in repr(alone)
    other = dataclasses.replace(alone, objective=Objective.TIME, proof="proven in exact arithmetic")
    assert "proven: no valid" not in show(other, limits)  # of another objective's bound


def test_a_bisection_that_ends_with_a_gap_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    """Budgets below the peak of the first plan have neither a plan nor a proof that there is none."""
    peak, least_energy = keep_everything_bytes(STEP), search.solve

    def unsure(problem: object, limits: Limits, options: SolveOptions, **others: object) -> Solution:
        if (limits.ram_budget_bytes or peak) < peak:
            return nothing(STEP, Status.TIMEOUT)
        return least_energy(STEP, limits, options)

    floor = dataclasses.replace(minimum_ram_bytes(STEP), bytes=peak // 2)
    monkeypatch.setattr(objectives, "minimum_ram_bytes", lambda *arguments: floor)
    monkeypatch.setattr(objectives, "least_energy", unsure)
    answer = solve(STEP, Limits(recompute=False, paging=False), ticking(objective=Objective.RAM))
    assert answer.status is Status.FEASIBLE
    assert "a longer time limit may close the gap" in answer.message


def test_the_least_ram_is_no_surer_than_what_proves_that_less_is_too_little(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = dataclasses.replace(OPTIONS, objective=Objective.RAM)
    limits = Limits(recompute=False, paging=False)
    floor = solve(STEP, Limits(), asked)
    assert floor.status is Status.OPTIMAL
    assert floor.is_confirmed
    word = "the word of highs alone, not proven independently"
    peak = keep_everything_bytes(STEP)
    least_energy = search.solve

    def doubtful(problem: object, limits: Limits, options: SolveOptions, **others: object) -> Solution:
        if (limits.ram_budget_bytes or peak) < peak:
            return dataclasses.replace(nothing(STEP, Status.INFEASIBLE), proof=word)
        return least_energy(STEP, limits, options)

    monkeypatch.setattr(
        objectives,
        "minimum_ram_bytes",
        lambda *arguments: dataclasses.replace(minimum_ram_bytes(STEP), bytes=peak // 2),
    )
    monkeypatch.setattr(objectives, "least_energy", doubtful)
    answer = solve(STEP, limits, asked)
    assert answer.status is Status.OPTIMAL
    assert answer.proof == word
    assert not answer.is_confirmed
