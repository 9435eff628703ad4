"""Differences of plans: every change is told, and nothing else."""

from __future__ import annotations

import dataclasses
import io
import json
from pathlib import Path

import pytest
from helpers import hand_net
from helpers.schedules import keep_everything, random_schedule
from poet.cli.main import app
from rich.console import Console
from typer.testing import CliRunner

from poet.plans.training_plan import Plan
from poet.problem.schedule import Compute, PageIn, PageOut
from poet.report.diff import (
    Change,
    diff_data,
    diff_plans,
    diff_report,
    format_change,
    headline,
    moves_by_kind,
)
from poet.report.schedule_rows import tensor_fates

NAMES = ("a.poet", "b.poet")


@pytest.fixture(scope="module")
def plans() -> tuple[Plan, Plan]:
    """One that keeps everything, one that recomputes and pages."""
    graph = hand_net.graph()
    problem = hand_net.problem(graph)
    for seed in range(100):
        schedule = random_schedule(problem, seed)
        runs = [step.op for step in schedule if isinstance(step, Compute)]
        if len(set(runs)) < len(runs) and any(isinstance(step, PageIn) for step in schedule):
            mixed = hand_net.plan(problem, graph, schedule)
            return hand_net.plan(problem, graph, keep_everything(problem)), mixed
    raise AssertionError("no random schedule both recomputes and pages")


def test_a_plan_does_not_differ_from_itself(plans: tuple[Plan, Plan]) -> None:
    diff = diff_plans(plans[1], plans[1], names=NAMES)
    assert (diff.terms, diff.moves) == ((), ())
    assert all(change.before == change.after for change in diff.changes)
    assert headline(diff) == "Both plans take the same energy, time and RAM"


def test_the_figures_and_decisions_are_those_of_the_plans(plans: tuple[Plan, Plan]) -> None:
    kept, mixed = plans
    diff = diff_plans(kept, mixed, names=NAMES)
    figures = {change.what: (change.before, change.after) for change in diff.changes}
    traces = (kept.trace, mixed.trace)
    assert figures["energy"] == tuple(trace.joules for trace in traces)
    assert figures["RAM at the peak"] == tuple(trace.peak_ram_bytes for trace in traces)
    assert figures["recomputed runs"] == tuple(trace.recomputed_runs for trace in traces)
    fates = {fate.name: fate for fate in tensor_fates(mixed.problem, mixed.schedule, mixed.trace)}
    moved = {move.tensor: move for move in diff.moves}
    assert moved.keys() == {name for name, fate in fates.items() if fate.words != "kept"}
    assert {move.before for move in diff.moves} == {"kept"}
    for name, move in moved.items():
        assert ("recomputed" in move.after) == bool(fates[name].recomputations)
        assert ("paged" in move.after) == bool(fates[name].page_outs + fates[name].page_ins)
    assert diff.same_tensors + len(diff.moves) == len(kept.problem.tensors)
    assert sum(number for _, _, number, _ in moves_by_kind(diff)) == len(diff.moves)


def test_other_terms_are_told(plans: tuple[Plan, Plan]) -> None:
    kept = plans[0]
    limits = dataclasses.replace(kept.request.limits, ram_budget_bytes=1 << 20, deadline_seconds=1.0)
    other = dataclasses.replace(kept, request=dataclasses.replace(kept.request, limits=limits))
    diff = diff_plans(kept, other, names=NAMES)
    assert {term.what: term.after for term in diff.terms} == {"RAM budget": "1 MiB", "deadline": "1 s"}


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [(2.0, 3.0, "+50 %"), (2.0, 1.0, "−50 %"), (2.0, 2.0, "same"), (0.0, 1.0, "new"), (None, 1.0, "new"),
     (1.0, None, "gone")],
)  # fmt: skip
def test_changes_in_words(before: float | None, after: float | None, words: str) -> None:
    assert format_change(Change("energy", "J", before, after)) == words


def test_the_text_names_each_tensor_that_moved(plans: tuple[Plan, Plan]) -> None:
    diff = diff_plans(*plans, names=NAMES)
    console = Console(file=io.StringIO(), width=160, record=True)
    console.print(diff_report(diff, every_tensor=True))
    text = console.export_text()
    assert all(move.tensor in text and move.after_words in text for move in diff.moves)


def test_the_command(tmp_path: Path) -> None:
    hand_net.write(tmp_path / "a.poet")
    paging = random_schedule(hand_net.problem(hand_net.graph()), 3)
    hand_net.write(tmp_path / "b.poet", paging)
    result = CliRunner().invoke(
        app, ["diff", str(tmp_path / "a.poet"), str(tmp_path / "b.poet"), "--json", "-"]
    )
    assert result.exit_code == 0, result.stderr
    told = json.loads(result.stdout)
    assert (told["before"], told["after"]) == ("a.poet", "b.poet")
    pages = {step.tensor for step in paging if isinstance(step, PageIn | PageOut)}
    assert {move["tensor"] for move in told["moves"] if "paged" in move["after"]} == pages
    shown = CliRunner().invoke(app, ["diff", str(tmp_path / "a.poet"), str(tmp_path / "b.poet")])
    assert "b.poet takes" in shown.stdout


def test_the_data_is_the_difference(plans: tuple[Plan, Plan]) -> None:
    diff = diff_plans(*plans, names=NAMES)
    data = json.loads(json.dumps(diff_data(diff)))
    assert [move["tensor"] for move in data["moves"]] == [move.tensor for move in diff.moves]
    assert len(data["changes"]) == len(diff.changes)


def test_a_trace_by_command(tmp_path: Path) -> None:
    plan = hand_net.write(tmp_path / "a.poet")
    result = CliRunner().invoke(
        app, ["export", "trace", str(tmp_path / "a.poet"), "-o", str(tmp_path / "trace.json")]
    )
    assert result.exit_code == 0, result.stderr
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    slices = [event["name"] for event in events if event["ph"] == "X"]
    assert slices == [op.name for op in plan.problem.ops]
