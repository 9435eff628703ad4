"""From a training graph and a device to what each op and each transfer costs.

An op that the profile has a measured row for lasts as long as that says, any other
``max(flops / throughput of its class, bytes moved / memory bandwidth)`` plus the overhead of a call;
it draws its class's power meanwhile. A transfer lasts ``latency + bytes / bandwidth`` in whole pages,
and a page-out of flash that the host erases carries the erase as well. An op that reads rows of a table in
storage has a transfer for each, and one that updates them there a second one.
No torch: the graph's types and the profile's figures are all it takes.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from poet.devices.cost_rules import Operands
from poet.devices.cost_table import Amounts, amounts_for
from poet.devices.figures import OpClass
from poet.devices.measurements import OpTime, op_time
from poet.devices.profile import Direction, OpTimes, Profile, Storage
from poet.errors import ProfileError
from poet.ir.calls import Call, Ref, TensorType, contiguous
from poet.ir.graph import Graph, Op, Strip, stored_row_of
from poet.ir.kernel_facts import PYTORCH
from poet.ir.operators import WRITES
from poet.ir.strips import copied_blocks
from poet.problem import PageForm, Transfer
from poet.util import codec
from poet.util.brief import brief


def amounts_of(op: OpTime) -> Amounts:
    """Of one run of ``op``.

    Raises:
        UnsupportedOperator: its cost is not known.
        GraphError: its arguments are not those of its operator.
    """
    types = {f"v{index}": type_ for index, type_ in enumerate(op.types)}
    operands = Operands(op.call, types, op.outputs, op.updated_bytes)
    return amounts_for(operands, op.call.target, "the operator")


_DIGITS = 12


def row_key(op: OpTime) -> str:
    """Equal for ops that are alike, whatever model they are of."""
    call = {
        "call": codec.encode(op.call),
        "given": [_told(type_) for type_ in op.types],
        "made": [None if type_ is None else _told(type_) for type_ in op.outputs],
        "updated": op.updated_bytes,
    }
    digest = hashlib.sha256(json.dumps(call, sort_keys=True).encode()).hexdigest()[:_DIGITS]
    return f"{op.call.target} {' '.join(map(str, op.types))} #{digest}"


def plain_form(op: OpTime) -> OpTime | None:
    """The op of plain training in whose place ``op`` makes or reads a compressed activation, if it does.

    Profiles are measured on steps that save what plain training saves, so they have rows for that one alone.
    """
    target, args = op.call.target, op.call.args
    if target == "poet.relu" and len(args) == 2:
        return replace(op, call=Call("aten.relu.default", args[:1]), outputs=op.outputs[:1])
    if target == "poet.relu_backward" and len(args) == 2 and len(op.types) == 2:
        call = Call("aten.threshold_backward.default", (*args, 0))
        return replace(op, call=call, types=(op.types[0], _alike(op.types[0])))
    if target == "poet.masked" and len(args) == 3 and len(op.types) == 2:
        return replace(op, call=Call("aten.mul.Tensor", args[:2]), types=(op.types[0], _alike(op.types[0])))
    if target == "poet.max_pool" and len(op.outputs) == 2 and op.outputs[1] is not None:
        indices = contiguous("int64", op.outputs[1].shape)
        call = Call("aten.max_pool2d_with_indices.default", args)
        return replace(op, call=call, outputs=(op.outputs[0], indices))
    if target == "poet.max_pool_backward" and len(op.types) == 2:
        call = Call("aten.max_pool2d_with_indices_backward.default", args)
        return replace(op, call=call, types=(op.types[0], contiguous("int64", op.types[1].shape)))
    return None


def _alike(type_: TensorType) -> TensorType:
    return contiguous(type_.dtype, type_.shape)


def _told(type_: TensorType) -> object:
    return codec.encode(replace(type_, offset=0))


_WORD_BYTES = 4


@dataclass(frozen=True, slots=True)
class OpCost:
    """One run of one op; joules are above idle power.

    ``measured``: its seconds are those of a row of the profile's `OpTimes`, not of its class;
    ``stored_reads`` and ``stored_read_bytes``: from storage, which its seconds and joules contain;
    ``stored_writes`` and ``stored_written_bytes`` likewise.
    """

    op_class: OpClass
    flops: float
    bytes_moved: int
    seconds: float
    joules: float
    measured: bool = False
    stored_reads: int = 0
    stored_read_bytes: int = 0
    stored_writes: int = 0
    stored_written_bytes: int = 0


@dataclass(frozen=True, slots=True)
class BufferCost:
    """Copying one buffer from and to storage, ``None`` where there is none; and from place to place in
    RAM.
    """

    page_in: Transfer | None
    page_out: Transfer | None
    stored_bytes: int | None
    move: Transfer


@dataclass(frozen=True, slots=True)
class Costs:
    """What a graph's parts cost on a device.

    Attributes:
        device: the profile's name.
        ops: per op, by name.
        buffers: per buffer, by name.
    """

    device: str
    ops: Mapping[str, OpCost]
    buffers: Mapping[str, BufferCost]

    __repr__ = brief


def estimate(graph: Graph, profile: Profile, amounts: dict[str, Amounts] | None = None) -> Costs:
    """What each op of ``graph`` and each transfer of its buffers costs on ``profile``'s device.

    ``amounts`` of ops by name, which follow from the graph alone, are looked up and kept there: who asks for
    one graph on several devices finds them once.

    Raises:
        UnsupportedOperator: the cost of an op is not known.
    """
    types = {value.name: value.type for value in graph.values}
    sizes_bytes = {buffer.name: buffer.size_bytes for buffer in graph.buffers}
    amounts = {} if amounts is None else amounts
    return Costs(
        profile.name,
        {op.name: _op_cost(op, types, sizes_bytes, profile, amounts) for op in graph.ops},
        {buffer.name: buffer_cost(buffer.size_bytes, profile) for buffer in graph.buffers},
    )


def op_cost(op: Op, graph: Graph, profile: Profile) -> OpCost:
    """What ``op``, of ``graph`` or in another form, costs on ``profile``'s device."""
    types = {value.name: value.type for value in graph.values}
    return _op_cost(op, types, {item.name: item.size_bytes for item in graph.buffers}, profile, {})


def op_seconds(profile: Profile, amounts: Amounts) -> float:
    """How long a run lasts."""
    throughput = profile.compute.throughput(amounts.op_class)
    bandwidth = profile.memory.bandwidth_bytes_per_second
    block = profile.compute.convolution_block_channels
    flops = amounts.flops if block is None else amounts.padded_flops(int(block.value))
    busy_seconds = max(
        flops / throughput.flops_per_second.value if throughput is not None else 0.0,
        amounts.bytes_moved / bandwidth.value if bandwidth is not None else 0.0,
    )
    return busy_seconds + profile.compute.overhead_seconds(amounts.op_class)


def _op_cost(
    op: Op,
    types: Mapping[str, TensorType],
    sizes_bytes: Mapping[str, int],
    profile: Profile,
    amounts: dict[str, Amounts],
) -> OpCost:
    if op.strip is not None and not _is_one_call(op.strip):
        return _strip_cost(op, op.strip, types, profile)
    operands = _operands(op, types, sizes_bytes)
    if op.stored:
        return _stored_rows_cost(op, operands, profile)
    if op.name not in amounts:
        amounts[op.name] = _amounts(op, operands)
    cost = _call_cost(amounts[op.name], profile)
    return cost if profile.op_times is None else _by_row(cost, operands, profile, profile.op_times)


def _stored_rows_cost(op: Op, operands: Operands, profile: Profile) -> OpCost:
    """Of reading rows in storage: each number is taken to be of another row, with a read of its own.

    A row may begin anywhere in a page. Where it is updated, the pages that it lies in are written as well.
    """
    storage = profile.storage
    if storage is None:
        raise ProfileError(f"{profile.name} has no storage for op {op.name} to read rows from; plan again")
    row_bytes, _ = stored_row_of(op)
    page_bytes, count = storage.page_bytes.value, operands.tensor(0).elements
    span_bytes = ((row_bytes + page_bytes - 2) // page_bytes + 1) * page_bytes
    moves, writes = [_transfer(storage.read, span_bytes, profile)], count if op.updates else 0
    if writes:
        moves.append(_with_erase(_transfer(storage.write, span_bytes, profile), storage, span_bytes))
    computed = _call_cost(_amounts(op, operands), profile)
    return replace(
        computed,
        seconds=computed.seconds + count * sum(each.seconds for each in moves),
        joules=computed.joules + count * sum(each.joules for each in moves),
        stored_reads=count,
        stored_read_bytes=count * span_bytes,
        stored_writes=writes,
        stored_written_bytes=writes * span_bytes,
    )


def _is_one_call(strip: Strip) -> bool:
    """Whether its only result is written over an operand as it is made: as much work as to make it apart.

    What makes several results makes them a block at a time, each of which is copied.
    """
    return strip.overwritten is not None and len(strip.links[0].outputs) == 1


def _operands(op: Op, types: Mapping[str, TensorType], sizes_bytes: Mapping[str, int]) -> Operands:
    """Of an op that is one call; where its result is written over an operand, as if it were made apart."""
    if op.strip is None:
        outputs = tuple(types[name] if name is not None else None for name in op.outputs)
        in_ram = (sizes_bytes[name] for name in op.updates if name not in op.stored)
        return Operands(op.call, types, outputs, sum(in_ram))
    made = tuple(value.type for value in op.strip.inner)
    return Operands(op.strip.links[0].call, types, made, 0)


def _by_row(cost: OpCost, operands: Operands, profile: Profile, rows: OpTimes) -> OpCost:
    """``cost`` with the measured seconds of an op that is alike, where there is one.

    Of an op that makes or reads a compressed activation, where it has no row: those of the plain one, and as
    much more as the two differ by their classes. They do not count as measured.
    """
    alike = op_time(
        operands.call, operands.types, operands.outputs, updated_bytes=operands.updated_bytes, seconds=1.0
    )
    seconds, plain = rows.seconds.get(row_key(alike)), plain_form(alike)
    is_measured, more_seconds = seconds is not None, 0.0
    if seconds is None and plain is not None:
        seconds = rows.seconds.get(row_key(plain))
        amounts = amounts_of(plain)
        more_seconds = max(0.0, cost.seconds - op_seconds(profile, amounts))
    if seconds is None:
        return cost
    seconds = seconds * rows.ratio.value + more_seconds
    watts = profile.marginal_watts(profile.compute.watts(cost.op_class))
    return replace(cost, seconds=seconds, joules=seconds * watts, measured=is_measured)


def _amounts(op: Op, operands: Operands) -> Amounts:
    return amounts_for(operands, f"op {op.name}", operands.call.target)


def _call_cost(amounts: Amounts, profile: Profile, *, runs: int = 1) -> OpCost:
    """Of a call that is made in so many ``runs``, which share its work."""
    seconds = op_seconds(profile, amounts)
    seconds += (runs - 1) * profile.compute.overhead_seconds(amounts.op_class)
    watts = profile.marginal_watts(profile.compute.watts(amounts.op_class))
    return OpCost(amounts.op_class, amounts.flops, amounts.bytes_moved, seconds, seconds * watts)


def _strip_cost(op: Op, strip: Strip, types: Mapping[str, TensorType], profile: Profile) -> OpCost:
    """The sum over its calls, each with its overhead per block; the class is that of the longest.

    Where the profile says how large the cache is, and a block of what flows between the calls fits it, that
    is not charged for a way to RAM and back.
    """
    cache = profile.memory.cache_bytes
    inner = {value.name: value.type for value in strip.inner}
    stays = inner if cache is not None and strip.block_bytes <= cache.value else {}
    costs = []
    runs = len(strip.bounds)
    if strip.overwritten is not None and profile.kernels.name == PYTORCH:
        runs, copies = _in_copied_blocks(strip, profile)
        costs.append(copies)
    for link in strip.links:
        written = WRITES.get(link.call.target, ())
        updated = [argument for place in written if isinstance(argument := link.call.args[place], Ref)]
        operands = Operands(
            link.call,
            {**types, **inner},
            tuple(inner.get(name) or types[name] if name is not None else None for name in link.outputs),
            sum(types[argument.value].extent_bytes for argument in updated),
            frozenset(stays),
            tuple(stays[name] for name in link.outputs if name in stays),
        )
        costs.append(_call_cost(_amounts(op, operands), profile, runs=runs))
        costs += [_sum_cost(types[str(link.outputs[place])], strip, profile) for place in link.sums]
    return OpCost(
        max(costs, key=lambda cost: cost.seconds).op_class,
        sum(cost.flops for cost in costs),
        sum(cost.bytes_moved for cost in costs),
        sum(cost.seconds for cost in costs),
        sum(cost.joules for cost in costs),
    )


def _in_copied_blocks(strip: Strip, profile: Profile) -> tuple[int, OpCost]:
    """In how many blocks ``strip`` is copied over an operand, and what copies of other things take for it.

    A block of channels lies apart in each sample, so that both operands' are copied before, and so are all
    sums after. The blocks themselves, which the next call finds in the cache, are counted with that call.
    """
    made = strip.inner[0].type
    runs = len(copied_blocks(made.extent_bytes, made.shape[1] if len(made.shape) > 1 else 1))
    sums = sum(name is not None for name in strip.links[0].outputs[1:])
    blocks = 2 if made.shape[0] > 1 else 0
    copies = Amounts(OpClass.MOVEMENT, float(blocks * made.elements), 0)
    cost = _call_cost(copies, profile, runs=(blocks + sums) * runs)
    return runs, cost


def _sum_cost(total: TensorType, strip: Strip, profile: Profile) -> OpCost:
    """Of adding what each block of ``strip`` after the first gives to the ``total``."""
    additions = len(strip.bounds) - 1
    added = float(additions * total.elements)
    amounts = Amounts(OpClass.ELEMENTWISE, added, 3 * additions * total.extent_bytes)
    return _call_cost(amounts, profile, runs=additions)


def buffer_cost(size_bytes: int, profile: Profile, form: PageForm | None = None) -> BufferCost:
    """What copying ``size_bytes`` costs in each direction: whole pages, and the erase with a write.

    ``form``: in which they are written; the conversion, an op of the class elementwise, is counted as well.
    """
    storage, move = profile.storage, move_cost(size_bytes, profile)
    if storage is None:
        return BufferCost(None, None, None, move)
    page_bytes = storage.page_bytes.value
    coded_bytes = size_bytes if form is None else form.coded_bytes(size_bytes)
    stored_bytes = math.ceil(coded_bytes / page_bytes) * page_bytes
    page_in = _transfer(storage.read, stored_bytes, profile)
    page_out = _with_erase(_transfer(storage.write, stored_bytes, profile), storage, stored_bytes)
    if form is not None:
        page_out, page_in = (
            _converted(transfer, form, size_bytes, profile, passes=passes, flops=flops)
            for transfer, (passes, flops) in zip((page_out, page_in), _CONVERSIONS[form], strict=True)
        )
    return BufferCost(page_in, page_out, stored_bytes, move)


_CONVERSIONS = {PageForm.BF16: ((1, 1), (1, 1)), PageForm.INT8: ((2, 3), (1, 2))}
"""Out and in: passes over the numbers, and FLOPs for each. Out to int8 the largest is sought first."""


def _converted(
    transfer: Transfer, form: PageForm, size_bytes: int, profile: Profile, *, passes: int, flops: int
) -> Transfer:
    """``transfer`` with the conversion of ``size_bytes`` of float32 to or from ``form``."""
    moved_bytes = passes * size_bytes + form.coded_bytes(size_bytes)
    amounts = Amounts(OpClass.ELEMENTWISE, flops * size_bytes / _WORD_BYTES, moved_bytes)
    cost = _call_cost(amounts, profile)
    return Transfer(transfer.seconds + cost.seconds, transfer.joules + cost.joules)


def move_cost(size_bytes: int, profile: Profile) -> Transfer:
    """What moving ``size_bytes`` within RAM costs: as an op that reads and writes them, a word at a time."""
    seconds = op_seconds(profile, Amounts(OpClass.MOVEMENT, size_bytes / _WORD_BYTES, 2 * size_bytes))
    watts = profile.marginal_watts(profile.compute.watts(OpClass.MOVEMENT))
    return Transfer(seconds, seconds * watts)


def _transfer(direction: Direction, stored_bytes: int, profile: Profile) -> Transfer:
    seconds = direction.latency_seconds.value + stored_bytes / direction.bandwidth_bytes_per_second.value
    return Transfer(seconds, seconds * profile.marginal_watts(direction.active_watts.value))


def _with_erase(write: Transfer, storage: Storage, stored_bytes: int) -> Transfer:
    erase = storage.erase
    if erase is None:
        return write
    blocks = math.ceil(stored_bytes / erase.block_bytes.value)
    return Transfer(
        write.seconds + blocks * erase.block_seconds.value, write.joules + blocks * erase.block_joules.value
    )
