"""Micro-batches as an axis of a sweep: both schedules judged, counted as a step, and told apart."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch
from rich.console import Console
from torch import Tensor, nn

import poet
from poet.errors import InputError, InvalidSchedule
from poet.ir.optimizer import OptimizerSpec
from poet.problem import Limits, Place
from poet.problem.simulator import simulate
from poet.problem.solution import SolveOptions
from poet.report.html.subject import solution_of_point
from poet.report.html.what_if_page import what_if_page
from poet.report.searches import what_if_report
from poet.whatif.answers import micro_batches
from poet.whatif.knowledge import Candidate, Knowledge, Known, joined, parts_of, validated
from poet.whatif.result import FoundPlan, Origin, Point, Setting, Verdict, WhatIf
from poet.whatif.run import to_csv, to_json, what_if
from poet.whatif.sweep import SweepProgress

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
        _net(), _inputs(), device="rpi4b", ram="min,keep,64KiB", deadline="1.5x,none", micro="1,2,2:sum",
        options=QUICK, jobs=1, cache=None, marginal=False,
    )  # fmt: skip


SAID: list[SweepProgress] = []


@cache
def _kept() -> WhatIf:
    """Everything kept at the deadline of running every op once: nothing is left to search for."""
    return what_if(
        _net(), _inputs(12), device="rpi4b", ram="keep", deadline="1.0x,none", micro="2,2:sum,3",
        options=QUICK, jobs=1, cache=None, marginal=False,
        report=SAID.append,
    )  # fmt: skip


def test_what_takes_a_deadline_to_the_last_bit_is_in_time() -> None:
    for point in _kept().points:
        assert point.verdict is Verdict.OPTIMAL
        assert point.origin is Origin.ARITHMETIC
        assert (point.gap, point.overhead_gap) == (0.0, 0.0)


def test_progress_counts_the_points_of_the_result() -> None:
    points = _kept().points
    assert {now.total for now in SAID} == {len(points)}
    assert SAID[-1].done == SAID[-1].total


def test_settings_are_told_apart_by_their_losses_and_compared_by_their_device() -> None:
    result = _kept()
    labels = [setting.label for setting in result.settings]
    assert labels[:2] == ["rpi4b, sgd, 2 micro-batches", "rpi4b, sgd, 2 micro-batches, losses summed"]
    again = [replace(point, setting=point.setting + len(labels)) for point in result.points]
    twice = replace(result, settings=result.settings * 2, points=(*result.points, *again))
    said = list(micro_batches(twice))
    assert len(said) == 2, "one for each device of that name"
    for answer in said:
        names = [name for name, _ in answer.figures]
        assert len(names) == len(set(names)) == 2 * len(labels)


def test_no_micro_batches_are_compared_where_nobody_asked() -> None:
    specs = [OptimizerSpec("adam"), OptimizerSpec("adam", amsgrad=True)]
    result = what_if(
        _net(), _inputs(), device="rpi4b", ram="keep", micro=None, optimizer=specs, options=QUICK, jobs=1,
        cache=None, marginal=False,
    )  # fmt: skip
    assert [setting.micro_text for setting in result.settings] == ["1", "1"]
    assert "micro-batches" not in {answer.question for answer in result.answers}


def test_the_table_counts_the_ops_of_a_whole_step() -> None:
    result = _kept()
    third = result.settings[2]
    assert third.accumulating is not None
    ops = len(third.problem.ops) + 2 * len(third.accumulating.problem.ops)
    console = Console(width=200)
    with console.capture() as said:
        console.print(what_if_report(result))
    assert f"rpi4b, sgd, 3 micro-batches: {ops} ops, running every op once takes" in said.get()


def _in_pieces(result: WhatIf) -> tuple[Setting, Point, FoundPlan]:
    """The tightest point of two schedules with a plan: its two do not share time as their ops do."""
    found = [(point, result.plan_of(point)) for point in result.points]
    point, plan = next((one, plan) for one, plan in found if plan is not None and plan.accumulating)
    return result.setting_of(point), point, plan


@pytest.mark.slow
def test_plans_whose_whole_step_is_in_time_are_used_however_they_share_it() -> None:
    setting, point, plan = _in_pieces(_swept())
    assert setting.accumulating is not None
    assert plan.accumulating is not None
    schedules = ((setting, plan.schedule), (setting.accumulating, plan.accumulating))
    knowledge = tuple(
        Knowledge(part.problem, 0, "", QUICK, [Candidate(0, made, simulate(part.problem, made), "x")])
        for part, made in schedules
    )

    def asked(seconds: float) -> tuple[Limits, Known]:
        limits = replace(point.limits, deadline_seconds=seconds)
        parts = zip(parts_of(setting, limits), knowledge, strict=True)
        known = tuple(each.best(part.limits) for part, each in parts)
        assert any(part.plan is None for part in known), "one takes more than its share"
        return limits, joined(setting, limits, known, knowledge)

    limits, found = asked(plan.seconds)
    assert found.neighbours
    assert found.joules == pytest.approx(plan.joules, rel=1e-12)
    validated(setting, limits, found.plans)
    with pytest.raises(InvalidSchedule, match="the deadline is"):
        validated(setting, replace(limits, deadline_seconds=plan.seconds * 0.999), found.plans)
    limits, late = asked(plan.seconds * 0.999)
    assert (late.joules, late.plans) == (None, ())


@pytest.mark.slow
def test_the_page_doubts_no_schedule_of_a_step_that_is_optimal() -> None:
    setting, point, plan = _in_pieces(_swept())
    trace = simulate(setting.problem, plan.schedule)
    above = trace.joules - setting.problem.compute_joules
    optimal = replace(point, verdict=Verdict.OPTIMAL)
    for one, saved in ((optimal, 0.0), (_doubted(point, plan), 0.1 * plan.joules)):
        quality = solution_of_point(one, setting, plan, trace)
        assert quality.status.word == one.verdict.word
        assert quality.bound_joules == pytest.approx(trace.joules - saved)
        assert quality.gap == pytest.approx(saved / trace.joules)
        assert quality.overhead_gap == pytest.approx(saved / above)


def _doubted(point: Point, plan: FoundPlan) -> Point:
    """``point`` as if a tenth of its joules could be saved."""
    return replace(point, verdict=Verdict.FEASIBLE, bound_joules=0.9 * plan.joules, gap=0.1)


def test_a_step_is_all_its_pieces_as_the_judge_counts_them() -> None:
    result = _swept()
    assert [setting.micro_text for setting in result.settings] == ["1", "2", "2:sum"]
    assert result.question.micro == ("1", "2", "2:sum")
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


@pytest.mark.parametrize("micro", ["2", "2:sum"])
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
        time_limit_seconds=1.0, evaluation=False,
    ).plan  # fmt: skip
    assert plan.joules == pytest.approx(alone.step_joules, rel=1e-9)
    assert plan.seconds == pytest.approx(alone.step_seconds, rel=1e-9)


def test_reports_tell_the_numbers_of_pieces_apart() -> None:
    result = _swept()
    (said,) = (answer for answer in result.answers if answer.question == "micro-batches")
    assert "whole batches: " in said.sentence
    assert "2 micro-batches: " in said.sentence
    assert "2 micro-batches, losses summed: " in said.sentence
    least = {f"joules_{setting.micro_text}": float("inf") for setting in result.settings}
    for row in result.rows():
        if isinstance(row["joules_per_sample"], float):
            key = f"joules_{row['micro']}"
            least[key] = min(least[key], row["joules_per_sample"])
    figures = dict(said.figures)
    assert {name: figures[name] for name in least} == pytest.approx(least)
    data = to_json(result)
    assert {row["micro"] for row in data["points"]} == {"1", "2", "2:sum"}
    assert [setting["micro"] for setting in data["settings"]] == ["1", "2", "2:sum"]
    for number, schedule in data["accumulating_schedules"].items():
        assert schedule
        assert number in data["schedules"]
    assert to_csv(result).splitlines()[0].split(",")[5] == "micro"


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
def test_auto_asks_about_every_divisor() -> None:
    result = what_if(
        _net(), lambda size: _inputs(size), device="rpi4b", batch="2,4", ram="keep", micro="auto",
        home=Place.STORAGE, options=QUICK, jobs=1, cache=None, marginal=False,
    )  # fmt: skip
    found = [(setting.batch, setting.micro_text) for setting in result.settings]
    assert found == [(2, "1"), (2, "2"), (4, "1"), (4, "2"), (4, "4")]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"micro": "x"}, "no number of micro-batches"),
        ({"micro": "1,,2"}, "empty entry"),
        ({"micro": "0"}, "give from 2 to"),
        ({"micro": 2.0}, "no number of micro-batches"),
        ({"micro": 2, "example_inputs": None}, "need example_inputs"),
        ({"micro": "3"}, "cannot be divided into 3 micro-batches"),
        ({"micro": "2:rows"}, "mean or sum"),
        ({"micro": "1,4:layers"}, "go one after the other; write 4"),
        ({"micro": "2", "home": Place.EITHER}, "give --home ram or storage"),
        ({"micro": "2", "largest": ["batch"]}, "leave --micro out"),
    ],
)
def test_what_is_no_number_of_pieces_is_refused_in_a_line(given: dict[str, object], says: str) -> None:
    with pytest.raises(InputError) as caught:
        what_if(_net(), device="rpi4b", jobs=1, cache=None, **{"example_inputs": _inputs(), **given})  # type: ignore[arg-type]
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_saved_plan_in_pieces_is_asked_about_as_its_whole_step(tmp_path: Path) -> None:
    planned = poet.plan(
        _net(), _inputs(), device="rpi4b", ram="64KiB", micro=2, time_limit_seconds=1.0, evaluation=False,
    )  # fmt: skip
    planned.save(tmp_path / "plan.poet")
    result = what_if(tmp_path / "plan.poet", ram="64KiB", options=QUICK, jobs=1, cache=None, marginal=False)
    (setting,), (found,) = result.settings, result.plans
    assert (setting.batch, setting.micro_text) == (SAMPLES, "2")
    assert found.joules == pytest.approx(planned.plan.step_joules, rel=1e-9)
    with pytest.raises(InputError, match="must agree where parameters live: give --home ram or storage"):
        what_if(tmp_path / "plan.poet", device="rpi4b", home=Place.EITHER, jobs=1, cache=None)
