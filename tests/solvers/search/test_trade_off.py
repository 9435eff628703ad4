"""Trade-off curves: the exact front is the oracle's, a sampled one is monotone and says that it is one."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from helpers.clocks import OwnTime
from helpers.oracle import least_joules, least_ram_bytes
from helpers.pace import with_slow
from helpers.random_problems import mixed_problem, training_like
from poet.cli.main import app
from typer.testing import CliRunner

from poet.errors import InputError
from poet.planning.ram_survey import trade_off
from poet.problem import Limits, Objective, Problem
from poet.problem.simulator import simulate
from poet.problem.solution import SolveOptions, Status

INSTANCES = Path(__file__).parents[2] / "instances"


def small(seed: int) -> Problem:
    return dataclasses.replace(mixed_problem(seed, largest=5), background_storage=False)


def ram_front(of: Problem) -> list[tuple[int, float]]:
    """(bytes, joules) of every plan that no other dominates, by asking the oracle about each budget."""
    least = least_ram_bytes(of, Limits())
    front: list[tuple[int, float]] = []
    budget = least
    while budget is not None and (not front or front[-1][1] > of.compute_joules * (1 + 1e-9)):
        schedule = least_joules(of, Limits(ram_budget_bytes=budget))
        assert schedule is not None
        joules = simulate(of, schedule).joules
        if not front or joules < front[-1][1] * (1 - 1e-9):
            front.append((budget, joules))
        budget += 1
    return front


@pytest.mark.parametrize("seed", with_slow(range(4), {0, 2, 3}))
@pytest.mark.slow
def test_the_front_of_ram_and_energy_is_the_oracles(seed: int) -> None:
    of = small(seed)
    expected = ram_front(of)
    curve = trade_off(of)
    assert curve.exact
    assert [point.x for point in curve.points] == [budget for budget, _ in expected]
    assert [point.y for point in curve.points] == pytest.approx([joules for _, joules in expected])
    turned = trade_off(of, x="energy", y="ram")
    assert turned.exact
    assert [p.y for p in reversed(turned.points)] == [p.x for p in curve.points]
    assert [p.x for p in reversed(turned.points)] == pytest.approx([p.y for p in curve.points], rel=1e-5)


@pytest.mark.parametrize(("x", "y"), [("time", "energy"), ("writes", "time"), ("writes", "energy")])
@pytest.mark.parametrize("seed", [1])
def test_each_point_is_the_least_that_its_limit_allows(seed: int, x: str, y: str) -> None:
    of = small(seed)
    floor = least_ram_bytes(of, Limits())
    limits = Limits(ram_budget_bytes=floor)
    curve = trade_off(of, limits, x=x, y=y)
    assert curve.points or floor is None
    for before, after in zip(curve.points, curve.points[1:], strict=False):
        assert before.x < after.x
        assert before.y > after.y
    for point in curve.points if y == "energy" else ():
        amount = point.x * (1 + 1e-9)
        within = (
            dataclasses.replace(limits, deadline_seconds=amount)
            if x == "time"
            else dataclasses.replace(limits, written_budget_bytes=int(point.x))
        )
        best = least_joules(of, within)
        assert best is not None
        if point.solution.status is Status.OPTIMAL:
            assert point.y == pytest.approx(simulate(of, best).joules, rel=1e-5)


@pytest.mark.slow
def test_a_sample_is_monotone_bounded_and_says_so() -> None:
    curve = trade_off(
        training_like(6), options=SolveOptions(time_limit_seconds=4.0, clock=OwnTime()), points=5
    )
    assert not curve.exact
    assert len(curve.points) >= 3
    for before, after in zip(curve.points, curve.points[1:], strict=False):
        assert before.x < after.x
        assert before.y > after.y
    for point in curve.points:
        assert point.y_bound <= point.y
        assert point.x <= point.x_limit


def test_without_any_plan_the_curve_is_empty() -> None:
    of = small(0)
    curve = trade_off(of, Limits(ram_budget_bytes=1))
    assert curve.points == ()


def test_what_is_no_trade_off_is_refused() -> None:
    of = small(0)
    with pytest.raises(InputError, match="'speed' is not an objective; they are energy, time, ram, writes"):
        trade_off(of, x="speed")
    with pytest.raises(InputError, match="between two objectives"):
        trade_off(of, x="ram", y=Objective.RAM)
    with pytest.raises(InputError, match="ask for 2 or more"):
        trade_off(of, points=1)


def test_on_the_command_line(tmp_path: Path) -> None:
    answer = tmp_path / "curve.json"
    problem = str(INSTANCES / "linear.m4.json")
    asked = ["solve", problem, "--trade-off", "ram,energy", "--points", "3", "--json", str(answer)]
    result = CliRunner().invoke(app, [*asked, "--time-limit", "6s"])
    assert result.exit_code == 0, result.output
    assert "A sample of the curve: the least energy for each amount of RAM." in result.stdout
    data = json.loads(answer.read_text())
    assert (data["x"], data["y"], data["exact"]) == ("ram", "energy", False)
    assert data["points"][0]["x"] < data["points"][-1]["x"]
    for wrong in ("ram", "ram,ram", "ram,enregy"):
        failed = CliRunner().invoke(app, ["solve", problem, "--trade-off", wrong])
        assert failed.exit_code == 2
