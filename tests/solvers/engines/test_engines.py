"""Every engine against the oracle; CP-SAT's child: whole numbers, warm start, time limit, Ctrl-C."""

from __future__ import annotations

import dataclasses
import math
import os
import signal
import sys
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from helpers.oracle import least_joules
from helpers.pace import few_or_many, with_slow
from helpers.random_problems import floor_bytes, keep_bytes, mixed_problem, random_limits, training_like
from pulp.apis.coin_api import PULP_CBC_CMD

from poet.errors import InputError
from poet.problem import Limits, Problem
from poet.problem.schedule import Schedule
from poet.problem.simulator import simulate
from poet.problem.solution import SolveOptions, Status
from poet.solvers import engines, solve
from poet.solvers.engines import Effort, available_engines, choose_engine, process, run_engine
from poet.solvers.engines.process import EngineProcess
from poet.solvers.engines.program import Matrix
from poet.solvers.event_model import families
from poet.solvers.event_model.decisions import EventModel
from poet.solvers.event_model.model import build, matrix_of, schedule_of, values_of
from poet.solvers.instance.candidates import candidates
from poet.solvers.instance.instance import instance_of, timeline_of
from poet.util.clock import WorkClock

EFFORT = Effort(seconds=20.0, threads=1, seed=0, absolute_joules=1e-7)
PATIENT = dataclasses.replace(EFFORT, seconds=300.0)
"""For searches that end by themselves, within seconds where nobody else is at work."""
INSTANCES = Path(__file__).parents[2] / "instances"

every_engine = pytest.mark.parametrize("engine", available_engines())


def engine_children() -> list[int]:
    """Numbers of the engines' processes that this one has begun, by /proc; zombies are none of them."""
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent = status.read_text().rpartition(")")[2].split()[:2]
            line = (status.parent / "cmdline").read_text()
        except (OSError, ValueError):
            continue
        if int(parent) == os.getpid() and state != "Z" and "poet.solvers.engines" in line:
            found.append(int(status.parent.name))
    return found


def small(seed: int) -> tuple[Problem, Limits]:
    problem = dataclasses.replace(mixed_problem(seed, smallest=3, largest=5), background_storage=False)
    return problem, random_limits(problem, seed, deadline=seed % 3 == 0)


def model_of(problem: Problem, limits: Limits, *, depth: int | None = None) -> EventModel:
    instance = instance_of(problem, limits)
    return build(timeline_of(instance, candidates(instance, depth)))


def instance_model(name: str, *, above_floor: float, depth: int) -> EventModel:
    """Of an instance, with ``above_floor`` of the way from the least RAM to all tensors together."""
    problem = Problem.load(INSTANCES / f"{name}.json")
    budget = floor_bytes(problem) + round(above_floor * (keep_bytes(problem) - floor_bytes(problem)))
    return model_of(problem, Limits(ram_budget_bytes=budget), depth=depth)


def hard_model() -> EventModel:
    """Not solved within seconds."""
    return instance_model("resnet18_cifar.m4", above_floor=0.05, depth=6)


def test_the_engines_that_come_with_poet_are_there() -> None:
    assert {"highs", "cbc"} <= set(available_engines())


def test_a_program_with_nothing_to_choose_is_solved() -> None:
    def empty(at_most: float) -> Matrix:
        none = np.zeros(0)
        return Matrix(
            costs=none, offset=3.0, rows=none.astype(np.int64), columns=none.astype(np.int64), factors=none,
            at_most=np.array([at_most]), integer=none.astype(np.bool_), whole=none.astype(np.bool_),
        )  # fmt: skip

    outcome = run_engine("highs", empty(0.0), EFFORT)
    assert (outcome.values, outcome.bound_joules, outcome.done) == ((), 3.0, True)
    assert run_engine("highs", empty(-1.0), EFFORT).infeasible
    with EngineProcess("highs") as child:
        for at_most, solved in ((0.0, True), (-1.0, False)):
            child.begin(empty(at_most), Effort(None))
            while not child.ended:
                child.listen(0.5)
            assert child.known.done == (child.known.values is not None) == solved
            assert not solved or child.known.bound_joules == 3.0


@few_or_many("problems", 2, 9)
@every_engine
def test_optima_agree_with_the_oracle(engine: str, problems: int) -> None:
    answered = 0
    for seed in range(problems):
        problem, limits = small(seed)
        best = least_joules(problem, limits)
        exact = run_engine(engine, matrix_of(model_of(problem, limits)), EFFORT)
        if best is None:
            assert exact.infeasible, seed
            continue
        least = simulate(problem, best, limits).joules - problem.compute_joules
        assert exact.done
        assert exact.values is not None
        plan = schedule_of(model_of(problem, limits), exact.values)
        assert simulate(problem, plan, limits).joules - problem.compute_joules >= least - 1e-9
        assert not exact.infeasible, seed
        tolerance = 1e-6 * problem.compute_joules
        assert exact.bound_joules <= objective_joules_of(problem, plan, limits) + tolerance
        answered += 1
    assert answered > problems // 2


def objective_joules_of(problem: Problem, plan: Schedule, limits: Limits) -> float:
    return simulate(problem, plan, limits).joules - problem.compute_joules


@pytest.fixture(scope="module")
def solved_linear() -> tuple[EventModel, Sequence[float]]:
    """A model and its best solution by HiGHS, to hold the others against."""
    model = instance_model("linear.m4", above_floor=0.05, depth=5)
    best = run_engine("highs", matrix_of(model), PATIENT)
    assert best.done
    assert best.values is not None
    assert matrix_of(model).joules(best.values) > 0.0
    return model, best.values


@every_engine
@pytest.mark.slow
def test_a_bound_holds_when_the_time_runs_out(
    engine: str, solved_linear: tuple[EventModel, Sequence[float]]
) -> None:
    model, best = solved_linear
    for seconds in (0.02, 0.1, 0.5):
        cut_short = run_engine(engine, matrix_of(model), dataclasses.replace(EFFORT, seconds=seconds))
        assert cut_short.bound_joules <= matrix_of(model).joules(best) * (1 + 1e-6)


@every_engine
def test_a_start_is_never_lost(engine: str, solved_linear: tuple[EventModel, Sequence[float]]) -> None:
    model, best = solved_linear
    start = values_of(model, schedule_of(model, best))
    again = run_engine(engine, matrix_of(model, start), PATIENT)
    assert again.done
    assert again.values is not None
    assert matrix_of(model).joules(again.values) == pytest.approx(matrix_of(model).joules(best))


@pytest.mark.slow
@every_engine
def test_whole_searches_equal_the_oracle_and_bound_it_when_cut_short(engine: str) -> None:
    optimal = 0
    for seed in range(100, 112 if "cpsat" in engine else 150):
        problem = mixed_problem(seed, largest=6)
        limits = random_limits(problem, seed, deadline=seed % 3 == 0)
        best = least_joules(problem, limits)
        for seconds in (0.02, 20.0):
            solution = solve(problem, limits, SolveOptions(time_limit_seconds=seconds, engine=engine))
            if best is None:
                assert solution.status in (Status.INFEASIBLE, Status.TIMEOUT), seed
                continue
            least = simulate(problem, best, limits).joules
            assert solution.status is not Status.INFEASIBLE, seed
            assert solution.bound_joules <= least * (1 + 1e-6), seed
            if solution.status is Status.OPTIMAL:
                assert solution.joules == pytest.approx(
                    least, rel=1e-6, abs=1e-3 * (least - problem.compute_joules)
                )
                optimal += seconds > 1.0
    assert optimal > 5


def test_an_unknown_engine_and_one_that_is_not_installed_are_told_apart() -> None:
    with pytest.raises(InputError, match=r"'hihgs' does not exist; installed are highs.*'highs'"):
        choose_engine("hihgs")
    if "gurobi" not in available_engines():
        with pytest.raises(InputError, match=r"'gurobi' is not installed; .*pip install gurobipy"):
            choose_engine("gurobi")


# --- CP-SAT ---


def test_two_threads_are_two_engines_where_both_are_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert choose_engine("auto") == "highs"
    monkeypatch.setattr(engines, "has_cpsat", lambda: True)
    assert choose_engine("auto", threads=2) == "highs+cpsat"
    monkeypatch.setattr(engines, "has_cpsat", lambda: False)
    assert choose_engine("auto", threads=2) == "highs"


needs_cpsat = pytest.mark.skipif(not engines.has_cpsat(), reason="OR-tools is the extra cpsat")


@needs_cpsat
def test_every_plan_survives_whole_numbers_and_costs_no_more() -> None:
    from poet.solvers.engines.cpsat import integer_program

    rounded = 0
    for seed in range(40):
        problem, limits = small(seed)
        model = model_of(problem, limits)
        outcome = run_engine("highs", matrix_of(model), EFFORT)
        if outcome.values is None:
            continue
        program = integer_program(matrix_of(model), absolute_joules=1e-6)
        whole = program.whole([round(value) for value in outcome.values])
        for columns, factors, right in program.rows:
            assert sum(f * whole[c] for c, f in zip(columns, factors, strict=True)) <= right, seed
        charged = sum(factor * whole[column] for column, factor in program.costs)
        exact = sum(
            Fraction(cost) * round(outcome.values[column])
            for column, cost in model.overhead_joules.terms.items()
        )
        assert charged <= exact * Fraction(program.scale), seed
        assert charged >= exact * Fraction(program.scale) - len(program.costs)
        rounded += charged != exact * Fraction(program.scale)
    assert rounded > 5


@needs_cpsat
@pytest.mark.parametrize("unit", [1e-12, 1.0, 1e6])
def test_the_scale_is_a_power_of_two_in_any_unit(unit: float) -> None:
    from poet.solvers.engines.cpsat import integer_program

    problem, limits = small(3)
    ops = tuple(dataclasses.replace(op, joules=op.joules * unit) for op in problem.ops)
    model = model_of(dataclasses.replace(problem, ops=ops), limits)
    program = integer_program(matrix_of(model), absolute_joules=1e-7 * unit)
    assert math.frexp(program.scale)[0] == 0.5
    assert sum(abs(factor) for _, factor in program.costs) < 2**53


@needs_cpsat
def test_shares_of_the_budget_are_counted_in_small_units(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(families, "DENSE_TERMS", 1)  # as in models of thousands of ops
    problem = training_like(3)
    limits = Limits(ram_budget_bytes=round(1.2 * floor_bytes(problem)))
    model = model_of(problem, limits, depth=1)
    assert any(not column.whole for column in model.columns)
    both = [run_engine(engine, matrix_of(model), EFFORT) for engine in ("highs", "cpsat")]
    assert all(outcome.done for outcome in both)
    assert both[0].bound_joules == pytest.approx(both[1].bound_joules, rel=1e-5)


@pytest.mark.slow
@needs_cpsat
def test_the_watcher_sees_incumbents_and_bounds_and_can_stop() -> None:
    model, seen, bounds = hard_model(), list[float](), list[float]()

    def watch(values: object, bound: float) -> bool:
        assert len(seen) < 2, "it was told to stop"
        bounds.append(bound)
        if values is not None:
            seen.append(matrix_of(model).joules(values))  # type: ignore[arg-type]
        return len(seen) == 2

    outcome = run_engine("cpsat", matrix_of(model), dataclasses.replace(EFFORT, seconds=None), watcher=watch)
    assert outcome.values is not None
    assert seen == sorted(seen, reverse=True)
    assert bounds == sorted(bounds)
    assert matrix_of(model).joules(outcome.values) <= seen[0]


@pytest.mark.slow
@needs_cpsat
@pytest.mark.parametrize("engine", with_slow(["cpsat", "highs+cpsat"], {"highs+cpsat"}))
def test_ctrl_c_ends_the_child_and_keeps_what_was_found(engine: str) -> None:
    """Pressed once something is found; no time limit would end this search."""
    model, found = hard_model(), list[object]()

    def press(values: object, bound: float) -> bool:
        if values is not None and not found:
            signal.raise_signal(signal.SIGINT)
        found.extend([values] if values is not None else [])
        return False

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:  # whoever started the tests may ignore the signal
        outcome = run_engine(
            engine, matrix_of(model), dataclasses.replace(EFFORT, seconds=None), watcher=press
        )
    finally:
        signal.signal(signal.SIGINT, before)
    assert outcome.interrupted
    assert outcome.values is not None
    assert not engine_children()


@needs_cpsat
def test_no_child_outlives_an_error() -> None:
    def fail(values: object, bound: float) -> bool:
        raise RuntimeError

    with pytest.raises(RuntimeError):
        run_engine("cpsat", matrix_of(hard_model()), EFFORT, watcher=fail)
    assert not engine_children()


@needs_cpsat
def test_a_child_that_cannot_start_is_told_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    problem, limits = small(3)
    with pytest.raises(InputError, match="engine 'cpsat' does not run here: it ended with code 1"):
        run_engine("cpsat", matrix_of(model_of(problem, limits)), EFFORT)


def test_a_cbc_that_ends_with_an_error_has_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its program does, now and then; the search goes on with what there is."""
    problem, limits = small(3)
    monkeypatch.setattr(PULP_CBC_CMD, "pulp_cbc_path", "/bin/false")
    found = run_engine("cbc", matrix_of(model_of(problem, limits)), EFFORT)
    assert (found.values, found.done, found.infeasible) == (None, False, False)


def test_a_child_that_is_silent_where_work_is_counted_is_ended_and_charged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """HiGHS can repeat the relaxation at its root without end, deaf to its limits."""
    clock = WorkClock()
    monkeypatch.setattr(process, "SILENT_SECONDS", 0.01)
    with EngineProcess("highs") as child:
        child.begin(matrix_of(model_of(*small(1))), Effort(7.0, clock=clock))
        child.listen(0.0)  # it has not even started
        assert child.ended
        assert not child.child.is_running
        assert clock.now() == 7.0
        child.begin(matrix_of(model_of(*small(1))), Effort(1.0, clock=clock))  # another one is started
        assert child.child.is_running
