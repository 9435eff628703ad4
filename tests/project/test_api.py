"""The package's own names, from a module or an ONNX file to a verified plan."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Iterator, Sized
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from zoo import NETS, export

import poet
import poet.plans.training_plan
import poet.verification
from poet.devices.profile import Profile
from poet.errors import Infeasible, InputError, ModelError
from poet.problem.solution import Solution
from poet.solvers.search import explain
from poet.util.units import format_bytes, format_joules, format_seconds

NET = NETS["resnet18"].small


def test_every_public_name_is_there_and_functions_are_no_modules() -> None:
    for name in poet.__all__:
        assert getattr(poet, name) is not None
    assert callable(poet.plan)
    assert callable(poet.verify)
    with pytest.raises(AttributeError, match="no_such_name"):
        poet.no_such_name  # noqa: B018


@pytest.mark.slow
def test_a_module_is_planned_saved_and_verified(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    request.addfinalizer(functools.partial(torch.set_num_threads, torch.get_num_threads()))
    torch.set_num_threads(2)  # whose workspaces make this budget one that asks for paging
    torch.manual_seed(0)
    module = NET.build().train()
    planned = poet.plan(
        module, NET.inputs(8), device="rpi4b", ram="400KiB", optimizer="momentum", time_limit_seconds=2.0
    )
    trace = planned.plan.trace
    assert trace.peak_ram_bytes <= 400 * 1024
    assert trace.recomputed_runs > 0
    assert trace.written_bytes > 0
    planned.save(tmp_path / "plan.poet")
    report = poet.verify(tmp_path / "plan.poet", module=module, steps=1, threads=(1, 2))
    assert [comparison.difference for comparison in report.comparisons] == [None, None]
    assert report
    other = dataclasses.replace(report.comparisons[0], difference="fc.weight differs")
    assert not dataclasses.replace(report, comparisons=(report.comparisons[1], other))
    _is_short_and_tells_its_figures(planned)


def _is_short_and_tells_its_figures(planned: poet.Planned) -> None:
    trace = planned.plan.trace
    assert (planned.peak_ram_bytes, planned.joules, planned.seconds) == (
        trace.peak_ram_bytes,
        trace.joules,
        trace.seconds,
    )
    figures = (format_bytes(trace.peak_ram_bytes), format_joules(trace.joules), format_seconds(trace.seconds))
    for shown in (repr(planned), planned.summary(), planned._repr_html_()):
        assert all(figure in shown for figure in figures)
    assert "\n" not in repr(planned)
    assert 8 <= len(planned.summary().splitlines()) <= 16
    assert planned._repr_html_().count("<tr>") == len(planned.summary().splitlines())
    model = dataclasses.replace(planned.plan.model, name="<b>\n&")
    named = dataclasses.replace(planned, plan=dataclasses.replace(planned.plan, model=model))
    assert "<b>" not in named._repr_html_()
    assert "\n" not in repr(named)
    assert len(planned.plan.graph.ops) > 60
    own = list(_records(planned, set()))
    assert {type(record).__name__ for record in own} > {
        "Plan", "Graph", "Problem", "Prepared", "Trace", "Solution", "TrainingStep", "Demand", "Profile",
    }  # fmt: skip
    for record in own:  # a record with a part for each op must not print them all
        assert len(repr(record)) < 3000, type(record)
        assert "\n" not in repr(record), type(record)
        holds_many = any(isinstance(part, Sized) and len(part) > 60 for part in _parts(record))
        assert not holds_many or len(repr(record)) < 500, type(record)


def _parts(record: object) -> list[object]:
    """The public fields of a record; without those of a pydantic one, which hold figures only."""
    if dataclasses.is_dataclass(record):
        fields = [field.name for field in dataclasses.fields(record) if not field.name.startswith("_")]
        return [part for part in (getattr(record, name) for name in fields) if not isinstance(part, str)]
    return []


def _records(item: object, seen: set[int]) -> Iterator[object]:
    """Every record of the package that ``item`` holds, itself included."""
    if id(item) in seen:
        return
    seen.add(id(item))
    if isinstance(item, Profile) or dataclasses.is_dataclass(item):
        yield item
        for part in _parts(item):
            yield from _records(part, seen)
    elif isinstance(item, tuple | list):
        for part in item:
            yield from _records(part, seen)


@pytest.mark.slow
def test_an_onnx_file_is_planned_with_its_dimensions_bound(tmp_path: Path) -> None:
    export(NET.build(), NET.inputs(4), tmp_path / "net.onnx", exporter="dynamo", training=True)
    planned = poet.plan(
        tmp_path / "net.onnx", device="rpi4b", ram="1MiB", bind={"N": 4}, time_limit_seconds=1.0
    )
    assert planned.plan.model.kind == "onnx"
    assert planned.plan.model.binding == (("N", 4),)
    assert planned.solution.bound_joules <= planned.plan.trace.joules


def test_what_cannot_be_planned_is_said() -> None:
    module = nn.Linear(4, 2)
    with pytest.raises(ModelError, match="example_inputs"):
        poet.plan(module, device="rpi4b", ram="1MiB")
    with pytest.raises(ModelError, match="bind"):
        poet.plan(module, torch.zeros(1, 4), device="rpi4b", ram="1MiB", bind={"N": 1})
    with pytest.raises(Infeasible, match=r'needs at least.* Try micro="auto"'):
        poet.plan(module, torch.zeros(1, 4), device="rpi4b", ram=64, time_limit_seconds=1.0)


def test_limits_and_options_are_taken_as_records(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[poet.Limits, poet.SolveOptions]] = []

    def answered(problem: poet.Problem, limits: poet.Limits, options: poet.SolveOptions) -> Solution:
        asked.append((limits, options))
        return explain.answered(problem, limits, options)

    monkeypatch.setattr("poet.planning.step_search.answered", answered)
    limits = poet.Limits(ram_budget_bytes=1 << 20, paging=False)
    options = poet.SolveOptions(None, threads=1, engine="highs", relative_gap=1e-4, seed=7)
    words = {"device": "rpi4b", "loss": "mse"}
    planned = poet.plan(nn.Linear(4, 2), torch.zeros(1, 4), **words, limits=limits, options=options)  # type: ignore[arg-type]
    assert asked == [(limits, options)]
    assert planned.plan.request.limits == limits
    short = poet.plan(nn.Linear(4, 2), torch.zeros(1, 4), **words, ram="1MiB", paging=False)  # type: ignore[arg-type]
    assert short.plan.request.limits == limits
    # the default, but what the evaluation and what fitting have to have
    assert asked[1][1].time_limit_seconds == pytest.approx(0.75 * 20.0 * 2 / 3)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ({}, 'needs a RAM budget: ram="64MiB" (ram=None: unlimited), or limits=poet.Limits(...)'),
        ({"limits": poet.Limits(), "ram": None, "paging": True}, "ram, paging and limits say the same thing"),
        ({"ram": None, "options": poet.SolveOptions(), "time_limit_seconds": 60.0, "minimise": "time"},
         "minimise, time_limit_seconds and options say the same thing"),
        ({"limits": {"ram_budget_bytes": 5}}, "limits is a poet.Limits, not of type dict"),
        ({"ram": None, "minimise": "joules"}, "minimise 'joules' is not one of energy"),
        ({"ram": None, "home": "disk"}, "home 'disk' is not one of ram"),
        ({"ram": None, "options": poet.SolveOptions(engine="none")}, "none"),
    ],
    ids=["no budget", "limits twice", "options twice", "no record", "minimise", "home", "engine"],
)  # fmt: skip
def test_contradictory_words_are_refused(words: dict[str, Any], line: str) -> None:
    with pytest.raises(InputError, match=re.escape(line)):
        poet.plan(nn.Linear(4, 2), torch.zeros(1, 4), device="rpi4b", loss="mse", **words)
