"""The forward pass in evaluation mode.

Batch norm takes its running statistics, dropout keeps everything, and what no prediction reads falls away.
Its tensors lie in the plan's arena, around those that live across steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from poet.c99.calls import WORD_BYTES, Address, OpRun, Placed, placed_at
from poet.c99.rows import c_calls, strip_calls
from poet.c99.statements import Statement, Statements, place_of
from poet.errors import UnsupportedOperator
from poet.ir.graph import Call, Graph, Op, Symbol

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
        return _laid_out(graph, _forward(graph), laid)
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
    for index, op in enumerate(ops):
        for name in graph.writes(op):
            if name in last:
                at[name] = _lowest(sizes[name], at, sizes, laid.arena_bytes, op)
        outputs, values = (
            {name: place_of(types[name], at, laid.in_flash) for name in names if name is not None}
            for names in (op.outputs, op.call.refs())
        )
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
