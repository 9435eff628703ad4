"""``python -m poet.solvers.engines.cpsat_child``: OR-tools CP-SAT in a process of its own.

Requests arrive on stdin, one after the other, a line of JSON each. Of a program, incumbents, bounds and the
end go to stdout, a line each; of blocks of memory, their offsets. The process ends when stdin is closed or
its parent is gone.

Each block is a rectangle per span, whose place in time is fixed and whose place in memory is looked for; no
two rectangles overlap. One line of JSON comes on stdin, one goes to stdout.

The block that can lie lowest is placed first, as low as it goes; of several, that which comes first in some
order. So layouts are listed from the bottom up, as the canonical search of Moffitt (MiniMalloc, ASPLOS 2023)
does, while CP-SAT learns from what does not fit. How long that takes differs a thousandfold from order to
order, and mostly one of a few ends within a second, so many get a short turn and then a longer one (Gomes and
Selman, "Algorithm portfolios", 2001). Blocks of the same times are stacked, as one block or one above the
other: that loses layouts, but leaves far fewer to look at. Only a turn that loses none proves that nothing
fits: a short one of these comes first, from the hints.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import random
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from ortools.sat.python import cp_model

from poet.held_memory import held_bytes
from poet.solvers.engines.child import TELL_SECONDS, requests, tell


def main() -> None:
    """Answer one request after the other."""
    for line in requests(lambda stdin: stdin.readline()):
        request = json.loads(line)
        if "sizes" in request:
            tell(_placed(request))
        else:
            _solve(request)


# --- programs ---


def _solve(request: dict[str, Any]) -> None:
    model, columns = _model_of(request)
    solver = cp_model.CpSolver()
    parameters = solver.parameters
    parameters.num_workers = request["threads"]
    parameters.random_seed = request["seed"]
    parameters.linearization_level = 2
    parameters.absolute_gap_limit = request["gap"]
    if request["seconds"] is not None:
        if request["counted"]:
            parameters.max_deterministic_time = request["seconds"]
        else:
            parameters.max_time_in_seconds = request["seconds"]
    solver.best_bound_callback = lambda bound: tell({"bound": _units(bound)})
    with _ended_at(solver, request["most_bytes"]):
        status = solver.status_name(solver.solve(model, _Incumbents(columns))).lower()
    found = status in ("optimal", "feasible")
    tell(
        {
            "status": status,
            "counted_seconds": solver.response_proto.deterministic_time,
            "bound": _units(solver.best_objective_bound) if found else None,  # 0 where nothing is known
            "values": [solver.value(column) for column in columns] if found else None,
        }
    )


@contextlib.contextmanager
def _ended_at(solver: cp_model.CpSolver, most_bytes: int) -> Iterator[None]:
    """Ends the search where this process holds more than ``most_bytes``, if that is not 0."""
    over = threading.Event()

    def look() -> None:
        while not over.wait(TELL_SECONDS):
            if held_bytes() > most_bytes:
                solver.stop_search()

    if most_bytes:
        threading.Thread(target=look, daemon=True).start()
    try:
        yield
    finally:
        over.set()


def _model_of(request: dict[str, Any]) -> tuple[cp_model.CpModel, list[cp_model.IntVar]]:
    model = cp_model.CpModel()
    columns = [model.new_int_var(0, most, "") for most in request["largest"]]
    for of_row, factors, right in request["rows"]:
        row = cp_model.LinearExpr.weighted_sum([columns[column] for column in of_row], factors)
        model.add(row <= right)
    costs = request["costs"]
    model.minimize(cp_model.LinearExpr.weighted_sum([columns[c] for c, _ in costs], [f for _, f in costs]))
    for column, value in zip(columns, request["start"] or (), strict=False):
        model.add_hint(column, value)
    return model, columns


class _Incumbents(cp_model.CpSolverSolutionCallback):
    """Writes every better solution to stdout as it is found."""

    def __init__(self, columns: list[cp_model.IntVar]) -> None:
        super().__init__()
        self.columns = columns

    def on_solution_callback(self) -> None:
        """Called by the solver."""
        values = [self.value(column) for column in self.columns]
        tell({"values": values, "bound": _units(self.best_objective_bound)})


def _units(bound: float) -> int | None:
    """A bound as a whole number, which it is; ``None`` before there is one."""
    return None if abs(bound) > 2.0**62 else round(bound)


# --- places ---

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


def _placed(request: dict[str, Any]) -> dict[str, Any]:
    """One turn after the other, until one says something or the time is over."""
    generator = random.Random(request["seed"])  # noqa: S311 - no secret
    spent_seconds, status, starts = 0.0, "unknown", None
    for turn in _turns(request["seconds"]):
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


def _turns(limit_seconds: float) -> Iterator[_Turn]:
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
