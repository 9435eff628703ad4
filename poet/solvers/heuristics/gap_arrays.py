"""A problem and a schedule in the making as arrays; choices of gaps read off schedules.

A *gap* is the time between two uses of a tensor. The functions of `list_scheduler` work on a `Machine`, as
Python on lists and as machine code on arrays. Machine code has the numbers of rows in it: it is made again
where this file has changed.
"""

from __future__ import annotations

import bisect
import enum
import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from poet.problem import Limits, Place, Problem
from poet.problem.homes import stored_between_steps
from poet.problem.schedule import Compute, Free, PageIn, PageOut, Schedule, Step
from poet.solvers.instance.instance import Cost, Facts

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


class Way(enum.IntEnum):
    """How a dropped tensor comes back."""

    CHEAPER = 0
    PAGE = 1
    REMAKE = 2


BY_VALUE, DROP, KEEP = 0, 1, 2
"""Of a gap: when its tensor is dropped."""

CHEAPER, PAGE, REMAKE = map(int, Way)
COMPUTE, FREE, PAGE_OUT, PAGE_IN = 0, 1, 2, 3
"""Of a step."""

MOST_CHAIN = 48
"""Ops that an estimate of a recomputation follows before it takes it for impossible."""

MOST_BYTES = 1 << 60
"""Of a size that machine code adds up."""

# rows of Machine.t, by tensor: what the problem says, then what a schedule in the making has
(
    SIZE, STORED_SIZE, PRODUCER, LAST_UPDATE, FIRST_GAP, START, END, CHOSEN, MAY_MOVE, MUST_MOVE, KEPT,
    USES, USES_END, PRESENT, STORED, HELD_UNTIL, USE, NEED, OWES, ENDS_IN_RAM, MOVABLE, PINNED, PROTECTED,
    HOPELESS, RAM_LIST, RAM_PLACE, HOME,
) = range(27)  # fmt: skip
# rows of Machine.o, by op
(
    INPUTS, INPUTS_END, RERUNS, RERUNS_END, OUTPUTS, OUTPUTS_END, UPDATES, UPDATES_END, RERUN_LIMIT,
    RERUN_NEED, WORKSPACE, RELEASE_HEAD, SEEN, OPS_AGAIN,
) = range(14)  # fmt: skip
STACK, LEAVES, KINDS, WHATS, RELEASE_NEXT, RELEASE_ITEM, IN_USE = range(7)  # rows of Machine.w
MARK, WAY, ABSENT = range(3)  # rows of Machine.g
WORTH, USED_AT, IN_COST, OUT_COST = 0, 1, 2, 5  # rows of Machine.x; a cost has three
(
    OPS, TENSORS, BUDGET, WRITABLE, CAPACITY, POSITION, RAM, STEPS, HELD, IN_RAM, USED, ROOM, OWED, FAILED,
    WALKS,
) = range(15)  # fmt: skip
SPENT, MOST, SECONDS, METERED, BIAS, MOST_SECONDS, MOST_METERED = range(7)


class Machine(NamedTuple):
    """A problem, the choice of every gap, and the schedule that is being made of it: lists, or arrays.

    Attributes:
        t: rows by tensor. ``START`` and ``END`` are places, bit 1 RAM and bit 2 storage; ``CHOSEN`` is 1
            where the plan chooses the home, 2 where an op updates it as well; ``HOME`` is 1 in storage.
            ``NEED`` is the next op for which it must be in RAM; one more than that of the end: none.
        o: rows by op; where lists begin and end in ``flat``.
        flat: tensors that ops read, read again, make and update, and ops that read each tensor, then the end.
        w: work area, and steps.
        g: rows by gap; gap k of a tensor is before its use k. ``ABSENT``: it was dropped there.
        x: by tensor: bytes per joule of coming back, not a number where unknown; the second of its last use;
            page-in and page-out in joules, seconds and metered joules, infinite where not allowed.
        y: joules, seconds and metered joules by op.
        n: counts and limits in bytes.
        a: amounts and limits.
    """

    t: Any
    o: Any
    flat: Any
    w: Any
    g: Any
    x: Any
    y: Any
    n: Any
    a: Any


class Costs(NamedTuple):
    """Of page-ins and page-outs by tensor, ``None`` where not allowed, and of ops."""

    page_in: Sequence[Cost | None]
    page_out: Sequence[Cost | None]
    ops: Sequence[Cost]


def machine_of(
    problem: Problem,
    facts: Facts,
    limits: Limits,
    costs: Costs,
    kept: frozenset[str],
    *,
    most: tuple[float, float] = (math.inf, math.inf),
) -> Machine:
    """``problem`` in arrays.

    Args:
        problem: where homes may be a choice, which ``facts`` have in RAM.
        facts: of the problem.
        limits: of RAM, storage, paging and recomputation.
        costs: what counts.
        kept: tensors that stay in RAM while they are needed.
        most: seconds and metered joules, above which a schedule ends without success.
    """
    tensors, n = problem.tensors, len(problem.ops)
    flat = list[int]()
    of_ops = (facts.inputs, facts.rerun_inputs, facts.outputs, facts.updates)
    ops: list[Sequence[int]] = [
        *(row for lists in of_ops for row in _listed(flat, lists)),
        facts.rerun_limit if limits.recompute else [-1] * n, facts.rerun_need, facts.workspace,
    ]  # fmt: skip
    end_of_ops = len(flat)
    rows = _of_tensors(problem, facts, limits, kept, flat)
    width = max(60 * n + 10 * len(tensors) + 1000, 2 * len(flat) + len(tensors) + n)
    return Machine(
        t=[*rows, *_rows(27 - len(rows), len(tensors))],
        o=[*ops, *_rows(14 - len(ops), n)],
        flat=[*flat, 0],
        w=_rows(7, width),
        g=_rows(3, len(flat) - end_of_ops + len(tensors)),
        x=[*_rows(2, len(tensors)), *_costs(costs.page_in), *_costs(costs.page_out)],
        y=_costs(costs.ops),
        n=[n, len(tensors), *_room(problem, limits), *[0] * 10],
        a=[0.0, 0.0, 0.0, 0.0, 1.0, *most],
    )


def _listed(flat: list[int], lists: Iterable[Iterable[int]]) -> list[list[int]]:
    """Where each of ``lists`` begins and ends in ``flat``, at whose end they are put."""
    begins, ends = list[int](), list[int]()
    for each in lists:
        begins.append(len(flat))
        flat.extend(each)
        ends.append(len(flat))
    return [begins, ends]


def _of_tensors(
    problem: Problem, facts: Facts, limits: Limits, kept: frozenset[str], flat: list[int]
) -> list[Sequence[int]]:
    """The first rows of `Machine.t`; uses of tensors are put at the end of ``flat``."""
    tensors, n = problem.tensors, len(problem.ops)
    by_row = {name for op in problem.ops for name in op.stored_updates}
    places = {None: 0, Place.RAM: 1, Place.STORAGE: 2, Place.BOTH: 3, Place.EITHER: 0}
    is_chosen = [t.initially is Place.EITHER and t.name not in by_row for t in tensors]
    ends_here = [t.finally_ is Place.RAM or t.initially is Place.EITHER for t in tensors]
    uses = [
        [*(op for op in mine if op < n), *([n] * end)]
        for mine, end in zip(facts.uses, ends_here, strict=True)
    ]
    starts = [
        0 if made >= 0 else 2 if t.name in by_row else 1 if t.initially is None else places[t.initially]
        for made, t in zip(facts.producer, tensors, strict=True)
    ]
    return [
        facts.size, facts.stored_size, facts.producer,
        [updates[-1] if updates else -1 for updates in facts.update_ops],
        [*itertools.accumulate((len(mine) + 1 for mine in uses), initial=0)][:-1],
        starts, [2 if t.name in by_row else places[t.finally_] for t in tensors],
        [chosen * (1 + bool(updates)) for chosen, updates in zip(is_chosen, facts.update_ops, strict=True)],
        [limits.paging] * len(tensors),
        [Place.STORAGE in (t.initially, t.finally_) or t.name in by_row for t in tensors],
        [t.name in kept for t in tensors],
        *_listed(flat, uses),
    ]  # fmt: skip


def _room(problem: Problem, limits: Limits) -> list[float]:
    """Bytes of RAM, to write, and of storage; infinite where there is no limit."""
    written = limits.written_budget_bytes
    to_write = None if written is None else written - problem.row_written_bytes
    bytes_of = (limits.ram_budget_bytes, to_write, problem.storage_capacity_bytes)
    return [math.inf if each is None else each for each in bytes_of]


def arrays_of(m: Machine) -> Machine:
    """The same for machine code."""
    t, o, flat, w, g = (np.array(rows, dtype=np.int64) for rows in m[:5])
    n = np.array([min(each, MOST_BYTES) for each in m.n], dtype=np.int64)
    x, y, a = (np.array(rows, dtype=np.float64) for rows in (m.x, m.y, m.a))
    return Machine(t, o, flat, w, g, x, y, n, a)


def _rows(count: int, width: int) -> list[list[int]]:
    return [[0] * width for _ in range(count)]


def _costs(costs: Iterable[Cost | None]) -> list[list[float]]:
    """Joules, seconds and metered joules; infinite where there is none."""
    each = [(c.joules, c.seconds, c.metered_joules) if c is not None else (math.inf, 0.0, 0.0) for c in costs]
    return [[cost[k] for cost in each] for k in range(3)]


def read_choice(m: Machine, facts: Facts, problem: Problem, schedule: Schedule) -> None:
    """Set the gaps, and homes that are a choice, to what ``schedule`` does: kept, or dropped, and how it
    came back.
    """
    number = {tensor.name: t for t, tensor in enumerate(problem.tensors)}
    op_number = {op.name: k for k, op in enumerate(problem.ops)}
    mark, way, home = m.g[MARK], m.g[WAY], m.t[HOME]
    for row in (mark, way, home):
        for k in range(len(row)):
            row[k] = 0
    chosen = [problem.tensors[t].name for t in np.flatnonzero(m.t[CHOSEN])]
    for name in stored_between_steps(problem, schedule, chosen) if chosen else ():
        home[number[name]] = 1
    position, left = 0, dict[int, int]()

    def comes_back(gap: int | None, how: int) -> None:
        if gap is not None:
            mark[gap], way[gap] = DROP, how

    for step in schedule:
        if isinstance(step, Compute):
            op = op_number[step.op]
            if op == position:
                position += 1
            else:
                for t in facts.outputs[op]:
                    comes_back(left.pop(t, None), REMAKE)
        elif isinstance(step, (Free, PageIn)):
            t = number[step.tensor]
            gap = gap_from(m, t, position)
            if isinstance(step, Free):
                left[t] = gap
            else:
                comes_back(left.pop(t, gap), PAGE)


def gap_from(m: Machine, t: int, position: int) -> int:
    """The gap of ``t`` that the first run of op ``position`` is in, or ends."""
    place = bisect.bisect_left(m.flat, position, m.t[USES][t], m.t[USES_END][t])
    return int(m.t[FIRST_GAP][t] + place - m.t[USES][t])


def schedule_of(problem: Problem, m: Machine) -> Schedule:
    """The steps that were written down."""

    def steps() -> Iterator[Step]:
        count = int(m.n[STEPS])
        for kind, what in zip(m.w[KINDS][:count], m.w[WHATS][:count], strict=True):
            if kind == COMPUTE:
                yield Compute(problem.ops[what].name)
            else:
                name = problem.tensors[what].name
                yield (Free(name) if kind == FREE else PageOut(name) if kind == PAGE_OUT else PageIn(name))

    return tuple(steps())
