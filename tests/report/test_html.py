"""Pages of plans and of their differences: what is drawn, what is said, and that names stay text."""

from __future__ import annotations

import dataclasses
import inspect
import io
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import hand_net
from helpers.c_plans import traced
from helpers.html_pages import HOSTILE, Page, check_page, mixed_plan, searched
from helpers.pace import with_slow
from helpers.random_problems import mixed_problem
from helpers.schedules import keep_everything, random_schedule
from poet.cli.main import app
from rich.console import Console
from torch import Tensor, nn
from typer.testing import CliRunner

import poet
from poet import PlanFile
from poet.errors import InputError, PlanError
from poet.plans.plan_parts import PriceEnds, PriceRange
from poet.problem import Limits, Pins, Problem
from poet.problem.homes import decided
from poet.problem.schedule import PageIn, PageOut
from poet.problem.simulator import simulate
from poet.report.diff import diff_page, diff_plans
from poet.report.html import _chart_library
from poet.report.html.plan_page import PART_COLOURS, headline, plan_page, timeline_data
from poet.report.html.subject import Subject, asked_by, solve_command, subject_of_plan
from poet.report.plan import plan_summary
from poet.solvers.heuristics.greedy import greedy


@pytest.mark.slow
def test_the_page_draws_how_the_search_went() -> None:
    plan = searched(mixed_plan(), by=HOSTILE)
    text = plan_page(plan)
    chart = check_page(text)["charts"]["search"]
    rows = chart["data"]["values"]
    found = [(row["series"], row["x"], row["by"]) for row in rows if row["found"]]
    assert found == [
        ("best plan", 0.4, "greedy"), ("best plan", 12.0, HOSTILE), ("bound", 2.0, HOSTILE),
    ]  # fmt: skip
    assert {row["series"]: row["x"] for row in rows} == {"best plan": 30.0, "bound": 30.0}, "lines go on"
    line, points = chart["layer"]
    assert line["encoding"]["x"]["scale"]["type"] == line["encoding"]["y"]["scale"]["type"] == "log"
    assert line["encoding"]["strokeDash"]["legend"] is not None
    assert points["encoding"]["shape"]["scale"]["range"] == ["circle", "triangle-up"]
    words = " ".join(Page(text).words)
    assert "Logarithmic: time and energy." in words
    assert "round 1" in words
    assert "the simulator rejected 3 by the rule memory (1 by a fault of ours)" in words


def test_a_plans_page() -> None:
    plan = mixed_plan()
    text = plan_page(plan, command="poet explain plan.poet --html page.html")
    data = check_page(text)
    words = " ".join("".join(Page(text).words).split())
    for expected in (
        headline(subject_of_plan(plan)),
        "poet explain plan.poet --html page.html",
        asked_by(plan)[1],
        "infeasible: needs",
        "The plan is valid",
        "no profile of this poet",
    ):
        assert " ".join(expected.split()) in words
    assert {row[0] for row in data["tables"]["tensors"]["rows"]} == {t.name for t in plan.problem.tensors}
    assert {row[2] for row in data["tables"]["tensors"]["rows"]} >= {"kept", "paged"}
    assert text == plan_page(plan, command="poet explain plan.poet --html page.html"), "not reproducible"


class Doubled(nn.Module):
    """With a line that no module of torch makes."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(4, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.head(torch.tanh(self.body(x)) * 2.0)
        return made


def test_a_page_names_the_lines_of_the_models_source(tmp_path: Path) -> None:
    planned = poet.plan(Doubled(), torch.zeros(2, 4), device="rpi4b", ram=None, time_limit_seconds=1.0)
    planned.save(tmp_path / "own.poet")
    with PlanFile(tmp_path / "own.poet") as file:
        plan = file.plan
    lines = dict(plan.model.lines)
    source, first = inspect.getsourcelines(Doubled.forward)
    assert lines["tanh"] == f"test_html.py:{first + 1} ({source[1].strip()})"
    assert {"body.addmm", "tanh", "mul", "head.addmm"} == lines.keys()
    assert f"Made at {lines['tanh']}." in json.dumps(plan_page(plan)).replace("\\", "")
    hostile = dataclasses.replace(plan, model=dataclasses.replace(plan.model, lines=(("tanh", HOSTILE),)))
    check_page(plan_page(hostile))


def test_a_page_of_a_plan_that_moves_tensors_has_what_moves_take() -> None:
    torch.manual_seed(0)
    plan = traced(nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 4)), torch.randn(3, 6)).plan(
        0, moves=True
    )
    subject = subject_of_plan(plan)
    assert subject.trace.moves
    assert {part.what for part in subject.parts} <= set(PART_COLOURS)
    assert "moves in RAM" in plan_page(plan, command="poet explain plan.poet --html page.html")


def test_a_plans_page_shows_the_range_of_its_figures() -> None:
    plan = mixed_plan()
    whole = PriceRange(0.0, 987.0, 0.0, 654.0)
    made = dataclasses.replace(plan.prediction, range=whole)
    assert "figures may be off" not in " ".join(Page(plan_page(plan)).words)
    words = " ".join(Page(plan_page(dataclasses.replace(plan, prediction=made))).words)
    assert "0 J to 654 J as far as the device's figures may be off" in words
    assert "0 s to 987 s as far as the device's figures may be off" in words
    likely = dataclasses.replace(whole, likely=PriceEnds(0.1, 0.2, 0.05, 0.07))
    made = dataclasses.replace(made, range=likely)
    words = " ".join(Page(plan_page(dataclasses.replace(plan, prediction=made))).words)
    assert "50 mJ to 70 mJ in nine cases of ten" in words
    assert "may be off" not in words, "one range per figure"


def test_the_command_that_asks_for_a_plan_names_every_limit() -> None:
    plan = mixed_plan()
    moved = {step.tensor for step in plan.schedule if isinstance(step, PageIn | PageOut)}
    still = next(tensor.name for tensor in plan.problem.tensors if tensor.name not in moved)
    limits = dataclasses.replace(
        plan.request.limits,
        deadline_seconds=1.5,
        written_budget_bytes=1 << 30,
        joules_budget=2.5,
        pins=Pins(never_page=(f"{still}*",)),
    )
    asked = dataclasses.replace(plan.request, limits=limits, train=("second.*",))
    command = solve_command(dataclasses.replace(plan, request=asked))
    for words in (
        f"--ram {limits.ram_budget_bytes}B", "--deadline 1.5s", "--energy-budget 2.5J",
        "--write-budget 1073741824B",
        f"--never-page '{still}*'", "--train 'second.*'", "--loss mse", "--optimizer sgd --lr 0.1",
    ):  # fmt: skip
        assert words in command


def test_names_from_strangers_stay_text() -> None:
    graph = dataclasses.replace(hand_net.graph(), name=HOSTILE)
    problem = hand_net.problem(graph)
    plan = hand_net.plan(problem, graph, keep_everything(problem))
    text = plan_page(plan, command=HOSTILE)
    check_page(text)
    assert text.count("</script>") == 4
    assert "<img" not in re.sub(r"<script>.*?</script>", "", text, flags=re.DOTALL)
    assert HOSTILE in "".join(Page(text).words)
    other = dataclasses.replace(plan, model=dataclasses.replace(plan.model, name="b"))
    page = diff_page(diff_plans(plan, other, names=(HOSTILE, "b")), command=HOSTILE)
    check_page(page)
    assert page.count("</script>") == 4


@pytest.mark.parametrize("seed", with_slow(range(6), {2, 3, 4, 5}))
def test_timeline_data_adds_up_to_the_trace(seed: int) -> None:
    problem = mixed_problem(seed)
    schedule = greedy(problem, Limits())
    assert schedule is not None
    subject = _subject(problem, schedule)
    data = timeline_data(subject)
    frames = len(data["what"])
    held = [0] * (frames + 1)
    for tensor, first, last in zip(*(data["stays"][part::3] for part in range(3)), strict=True):
        held[first] += data["bytes"][tensor]
        held[last] -= data["bytes"][tensor]
    running = 0
    for frame, shown in enumerate(subject.line.frames):
        running += held[frame]
        assert running + data["workspace"][frame] == shown.ram_bytes
    assert data["at"] == sorted(data["at"])
    assert data["roles"][-1]["name"] == "workspace"


def _subject(problem: Problem, schedule: Any) -> Subject:
    plan = mixed_plan()
    subject = subject_of_plan(plan)
    trace = simulate(problem, schedule)
    at_home = decided(problem, schedule)
    solution = dataclasses.replace(subject.solution, schedule=schedule, trace=trace)
    return dataclasses.replace(subject, problem=at_home, limits=Limits(), solution=solution)


def test_a_page_of_thousands_of_ops_stays_small() -> None:
    problem = mixed_problem(0)
    schedule = greedy(problem, Limits())
    assert schedule is not None
    subject = _subject(problem, schedule)
    times = 3000 // len(subject.line.frames)
    many = dataclasses.replace(subject.line, frames=subject.line.frames * times)
    text = json.dumps(timeline_data(subject, many), separators=(",", ":"))
    assert len(text) < 60 * 3000


def test_without_its_packages_the_report_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    _chart_library.cache_clear()
    with pytest.raises(InputError, match=r"needs vl_convert; to have it: pip install '\.\[report\]' in"):
        plan_page(mixed_plan())


@pytest.mark.slow
def test_the_commands(tmp_path: Path) -> None:
    hand_net.write(tmp_path / "a.poet")
    hand_net.write(tmp_path / "b.poet", random_schedule(hand_net.problem(hand_net.graph()), 3))
    for arguments in (("explain", "a.poet"), ("diff", "a.poet", "b.poet")):
        page = tmp_path / "page.html"
        files = [str(tmp_path / name) for name in arguments[1:]]
        command = [arguments[0], *files, "--html", str(page)]
        result = CliRunner().invoke(app, command)
        assert result.exit_code == 0, result.stderr
        text = page.read_text()
        check_page(text)
        assert " ".join(["poet", *command]) in "".join(Page(text).words)


def test_reports_say_how_long_storage_lasts() -> None:
    """Raw flash by its busiest block, levelled storage by its bytes; older plans, which knew neither, not."""
    plan = mixed_plan()
    out = [step.tensor for step in plan.schedule if isinstance(step, PageOut)]
    assert out
    most = max(map(out.count, out))

    def said(**of: Any) -> tuple[str, str]:
        device = dataclasses.replace(plan.device, **of)
        other = dataclasses.replace(plan, device=device)
        console = Console(file=io.StringIO(), width=300, record=True)
        console.print(plan_summary(other))
        return console.export_text(), " ".join(Page(plan_page(other)).words)

    steps = f"{100_000 / most:,.0f}"
    text, page = said(endurance_bytes=1e15, endurance_cycles=100_000, erase_block_bytes=4096)
    assert f"storage lasts {steps} steps; each erases its busiest block {most} time" in text
    assert f"storage lasts {steps} steps" in page
    text, page = said(endurance_bytes=1e15, wear_levelled=True)
    assert "storage lasts" in text
    assert "wears" in text
    assert "busiest" not in text
    for silent in ({}, {"endurance_bytes": 1e15}):
        assert not any("storage lasts" in told for told in said(**silent)), silent
    for wrong in ({"endurance_cycles": 0}, {"erase_block_bytes": 0}):
        with pytest.raises(PlanError, match="erases blocks of 1 byte or more"):
            said(**wrong)
