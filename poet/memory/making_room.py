"""The memory layout of an arena at one moment of a schedule, and how moves make room there.

Where no gap is large enough, room is made at the cheapest place: what lies in a window is moved to other
gaps, or a run of neighbours is pushed together.
"""

from __future__ import annotations

import bisect
import math
import random
from collections.abc import Sequence

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
