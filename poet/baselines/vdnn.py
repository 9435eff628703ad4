"""Offload feature maps: Rhu et al., "vDNN: Virtualized Deep Neural Networks" (MICRO 2016).

Activations whose next reader lies far ahead, as forward activations' backward readers do, are
written right after their last near use and read back before the far one. ``vDNN_all`` does so with
all of them, ``vDNN_conv`` with the inputs of the costly layers only.
"""

from __future__ import annotations

import statistics
from dataclasses import replace

from poet.problem import Limits, Problem
from poet.problem.schedule import Schedule
from poet.solvers.heuristics.gap_arrays import Way
from poet.solvers.heuristics.policies import Policy, Walk, walked
from poet.solvers.instance.incumbent import Incumbent
from poet.solvers.instance.instance import Facts

FAR_OPS = (2, 4, 8, 16, 32)
"""From which on a reader counts as far, in turn; the paper says the backward pass, which a graph may not."""


def vdnn(problem: Problem, limits: Limits) -> Schedule | None:
    """The cheaper of both policies over what counts as far; ``None`` where neither fits."""
    facts, best = Facts(problem), Incumbent(problem, limits)
    seconds = [op.seconds for op in problem.ops]
    mean = statistics.fmean(seconds) if seconds else 0.0
    costly = {t for op, inputs in enumerate(facts.inputs) if seconds[op] > mean for t in inputs}
    for far_ops in FAR_OPS:
        for chosen in (frozenset(range(facts.tensor_count)), frozenset(costly)):
            policy = _Offload(chosen, far_ops)
            best.consider(walked(facts, replace(limits, recompute=False), policy))
    return best.schedule


class _Offload(Policy):
    eager = True

    def __init__(self, tensors: frozenset[int], far_ops: int) -> None:
        self.tensors, self.far_ops = tensors, far_ops

    def mark(self, walk: Walk, tensor: int) -> Way | None:
        """Write activations that are needed again only far ahead."""
        far = walk.need(tensor) - walk.position >= self.far_ops
        made = walk.facts.producer[tensor] >= 0
        return Way.PAGE if far and made and tensor in self.tensors else None
