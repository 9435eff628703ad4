"""Micro-batches as an axis of a sweep: both schedules judged, counted as a step, and told apart."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import poet
from poet.errors import InputError
from poet.problem import Place
from poet.report.html.what_if_page import what_if_page
from poet.simulator import simulate
from poet.solution import SolveOptions
from poet.whatif import export
from poet.whatif.result import Verdict, WhatIf
from poet.whatif.run import what_if

QUICK = SolveOptions(time_limit_seconds=0.2)
SAMPLES = 4


def _net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(12, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 3))


def _inputs(samples: int = SAMPLES) -> Tensor:
    return torch.randn(samples, 12, generator=torch.Generator().manual_seed(1))


@cache
def _swept() -> WhatIf:
    return what_if(
        _net(), _inputs(), device="rpi4b", ram="min,keep,64KiB", deadline="1.5x,none", micro="1,2,2:layers",
        options=QUICK, jobs=1, cache=None, marginal=False,
    )  # fmt: skip


def test_a_step_is_all_its_pieces_as_the_judge_counts_them() -> None:
    result = _swept()
    assert [setting.micro_text for setting in result.settings] == ["1", "2", "2:layers"]
    assert result.question.micro == ("1", "2", "2:layers")
    assert [setting.batch for setting in result.settings] == [SAMPLES] * 3
    planned = 0
    for point in result.points:
        setting, plan = result.setting_of(point), result.plan_of(point)
        assert point.verdict is not Verdict.UNSOLVED
        if plan is None:
            continue
        planned += 1
        traces = [simulate(setting.problem, plan.schedule)]
        assert (plan.accumulating is None) == (setting.accumulating is None)
        if setting.accumulating is not None and plan.accumulating is not None:
            traces.append(simulate(setting.accumulating.problem, plan.accumulating))
        assert plan.joules == pytest.approx(sum(trace.joules for trace in traces), rel=1e-12)
        assert plan.seconds == pytest.approx(sum(trace.seconds for trace in traces), rel=1e-12)
        assert plan.peak_ram_bytes == max(trace.peak_ram_bytes for trace in traces)
        assert plan.peak_ram_bytes <= (point.limits.ram_budget_bytes or 0)
        assert plan.seconds <= (point.limits.deadline_seconds or plan.seconds)
        assert point.bound_joules <= plan.joules
        assert point.bound_joules >= setting.compute_joules * (1 - 1e-9)
    assert planned >= len(result.points) // 2


@pytest.mark.parametrize("micro", ["2", "2:layers"])
def test_the_largest_budget_takes_what_a_plan_of_it_takes(micro: str) -> None:
    result = _swept()
    (number,) = (n for n, setting in enumerate(result.settings) if setting.micro_text == micro)
    mine = [point for point in result.points if point.setting == number and point.deadline is None]
    largest = max(mine, key=lambda point: point.limits.ram_budget_bytes or 0)
    plan = result.plan_of(largest)
    assert plan is not None
    assert largest.verdict is Verdict.OPTIMAL
    alone = poet.plan(
        _net(), _inputs(), device="rpi4b", ram=largest.limits.ram_budget_bytes, micro=micro,
        time_limit_seconds=1.0, evaluation=False, measure_host=False,
    ).plan  # fmt: skip
    assert plan.joules == pytest.approx(alone.step_joules, rel=1e-9)
    assert plan.seconds == pytest.approx(alone.step_seconds, rel=1e-9)


def test_reports_tell_the_numbers_of_pieces_apart() -> None:
    result = _swept()
    (said,) = (answer for answer in result.answers if answer.question == "micro-batches")
    assert "whole batches: " in said.sentence
    assert "2 micro-batches: " in said.sentence
    assert "2 micro-batches layer by layer: " in said.sentence
    least = {f"joules_{setting.micro_text}": float("inf") for setting in result.settings}
    for row in result.rows():
        if isinstance(row["joules_per_sample"], float):
            key = f"joules_{row['micro']}"
            least[key] = min(least[key], row["joules_per_sample"])
    figures = dict(said.figures)
    assert {name: figures[name] for name in least} == pytest.approx(least)
    data = export.to_json(result)
    assert {row["micro"] for row in data["points"]} == {"1", "2", "2:layers"}
    assert [setting["micro"] for setting in data["settings"]] == ["1", "2", "2:layers"]
    for number, schedule in data["accumulating_schedules"].items():
        assert schedule
        assert number in data["schedules"]
    assert export.to_csv(result).splitlines()[0].split(",")[5] == "micro"


@pytest.mark.slow
def test_the_page_shows_a_step_in_pieces_and_marginals_change_both_schedules() -> None:
    result = what_if(
        _net(), _inputs(), device="rpi4b", ram="keep", deadline="1.2x", micro=2, options=QUICK, jobs=1,
        cache=None,
    )  # fmt: skip
    page = what_if_page(result)
    assert "the last of 2 micro-batches" in page
    (setting,) = result.settings
    assert setting.accumulating is not None
    once = setting.problem.compute_joules + setting.accumulating.problem.compute_joules
    assert setting.compute_joules == pytest.approx(once)
    for marginal in result.marginals:
        assert marginal.joules_after is None or marginal.joules_after >= once * (1 - 1e-9)


@pytest.mark.slow
def test_auto_asks_about_every_divisor_in_both_orders_where_storage_is_home() -> None:
    result = what_if(
        _net(), lambda size: _inputs(size), device="rpi4b", batch="2,4", ram="keep", micro="auto",
        home=Place.STORAGE, options=QUICK, jobs=1, cache=None, marginal=False,
    )  # fmt: skip
    found = [(setting.batch, setting.micro_text) for setting in result.settings]
    assert found == [
        (2, "1"), (2, "2"), (2, "2:layers"),
        (4, "1"), (4, "2"), (4, "2:layers"), (4, "4"), (4, "4:layers"),
    ]  # fmt: skip
    read = {key: plan.read_bytes for plan, key in zip(result.plans, found, strict=False)}
    assert read[4, "4:layers"] < read[4, "4"], "a parameter is read once for all pieces"


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"micro": "x"}, "no number of micro-batches"),
        ({"micro": "1,,2"}, "empty entry"),
        ({"micro": "0"}, "give from 2 to"),
        ({"micro": "3"}, "cannot be divided into 3 micro-batches"),
        ({"micro": "2:rows"}, "mean or sum"),
        ({"micro": "2", "home": Place.EITHER}, "give --home ram or storage"),
        ({"micro": "2", "largest": ["batch"]}, "leave --micro out"),
    ],
)
def test_what_is_no_number_of_pieces_is_refused_in_a_line(given: dict[str, object], says: str) -> None:
    with pytest.raises(InputError) as caught:
        what_if(_net(), _inputs(), device="rpi4b", jobs=1, cache=None, **given)  # type: ignore[arg-type]
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_saved_plan_in_pieces_is_asked_about_as_its_whole_step(tmp_path: Path) -> None:
    planned = poet.plan(
        _net(), _inputs(), device="rpi4b", ram="64KiB", micro=2, time_limit_seconds=1.0, evaluation=False,
        measure_host=False,
    )  # fmt: skip
    planned.save(tmp_path / "plan.poet")
    result = what_if(tmp_path / "plan.poet", ram="64KiB", options=QUICK, jobs=1, cache=None, marginal=False)
    (setting,), (found,) = result.settings, result.plans
    assert (setting.batch, setting.micro_text) == (SAMPLES, "2")
    assert found.joules == pytest.approx(planned.plan.step_joules, rel=1e-9)
