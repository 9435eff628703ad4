"""Ops that libraries with kernels of their own run as one; PyTorch makes the calls apart.

A weight gradient is used as it is made, by a strip of one block with the updates that read it. Batch norm and
the rectifier behind it are one op, and so are their backward passes: what is between them exists nowhere.
Zeros behind an image are part of the convolution that reads them, as TensorFlow's padding "same" has them at
a stride of two. No trial is needed: such kernels make each element as the separate ones do.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from poet.ir.graph import (
    ITEM_BYTES,
    Argument,
    Blank,
    Call,
    Graph,
    Link,
    Op,
    Parameter,
    Ref,
    Strip,
    TensorType,
    Value,
)
from poet.ir.operators import UPDATES
from poet.ir.packed import DEQUANTISE
from poet.passes.rewrite import GraphUses, Rewrite, is_pure, rewritten

HasKernel = Callable[[Strip, Graph], bool]
"""Whether a library's kernels can use each element of a strip's gradient as it is made."""

NORM_RELU, NORM_RELU_BACKWARD = "poet.norm_relu", "poet.norm_relu_backward"
PADDED, PADDED_BACKWARD = "poet.padded_convolution", "poet.padded_convolution_backward"

_NORM, _NORM_BACKWARD = "aten.native_batch_norm.default", "aten.native_batch_norm_backward.default"
_RELU, _RELU_BACKWARD = "aten.relu.default", "aten.threshold_backward.default"
_PAD = "aten.constant_pad_nd.default"
_CONVOLUTION, _CONVOLUTION_BACKWARD = "aten.convolution.default", "aten.convolution_backward.default"
_ROLLING: tuple[Argument, ...] = ((2, 2), (0, 0), (1, 1), False, (0, 0))
"""Stride, padding, dilation, transposed, output padding of a window that rolls over an edge."""


# --- updates inside gradients ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Fusion:
    """A gradient's op, its updates in order, and the op that they become."""

    made_by: Op
    updates: tuple[Op, ...]
    op: Op

    @property
    def merged(self) -> frozenset[str]:
        return frozenset(op.name for op in (self.made_by, *self.updates))


def with_updates_fused(graph: Graph, has_kernel: HasKernel, *, is_always: bool = False) -> Graph:
    """``graph`` with a gradient's op and its updates as one, where kernels have it and it saves memory.

    Args:
        graph: a training step.
        has_kernel: of the library that will run it.
        is_always: also where it needs more.
    """
    taken: dict[str, _Fusion] = {}  # by the ops that it merges
    index = _Updates(graph)
    for parameter in graph.parameters:
        found = index.fusion(parameter)
        if found is None or found.merged & taken.keys():
            continue
        assert found.op.strip is not None
        if has_kernel(found.op.strip, graph) and (is_always or index.saves(found)):
            taken |= dict.fromkeys(found.merged, found)
    if not taken:
        return graph
    fusions = {id(item): item for item in taken.values()}.values()
    return rewritten(
        graph,
        (
            Rewrite(
                {**dict.fromkeys(item.merged), item.updates[-1].name: item.op},
                gone=tuple(graph.writes(item.made_by)),
            )
            for item in fusions
        ),
    )


class _Updates(GraphUses):
    """Gradients with the updates that read them."""

    def fusion(self, parameter: Parameter) -> _Fusion | None:
        """What the gradient of ``parameter`` and its updates become; ``None``: something else needs it."""
        if parameter.gradient is None:
            return None
        made_by = self.maker_of(parameter.gradient)
        if made_by is None or not is_pure(made_by):
            return None
        written = self.graph.writes(made_by)
        updates = {op.name: op for name in written for op in self.readers.get(name, ())}
        ordered = tuple(sorted(updates.values(), key=lambda op: self.places[op.name]))
        if self.kept.intersection(written) or len(ordered) != len(written):
            return None
        if any(self._is_part(name, written) for op in ordered for name in op.call.refs()):
            return None  # kernels use all of what they make
        if any(op.call.target not in UPDATES or op.strip is not None for op in ordered):
            return None
        return (
            _Fusion(made_by, ordered, self._as_one(made_by, ordered))
            if self._moves(made_by, ordered)
            else None
        )

    def _is_part(self, value: str, buffers: Sequence[str]) -> bool:
        """Whether ``value`` is some elements of one of ``buffers``, as rows of a gradient are."""
        buffer, type_ = self.graph.buffer_of(value), self.types[value]
        return buffer in buffers and type_.elements * ITEM_BYTES[type_.dtype] < self.sizes_bytes[buffer]

    def _moves(self, made_by: Op, updates: tuple[Op, ...]) -> bool:
        """Whether all of them may run where the last one does."""
        merged = {made_by.name, *(op.name for op in updates)}
        read = set(self.graph.reads(made_by.call))
        changed_late = set[str]()  # by updates that have had their turn
        for op in self.graph.ops[self.places[made_by.name] : self.places[updates[-1].name]]:
            touched = {*self.graph.reads(op.call), *op.updates}
            if op.name not in merged and (read & set(op.updates) or changed_late & touched):
                return False
            if op.name in merged:
                changed_late |= set(op.updates)
        written = {buffer for op in updates for buffer in op.updates}
        return not read & written

    def _as_one(self, made_by: Op, updates: tuple[Op, ...]) -> Op:
        mentioned = {name for op in (made_by, *updates) for name in (*op.call.refs(), *op.outputs)}
        buffers = set(self.graph.writes(made_by))
        inner = tuple(
            value for value in self.graph.values if value.buffer in buffers and value.name in mentioned
        )
        links = (Link(made_by.call, made_by.outputs, ()), *(Link(op.call, (), ()) for op in updates))
        strip = Strip(links, inner, 1, 1)
        return replace(
            updates[-1],
            call=strip.call,
            outputs=(),
            updates=tuple(dict.fromkeys(buffer for op in updates for buffer in op.updates)),
            repeatable=False,
            strip=strip,
        )

    def _bytes(self, buffers: Iterable[str]) -> int:
        return sum(self.sizes_bytes[name] for name in set(buffers))

    def saves(self, found: _Fusion) -> bool:
        """Whether the largest need of the ops on the way is smaller as one op.

        An op that reads the old parameter (the way back to the layer's input) comes before its update: its
        result is there while the one op runs, but the gradient is there while *it* runs if they are separate.
        """
        graph = self.graph
        gradient = set(graph.writes(found.made_by))
        changed = {buffer for op in found.updates for buffer in op.updates}
        start, end = self.places[found.made_by.name], self.places[found.updates[-1].name]
        between = [op for op in graph.ops[start + 1 : end] if changed.intersection(graph.reads(op.call))]
        beside = [op for op in between if op not in found.updates]
        made = {buffer for op in beside for buffer in graph.writes(op)}
        read = set(graph.reads(found.made_by.call))
        apart = [self._bytes(read | gradient), self._bytes(gradient | changed | made)]
        apart += [self._bytes(gradient | {*graph.reads(op.call), *graph.writes(op)}) for op in beside]
        return self._bytes(read | changed | made) <= max(apart)


# --- batch norm with its rectifier -----------------------------------------------------------------


def with_norms_and_relus(graph: Graph) -> Graph:
    """``graph`` with each batch norm in training whose output only a rectifier reads as one op with it.

    Ways back become one where all of them can; elsewhere both ops stay as they are.
    """
    uses = _Norms(graph)
    made: dict[str, Op] = {}  # by the name of the op that it stands in the place of
    gone: set[str] = set()
    for op in graph.ops:
        relu = uses.only_reader(op.outputs[0]) if _is_norm(op) else None
        if relu is None or relu.call.target != _RELU or not uses.is_alike(op.outputs[0], relu.outputs[0]):
            continue
        back = uses.way_back(op, relu)
        if back is None:
            continue
        made[op.name] = _norm_relu(op, relu)
        gone |= {relu.name, *(gate.name for gate, _ in back)}
        made.update((norm.name, _norm_relu_backward(op, gate, norm)) for gate, norm in back)
    if not made:
        return graph
    dropped = {graph.buffer_of(str(op.outputs[0])) for op in graph.ops if op.name in gone}
    dropped |= {graph.buffer_of(str(op.outputs[0])) for op in graph.ops if op.name in made and _is_norm(op)}
    dropped -= {graph.buffer_of(name) for op in made.values() for name in op.outputs if name is not None}
    return rewritten(graph, [Rewrite({**dict.fromkeys(gone), **made}, gone=tuple(dropped))])


def _is_norm(op: Op) -> bool:
    is_norm = op.call.target == _NORM and op.strip is None and op.repeatable and not op.call.kwargs
    return is_norm and op.call.args[5] is True and None not in op.outputs


def _norm_relu(norm: Op, relu: Op) -> Op:
    """Both in the norm's place."""
    again = None if norm.repeat_call is None else replace(norm.repeat_call, target=NORM_RELU)
    call = replace(norm.call, target=NORM_RELU)
    return replace(norm, call=call, outputs=(relu.outputs[0], *norm.outputs[1:]), repeat_call=again)


def _norm_relu_backward(forward: Op, gate: Op, norm: Op) -> Op:
    """The way back through both in the place of that through the norm."""
    source, weight, bias = forward.call.args[:3]
    saved = norm.call.args[5:7]
    call = Call(
        NORM_RELU_BACKWARD, (gate.call.args[0], source, weight, bias, *saved, True, norm.call.args[8])
    )
    return replace(norm, call=call)


class _Norms(GraphUses):
    """Batch norms with the rectifiers behind them."""

    def only_reader(self, value: str | None) -> Op | None:
        """The op that alone reads the buffer of ``value``, which nobody else is given."""
        found = self.readers_of(value)
        is_free = self.graph.buffer_of(str(value)) not in self.kept
        return found[0] if is_free and len(found) == 1 and found[0].strip is None else None

    def is_alike(self, one: str | None, other: str | None) -> bool:
        """Whether both values have one type."""
        return self.types[str(one)] == self.types[str(other)]

    def way_back(self, norm: Op, relu: Op) -> list[tuple[Op, Op]] | None:
        """The pairs of ops that lead back through both; ``None``: they are not all pairs."""
        gates = [op for op in self.readers_of(relu.outputs[0]) if op.call.target == _RELU_BACKWARD]
        found = [(gate, self.only_reader(gate.outputs[0])) for gate in gates]
        result = str(relu.outputs[0])
        pairs = [
            (gate, back)
            for gate, back in found
            if back is not None and self._is_pair(norm, result, gate, back)
        ]
        backs = [op for op in self.readers_of(norm.outputs[1]) if op.call.target == _NORM_BACKWARD]
        whole = len(pairs) == len(gates) and {op.name for op in backs} == {back.name for _, back in pairs}
        return pairs if whole else None

    def _is_pair(self, norm: Op, result: str, gate: Op, back: Op) -> bool:
        """Whether ``back`` is the way back through ``norm`` of what ``gate`` lets through."""
        args, given = back.call.args, gate.call.args[0]
        is_alike = isinstance(given, Ref) and self.is_alike(given.value, gate.outputs[0])  # layout included
        is_plain = back.call.target == _NORM_BACKWARD and gate.strip is None and gate.call.args[2] == 0
        is_plain = is_plain and gate.call.args[1] == Ref(result)
        is_whole = len(back.outputs) == 3 and all(
            (name is None) is (argument is None)
            for name, argument in zip(back.outputs[1:], norm.call.args[1:3], strict=True)
        )
        return (
            is_plain
            and is_alike
            and is_whole
            and back.outputs[0] is not None
            and args[0] == Ref(str(gate.outputs[0]))
            and args[1:3] == norm.call.args[:2]
            and args[5:8] == (Ref(str(norm.outputs[1])), Ref(str(norm.outputs[2])), True)
            and args[8] == norm.call.args[7]
            and not self._changes(norm.call.args[2], back)
            and not self._changes(given, back, since=gate)
        )

    def _changes(self, argument: object, before: Op, *, since: Op | None = None) -> bool:
        """Whether an op changes ``argument`` before ``before`` has read it."""
        if not isinstance(argument, Ref):
            return False
        first = 0 if since is None else self.places[since.name]
        return self.is_changed(self.graph.buffer_of(argument.value), first, self.places[before.name])


# --- padding inside convolutions -------------------------------------------------------------------


def with_padded_windows(graph: Graph) -> Graph:
    """``graph`` with paddings that only convolutions read, and cuts of their gradients, as part of them."""
    uses = _Windows(graph)
    made: dict[str, Op] = {}  # by the name of the op that it stands in the place of
    gone: list[Op] = []
    for op in graph.ops:
        found = uses.windows(op) or uses.cut(op)
        if found:
            gone.append(op)
            made.update((item.name, item) for item in found)
    if not made:
        return graph
    kept = {graph.buffer_of(name) for op in made.values() for name in op.outputs if name is not None}
    dropped = {graph.buffer_of(str(op.outputs[0])) for op in gone}
    dropped |= {uses.source(op) for op in gone if uses.is_cut(op)}
    ops: dict[str, Op | None] = {**dict.fromkeys(op.name for op in gone), **made}
    return rewritten(graph, [Rewrite(ops, gone=tuple(dropped - kept))])


class _Windows(GraphUses):
    """Paddings with the convolutions that read them."""

    def source(self, op: Op) -> str:
        """The buffer that a padding or a cut reads."""
        source = op.call.args[0]
        return self.graph.buffer_of(source.value) if isinstance(source, Ref) else ""

    def is_cut(self, op: Op) -> bool:
        """Whether ``op`` cuts off what a padding added."""
        return self._pads(op, -1) is not None

    def windows(self, op: Op) -> list[Op]:
        """The convolutions and ways back to weights that are to pad for themselves what ``op`` pads."""
        pads = self._pads(op, 1)
        padded = op.outputs[0] if pads is not None else None
        if pads is None or padded is None or self.graph.buffer_of(padded) in self.kept:
            return []
        readers = self.readers_of(padded)
        found = [self._padded(reader, padded, op.call.args[0], pads) for reader in readers]
        start, source = self.places[op.name], self.source(op)
        is_changed = any(self.is_changed(source, start, self.places[reader.name]) for reader in readers)
        return [] if None in found or is_changed else [item for item in found if item is not None]

    def _padded(self, op: Op, padded: str, source: Argument, pads: tuple[int, ...]) -> Op | None:
        """``op`` on what was padded, where it can pad for itself."""
        place = {_CONVOLUTION: 0, _CONVOLUTION_BACKWARD: 1}.get(op.call.target)
        if place is None or list(op.call.refs()).count(padded) != 1 or op.call.args[place] != Ref(padded):
            return None
        mask = op.call.args[10] if place else None
        if not self._rolls(op) or (isinstance(mask, tuple) and mask[0]):
            return None
        return _with_pads(op, place, source, pads)

    def cut(self, op: Op) -> list[Op]:
        """The way back to a padded image that ``op`` cuts, as one that makes no more than what is left."""
        pads = self._pads(op, -1)
        if pads is None:
            return []
        maker, source, left = self.makers.get(self.source(op)), op.call.args[0], op.outputs[0]
        if maker is None or left is None or not isinstance(source, Ref):
            return []
        only = self.readers.get(self.source(op), [])
        is_whole = maker.call.target == _CONVOLUTION_BACKWARD and maker.call.args[10] == (True, False, False)
        if not is_whole or maker.outputs[0] != source.value or only != [op] or not self._rolls(maker):
            return []
        given = maker.call.args[1]
        if not isinstance(given, Blank) or self.source(op) in self.kept:
            return []
        back = _with_pads(maker, 1, Blank(self.types[left]), pads)
        return [replace(back, outputs=(left, *back.outputs[1:]))]

    def _pads(self, op: Op, sign: int) -> tuple[int, ...] | None:
        """Zeros on the left, right, top and bottom of dense images, or with ``sign`` -1 as many cut off."""
        args = op.call.args
        is_plain = op.call.target == _PAD and op.strip is None and op.repeatable and not op.call.kwargs
        if not is_plain or len(args) < 2 or not isinstance(args[0], Ref) or (len(args) > 2 and args[2] != 0):
            return None
        pads = args[1]
        types = (self.types[args[0].value], self.types[str(op.outputs[0])])
        if not isinstance(pads, tuple) or len(pads) != 4 or not all(_is_dense(kind) for kind in types):
            return None
        numbers = tuple(sign * pad for pad in pads if isinstance(pad, int))
        is_behind = len(numbers) == 4 and numbers[0] == numbers[2] == 0 and {*numbers} == {0, 1}
        return numbers if is_behind else None

    def _rolls(self, op: Op) -> bool:
        """Whether a convolution is of windows of 3 x 3 that move by two."""
        first = 3 if op.call.target == _CONVOLUTION else 4
        weight = op.call.args[first - 2]
        kind = self.types[weight.value] if isinstance(weight, Ref) else None
        kind = weight.type if isinstance(weight, Blank) else kind
        is_rolling = op.call.args[first : first + 5] == _ROLLING
        is_plain = op.strip is None and op.repeat_call is None and not op.call.kwargs
        return is_plain and is_rolling and kind is not None and kind.shape[2:] == (3, 3)


def _with_pads(op: Op, place: int, source: Argument, pads: tuple[int, ...]) -> Op:
    target = PADDED_BACKWARD if op.call.target == _CONVOLUTION_BACKWARD else PADDED
    args = (*op.call.args[:place], source, *op.call.args[place + 1 :], pads)
    return replace(op, call=Call(target, args))


def _is_dense(kind: TensorType) -> bool:
    return len(kind.shape) == 4 and kind.strides == tuple(math.prod(kind.shape[d + 1 :]) for d in range(4))


def with_packed_operands(graph: Graph, has_kernel: HasKernel) -> Graph:
    """``graph`` with ops that read a packed weight themselves, where a library's kernels can.

    What makes float32 of a weight becomes part of a strip of one block with each op that reads it, so that it
    exists as a whole nowhere; where an op cannot be one, it stays, and is a tensor for that op.
    """
    uses, ops, gone = GraphUses(graph), dict[str, Op | None](), list[str]()
    for op in graph.ops:
        (buffer,) = graph.writes(op) if op.call.target == DEQUANTISE else (None,)
        readers = uses.readers.get(buffer, []) if buffer is not None else []
        free = (_with_weight(op, each, uses) for each in readers if is_pure(each) and each.name not in ops)
        made = {each.name: each for each in free if each.strip and has_kernel(each.strip, graph)}
        ops |= made
        if buffer is not None and buffer not in uses.kept and len(made) == len(readers):
            ops[op.name] = None
            gone.append(buffer)
    return rewritten(graph, [Rewrite(ops, gone=tuple(gone))])


def _with_weight(made_by: Op, reader: Op, uses: GraphUses) -> Op:
    """``reader`` with the op that makes float32 of one of its operands, as one."""
    whole = str(made_by.outputs[0])
    own = [name for name in reader.call.refs() if uses.values[name].buffer == uses.values[whole].buffer]
    names = {name: f"{name}.in.{reader.name}" for name in dict.fromkeys((whole, *own))}
    args = tuple(
        Ref(names.get(item.value, item.value)) if isinstance(item, Ref) else item for item in reader.call.args
    )
    links = (
        Link(made_by.call, (names[whole],), ()),
        Link(replace(reader.call, args=args), reader.outputs, ()),
    )
    strip = Strip(links, tuple(Value(names[name], names[whole], uses.types[name]) for name in names), 1, 1)
    return replace(reader, call=strip.call, strip=strip)
