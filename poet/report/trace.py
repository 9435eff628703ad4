"""A schedule in the Trace Event Format, which Perfetto and ``chrome://tracing`` open.

The format ("Trace Event Format", the JSON object form): complete events (``ph`` X) with ``ts`` and
``dur`` in microseconds, counters (C) with one number per series, and metadata (M) that names the
process and its tracks.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from poet.graph import Role
from poet.homes import DecidedProblem
from poet.problem import Limits
from poet.report.schedule_rows import NO_ROLE
from poet.report.timeline import StepTimeline, timeline
from poet.schedule import Schedule
from poet.simulator import Trace

PROCESS = 1
TRACKS = {"compute": (1, "compute"), "page_in": (2, "page-in"), "page_out": (3, "page-out")}
"""Per kind of frame, the number and name of the track it is drawn on."""

_MICROSECONDS = 1e6


def trace_events(problem: DecidedProblem, schedule: Schedule, trace: Trace, limits: Limits) -> dict[str, Any]:
    """One training step as a JSON-ready object in the Trace Event Format."""
    line = timeline(problem, schedule, trace)
    events = [*_names(problem), *_slices(problem, line), *_counters(problem, line, limits)]
    return {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": {
            "problem": problem.name,
            "joules": trace.joules,
            "peak_ram_bytes": trace.peak_ram_bytes,
            "ram_budget_bytes": limits.ram_budget_bytes,
        },
    }


def _names(problem: DecidedProblem) -> list[dict[str, Any]]:
    events = [_metadata("process_name", 0, {"name": f"training step: {problem.name}"})]
    for track, name in TRACKS.values():
        events.append(_metadata("thread_name", track, {"name": name}))
        events.append(_metadata("thread_sort_index", track, {"sort_index": track}))
    return events


def _metadata(name: str, track: int, args: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "ph": "M", "pid": PROCESS, "tid": track, "ts": 0, "args": args}


def _slices(problem: DecidedProblem, line: StepTimeline) -> list[dict[str, Any]]:
    joules = {op.name: op.joules for op in problem.ops}
    tensors = {tensor.name: tensor for tensor in problem.tensors}
    events = []
    for frame in line.frames:
        track, _ = TRACKS["compute" if frame.kind == "recompute" else frame.kind]
        if frame.what in joules and track == TRACKS["compute"][0]:
            args: dict[str, Any] = {"joules": joules[frame.what], "workspace_bytes": frame.workspace_bytes}
        else:
            tensor = tensors[frame.what]
            cost = tensor.page_in if frame.kind == "page_in" else tensor.page_out
            assert cost is not None, "the judge accepted the transfer"
            args = {"joules": cost.joules, "bytes": tensor.bytes, "role": tensor.role or NO_ROLE}
        events.append(
            {
                "name": frame.what,
                "cat": frame.kind,
                "ph": "X",
                "ts": frame.start_seconds * _MICROSECONDS,
                "dur": (frame.end_seconds - frame.start_seconds) * _MICROSECONDS,
                "pid": PROCESS,
                "tid": track,
                "args": {"step": frame.step, "ram_bytes": frame.ram_bytes, **args},
            }
        )
    return events


def _counters(problem: DecidedProblem, line: StepTimeline, limits: Limits) -> list[dict[str, Any]]:
    roles = role_bytes(problem, line)
    events = []
    for frame, held in zip(line.frames, roles, strict=True):
        at = frame.issued_seconds * _MICROSECONDS
        total = {"held": frame.ram_bytes}
        if limits.ram_budget_bytes is not None:
            total["budget"] = limits.ram_budget_bytes
        events += [_counter("RAM (bytes)", at, total), _counter("RAM by role (bytes)", at, held)]
    return events


def _counter(name: str, at: float, amounts: dict[str, int]) -> dict[str, Any]:
    """Counters are of the whole process; their track number 0 is none of `TRACKS`."""
    return {"name": name, "ph": "C", "ts": at, "pid": PROCESS, "tid": 0, "args": amounts}


def role_bytes(problem: DecidedProblem, line: StepTimeline) -> list[dict[str, int]]:
    """Per frame, the bytes in RAM by role, every role that the step knows; they sum to the frame's RAM."""
    kinds = {tensor.name: tensor.role or NO_ROLE for tensor in problem.tensors}
    sizes = {tensor.name: problem.aligned_bytes(tensor.bytes) for tensor in problem.tensors}
    changes: list[Counter[str]] = [Counter() for _ in range(len(line.frames) + 1)]
    for stay in line.stays:
        changes[stay.first][kinds[stay.tensor]] += sizes[stay.tensor]
        changes[stay.last][kinds[stay.tensor]] -= sizes[stay.tensor]
    held = dict.fromkeys([*sorted({kinds[stay.tensor] for stay in line.stays}), Role.WORKSPACE.value], 0)
    rows = []
    for frame, change in zip(line.frames, changes, strict=False):
        for role, size_bytes in change.items():
            held[role] += size_bytes
        rows.append({**held, Role.WORKSPACE.value: held[Role.WORKSPACE.value] + frame.workspace_bytes})
    return rows
