"""Write every tensor to storage once made and read it back for every use."""

from __future__ import annotations

from dataclasses import replace

from poet.problem import Limits, Problem
from poet.problem.schedule import Schedule
from poet.solvers.heuristics.gap_arrays import Floats, Ints, Way
from poet.solvers.heuristics.policies import Policy, Walk, cheapest_walk


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
