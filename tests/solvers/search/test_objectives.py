"""Objectives, energy budgets and starts: what `solve` may be asked beside the least energy."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from helpers.clocks import counted
from helpers.command import invoke
from helpers.oracle import least_joules, least_ram_bytes
from helpers.pace import with_slow
from helpers.random_problems import mixed_problem, random_limits, random_problem

from poet.problem import Limits, Objective, Problem
from poet.problem.simulator import simulate
from poet.problem.solution import SolveOptions, Start, Status, amount_of
from poet.solvers import minimum_ram_bytes, solve
from poet.solvers.search.objectives import limited

INSTANCES = Path(__file__).parents[2] / "instances"


def test_a_start_is_taken_over_and_an_invalid_one_is_passed_over() -> None:
    problem = Problem.load(INSTANCES / "linear.m4.json")
    roomy, tight = Limits(ram_budget_bytes=8000), Limits(ram_budget_bytes=3700)
    plan = solve(problem, tight, SolveOptions(time_limit_seconds=None))
    assert plan.schedule is not None
    begun = solve(problem, tight, SolveOptions(time_limit_seconds=1e-9, start=Start(plan.schedule)))
    assert begun.joules == plan.joules
    kept = solve(problem, roomy)
    assert kept.schedule is not None
    again = solve(problem, tight, SolveOptions(start=Start(kept.schedule)))
    assert again.status is Status.OPTIMAL
    assert again.joules == plan.joules


def at_other_prices(of: Problem, objective: Objective) -> Problem:
    """Joules that are seconds, or bytes written."""
    ops = tuple(dataclasses.replace(op, joules=0.0) for op in of.ops)
    tensors = []
    for tensor in of.tensors:
        stored = tensor.bytes if tensor.stored_bytes is None else tensor.stored_bytes
        written = float(stored) if objective is Objective.WRITES else 0.0
        out = None if tensor.page_out is None else dataclasses.replace(tensor.page_out, joules=written)
        back = None if tensor.page_in is None else dataclasses.replace(tensor.page_in, joules=0.0)
        tensors.append(dataclasses.replace(tensor, page_out=out, page_in=back))
    watts = 1.0 if objective is Objective.TIME else 0.0
    return dataclasses.replace(of, ops=ops, tensors=tuple(tensors), idle_watts=watts)


def least(of: Problem, limits: Limits, objective: Objective) -> float | None:
    """By the oracle; ``None``: nothing is within ``limits``."""
    if objective is Objective.RAM:
        found = least_ram_bytes(of, dataclasses.replace(limits, ram_budget_bytes=None))
        budget = limits.ram_budget_bytes
        return None if found is None or (budget is not None and found > budget) else float(found)
    schedule = least_joules(at_other_prices(of, objective), limits)
    return None if schedule is None else amount_of(objective, simulate(of, schedule, limits))


def thorough(objective: Objective) -> SolveOptions:
    """Ends by proof, or where rounding leaves more open than that by its limit."""
    return counted(1.0, relative_gap=1e-9, overhead_gap=1e-9, objective=objective)


@pytest.mark.parametrize("objective", [Objective.TIME, Objective.RAM, Objective.WRITES])
@pytest.mark.parametrize("seed", with_slow(range(16), set(range(5, 16))))
def test_each_objective_equals_the_oracle(seed: int, objective: Objective) -> None:
    of = dataclasses.replace(mixed_problem(seed, largest=5), background_storage=False)
    limits = random_limits(of, seed, deadline=seed % 3 == 0)
    solution = solve(of, limits, thorough(objective))
    expected = least(of, limits, objective)
    if expected is None:
        assert solution.status is Status.INFEASIBLE
        return
    assert solution.schedule is not None
    assert solution.objective is objective
    trace = simulate(of, solution.schedule, limits)
    assert solution.amount == amount_of(objective, trace) == pytest.approx(expected, rel=1e-9)
    assert solution.bound is not None
    assert solution.bound <= expected * (1 + 1e-9)
    cheapest = least_joules(of, limited(limits, objective, amount=expected))
    assert cheapest is not None
    assert trace.joules == pytest.approx(simulate(of, cheapest).joules, rel=1e-6)  # ties by energy
    assert solution.bound_joules <= trace.joules


@pytest.mark.parametrize(
    ("seed", "objective"),
    with_slow(
        [(n, what) for what in (Objective.ENERGY, Objective.TIME, Objective.WRITES) for n in range(5)],
        {(3, Objective.TIME), *((n, what) for what in (Objective.TIME, Objective.WRITES) for n in (2, 4))},
    ),
)
def test_an_energy_budget_is_kept_and_costs_no_more_than_it_must(seed: int, objective: Objective) -> None:
    of = dataclasses.replace(mixed_problem(seed, largest=5), background_storage=False)
    limits = random_limits(of, seed)
    cheapest = least_joules(of, limits)
    if cheapest is None:
        return
    joules = simulate(of, cheapest).joules
    loose = solve(of, limits, thorough(objective))
    asked = thorough(objective)
    exact = solve(of, dataclasses.replace(limits, joules_budget=joules), asked)
    assert exact.joules == pytest.approx(joules, rel=1e-9)
    assert exact.amount is not None
    assert loose.amount is not None
    assert exact.amount >= loose.amount * (1 - 1e-9)
    if joules > 0.0:
        less = solve(of, dataclasses.replace(limits, joules_budget=joules * (1 - 1e-6)), asked)
        assert less.status is Status.INFEASIBLE
        assert "energy budget" in less.message


def test_least_ram_is_the_largest_op_where_everything_can_be_paged() -> None:
    problem = Problem.load(INSTANCES / "linear.m4.json")
    solution = solve(problem, options=SolveOptions(objective=Objective.RAM))
    assert solution.status is Status.OPTIMAL
    assert solution.amount == solution.bound == minimum_ram_bytes(problem).bytes


def on_the_command_line(*arguments: str) -> tuple[int, str, str]:
    return invoke("solve", INSTANCES / "linear.m4.json", *arguments)


@pytest.mark.slow
def test_objectives_limits_and_pins_on_the_command_line(tmp_path: Path) -> None:
    code, out, _ = on_the_command_line("--minimise", "ram")
    assert code == 0
    assert "least RAM        3.18 KiB" in out
    answer = tmp_path / "answer.json"
    code, out, _ = on_the_command_line("--ram", "3700", "--minimise", "time", "--json", str(answer))
    assert code == 0
    data = json.loads(answer.read_text())
    assert data["objective"] == "time"
    assert data["amount"] == data["seconds"]
    assert data["bound"] <= data["amount"]
    slow = data["joules"]
    asked = ("--ram", "3700", "--minimise", "time", "--energy-budget", f"{0.9 * slow * 1e6}uJ")
    code, out, _ = on_the_command_line(*asked, "--json", str(answer))
    assert code == 0
    assert "the energy budget" in out
    tighter = json.loads(answer.read_text())
    assert tighter["joules"] <= 0.9 * slow
    assert tighter["seconds"] >= data["seconds"]
    code, _, err = on_the_command_line("--ram", "3800", "--energy-budget", "1uJ", "--time-limit", "1s")
    assert code == 3
    assert "the energy budget is 1 µJ" in err
    code, out, _ = on_the_command_line("--ram", "4000", "--recompute", "0:*", "--write-budget", "64")
    assert code == 0
    assert "recomputed" in out.partition("pinned")[2].splitlines()[0]
    code, _, err = on_the_command_line("--ram", "4000", "--keep", "wieghts")
    assert (code, "keep 'wieghts' names no tensor and no op" in err) == (2, True)


def test_an_energy_budget_leaves_the_time_limit_as_it_is() -> None:
    """The search for any plan inside it and the search for the least time share one limit."""
    problem = random_problem(152, ops=6)
    limits = dataclasses.replace(random_limits(problem, 152), paging=True, joules_budget=1e6)
    options = dataclasses.replace(counted(3.0), objective=Objective.TIME)
    began = options.clock.now()
    solution = solve(problem, limits, options)
    waited_seconds = options.clock.now() - began
    assert waited_seconds < 3.3
    assert solution.solve_seconds == pytest.approx(waited_seconds, abs=0.1)
