"""From measured accesses: Peng et al., "Capuchin: Tensor-based GPU Memory Management" (ASPLOS 2020).

Between two accesses of a tensor lies its free time: what remains of the time between them after it
was written and read back. Tensors are paged by the longest free time as long as that is positive,
so that transfers hide; after that, each is paged or recomputed, whichever delays less, the most
bytes per second of delay first. What the plan leaves short is paged on demand, least recently used
first (the paper's passive mode). Where storage does not work in the background, nothing hides and a
transfer delays by all of its time.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

from poet.problem import Limits, Problem
from poet.problem.schedule import Schedule
from poet.solvers.heuristics.gap_arrays import USED_AT, Floats, Ints, Way
from poet.solvers.heuristics.policies import Policy, Walk, walked
from poet.solvers.instance.incumbent import Incumbent
from poet.solvers.instance.instance import Facts

PARTS = 32
"""In which the ranked candidates are taken, a plan each; the paper takes as many as a device asks for."""


def capuchin(problem: Problem, limits: Limits) -> Schedule | None:
    """The cheapest over how many of the ranked candidates are taken; ``None`` where none fits."""
    facts, best = Facts(problem), Incumbent(problem, limits)
    ranked = _ranked(facts, limits)
    for part in range(PARTS + 1):
        taken = ranked[: len(ranked) * part // PARTS]
        best.consider(walked(facts, limits, _Accesses({(c.tensor, c.after_op): c.way for c in taken})))
    return best.schedule


@dataclass(frozen=True, slots=True)
class _Candidate:
    """Tensor ``tensor`` dropped after op ``after_op``."""

    tensor: int
    after_op: int
    way: Way
    free_seconds: float
    bytes_per_delay: float


class _Accesses(Policy):
    eager = True
    unplanned = Way.PAGE

    def __init__(self, chosen: dict[tuple[int, int], Way]) -> None:
        self.chosen = chosen

    def mark(self, walk: Walk, tensor: int) -> Way | None:
        return self.chosen.get((tensor, walk.position - 1))

    def ranks(self, walk: Walk, tensors: Ints) -> Floats:
        """Passive mode: the least recently used first."""
        seconds: Floats = walk.seconds - walk.x[USED_AT][tensors]
        return seconds


def _ranked(facts: Facts, limits: Limits) -> list[_Candidate]:
    ops, tensors = facts.problem.ops, facts.problem.tensors
    starts = [0.0, *itertools.accumulate(op.seconds for op in ops)]  # when each op starts
    candidates = []
    for tensor in range(facts.tensor_count):
        accesses = [facts.producer[tensor], *facts.uses[tensor]]
        for before, after in itertools.pairwise(accesses):
            if after - before <= 1 or not facts.size[tensor]:
                continue
            costs = (tensors[tensor].page_out, tensors[tensor].page_in)
            transfer = sum(cost.seconds if cost is not None else math.inf for cost in costs)
            transfer = transfer if limits.paging else math.inf
            op = facts.producer[tensor]
            may_rerun = op >= 0 and limits.recompute and facts.rerun_limit[op] >= after
            rerun = ops[op].seconds if may_rerun else math.inf
            meanwhile = starts[after] - starts[before + 1] if facts.problem.background_storage else 0.0
            free_seconds = meanwhile - transfer
            paging_delay = max(0.0, -free_seconds)
            way = Way.PAGE if paging_delay <= rerun else Way.REMAKE
            delay = min(paging_delay, rerun)
            if not math.isinf(delay):
                ratio = facts.size[tensor] / (delay + 1e-30)
                candidates.append(_Candidate(tensor, before, way, free_seconds, ratio))
    hidden = sorted((c for c in candidates if c.free_seconds >= 0.0), key=lambda c: -c.free_seconds)
    seen = sorted((c for c in candidates if c.free_seconds < 0.0), key=lambda c: -c.bytes_per_delay)
    return hidden + seen
