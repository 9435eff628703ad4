"""A schedule as a timeline: which buffers are in RAM during each step, and what the engines do then.

Freeing takes no time of its own, so a timeline has one frame per compute step and per transfer. They add
up, frame by frame, to the RAM that the simulator saw.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from poet.ir.graph import Role
from poet.problem import Limits, Place
from poet.problem.homes import DecidedProblem
from poet.problem.schedule import Compute, Free, PageOut, Schedule
from poet.problem.simulator import Trace
from poet.report.schedule_rows import NO_ROLE

PROCESS = 1
TRACKS = {"compute": (1, "compute"), "page_in": (2, "page-in"), "page_out": (3, "page-out")}
"""Per kind of frame, the number and name of the track it is drawn on."""
_MICROSECONDS = 1e6


@dataclass(frozen=True, slots=True)
class Frame:
    """One compute step or transfer.

    Attributes:
        step: its index in the schedule.
        kind: ``"compute"``, ``"recompute"``, ``"page_out"`` or ``"page_in"``.
        what: the op or tensor.
        issued_seconds: when the schedule comes to it, from the start of the training step; a transfer
            in the background may start later.
        start_seconds, end_seconds: when its engine works on it.
        ram_bytes: held from when it is issued.
        workspace_bytes: part of it, of the op that runs.
    """

    step: int
    kind: str
    what: str
    issued_seconds: float
    start_seconds: float
    end_seconds: float
    ram_bytes: int
    workspace_bytes: int


@dataclass(frozen=True, slots=True)
class Stay:
    """A tensor in RAM from frame ``first`` up to, but not in, frame ``last``."""

    tensor: str
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class StepTimeline:
    """The frames of one training step and the stays of its tensors.

    An op that runs again while one of its outputs is still there writes a second copy: that copy is
    a stay of its own, one frame long.
    """

    frames: tuple[Frame, ...]
    stays: tuple[Stay, ...]


def timeline(problem: DecidedProblem, schedule: Schedule, trace: Trace) -> StepTimeline:
    """What happens in a schedule that the simulator accepted, and what is in RAM meanwhile."""
    ops = {op.name: op for op in problem.ops}
    frames: list[Frame] = []
    stays: list[Stay] = []
    produced = {name for op in problem.ops for name in op.outputs}
    since = {
        tensor.name: 0
        for tensor in problem.tensors
        if tensor.name not in produced and tensor.initially is not Place.STORAGE
    }
    ran: set[str] = set()
    clock_seconds = 0.0
    for index, (step, moment) in enumerate(zip(schedule, trace.moments, strict=True)):
        now = len(frames)
        if isinstance(step, Free):
            stays.append(Stay(step.tensor, since.pop(step.tensor), now))
            clock_seconds = moment.end_seconds
            continue
        workspace_bytes = 0
        if isinstance(step, Compute):
            kind, what = "recompute" if step.op in ran else "compute", step.op
            ran.add(step.op)
            workspace_bytes = problem.aligned_bytes(ops[step.op].workspace_bytes)
            for name in ops[step.op].outputs:
                if name in since:
                    stays.append(Stay(name, now, now + 1))
                since.setdefault(name, now)
        else:
            kind, what = "page_out" if isinstance(step, PageOut) else "page_in", step.tensor
            since.setdefault(step.tensor, now)
        waits = isinstance(step, Compute) or not problem.background_storage
        issued_seconds = moment.start_seconds if waits else clock_seconds
        frames.append(
            Frame(
                index,
                kind,
                what,
                issued_seconds,
                moment.start_seconds,
                moment.end_seconds,
                moment.ram_bytes,
                workspace_bytes,
            )
        )
        clock_seconds = moment.end_seconds if waits else clock_seconds
    stays += [Stay(name, first, len(frames)) for name, first in since.items()]
    return StepTimeline(tuple(frames), tuple(stay for stay in stays if stay.last > stay.first))


# --- for Perfetto -----------------------------------------------------------------------------


def trace_events(problem: DecidedProblem, schedule: Schedule, trace: Trace, limits: Limits) -> dict[str, Any]:
    """One training step as a JSON-ready object in the Trace Event Format, which Perfetto opens.

    Complete events (``ph`` X) with ``ts`` and ``dur`` in microseconds, counters (C) with a number per series,
    and metadata (M) that names the process and its tracks.
    """
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
            assert cost is not None, "the simulator accepted the transfer"
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
