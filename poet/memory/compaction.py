"""Places in an arena that is too small for fixed ones: tensors are moved to make room.

Goes through the schedule once. What is asked for goes into a gap, where a layout with fixed places would have
it if that is free. Where no gap is large enough, room is made at the cheapest place: what lies in a window is
moved to other gaps, or a run of neighbours is pushed together. Pushing everything together always makes room,
as long as the live bytes fit. What begins and ends the step in RAM is brought back to its place at the end.

The passes differ in what they prefer and in chance. In turn with passes that begin from nothing, others begin
from a pass that moved little: what it moved is wanted at once where it went, some of it somewhere else or
anywhere, and a pass that moves slightly more may be gone on from (threshold accepting: Dueck and Scheuer
1990).
The one that moves least is the answer, judged by `poet.memory.places`.
"""

from __future__ import annotations

import bisect
import logging
import math
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from poet.brief import brief
from poet.errors import InvalidSchedule
from poet.memory.demand import Demand
from poet.memory.layout import Block, lay_out
from poet.memory.places import Move, Places, replayed

_log = logging.getLogger(__name__)

Gap = tuple[int, int]
"""Start and end, in bytes."""
_WINDOWS = 12  # cheapest places at which room is tried to be made by moving what is there elsewhere
_CHANCE = 0.5  # by which a randomized pass may misjudge the cost of a window
_WORSE_SHARE = 0.03  # of the cost, by which a pass may be worse and yet be gone on from
_RETURN_TRIES = 20  # without a better pass, after which the best one is gone on from again
_NEAR_STEPS = (0, 1, 3, 10)  # within so many of a move, others may be made elsewhere as well
_ELSEWHERE, _ANYWHERE = 0.7, 0.5  # of these, and of what is wanted elsewhere how much is wanted nowhere
_STRAY_SHARE = 0.005  # of all blocks, that are wanted elsewhere wherever they are, at most
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
        time_limit_seconds: of the search, as time of this thread; one pass of each kind is always made.
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
        if passes.best is None and passes.tries >= passes.guides * 2:
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
                    self._from, self._from_cost = found, _cost(found[1], self.costs)
                self._take(found)
        self._seconds[0 if begins_anew else 1] += time.thread_time() - before
        self.tries += 1

    def _pass(self, guide_bytes: Sequence[int], chance: random.Random | None) -> _Pass:
        return _Pass(self.demand, self.room_bytes, self.costs, guide_bytes, self.fixed_bytes, chance)

    def _take(self, found: tuple[dict[int, int], list[Move]] | None) -> None:
        """``found`` if it costs less than the best, and the judge accepts it."""
        cost = math.inf if found is None else _cost(found[1], self.costs)
        if found is None or cost >= self.least:
            return
        judged = _judged_valid(self.demand, *found)
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


def _judged_valid(demand: Demand, offsets: Mapping[int, int], moves: Sequence[Move]) -> Compacted | None:
    """As `_judged`; ``None`` where the judge finds two things at one place, so that it is no answer."""
    try:
        return _judged(demand, offsets, moves)
    except InvalidSchedule as error:
        _log.info("places with moves that the judge refuses: %s", error)
        return None


def _cost(moves: Sequence[Move], costs: Sequence[float]) -> float:
    return sum(costs[move.block] for move in moves)


def _judged(demand: Demand, found: Mapping[int, int], moves: Sequence[Move]) -> Compacted:
    """With what stands throughout, and has no place yet, on top."""
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
    return Compacted(placed, tuple(moves), top, replayed(demand, placed, top, moves))


class _NoRoom(Exception):
    """No place is found for something."""


@dataclass(slots=True)
class _Birth:
    """A block that is asked for in a step, with its ticks."""

    number: int
    born: int
    died: int


class _Pass:
    """One way through the schedule."""

    def __init__(
        self,
        demand: Demand,
        room_bytes: int,
        costs: Sequence[float],
        guide_bytes: Sequence[int],
        fixed_bytes: Mapping[int, int],
        generator: random.Random | None,
    ) -> None:
        self.demand, self.room_bytes, self.costs = demand, room_bytes, costs
        self.guide_bytes, self.fixed_bytes, self.generator = guide_bytes, fixed_bytes, generator
        self.blocks = demand.blocks
        self.sizes = [block.size_bytes for block in demand.blocks]
        self.offsets: dict[int, int] = {}  # the first place of each block
        self.last: dict[int, int] = {}  # and the latest
        self.here: dict[int, int] = {}  # places of what is there
        self.moves: list[Move] = []
        self.cost = 0.0
        self.step = 0
        standing = set(demand.standing)
        self.births: dict[int, list[_Birth]] = {}
        for number, block in enumerate(demand.blocks):
            if number in standing:
                continue
            for born, died in sorted(block.spans):
                step = bisect.bisect_right(demand.begins, born) - 1
                self.births.setdefault(step, []).append(_Birth(number, born, died))
        births = [min(first for first, _ in block.spans) for block in demand.blocks]
        self.by_birth = np.argsort(births, kind="stable")
        self.birthdays = np.array(births, dtype=np.int64)[self.by_birth]
        self.wanted = np.array(guide_bytes, dtype=np.int64)
        if len(guide_bytes):
            self.wanted_ends = self.wanted + np.array(self.sizes, dtype=np.int64)

    def run(self, less_than: float) -> tuple[dict[int, int], list[Move]] | None:
        """First places and moves; ``None``: none were found that cost less."""
        steps = len(self.demand.begins) - 1
        dying: dict[int, list[int]] = {}
        for number, start in self.fixed_bytes.items():
            if start < self.room_bytes:
                self.put(number, start)
            else:
                self.offsets[number] = start
        try:
            for step in sorted({*self.births, *range(-1, steps + 1)}):
                self.step = max(step, 0)
                births = self.births.get(step, [])
                self.give_places([birth for birth in births if birth.number not in self.here])
                for birth in births:
                    last = bisect.bisect_right(self.demand.begins, birth.died) - 1
                    dying.setdefault(last, []).append(birth.number)
                if step == steps:
                    self.go_home()
                for number in dying.pop(step, ()):
                    del self.here[number]
                if self.cost >= less_than:
                    return None
        except (_NoRoom, InvalidSchedule):
            return None
        return (self.offsets, self.moves) if self.cost < less_than else None

    # --- births ---

    def give_places(self, births: list[_Birth]) -> None:
        """Places for all that one step asks for, largest first; room is made where there is none."""
        if not births:
            return
        before = dict(self.here), len(self.moves), self.cost
        try:
            self.give_one_by_one(births)
        except _NoRoom:
            self.here, self.cost = before[0], before[2]
            del self.moves[before[1] :]
            self.last.update(self.here)
            self.give_together(births)

    def give_one_by_one(self, births: list[_Birth]) -> None:
        placed: list[tuple[_Birth, int]] = []
        for birth in sorted(births, key=lambda item: (-self.sizes[item.number], item.born)):
            rivals = [(at, at + self.sizes[other.number]) for other, at in placed if _meet(birth, other)]
            start = self.gap_for(birth, rivals)
            if start is None:
                fixed = [(at, at + self.sizes[other.number]) for other, at in placed]
                start = self.make_room(self.sizes[birth.number], fixed)
            placed.append((birth, start))
        for birth, start in placed:
            self.put(birth.number, start)

    def give_together(self, births: list[_Birth]) -> None:
        """Places for all in one piece of room."""
        own = [
            Block(
                "",
                None,
                self.sizes[item.number],
                ((item.born, item.died),),
                self.blocks[item.number].alignment_bytes,
            )
            for item in births
        ]
        layout = lay_out(own, time_limit_seconds=0.05)
        start = self.make_room(layout.arena_bytes, [])
        for birth, offset in zip(births, layout.offsets_bytes, strict=True):
            self.put(birth.number, start + offset)

    def put(self, number: int, start: int) -> None:
        if number in self.offsets and self.last[number] != start:  # it was there before, elsewhere
            self.moves.append(Move(self.step, number, start))
        self.offsets.setdefault(number, start)
        self.here[number] = self.last[number] = start

    def gap_for(self, birth: _Birth, rivals: list[Gap]) -> int | None:
        """Where ``birth`` fits as things are: at its place, else where it is least in the way of others'."""
        size = self.sizes[birth.number]
        gaps = self.gaps([*self.taken(), *rivals])
        wanted = self.offsets.get(birth.number)  # back to where it began the step
        if wanted is None and self.guide_bytes and self.guide_bytes[birth.number] + size <= self.room_bytes:
            wanted = self.guide_bytes[birth.number]
        if wanted is not None and any(start <= wanted and wanted + size <= end for start, end in gaps):
            return wanted
        places = [
            (end - start, at) for start, end in gaps if end - start >= size for at in {start, end - size}
        ]
        if not places:
            return None
        harms = self.harms(birth, [at for _, at in places])
        return min(zip(harms, places, strict=True))[1][1]

    def harms(self, birth: _Birth, starts: Sequence[int]) -> list[int]:
        """Bytes of others' wanted places that ``birth`` would take from each of ``starts`` on while they are
        asked for.
        """
        if not len(self.guide_bytes):
            return [0] * len(starts)
        first, last = np.searchsorted(self.birthdays, [birth.born, birth.died + 1])
        others = self.by_birth[first:last]
        others = others[others != birth.number]
        low, high = self.wanted[others], self.wanted_ends[others]
        start = np.array(starts)[:, None]
        taken = np.minimum(start + self.sizes[birth.number], high) - np.maximum(start, low)
        return [int(total) for total in np.maximum(taken, 0).sum(axis=1)]

    def taken(self) -> list[Gap]:
        return [(start, start + self.sizes[number]) for number, start in self.here.items()]

    def gaps(self, taken: Sequence[Gap]) -> list[Gap]:
        """What is free between ``taken``."""
        found, position = [], 0
        for start, end in sorted(taken):
            if start > position:
                found.append((position, start))
            position = max(position, end)
        if position < self.room_bytes:
            found.append((position, self.room_bytes))
        return found

    # --- making room ---

    def make_room(self, size: int, fixed: Sequence[Gap]) -> int:
        """Move what is cheapest, so that ``size`` bytes are free in one piece and meet none of ``fixed``."""
        options = list(filter(None, (self.by_moving_away(size, fixed), self.by_pushing(size, fixed))))
        if not options:
            raise _NoRoom
        _, start, moves = min(options, key=lambda option: option[:2])
        for number, to in moves:
            self.move(number, to)
        return start

    def move(self, number: int, to: int) -> None:
        self.moves.append(Move(self.step, number, to))
        self.cost += self.costs[number]
        self.here[number] = self.last[number] = to

    def misjudged(self, cost: float) -> float:
        return cost if self.generator is None else cost * (1 + _CHANCE * self.generator.random())

    def by_moving_away(
        self, size: int, fixed: Sequence[Gap]
    ) -> tuple[float, int, list[tuple[int, int]]] | None:
        """A window out of which everything can be moved into gaps elsewhere."""
        items = sorted((start, start + self.sizes[number], number) for number, start in self.here.items())
        edges = {
            0,
            self.room_bytes - size,
            *(end for _, end, _ in items),
            *(start - size for start, _, _ in items),
        }
        edges.update((end for _, end in fixed), (start - size for start, _ in fixed))
        windows = []
        for low in edges:
            high = low + size
            if low < 0 or high > self.room_bytes or any(a < high and low < b for a, b in fixed):
                continue
            inside = [number for a, b, number in items if a < high and low < b]
            cost = sum(self.costs[number] for number in inside)
            if cost < math.inf:
                windows.append((self.misjudged(cost), low, inside, cost))
        for _, low, inside, cost in sorted(windows)[:_WINDOWS]:
            moves = self.moved_away(inside, (low, low + size), fixed)
            if moves is not None:
                return cost, low, moves
        return None

    def moved_away(
        self, inside: Sequence[int], window: Gap, fixed: Sequence[Gap]
    ) -> list[tuple[int, int]] | None:
        """New places outside of ``window``, one after the other; a tensor may go where it partly is."""
        here, moves = dict(self.here), []
        for number in sorted(inside, key=lambda number: -self.sizes[number]):
            del here[number]
            size = self.sizes[number]
            taken = [(start, start + self.sizes[other]) for other, start in here.items()]
            gaps = [gap for gap in self.gaps([*taken, *fixed, window]) if gap[1] - gap[0] >= size]
            if not gaps:
                return None
            low, high = min(gaps, key=lambda gap: (gap[1] - gap[0], gap))
            wanted = self.guide_bytes[number] if self.guide_bytes else low
            here[number] = wanted if low <= wanted <= high - size else low
            moves.append((number, here[number]))
        return moves

    def by_pushing(self, size: int, fixed: Sequence[Gap]) -> tuple[float, int, list[tuple[int, int]]] | None:
        """A run of neighbours that is pushed together, to its left, to its right or to both."""
        items = sorted((start, start + self.sizes[number], number) for number, start in self.here.items())
        walls = [(start, end, -1) for start, end in _joined(fixed)]
        row = sorted([*items, *walls])
        best: tuple[float, int, list[tuple[int, int]]] | None = None
        for first in range(len(row) + 1):
            low = row[first - 1][1] if first else 0
            held, cost = 0, 0.0
            for last in range(first, len(row) + 1):  # the run is row[first:last]
                high = row[last][0] if last < len(row) else self.room_bytes
                if high - low - held >= size:
                    run = row[first:last]
                    price, split = self.cheapest_split(run, low, high)
                    if best is None or price < best[0]:
                        best = (price, *self.pushed(run[:split], run[split:], low, high))
                    break
                if last == len(row) or row[last][2] < 0 or self.costs[row[last][2]] == math.inf:
                    break
                held += row[last][1] - row[last][0]
                cost += self.costs[row[last][2]]
                if best is not None and cost > best[0] * 4:
                    break
        return best

    def cheapest_split(self, run: Sequence[tuple[int, int, int]], low: int, high: int) -> tuple[float, int]:
        """The least cost of pushing the first of ``run`` down to ``low``, the rest up to ``high``, and how
        many are the first; what lies where it would be pushed to is not moved.
        """
        costs, left = [0.0], low
        for start, end, number in run:
            costs.append(costs[-1] + (self.costs[number] if start != left else 0.0))
            left += end - start
        price, split = costs[-1], len(run)
        right, above = high, 0.0
        for index in range(len(run) - 1, -1, -1):
            start, end, number = run[index]
            above += self.costs[number] if end != right else 0.0
            right -= end - start
            if costs[index] + above <= price:
                price, split = costs[index] + above, index
        return price, split

    def pushed(
        self, left: Sequence[tuple[int, int, int]], right: Sequence[tuple[int, int, int]], low: int, high: int
    ) -> tuple[int, list[tuple[int, int]]]:
        """Where the room then begins, and the moves, in an order in which none meets another."""
        moves = []
        for start, end, number in left:
            if start != low:
                moves.append((number, low))
            low += end - start
        for start, end, number in reversed(right):
            if end != high:
                moves.append((number, high - (end - start)))
            high -= end - start
        return low, moves

    # --- the end of the step ---

    def go_home(self) -> None:
        """Bring what begins and ends the step in RAM to where it began it."""
        tied = {
            number for number in self.here if len(self.blocks[number].spans) > 1 or number in self.fixed_bytes
        }
        left = sorted(
            (number for number in tied if self.here[number] != self.offsets[number]),
            key=lambda number: -self.sizes[number],
        )
        for _ in range(4 * len(left)):
            if not left:
                return
            number = left.pop(0)
            low = self.offsets[number]
            window = low, low + self.sizes[number]
            inside = [
                other
                for other, start in self.here.items()
                if other != number and start < window[1] and window[0] < start + self.sizes[other]
            ]
            homes = [(self.offsets[other], self.offsets[other] + self.sizes[other]) for other in tied]
            moves = self.moved_away(inside, window, [gap for gap in homes if gap != window])
            if moves is None:
                moves = self.moved_away(inside, window, [])
            if moves is None:
                left.append(number)
                continue
            for other, to in moves:
                self.move(other, to)
                if other in tied and to != self.offsets[other] and other not in left:
                    left.append(other)
            self.move(number, low)
        if left:
            raise _NoRoom


def _joined(taken: Sequence[Gap]) -> list[Gap]:
    """``taken`` without overlaps: two things that one step needs one after the other may share bytes."""
    found: list[Gap] = []
    for start, end in sorted(taken):
        if found and start < found[-1][1]:
            found[-1] = found[-1][0], max(end, found[-1][1])
        else:
            found.append((start, end))
    return found


def _meet(one: _Birth, other: _Birth) -> bool:
    return one.born <= other.died and other.born <= one.died
