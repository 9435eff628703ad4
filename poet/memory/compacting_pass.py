"""One way through a schedule that gives every block a place, and moves tensors where none is free.

What is asked for goes into a gap, where it is wanted if that is free. Where no gap is large enough, room is
made (`Occupancy`). What begins and ends the step in RAM comes back to where it began: as it is
asked for again, if what lies there costs less to move, else at the end of the step.
"""

from __future__ import annotations

import bisect
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from poet.errors import InvalidSchedule
from poet.memory.demand import Demand, Move
from poet.memory.layout import Block, lay_out

Gap = tuple[int, int]
"""Start and end, in bytes."""
_WINDOWS = 12  # cheapest places at which room is tried to be made by moving what is there elsewhere
_DEAR_RUN = 4  # times the best price, above which a run is too costly, even where only some of it is pushed
_CHANCE = 0.5  # by which a randomized search may misjudge the cost of a window


class Occupancy:
    """Which block lies where.

    Args:
        room_bytes: below which all places are.
        sizes_bytes: of all blocks.
        costs: of a move of each block; infinite where it must not be moved.
        guide_bytes: where each block is wanted, as far as that is free; empty: none is wanted anywhere.
        generator: by whose chance costs are misjudged; ``None``: they are not.

    Attributes:
        here: the place of each block that is there.
    """

    def __init__(
        self,
        room_bytes: int,
        sizes_bytes: Sequence[int],
        costs: Sequence[float],
        guide_bytes: Sequence[int],
        generator: random.Random | None,
    ) -> None:
        self.room_bytes, self.sizes, self.costs = room_bytes, sizes_bytes, costs
        self.guide_bytes, self.generator = guide_bytes, generator
        self.here: dict[int, int] = {}

    def taken(self) -> list[Gap]:
        return [(start, start + self.sizes[number]) for number, start in self.here.items()]

    def within(self, low: int, high: int) -> list[int]:
        """What is there between two places, whole or in part."""
        return [
            number for number, start in self.here.items() if start < high and low < start + self.sizes[number]
        ]

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

    def room_for(self, size: int, fixed: Sequence[Gap]) -> tuple[int, list[tuple[int, int]]] | None:
        """Where ``size`` bytes become free in one piece, by the cheapest moves: blocks and new places.

        Args:
            size: in bytes.
            fixed: what it must not meet.

        Returns:
            ``None``: there is no such place.
        """
        options = list(filter(None, (self.by_moving_away(size, fixed), self.by_pushing(size, fixed))))
        if not options:
            return None
        _, start, moves = min(options, key=lambda option: option[:2])
        return start, moves

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
        starts, ends = [start for start, _, _ in items], [end for _, end, _ in items]
        numbers, windows = [number for _, _, number in items], []
        for low in edges:
            high = low + size
            if low < 0 or high > self.room_bytes or any(a < high and low < b for a, b in fixed):
                continue
            inside = numbers[bisect.bisect_right(ends, low) : bisect.bisect_left(starts, high)]
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
        begins = [*(start for start, _, _ in row), self.room_bytes]
        ends = [0, *(end for _, end, _ in row)]
        costs = [math.inf if number < 0 else self.costs[number] for _, _, number in row]
        best: tuple[float, int, list[tuple[int, int]]] | None = None
        last, free, cost = 0, begins[0], 0.0  # the run is row[first:last], with as many bytes free around it
        for first in range(len(begins)):
            if last < first:
                last, free, cost = first, begins[first] - ends[first], 0.0
            while free < size and last < len(row) and costs[last] < math.inf:
                cost += costs[last]
                last += 1
                free += begins[last] - ends[last]
            if free >= size and (best is None or cost <= _DEAR_RUN * best[0]):
                run, low, high = row[first:last], ends[first], begins[last]
                price, split = self.cheapest_split(run, low, high)
                if best is None or price < best[0]:
                    best = (price, *self.pushed(run[:split], run[split:], low, high))
            if first < last:
                cost -= costs[first]
                free -= begins[first] - ends[first]
        return best

    def cheapest_split(self, run: Sequence[tuple[int, int, int]], low: int, high: int) -> tuple[float, int]:
        """The least cost of pushing the first of ``run`` down to ``low``, the rest up to ``high``, and how
        many are the first; what lies already where it would be pushed to is not moved.
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


def _joined(taken: Sequence[Gap]) -> list[Gap]:
    """``taken`` without overlaps: two things that one step needs one after the other may share bytes."""
    found: list[Gap] = []
    for start, end in sorted(taken):
        if found and start < found[-1][1]:
            found[-1] = found[-1][0], max(end, found[-1][1])
        else:
            found.append((start, end))
    return found


def cost_of(moves: Sequence[Move], costs: Sequence[float]) -> float:
    """Of all ``moves``, each at the cost of its block."""
    return sum(costs[move.block] for move in moves)


class _NoRoom(Exception):
    """No place is found for something."""


@dataclass(slots=True)
class _Birth:
    """A block that is asked for in a step, with its ticks."""

    number: int
    born: int
    died: int


class Pass:
    """One way through the schedule.

    Args:
        demand: what is to be placed.
        room_bytes: below which all places are, but of what stands throughout.
        costs: of a move of each block; infinite where it must not be moved.
        guide_bytes: where each block is wanted; beyond the room: nowhere. Empty: none is wanted anywhere.
        fixed_bytes: places of blocks that have one when the step begins.
        generator: by whose chance costs are misjudged; ``None``: they are not.
        clears_homes: whether blocks at a block's place at the start make way as it comes back.
    """

    def __init__(
        self,
        demand: Demand,
        room_bytes: int,
        costs: Sequence[float],
        guide_bytes: Sequence[int],
        fixed_bytes: Mapping[int, int],
        generator: random.Random | None,
        *,
        clears_homes: bool = True,
    ) -> None:
        self.demand, self.room_bytes, self.costs = demand, room_bytes, costs
        self.guide_bytes, self.fixed_bytes, self.clears_homes = guide_bytes, fixed_bytes, clears_homes
        self.blocks = demand.blocks
        self.sizes = [block.size_bytes for block in demand.blocks]
        self.now = Occupancy(room_bytes, self.sizes, costs, guide_bytes, generator)
        self.offsets: dict[int, int] = {}  # the first place of each block
        self.last: dict[int, int] = {}  # and the latest
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
                self.give_places([birth for birth in births if birth.number not in self.now.here])
                for birth in births:
                    last = bisect.bisect_right(self.demand.begins, birth.died) - 1
                    dying.setdefault(last, []).append(birth.number)
                if step == steps:
                    self.go_home()
                for number in dying.pop(step, ()):
                    del self.now.here[number]
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
        before = dict(self.now.here), len(self.moves), self.cost
        try:
            self.give_one_by_one(births)
        except _NoRoom:
            self.now.here, self.cost = before[0], before[2]
            del self.moves[before[1] :]
            self.last.update(self.now.here)
            self.give_together(births)

    def give_one_by_one(self, births: list[_Birth]) -> None:
        placed: list[tuple[_Birth, int]] = []
        for birth in sorted(births, key=lambda item: (-self.sizes[item.number], item.born)):
            rivals = [(at, at + self.sizes[other.number]) for other, at in placed if _meet(birth, other)]
            start = self.gap_for(birth, rivals)
            fixed = [(at, at + self.sizes[other.number]) for other, at in placed]
            if start != self.offsets.get(birth.number, start) and self.clear_home(birth.number, fixed):
                start = self.offsets[birth.number]
            if start is None:
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

    def clear_home(self, number: int, fixed: Sequence[Gap]) -> bool:
        """Move away the blocks where this one began the step, if that costs less; whether it was done.

        Where two large blocks lie at each other's place in the end, a full arena has no way back.
        """
        low, high = self.offsets[number], self.offsets[number] + self.sizes[number]
        if not self.clears_homes or any(start < high and low < end for start, end in fixed):
            return False
        inside = self.now.within(low, high)
        unpaid = [other for other in inside if not self.must_come_home(other)]
        if sum(self.costs[other] for other in unpaid) > self.costs[number]:
            return False
        moves = self.now.moved_away(inside, (low, high), fixed)
        for other, to in moves or ():
            self.move(other, to)
        return moves is not None

    def must_come_home(self, number: int) -> bool:
        """Whether a block is away from where it has to end the step, so that it is moved once more anyway."""
        return len(self.blocks[number].spans) > 1 and self.now.here[number] != self.offsets[number]

    def make_room(self, size: int, fixed: Sequence[Gap]) -> int:
        """Move what is cheapest, so that ``size`` bytes are free in one piece and meet none of ``fixed``."""
        found = self.now.room_for(size, fixed)
        if found is None:
            raise _NoRoom
        start, moves = found
        for number, to in moves:
            self.move(number, to)
        return start

    def move(self, number: int, to: int) -> None:
        self.moves.append(Move(self.step, number, to))
        self.cost += self.costs[number]
        self.now.here[number] = self.last[number] = to

    def put(self, number: int, start: int) -> None:
        if number in self.offsets and self.last[number] != start:  # it was there before, elsewhere
            self.moves.append(Move(self.step, number, start))
        self.offsets.setdefault(number, start)
        self.now.here[number] = self.last[number] = start

    def gap_for(self, birth: _Birth, rivals: list[Gap]) -> int | None:
        """Where ``birth`` fits as things are: at its place, else in the smallest gap."""
        size = self.sizes[birth.number]
        gaps = self.now.gaps([*self.now.taken(), *rivals])
        wanted = self.offsets.get(birth.number)  # back to where it began the step
        if wanted is None and self.guide_bytes and self.guide_bytes[birth.number] + size <= self.room_bytes:
            wanted = self.guide_bytes[birth.number]
        if wanted is not None and any(start <= wanted and wanted + size <= end for start, end in gaps):
            return wanted
        places = [
            (end - start, at) for start, end in gaps if end - start >= size for at in {start, end - size}
        ]
        return min(places)[1] if places else None

    # --- the end of the step ---

    def go_home(self) -> None:
        """Bring what begins and ends the step in RAM to where it began it."""
        tied = {
            number
            for number in self.now.here
            if len(self.blocks[number].spans) > 1 or number in self.fixed_bytes
        }
        left = sorted(
            (number for number in tied if self.now.here[number] != self.offsets[number]),
            key=lambda number: -self.sizes[number],
        )
        for _ in range(4 * len(left)):
            if not left:
                return
            number = left.pop(0)
            low = self.offsets[number]
            window = low, low + self.sizes[number]
            inside = [other for other in self.now.within(*window) if other != number]
            homes = [(self.offsets[other], self.offsets[other] + self.sizes[other]) for other in tied]
            moves = self.now.moved_away(inside, window, [gap for gap in homes if gap != window])
            if moves is None:
                moves = self.now.moved_away(inside, window, [])
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


def _meet(one: _Birth, other: _Birth) -> bool:
    return one.born <= other.died and other.born <= one.died
