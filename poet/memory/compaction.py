"""Places in an arena that is too small for fixed ones: tensors are moved to make room.

A pass goes through the schedule once (`poet.memory.compacting_pass`). Pushing everything together always
makes room, as long as the live bytes fit.

The passes differ in what they prefer and in chance. In turn with passes that begin from nothing, others begin
from a pass that moved little: what it moved is wanted at once where it went, some of it somewhere else or
anywhere, and a pass that moves slightly more may be gone on from (threshold accepting: Dueck and Scheuer
1990).
The one that moves least is the answer, judged by `poet.memory.demand`.
"""

from __future__ import annotations

import logging
import math
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from poet.errors import InvalidSchedule
from poet.memory.compacting_pass import Pass, cost_of
from poet.memory.demand import Demand, Move, Places, replayed
from poet.util.brief import brief

_log = logging.getLogger(__name__)

_WORSE_SHARE = 0.03  # of the cost, by which a pass may be worse and yet be gone on from
_RETURN_TRIES = 20  # without a better pass, after which the best one is gone on from again
_NEAR_STEPS = (0, 1, 3, 10)  # within so many of a move, others may be made elsewhere as well
_ELSEWHERE, _ANYWHERE = 0.7, 0.5  # of these, and of what is wanted elsewhere how much is wanted nowhere
_STRAY_SHARE = 0.005  # of all blocks, that are wanted elsewhere wherever they are, at most
_VAIN_ROUNDS = 4  # of passes without any places, after which there are taken to be none
_CLEARING_SHARE = 0.5  # of the passes, in which tensors come home as soon as they come back
_MISJUDGING_SHARE = 0.3  # of the passes that begin from another


@dataclass(frozen=True, slots=True)
class Compacted:
    """Offsets of the blocks at first, the moves, and what happens with them.

    Attributes:
        offsets_bytes: one per block.
        moves: in order.
        arena_bytes: what the arena must hold.
        places: of each request, and the copies, as judged.
    """

    offsets_bytes: tuple[int, ...]
    moves: tuple[Move, ...]
    arena_bytes: int
    places: Places

    __repr__ = brief


def compact(
    demand: Demand,
    below_bytes: int,
    *,
    guide_bytes: Sequence[int] = (),
    fixed_bytes: Mapping[int, int] | None = None,
    weights: Callable[[str], float] | None = None,
    time_limit_seconds: float = 1.0,
    seed: int = 0,
) -> Compacted | None:
    """Places inside ``below_bytes`` with as few bytes moved as are found; ``None`` where there are none.

    Args:
        demand: what is to be placed.
        below_bytes: what the arena may take, what stands throughout included.
        guide_bytes: the offsets of a layout that is too large: what it places inside stays there.
        fixed_bytes: of a step beside another: the place of each block that has one when it begins. What lies
            below ``below_bytes``, where all others are to end, may be moved and is brought back; what lies
            above it, which the other step never moves, stays.
        weights: what one move of a tensor costs; infinite where it must not be moved. ``None``: its bytes.
        time_limit_seconds: of the search, as time of this thread; one pass of each kind is always begun.
        seed: of its choices.
    """
    fixed = fixed_bytes or {}
    unmoved = {number for number in demand.standing if fixed.get(number, below_bytes) >= below_bytes}
    stacked = unmoved.difference(fixed)
    room_bytes = below_bytes - sum(demand.blocks[number].size_bytes for number in stacked)
    if demand.blocks:
        room_bytes -= room_bytes % max(block.alignment_bytes for block in demand.blocks)
    costs = [
        math.inf
        if block.tensor is None or number in unmoved
        else float(block.size_bytes)
        if weights is None
        else weights(block.tensor)
        for number, block in enumerate(demand.blocks)
    ]
    generator = random.Random(seed)  # noqa: S311 - no secret
    passes = _Passes(demand, room_bytes, costs, guide_bytes, fixed, generator)
    until = time.thread_time() + time_limit_seconds
    while passes.least > 0 and (passes.tries < passes.guides or time.thread_time() < until):
        if passes.best is None and passes.tries >= passes.guides * _VAIN_ROUNDS:
            break
        passes.another()
    return passes.best


class _Passes:
    """Passes, each with less moved than those before, from nothing and from one another in turn.

    Attributes:
        best: of them.
        least: what it costs.
        tries: passes so far; the first ``guides`` misjudge nothing.
    """

    def __init__(
        self,
        demand: Demand,
        room_bytes: int,
        costs: Sequence[float],
        guide_bytes: Sequence[int],
        fixed_bytes: Mapping[int, int],
        generator: random.Random,
    ) -> None:
        self.demand, self.room_bytes, self.costs, self.generator = demand, room_bytes, costs, generator
        self.fixed_bytes = fixed_bytes
        self._guides: list[Sequence[int]] = [guide_bytes, ()] if guide_bytes else [()]
        self.guides = len(self._guides)
        self.best: Compacted | None = None
        self.least = math.inf
        self.tries = 0
        self._from: tuple[dict[int, int], list[Move]] | None = None  # what is gone on from
        self._from_cost, self._since_better = math.inf, 0
        self._best_found: tuple[dict[int, int], list[Move]] | None = None
        self._seconds = [0.0, 0.0]  # of passes from nothing and from another

    def another(self) -> None:
        """One more pass, of the kind that has taken less time so far."""
        begins_anew = self.tries < self.guides or self._from is None or self._seconds[0] <= self._seconds[1]
        before = time.thread_time()
        if begins_anew:
            chance = None if self.tries < self.guides else self.generator
            guide = self._guides[self.tries % self.guides]
            self._take(self._pass(guide, chance).run(self.least))
        else:
            if self._since_better > _RETURN_TRIES:
                self._from, self._from_cost, self._since_better = self._best_found, self.least, 1
            chance = self.generator if self.generator.random() < _MISJUDGING_SHARE else None
            below = self._from_cost * (1.0 + _WORSE_SHARE)
            found = self._pass(self._wanted(), chance).run(below)
            self._since_better += 1
            if found is not None:
                if found[1]:
                    self._from, self._from_cost = found, cost_of(found[1], self.costs)
                self._take(found)
        self._seconds[0 if begins_anew else 1] += time.thread_time() - before
        self.tries += 1

    def _pass(self, guide_bytes: Sequence[int], chance: random.Random | None) -> Pass:
        """That brings tensors home as they come back, as the first ones do, or at the end of the step."""
        clears_homes = self.tries < self.guides or self.generator.random() < _CLEARING_SHARE
        demand, room_bytes, fixed_bytes = self.demand, self.room_bytes, self.fixed_bytes
        return Pass(
            demand, room_bytes, self.costs, guide_bytes, fixed_bytes, chance, clears_homes=clears_homes
        )

    def _take(self, found: tuple[dict[int, int], list[Move]] | None) -> None:
        """``found`` if it costs less than the best, and `replayed` accepts it."""
        cost = math.inf if found is None else cost_of(found[1], self.costs)
        if found is None or cost >= self.least:
            return
        judged = _judged(self.demand, *found)
        if judged is not None:
            self.best, self.least, self._best_found = judged, cost, found
            self._from, self._from_cost, self._since_better = found, cost, 0  # without a move: the end

    def _wanted(self) -> list[int]:
        """Where each block is to be, as far as that is free, after the pass that is gone on from."""
        assert self._from is not None
        offsets, moves = self._from
        generator, nowhere = self.generator, self.room_bytes + 1
        places = [[offsets.get(number, nowhere)] for number in range(len(self.demand.blocks))]
        for move in moves:
            places[move.block].append(move.to_bytes)
        if self._since_better == 0:
            return [of_block[-1] for of_block in places]
        wanted = [generator.choice(of_block) for of_block in places]
        near, steps = generator.choice(moves).step, generator.choice(_NEAR_STEPS)
        moved = sorted({move.block for move in moves if abs(move.step - near) <= steps})
        changed = [number for number in moved if generator.random() < _ELSEWHERE]
        strays = int(_STRAY_SHARE * len(wanted) * generator.random())
        for number in changed + generator.choices(range(len(wanted)), k=strays):
            wanted[number] = nowhere if generator.random() < _ANYWHERE else generator.choice(wanted)
        return wanted


def _judged(demand: Demand, found: Mapping[int, int], moves: Sequence[Move]) -> Compacted | None:
    """With what stands throughout, and has no place yet, on top; ``None`` where `replayed` refuses it."""
    offsets = dict(found)
    ends = [offsets[number] + demand.blocks[number].size_bytes for number in offsets]
    ends += [move.to_bytes + demand.blocks[move.block].size_bytes for move in moves]
    top = max(ends, default=0)
    stacked = [number for number in demand.standing if number not in offsets]
    for number in sorted(stacked, key=lambda number: -demand.blocks[number].alignment_bytes):
        alignment = demand.blocks[number].alignment_bytes
        offsets[number] = -(-top // alignment) * alignment
        top = offsets[number] + demand.blocks[number].size_bytes
    placed = tuple(offsets[number] for number in range(len(demand.blocks)))
    try:
        return Compacted(placed, tuple(moves), top, replayed(demand, placed, top, moves))
    except InvalidSchedule as error:
        _log.info("places with moves that the simulator refuses: %s", error)
        return None
