"""A schedule as rows: frames and stays in RAM, tensors, ops, who holds the peak, where energy goes.

Functions from a problem and a schedule that the simulator accepted to frozen rows. Freeing takes no time of
its own, so a timeline has one frame per compute step and per transfer; stays add up, frame by frame, to the
RAM that the simulator saw.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import Any

from poet.ir.graph import Role
from poet.problem import Limits, Place, ProblemOp
from poet.problem.homes import DecidedProblem
from poet.problem.schedule import Compute, Free, PageOut, Schedule
from poet.problem.simulator import Trace

NO_ROLE = "tensor"
"""What a tensor without a role is reported as."""
VERBS = {
    "compute": "running", "recompute": "recomputing", "page_out": "storing", "page_in": "fetching",
}  # fmt: skip
"""Per kind of frame what happens then, for people."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One compute step or transfer.

    Attributes:
        step: its index in the schedule.
        kind: a key of `VERBS`.
        what: the op or tensor.
        issued_seconds: when the schedule comes to it, from the start of the training step; a transfer
            in the background may start later.
        start_seconds, end_seconds: when its engine works on it.
        ram_bytes: held from when it is issued.
        workspace_bytes: part of it, of the op that runs.
        brought: tensors that come into RAM with it.
    """

    step: int
    kind: str
    what: str
    issued_seconds: float
    start_seconds: float
    end_seconds: float
    ram_bytes: int
    workspace_bytes: int
    brought: tuple[str, ...]

    @property
    def words(self) -> str:
        """What happens, e.g. ``recomputing conv1``."""
        return f"{VERBS[self.kind]} {self.what}"


@dataclass(frozen=True, slots=True)
class Stay:
    """A tensor in RAM from frame ``first`` up to, but not in, frame ``last``, for so many seconds.

    The second copy that an op writes when it runs again beside its own output has none.
    """

    tensor: str
    first: int
    last: int
    seconds: float


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
    since = dict.fromkeys(_present_at_start(problem), (0, 0.0))
    ran: set[str] = set()
    clock_seconds = 0.0
    for index, (step, moment) in enumerate(zip(schedule, trace.moments, strict=True)):
        now = len(frames)
        if isinstance(step, Free):
            first, start_seconds = since.pop(step.tensor)
            stays.append(Stay(step.tensor, first, now, moment.end_seconds - start_seconds))
            clock_seconds = moment.end_seconds
            continue
        workspace_bytes = 0
        names: tuple[str, ...] = ()
        if isinstance(step, Compute):
            kind, what, names = "recompute" if step.op in ran else "compute", step.op, ops[step.op].outputs
            ran.add(step.op)
            workspace_bytes = problem.aligned_bytes(ops[step.op].workspace_bytes)
            stays += [Stay(name, now, now + 1, 0.0) for name in names if name in since]
        elif isinstance(step, PageOut):
            kind, what = "page_out", step.tensor
        else:
            kind, what, names = "page_in", step.tensor, (step.tensor,)
        brought = tuple(name for name in names if name not in since)
        since |= dict.fromkeys(brought, (now, moment.start_seconds))
        waits = isinstance(step, Compute) or not problem.background_storage
        issued_seconds = moment.start_seconds if waits else clock_seconds
        times = issued_seconds, moment.start_seconds, moment.end_seconds
        frames.append(Frame(index, kind, what, *times, moment.ram_bytes, workspace_bytes, brought))
        clock_seconds = moment.end_seconds if waits else clock_seconds
    for name, (first, start_seconds) in since.items():
        stays.append(Stay(name, first, len(frames), trace.seconds - start_seconds))
    return StepTimeline(tuple(frames), tuple(stay for stay in stays if stay.last > stay.first))


def _present_at_start(problem: DecidedProblem) -> list[str]:
    produced = {name for op in problem.ops for name in op.outputs}
    away = {tensor.name for tensor in problem.tensors if tensor.initially is Place.STORAGE}
    return [tensor.name for tensor in problem.tensors if tensor.name not in produced | away]


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


def memory_over_time(trace: Trace, columns: int) -> tuple[int, ...]:
    """The step's duration in ``columns`` equal parts: the most RAM, in bytes, held within each."""
    most = [0] * columns
    scale = columns / trace.seconds if trace.seconds else 0.0
    for moment in trace.moments:
        first = min(int(moment.start_seconds * scale), columns - 1)
        last = min(math.ceil(moment.end_seconds * scale), columns) - 1
        for column in range(first, max(first, last) + 1):
            most[column] = max(most[column], moment.ram_bytes)
    return tuple(most)


# --- tensors, ops and the peak ----------------------------------------------------------------

KEPT, RECOMPUTED, PAGED, BOTH = "kept", "recomputed", "paged", "recomputed and paged"
DECISIONS = (KEPT, RECOMPUTED, PAGED, BOTH)


@dataclass(frozen=True, slots=True)
class TensorFate:
    """What becomes of one tensor in a step.

    Attributes:
        name, role: of the tensor.
        bytes: it takes in RAM, alignment included.
        recomputations: that brought it back into RAM.
        page_outs, page_ins: transfers of it.
        joules, seconds: of those recomputations (shared equally by what one brings back) and transfers.
        resident_share: part of the step's duration that it spends in RAM.
        rounded_to: what its numbers are rounded to in storage; empty: they are not.
    """

    name: str
    role: str
    bytes: int
    recomputations: int
    page_outs: int
    page_ins: int
    joules: float
    seconds: float
    resident_share: float
    rounded_to: str = ""

    @property
    def words(self) -> str:
        """``"kept"``, or what is done instead."""
        done = [f"recomputed {self.recomputations}×"] if self.recomputations else []
        done += (
            [f"paged out {self.page_outs}×, in {self.page_ins}×"] if self.page_outs + self.page_ins else []
        )
        done += [f"rounded to {self.rounded_to}"] if self.page_ins and self.rounded_to else []
        return ", ".join(done) or KEPT

    @property
    def decision(self) -> str:
        """One of `DECISIONS`."""
        paged = self.page_ins + self.page_outs > 0
        if self.recomputations:
            return BOTH if paged else RECOMPUTED
        return PAGED if paged else KEPT


@dataclass(frozen=True, slots=True)
class OpRuns:
    """One op's runs in a step; ``seconds`` and ``joules`` are of all runs together."""

    name: str
    runs: int
    seconds: float
    joules: float
    workspace_bytes: int


@dataclass(frozen=True, slots=True)
class PeakMoment:
    """The moment at which RAM is fullest.

    Attributes:
        bytes: held then.
        step: its index in the schedule; -1: before the first step.
        what: happens then, for people.
        by_role: (role, bytes), largest first, workspace included; they sum to ``bytes``.
        tensors: (name, bytes) of every tensor present, largest first.
    """

    bytes: int
    step: int
    what: str
    by_role: tuple[tuple[str, int], ...]
    tensors: tuple[tuple[str, int], ...]


def tensor_fates(problem: DecidedProblem, schedule: Schedule, trace: Trace) -> tuple[TensorFate, ...]:
    """One row per tensor, in the problem's order."""
    ops = {op.name: op for op in problem.ops}
    line = timeline(problem, schedule, trace)
    moved = Counter((frame.kind, frame.what) for frame in line.frames)
    brought_back: dict[str, list[tuple[ProblemOp, int]]] = defaultdict(list)
    for frame in line.frames:
        if frame.kind == "recompute":  # where all outputs are still there they share its cost all the same
            outputs = frame.brought or ops[frame.what].outputs
            for name in outputs:
                brought_back[name].append((ops[frame.what], len(outputs)))
    resident_seconds: dict[str, float] = defaultdict(float)
    for stay in line.stays:
        resident_seconds[stay.tensor] += stay.seconds
    rows = []
    for tensor in problem.tensors:
        name = tensor.name
        costs = [(op.seconds / parts, op.joules / parts) for op, parts in brought_back[name]]
        page_outs, page_ins = moved["page_out", name], moved["page_in", name]
        for count, transfer in ((page_outs, tensor.page_out), (page_ins, tensor.page_in)):
            if transfer is not None:
                costs.append((count * transfer.seconds, count * transfer.joules))
        rows.append(
            TensorFate(
                name=name,
                role=tensor.role or NO_ROLE,
                bytes=problem.aligned_bytes(tensor.bytes),
                recomputations=len(brought_back[name]),
                page_outs=page_outs,
                page_ins=page_ins,
                joules=math.fsum(joules for _, joules in costs),
                seconds=math.fsum(seconds for seconds, _ in costs),
                resident_share=resident_seconds[name] / trace.seconds if trace.seconds else 1.0,
                rounded_to="" if tensor.page_form is None else tensor.page_form.number,
            )
        )
    return tuple(rows)


def op_runs(problem: DecidedProblem, schedule: Schedule) -> tuple[OpRuns, ...]:
    """One row per op, in the problem's order."""
    runs = Counter(step.op for step in schedule if isinstance(step, Compute))
    return tuple(
        OpRuns(
            op.name, runs[op.name], runs[op.name] * op.seconds, runs[op.name] * op.joules, op.workspace_bytes
        )
        for op in problem.ops
    )


def peak(problem: DecidedProblem, schedule: Schedule, trace: Trace) -> PeakMoment:
    """Who holds the RAM at the schedule's fullest moment."""
    line = timeline(problem, schedule, trace)
    at = next((at for at, frame in enumerate(line.frames) if frame.step == trace.peak_step), None)
    present = [stay.tensor for stay in line.stays if at is not None and stay.first <= at < stay.last]
    sizes = {tensor.name: problem.aligned_bytes(tensor.bytes) for tensor in problem.tensors}
    kinds = {tensor.name: tensor.role or NO_ROLE for tensor in problem.tensors}
    held, roles = Counter[str](), Counter[str]()
    for name in sorted(_present_at_start(problem) if at is None else present):
        held[name] += sizes[name]
        roles[kinds[name]] += sizes[name]
    if at is not None:
        roles[Role.WORKSPACE.value] += line.frames[at].workspace_bytes
    return PeakMoment(
        bytes=sum(roles.values()),
        step=trace.peak_step,
        what="before the first step" if at is None else line.frames[at].words,
        by_role=tuple((role, size_bytes) for role, size_bytes in roles.most_common() if size_bytes),
        tensors=tuple(held.most_common()),
    )


# --- where energy and time go -----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Share:
    """A part of the step; ``again_joules`` and ``again_seconds`` are the part of recomputation in it."""

    what: str
    runs: int
    joules: float
    seconds: float
    again_joules: float = 0.0
    again_seconds: float = 0.0


_SPLIT = {"input", "weight", "bias"}
_WORDS = {
    "mm": "matrix product", "addmm": "matrix product", "bmm": "matrix product", "baddbmm": "matrix product",
    "linear": "matrix product", "update": "parameter update", "batch norm": "batch norm",
    "threshold backward": "relu backward", "sum": "sum", "mean": "mean",
}  # fmt: skip


_COUNTING = re.compile(r"(?<!log)(?<!atan)(?<!arctan)(?<!relu)(?<!exp)(?<!\d)\d+(?=_|$)")
"""A number at the end of a word, where it is not part of an operator's name like ``log10``."""


def kind_of(op: str) -> str:
    """What sort of op a name stands for, e.g. ``"convolution backward"``.

    Names are a module's path and the operator's name, with a number where it repeats. Numbers that
    count are left out, so that ``3:layer3_Linear`` and ``5:layer5_Linear`` are one kind; those that
    belong to an operator's name stay: ``avg_pool2d``, ``log1p``, ``relu6``.
    """
    parts = op.split(".")
    while len(parts) > 1 and (parts[-1] in _SPLIT or parts[-1].isdecimal()):
        parts.pop()
    words = re.sub(r"_\d+$", "", parts[-1])
    words = re.sub(r"^\d+:", "", words)
    words = _COUNTING.sub("", words).strip("_").removeprefix("native_")
    words = re.sub(r"_backward_data$", "_backward", words).replace("_", " ").strip()
    return _WORDS.get(words, words) or op


def energy_by_kind(problem: DecidedProblem, schedule: Schedule) -> tuple[Share, ...]:
    """Per kind of op, all its runs; most expensive first."""
    ops = {op.name: op for op in problem.ops}
    ran: set[str] = set()
    rows: dict[str, list[tuple[float, float, bool]]] = defaultdict(list)
    for step in schedule:
        if isinstance(step, Compute):
            op = ops[step.op]
            rows[kind_of(op.name)].append((op.joules, op.seconds, op.name in ran))
            ran.add(op.name)
    shares = [
        Share(
            kind,
            len(runs),
            math.fsum(joules for joules, _, _ in runs),
            math.fsum(seconds for _, seconds, _ in runs),
            math.fsum(joules for joules, _, again in runs if again),
            math.fsum(seconds for _, seconds, again in runs if again),
        )
        for kind, runs in rows.items()
    ]
    return tuple(sorted(shares, key=lambda share: (-share.joules, share.what)))


def energy_by_part(problem: DecidedProblem, schedule: Schedule, trace: Trace) -> tuple[Share, ...]:
    """Running every op once, recomputation, page-in, page-out, moves and idle: the step's joules.

    The seconds are the engines' busy times; where storage works in the background they overlap, and
    idle power is drawn all the while.
    """
    kinds = energy_by_kind(problem, schedule)
    again_joules = math.fsum(kind.again_joules for kind in kinds)
    again_seconds = math.fsum(kind.again_seconds for kind in kinds)
    return (
        Share(
            "first runs",
            len(problem.ops),
            trace.compute_joules - again_joules,
            trace.compute_seconds - again_seconds,
        ),
        Share("recomputation", trace.recomputed_runs, again_joules, again_seconds),
        Share("page-in", 0, trace.page_in_joules, trace.page_in_seconds),
        Share("page-out", 0, trace.page_out_joules, trace.page_out_seconds),
        *([Share("moves in RAM", trace.moves, trace.move_joules, trace.move_seconds)] if trace.moves else ()),
        Share("idle power", 0, trace.idle_joules, trace.seconds),
    )


# --- for Perfetto -----------------------------------------------------------------------------

PROCESS = 1
TRACKS = {"compute": (1, "compute"), "page_in": (2, "page-in"), "page_out": (3, "page-out")}
"""Per kind of frame, the number and name of the track it is drawn on."""
_MICROSECONDS = 1e6


def trace_events(problem: DecidedProblem, schedule: Schedule, trace: Trace, limits: Limits) -> dict[str, Any]:
    """One training step as a JSON-ready object in the Trace Event Format, which Perfetto opens.

    Complete events (``ph`` X) with ``ts`` and ``dur`` in microseconds, counters (C) with a number per series,
    and metadata (M) that names the process and its tracks.
    """
    line = timeline(problem, schedule, trace)
    events = [_event("M", "process_name", 0, 0.0, {"name": f"training step: {problem.name}"})]
    for track, name in TRACKS.values():
        events.append(_event("M", "thread_name", track, 0.0, {"name": name}))
        events.append(_event("M", "thread_sort_index", track, 0.0, {"sort_index": track}))
    events += _slices(problem, line)
    budget = {} if limits.ram_budget_bytes is None else {"budget": limits.ram_budget_bytes}
    for frame, held in zip(line.frames, role_bytes(problem, line), strict=True):
        at = frame.issued_seconds
        events.append(_event("C", "RAM (bytes)", 0, at, {"held": frame.ram_bytes, **budget}))
        events.append(_event("C", "RAM by role (bytes)", 0, at, held))
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


def _event(phase: str, name: str, track: int, at_seconds: float, args: dict[str, Any]) -> dict[str, Any]:
    """Counters are of the whole process; their track number 0 is none of `TRACKS`."""
    at = at_seconds * _MICROSECONDS
    return {"name": name, "ph": phase, "pid": PROCESS, "tid": track, "ts": at, "args": args}


def _slices(problem: DecidedProblem, line: StepTimeline) -> list[dict[str, Any]]:
    joules = {op.name: op.joules for op in problem.ops}
    tensors = {tensor.name: tensor for tensor in problem.tensors}
    events = []
    for frame in line.frames:
        args: dict[str, Any] = {"step": frame.step, "ram_bytes": frame.ram_bytes}
        kind = "compute" if frame.kind == "recompute" else frame.kind
        if kind == "compute":
            args |= {"joules": joules[frame.what], "workspace_bytes": frame.workspace_bytes}
        else:
            tensor = tensors[frame.what]
            cost = tensor.page_in if kind == "page_in" else tensor.page_out
            assert cost is not None, "the simulator accepted the transfer"
            args |= {"joules": cost.joules, "bytes": tensor.bytes, "role": tensor.role or NO_ROLE}
        lasts = (frame.end_seconds - frame.start_seconds) * _MICROSECONDS
        event = _event("X", frame.what, TRACKS[kind][0], frame.start_seconds, args)
        events.append({**event, "cat": frame.kind, "dur": lasts})
    return events
