"""Arenas in which tensors are moved at random: more often, and farther, than any plan would."""

from __future__ import annotations

import bisect
import random
from collections.abc import Sequence
from dataclasses import replace

from poet.memory.demand import Demand, Move, replayed
from poet.memory.layout import lay_out, lay_out_around
from poet.planning.beside import places_begun
from poet.plans.plan_parts import Arena
from poet.plans.training_plan import Plan
from poet.problem import Limits, Problem, Transfer
from poet.problem.simulator import judge


def movable(of: Problem) -> Problem:
    """``of`` with a price for every move."""
    return replace(of, tensors=tuple(replace(item, move=Transfer(1e-4, 2e-4)) for item in of.tensors))


def shuffled(demand: Demand, seed: int, *, share: float = 0.5) -> Arena:
    """Places in an arena with a spare part, in which tensors lie for a while at any free place.

    Outside of the spare part each block has a place of its own, so that it can always come back.
    """
    layout = lay_out(demand.blocks, time_limit_seconds=0.05)
    below, _ = demand.parts_bytes(layout.offsets_bytes, layout.arena_bytes)
    sizes = [block.size_bytes for block in demand.blocks]
    unit = demand.blocks[0].alignment_bytes
    spare = -(-(2 * max(sizes) + sum(sizes) // 2) // unit) * unit
    own = [at + spare if at >= below else at for at in layout.offsets_bytes]
    size = layout.arena_bytes + spare
    return _Shuffle(demand, random.Random(seed), share, own, (below, below + spare), size).arena()


def shuffled_beside(plan: Plan, demand: Demand, seed: int, *, share: float = 0.5) -> Arena:
    """Likewise of a schedule beside ``plan``, whose arena has room to spare: tensors that begin where the
    plan leaves them move as well.
    """
    assert plan.arena is not None
    divide, _ = plan.demand.parts_bytes(plan.arena.offsets_bytes, plan.arena.size_bytes)
    persistent = plan.graph.persistent()
    begun = places_begun(demand, {name: at for name, at in plan.begun_bytes.items() if name in persistent})
    own = lay_out_around(demand.blocks, begun, below_bytes=divide)
    assert own is not None
    ends = [at + block.size_bytes for at, block in zip(own, demand.blocks, strict=True) if at < divide]
    spare = max(ends, default=0), divide
    return _Shuffle(demand, random.Random(seed), share, own, spare, plan.arena.size_bytes).arena()


def with_arena(plan: Plan, arena: Arena) -> Plan:
    """``plan`` in ``arena``, with room for it, and what its moves take in its predictions."""
    places = replayed(plan.demand, arena.offsets_bytes, arena.size_bytes, arena.moves)
    limits = Limits(ram_budget_bytes=arena.size_bytes + (1 << 20))
    trace = judge(plan.problem, plan.schedule, limits, places.moved())
    told = replace(plan.prediction, seconds=trace.seconds, joules=trace.joules)
    return replace(plan, request=replace(plan.request, limits=limits), arena=arena, prediction=told)


class _Shuffle:
    def __init__(
        self,
        demand: Demand,
        rng: random.Random,
        share: float,
        own: Sequence[int],
        spare: tuple[int, int],
        size: int,
    ) -> None:
        self.demand, self.rng, self.share = demand, rng, share
        self.unit = demand.blocks[0].alignment_bytes
        self.own, self.spare, self.size = own, spare, size
        self.now = list(self.own)
        self.moves: list[Move] = []

    def arena(self) -> Arena:
        steps = len(self.demand.begins) - 1
        for step in range(steps + 1):
            tick = self.demand.begins[step]
            for number, block in enumerate(self.demand.blocks):
                if block.tensor is None or self.own[number] >= self.spare[1]:  # it stands throughout
                    continue
                here = any(born < tick <= died for born, died in block.spans)
                comes = any(
                    born >= tick and bisect.bisect_right(self.demand.begins, born) - 1 == step
                    for born, _ in block.spans
                )
                if here and step == steps:
                    self.move(step, number, self.own[number])
                elif here and self.rng.random() < self.share:
                    self.move(step, number, self.some_place(number, tick))
                elif comes:
                    self.move(step, number, self.own[number])
        return Arena(self.size, tuple(self.own), tuple(self.moves))

    def move(self, step: int, number: int, to: int) -> None:
        if to != self.now[number]:
            self.moves.append(Move(step, number, to))
            self.now[number] = to

    def some_place(self, number: int, tick: int) -> int:
        size = self.demand.blocks[number].size_bytes
        others = [
            (self.now[other], self.now[other] + block.size_bytes)
            for other, block in enumerate(self.demand.blocks)
            if other != number and any(born < tick <= died for born, died in block.spans)
        ]
        low, high = self.spare
        starts = range(low, high - size + 1, self.unit)
        near = [self.now[number] + shift * self.unit for shift in (-1, 1)]
        for start in [*near, *(self.rng.choice(starts) for _ in range(8))]:
            inside = low <= start and start + size <= high
            if inside and all(start + size <= a or b <= start for a, b in others):
                return start
        return self.own[number]
