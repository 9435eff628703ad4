"""A problem and a schedule in the making as arrays for machine code; choices of gaps read off schedules.

A *gap* is the time between two uses of a tensor. Numbers of rows are in the machine code that
`python -m poet.solvers` keeps; it is made again where this file has changed.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from poet.homes import stored_between_steps
from poet.problem import Place
from poet.schedule import Compute, Free, PageIn, PageOut, Schedule, Step
from poet.solvers.instance.instance import Content, Cost, Instance
from poet.solvers.instance.instance import Facts as Indexed

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

BY_VALUE, DROP, KEEP = 0, 1, 2
"""Of a gap: when its tensor is dropped."""

CHEAPER, PAGE, REMAKE = 0, 1, 2
"""Of a gap: how its tensor comes back."""

COMPUTE, FREE, PAGE_OUT, PAGE_IN = 0, 1, 2, 3
"""Of a step."""

NEVER = 1 << 40
MOST_CHAIN = 48
"""Ops that an estimate of a recomputation follows before it takes it for impossible."""

# rows of Machine.t, by tensor: what the problem says, then what a schedule in the making has
(
    SIZE, STORED_SIZE, PRODUCER, LAST_UPDATE, FIRST_GAP, START, END, CHOSEN, MAY_MOVE, MUST_MOVE, KEPT,
    USES, USES_END, PRESENT, STORED, HELD_UNTIL, USE, OWES, ENDS_IN_RAM, MOVABLE, PINNED, PROTECTED, HOPELESS,
    RAM_LIST, RAM_PLACE, HOME,
) = range(26)  # fmt: skip
# rows of Machine.o, by op
(
    INPUTS, INPUTS_END, RERUNS, RERUNS_END, OUTPUTS, OUTPUTS_END, UPDATES, UPDATES_END, RERUN_LIMIT,
    RERUN_NEED, WORKSPACE, RELEASE_HEAD, SEEN, OPS_AGAIN,
) = range(14)  # fmt: skip
STACK, LEAVES, KINDS, WHATS, RELEASE_NEXT, RELEASE_ITEM = range(6)  # rows of Machine.w
MARK, WAY, ABSENT = range(3)  # rows of Machine.g
PRICE, SCORE, IN_COST, OUT_COST = 0, 1, 2, 5  # rows of Machine.x; a cost has three
OPS, TENSORS, BUDGET, WRITABLE, CAPACITY, POSITION, RAM, STEPS, HELD, IN_RAM, ROOM, OWED, FAILED, WALKS = (
    range(14)
)
SPENT, MOST, SECONDS, METERED, BIAS, MOST_SECONDS, MOST_METERED, BASE_SECONDS = range(8)


class Machine(NamedTuple):
    """A problem, the choice of every gap, and the schedule that is being made of it.

    Attributes:
        t: rows by tensor. ``START`` and ``END`` are places, bit 1 RAM and bit 2 storage; ``CHOSEN`` is 1
            where the plan chooses the home, 2 where an op updates it as well; ``HOME`` is 1 in storage.
        o: rows by op; where lists begin and end in ``flat``.
        flat: tensors that ops read, read again, make and update, and ops that read each tensor, then the end.
        w: work area, and steps.
        g: rows by gap; gap k of a tensor is before its use k. ``ABSENT``: it was dropped there.
        x: joules by tensor: of coming back, not a number where unknown; the score; page-in and page-out in
            joules, seconds and metered joules, infinite where not allowed.
        y: joules, seconds and metered joules by op.
        n: counts and limits in bytes.
        a: amounts and limits.
    """

    t: Ints
    o: Ints
    flat: Ints
    w: Ints
    g: Ints
    x: Floats
    y: Floats
    n: Ints
    a: Floats


MOST_BYTES = 1 << 60
"""Of a size that the loops add up."""


def machine_of(instance: Instance, indexed: Indexed) -> Machine:
    """``instance`` in arrays, costs as it counts them."""
    problem, limits = instance.problem, instance.limits
    tensors, n = problem.tensors, len(problem.ops)
    first = dict[str, Content]()
    for content in instance.contents:
        first.setdefault(content.tensor, content)
    contents = [first[tensor.name] for tensor in tensors]
    by_row = {name for op in problem.ops for name in op.stored_updates}
    places = {None: 0, Place.RAM: 1, Place.STORAGE: 2, Place.BOTH: 3, Place.EITHER: 0}
    flat = list[int]()

    def listed(lists: Iterable[Iterable[int]]) -> list[list[int]]:
        begins, ends = [], []
        for each in lists:
            begins.append(len(flat))
            flat.extend(each)
            ends.append(len(flat))
        return [begins, ends]

    of_ops = (indexed.inputs, indexed.rerun_inputs, indexed.outputs, indexed.updates)
    ops: list[Sequence[int]] = [
        *(row for lists in of_ops for row in listed(lists)),
        [task.last_rerun_stage for task in instance.tasks], indexed.rerun_need, indexed.workspace,
    ]  # fmt: skip
    is_chosen = [t.initially is Place.EITHER and t.name not in by_row for t in tensors]
    ends_here = [t.finally_ is Place.RAM or t.initially is Place.EITHER for t in tensors]
    uses = [
        [*(op for op in mine if op < n), *([n] * end)]
        for mine, end in zip(indexed.uses, ends_here, strict=True)
    ]
    starts = [
        0 if made >= 0 else 2 if t.name in by_row else 1 if t.initially is None else places[t.initially]
        for made, t in zip(indexed.producer, tensors, strict=True)
    ]
    rows: list[Sequence[int]] = [
        indexed.size, indexed.stored_size, indexed.producer,
        [updates[-1] if updates else -1 for updates in indexed.update_ops],
        [*itertools.accumulate((len(mine) + 1 for mine in uses), initial=0)][:-1],
        starts, [2 if t.name in by_row else places[t.finally_] for t in tensors],
        [chosen * (1 + bool(updates)) for chosen, updates in zip(is_chosen, indexed.update_ops, strict=True)],
        [limits.paging] * len(tensors),
        [Place.STORAGE in (t.initially, t.finally_) or t.name in by_row for t in tensors],
        [c.kept for c in contents],
        *listed(uses),
    ]  # fmt: skip
    width = max(60 * n + 10 * len(tensors) + 1000, 2 * len(flat) + len(tensors) + n)
    gaps = sum(map(len, uses)) + len(tensors)
    capacity, written = problem.storage_capacity_bytes, instance.written_room_bytes
    room = [
        MOST_BYTES if each is None else min(each, MOST_BYTES)
        for each in (limits.ram_budget_bytes, written, capacity)
    ]
    deadline = limits.deadline_seconds if instance.serial else None
    metered = instance.metered_joules_allowed
    amounts = [
        0.0, 0.0, 0.0, 0.0, 1.0,
        math.inf if deadline is None else deadline * (1.0 + 1e-9),
        math.inf if metered is None else metered,
        math.fsum(task.cost.seconds for task in instance.tasks),
    ]  # fmt: skip
    none = np.zeros((2, len(tensors)))
    return Machine(
        t=_rows(rows, 26),
        o=_rows(ops, 14),
        flat=np.array([*flat, 0], dtype=np.int64),
        w=np.zeros((6, width), dtype=np.int64),
        g=np.zeros((3, gaps), dtype=np.int64),
        x=np.concatenate([none, _costs(c.page_in for c in contents), _costs(c.page_out for c in contents)]),
        y=_costs(task.cost for task in instance.tasks),
        n=np.array([n, len(tensors), *room, *[0] * 9], dtype=np.int64),
        a=np.array(amounts),
    )


def _rows(rows: Sequence[Sequence[int]], count: int) -> Ints:
    """As the first of ``count`` rows; the others are nought."""
    array = np.zeros((count, len(rows[0])), dtype=np.int64)
    array[: len(rows)] = rows
    return array


def _costs(costs: Iterable[Cost | None]) -> Floats:
    """Joules, seconds and metered joules; infinite where there is none."""
    each = [(c.joules, c.seconds, c.metered_joules) if c is not None else (math.inf, 0.0, 0.0) for c in costs]
    return np.ascontiguousarray(np.array(each, dtype=np.float64).reshape(-1, 3).T)


def read_choice(m: Machine, indexed: Indexed, schedule: Schedule) -> None:
    """Set the gaps to what ``schedule`` does: kept, or dropped, and how it came back."""
    problem = indexed.problem
    number = {tensor.name: t for t, tensor in enumerate(problem.tensors)}
    op_number = {op.name: k for k, op in enumerate(problem.ops)}
    mark, way, home = m.g[MARK], m.g[WAY], m.t[HOME]
    mark[:], way[:], home[:] = BY_VALUE, CHEAPER, 0
    chosen = [problem.tensors[t].name for t in np.flatnonzero(m.t[CHOSEN])]
    for name in stored_between_steps(problem, schedule, chosen) if chosen else ():
        home[number[name]] = 1
    position, left = 0, dict[int, int]()
    for step in schedule:
        if isinstance(step, Compute):
            op = op_number[step.op]
            if op == position:
                position += 1
            else:
                for t in indexed.outputs[op]:
                    if t in left:
                        way[left.pop(t)] = REMAKE
        elif isinstance(step, (Free, PageIn)):
            t = number[step.tensor]
            mine = m.flat[m.t[USES, t] : m.t[USES_END, t]]
            gap = int(m.t[FIRST_GAP, t]) + int(np.searchsorted(mine, position))
            if isinstance(step, Free):
                mark[gap], left[t] = DROP, gap
            else:
                way[left.pop(t, gap)] = PAGE


def schedule_of(indexed: Indexed, m: Machine) -> Schedule:
    """The steps that the last one wrote down."""
    problem = indexed.problem

    def steps() -> Iterator[Step]:
        count = int(m.n[STEPS])
        for kind, what in zip(m.w[KINDS, :count].tolist(), m.w[WHATS, :count].tolist(), strict=True):
            if kind == COMPUTE:
                yield Compute(problem.ops[what].name)
            else:
                name = problem.tensors[what].name
                yield (Free(name) if kind == FREE else PageOut(name) if kind == PAGE_OUT else PageIn(name))

    return tuple(steps())
