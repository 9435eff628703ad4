"""Eviction policies, and list schedules by them.

A policy says what to drop when room is needed, and may say more of each tensor that was just used. Most
decide ahead of time, by marking gaps (`Walk.mark`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from poet.problem import Limits, Problem, Transfer
from poet.problem.homes import decided
from poet.problem.pins import pinned
from poet.problem.schedule import Schedule
from poet.solvers.heuristics import list_scheduler as scheduler

# isort: off
from poet.solvers.heuristics.gap_arrays import (
    BIAS, BY_VALUE, DROP, FAILED, HOPELESS, IN_RAM, KEPT, MARK, NEED, PINNED, POSITION, PROTECTED, RAM_LIST,
    SECONDS, USED_AT, WAY, WORTH, Costs, Floats, Ints, Machine, Way, gap_from, machine_of, read_choice,
    schedule_of,
)  # fmt: skip

# isort: on
from poet.solvers.instance.incumbent import Incumbent
from poet.solvers.instance.instance import Cost, Facts

PRICE_EXPONENTS = (1.4, 1.0, 0.7)
"""Of the joules of coming back in what is dropped first; with one, all schedules weigh them alike."""


@dataclass(frozen=True, slots=True)
class Weights:
    """Joules that a second counts for, so that page-ins and recomputations compare by one number.

    Attributes:
        compute_watts: per second of an op.
        transfer_watts: per second of a transfer.
        remake_factor: multiplies the joules of recomputation; above 1 it prefers paging.
    """

    compute_watts: float = 0.0
    transfer_watts: float = 0.0
    remake_factor: float = 1.0


class Policy:
    """The decisions that the list scheduler leaves open. This one never drops what is still needed.

    ``eager``: what `mark` marks is dropped at once; else only when room is needed. ``unplanned``: how what
    is not marked comes back.
    """

    eager = False
    unplanned = Way.CHEAPER

    def begin(self, walk: Walk) -> None:
        """Called before the first op, to mark gaps ahead of time."""

    def mark(self, walk: Walk, tensor: int) -> Way | None:
        """How ``tensor``, which has just been used or made and is needed later, is to come back once dropped.

        ``None``: it is not marked for dropping.
        """
        return None

    def ranks(self, walk: Walk, tensors: Ints) -> Floats:
        """Priority of dropping each of ``tensors``, the highest first; -inf: it must stay."""
        return np.full(len(tensors), -math.inf)

    # --- what the list scheduler asks ---

    def victim(self, walk: Walk) -> int:
        """The tensor to drop next, of those in RAM that are not in use; -1: none."""
        t, here = walk.t, np.sort(walk.t[RAM_LIST][: walk.n[IN_RAM]])  # of equals the first that is made
        here = here[(t[PINNED][here] + t[PROTECTED][here] + t[HOPELESS][here] + t[KEPT][here]) == 0]
        here = here[walk.facts.sizes[here] > 0.0]
        ranks = self.ranks(walk, here)
        return int(here[ranks.argmax()]) if len(here) and ranks.max() > -math.inf else -1

    def drops_at_once(self, walk: Walk, tensor: int) -> bool:
        """Marks the gap that begins; whether ``tensor`` is dropped at its begin."""
        gap = scheduler.gap_of(walk, tensor)
        if tensor in walk.idle and walk.need(tensor) != walk.position:
            walk.g[WAY][gap] = Way.CHEAPER
            return True
        if type(self).mark is Policy.mark:
            return False
        way = self.mark(walk, tensor)
        walk.g[MARK][gap] = BY_VALUE if way is None else DROP
        walk.g[WAY][gap] = self.unplanned if way is None else way
        return way is not None and self.eager


class Walk(Machine):
    """A list schedule in the making, by a policy.

    Attributes:
        facts, policy: what is planned, and how.
        idle: tensors pinned to leave while nothing uses them.
    """

    facts: Facts
    policy: Policy
    idle: frozenset[int]

    @property
    def position(self) -> int:
        """The next op to run for the first time."""
        return int(self.n[POSITION])

    @property
    def seconds(self) -> float:
        """Since the step began, as blocking transfers and ops add up."""
        return float(self.a[SECONDS])

    def need(self, tensor: int) -> int:
        """The next op for which ``tensor`` must be in RAM; more than the number of ops: none."""
        return int(self.t[NEED][tensor])

    def mark(self, gap: int, way: Way) -> None:
        """Drop a tensor in this gap before others."""
        self.g[MARK][gap], self.g[WAY][gap] = DROP, way


def walk_of(
    facts: Facts, limits: Limits, policy: Policy | None = None, weights: Weights | None = None
) -> Walk:
    """The schedule of ``policy`` before its first step."""
    problem, weights, policy = facts.problem, weights or Weights(), policy or Policy()

    def move(cost: Transfer | None) -> Cost | None:
        if cost is None:
            return None
        return Cost(cost.seconds, cost.joules + weights.transfer_watts * cost.seconds)

    runs = [
        Cost(op.seconds, op.joules * weights.remake_factor + weights.compute_watts * op.seconds)
        for op in problem.ops
    ]
    page_ins = [move(tensor.page_in) for tensor in problem.tensors]
    page_outs = [move(tensor.page_out) for tensor in problem.tensors]
    pins = pinned(problem, limits)
    walk = Walk(*machine_of(problem, facts, limits, Costs(page_ins, page_outs, runs), pins.kept))
    for row in (NEED, HOPELESS, PINNED, PROTECTED, KEPT, RAM_LIST):
        walk.t[row] = np.array(walk.t[row], dtype=np.int64)
    for row in (WORTH, USED_AT):
        walk.x[row] = np.zeros(facts.tensor_count)
    if policy.unplanned is not Way.CHEAPER:
        walk.g[WAY][:] = [policy.unplanned] * len(walk.g[WAY])
    walk.facts, walk.policy = facts, policy
    dropped = pins.dropped
    walk.idle = frozenset(t for t, tensor in enumerate(problem.tensors) if tensor.name in dropped)
    return walk


def walked(facts: Facts, limits: Limits, policy: Policy, weights: Weights | None = None) -> Schedule | None:
    """The list schedule of ``policy``; ``None`` where it got stuck."""
    walk = walk_of(facts, limits, policy, weights)
    policy.begin(walk)
    scheduler.decode(walk, math.inf)
    return None if walk.n[FAILED] else schedule_of(facts.problem, walk)


def cheapest_walk(
    problem: Problem, limits: Limits, policies: Iterable[Policy], *, allowed: Limits | None = None
) -> Schedule | None:
    """The best list schedule of several policies within ``limits``.

    Args:
        problem: what to plan.
        limits: what the result must be within.
        policies: one schedule each.
        allowed: narrower limits for the list scheduler, where a policy forgoes paging or recomputation.
    """
    facts, best = Facts(problem), Incumbent(problem, limits)
    for policy in policies:
        best.consider(walked(facts, allowed or limits, policy))
    return best.schedule


def keep_everything(problem: Problem, limits: Limits) -> Schedule | None:
    """Plain training: each op once, tensors freed right after their last use, nothing paged that need not be.

    ``None`` where that is not within ``limits``.
    """
    return cheapest_walk(problem, limits, [Policy()], allowed=replace(limits, paging=False, recompute=False))


class ByStaleness(Policy):
    """Drops what is large, was not used for long, and is cheap to have back (Kirisame et al., ICLR 2021)."""

    def __init__(self, way: Way) -> None:
        self.unplanned = way

    def ranks(self, walk: Walk, tensors: Ints) -> Floats:
        """Bytes × seconds since the last use, per joule."""
        stale_seconds = walk.seconds - walk.x[USED_AT][tensors]
        ranks: Floats = _worths(walk, tensors) * (stale_seconds + 1e-12)
        return ranks


class ByDistance(Policy):
    """Drops what is large, is needed late, and is cheap to have back (after Belady 1966).

    Args:
        exponent: of the joules of coming back; above 1 it prefers cheap returns to long gaps.
    """

    def __init__(self, exponent: float = 1.0) -> None:
        self.exponent = exponent

    def begin(self, walk: Walk) -> None:
        """Have prices weighed with the exponent."""
        walk.a[BIAS] = self.exponent

    def ranks(self, walk: Walk, tensors: Ints) -> Floats:
        """Bytes × ops until the next use, per joule of coming back to the power of the exponent."""
        ranks: Floats = _worths(walk, tensors) * (walk.t[NEED][tensors] - (walk.position - 1))
        return ranks


class Planned(ByDistance):
    """Drops first what a plan has out of RAM, then as `ByDistance`.

    Args:
        marks: per tensor and op after which it is absent, how it comes back.
        exponent: of the joules of coming back.
    """

    def __init__(self, marks: Mapping[tuple[int, int], Way], exponent: float = 1.0) -> None:
        super().__init__(exponent)
        self.marks = marks

    def begin(self, walk: Walk) -> None:
        """Mark the gaps in which the plan has tensors out of RAM; where it has twice, the first counts."""
        super().begin(walk)
        for (tensor, after), way in sorted(self.marks.items(), reverse=True):
            walk.mark(gap_from(walk, tensor, after + 1), way)


def _worths(walk: Walk, tensors: Ints) -> Floats:
    """Bytes per joule of coming back, of each."""
    worths: Floats = walk.x[WORTH]
    for tensor in tensors[np.isnan(worths[tensors])].tolist():
        scheduler.worth(walk, tensor)
    return worths[tensors]


# --- along another plan ---


def followed(problem: Problem, schedule: Schedule, limits: Limits) -> Schedule | None:
    """The plan of least energy within ``limits`` that has absent what ``schedule`` has absent, and more.

    Args:
        problem: of ``schedule``.
        schedule: a plan that is not within ``limits``: it takes more RAM.
        limits: of the result.

    Returns:
        ``None`` where list schedules get stuck. Tensors are at home where ``schedule`` has them.
    """
    problem = decided(problem, schedule)
    return cheapest_walk(problem, limits, (_Along(schedule, each) for each in PRICE_EXPONENTS))


class _Along(Planned):
    """Drops first what ``schedule`` has absent."""

    def __init__(self, schedule: Schedule, exponent: float) -> None:
        super().__init__({}, exponent)
        self.schedule = schedule

    def begin(self, walk: Walk) -> None:
        super().begin(walk)
        read_choice(walk, walk.facts, walk.facts.problem, self.schedule)
