"""Local search over what each use of each tensor version comes from: kept, paged in, or made again.

The moves and the list scheduling that makes a schedule of each choice are machine code
(`poet.solvers.heuristics.gap_moves`): thousands to tens of thousands of plans a second. The search begins at
the best plan known, accepts slightly more expensive neighbours, and goes back to the best one after many
tries without progress (threshold accepting: Dueck and Scheuer 1990). One such search goes on from its own
plans, even where others have better ones: what rounds a relaxation can be a place that small moves do not
leave. Another is at the best plan.
"""

from __future__ import annotations

import functools
import importlib.util
import itertools
import logging
import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np

from poet.problem.schedule import Schedule
from poet.solvers.bounds.compiled import is_kept, loaded, mark_of
from poet.solvers.heuristics import gap_arrays, list_scheduler
from poet.solvers.heuristics import gap_moves as moves
from poet.util import children

# isort: off
from poet.solvers.heuristics.gap_arrays import (
    BIAS, CHOSEN, FIRST_GAP, HOME, KEPT, MOST_BYTES, OPS, PRODUCER, SIZE, USES, USES_END, Costs, Floats, Ints,
    Machine, arrays_of, machine_of, read_choice, schedule_of,
)  # fmt: skip

# isort: on
from poet.solvers.instance.instance import Content, Facts, Instance
from poet.solvers.portfolio.state import GOES_ON, LOCAL, SearchState, Steps

_log = logging.getLogger(__name__)
SOURCES = (gap_arrays, list_scheduler, moves)

BATCH_SECONDS = 0.05
"""Of a batch of tries, by clocks that count work."""

FEWEST_OPS = 33
"""Exact models of fewer are solved before its machine code is loaded."""

BATCH_OPS = 10_000
"""That the schedules of one batch run together, between two looks at the clock: hundredths of a second."""

SLACKS = (0.002, 0.01, 0.03)
"""The part of the overhead by which the next plan may take more, in turn."""

BIASES = (1.0, 0.6, 0.3)
"""Exponents of the joules of coming back in what is dropped first, to begin with."""

VAIN_TRIES = 3000
"""After so many without a better plan it goes back to the best one, with the next slack."""


def local_search(state: SearchState) -> Steps:
    """Batches of tries in turn: from its own last plan, and from the best plan of all."""
    instance = state.planned
    if len(instance.tasks) < FEWEST_OPS or not LocalSearch.serves(instance):
        return
    if not state.clock.counts_work and not is_ready():
        return
    own, near = (LocalSearch(instance, state.options.seed + number) for number in range(2))
    if state.first is not None:
        own.begin_at(state.first)
    seen = state.first
    for search in itertools.cycle((own, near)) if own.has_choices else ():
        best = state.best.schedule
        if search is near and best is not seen and best is not None:
            near.begin_at(best)
            seen = best
        found = search.batch()
        state.clock.spend(engine_seconds=BATCH_SECONDS)
        if found is not None and search.best_joules < state.overhead_joules():
            state.consider(found, LOCAL)
            seen = state.best.schedule if search is near else seen
        yield GOES_ON


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
        self.facts = Facts(instance.problem)
        self.here = here = _machine(instance, self.facts)
        self.found = here._replace(
            t=here.t.copy(), w=here.w.copy(), g=here.g.copy(), n=here.n.copy(), a=here.a.copy()
        )
        self.gaps, self.weights, self.owners = _movable(here)
        self.homes = np.flatnonzero(here.t[CHOSEN])
        self.here_joules = self.best_joules = math.inf
        self.vain, self.turn, self.batches = 0, 0, 0
        self.tries = max(8, BATCH_OPS // len(instance.tasks))
        self._decode, self._improve = machine_code()

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
        read_choice(self.here, self.facts, self.instance.problem, schedule)
        self.best_joules, self.vain = math.inf, 0
        self.here_joules = float(self._decode(self.here, math.inf))
        self._keep_here()
        for bias in BIASES:  # what values alone make, where that is better
            kept = self.here.g.copy(), self.here.a[BIAS]
            self.here.g[:], self.here.a[BIAS] = 0, bias
            joules = float(self._decode(self.here, self.here_joules))
            if joules < self.here_joules:
                self.here_joules = joules
            else:
                self.here.g[:], self.here.a[BIAS] = kept

    def batch(self) -> Schedule | None:
        """Some tries; a schedule that takes less than `best_joules`."""
        if math.isinf(self.here_joules):
            self.here_joules = float(self._decode(self.here, math.inf))
            if self.here_joules < self.best_joules:
                self._keep_here()
                return schedule_of(self.instance.problem, self.found)
        best = self.best_joules
        self.batches += 1
        here, better, number = self._improve(
            self.here, self.found, self.gaps, self.weights, self.owners, self.homes, self.here_joules, best,
            SLACKS[self.turn % len(SLACKS)], self.tries, (self.seed * 7919 + self.batches) % 2**32,
        )  # fmt: skip
        self.here_joules, self.vain = here, 0 if number else self.vain + self.tries
        if number:
            self.best_joules = better
            return schedule_of(self.instance.problem, self.found)
        if self.vain >= VAIN_TRIES:
            self.vain, self.turn = 0, self.turn + 1
            if math.isfinite(self.best_joules):
                self._copy(self.found, self.here)
                self.here_joules = float(self._decode(self.here, math.inf))
        return None

    def _keep_here(self) -> None:
        self.best_joules = min(self.best_joules, self.here_joules)
        self._copy(self.here, self.found)

    def _copy(self, one: Machine, other: Machine) -> None:
        other.w[:], other.g[:], other.t[HOME], other.n[:] = one.w, one.g, one.t[HOME], one.n
        other.a[BIAS] = one.a[BIAS]


def _machine(instance: Instance, facts: Facts) -> Machine:
    """``instance`` for machine code, costs as it counts them."""
    first = dict[str, Content]()
    for content in instance.contents:
        first.setdefault(content.tensor, content)
    contents = [first[tensor.name] for tensor in instance.problem.tensors]
    costs = Costs(
        [c.page_in for c in contents], [c.page_out for c in contents], [task.cost for task in instance.tasks]
    )
    kept = frozenset(content.tensor for content in contents if content.kept)
    deadline = instance.limits.deadline_seconds if instance.serial else None
    metered = instance.metered_joules_allowed
    most = (
        math.inf if deadline is None else deadline * (1.0 + 1e-9),
        math.inf if metered is None else metered,
    )
    return arrays_of(machine_of(instance.problem, facts, instance.limits, costs, kept, most=most))


def _movable(m: Machine) -> tuple[Ints, Floats, Ints]:
    """Gaps that may be chosen about, how often as a running sum, and per gap its tensor and its ends."""
    owners = np.zeros((3, m.g.shape[1]), dtype=np.int64)
    gaps, weights = list[int](), list[float]()
    for t in range(len(m.t[0])):
        before = int(m.t[PRODUCER][t])
        mine = [*m.flat[m.t[USES][t] : m.t[USES_END][t]].tolist(), int(m.n[OPS]) + 1]
        for gap, use in enumerate(mine, int(m.t[FIRST_GAP][t])):
            owners[:, gap] = t, before, use
            if m.t[SIZE][t] and use - before > 1 and not m.t[KEPT][t]:
                gaps.append(gap)
                weights.append(math.sqrt(float(m.t[SIZE][t]) * (use - before)))
            before = use
    order = np.argsort(owners[1, gaps], kind="stable")  # so that neighbours begin at about one time
    return np.array(gaps, dtype=np.int64)[order], np.cumsum(np.array(weights)[order]), owners


@functools.cache
def machine_code() -> tuple[Callable[..., float], Callable[..., tuple[float, float, int]]]:
    """`decode` and `improve`, compiled: the list scheduler once more, with what the moves have for a policy.

    numba asks of a function's own file alone whether what it kept is still right. The moves have the
    scheduler in them, and both the numbers of rows, so what was kept of other sources is removed first.
    """
    mark = mark_of(*SOURCES)
    if mark is not None and not mark.exists():
        for module in (list_scheduler, moves):
            for index in mark.parent.glob(f"{Path(str(module.__file__)).stem}.*.nbi"):
                index.unlink(missing_ok=True)
    name = f"{list_scheduler.__name__}_compiled"
    spec = importlib.util.spec_from_file_location(name, list_scheduler.__file__)
    assert spec is not None
    assert spec.loader is not None
    scheduler = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(scheduler)
    for module in (scheduler, moves):
        loaded(module)
    for function in ("victim", "is_dropped_at_once"):
        setattr(scheduler, function, getattr(moves, function))
    for function in ("decode", "worth"):
        setattr(moves, function, getattr(scheduler, function))
    return scheduler.decode, moves.improve


@functools.cache
def is_ready() -> bool:
    """Whether the machine code is kept; else it is begun to be made, by a process that outlives this one.

    That takes half a minute of another core, once on a machine; searches go on without it until then.
    """
    if is_kept(*SOURCES):
        return True
    _log.info("the local search is compiled for this machine, beside this search; the next one has it")
    with children.undisturbed():
        process = subprocess.Popen(
            children.command("poet.solvers"),
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            env=children.environment(), start_new_session=True,
        )  # fmt: skip
    _BESIDE.append(process)
    return False


_BESIDE: list[subprocess.Popen[bytes]] = []
"""What was begun; Python warns of a process that nobody refers to while it runs."""
