"""What a schedule does to each tensor and op, who holds the RAM when it is fullest, and where energy goes.

Functions from a problem and a schedule that the simulator accepted to frozen rows.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from poet.ir.graph import Role
from poet.problem import Place, ProblemOp, Tensor
from poet.problem.homes import DecidedProblem
from poet.problem.schedule import Compute, Free, PageIn, PageOut, Schedule, Step
from poet.problem.simulator import Trace

NO_ROLE = "tensor"
"""What a tensor without a role is reported as."""


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

    @property
    def words(self) -> str:
        """``"kept"``, or what is done instead."""
        done = [f"recomputed {self.recomputations}×"] if self.recomputations else []
        done += (
            [f"paged out {self.page_outs}×, in {self.page_ins}×"] if self.page_outs + self.page_ins else []
        )
        return ", ".join(done) or "kept"


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
    brought_back = _brought_back(problem, schedule)
    page_outs = Counter(step.tensor for step in schedule if isinstance(step, PageOut))
    page_ins = Counter(step.tensor for step in schedule if isinstance(step, PageIn))
    resident_seconds = _resident_seconds(problem, schedule, trace)
    rows = []
    for tensor in problem.tensors:
        name = tensor.name
        costs = [(op.seconds / parts, op.joules / parts) for op, parts in brought_back[name]]
        for count, transfer in ((page_outs[name], tensor.page_out), (page_ins[name], tensor.page_in)):
            if transfer is not None:
                costs.append((count * transfer.seconds, count * transfer.joules))
        rows.append(
            TensorFate(
                name=name,
                role=tensor.role or NO_ROLE,
                bytes=problem.aligned_bytes(tensor.bytes),
                recomputations=len(brought_back[name]),
                page_outs=page_outs[name],
                page_ins=page_ins[name],
                joules=math.fsum(joules for _, joules in costs),
                seconds=math.fsum(seconds for seconds, _ in costs),
                resident_share=resident_seconds[name] / trace.seconds if trace.seconds else 1.0,
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
    tensors = {tensor.name: tensor for tensor in problem.tensors}
    ops = {op.name: op for op in problem.ops}
    present = {tensor.name for tensor in _sources(problem)}
    if trace.peak_step >= 0:
        present = set(next(islice(_presence(problem, schedule), trace.peak_step, None))[1])
    held = Counter({name: problem.aligned_bytes(tensors[name].bytes) for name in sorted(present)})
    workspace_bytes, what = 0, "before the first step"
    if trace.peak_step >= 0:
        step = schedule[trace.peak_step]
        if isinstance(step, Compute):
            op = ops[step.op]
            ran_before = any(step == earlier for earlier in schedule[: trace.peak_step])
            what = f"{'recomputing' if ran_before else 'running'} {op.name}"
            workspace_bytes = problem.aligned_bytes(op.workspace_bytes)
            held.update({name: problem.aligned_bytes(tensors[name].bytes) for name in op.outputs})
        else:
            what = f"{'fetching' if isinstance(step, PageIn) else 'storing'} {step.tensor}"
            held[step.tensor] = problem.aligned_bytes(tensors[step.tensor].bytes)
    roles = Counter[str]()
    for name, size_bytes in held.items():
        roles[tensors[name].role or NO_ROLE] += size_bytes
    roles[Role.WORKSPACE.value] += workspace_bytes
    return PeakMoment(
        bytes=sum(roles.values()),
        step=trace.peak_step,
        what=what,
        by_role=tuple((role, size_bytes) for role, size_bytes in roles.most_common() if size_bytes),
        tensors=tuple(held.most_common()),
    )


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


def _sources(problem: DecidedProblem) -> Iterator[Tensor]:
    produced = {name for op in problem.ops for name in op.outputs}
    for tensor in problem.tensors:
        if tensor.name not in produced and tensor.initially is not Place.STORAGE:
            yield tensor


def _presence(problem: DecidedProblem, schedule: Schedule) -> Iterator[tuple[Step, set[str]]]:
    """Each step with the tensors that are in RAM when it begins, one set that changes as it goes on."""
    outputs = {op.name: op.outputs for op in problem.ops}
    present = {tensor.name for tensor in _sources(problem)}
    for step in schedule:
        yield step, present
        if isinstance(step, Compute):
            present.update(outputs[step.op])
        elif isinstance(step, PageIn):
            present.add(step.tensor)
        elif isinstance(step, Free):
            present.discard(step.tensor)


def _brought_back(problem: DecidedProblem, schedule: Schedule) -> dict[str, list[tuple[ProblemOp, int]]]:
    """Per tensor, the recomputations that brought it back, each with how many tensors it did so for.

    An op that runs again may find some of its outputs still there; where it finds all of them there,
    they share its cost all the same.
    """
    ops = {op.name: op for op in problem.ops}
    found: dict[str, list[tuple[ProblemOp, int]]] = {tensor.name: [] for tensor in problem.tensors}
    ran: set[str] = set()
    for step, present in _presence(problem, schedule):
        if not isinstance(step, Compute):
            continue
        if step.op in ran:
            outputs = ops[step.op].outputs
            absent = [name for name in outputs if name not in present] or list(outputs)
            for name in absent:
                found[name].append((ops[step.op], len(absent)))
        ran.add(step.op)
    return found


def _resident_seconds(problem: DecidedProblem, schedule: Schedule, trace: Trace) -> dict[str, float]:
    """Per tensor, how long it is in RAM; a free ends it, the step's end otherwise."""
    outputs: dict[str, ProblemOp] = {op.name: op for op in problem.ops}
    since: dict[str, float] = {tensor.name: 0.0 for tensor in _sources(problem)}
    total = dict.fromkeys((tensor.name for tensor in problem.tensors), 0.0)
    for step, moment in zip(schedule, trace.moments, strict=True):
        if isinstance(step, Compute):
            for name in outputs[step.op].outputs:
                since.setdefault(name, moment.start_seconds)
        elif isinstance(step, PageIn):
            since[step.tensor] = moment.start_seconds
        elif isinstance(step, Free):
            total[step.tensor] += moment.end_seconds - since.pop(step.tensor)
    for name, start_seconds in since.items():
        total[name] += trace.seconds - start_seconds
    return total


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
