"""The line that asks for a plan again: given to the command line, it makes the same request."""

from __future__ import annotations

import dataclasses
import shlex
from pathlib import Path

import pytest
import torch
from helpers import hand_net
from helpers.schedules import keep_everything
from poet.cli.main import app
from typer.testing import CliRunner
from zoo import NETS, export

import poet
from poet.ir.optimizer import OptimizerSpec, ParameterGroup
from poet.plans.plan_file import read_plan
from poet.plans.training_plan import Plan
from poet.problem import Objective, Pins, Place
from poet.report.html.subject import asked_by, home_of, python_call, solve_command, without_option

FEW = ("--time-limit", "1s")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("request") / "net.onnx"
    net = NETS["resnet18"].small
    export(net.build(), net.inputs(2), path, exporter="legacy")
    return path


def _hand_plan() -> Plan:
    graph = hand_net.graph()
    problem = hand_net.problem(graph)
    return hand_net.plan(problem, graph, keep_everything(problem))


def _solved(*words: str | Path) -> Plan:
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code == 0, result.stderr
    return read_plan(Path(words[-1]))


@pytest.mark.parametrize(
    "asked",
    [
        pytest.param(("--ram", "4MiB"), marks=pytest.mark.slow),
        ("--ram", "2MiB", "--deadline", "500x", "--home", "storage", "--optimizer", "adamw", "--lr", "0.02"),
        (
            "--ram", "3MB", "--train", "fc*", "--energy-budget", "3J", "--write-budget", "5MiB",
            "--storage", "1GiB", "--never-page", "fc*", "--minimise", "time", "--optimizer", "momentum",
            "--momentum", "0.5", "--weight-decay", "0.001",
        ),
        pytest.param(
            ("--ram", "4MiB", "--no-recompute", "--no-paging", "--minimise", "ram"), marks=pytest.mark.slow
        ),
    ],
    ids=["ram", "storage", "everything", "neither"],
)  # fmt: skip
@pytest.mark.slow
def test_the_command_makes_the_same_request(asked: tuple[str, ...], model: Path, tmp_path: Path) -> None:
    first = _solved("solve", model, "--device", "rpi4b", "--bind", "N=2", *asked, *FEW, "-o", tmp_path / "1")
    label, line = asked_by(first)
    assert label.startswith("the command")
    poet_word, solve, name, *options = shlex.split(line)
    assert (poet_word, solve, name) == ("poet", "solve", model.name)
    again = _solved(solve, model, *options, *FEW, "-o", tmp_path / "2")
    assert again.request == first.request
    assert again.optimizer == first.optimizer
    assert again.model == first.model
    assert again.problem == first.problem
    assert again.outcome.objective is first.outcome.objective
    assert solve_command(again) == line


def test_what_no_option_says_is_said_in_python() -> None:
    plan = _hand_plan()
    file = dataclasses.replace(plan, model=dataclasses.replace(plan.model, name="net", kind="onnx"))
    grouped = OptimizerSpec("momentum", nesterov=True, groups=(ParameterGroup(("a", "b"), lr=0.1),))
    groups = dataclasses.replace(file, optimizer=grouped)
    assert without_option(file.optimizer) == ()
    assert without_option(grouped) == ("groups",)
    label, line = asked_by(groups)
    assert label.startswith("the call of Python")
    assert line.startswith("poet.plan('net.onnx', device=")
    assert "nesterov=True" in line
    settings = OptimizerSpec.parse("rmsprop:alpha=0.9,centered=yes,eps=1e-06")
    options = dataclasses.replace(settings, clip_norm=1.0, groups=(ParameterGroup.parse("norm*:lr=0.5"),))
    words = shlex.split(solve_command(dataclasses.replace(file, optimizer=options)))
    assert words[words.index("--optimizer") + 1] == str(settings)
    assert words[words.index("--group") + 1] == "norm*:lr=0.5"
    assert words[words.index("--clip-norm") + 1] == "1.0"
    module = dataclasses.replace(file, model=dataclasses.replace(file.model, kind="module"))
    assert asked_by(module)[1].startswith("poet.plan(module, example_inputs, device=")


def test_a_modules_call_makes_the_same_request() -> None:
    module, inputs = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU()), torch.randn(4, 8)
    first = poet.plan(
        module, inputs, device="rpi4b", ram="1MiB", deadline="500x", optimizer="adamw", home="storage",
        pins=Pins(never_page=("input*",)), minimise="time",
    ).plan  # fmt: skip
    line = python_call(first)
    names = {"poet": poet, "module": module, "example_inputs": inputs}
    again = eval(line, {**names, "OptimizerSpec": OptimizerSpec, "Pins": Pins}).plan
    assert again.request == first.request
    assert again.optimizer == first.optimizer
    assert again.problem == first.problem
    assert again.outcome.objective is Objective.TIME


def test_homes_are_told_from_the_parameters() -> None:
    graph = hand_net.graph()
    for stored, home in ((False, Place.RAM), (True, Place.STORAGE)):
        assert home_of(hand_net.problem(graph, parameters_in_storage=stored)) is home
