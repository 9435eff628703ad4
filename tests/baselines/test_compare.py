"""Ours beside the literature's planners: never worse, told as text and as data."""

from __future__ import annotations

import dataclasses
import io
import json
from pathlib import Path

import pytest
from helpers.pace import few_or_many, with_slow
from helpers.random_problems import (
    floor_bytes,
    keep_bytes,
    mixed_problem,
    random_limits,
    random_problem,
    training_like,
)
from poet.cli.main import app
from rich.console import Console
from typer.testing import CliRunner

from poet.baselines.comparison import BASELINES, EXACT_BASELINES, Comparison, compare
from poet.planning.ram_survey import keep_everything_bytes
from poet.problem import Limits, Objective, Pins, Problem
from poet.problem.simulator import simulate
from poet.problem.solution import SolveOptions, Status, amount_of
from poet.report.searches import comparison_data, comparison_report
from poet.solvers import solve

INSTANCES = sorted((Path(__file__).parents[1] / "instances").glob("*.json"))
QUICK = SolveOptions(time_limit_seconds=5.0)


def compared(problem: Problem, limits: Limits, options: SolveOptions = QUICK) -> Comparison:
    return compare(problem, limits, options, solve(problem, limits, options))


def assert_never_worse(problem: Problem, limits: Limits, comparison: Comparison) -> int:
    """How many rivals had a plan."""
    plans = 0
    for rival in comparison.rivals:
        if rival.schedule is None or rival.trace is None:
            continue
        plans += 1
        judged = simulate(problem, rival.schedule, limits)
        assert judged == rival.trace
        assert comparison.ours.trace is not None, rival.name
        assert comparison.ours.trace.joules <= judged.joules * (1 + 1e-12), rival.name
    return plans


def test_every_baseline_of_the_registry_is_compared() -> None:
    problem = training_like(2)
    comparison = compared(problem, Limits(ram_budget_bytes=keep_bytes(problem)))
    assert [rival.name for rival in comparison.rivals] == [*BASELINES, *EXACT_BASELINES]
    assert_never_worse(problem, Limits(ram_budget_bytes=keep_bytes(problem)), comparison)


@few_or_many("problems", 5, 15)
def test_ours_is_never_worse_on_random_problems(problems: int) -> None:
    plans = 0
    for seed in range(problems):
        problem = mixed_problem(seed, largest=8)
        limits = random_limits(problem, seed, deadline=seed % 4 == 0)
        plans += assert_never_worse(problem, limits, compared(problem, limits))
    assert plans > 5 * problems


def test_a_better_plan_of_a_rival_is_where_our_search_goes_on() -> None:
    problem = Problem.load(INSTANCES[-1])
    limits = Limits(ram_budget_bytes=floor_bytes(problem))
    worse = solve(problem, limits, dataclasses.replace(QUICK, time_limit_seconds=1e-9))
    paged = BASELINES["page-everything"](problem, limits)
    assert paged is not None
    handicapped = dataclasses.replace(worse, schedule=paged, trace=simulate(problem, paged, limits))
    comparison = compare(problem, limits, QUICK, handicapped)
    assert comparison.started_from is not None
    assert assert_never_worse(problem, limits, comparison)
    assert comparison.ours.trace is not None
    assert comparison.ours.trace.joules < simulate(problem, paged, limits).joules


@few_or_many("problems", 1, 3)
@pytest.mark.parametrize("objective", with_slow(Objective, {Objective.TIME, Objective.WRITES}))
def test_ours_is_never_worse_in_any_objective_with_pins_and_an_energy_budget(
    objective: Objective, problems: int
) -> None:
    plans = 0
    for seed in range(problems):
        problem = random_problem(seed, ops=7, features=("workspace", "idle"))
        limits = Limits(
            ram_budget_bytes=round(1.3 * floor_bytes(problem)),
            joules_budget=2.0 * problem.compute_joules,
            pins=Pins(never_page=("t1",)),
        )
        comparison = compared(problem, limits, dataclasses.replace(QUICK, objective=objective))
        for rival in comparison.rivals:
            if rival.trace is not None:
                plans += 1
                assert comparison.ours.amount is not None
                assert comparison.ours.amount <= amount_of(objective, rival.trace) * (1 + 1e-9), rival.name
    assert plans > 3 * problems


@pytest.mark.slow
@pytest.mark.parametrize("path", INSTANCES, ids=lambda path: path.stem)
def test_ours_is_never_worse_on_the_published_instances(path: Path) -> None:
    problem = Problem.load(path)
    least, most = floor_bytes(problem), keep_everything_bytes(problem)
    for share in (0.5, 0.2, 0.0):
        limits = Limits(ram_budget_bytes=max(least, round(share * most)))
        alone = solve(problem, limits, SolveOptions(time_limit_seconds=30.0))
        comparison = compare(problem, limits, SolveOptions(time_limit_seconds=30.0), alone)
        assert comparison.started_from is None
        assert assert_never_worse(problem, limits, comparison) > 4


@pytest.mark.slow
def test_the_table_and_the_data_tell_the_same() -> None:
    problem = Problem.load(INSTANCES[0])
    limits = Limits(ram_budget_bytes=round(0.5 * keep_everything_bytes(problem)))
    comparison = compared(problem, limits)
    console = Console(width=110, record=True, file=io.StringIO())
    console.print(comparison_report(comparison))
    lines = console.export_text().splitlines()
    data = {row["planner"]: row for row in comparison_data(comparison)["planners"]}
    assert len(lines) == 2 + 1 + len(data)
    assert lines[2].startswith("poet")
    for line in lines[3:]:
        row = data[line.split()[0]]
        if row["joules"] is None:
            assert "none" in line
        else:
            assert f"{row['joules_ratio']:.4g}" in line.split()
            assert row["joules_ratio"] >= 1.0 - 1e-12
    optimal = {name for name, row in data.items() if row["status"] == "optimal"}
    assert optimal == {line.split()[0] for line in lines[3:] if line.split()[1] == "*"}
    assert data["keep-everything"]["joules"] is None
    assert comparison.ours.status is Status.OPTIMAL


@pytest.mark.slow
def test_the_command_prints_the_comparison(tmp_path: Path) -> None:
    answer = tmp_path / "answer.json"
    arguments = ["solve", str(INSTANCES[-1]), "--ram", "32MiB", "--compare", "--json", str(answer)]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert "checkmate *" in result.output
    told = json.loads(answer.read_text())
    assert {row["planner"] for row in told["comparison"]["planners"]} == {*BASELINES, *EXACT_BASELINES}
    assert told["status"] == "optimal"


def test_a_comparison_needs_a_budget() -> None:
    result = CliRunner().invoke(app, ["solve", str(INSTANCES[0]), "--compare"])
    assert result.exit_code != 0
