"""Timelines and trace files: frame by frame they hold what the judge saw."""

from __future__ import annotations

import itertools
import json
import math
from typing import Any

import pytest
from helpers.random_problems import mixed_problem

from poet.baselines.nothing_kept import page_everything, recompute_all
from poet.problem import Limits, Problem, ProblemOp, Tensor, Transfer
from poet.problem.homes import DecidedProblem, as_decided
from poet.problem.schedule import Compute, Free, PageIn, PageOut, Schedule
from poet.problem.simulator import simulate
from poet.report.schedule_rows import TRACKS, role_bytes, timeline, trace_events
from poet.solvers import minimum_ram_bytes
from poet.solvers.heuristics.greedy import greedy

PLANNERS = {"greedy": greedy, "recompute": recompute_all, "page": page_everything}
CASES = list(itertools.product(range(6), PLANNERS))


def _planned(seed: int, planner: str) -> tuple[DecidedProblem, Schedule, Limits]:
    problem = as_decided(mixed_problem(seed))
    lowest = minimum_ram_bytes(problem).bytes
    for share in (1.0, 1.3, 2.0, 100.0):
        limits = Limits(ram_budget_bytes=int(lowest * share))
        schedule = PLANNERS[planner](problem, limits)
        if schedule is not None:
            return problem, schedule, limits
    raise AssertionError("keeping everything fits a budget of a hundred times the least")


@pytest.mark.parametrize(("seed", "planner"), CASES)
def test_stays_add_up_to_the_judges_ram(seed: int, planner: str) -> None:
    problem, schedule, limits = _planned(seed, planner)
    trace = simulate(problem, schedule, limits)
    line = timeline(problem, schedule, trace)
    assert [frame.step for frame in line.frames] == [
        index for index, step in enumerate(schedule) if not isinstance(step, Free)
    ]
    for frame, held in zip(line.frames, role_bytes(problem, line), strict=True):
        assert sum(held.values()) == frame.ram_bytes == trace.moments[frame.step].ram_bytes
        assert min(held.values()) >= 0
    issued = [frame.issued_seconds for frame in line.frames]
    assert issued == sorted(issued)
    recomputed = sum(frame.kind == "recompute" for frame in line.frames)
    assert recomputed == trace.recomputed_runs


TRANSFER = Transfer(seconds=0.5, joules=0.25)
BACKGROUND = as_decided(
    Problem(
        name="</script><b>hostile",
        tensors=(
            Tensor("a", 10, TRANSFER, TRANSFER, role="input"),
            Tensor("b", 30, TRANSFER, TRANSFER, role="activation"),
            Tensor("c", 50, TRANSFER, TRANSFER),
        ),
        ops=(
            ProblemOp("f", ("a",), ("b",), seconds=1.0, joules=2.0, workspace_bytes=7),
            ProblemOp("g", ("a",), ("c",), seconds=2.0, joules=3.0),
            ProblemOp("h", ("b", "c"), (), seconds=1.0, joules=1.0),
        ),
        background_storage=True,
    )
)
OVERLAPPED: Schedule = (
    Compute("f"), PageOut("b"), Compute("g"), Free("b"), PageIn("b"), Compute("h"),
)  # fmt: skip


def test_background_transfers_start_when_their_engine_is_free_and_hold_ram_from_their_issue() -> None:
    trace = simulate(BACKGROUND, OVERLAPPED)
    frames = timeline(BACKGROUND, OVERLAPPED, trace).frames
    kinds = [(frame.kind, frame.issued_seconds, frame.start_seconds, frame.end_seconds) for frame in frames]
    assert kinds == [
        ("compute", 0.0, 0.0, 1.0),
        ("page_out", 1.0, 1.0, 1.5),
        ("compute", 1.0, 1.0, 3.0),
        ("page_in", 3.0, 3.0, 3.5),
        ("compute", 3.5, 3.5, 4.5),
    ]


def test_an_op_that_runs_again_beside_its_output_holds_it_twice() -> None:
    schedule = (Compute("f"), Compute("f"), Compute("g"), Compute("h"))
    trace = simulate(BACKGROUND, schedule)
    line = timeline(BACKGROUND, schedule, trace)
    assert [frame.kind for frame in line.frames][:2] == ["compute", "recompute"]
    assert [frame.ram_bytes for frame in line.frames] == [47, 77, 90, 90]
    assert [sum(held.values()) for held in role_bytes(BACKGROUND, line)] == [47, 77, 90, 90]


PHASES: dict[str, dict[str, tuple[type, ...]]] = {
    "X": {"name": (str,), "cat": (str,), "ts": (int, float), "dur": (int, float), "pid": (int,),
          "tid": (int,), "args": (dict,)},
    "C": {"name": (str,), "ts": (int, float), "pid": (int,), "tid": (int,), "args": (dict,)},
    "M": {"name": (str,), "ts": (int, float), "pid": (int,), "tid": (int,), "args": (dict,)},
}  # fmt: skip
"""The fields that the Trace Event Format asks for, by phase."""

METADATA = {"process_name": "name", "thread_name": "name", "thread_sort_index": "sort_index"}


def _check_format(data: dict[str, Any]) -> None:
    """As the format's document has it; what it leaves open is left open here."""
    assert data["displayTimeUnit"] in ("ms", "ns")
    for event in data["traceEvents"]:
        fields = PHASES[event["ph"]]
        assert event.keys() == {"ph", *fields}
        for name, types in fields.items():
            assert isinstance(event[name], types), event
        assert math.isfinite(event["ts"])
        assert event["ts"] >= 0
        if event["ph"] == "X":
            assert event["dur"] >= 0
        elif event["ph"] == "C":
            assert event["args"]
            assert all(type(number) in (int, float) for number in event["args"].values())
        else:
            assert event["args"].keys() == {METADATA[event["name"]]}


@pytest.mark.parametrize(("seed", "planner"), CASES)
def test_a_trace_file_is_of_the_format_and_holds_the_step(seed: int, planner: str) -> None:
    problem, schedule, limits = _planned(seed, planner)
    trace = simulate(problem, schedule, limits)
    data = json.loads(json.dumps(trace_events(problem, schedule, trace, limits), allow_nan=False))
    _check_format(data)
    slices = [event for event in data["traceEvents"] if event["ph"] == "X"]
    for kind, busy_seconds in (
        ("compute", trace.compute_seconds),
        ("page_in", trace.page_in_seconds),
        ("page_out", trace.page_out_seconds),
    ):
        track = [event for event in slices if event["tid"] == TRACKS[kind][0]]
        assert sum(event["dur"] for event in track) == pytest.approx(busy_seconds * 1e6)
        ends = [(event["ts"], event["ts"] + event["dur"]) for event in track]
        for (_, end), (start, _) in itertools.pairwise(ends):
            assert end <= start + 1e-3, "slices of one track must not overlap"
    named = {
        event["tid"]: event["args"]["name"] for event in data["traceEvents"] if event["name"] == "thread_name"
    }
    assert named == {1: "compute", 2: "page-in", 3: "page-out"}
    assert {event["tid"] for event in slices} <= named.keys()
    moved = sum(event["args"]["joules"] for event in slices)
    assert moved + trace.idle_joules == pytest.approx(trace.joules)
    held = [event["args"]["held"] for event in data["traceEvents"] if event["name"] == "RAM (bytes)"]
    assert max(held) <= trace.peak_ram_bytes
    counters = [event["ts"] for event in data["traceEvents"] if event["ph"] == "C"]
    assert counters == sorted(counters)
