"""Which reruns a large model is offered: where the relaxation remakes, as deep as it goes on remaking.

A content that the relaxation (`poet.solvers.bounds.relaxation`) remakes before op t is made by a run in
stage t at the latest, or in the last one in which it may run. What that run reads may be absent as
well; where the relaxation remakes it in the same stretch of time, its producer is offered in stage t
too, and so on: so the stage of the first backward op that misses anything of a piece of the forward
pass is offered the whole piece, as in checkpointing by segments (Chen et al. 2016), and nothing
else. Beside that, short chains of producers are offered whether the relaxation remakes them or not:
its answer is not the plan.
"""

from __future__ import annotations

import bisect
from dataclasses import dataclass

from poet.solvers.bounds.relaxation import Bound
from poet.solvers.engines.matrix import value
from poet.solvers.instance.candidates import chains_to, worth_rerunning
from poet.solvers.instance.instance import Instance


@dataclass(frozen=True, slots=True)
class Offer:
    """How much a model is offered.

    Attributes:
        chain: length of the chains of producers that are offered in any case.
        depth: of the chains along which the relaxation remakes everything.
    """

    chain: int
    depth: int


def offered_by(instance: Instance, bound: Bound, offer: Offer) -> dict[int, set[int]]:
    """Per stage, the tasks that may run again before its op."""
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
    """What the relaxation remakes, between which fixed moments."""

    def __init__(self, instance: Instance, bound: Bound) -> None:
        values, least = bound.answer.values, instance.tuning.wide.remade_share
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
        """Whether ``content`` may have to be remade for a run in ``stage``."""
        ends = self.ends.get(content, [])
        position = bisect.bisect_left(ends, stage)
        return position == len(ends) or self.made[content][position]
