"""Rerun slots of a large event model: every recomputation in the relaxation's solution, along producers.

A tensor version that the solution of the windows relaxation (`poet.solvers.bounds.relaxation`) remakes
before op t gets a rerun slot in stage t, or in the last earlier stage in which its producer may run. The
inputs of that rerun may be absent as well: where the solution remakes one in the same stretch of time,
its producer gets a slot in stage t too, and so on. So the stage of the first backward op that misses any
tensor of a segment of the forward pass is offered the whole segment, as in checkpointing by segments
(Chen et al. 2016), and nothing else. Besides, short chains of producers get slots whether the solution
remakes their outputs or not, since the plan will differ from the solution.
"""

from __future__ import annotations

import bisect
from dataclasses import dataclass

from poet.solvers.bounds.relaxation import Bound
from poet.solvers.engines.program import value
from poet.solvers.instance.candidates import chains_to, worth_rerunning
from poet.solvers.instance.instance import Instance

REMADE_SHARE = 1e-6
"""Of a version, from which on the solution remakes it: below is rounding."""


@dataclass(frozen=True, slots=True)
class Offer:
    """How many slots a model is offered.

    Attributes:
        chain: length of the chains of producers that are offered in any case.
        depth: at most, of the chains along which the solution remakes everything.
    """

    chain: int
    depth: int


def offered_by(instance: Instance, bound: Bound, offer: Offer) -> dict[int, set[int]]:
    """Per stage, the tasks that get a rerun slot before its op."""
    remade = _Remade(instance, bound)
    worth = worth_rerunning(instance)
    offered = {}
    for stage, contents in remade.by_stage.items():
        tasks = chains_to(instance, worth, stage, contents, offer.chain)
        wanted, segment = contents, set[int]()
        for _ in range(offer.depth):
            makers = {instance.contents[c].producer for c in wanted}
            fresh = {
                maker
                for maker in makers
                if maker in worth and maker < stage <= instance.tasks[maker].last_rerun_stage
            } - segment
            if not fresh:
                break
            segment |= fresh
            reads = {c for maker in fresh for c in instance.tasks[maker].rerun_reads}
            wanted = {c for c in reads if remade.around(c, stage)}
        offered[stage] = tasks | segment
    return offered


class _Remade:
    """Which versions the solution remakes, between which fixed moments."""

    def __init__(self, instance: Instance, bound: Bound) -> None:
        values, least = bound.answer.values, REMADE_SHARE
        self.by_stage: dict[int, set[int]] = {}
        self.ends: dict[int, list[int]] = {}
        self.made: dict[int, list[bool]] = {}
        for segment in bound.relaxation.segments if values is not None else ():
            assert values is not None
            made = any(value(column, values) > least for column in segment.made)
            self.ends.setdefault(segment.content, []).append(segment.until)
            self.made.setdefault(segment.content, []).append(made)
            producer = instance.contents[segment.content].producer
            if made and producer is not None:  # the last chance may come earlier than the use
                stage = min(segment.until, instance.tasks[producer].last_rerun_stage)
                self.by_stage.setdefault(stage, set()).add(segment.content)

    def around(self, content: int, stage: int) -> bool:
        """Whether the solution remakes ``content`` between the fixed moments around ``stage``.

        True after the last fixed moment, of which the solution's segments say nothing.
        """
        ends = self.ends.get(content, [])
        position = bisect.bisect_left(ends, stage)
        return position == len(ends) or self.made[content][position]
