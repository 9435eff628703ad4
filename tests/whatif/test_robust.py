"""Plans where a device's figures are off: blends of corners, the largest regret and its bound, slack."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import itertools
import json
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from helpers import hand_net
from helpers.schedules import keep_everything
from poet.cli.main import app
from torch import nn
from typer.testing import CliRunner
from zoo import export

from poet.devices.device_problem import build_problem
from poet.devices.load import load_profile
from poet.devices.profile import Profile
from poet.devices.spread import AXES, SIDES, at_ends, uncertain_groups
from poet.errors import Infeasible, InvalidSchedule
from poet.graph import Graph
from poet.homes import DecidedProblem, decided
from poet.problem import Limits
from poet.ram_survey import keep_everything_bytes
from poet.schedule import Schedule
from poet.simulator import judge
from poet.solution import Solution, SolveOptions
from poet.solvers import minimum_ram_bytes, solve
from poet.whatif.blended import at_pace, blend, joules_as_seconds
from poet.whatif.cache import Cache
from poet.whatif.regrets import hardest_weights
from poet.whatif.robust import (
    ALL_SHARE,
    BLEND_SHARE,
    CAPPED_SHARE,
    CORNER_SHARE,
    MOST_BLENDS,
    Robust,
    robust,
)
from poet.whatif.searches import Solver
from poet.whatif.sensitivity import Slack, sensitivity, slack_words, slacks
from poet.whatif.workers import Task, Workers, working

OPTIONS = SolveOptions(time_limit_seconds=0.5)
robust_module: Any = importlib.import_module("poet.whatif.robust")


@pytest.fixture
def solver() -> Iterator[Solver]:
    with working(Workers()) as run:
        yield Solver(OPTIONS, Cache(None), run)


def _step(device: str, share: float = 0.3) -> tuple[Graph, Profile, DecidedProblem, Limits, Solution]:
    """A step of two layers in so much of the RAM between the least and that of keeping everything."""
    graph, profile = hand_net.graph(), load_profile(device)
    problem = build_problem(graph, profile, hand_net.KERNELS)
    least, most = minimum_ram_bytes(problem, Limits()).bytes, keep_everything_bytes(problem)
    limits = Limits(ram_budget_bytes=int(least + share * (most - least)))
    solution = solve(problem, limits, OPTIONS)
    assert solution.schedule is not None
    return graph, profile, decided(problem, solution.schedule), limits, solution


def _robust(
    device: str, solver: Solver, *, deadline_seconds: float | None = None, share: float = 0.3
) -> tuple[Robust, DecidedProblem, Graph, Profile, Limits, Schedule]:
    graph, profile, problem, limits, solution = _step(device, share)
    limits = dataclasses.replace(limits, deadline_seconds=deadline_seconds)
    assert solution.schedule is not None
    made = robust(
        problem, graph, profile, limits, solution.schedule, solver, nominal_seconds=solution.solve_seconds
    )
    return made, problem, graph, profile, limits, solution.schedule


@pytest.mark.parametrize(
    ("device", "share"),
    [
        ("mkr1000", 0.3),
        ("nrf52840", 0.3),
        pytest.param("mkr1000", 0.2, marks=pytest.mark.slow),  # no blend of corners has its best plan
    ],
)
def test_the_largest_regret_is_between_its_bound_and_that_of_the_stated_plan(
    device: str, share: float, solver: Solver
) -> None:
    found, problem, graph, profile, limits, nominal = _robust(device, solver, share=share)
    assert (found.regret > 1e-3) == (share == 0.2)
    assert len(found.corners) == 8
    assert {corner.ends for corner in found.corners} == {
        tuple(zip(AXES, sides, strict=True)) for sides in itertools.product(("good", "bad"), repeat=3)
    }
    regrets, nominal_regrets = [], []
    for corner in found.corners:
        there = DecidedProblem(at_ends(problem, graph, profile, dict(corner.ends), AXES))
        assert judge(there, found.schedule, limits).joules == corner.joules
        assert judge(there, nominal).joules == corner.nominal_joules
        assert corner.bound_joules <= corner.best_joules * (1 + 1e-6)
        assert corner.best_joules <= min(corner.joules, corner.nominal_joules)
        regrets.append(corner.joules / corner.best_joules - 1)
        nominal_regrets.append(corner.nominal_joules / corner.best_joules - 1)
    assert found.regret == pytest.approx(max(regrets), abs=1e-12)
    assert found.nominal_regret == pytest.approx(max(nominal_regrets), abs=1e-12)
    assert found.regret_bound <= found.regret + 1e-6 <= found.regret_at_most + 2e-6
    assert found.regret <= found.nominal_regret + 1e-12
    assert not found.nominal_is_late


@pytest.mark.slow
def test_a_deadline_holds_at_the_bad_end(solver: Solver) -> None:
    free, problem, graph, profile, _, nominal = _robust("mkr1000", solver)
    bad = DecidedProblem(at_ends(problem, graph, profile, dict.fromkeys(AXES, "bad"), AXES))
    just = judge(bad, nominal).seconds * (1 + 1e-9)
    assert just >= judge(problem, nominal).seconds
    found, *_ = _robust("mkr1000", solver, deadline_seconds=just)
    assert found.slow_seconds <= just
    assert judge(bad, found.schedule).seconds == found.slow_seconds
    with pytest.raises(Infeasible, match=r"bad ends running every op once takes .*; the deadline is"):
        _robust("mkr1000", solver, deadline_seconds=bad.compute_seconds * 0.9)
    assert free.slow_seconds > 0


def test_a_plan_that_cannot_be_used_is_passed_over(solver: Solver) -> None:
    graph, profile, problem, limits, solution = _step("nrf52840")
    assert solution.schedule is not None
    asked: list[Schedule] = []

    def none(schedule: Schedule) -> bool:
        asked.append(schedule)
        return False

    found = robust(
        problem, graph, profile, limits, solution.schedule, solver, nominal_seconds=1.0, accepts=none
    )
    assert asked
    assert found.schedule == solution.schedule
    assert found.regret == found.nominal_regret


def test_searches_together_take_nine_times_the_plans_own_at_most() -> None:
    limits_seconds: list[float] = []

    def note(tasks: Sequence[Task]) -> Iterator[tuple[int, bytes | None]]:
        for task in tasks:
            assert isinstance(task, functools.partial)
            limits_seconds.append(task.args[2].time_limit_seconds)
        yield from ()

    graph, profile, problem, limits, solution = _step("mkr1000")
    assert solution.schedule is not None
    nowhere = Solver(OPTIONS, Cache(None), note)
    found = robust(problem, graph, profile, limits, solution.schedule, nowhere, nominal_seconds=10.0)
    assert len(limits_seconds) == found.searches == 8
    assert sum(limits_seconds) <= 8 * CORNER_SHARE * 10.0
    assert 8 * CORNER_SHARE + MOST_BLENDS * BLEND_SHARE + 3 * CAPPED_SHARE <= ALL_SHARE + 1e-9
    assert found.schedule == solution.schedule


@pytest.mark.slow
def test_where_searches_take_longer_than_they_may_there_are_fewer(
    solver: Solver, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = itertools.count(step=5)
    monkeypatch.setattr(robust_module, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    found, *_ = _robust("mkr1000", solver, share=0.2)
    assert found.regret > 1e-3
    assert (found.searches, found.search_seconds) == (8, 40)


@pytest.mark.parametrize("device", ["mkr1000", "rpi4b", "pixel"])
def test_a_blend_charges_the_weighted_mean_of_its_corners(device: str) -> None:
    graph, profile, problem, _, solution = _step(device)
    assert solution.schedule is not None
    rng = random.Random(0)
    axes = uncertain_groups(profile, AXES)
    corners = [
        at_ends(problem, graph, profile, dict(zip(axes, sides, strict=True)), AXES)
        for sides in itertools.product(SIDES, repeat=len(axes))
    ]
    weights = [rng.random() for _ in corners]
    blended = DecidedProblem(blend(corners, weights, corners[-1]))
    for schedule in (solution.schedule, keep_everything(problem)):
        meant = sum(
            weight * judge(DecidedProblem(corner), schedule).joules
            for weight, corner in zip(weights, corners, strict=True)
        )
        charged = judge(blended, schedule).joules
        assert charged <= meant * (1 + 1e-9)
        if not problem.background_storage:
            assert charged == pytest.approx(meant, rel=1e-9)
    paced = DecidedProblem(at_pace(corners[0], corners[-1]))
    trace = judge(paced, solution.schedule)
    assert trace.seconds == pytest.approx(judge(DecidedProblem(corners[-1]), solution.schedule).seconds)
    assert trace.joules <= judge(DecidedProblem(corners[0]), solution.schedule).joules * (1 + 1e-9)


@pytest.mark.parametrize("device", ["mkr1000", "rpi4b"])
def test_a_deadline_in_joules_limits_them_at_one_corner(device: str) -> None:
    graph, profile, problem, limits, solution = _step(device)
    assert solution.schedule is not None
    corners = [
        at_ends(problem, graph, profile, {axis: side}, AXES) for axis in AXES for side in ("good", "bad")
    ]
    best = judge(DecidedProblem(corners[2]), solution.schedule).joules
    capped = DecidedProblem(blend(corners, [1.0] * len(corners), joules_as_seconds(corners[2], best)))
    for schedule in (solution.schedule, keep_everything(problem)):
        there = judge(DecidedProblem(corners[2]), schedule).joules
        assert judge(capped, schedule).seconds == pytest.approx(there / best, rel=1e-9)
    judge(capped, solution.schedule, dataclasses.replace(limits, deadline_seconds=1.0))
    with pytest.raises(InvalidSchedule, match="deadline"):
        judge(capped, solution.schedule, dataclasses.replace(limits, deadline_seconds=0.999))


@pytest.mark.parametrize(
    ("regrets", "weights", "value"),
    [
        ([[0.0, 1.0], [1.0, 0.0]], [0.5, 0.5], 0.5),
        ([[0.0, 3.0], [1.0, 0.0]], [0.75, 0.25], 0.75),
        ([[0.2, 0.1], [0.4, 0.3]], [1.0, 0.0], 0.2),
    ],
)
def test_the_weights_are_those_of_the_game(
    regrets: list[list[float]], weights: list[float], value: float
) -> None:
    found = hardest_weights(np.array(regrets))
    assert found == pytest.approx(weights, abs=0.05)
    assert min(np.array(regrets) @ found) == pytest.approx(value, rel=0.05)
    assert found.sum() == pytest.approx(1.0)


# --- sensitivity ----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_groups_are_shifted_one_by_one(solver: Solver) -> None:
    graph, profile, problem, limits, solution = _step("mkr1000")
    assert solution.schedule is not None
    found = sensitivity(problem, graph, profile, limits, solution.schedule, solver)
    assert found.complete
    assert {shift.group for shift in found.shifts} == set(uncertain_groups(profile))
    for shift in found.shifts:
        there = DecidedProblem(at_ends(problem, graph, profile, {shift.group: shift.side}))
        assert judge(there, solution.schedule).joules == shift.joules
        assert shift.best_joules is not None
        assert shift.bound_joules <= shift.best_joules * (1 + 1e-6)
        assert 0.0 <= shift.regret <= shift.regret_at_most + 1e-9
    worst = max(found.shifts, key=lambda shift: shift.regret)
    assert found.decides(worst.group) == (worst.regret > 1e-3)
    assert found.slacks == ()


def test_an_exact_device_has_nothing_to_be_sensitive_to(solver: Solver) -> None:
    graph, profile, problem, limits, solution = _step("compat-mkr1000")
    assert solution.schedule is not None
    found = sensitivity(problem, graph, profile, limits, solution.schedule, solver)
    assert found.shifts == ()


@pytest.mark.parametrize("device", ["mkr1000", "pixel"])
def test_the_slack_is_where_the_deadline_begins_to_be_missed(device: str) -> None:
    graph, profile, problem, limits, solution = _step(device)
    schedule = solution.schedule
    assert schedule is not None
    deadline_seconds = 1.3 * judge(problem, schedule).seconds
    limits = dataclasses.replace(limits, deadline_seconds=deadline_seconds)
    found = {slack.what: slack.factor for slack in slacks(problem, graph, profile, limits, schedule)}
    factor = found["all ops"]
    assert factor is not None

    def seconds(times: float) -> float:
        ops = tuple(dataclasses.replace(op, seconds=op.seconds * times) for op in problem.ops)
        return judge(DecidedProblem(dataclasses.replace(problem, ops=ops)), schedule).seconds

    assert seconds(factor * 0.999) <= deadline_seconds < seconds(factor * 1.001)
    for what, each in found.items():
        assert each is None or "page" in what or each >= factor * (1 - 1e-6)


def test_slack_in_words() -> None:
    assert slack_words(Slack("convolutions", 1.4)) == "holds until convolutions are 1.4 times slower"
    assert slack_words(Slack("copies", None)) == "holds however slow copies are"
    assert "no more than 0.2 % slower" in slack_words(Slack("copies", 1.002))


# --- the command ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("robust") / "net.onnx"
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(),
                        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4))  # fmt: skip
    export(net, (torch.randn(2, 3, 8, 8),), path, exporter="legacy")
    return path


@pytest.mark.slow
def test_the_command_tells_both(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    plan, answer = tmp_path / "plan.poet", tmp_path / "answer.json"
    where = ["--device", "mkr1000", "--bind", "N=2", "--ram", "14KiB", "--deadline", "20x"]
    asked = ["solve", str(model), *where, "--robust", "--sensitivity"]
    asked += ["--time-limit", "1s", "-o", str(plan)]
    result = CliRunner().invoke(app, [*asked, "--json", str(answer)])
    assert result.exit_code == 0, result.stderr
    assert "robust: at the ends of mkr1000's figures this plan takes at most" in result.stdout
    assert "holds until all ops are" in result.stdout
    told = json.loads(answer.read_text())
    assert told["robust"]["regret_bound"] <= told["robust"]["regret"] + 1e-6
    assert told["robust"]["slow_seconds"] == told["range"]["bad_seconds"]
    assert len(told["robust"]["corners"]) == 8
    assert {shift["group"] for shift in told["sensitivity"]["shifts"]} >= {"reads", "writes", "power"}
    assert plan.exists()


Refusal = Callable[[Path], list[str]]
REFUSALS: dict[str, Refusal] = {
    "needs --ram": lambda model: [str(model), "--device", "mkr1000", "--robust"],
    "is about energy; leave --minimise out": lambda model: [
        str(model), "--device", "mkr1000", "--ram", "14KiB", "--sensitivity", "--minimise", "time"
    ],
    "has costs alone: give a model": lambda model: [
        str(Path(__file__).parents[1] / "instances" / "linear.m4.json"), "--ram", "14KiB", "--robust"
    ],
}  # fmt: skip


@pytest.mark.parametrize("words", REFUSALS)
def test_what_makes_no_sense_is_refused_in_one_line(words: str, model: Path) -> None:
    result = CliRunner().invoke(app, ["solve", *REFUSALS[words](model)])
    assert result.exit_code == 2
    assert words in result.stderr
    assert result.stderr.count("\n") == 1
