"""The page of a what-if sweep."""

from __future__ import annotations

import dataclasses
import json

import pytest
from helpers.html_pages import HOSTILE, INSTANCE, Page, check_page

from poet.problem.solution import SolveOptions
from poet.report.html import what_if_page
from poet.whatif.export import to_csv, to_json
from poet.whatif.question import DataSupply, Duty, EnergyBudget
from poet.whatif.result import WhatIf
from poet.whatif.run import what_if


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
