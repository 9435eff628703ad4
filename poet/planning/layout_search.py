"""``python -m poet.planning.layout_search``: CP-SAT looks for the places of blocks, in a process of its own.

Each block is a rectangle per span, whose place in time is fixed and whose place in memory is looked for; no
two rectangles overlap. One request comes, one answer goes (`poet.solvers.engines.process`).

The block that can lie lowest is placed first, as low as it goes; of several, that which comes first in some
order. So layouts are listed from the bottom up, as the canonical search of Moffitt (MiniMalloc, ASPLOS 2023)
does, while CP-SAT learns from what does not fit. How long that takes differs a thousandfold from order to
order, and mostly one of a few ends within a second, so many get a short turn and then a longer one (Gomes and
Selman, "Algorithm portfolios", 2001). Blocks of the same times are stacked, as one block or one above the
other: that loses layouts, but leaves far fewer to look at. Only a turn that loses none proves that nothing
fits: a short one of these comes first, from the hints.
"""

from __future__ import annotations

import itertools
import math
import random
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from ortools.sat.python import cp_model

from poet.solvers.engines.process import requests, tell


def main() -> None:
    """Answer one request after the other."""
    for request in requests():
        tell(placed(request))


Stacking = Literal["merged", "ordered", "free"]
_FIRST_SECONDS, _GROWTH = 1.0, 5.0  # of a turn, and from one round of turns to the next
_HINTED_SECONDS, _HINTED_SHARE = 0.4, 0.2  # of the very first, and at most of the limit
_PLAIN_TURNS = 3.0  # a search that can prove takes as long as so many turns
_ROUND_TURNS = 6.0 + _PLAIN_TURNS  # a first round is within the limit, as far as it has this many
_WORK_PER_SECOND = 0.03  # of CP-SAT's deterministic time, on layouts of some hundred blocks
_ANSWER_SECONDS = 0.1  # left for the answer to arrive in
_JITTER = 0.25  # by how much, in logarithms, sizes and times are disturbed from the third round on


@dataclass(frozen=True, slots=True)
class _Turn:
    """What one search does.

    Attributes:
        stacking: of blocks of the same times: as one block, one above the other, or as it comes.
        order: by what blocks are sorted; ``None``: CP-SAT's own search, from the hints.
        seconds: its limit.
        jitter: how much sizes and times are disturbed before they are sorted.
    """

    stacking: Stacking
    order: Literal["length", "area", "size"] | None
    seconds: float
    jitter: float


def placed(request: dict[str, Any]) -> dict[str, Any]:
    """One turn after the other, until one says something or the time is over."""
    generator = random.Random(request["seed"])  # noqa: S311 - no secret
    spent_seconds, status, starts = 0.0, "unknown", None
    for turn in turns(request["seconds"]):
        counted = (
            spent_seconds if request["counted"] else time.monotonic() - request["begun"] + _ANSWER_SECONDS
        )
        left_seconds = request["seconds"] - counted
        if left_seconds <= 0.0:
            break
        solver = cp_model.CpSolver()
        status, starts = _tried(request, turn, solver, left_seconds, generator)
        spent_seconds += solver.response_proto.deterministic_time / _WORK_PER_SECOND
        if starts is not None or (status == "infeasible" and turn.stacking == "free"):
            break
        status = "unknown"
    return {"status": status, "counted_seconds": spent_seconds, "starts": starts}


def turns(limit_seconds: float) -> Iterator[_Turn]:
    """Without end; the first are shorter where all together have little time."""
    yield _Turn("free", None, min(_HINTED_SECONDS, _HINTED_SHARE * limit_seconds), 0.0)
    first_seconds = min(_FIRST_SECONDS, (1.0 - _HINTED_SHARE) * limit_seconds / _ROUND_TURNS)
    for round_ in itertools.count():
        seconds, jitter = first_seconds * _GROWTH**round_, _JITTER if round_ > 1 else 0.0
        for order in ("length", "area", "size"):
            for stacking in ("merged", "ordered"):
                yield _Turn(stacking, order, seconds, jitter)
        yield _Turn("free", None, _PLAIN_TURNS * seconds, jitter)


def _tried(
    request: dict[str, Any],
    turn: _Turn,
    solver: cp_model.CpSolver,
    left_seconds: float,
    generator: random.Random,
) -> tuple[str, list[int] | None]:
    """The solver's word, and the offset of each block where it has some."""
    stacks = _stacks(request, turn, generator)
    model, starts = _packing(request, turn, stacks)
    parameters = solver.parameters
    parameters.num_workers = 1
    parameters.random_seed = request["seed"]
    if turn.order is not None:
        parameters.search_branching = cp_model.FIXED_SEARCH
        parameters.linearization_level = 0
    turn_seconds = min(turn.seconds, left_seconds) if request["counted"] else turn.seconds
    parameters.max_deterministic_time = (
        _WORK_PER_SECOND * turn_seconds
    )  # so turns end alike on a busy machine
    if not request["counted"]:
        parameters.max_time_in_seconds = left_seconds
    status = solver.status_name(solver.solve(model)).lower()
    if status not in ("optimal", "feasible"):
        return status, None
    offsets = [0] * len(request["sizes"])
    for stack, start in zip(stacks, starts, strict=True):
        top = solver.value(start)
        for number in stack:
            offsets[number], top = top, top + request["sizes"][number]
    return status, offsets


def _stacks(request: dict[str, Any], turn: _Turn, generator: random.Random) -> list[list[int]]:
    """Blocks that are placed as one, by number, in the order in which they are placed."""
    sizes, spans = request["sizes"], [tuple(map(tuple, each)) for each in request["spans"]]
    alike: dict[Any, list[int]] = defaultdict(list)
    for number in range(len(sizes)):
        alike[spans[number] if turn.stacking == "merged" else number].append(number)
    order = turn.order
    if order is None:
        return list(alike.values())

    def key(stack: list[int]) -> tuple[float, ...]:
        size: float = sum(sizes[number] for number in stack)
        length: float = sum(last - first + 1 for first, last in spans[stack[0]])
        if turn.jitter:
            size *= math.exp(generator.uniform(-turn.jitter, turn.jitter))
            length *= math.exp(generator.uniform(-turn.jitter, turn.jitter))
        return {"length": (-length, -size), "area": (-length * size,), "size": (-size, -length)}[order]

    return sorted(alike.values(), key=key)


def _packing(
    request: dict[str, Any], turn: _Turn, stacks: list[list[int]]
) -> tuple[cp_model.CpModel, list[cp_model.IntVar]]:
    """Sizes, spans, hints and the room are in the same unit; each stack's offset comes with the model."""
    model = cp_model.CpModel()
    starts, in_time, in_memory = [], [], []
    below: dict[Any, tuple[cp_model.IntVar, int]] = {}
    for stack in stacks:
        size, spans = sum(request["sizes"][number] for number in stack), request["spans"][stack[0]]
        if size > request["room"]:
            model.add_bool_or([])
            return model, []
        start = model.new_int_var(0, request["room"] - size, "")
        if turn.order is None:
            model.add_hint(start, min(request["hints"][stack[0]], request["room"] - size))
        held = model.new_fixed_size_interval_var(start, size, "")
        for first, last in spans:
            in_time.append(model.new_fixed_size_interval_var(first, last - first + 1, ""))
            in_memory.append(held)
        if turn.stacking == "ordered":
            times = tuple(map(tuple, spans))
            if times in below:
                lower, lower_size = below[times]
                model.add(start >= lower + lower_size)
            below[times] = start, size
        starts.append(start)
    model.add_no_overlap_2d(in_time, in_memory)
    if turn.order is not None:
        lowest: tuple[Any, Any] = cp_model.CHOOSE_LOWEST_MIN, cp_model.SELECT_MIN_VALUE  # its stubs differ
        model.add_decision_strategy(starts, *lowest)
    return model, starts


if __name__ == "__main__":
    main()
