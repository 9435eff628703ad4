"""Where each block of a demand lies at each moment, when tensors may be moved between two steps.

A fixed place per block leaves gaps between tensors of different sizes. A *move* copies one tensor to another
place in the arena before a step is made, so that gaps become one. `replayed` validates: it goes through
all births, moves and deaths and keeps account of who holds which bytes. It shares no code with the search for
places.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from poet.errors import InvalidSchedule
from poet.memory.demand import Demand
from poet.util.brief import brief


@dataclass(frozen=True, slots=True)
class Move:
    """Before ``step`` of the schedule, ``block`` gets its place at ``to_bytes`` from the arena's start.

    A block that is in RAM then is copied there; one that is not is made there the next time. ``step`` may be
    the
    number of steps: after the last one.
    """

    step: int
    block: int
    to_bytes: int


@dataclass(frozen=True, slots=True)
class MadeMove:
    """A tensor of ``size_bytes`` that is copied within the arena before ``step``; the places may overlap."""

    step: int
    tensor: str
    size_bytes: int
    from_bytes: int
    to_bytes: int


@dataclass(frozen=True, slots=True)
class Places:
    """What happens in an arena.

    Attributes:
        requests_bytes: the place of each of the demand's requests, in their order.
        moves: copies, in the order in which they are made.
    """

    requests_bytes: tuple[int, ...]
    moves: tuple[MadeMove, ...]

    __repr__ = brief

    def moved(self) -> dict[int, tuple[str, ...]]:
        """The tensors that are copied before each step, as the simulator takes them."""
        found: dict[int, list[str]] = {}
        for move in self.moves:
            found.setdefault(move.step, []).append(move.tensor)
        return {step: tuple(names) for step, names in found.items()}


def replayed(
    demand: Demand, offsets_bytes: Sequence[int], arena_bytes: int, moves: Sequence[Move] = ()
) -> Places:
    """Go through the step, and judge it.

    Args:
        demand: whose blocks are placed.
        offsets_bytes: where each block lies at first.
        arena_bytes: of the arena.
        moves: in the order in which they are made.

    Raises:
        InvalidSchedule: two things hold the same byte, something leaves the arena or is not aligned, what
            is no tensor is moved, or what begins and ends the step in RAM does not end at its place.
    """
    return _Replay(demand, offsets_bytes, arena_bytes).of(moves)


class _Replay:
    """The arena at one moment."""

    def __init__(self, demand: Demand, offsets_bytes: Sequence[int], arena_bytes: int) -> None:
        self.demand, self.arena_bytes = demand, arena_bytes
        self.offsets_bytes = list(offsets_bytes)  # the place of each block now
        self.first_bytes = tuple(offsets_bytes)
        self.sizes_bytes = {request.block: request.size_bytes for request in demand.requests}  # not rounded
        self.held: list[tuple[int, int, int]] = []  # start, end and block of what is there, in order
        self.present: set[int] = set()
        self.made: list[MadeMove] = []
        self.step = 0
        self.requested_bytes: dict[tuple[int, int], int] = {}  # by block and number of its span

    def of(self, moves: Sequence[Move]) -> Places:
        demand, steps = self.demand, len(self.demand.begins) - 1
        if any(not 0 <= move.step <= steps for move in moves):
            raise InvalidSchedule("a move stands before no step", rule="layout", step=steps)
        if any(later.step < move.step for move, later in pairwise(moves)):
            raise InvalidSchedule("the moves are not in the order of their steps", rule="layout", step=0)
        if any(not 0 <= move.block < len(demand.blocks) for move in moves):
            raise InvalidSchedule("a move is of no block", rule="layout", step=0)
        events = [(demand.begins[move.step], 0, number, 0) for number, move in enumerate(moves)]
        for number, block in enumerate(demand.blocks):
            for span, (born, died) in enumerate(sorted(block.spans)):
                events += [(born, 1, number, span), (died, 2, number, span)]
        for _, kind, number, span in sorted(events):  # at one tick: moves, then births, then deaths
            if kind == 0:
                self.move(moves[number])
            elif kind == 1:
                self.requested_bytes[number, span] = self.offsets_bytes[number]
                self.take(number)
            else:
                self.give_up(number)
        self.check_ends()
        return Places(self.requests(), tuple(self.made))

    def requests(self) -> tuple[int, ...]:
        """The places of requests: those of a block are in the order of its spans."""
        spans: dict[int, int] = {}
        found = []
        for request in self.demand.requests:
            span = spans.get(request.block, 0)
            spans[request.block] = span + 1
            found.append(self.requested_bytes[request.block, span])
        return tuple(found)

    def move(self, move: Move) -> None:
        block = self.demand.blocks[move.block]
        if block.tensor is None:
            raise self.fault(move.block, "must stay at its place")
        self.step = move.step
        if move.block not in self.present:
            self.offsets_bytes[move.block] = move.to_bytes
            return
        self.give_up(move.block)
        from_bytes, self.offsets_bytes[move.block] = self.offsets_bytes[move.block], move.to_bytes
        self.take(move.block)
        size_bytes = self.sizes_bytes[move.block]
        self.made.append(MadeMove(move.step, block.tensor, size_bytes, from_bytes, move.to_bytes))

    def take(self, number: int) -> None:
        block, start = self.demand.blocks[number], self.offsets_bytes[number]
        end = start + block.size_bytes
        if start < 0 or end > self.arena_bytes:
            raise self.fault(number, "leaves the arena")
        if start % block.alignment_bytes:
            raise self.fault(number, f"is not at a multiple of {block.alignment_bytes} bytes")
        place = bisect_left(self.held, (start, end, number))
        for other in self.held[max(0, place - 1) : place + 1]:
            if other[0] < end and start < other[1]:
                raise self.fault(number, f"overlaps {self.demand.blocks[other[2]].owner}")
        insort(self.held, (start, end, number))
        self.present.add(number)

    def give_up(self, number: int) -> None:
        start = self.offsets_bytes[number]
        del self.held[bisect_left(self.held, (start, start + self.demand.blocks[number].size_bytes, number))]
        self.present.remove(number)

    def check_ends(self) -> None:
        """The next step finds everything where this one found it."""
        standing = set(self.demand.standing)
        for number, block in enumerate(self.demand.blocks):
            ends_in_ram = len(block.spans) > 1 or number in standing
            if ends_in_ram and self.offsets_bytes[number] != self.first_bytes[number]:
                raise self.fault(number, "does not end the step where it began it")

    def fault(self, number: int, what: str) -> InvalidSchedule:
        block = self.demand.blocks[number]
        return InvalidSchedule(f"{block.owner} {what}", rule="layout", step=self.step)
