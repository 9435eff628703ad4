"""Local search over what each use of each tensor version comes from: kept, paged in, or made again.

The moves and the list scheduling that makes a schedule of each choice are machine code
(`poet.solvers.heuristics.eviction_loops`): thousands to tens of thousands of plans a second. The search
begins at the best plan known, accepts slightly more expensive neighbours, and goes back to the best one after
many tries without progress (threshold accepting: Dueck and Scheuer 1990).
"""

from __future__ import annotations

import functools
import itertools
import logging
import math
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from poet import children
from poet.homes import stored_between_steps
from poet.problem import Limits, Place, Problem, ProblemOp, Tensor
from poet.schedule import Compute, Free, PageIn, PageOut, Schedule, Step
from poet.solvers.bounds.compiled import is_kept, loaded
from poet.solvers.heuristics import eviction_loops as loops
from poet.solvers.heuristics.eviction_loops import Floats, Ints, Machine
from poet.solvers.instance.instance import Content, Cost, Instance, instance_of
from poet.solvers.instance.instance import Facts as Indexed
from poet.tuning import Tuning

_log = logging.getLogger(__name__)

MOST_BYTES = 1 << 60
"""Of a size that the loops add up."""

BATCH_OPS = 10_000
"""That the schedules of one batch run together, between two looks at the clock: hundredths of a second."""

SLACKS = (0.002, 0.01, 0.03)
"""The part of the overhead by which the next plan may take more, in turn."""

BIASES = (1.0, 0.6, 0.3)
"""Exponents of the joules of coming back in what is dropped first, to begin with."""

VAIN_TRIES = 3000
"""After so many without a better plan it goes back to the best one, with the next slack."""


class LocalSearch:
    """The search on one instance.

    Args:
        instance: what to plan.
        seed: of every random choice.

    Attributes:
        best_joules: overhead of the best plan that it has made since it began, or began with.
    """

    def __init__(self, instance: Instance, seed: int) -> None:
        self.instance, self.seed = instance, seed
        self.indexed = Indexed(instance.problem)
        self.here = here = machine_of(instance, self.indexed)
        self.found = here._replace(
            t=here.t.copy(), w=here.w.copy(), g=here.g.copy(), n=here.n.copy(), a=here.a.copy()
        )
        self.gaps, self.weights, self.owners = _movable(here)
        self.homes = np.flatnonzero(here.t[loops.CHOSEN])
        self.here_joules = self.best_joules = math.inf
        self.vain, self.turn, self.batches = 0, 0, 0
        self.tries = max(8, BATCH_OPS // len(instance.tasks))
        self._code: Any = loaded(loops)

    @property
    def has_choices(self) -> bool:
        """Whether there is a gap to choose about."""
        return len(self.gaps) > 0

    @staticmethod
    def serves(instance: Instance) -> bool:
        """Whether there is something to decide, in numbers that the loops can add up."""
        sizes = [c.bytes + c.stored_bytes for c in instance.contents]
        sizes += [task.workspace_bytes for task in instance.tasks]
        budget = instance.limits.ram_budget_bytes
        idle = any(content.dropped for content in instance.contents)  # pinned to leave while nothing uses it
        return budget is not None and sum(sizes) < MOST_BYTES and not idle

    def begin_at(self, schedule: Schedule) -> None:
        """Take the choice of ``schedule`` for the next one to go on from."""
        read_choice(self.here, self.indexed, schedule)
        self.best_joules, self.vain = math.inf, 0
        self.here_joules = float(self._code.decode(self.here, math.inf))
        self._keep_here()
        for bias in BIASES:  # what values alone make, where that is better
            kept = self.here.g.copy(), self.here.a[loops.BIAS]
            self.here.g[:], self.here.a[loops.BIAS] = 0, bias
            joules = float(self._code.decode(self.here, self.here_joules))
            if joules < self.here_joules:
                self.here_joules = joules
            else:
                self.here.g[:], self.here.a[loops.BIAS] = kept

    def batch(self) -> Schedule | None:
        """Some tries; a schedule that takes less than `best_joules`."""
        if math.isinf(self.here_joules):
            self.here_joules = float(self._code.decode(self.here, math.inf))
            if self.here_joules < self.best_joules:
                self._keep_here()
                return schedule_of(self.indexed, self.found)
        best = self.best_joules
        self.batches += 1
        here, better, number = self._code.improve(
            self.here, self.found, self.gaps, self.weights, self.owners, self.homes, self.here_joules, best,
            SLACKS[self.turn % len(SLACKS)], self.tries, (self.seed * 7919 + self.batches) % 2**32,
        )  # fmt: skip
        self.here_joules, self.vain = here, 0 if number else self.vain + self.tries
        if number:
            self.best_joules = better
            return schedule_of(self.indexed, self.found)
        if self.vain >= VAIN_TRIES:
            self.vain, self.turn = 0, self.turn + 1
            if math.isfinite(self.best_joules):
                self._copy(self.found, self.here)
                self.here_joules = float(self._code.decode(self.here, math.inf))
        return None

    def _keep_here(self) -> None:
        self.best_joules = min(self.best_joules, self.here_joules)
        self._copy(self.here, self.found)

    def _copy(self, one: Machine, other: Machine) -> None:
        other.w[:], other.g[:], other.t[loops.HOME], other.n[:] = one.w, one.g, one.t[loops.HOME], one.n
        other.a[loops.BIAS] = one.a[loops.BIAS]


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


def _movable(m: Machine) -> tuple[Ints, Floats, Ints]:
    """Gaps that may be chosen about, how often as a running sum, and per gap its tensor and its ends."""
    owners = np.zeros((3, m.g.shape[1]), dtype=np.int64)
    gaps, weights = list[int](), list[float]()
    for t in range(len(m.t[0])):
        before = int(m.t[loops.PRODUCER, t])
        mine = [*m.flat[m.t[loops.USES, t] : m.t[loops.USES_END, t]].tolist(), int(m.n[loops.OPS]) + 1]
        for gap, use in enumerate(mine, int(m.t[loops.FIRST_GAP, t])):
            owners[:, gap] = t, before, use
            if m.t[loops.SIZE, t] and use - before > 1 and not m.t[loops.KEPT, t]:
                gaps.append(gap)
                weights.append(math.sqrt(float(m.t[loops.SIZE, t]) * (use - before)))
            before = use
    order = np.argsort(owners[1, gaps], kind="stable")  # so that neighbours begin at about one time
    return np.array(gaps, dtype=np.int64)[order], np.cumsum(np.array(weights)[order]), owners


def read_choice(m: Machine, indexed: Indexed, schedule: Schedule) -> None:
    """Set the gaps to what ``schedule`` does: kept, or dropped, and how it came back."""
    problem = indexed.problem
    number = {tensor.name: t for t, tensor in enumerate(problem.tensors)}
    op_number = {op.name: k for k, op in enumerate(problem.ops)}
    mark, way, home = m.g[loops.MARK], m.g[loops.WAY], m.t[loops.HOME]
    mark[:], way[:], home[:] = loops.BY_VALUE, loops.CHEAPER, 0
    chosen = [problem.tensors[t].name for t in np.flatnonzero(m.t[loops.CHOSEN])]
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
                        way[left.pop(t)] = loops.REMAKE
        elif isinstance(step, (Free, PageIn)):
            t = number[step.tensor]
            mine = m.flat[m.t[loops.USES, t] : m.t[loops.USES_END, t]]
            gap = int(m.t[loops.FIRST_GAP, t]) + int(np.searchsorted(mine, position))
            if isinstance(step, Free):
                mark[gap], left[t] = loops.DROP, gap
            else:
                way[left.pop(t, gap)] = loops.PAGE


def schedule_of(indexed: Indexed, m: Machine) -> Schedule:
    """The steps that the last one wrote down."""
    problem = indexed.problem

    def steps() -> Iterator[Step]:
        count = int(m.n[loops.STEPS])
        for kind, what in zip(
            m.w[loops.KINDS, :count].tolist(), m.w[loops.WHATS, :count].tolist(), strict=True
        ):
            if kind == loops.COMPUTE:
                yield Compute(problem.ops[what].name)
            else:
                name = problem.tensors[what].name
                yield (
                    Free(name)
                    if kind == loops.FREE
                    else PageOut(name)
                    if kind == loops.PAGE_OUT
                    else PageIn(name)
                )

    return tuple(steps())


@functools.cache
def is_ready() -> bool:
    """Whether the machine code is kept; else it is begun to be made, by a process that outlives this one.

    That takes half a minute of another core, once on a machine; searches go on without it until then.
    """
    if is_kept(loops, "improve"):
        return True
    _log.info("the local search is compiled for this machine, beside this search; the next one has it")
    with children.undisturbed():
        subprocess.Popen(
            children.command("poet.solvers.heuristics.local_search"),
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            env=children.environment(), start_new_session=True,
        )  # fmt: skip
    return False


def main() -> None:
    """Make the machine code, by a search on the smallest problem that there is."""
    tensor = Tensor("t", 1)
    ops = (ProblemOp("a", (), ("t",), 1.0, 1.0), ProblemOp("b", ("t",), (), 1.0, 1.0))
    limits = Limits(ram_budget_bytes=1)
    instance = instance_of(Problem("smallest", (tensor,), ops), limits, tuning=Tuning())
    search = LocalSearch(instance, 0)
    search.batch()
    search.batch()


if __name__ == "__main__":
    main()
