"""Nothing is kept: whatever the next op does not need is recomputed, or read back, for each later use."""

from __future__ import annotations

from dataclasses import replace

from poet.problem import Limits, Problem
from poet.problem.schedule import Schedule
from poet.solvers.heuristics.gap_arrays import Floats, Ints, Way
from poet.solvers.heuristics.policies import Policy, Walk, cheapest_walk


def recompute_all(problem: Problem, limits: Limits) -> Schedule | None:
    """Nothing that can be recomputed is kept; ``None`` where that is not within ``limits``.

    The knob is whether a recomputed tensor is dropped again at once (least RAM, a number of runs
    that grows with the square of the depth) or kept until its last use (each op runs at most twice
    on a chain).
    """
    policies = [DropRemakeable(again=False), DropRemakeable(again=True)]
    return cheapest_walk(problem, limits, policies, allowed=replace(limits, paging=False))


class DropRemakeable(Policy):
    """Drops what an op made and the next op does not need.

    Args:
        again: also after it was recomputed.
        kept: tensors by index that stay, such as checkpoints.
    """

    eager = True

    def __init__(self, *, again: bool, kept: frozenset[int] = frozenset()) -> None:
        self.again, self.kept = again, kept
        self.dropped: set[int] = set()

    def mark(self, walk: Walk, tensor: int) -> Way | None:
        """Recompute it, unless the next op needs it."""
        if walk.facts.producer[tensor] < 0 or tensor in self.kept:
            return None
        if walk.need(tensor) == walk.position or (tensor in self.dropped and not self.again):
            return None
        self.dropped.add(tensor)
        return Way.REMAKE


def page_everything(problem: Problem, limits: Limits) -> Schedule | None:
    """RAM holds what the current and the next op need; ``None`` where that is not within ``limits``."""
    return cheapest_walk(problem, limits, [_PageAll()], allowed=replace(limits, recompute=False))


class _PageAll(Policy):
    eager = True

    def mark(self, walk: Walk, tensor: int) -> Way | None:
        return None if walk.need(tensor) == walk.position else Way.PAGE

    def ranks(self, walk: Walk, tensors: Ints) -> Floats:
        """Where the next op's tensors are too much, drop what is largest."""
        sizes: Floats = walk.facts.sizes[tensors]
        return sizes
