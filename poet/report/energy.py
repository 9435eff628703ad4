"""Where a step's energy and time go: by kind of op, and by compute, recomputation, transfers, idling."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from dataclasses import dataclass

from poet.homes import DecidedProblem
from poet.schedule import Compute, Schedule
from poet.simulator import Trace


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
