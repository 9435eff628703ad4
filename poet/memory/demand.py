"""The memory that a schedule needs: blocks with the times at which each is needed, and by which steps.

Time runs in ticks. A `Compute` whose kernel's allocations are known (see `poet.ir.kernel_facts`) lasts as
many ticks as they need, so that a temporary which is gone before an output is made may lie where the output
will; any other step lasts one. Tick 0 is before the first step.

A fixed place per block leaves gaps between tensors of different sizes. A *move* copies one tensor to another
place in the arena before a step is made, so that gaps become one. `replayed` validates where each block lies
at each moment: it goes through all births, moves and deaths and keeps account of who holds which bytes. It
shares no code with the search for places.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from poet.errors import InvalidSchedule
from poet.ir.kernel_facts import KernelAllocation, KernelFacts, ticks
from poet.memory.layout import Block, Span
from poet.problem import Place, Problem, ProblemOp
from poet.problem.schedule import Compute, Free, PageIn, Schedule
from poet.util.brief import brief

BEFORE = -1
"""The step of what is asked for before the first one."""
PAGE_BYTES = 4096
"""The unit in which a system gives memory."""


@dataclass(frozen=True, slots=True)
class MemoryRequest:
    """One request for memory: ``size_bytes`` in ``step`` of the schedule, for ``blocks[block]``."""

    step: int
    size_bytes: int
    block: int


@dataclass(frozen=True, slots=True)
class Demand:
    """All memory that a schedule needs.

    Attributes:
        blocks: sizes rounded up to the alignment.
        requests: of tensors and of temporaries that are known, in the order in which they are made.
        standing: blocks of tensors that begin the step in RAM and stay there throughout.
        begins: the first tick of each step, and after them the tick at which the last one is done.
    """

    blocks: tuple[Block, ...]
    requests: tuple[MemoryRequest, ...]
    standing: tuple[int, ...]
    begins: tuple[int, ...]

    __repr__ = brief

    def parts_bytes(self, offsets_bytes: Sequence[int], arena_bytes: int) -> tuple[int, int]:
        """Where an arena is divided, and the rest: what stands throughout lies above what changes.

        Args:
            offsets_bytes: of the blocks, as `poet.memory.layout.lay_out` places them: those that stay on top.
            arena_bytes: of the arena.
        """
        divide_bytes = min((offsets_bytes[number] for number in self.standing), default=arena_bytes)
        return divide_bytes, arena_bytes - divide_bytes

    def crowding(self) -> int:
        """Over births of blocks, the squares of how many are there then, but for those that stand throughout.

        Making room by moves looks at runs of neighbours, of which there are as many.
        """
        standing = set(self.standing)
        spans = [
            span for number, block in enumerate(self.blocks) if number not in standing for span in block.spans
        ]
        births, deaths = (np.sort(ticks) for ticks in np.array(spans, dtype=np.int64).reshape(-1, 2).T)
        present = np.searchsorted(births, births, side="right") - np.searchsorted(deaths, births)
        return int((present**2).sum())

    def mapped_bytes(self, offsets_bytes: Sequence[int], arena_bytes: int) -> int:
        """What such an arena takes of the system, which gives each of its two parts in whole pages."""
        return sum(whole_pages_bytes(part) for part in self.parts_bytes(offsets_bytes, arena_bytes))


def whole_pages_bytes(size_bytes: int) -> int:
    """``size_bytes``, rounded up to pages."""
    return -(-size_bytes // PAGE_BYTES) * PAGE_BYTES


def demand_of(problem: Problem, schedule: Schedule, kernels: KernelFacts | None = None) -> Demand:
    """What ``schedule`` asks for, in blocks of the problem's alignment.

    Args:
        problem: whose schedule it is.
        schedule: valid (see `poet.problem.simulator.simulate`).
        kernels: whose workspaces the problem counts; ``None``: nothing else is known about them.
    """
    return _Demands(problem, kernels or KernelFacts("")).of(schedule)


@dataclass(slots=True)
class _Residency:
    """A tensor's time in RAM: from the request in ``step`` at tick ``born`` to ``died``."""

    step: int
    born: int
    died: int = BEFORE


class _Demands:
    """The blocks so far, while a schedule is read."""

    def __init__(self, problem: Problem, kernels: KernelFacts) -> None:
        self.problem = problem
        self.sizes_bytes = {tensor.name: tensor.bytes for tensor in problem.tensors}
        self.ops = {op.name: op for op in problem.ops}
        self.kernels = kernels
        self.alignment_bytes = max(problem.alignment_bytes, kernels.alignment_bytes)
        self.blocks: list[Block] = []
        self.requests: list[tuple[int, MemoryRequest]] = []  # with the tick
        self.present: dict[str, _Residency] = {}
        self.past: dict[str, list[_Residency]] = {}
        self.ran: set[str] = set()

    def of(self, schedule: Schedule) -> Demand:
        produced = {name for op in self.problem.ops for name in op.outputs}
        for tensor in self.problem.tensors:
            if tensor.name not in produced and tensor.initially is not Place.STORAGE:
                self.present[tensor.name] = _Residency(BEFORE, 0)
        in_ram = set(self.present)
        now, begins = 1, []
        for index, step in enumerate(schedule):
            begins.append(now)
            if isinstance(step, Compute):
                now += self.compute(self.ops[step.op], index, now)
                continue
            if isinstance(step, PageIn):
                self.present[step.tensor] = _Residency(index, now)
            elif isinstance(step, Free):
                self.end(step.tensor, now)
            now += 1
        tied = in_ram.intersection(self.present)
        for name in list(self.present):
            self.end(name, now)
        standing = [self.add_tensor(name, stays, tied=name in tied) for name, stays in self.past.items()]
        requests = tuple(request for _, request in sorted(self.requests, key=lambda pair: pair[0]))
        stands = tuple(block for block in standing if block is not None)
        return Demand(tuple(self.blocks), requests, stands, (*begins, now))

    def compute(self, op: ProblemOp, index: int, now: int) -> int:
        """One run of ``op`` from tick ``now`` on; how many ticks it lasts."""
        allocations = self.allocations_of(op, is_repeat=op.name in self.ran)
        self.ran.add(op.name)
        if allocations is None:
            sizes_bytes = {name: self.sizes_bytes[name] for name in op.outputs if self.sizes_bytes[name]}
            allocations = [(KernelAllocation(size, 0), name) for name, size in sizes_bytes.items()]
            if op.workspace_bytes:
                self.add_block(op.name, None, op.workspace_bytes, ((now, now),))
        end = now + ticks(item for item, _ in allocations) - 1
        for item, name in allocations:
            born = now + item.born
            if name is not None and name not in self.present:
                self.present[name] = _Residency(index, born)
            else:  # a temporary, or a second copy
                died = end if item.died is None else now + item.died - 1
                self.requests.append((born, MemoryRequest(index, item.size_bytes, len(self.blocks))))
                self.add_block(name or op.name, None, item.size_bytes, ((born, died),))
        for name in op.outputs:  # those of no bytes ask for nothing, and are freed all the same
            self.present.setdefault(name, _Residency(index, now))
        return end - now + 1

    def allocations_of(
        self, op: ProblemOp, *, is_repeat: bool
    ) -> list[tuple[KernelAllocation, str | None]] | None:
        """Each allocation of a run of ``op`` with the tensor that it becomes.

        ``None`` where they are not known, or are not those of the op's outputs.
        """
        allocations = self.kernels.of(op.name).of_run(is_repeat=is_repeat)
        if allocations is None or self.kernels.of(op.name).outputs > len(op.outputs):
            return None
        named = [(item, None if item.output is None else op.outputs[item.output]) for item in allocations]
        made = {name: item.size_bytes for item, name in named if name is not None}
        expected = {name: self.sizes_bytes[name] for name in op.outputs if self.sizes_bytes[name]}
        return named if made == expected else None

    def end(self, tensor: str, died: int) -> None:
        residency = self.present.pop(tensor)
        residency.died = died
        self.past.setdefault(tensor, []).append(residency)

    def add_tensor(self, name: str, stays: list[_Residency], *, tied: bool) -> int | None:
        """The blocks of a tensor's residencies; the block's number if it is one for the whole step."""
        if not self.sizes_bytes[name]:
            return None
        if tied and len(stays) == 1:
            self.add_residencies(name, stays)
            return len(self.blocks) - 1
        groups = [[stays[0], stays[-1]]] if tied else []
        for group in (*groups, *([stay] for stay in (stays[1:-1] if tied else stays))):
            self.add_residencies(name, group)
        return None

    def add_residencies(self, name: str, stays: list[_Residency]) -> None:
        """One block."""
        size_bytes = self.sizes_bytes[name]
        self.requests += [
            (stay.born, MemoryRequest(stay.step, size_bytes, len(self.blocks))) for stay in stays
        ]
        self.add_block(name, name, size_bytes, tuple((stay.born, stay.died) for stay in stays))

    def add_block(self, owner: str, tensor: str | None, size_bytes: int, spans: tuple[Span, ...]) -> None:
        alignment = self.alignment_bytes
        rounded_bytes = -(-size_bytes // alignment) * alignment
        self.blocks.append(Block(owner, tensor, rounded_bytes, spans, alignment))


# --- where blocks lie while tensors move ------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Move:
    """Before ``step`` of the schedule, ``block`` gets its place at ``to_bytes`` from the arena's start.

    A block that is in RAM then is copied there; one that is not is made there the next time. ``step`` may be
    the number of steps: after the last one.
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
