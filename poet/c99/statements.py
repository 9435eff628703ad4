"""A plan's schedule as runs of ops at known places in one arena."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from poet.c99.calls import WORD_BYTES, Address, CCall, OpRun, Placed, placed_at
from poet.c99.exportable import LIBRARY, check_exportable
from poet.c99.rows import c_calls, strip_calls
from poet.ir.graph import Graph, Value
from poet.ir.packed import USED_BYTES
from poet.memory.demand import BEFORE, MadeMove
from poet.plans.planned_step import stored_values
from poet.plans.training_plan import Plan
from poet.problem import Place
from poet.problem.schedule import Compute, Free, PageIn, PageOut

BLOCK_BYTES = 4096
"""Of storage: what is written begins at a multiple of it."""


@dataclass(frozen=True, slots=True)
class Statement:
    """One run of one op, or a transfer of one tensor: its name, and the calls that make it.

    Attributes:
        op: the op's name, or the tensor's.
        is_repeat: whether it is a recomputation.
        calls: in order.
    """

    op: str
    is_repeat: bool
    calls: tuple[CCall, ...]


class Home(NamedTuple):
    """Offsets in bytes in storage of the two places of a buffer that is there between steps and changes.

    A step reads the one that holds what the step before it made, and writes the one that was not committed.
    """

    first: int
    second: int


@dataclass(frozen=True, slots=True)
class Statements:
    """What a step does, and where things lie between two steps.

    Attributes:
        arena_bytes: of the plan's arena.
        statements: in order.
        kept: offset in bytes of each buffer that lives across steps; of no worth for those in ``homes``.
        given: the inputs and the target, before a step.
        left: the loss and the predictions, after it.
        page_bytes: of storage, that transfers of a step and its commits use.
        homes: of each buffer that is in storage between steps its two places there; ``None``: it never
            changes, and is a constant in C.
        commit: offset in bytes in storage of the two records of commits; ``None``: nothing that changes lives
            in storage.
        writes: offset and size in bytes of what each page-out of a step writes.
        sums: number of the checksum of each buffer that is written to storage; those of ``homes`` come first.
        in_flash: of each packed weight, which stays there, the first of its bytes among those of all.
    """

    arena_bytes: int
    statements: tuple[Statement, ...]
    kept: Mapping[str, int]
    given: Mapping[str, Placed]
    left: Mapping[str, Placed]
    page_bytes: int
    homes: Mapping[str, Home | None]
    commit: int | None
    writes: tuple[tuple[int, int], ...]
    sums: Mapping[str, int]
    in_flash: Mapping[str, int]

    @property
    def written(self) -> tuple[int, ...]:
        """Bytes that each page-out of a step writes."""
        return tuple(size for _, size in self.writes)


def statements_of(plan: Plan) -> Statements:
    """The runs of ``plan`` in order, each with its C calls.

    Raises:
        UnsupportedOperator: an op cannot be a C call.
        PlanError: the plan cannot be C.
    """
    check_exportable(plan)
    return _Walk(plan).statements()


def _whole_blocks(size_bytes: int) -> int:
    return -(-size_bytes // BLOCK_BYTES) * BLOCK_BYTES


class _Walk:
    """Goes through the schedule and knows where each buffer lies."""

    def __init__(self, plan: Plan) -> None:
        assert plan.arena is not None  # checked before
        self.plan, self.graph = plan, plan.graph
        self.arena = plan.arena
        self.types = {value.name: value for value in plan.graph.values}
        self.in_flash = flash_places(plan.graph)
        self.at: dict[str, int] = {}  # offset in bytes of each buffer that is in RAM
        self.slots = {slot.tensor: slot for slot in plan.slots}
        updated = {name for op in plan.graph.ops for name in op.updates}
        places = {tensor.name: tensor.initially for tensor in plan.problem.tensors}
        self.in_storage = {name for name, place in places.items() if place is Place.STORAGE}
        constant = {name for name, place in places.items() if place is Place.BOTH}
        self.unchanged = self.in_storage - updated | constant  # begin as the weights that are constants in C
        used = (slot for slot in plan.slots if slot.tensor not in self.unchanged)
        self.paged_bytes = max((slot.offset_bytes + slot.size_bytes for slot in used), default=0)
        self.homes = self.placed_homes(updated)
        self.changed: set[str] = set()  # homes that hold what this step made
        self.written: list[tuple[int, int]] = []
        self.sums = {name: number for number, name in enumerate(self.homes)}
        self.requested: dict[tuple[int, str, bool], int] = {}
        assert plan.places is not None  # as there is an arena
        self.moves: dict[int, list[MadeMove]] = {}
        for move in plan.places.moves:
            self.moves.setdefault(move.step, []).append(move)
        for request, offset in zip(plan.demand.requests, plan.places.requests_bytes, strict=True):
            block = plan.demand.blocks[request.block]
            owner = block.owner if block.tensor is None else block.tensor
            self.requested[request.step, owner, block.tensor is None] = offset
            if request.step == BEFORE and block.tensor is not None:
                self.at[block.tensor] = offset
        self.workspaces: dict[tuple[str, int], Address] = {}  # by op and tick
        for block, offset in zip(plan.demand.blocks, self.arena.offsets_bytes, strict=True):
            if block.tensor is None and block.size_bytes >= USED_BYTES:
                self.workspaces |= {
                    (block.owner, born): Address(offset // WORD_BYTES) for born, _ in block.spans
                }

    def statements(self) -> Statements:
        lasting = dict.fromkeys(map(self.graph.buffer_of, stored_values(self.graph)))
        kept = {name: self.at.get(name, 0) for name in lasting if name not in self.in_flash}
        given = {name: self.placed(name) for name in self.graph.inputs}
        ops = {op.name: op for op in self.graph.ops}
        ran: set[str] = set()
        made: list[Statement] = []
        for index, step in enumerate(self.plan.schedule):
            made += self.moved(index)
            if isinstance(step, Free):
                self.at.pop(step.tensor, None)
            elif isinstance(step, PageIn):
                self.at[step.tensor] = self.requested.get((index, step.tensor, False), 0)
                made.append(self.transfer(step.tensor, "page_in"))
            elif isinstance(step, PageOut):
                made.append(self.transfer(step.tensor, "page_out"))
            elif isinstance(step, Compute):
                op = ops[step.op]
                is_repeat = op.name in ran
                call = op.recall if is_repeat and op.recall is not None else op.call
                ran.add(op.name)
                self.changed.update(op.updates)
                values = {name: self.placed(name) for name in call.refs()}
                outputs = tuple(self.output(name, index) for name in op.outputs)
                if op.strip is None:
                    calls = c_calls(OpRun(op.name, call, outputs, values))
                else:
                    written = zip(op.outputs, outputs, strict=True)
                    places = {
                        name: place for name, place in written if name is not None and place is not None
                    }
                    room = self.workspaces.get((op.name, self.plan.demand.begins[index]))
                    calls = strip_calls(op.name, op.strip, values, places, room)
                made.append(Statement(op.name, is_repeat, tuple(calls)))
        made += self.moved(len(self.plan.schedule))
        left = {name: self.placed(name) for name in (self.graph.loss, *self.graph.predictions)}
        homes = {name: self.homes.get(name) for name in kept if name in self.in_storage}
        commit = _whole_blocks(self.paged_bytes) if self.homes else None
        if commit is not None:
            sizes = {buffer.name: buffer.size_bytes for buffer in self.graph.buffers}
            in_ram = sum(-(-sizes[name] // WORD_BYTES) * WORD_BYTES for name in kept if name not in homes)
            self.paged_bytes = commit + 2 * (BLOCK_BYTES + _whole_blocks(in_ram))
        return Statements(
            self.arena.size_bytes, tuple(made), kept, given, left, self.paged_bytes, homes, commit,
            tuple(self.written), self.sums, self.in_flash,
        )  # fmt: skip

    def placed_homes(self, updated: set[str]) -> dict[str, Home]:
        """Both places of what is in storage between steps and changes: its slot, and one behind all slots."""
        found: dict[str, Home] = {}
        for name in sorted(self.in_storage & updated & self.slots.keys()):
            slot, second = self.slots[name], _whole_blocks(self.paged_bytes)
            found[name] = Home(slot.offset_bytes, second)
            self.paged_bytes = second + slot.size_bytes
        return found

    def moved(self, index: int) -> list[Statement]:
        """The moves within the arena before the step ``index``."""
        made = []
        for move in self.moves.get(index, ()):
            places = (str(move.to_bytes // WORD_BYTES), str(move.from_bytes // WORD_BYTES))
            call = CCall("move", ("net", *places, f"{move.size_bytes}u"))
            made.append(Statement(move.tensor, False, (call,)))
            self.at[move.tensor] = move.to_bytes
        return made

    def transfer(self, buffer: str, function: str) -> Statement:
        """A copy of a whole buffer from or to its slot; what never changes is copied from the weights."""
        slot, word = self.slots[buffer], self.at[buffer] // WORD_BYTES
        if buffer in self.unchanged:
            calls = () if function == "page_out" else (CCall("restore", ("net", str(word), f"@{buffer}")),)
            return Statement(buffer, False, calls)
        is_out = function == "page_out"
        if buffer in self.homes:
            is_new = buffer in self.changed
            if is_out and not is_new:
                return Statement(buffer, False, ())  # it is there
            which = () if is_out else (str(int(is_new)),)
            call = CCall("home_out" if is_out else "home_in", ("net", str(word), f"@{buffer}", *which))
        else:
            number = str(self.sums.setdefault(buffer, len(self.sums)))
            place = (f"{slot.offset_bytes}u", f"{slot.size_bytes}u")
            call = CCall(function, ("net", str(word), *place, number))
        if is_out:
            self.written.append((slot.offset_bytes, slot.size_bytes))
        return Statement(buffer, False, (call,))

    def placed(self, value: str) -> Placed:
        """Where a value lies now; one of no bytes lies anywhere."""
        item = self.types[value]
        return place_of(item, {item.buffer: self.at.get(item.buffer, 0)}, self.in_flash)

    def output(self, value: str | None, index: int) -> Placed | None:
        """Where an output of the step ``index`` goes: a place of its own, or that of a second copy."""
        if value is None:
            return None
        buffer = self.types[value].buffer
        if buffer not in self.at:
            self.at[buffer] = self.requested.get((index, buffer, False), 0)
            return self.placed(value)
        first = self.at[buffer]
        self.at[buffer] = self.requested.get((index, buffer, True), 0)
        second = self.placed(value)
        self.at[buffer] = first
        return second


def place_of(value: Value, at: Mapping[str, int], in_flash: Mapping[str, int]) -> Placed:
    """Where ``value`` lies: in flash, or in the arena ``at`` the place of its buffer."""
    if value.buffer in in_flash:
        return Placed(value.type, in_flash[value.buffer], in_flash=True)
    return placed_at(value.type, at[value.buffer])


def flash_places(graph: Graph) -> dict[str, int]:
    """Of each packed weight of ``graph`` the first of its bytes among those of all, at multiples of 4."""
    sizes, places, end = {buffer.name: buffer.size_bytes for buffer in graph.buffers}, dict[str, int](), 0
    for name in sorted(graph.in_flash(LIBRARY)):
        places[name] = end
        end += -(-sizes[name] // WORD_BYTES) * WORD_BYTES
    return places
