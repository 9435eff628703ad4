"""A time limit holds for all that an answer takes, and Ctrl-C ends it; by a clock of the tests' own."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import highspy
import pytest
from helpers.random_problems import mixed_problem, random_limits, random_problem, training_like
from poet.cli.main import app
from typer.testing import CliRunner

from poet.memory import layout
from poet.memory.layout import Layout
from poet.planning import arena
from poet.planning import ram_survey as budgets
from poet.planning.ram_survey import budget_between, keep_everything_bytes, survey
from poet.problem import Limits, Objective, Problem
from poet.problem.simulator import simulate
from poet.problem.solution import Solution, SolveOptions, Status
from poet.solvers import minimum_ram_bytes, solve
from poet.solvers.bounds.relaxation import relax
from poet.solvers.engines import Effort, Outcome
from poet.solvers.engines import highs as highs_module
from poet.solvers.engines import proof as confirm_module
from poet.solvers.engines.highs import loaded, run
from poet.solvers.engines.program import Matrix, scaled
from poet.solvers.heuristics.policies import keep_everything
from poet.solvers.instance.instance import instance_of
from poet.solvers.portfolio import relaxations
from poet.solvers.portfolio import retention_intervals as intervals
from poet.solvers.portfolio.state import SearchState
from poet.solvers.search import explain
from poet.solvers.search import least_energy as search
from poet.solvers.search.explain import answered, explained
from poet.solvers.search.objectives import EXPLAIN_SECONDS
from poet.util.clock import WALL

LIMIT_SECONDS = 10.0
OPTIONS = SolveOptions(time_limit_seconds=LIMIT_SECONDS, engine="highs")
STEP = training_like(1)


@dataclasses.dataclass
class Clock:
    """A hundred-thousandth of a second later at each look; engines that are patched in add what they take."""

    seconds: float = 1000.0

    def __call__(self) -> float:
        self.seconds += 1e-5
        return self.seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(time, "monotonic", clock)
    return clock


def tight(share: float = 0.3) -> Limits:
    most, least = keep_everything_bytes(STEP), minimum_ram_bytes(STEP).bytes
    return Limits(ram_budget_bytes=budget_between(least, most, share))


def slow_engines(monkeypatch: pytest.MonkeyPatch, clock: Clock, *, infeasible: bool = False) -> list[float]:
    """Engines that take all the time they may; what they say; the seconds that each took."""
    taken = list[float]()

    def run(name: str, matrix: Matrix, effort: Effort, **others: object) -> Outcome:
        assert effort.seconds is not None
        taken.append(min(effort.seconds, effort.most_seconds))
        clock.seconds += taken[-1]
        return Outcome(None, -math.inf, False, infeasible, False)

    def apart(state: SearchState, matrix: Matrix) -> Iterator[tuple[Outcome, bool]]:
        yield run("highs", matrix, Effort(state.turn_left())), False

    def prove(matrix: Matrix, *, seconds: float, **others: object) -> bool:
        clock.seconds += seconds
        return False

    monkeypatch.setattr(intervals, "run_engine", run)
    monkeypatch.setattr(relaxations, "_solved", apart)
    monkeypatch.setattr(confirm_module, "run_engine", run)
    monkeypatch.setattr(confirm_module, "is_proven", prove)
    return taken


def assert_in_time(clock: Clock, began: float) -> None:
    assert clock.seconds - began <= LIMIT_SECONDS + 0.05


# --- the limit ---


@pytest.mark.parametrize("any_order", [False, True])
def test_a_search_that_finds_nothing_and_its_explanation_keep_the_limit(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, *, any_order: bool
) -> None:
    taken = slow_engines(monkeypatch, clock)
    monkeypatch.setattr(search, "greedy", lambda *arguments, **options: None)
    members = (("exact models", intervals.retention_intervals, 1.0),)
    monkeypatch.setattr(search, "MEMBERS", members)
    began = clock.seconds
    few_ops = random_problem(44, ops=6), Limits(24, paging=False)  # in three orders
    solution = answered(*few_ops if any_order else (STEP, tight()), OPTIONS, any_order=any_order)
    assert solution.status is Status.TIMEOUT
    assert "with any one of the limits lifted" in solution.message  # for which a tenth was left
    assert solution.message.endswith("A longer time limit may find more.")
    assert_in_time(clock, began)
    assert sum(taken) > 0.9 * LIMIT_SECONDS
    assert len(taken) > 4


@pytest.mark.parametrize("late_seconds", [0.1, 0.4, 3.0])
def test_a_second_opinion_keeps_the_limit(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, late_seconds: float
) -> None:
    """The engine shows that there is no plan shortly before the end."""
    slow_engines(monkeypatch, clock, infeasible=True)
    began = clock.seconds

    def dawdle(*arguments: object, **options: object) -> None:
        clock.seconds = began + LIMIT_SECONDS - late_seconds

    monkeypatch.setattr(search, "greedy", dawdle)
    members = (("whole numbers", relaxations.whole_relaxation, 1.0),)
    solution = search.solve(STEP, tight(), OPTIONS, members=members)
    assert solution.status is Status.INFEASIBLE
    assert clock.seconds > began + LIMIT_SECONDS - late_seconds
    assert_in_time(clock, began)


def test_an_explanation_takes_what_is_left_and_two_seconds_at_most(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem, limits = STEP, dataclasses.replace(tight(0.0), deadline_seconds=STEP.compute_seconds * 1.01)
    asked = list[float]()

    def take_all(problem: Problem, limits: Limits, options: SolveOptions) -> Solution:
        assert options.time_limit_seconds is not None
        asked.append(options.time_limit_seconds)
        clock.seconds += options.time_limit_seconds
        return dataclasses.replace(nothing(problem), objective=options.objective)

    monkeypatch.setattr(explain, "least", take_all)
    most_seconds = EXPLAIN_SECONDS
    for spent, allowed in ((0.0, most_seconds), (9.0, 1.0), (LIMIT_SECONDS, 0.0), (11.0, 0.0)):
        asked.clear()
        explained(problem, limits, OPTIONS, dataclasses.replace(nothing(problem), solve_seconds=spent))
        assert sum(asked) == pytest.approx(allowed, abs=0.01)
        assert len(asked) == (2 if allowed else 0)
    assert most_seconds <= 2.0


def test_laying_out_keeps_the_limit(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every schedule leaves gaps: it is solved again and again, by searches that take all their time."""
    limits = tight(0.8)
    first = solve(STEP, limits, SolveOptions(time_limit_seconds=None))
    assert first.schedule is not None
    rounds = list[float]()

    def again(problem: Problem, limits: Limits, options: SolveOptions) -> Solution:
        assert options.time_limit_seconds is not None
        rounds.append(options.time_limit_seconds)
        clock.seconds += options.time_limit_seconds
        return first

    lay_out = layout.lay_out

    def loose(*arguments: Any, **options: Any) -> Layout:
        """As if no better places were found."""
        found = lay_out(*arguments, **options)
        return dataclasses.replace(found, arena_bytes=2 * (limits.ram_budget_bytes or 0))

    monkeypatch.setattr(arena, "solve", again)
    monkeypatch.setattr("poet.planning.arena.lay_out", loose)
    for spent in (0.0, 8.0, 9.9, 12.0):
        rounds.clear()
        fitted = arena.fit(STEP, limits, dataclasses.replace(first, solve_seconds=spent), OPTIONS)
        assert fitted is not None
        assert "it runs from the heap" in fitted.solution.message
        late = 3 * [arena.SEARCH_SECONDS]
        assert sum(rounds) <= max(0.0, LIMIT_SECONDS - spent) + sum(late)
        assert spent < 9.9 or rounds[: len(late)] == late[: len(rounds)]
    rounds.clear()
    stopped = arena.fit(STEP, limits, dataclasses.replace(first, was_interrupted=True), OPTIONS)
    assert stopped is not None
    assert stopped.solution.schedule == first.schedule
    assert not rounds
    whole = arena.searching(OPTIONS, limits).time_limit_seconds
    assert whole == pytest.approx((1.0 - arena.FITTING_SHARE) * LIMIT_SECONDS)


def test_greedy_stops_at_the_end_even_without_a_plan(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    from poet.solvers.heuristics import greedy as room

    walks = list[int]()

    def walk(*arguments: object, **options: object) -> None:
        walks.append(1)
        clock.seconds += 1.0

    monkeypatch.setattr(room, "walked", walk)
    assert room.greedy(STEP, tight(), seconds=0.5, most_seconds=2.5) is None
    assert len(walks) == 3


# --- what an explanation says ---


def nothing(problem: Problem, status: Status = Status.TIMEOUT) -> Solution:
    """An answer without a plan."""
    joules = problem.compute_joules
    return Solution(status, None, None, joules, joules, 0.0, "none")


@pytest.mark.parametrize("status", [Status.TIMEOUT, Status.INFEASIBLE])
@pytest.mark.parametrize("objective", list(Objective))
def test_a_plan_inside_the_limits_is_the_answer_and_no_explanation(
    status: Status, objective: Objective
) -> None:
    """Never "RAM of 12 MB (-51.5 % more) works" of a budget of 25 MB."""
    schedule = keep_everything(STEP, Limits())
    assert schedule is not None
    limits = Limits(ram_budget_bytes=2 * simulate(STEP, schedule).peak_ram_bytes)
    bound = None if objective is Objective.ENERGY else 1e30
    empty = dataclasses.replace(nothing(STEP, status), objective=objective, objective_bound=bound)
    answer = explained(STEP, limits, OPTIONS, empty)
    assert answer.status is Status.FEASIBLE
    assert answer.schedule is not None
    assert answer.trace == simulate(STEP, answer.schedule, limits)
    assert answer.joules is not None
    assert answer.bound_joules <= answer.joules
    assert answer.bound is not None
    assert answer.amount is not None
    assert answer.bound <= answer.amount
    assert "works" not in answer.message
    assert "%" not in answer.message


@pytest.mark.slow
def test_what_works_is_always_more_than_what_does_not() -> None:
    told = 0
    for seed in range(30):
        problem = mixed_problem(seed, largest=5)
        limits = random_limits(problem, seed, deadline=seed % 3 == 0)
        answer = explained(problem, limits, OPTIONS, nothing(problem))
        assert "-" not in answer.message.replace("e-", "")
        assert "−" not in answer.message
        told += "works" in answer.message
        if answer.schedule is not None:
            simulate(problem, answer.schedule, limits)
    assert told >= 3


def test_a_budget_that_is_hopeless_is_explained_without_a_search_for_energy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from poet.solvers.search import objectives

    def search_on(*arguments: object) -> Solution:
        pytest.fail("ties need not be broken")

    monkeypatch.setattr(objectives, "_with_ties_broken", search_on)
    answer = answered(STEP, Limits(ram_budget_bytes=16), OPTIONS)
    assert answer.status is Status.INFEASIBLE
    least = minimum_ram_bytes(STEP).bytes
    assert f"RAM of {least} bytes" in answer.message
    assert "works, and nothing less does in the listed order." in answer.message


# --- Ctrl-C ---


def press(*arguments: object, **options: object) -> None:
    raise KeyboardInterrupt


def test_ctrl_c_before_the_first_plan_ends_with_one_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(search, "greedy", press)
    monkeypatch.setattr(explain, "least", lambda *arguments: pytest.fail("nobody waits for an explanation"))
    (tmp_path / "problem.json").write_text(json.dumps(STEP.to_json()))
    command = ["solve", str(tmp_path / "problem.json"), "--ram", f"{tight().ram_budget_bytes}B", "--compare"]
    result = CliRunner().invoke(app, [*command, "--json", str(tmp_path / "answer.json")])
    assert result.exit_code == 130
    assert result.stderr == "poet: interrupted\n"
    assert result.stdout == ""
    assert json.loads((tmp_path / "answer.json").read_text())["schedule"] is None


def test_ctrl_c_ends_an_explanation(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = dataclasses.replace(tight(), deadline_seconds=1.0, written_budget_bytes=0)
    asked = list[Objective]()

    def interrupted(problem: Problem, limits: Limits, options: SolveOptions) -> Solution:
        asked.append(options.objective)
        return dataclasses.replace(nothing(problem), was_interrupted=True)

    found = nothing(STEP, Status.INFEASIBLE)

    def raised(*arguments: object) -> Solution:
        asked.append(Objective.RAM)
        raise KeyboardInterrupt

    for pressed in (interrupted, raised):
        asked.clear()
        monkeypatch.setattr(explain, "least", pressed)
        answer = explained(STEP, limits, OPTIONS, found)
        assert answer.status is Status.INFEASIBLE
        assert answer.message == ""
        assert len(asked) == 1


def test_ctrl_c_is_told_whatever_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "greedy", press)
    for objective in Objective:
        limits = dataclasses.replace(tight(), joules_budget=1e9)
        answer = solve(STEP, limits, dataclasses.replace(OPTIONS, objective=objective))
        assert answer.was_interrupted, objective
        assert answer.schedule is None


def test_ctrl_c_ends_a_survey(monkeypatch: pytest.MonkeyPatch) -> None:
    searched = list[int]()

    def stop_at_the_second(problem: Problem, limits: Limits, options: SolveOptions) -> Solution:
        searched.append(1)
        return dataclasses.replace(nothing(problem), was_interrupted=len(searched) == 2)

    monkeypatch.setattr(budgets, "solve", stop_at_the_second)
    assert len(survey(STEP).points) == len(searched) == 2


@pytest.mark.parametrize("points", [None, 4])
def test_ctrl_c_ends_a_curve(monkeypatch: pytest.MonkeyPatch, points: int | None) -> None:
    plan = keep_everything(STEP, Limits())
    assert plan is not None
    searched = list[int]()

    def stop_at_the_second(problem: Problem, limits: Limits, options: SolveOptions) -> Solution:
        searched.append(1)
        found = dataclasses.replace(nothing(problem), schedule=plan, trace=simulate(problem, plan))
        return dataclasses.replace(found, objective=options.objective, was_interrupted=len(searched) == 2)

    monkeypatch.setattr(budgets, "solve", stop_at_the_second)
    curve = budgets.trade_off(STEP, x="ram", y="energy", points=points)
    assert len(searched) == 2
    assert curve.points
    assert not curve.exact


def test_highs_in_this_process_hears_ctrl_c(monkeypatch: pytest.MonkeyPatch) -> None:
    """A linear program of many iterations is given up after the first few."""
    step = training_like(12)
    budget = budget_between(minimum_ram_bytes(step).bytes, keep_everything_bytes(step), 0.2)
    program = relax(instance_of(step, Limits(ram_budget_bytes=budget))).program
    matrix = scaled(program.matrix()).matrix

    def prepared() -> highspy.Highs:
        highs = loaded(matrix, integer=False)
        highs.setOptionValue("presolve", "off")
        return highs

    alone = prepared()
    assert not run(alone, WALL)
    iterations = alone.getInfo().simplex_iteration_count
    assert iterations > 100

    @contextlib.contextmanager
    def pressed_at_once() -> Iterator[list[int]]:
        yield [2]

    monkeypatch.setattr(highs_module, "sigint_flag", pressed_at_once)
    stopped = prepared()
    assert run(stopped, WALL)
    assert stopped.getModelStatus() == highspy.HighsModelStatus.kInterrupt
    assert stopped.getInfo().simplex_iteration_count < iterations / 2
