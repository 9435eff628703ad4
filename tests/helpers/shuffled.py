"""Arenas in which tensors are moved at random: more often, and farther, than any plan would."""

from __future__ import annotations

import bisect
import random
from dataclasses import replace

from poet.memory.demand import Demand
from poet.memory.layout import lay_out
from poet.memory.places import Move, replayed
from poet.plans.plan_parts import Arena
from poet.plans.training_plan import Plan
from poet.problem import Limits, Problem, Transfer
from poet.simulator import judge


def movable(of: Problem) -> Problem:
    """``of`` with a price for every move."""
    return replace(of, tensors=tuple(replace(item, move=Transfer(1e-4, 2e-4)) for item in of.tensors))


def shuffled(demand: Demand, seed: int, *, share: float = 0.5) -> Arena:
    """Places in an arena with a spare part, in which tensors lie for a while at any free place.

    Outside of the spare part each block has a place of its own, so that it can always come back.
    """
    return _Shuffle(demand, random.Random(seed), share).arena()


def with_arena(plan: Plan, arena: Arena) -> Plan:
    """``plan`` in ``arena``, with room for it, and what its moves take in its predictions."""
    places = replayed(plan.demand, arena.offsets_bytes, arena.size_bytes, arena.moves)
    limits = Limits(ram_budget_bytes=arena.size_bytes + (1 << 20))
    trace = judge(plan.problem, plan.schedule, limits, places.moved())
    told = replace(plan.prediction, seconds=trace.seconds, joules=trace.joules)
    return replace(plan, request=replace(plan.request, limits=limits), arena=arena, prediction=told)


class _Shuffle:
    def __init__(self, demand: Demand, rng: random.Random, share: float) -> None:
        self.demand, self.rng, self.share = demand, rng, share
        layout = lay_out(demand.blocks, time_limit_seconds=0.05)
        below, _ = demand.parts_bytes(layout.offsets_bytes, layout.arena_bytes)
        sizes = [block.size_bytes for block in demand.blocks]
        spare = 2 * max(sizes) + sum(sizes) // 2
        self.unit = demand.blocks[0].alignment_bytes
        spare = -(-spare // self.unit) * self.unit
        self.own = [at + spare if at >= below else at for at in layout.offsets_bytes]
        self.spare = below, below + spare
        self.size = layout.arena_bytes + spare
        self.now = list(self.own)
        self.moves: list[Move] = []

    def arena(self) -> Arena:
        steps = len(self.demand.begins) - 1
        for step in range(steps + 1):
            tick = self.demand.begins[step]
            for number, block in enumerate(self.demand.blocks):
                if block.tensor is None or number in self.demand.standing:
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
