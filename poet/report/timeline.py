"""A schedule as a timeline: which buffers are in RAM during each step, and what the engines do then.

Freeing takes no time of its own, so a timeline has one frame per compute step and per transfer. The
frames and intervals here add up, frame by frame, to the RAM that the simulator saw.
"""

from __future__ import annotations

from dataclasses import dataclass

from poet.homes import DecidedProblem
from poet.problem import Place
from poet.schedule import Compute, Free, PageOut, Schedule
from poet.simulator import Trace


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
