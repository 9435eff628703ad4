"""A plan's schedule as runs of ops at known places in one arena; and the forward pass in evaluation mode.

In evaluation batch norm takes its running statistics, dropout keeps everything, and what no prediction reads
falls away. Its tensors lie in the plan's arena, around those that live across steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from poet.c99.calls import WORD_BYTES, Address, CCall, OpRun, Placed, placed_at
from poet.c99.rows import KERNELS, c_calls, strip_calls
from poet.errors import GraphError, PlanError, UnsupportedOperator
from poet.ir.graph import Call, Graph, Op, Symbol, Value
from poet.ir.packed import USED_BYTES
from poet.ir.strips import Strip
from poet.memory.demand import BEFORE, MadeMove
from poet.plans.planned_step import stored_values
from poet.plans.training_plan import Plan
from poet.problem import Place
from poet.problem.schedule import Compute, Free, PageIn, PageOut

LIBRARY = "poet-c99"
"""What profiles and plans call these kernels."""
ITEM_TYPES = ("float32", "int64", "bool")
_MOST_NAMED = 8
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


def uses_elements(strip: Strip, graph: Graph) -> bool:
    """Whether the kernels use each element of a gradient as it is made; see `poet.passes.fused`."""
    values = _anywhere(graph)
    try:
        return bool(strip_calls("strip", strip, values, values, Address(0)))
    except (UnsupportedOperator, GraphError):
        return False


def _anywhere(graph: Graph) -> dict[str, Placed]:
    """The values of ``graph``, as good as placed."""
    in_flash = graph.in_flash(LIBRARY)
    return {value.name: Placed(value.type, 0, value.buffer in in_flash) for value in graph.values}


def missing_rows(graph: Graph) -> dict[str, int]:
    """Operators of ``graph`` without a C kernel, and how many ops are of each."""
    found: dict[str, int] = {}
    for op in graph.ops:
        if op.call.target not in KERNELS and op.strip is None:
            found[op.call.target] = found.get(op.call.target, 0) + 1
    return dict(sorted(found.items()))


def refusals(graph: Graph) -> tuple[str, ...]:
    """What of ``graph`` cannot be C, one sentence each: operators, or what single ops ask of theirs."""
    missing = missing_rows(graph)
    found = [f"{target} has no C kernel ({count} ops)" for target, count in missing.items()]
    placed = _anywhere(graph)
    for op in graph.ops:
        if op.strip is not None:
            continue  # made only of what has a kernel
        for call in filter(None, (op.call, op.repeat_call)):
            if call.target in missing:
                continue
            outputs = tuple(None if name is None else placed[name] for name in op.outputs)
            try:
                c_calls(OpRun(op.name, call, outputs, placed))
            except UnsupportedOperator as error:
                found.append(str(error))
    return tuple(found)


_INSTEAD = {
    "aten._embedding_bag.default": "bags of one size, rows of a matrix without padding_idx,",
    "aten._embedding_bag_backward.default": "",
}
"""What to write in place of an operator without a kernel; empty: it falls away with another one."""


def _way_out(missing: Iterable[str]) -> str:
    """What to do about operators without a kernel."""
    known = {target: _INSTEAD[target] for target in missing if _INSTEAD.get(target)}
    told = [f"write {instead} in place of {target}" for target, instead in known.items()]
    return "; ".join([*told, "docs/operators.md lists the operators that have one"])


def check_exportable(plan: Plan) -> None:
    """Refuse a plan that cannot be C, with all the operators that lack a kernel in one line.

    Raises:
        UnsupportedOperator: operators without a kernel, or element types.
        PlanError: the plan has no arena, or moves tensors to or from storage.
    """
    missing = missing_rows(plan.graph)
    if missing:
        named = [f"{target} ({count} ops)" for target, count in missing.items()]
        more = f" and {len(named) - _MOST_NAMED} more" if len(named) > _MOST_NAMED else ""
        raise UnsupportedOperator(
            f"{plan.model.name}: no C kernel for {', '.join(named[:_MOST_NAMED])}{more}; {_way_out(missing)}"
        )
    lasting, in_flash = stored_values(plan.graph), plan.graph.in_flash(LIBRARY)
    for value in plan.graph.values:
        if value.buffer in in_flash:
            continue
        if value.type.dtype == "bool" and value.name in lasting:
            raise UnsupportedOperator(
                f"{plan.model.name}: {value.name} is a mask of bytes that lives across steps; C kernels have "
                "masks that a step makes (is_causal=True), or tensors of float32"
            )
        if value.type.dtype not in ITEM_TYPES and not _is_random_state(plan.graph, value.name):
            raise UnsupportedOperator(
                f"{plan.model.name}: {value.name} is of {value.type.dtype}; C kernels are of float32"
            )
    if any(facts.allocations is not None for facts in plan.kernels.ops):
        raise PlanError(
            f"{plan.model.name}: the plan counts the memory of {plan.kernels.library}; solve it again for "
            f'a device whose profile says [kernels] name = "{LIBRARY}", such as nrf52840'
        )
    if plan.arena is None:
        raise PlanError(f"{plan.model.name}: the plan has no arena; solve it again to have one")
    budget_bytes = plan.request.limits.ram_budget_bytes
    if budget_bytes is not None and plan.arena.size_bytes > budget_bytes:
        raise PlanError(
            f"{plan.model.name}: with the gaps between its tensors the arena takes {plan.arena.size_bytes} "
            f"bytes of {budget_bytes}, and C has no heap to run from; solve with more time or more --ram"
        )
    offsets = (*plan.arena.offsets_bytes, *(move.to_bytes for move in plan.arena.moves))
    if any(offset % WORD_BYTES for offset in offsets):
        raise PlanError(f"{plan.model.name}: places in its arena are not multiples of {WORD_BYTES} bytes")


def _is_random_state(graph: Graph, value: str) -> bool:
    return any(op.call.target == "poet.rng_state" and value in op.outputs for op in graph.ops)


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
        self.in_storage = {
            tensor.name for tensor in plan.problem.tensors if tensor.initially is Place.STORAGE
        }
        self.unchanged = self.in_storage - updated | {
            tensor.name for tensor in plan.problem.tensors if tensor.initially is Place.BOTH
        }  # begin as the weights that are constants in C
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
                if op.strip is not None:
                    written = ((name, self.output(name, index)) for name in op.outputs if name is not None)
                    places = {name: place for name, place in written if place is not None}
                    room = self.workspaces.get((op.name, self.plan.demand.begins[index]))
                    calls = strip_calls(op.name, op.strip, values, places, room)
                    made.append(Statement(op.name, False, tuple(calls)))
                    continue
                outputs = tuple(self.output(name, index) for name in op.outputs)
                run = OpRun(op.name, call, outputs, values)
                made.append(Statement(op.name, is_repeat, tuple(c_calls(run))))
        made += self.moved(len(self.plan.schedule))
        left = {name: self.placed(name) for name in (self.graph.loss, *self.graph.predictions)}
        homes = {name: self.homes.get(name) for name in kept if name in self.in_storage}
        commit = _whole_blocks(self.paged_bytes) if self.homes else None
        if commit is not None:
            sizes = {buffer.name: buffer.size_bytes for buffer in self.graph.buffers}
            in_ram = sum(-(-sizes[name] // WORD_BYTES) * WORD_BYTES for name in kept if name not in homes)
            self.paged_bytes = commit + 2 * (BLOCK_BYTES + _whole_blocks(in_ram))
        return Statements(
            self.arena.size_bytes,
            tuple(made),
            kept,
            given,
            left,
            self.paged_bytes,
            homes,
            commit,
            tuple(self.written),
            self.sums,
            self.in_flash,
        )

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
            made.append(
                Statement(move.tensor, False, (CCall("move", ("net", *places, f"{move.size_bytes}u")),))
            )
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
        return _at(item, {item.buffer: self.at.get(item.buffer, 0)}, self.in_flash)

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


def _at(value: Value, at: Mapping[str, int], in_flash: Mapping[str, int]) -> Placed:
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


_ALIGNMENT_BYTES = 8
_NORMS, _DRAW = ("aten.native_batch_norm.default", "poet.norm_relu"), "poet.bernoulli"


@dataclass(frozen=True, slots=True)
class Prediction:
    """The runs of a forward pass, and the places of the predictions after it."""

    statements: tuple[Statement, ...]
    outputs: tuple[tuple[str, Placed], ...]


def prediction_of(graph: Graph, laid: Statements) -> Prediction | str:
    """The forward pass of ``graph``; or why there is none.

    Args:
        graph: a training step.
        laid: where inputs and what lives across steps lie, and how large the arena is.
    """
    try:
        if laid.homes:
            raise UnsupportedOperator(
                "parameters live in storage between steps; plan with --home ram to have it"
            )
        ops = _forward(graph)
        return _laid_out(graph, ops, laid)
    except UnsupportedOperator as error:
        return str(error)


def _forward(graph: Graph) -> list[Op]:
    """The ops that predictions need, as they are in evaluation."""
    wanted = {graph.buffer_of(name) for name in graph.predictions}
    found: list[Op] = []
    for op in reversed(graph.ops):
        over = op.strip.overwritten if op.strip is not None else None
        if wanted.intersection((*graph.writes(op), *((graph.buffer_of(over.value),) if over else ()))):
            op = _evaluating(graph, op)
            wanted.update(graph.reads(op.call))
            found.append(op)
    return found[::-1]


def _evaluating(graph: Graph, op: Op) -> Op:
    """``op`` as it is in evaluation mode.

    Raises:
        UnsupportedOperator: what it does there does not follow from what it does in training.
    """
    call, strip = op.call, op.strip
    if strip is not None and strip.overwritten is not None:
        first, then = strip.links
        others = tuple(name for name in op.updates if name != graph.buffer_of(strip.overwritten.value))
        alone = replace(op, call=first.call, outputs=first.outputs, updates=others, strip=None)
        made = _evaluating(graph, alone)
        strip = replace(strip, links=(replace(first, call=made.call, outputs=made.outputs), then))
        return replace(op, call=strip.call, outputs=made.outputs[1:], updates=(), strip=strip)
    if call.target in _NORMS and call.args[5] is True:
        if call.args[3] is None:
            raise UnsupportedOperator(f"op {op.name}: batch norm keeps no running statistics")
        call = replace(call, args=(*call.args[:5], False, *call.args[6:]))
        return replace(op, call=call, outputs=(op.outputs[0], None, None), updates=(), repeat_call=None)
    if call.target == _DRAW:
        kept_share = call.args[3]
        readers = [other for other in graph.ops if op.outputs[0] in set(other.call.refs())]
        divided = [
            item.call.target == "aten.div.Scalar" and item.call.args[1] == kept_share for item in readers
        ]
        if not divided or not all(divided):
            raise UnsupportedOperator(f"op {op.name}: its random numbers are not those of a dropout")
        kept = Call("poet.full", (*call.args[:2], Symbol("dtype", "float32"), kept_share))
        return replace(op, call=kept, random=False, repeat_call=None)
    if op.random or op.updates:
        raise UnsupportedOperator(f"op {op.name}: what {call.target} does in evaluation is not known")
    return op


def _laid_out(graph: Graph, ops: list[Op], laid: Statements) -> Prediction:
    """Places for all that ``ops`` make, each the lowest that is free while it is needed.

    Raises:
        UnsupportedOperator: there is no room for one, or an op has no C kernel.
    """
    sizes = {buffer.name: buffer.size_bytes for buffer in graph.buffers}
    types = {value.name: value for value in graph.values}
    last = {
        name: index for index, op in enumerate(ops) for name in (*graph.reads(op.call), *graph.writes(op))
    }
    last |= {graph.buffer_of(name): len(ops) for name in graph.predictions}
    at = dict(laid.kept)
    for name in graph.inputs[: len(graph.inputs) - graph.targets]:
        at[types[name].buffer] = laid.given[name].word * WORD_BYTES
    statements = []

    def placed(name: str) -> Placed:
        return _at(types[name], at, laid.in_flash)

    for index, op in enumerate(ops):
        for name in graph.writes(op):
            if name in last:
                at[name] = _lowest(sizes[name], at, sizes, laid.arena_bytes, op)
        values = {name: placed(name) for name in op.call.refs()}
        outputs = {name: placed(name) for name in op.outputs if name is not None}
        if op.strip is not None:
            room = _lowest(op.strip.block_bytes, at, sizes, laid.arena_bytes, op)
            calls = strip_calls(op.name, op.strip, values, outputs, Address(room // WORD_BYTES))
        else:
            made = tuple(None if name is None else outputs[name] for name in op.outputs)
            calls = c_calls(OpRun(op.name, op.call, made, values))
        statements.append(Statement(op.name, False, tuple(calls)))
        at = {name: offset for name, offset in at.items() if name in laid.kept or last.get(name, -1) > index}
    places = ((name, placed_at(types[name].type, at[types[name].buffer])) for name in graph.predictions)
    return Prediction(tuple(statements), tuple(places))


def _lowest(
    size_bytes: int, at: Mapping[str, int], sizes: Mapping[str, int], arena_bytes: int, op: Op
) -> int:
    """The lowest place for ``size_bytes`` beside what lies ``at`` places already."""
    end = 0
    for start, name in sorted((offset, name) for name, offset in at.items() if sizes[name]):
        if start - end >= size_bytes:
            break
        end = max(end, -(-(start + sizes[name]) // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES)
    if end + size_bytes > arena_bytes:
        raise UnsupportedOperator(f"op {op.name}: {arena_bytes} bytes have no place for its {size_bytes}")
    return end
