"""The page of a what-if sweep."""

from __future__ import annotations

import dataclasses
import itertools
import json

import pytest
from helpers.html_pages import HOSTILE, INSTANCE, Page, check_page

from poet.ir.micro import MicroBatches
from poet.problem.solution import SolveOptions
from poet.report.html.charts import LABEL_PIXELS, look_of
from poet.report.html.what_if_page import what_if_page
from poet.whatif.answers import LEAST_ENERGY
from poet.whatif.grid import DataSupply, Duty, EnergyBudget
from poet.whatif.result import Answer, Basis, WhatIf
from poet.whatif.run import to_csv, to_json, what_if


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
    data = check_page(text)
    words = " ".join("".join(Page(text).words).split())
    for answer in swept.answers[1:]:
        assert " ".join(answer.sentence.split()) in words
    assert HOSTILE in words
    rows = data["tables"]["points"]["rows"]
    assert len(rows) == len(swept.points)
    assert {"infeasible", "optimal"} <= {cell for row in rows for cell in row if isinstance(cell, str)}
    assert {"answer-0", "ram-time-0", "time-energy-0", "status", "memory"} <= data["charts"].keys()
    assert data["downloads"]["csv"] == to_csv(swept)
    assert data["downloads"]["json"] == json.loads(json.dumps(to_json(swept)))
    ringed = [row for row in data["charts"]["answer-0"]["data"]["values"] if row["chosen"]]
    assert len(ringed) == 1
    for name in ("answer-0", "ram-time-0"):
        assert any("plain training" in str(layer["encoding"]) for layer in data["charts"][name]["layer"])
    status = data["charts"]["status"]["encoding"]
    shapes = status["shape"]["scale"]["range"]
    assert len(set(shapes)) == len(shapes) == len(status["color"]["scale"]["domain"])
    assert data["charts"]["kinds"]["encoding"]["color"]["legend"]
    charts = json.dumps(data["charts"])
    assert charts.count('"type": "log"') == 0 or ", logarithmic" in charts


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
    data = check_page(what_if_page(nothing))
    assert data["charts"].keys() == {"status"}


def test_each_device_has_a_panel_and_each_setting_a_name_a_colour_and_a_shape(swept: WhatIf) -> None:
    """Sixteen settings on two devices: the same axes, names apart; the least energy of several is a table."""
    first = next(index for index, point in enumerate(swept.points) if point.plan is not None)
    settings, points = [], []
    for number in range(16):
        device, pieces = f"board-{number % 2}", MicroBatches(2 + number // 2)
        settings.append(dataclasses.replace(swept.settings[0], device=device, batch=64, micro=pieces))
        points.append(dataclasses.replace(swept.points[first], setting=number))
    answers = tuple(Answer(LEAST_ENERGY, "In words.", Basis.SOLVED, (number,)) for number in (0, 1))
    many = dataclasses.replace(
        swept, settings=tuple(settings), points=tuple(points), usages=(swept.usages[first],) * 16,
        answers=(swept.answers[0], *answers), marginals=(), stalls=(), chosen=None,
    )  # fmt: skip
    text = what_if_page(many)
    charts = check_page(text)["charts"]
    assert {"answer-0", "answer-1", "time-energy-1"} <= charts.keys()
    assert "answer-2" not in charts
    scales = set()
    for name in ("answer-0", "answer-1"):
        *_, words = charts[name]["layer"]
        labels = words["data"]["values"]
        assert len({label["text"] for label in labels}) == 8
        assert len({(label["colour"], label["shape"]) for label in labels}) == 8
        heights = sorted(label["at"] for label in labels)
        assert all(below - above >= LABEL_PIXELS for above, below in itertools.pairwise(heights))
        assert 0 <= heights[0] <= heights[-1] <= charts[name]["height"]
        scales.add(json.dumps([charts[name]["layer"][0]["encoding"][axis]["scale"] for axis in "xy"]))
    assert len(scales) == 1, "panels are compared on the same axes"
    assert len({look_of(number) for number in range(64)}) == 64
    assert "In words." not in " ".join(Page(text).words)
    assert "energy of a step" in " ".join(Page(text).words)
