"""Checkpoints every so many ops: Chen et al., "Training Deep Nets with Sublinear Memory Cost" (2016).

The list of ops is cut into segments of equal length. A tensor that is made in one segment and read
in the next is a checkpoint and stays; everything else is dropped until it is needed again, and is
then recomputed from the checkpoints, with the rest of its segment, and kept until its last use. On
a chain this is the paper's algorithm; with segments of sqrt(n) it needs RAM in proportion to
sqrt(n). The rule needs no chain, only where tensors are made and read.
"""

from __future__ import annotations

import math
from dataclasses import replace

from poet.baselines.nothing_kept import DropRemakeable
from poet.problem import Limits, Problem
from poet.problem.schedule import Schedule
from poet.solvers.heuristics.policies import walked
from poet.solvers.instance.incumbent import Incumbent
from poet.solvers.instance.instance import Facts


def chen(problem: Problem, limits: Limits) -> Schedule | None:
    """The cheapest over segment lengths around sqrt(n), without paging; ``None`` if none fits."""
    facts, best = Facts(problem), Incumbent(problem, limits)
    for length in _segment_lengths(len(problem.ops)):
        policy = DropRemakeable(again=False, kept=_checkpoints(facts, length))
        best.consider(walked(facts, replace(limits, paging=False), policy))
    return best.schedule


def _segment_lengths(ops: int) -> list[int]:
    """From 2 to all ops, a factor of about 1.4 apart, sqrt(n) among them."""
    root = math.isqrt(max(ops, 1))
    scaled = {round(root * 2 ** (step / 2)) for step in range(-20, 21)}
    return sorted(length for length in scaled if 2 <= length <= max(ops, 2))


def _checkpoints(facts: Facts, length: int) -> frozenset[int]:
    kept = set()
    for tensor, producer in enumerate(facts.producer):
        if producer >= 0:
            boundary = (producer // length + 1) * length  # the first op of the next segment
            use = facts.next_use(tensor, boundary)
            if use is not None and use < boundary + length:
                kept.add(tensor)
    return frozenset(kept)
