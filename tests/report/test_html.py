"""HTML pages: whole, self-contained, and safe from the names in a stranger's model."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
import random
import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import torch
import vl_convert
from helpers import hand_net
from helpers.c_plans import traced
from helpers.pace import with_slow
from helpers.random_problems import mixed_problem
from helpers.schedules import keep_everything, random_schedule
from poet.cli.main import app
from torch import nn
from typer.testing import CliRunner

from poet.errors import InputError
from poet.homes import decided
from poet.plans.plan_parts import PriceRange
from poet.plans.training_plan import Plan
from poet.problem import Limits, Pins, Problem
from poet.report.diff import diff_plans
from poet.report.energy import kind_of
from poet.report.html import charts, diff_page, plan_page, points, what_if_page
from poet.report.html.charts import ChartAxis, _position
from poet.report.html.page import _chart_library
from poet.report.html.plan_words import headline
from poet.report.html.subject import Subject, subject_of_plan
from poet.report.html.timeline_data import timeline_data
from poet.report.request import asked_by, solve_command
from poet.report.timeline import timeline
from poet.schedule import PageIn, PageOut
from poet.search_record import Advance, Phase, Rejected, SearchRecord
from poet.simulator import simulate
from poet.solution import SolveOptions
from poet.solvers.heuristics.greedy import greedy
from poet.units import format_count, scale_of
from poet.whatif.export import to_csv, to_json
from poet.whatif.question import DataSupply, Duty, EnergyBudget
from poet.whatif.result import WhatIf
from poet.whatif.run import what_if

HOSTILE = '</script><img src=x onerror="window.owned=1"><!--{{7*7}}${1}\''


class Page(HTMLParser):
    """The elements of a page: what it would load, its scripts, its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.handlers: list[str] = []
        self.scripts: list[str] = []
        self.data = ""
        self.policy = ""
        self.words: list[str] = []
        self._inside: str | None = None
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.loads += [value for key in ("src", "href", "data", "action") if (value := given.get(key))]
        self.handlers += [key for key in given if key.startswith("on")]
        if tag == "meta" and given.get("http-equiv") == "Content-Security-Policy":
            self.policy = given["content"] or ""
        if tag in ("script", "style"):
            self._inside = "data" if given.get("type") == "application/json" else tag
            if tag == "script" and self._inside == "script":
                self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        if tag in ("script", "style"):
            self._inside = None

    def handle_data(self, data: str) -> None:
        if self._inside == "script":
            self.scripts[-1] += data
        elif self._inside == "data":
            self.data += data
        elif self._inside is None:
            self.words.append(data)


def mixed_plan(name: str = "hand net") -> Plan:
    """A plan that recomputes and pages, of a model of any name."""
    graph = dataclasses.replace(hand_net.graph(), name=name)
    problem = hand_net.problem(graph)
    schedule = next(
        schedule
        for schedule in (random_schedule(problem, seed) for seed in range(100))
        if simulate(problem, schedule).recomputed_runs and simulate(problem, schedule).read_bytes
    )
    return hand_net.plan(problem, graph, schedule)


def searched(plan: Plan, by: str = "an engine") -> Plan:
    """``plan`` with a record of its search."""
    joules, once = plan.trace.joules, plan.problem.compute_joules
    spent = joules - once
    record = SearchRecord(
        (Phase("greedy plans", 0.02, 0.5, 1), Phase("round 1", 0.5, 30.0, 1, 99 * spent, spent / 2)),
        (Advance(0.4, once + 100 * spent, "greedy"), Advance(12.0, joules, by)),
        (Advance(0.0, once * (1 + 1e-12), "running every op once"), Advance(2.0, once + spent / 2, by)),
        (Rejected("memory", 3, 1),),
    )
    return dataclasses.replace(plan, outcome=dataclasses.replace(plan.outcome, record=record))


def _check_page(text: str) -> dict[str, Any]:
    """A page loads nothing, runs the scripts that it vouches for, and holds its data; the data."""
    page = Page(text)
    assert page.loads == ["data:,"]
    assert page.handlers == []
    assert "connect-src" not in page.policy
    assert page.policy.startswith("default-src 'none'")
    digests = {base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in page.scripts}
    assert len(page.scripts) == 3
    assert set(re.findall(r"'sha256-([^']+)'", page.policy)) == digests
    data: dict[str, Any] = json.loads(page.data)
    for chart in data["charts"].values():
        vl_convert.vegalite_to_vega(chart)  # raises where the specification is not one
    for table in data["tables"].values():
        assert all(len(row) == len(table["columns"]) for row in table["rows"])
    return data


@pytest.mark.slow
def test_the_page_draws_how_the_search_went() -> None:
    plan = searched(mixed_plan(), by=HOSTILE)
    text = plan_page(plan)
    chart = _check_page(text)["charts"]["search"]
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
    assert "the judge rejected 3 by the rule memory (1 by a fault of ours)" in words


@pytest.mark.slow
def test_without_a_record_there_is_no_such_section() -> None:
    text = plan_page(mixed_plan())
    assert "search" not in _check_page(text)["charts"]
    assert "How the search went" not in text


@pytest.mark.slow
def test_a_flat_search_is_drawn_on_plain_axes() -> None:
    """Where plan and bound are at running every op once there is nothing to be logarithmic about."""
    plan = mixed_plan()
    once = plan.problem.compute_joules
    record = SearchRecord(plans=(Advance(0.5, once, "greedy"),), bounds=(Advance(0.4, once, "arithmetic"),))
    flat = dataclasses.replace(plan, outcome=dataclasses.replace(plan.outcome, record=record))
    chart = _check_page(plan_page(flat))["charts"]["search"]
    assert "type" not in chart["layer"][0]["encoding"]["y"]["scale"]
    assert len(chart["data"]["values"]) == 3


def test_a_plans_page() -> None:
    plan = mixed_plan()
    text = plan_page(plan, command="poet explain plan.poet --html page.html")
    data = _check_page(text)
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


def test_a_page_of_a_plan_that_moves_tensors_has_what_moves_take() -> None:
    torch.manual_seed(0)
    plan = traced(nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 4)), torch.randn(3, 6)).plan(
        0, moves=True
    )
    subject = subject_of_plan(plan)
    assert subject.trace.moves
    assert {part.what for part in subject.parts} <= set(charts.PARTS)
    assert "moves in RAM" in plan_page(plan, command="poet explain plan.poet --html page.html")


def test_a_plans_page_shows_the_range_of_its_figures() -> None:
    plan = mixed_plan()
    made = dataclasses.replace(plan.prediction, range=PriceRange(0.0, 987.0, 0.0, 654.0))
    assert "by the device's figures" not in " ".join(Page(plan_page(plan)).words)
    words = " ".join(Page(plan_page(dataclasses.replace(plan, prediction=made))).words)
    assert "0 J to 654 J by the device's figures" in words
    assert "0 s to 987 s by the device's figures" in words


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
    _check_page(text)
    assert text.count("</script>") == 4
    assert "<img" not in re.sub(r"<script>.*?</script>", "", text, flags=re.DOTALL)
    assert HOSTILE in "".join(Page(text).words)
    other = dataclasses.replace(plan, model=dataclasses.replace(plan.model, name="b"))
    page = diff_page(diff_plans(plan, other, names=(HOSTILE, "b")), command=HOSTILE)
    _check_page(page)
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
    return dataclasses.replace(
        subject,
        problem=at_home,
        limits=Limits(),
        schedule=schedule,
        trace=trace,
        line=timeline(at_home, schedule, trace),
    )


def test_a_page_of_thousands_of_ops_stays_small() -> None:
    problem = mixed_problem(0)
    schedule = greedy(problem, Limits())
    assert schedule is not None
    subject = _subject(problem, schedule)
    times = 3000 // len(subject.line.frames)
    many = dataclasses.replace(subject.line, frames=subject.line.frames * times)
    text = json.dumps(timeline_data(dataclasses.replace(subject, line=many)), separators=(",", ":"))
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
        _check_page(text)
        assert " ".join(["poet", *command]) in "".join(Page(text).words)


@pytest.mark.slow
def test_every_colour_of_a_chart_is_one_of_the_style_sheet() -> None:
    text = plan_page(mixed_plan())
    data = Page(text).data
    used = set(re.findall(r"var\(--([a-z0-9-]+)\)", data))
    style = text.partition("<style>")[2].partition("</style>")[0]
    assert used <= set(re.findall(r"--([a-z0-9-]+):", style))
    roles = {charts.role_colour(role)[6:-1] for role in charts.ROLE_ORDER}
    assert roles <= set(re.findall(r"--([a-z0-9-]+):", style))


@pytest.mark.parametrize(
    ("amount", "unit", "scale"),
    [(3 << 20, "B", (2.0**20, "MiB")), (0.02, "J", (1e-3, "mJ")), (5000.0, "s", (1.0, "s")),
     (0.0, "J", (1.0, "J"))],
)  # fmt: skip
def test_scales(amount: float, unit: str, scale: tuple[float, str]) -> None:
    assert scale_of(amount, unit) == scale


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (4.43e8, "443 million"),
        (1234, "1,234"),
        (12.5, "12.5"),
        (2e12, "2 trillion"),
        (float("inf"), "unlimited"),
    ],
)
def test_counts(number: float, words: str) -> None:
    assert format_count(number) == words


# --- the page of a sweep --------------------------------------------------------------------------

INSTANCE = Path(__file__).parents[1] / "instances" / "linear.m4.json"


@pytest.fixture(scope="module")
def swept() -> WhatIf:
    """A real sweep: one problem file, four budgets of which one is too small, two deadlines."""
    return what_if(
        INSTANCE,
        ram="1KiB,min..keep:3",
        deadline="1.05x,none",
        duty=Duty(battery_joules=4e4, energy_budget=EnergyBudget(500.0, "day")),
        data=DataSupply(fetch_seconds=0.01, prepare_seconds=0.02, bytes=4096),
        options=SolveOptions(time_limit_seconds=2.0),
        jobs=1,
        cache=None,
        command=f"poet what-if {HOSTILE}",
    )


@pytest.mark.slow
def test_a_sweeps_page(swept: WhatIf) -> None:
    text = what_if_page(swept)
    data = _check_page(text)
    words = " ".join("".join(Page(text).words).split())
    for answer in swept.answers[1:]:
        assert " ".join(answer.sentence.split()) in words
    assert HOSTILE in words
    rows = data["tables"]["points"]["rows"]
    assert len(rows) == len(swept.points)
    assert {"infeasible", "optimal"} <= {cell for row in rows for cell in row if isinstance(cell, str)}
    assert {"answer", "ram-time", "time-energy", "status", "memory", "stalls"} <= data["charts"].keys()
    assert data["downloads"]["csv"] == to_csv(swept)
    assert data["downloads"]["json"] == json.loads(json.dumps(to_json(swept)))
    ringed = [row for row in data["charts"]["answer"]["data"]["values"] if row["chosen"]]
    assert len(ringed) == 1
    for name in ("answer", "ram-time"):
        layers = data["charts"][name]["layer"]
        assert any("plain training" in str(layer.get("data")) for layer in layers)
    status = data["charts"]["status"]["encoding"]
    shapes = status["shape"]["scale"]["range"]
    assert len(set(shapes)) == len(shapes) == len(status["color"]["scale"]["domain"])
    assert data["charts"]["kinds"]["encoding"]["color"]["legend"]
    charts = json.dumps(data["charts"])
    assert charts.count('"type": "log"') == 0 or ", logarithmic" in charts


def test_an_axis_that_is_logarithmic_says_so() -> None:
    assert _position("x", ChartAxis("energy (mJ)", 1.0, 100.0))["axis"]["title"] == "energy (mJ), logarithmic"
    assert _position("x", ChartAxis("energy (mJ)", 50.0, 100.0))["axis"]["title"] == "energy (mJ)"


@pytest.mark.parametrize(
    ("op", "kind"),
    [
        ("net.0.avg_pool2d", "avg pool2d"), ("net.0.log1p", "log1p"), ("net.0.log10", "log10"),
        ("net.relu6_1", "relu6"), ("net.atan2_backward", "atan2 backward"),
        ("net.upsample_nearest2d", "upsample nearest2d"),
        ("3:layer3_Linear", "layer Linear"), ("15:layer15_Linear", "layer Linear"),
    ],
)  # fmt: skip
def test_a_kind_of_op_keeps_the_digits_of_its_name(op: str, kind: str) -> None:
    assert kind_of(op) == kind


@pytest.mark.slow
def test_a_sweep_that_finds_nothing_has_a_page(swept: WhatIf) -> None:
    chosen = [index for index, point in enumerate(swept.points) if point.plan is None]
    nothing = dataclasses.replace(
        swept,
        points=tuple(swept.points[index] for index in chosen),
        usages=(None,) * len(chosen),
        answers=tuple(dataclasses.replace(swept.answers[0], points=()) for _ in range(1)),
        marginals=(),
        stalls=(),
        chosen=None,
    )
    data = _check_page(what_if_page(nothing))
    assert data["charts"].keys() == {"status"}


@pytest.mark.parametrize("seed", range(5))
def test_a_front_holds_what_nothing_beats(seed: int) -> None:
    rng = random.Random(seed)
    pairs = [(float(rng.randint(0, 9)), float(rng.randint(0, 9))) for _ in range(30)]
    front = points.front_of(pairs)
    kept = {pairs[index] for index in front}
    for x, y in pairs:
        beaten = any(other != (x, y) and other[0] <= x and other[1] <= y for other in pairs)
        assert ((x, y) in kept) != beaten


@pytest.mark.parametrize(
    ("lowest", "highest", "ticks"),
    [(2.0, 30.0, [1, 2, 5, 10, 20, 50, 100, 200, 500]), (1e-3, 10.0, [1e-3, 1e-2, 1e-1, 1, 10])],
)
def test_logarithmic_ticks(lowest: float, highest: float, ticks: list[float]) -> None:
    assert charts.log_ticks(lowest, highest) == pytest.approx(ticks)
