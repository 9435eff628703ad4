"""What more RAM or energy would let a plan train: sets and bounds that never fall, as JSON and as a page."""

from __future__ import annotations

import itertools
import json
import re
import warnings
from pathlib import Path

import pytest
import torch
from helpers.command import invoke
from torch import nn

from poet.planning.choice import Group, Scores
from poet.planning.pipeline import PlanRequest
from poet.report.choices import choices_page
from poet.util import codec
from poet.whatif.choices import ChoiceSweep, choices

SCORES = Scores((Group(("4.*",), 0.5), Group(("2.*",), 0.3), Group(("0.*",), 0.2)))


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 24), nn.Tanh(), nn.Linear(24, 16), nn.Tanh(), nn.Linear(16, 4))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("choices")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(net(), (torch.randn(4, 16),), str(folder / "net.onnx"), dynamo=False)
    (folder / "scores.toml").write_text(SCORES.to_toml())
    return folder


def asked(folder: Path, *more: object) -> tuple[int, str, str]:
    return invoke(
        "what-if", folder / "net.onnx", "--device", "rpi4b", "--choose", folder / "scores.toml", *more
    )


def test_all_is_trained_where_all_fits_and_nothing_for_the_energy_of_nothing() -> None:
    example = torch.randn(4, 16)
    request = PlanRequest(
        net(), example, device="rpi4b", ram=None, choose=SCORES, most=True, time_limit_seconds=1.0
    )
    sweep = choices(request, "keep")
    (roomy,), (poor,) = sweep.by_ram, sweep.by_energy
    assert roomy.contribution == pytest.approx(1.0)
    assert roomy.bound == pytest.approx(1.0)
    assert (poor.groups, poor.contribution) == ((), 0.0)


def test_an_interrupted_sweep_keeps_the_points_that_are_done() -> None:
    def interrupt(done: int, of: int) -> None:
        raise KeyboardInterrupt

    request = PlanRequest(
        net(), torch.randn(4, 16), device="rpi4b", ram=None, choose=SCORES, most=True, time_limit_seconds=1.0
    )
    sweep = choices(request, "keep", interrupt)
    assert (sweep.complete, len(sweep.by_ram), sweep.by_energy) == (False, 1, ())
    page = choices_page(sweep, "poet what-if")
    assert "(interrupted)" in page
    assert "Contribution over the energy" not in page


@pytest.mark.slow
def test_more_of_a_limit_never_trains_less_and_the_bound_is_above(folder: Path) -> None:
    page, data = folder / "page.html", folder / "data.json"
    given = "--ram", "min..keep:3", "--no-paging", "--time-limit", "2s"
    code, said, why = asked(folder, *given, "-o", page, "--json", data)
    assert code == 0, why
    sweep = codec.decode(ChoiceSweep, json.loads(data.read_text()), where="data.json")
    for points in (sweep.by_ram, sweep.by_energy):
        assert len(points) == 3
        for point in points:
            chosen = [group.score for group in SCORES.group if group.words in point.groups]
            assert point.contribution == pytest.approx(sum(chosen))
            assert point.contribution <= point.bound + 1e-9
            assert (point.peak_ram_bytes or 0) <= point.ram_budget_bytes
            assert point.joules_budget is None or (point.joules or 0.0) <= point.joules_budget * (1 + 1e-9)
        for one, other in itertools.pairwise(points):
            assert one.contribution <= other.contribution
            assert one.bound <= other.bound
        assert points[-1].contribution == points[-1].bound == pytest.approx(1.0)
        assert points[0].contribution < 1.0
    found = re.search(
        r'<script type="application/json" id="data">(.*?)</script>', page.read_text(), re.DOTALL
    )
    assert found is not None
    charts = json.loads(found[1])["charts"]
    assert {*charts} == {"ram", "energy"}
    for chart, points in ((charts["ram"], sweep.by_ram), (charts["energy"], sweep.by_energy)):
        drawn = {
            name: [row["y"] for row in chart["data"]["values"] if row["series"] == name]
            for name in ("best plan", "bound")
        }
        assert drawn["best plan"] == pytest.approx([100 * point.contribution for point in points])
        assert drawn["bound"] == pytest.approx([100 * point.bound for point in points])
    assert "3 of 3 groups" in said


def test_what_is_no_question_about_one_step_is_refused(folder: Path) -> None:
    for given, wrong in (
        (("--batch", "4"), "leave --batch out"),
        (("-o", folder / "a.csv"), ".html or .json"),
    ):
        code, _, why = asked(folder, *given)
        assert code != 0
        assert wrong in why
