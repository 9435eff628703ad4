"""A frozen base in fewer bits: parameters become packed rows, of which ops make float32 where it is used.

What reads such a parameter reads what `poet.runtime.kernels.dequantised` makes of it, an ordinary tensor for
a plan: it may be kept, or made again of packed bytes that are kept or fetched. A look-up reads packed rows,
and float32 is made of those alone. The last layer with its loss in strips is given the packed rows. The bits
are those of plain PyTorch with the dequantised weights.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from poet.errors import ModelError
from poet.ir.calls import contiguous
from poet.ir.graph import Argument, Buffer, Call, Graph, Op, Parameter, Ref, Role, Value
from poet.ir.named import named_parameters
from poet.ir.packed import BLOCK, DEQUANTISE, BaseSpec, Packed
from poet.passes.rewrite import GraphUses
from poet.runtime.kernels.dequantised import as_used, packed_by_library

_LOOK_UPS = ("aten.embedding.default", "poet.look_up")
_WEIGHTS = {"poet.logits_loss": (1, 7), "poet.logits_hidden_gradient": (2, 9)}
"""Operators that take a packed weight, and among the arguments its place and that of its format."""

_ROWS_AT_ONCE = 1 << 20
"""Elements that are packed together."""


def packable(graph: Graph, spec: BaseSpec) -> dict[str, Packed]:
    """How the frozen parameters of ``graph`` are packed, by the module's names.

    Raises:
        ModelError: none can be.
    """
    types = {value.name: value.type for value in graph.values}
    kept = {graph.buffer_of(name) for name in (*graph.predictions, graph.loss)}
    found = {}
    for item in graph.parameters:
        kind = types[item.value]
        is_plain = kind == contiguous("float32", kind.shape) and graph.buffer_of(item.value) not in kept
        if item.gradient is None and is_plain and (packed := spec.packed(item.name, kind.shape)):
            found[item.name] = packed
    if not found:
        raise ModelError(
            f"base {spec.format}: no frozen float32 weight has rows that can be packed so (q4_0, q8_0: of a "
            f"multiple of {BLOCK} elements); say what is trained (--train, train=), or leave the base out"
        )
    return found


def with_base(graph: Graph, packed: Mapping[str, Packed], *, by_row: bool = True) -> Graph:
    """``graph`` with these parameters packed, by the module's names, those in parts part by part.

    Look-ups read packed rows only ``by_row``.
    """
    return _Packing(graph, packed, by_row=by_row).graph() if packed else graph


def base_of(graph: Graph) -> dict[str, Packed]:
    """How parameters of ``graph`` are packed, by the module's names."""
    return {item.name: item.packed for item in named_parameters(graph) if item.packed is not None}


class _Packing:
    """A graph while some of its parameters are packed."""

    def __init__(self, graph: Graph, packed: Mapping[str, Packed], *, by_row: bool) -> None:
        self._graph, self._packed, self._uses = graph, packed, GraphUses(graph)
        self._look_ups = _LOOK_UPS if by_row else ()
        part_of = {part: whole.name for whole in graph.wholes for part in whole.parts}
        self._how: dict[str, Packed] = {}  # by the value of each parameter, or part of one
        for item in graph.parameters:
            if how := packed.get(part_of.get(item.name, item.name)):
                self._how[item.value] = how.with_rows(self._uses.types[item.value].shape[0])
        self._value_of = {graph.buffer_of(value): value for value in self._how}
        self._made: set[str] = set()  # values that an op gives from now on
        self._values: list[Value] = []
        self._gone: set[str] = set()

    def graph(self) -> Graph:
        graph, wholes = self._graph, []
        for value, how in self._how.items():
            self._new(_bytes_of(value, how), how.packed_shape)
        ops = [each for op in graph.ops for each in self._forms(op)]
        for whole in graph.wholes:
            shape = self._packed[whole.name].packed_shape if whole.name in self._packed else None
            wholes.append(whole if shape is None else replace(whole, type=contiguous("uint8", shape)))
        gone = self._gone | {buffer for buffer, value in self._value_of.items() if value not in self._made}
        parameters = {value.buffer for value in self._values[: len(self._how)]}
        buffers = [
            replace(item, role=Role.SAVED) if item.name in self._value_of else item
            for item in graph.buffers
            if item.name not in gone
        ]
        buffers += [
            Buffer(
                item.name, item.type.extent_bytes, Role.PARAMETER if item.name in parameters else Role.SAVED
            )
            for item in self._values
        ]
        return replace(
            graph,
            buffers=tuple(buffers),
            values=(*(item for item in graph.values if item.buffer not in gone), *self._values),
            ops=tuple(ops),
            parameters=tuple(map(self._parameter, graph.parameters)),
            states=tuple((name, self._renamed(value)) for name, value in graph.states),
            constants=tuple((name, self._renamed(value)) for name, value in graph.constants),
            wholes=tuple(wholes),
        )

    def _new(self, name: str, shape: tuple[int, ...]) -> None:
        self._values.append(Value(name, name, contiguous("uint8", shape)))

    def _renamed(self, value: str) -> str:
        return _bytes_of(value, self._how[value]) if value in self._how else value

    def _parameter(self, item: Parameter) -> Parameter:
        how = self._how.get(item.value)
        return item if how is None else replace(item, value=_bytes_of(item.value, how), packed=how)

    def _forms(self, op: Op) -> Iterable[Op]:
        """``op`` as it reads packed parameters, and before it what makes float32 of those it reads whole."""
        again = self._graph.reads(op.recall) if op.recall is not None else ()
        read = [
            self._value_of[name] for name in {*self._graph.reads(op.call), *again} & self._value_of.keys()
        ]
        target, args = op.call.target, op.call.args
        if read and op.strip is None and not op.call.kwargs:
            place, of_format = (0, -1) if target in self._look_ups else _WEIGHTS.get(target, (-1, -1))
            if place >= 0 and args[place] == Ref(read[0]):
                how = self._how[read[0]]
                given = (*args[:place], Ref(_bytes_of(read[0], how)), *args[place + 1 :])
                if target in self._look_ups:
                    return self._looked_up(op, given, how)
                given = (*given[:of_format], how.format, *given[of_format + 1 :])
                return [replace(op, call=Call(target, given))]
        made = sorted({*read} - self._made)
        self._made.update(made)
        return [
            *(_dequantised(value, _bytes_of(value, self._how[value]), self._how[value]) for value in made),
            op,
        ]

    def _looked_up(self, op: Op, given: tuple[Argument, ...], how: Packed) -> list[Op]:
        """A look-up of packed rows, and what makes float32 of them unless a look-up goes on from there."""
        (result,) = op.outputs
        assert result is not None
        numbers, found = given[1], given[4] if op.call.target == "poet.look_up" else None
        assert isinstance(numbers, Ref)
        if isinstance(found, Ref):
            given = (*given[:4], Ref(_bytes_of(found.value, how)))
        rows = _bytes_of(result, how)
        self._new(rows, (*self._uses.types[numbers.value].shape, how.packed_shape[1]))
        looked_up = replace(op, call=Call(op.call.target, given), outputs=(rows,))
        if all(Ref(result) in each.call.args[4:] for each in self._uses.readers_of(result)):
            self._gone.add(self._graph.buffer_of(result))
            return [looked_up]
        shape = self._uses.types[result].shape
        return [looked_up, _dequantised(result, rows, replace(how, shape=(how.shape[0], *shape[-1:])), shape)]


def _bytes_of(value: str, how: Packed) -> str:
    return f"{value}.{how.format}"


def _dequantised(value: str, rows: str, how: Packed, shape: tuple[int, ...] | None = None) -> Op:
    return Op(f"{value}.dequantised", Call(DEQUANTISE, (Ref(rows), how.format, shape or how.shape)), (value,))


# --- packing ----------------------------------------------------------------------------------


Weights = Mapping[str, tuple[Tensor, Packed | None]]
"""By the module's names of parameters, their contents: float32, or packed rows and how to read them."""


def with_weights(graph: Graph, tensors: Mapping[str, Tensor], weights: Weights) -> dict[str, Tensor]:
    """``tensors``, by value, with those of ``weights`` as float32 in their places."""
    made = dict(tensors)
    for name, value in (*((item.name, item.value) for item in graph.parameters), *graph.states):
        if name in weights:
            made[value] = torch.empty_like(made[value]).copy_(as_used(*weights[name]))
    return made


def with_packed_tensors(
    before: Graph, after: Graph, tensors: Mapping[str, Tensor], weights: Weights
) -> dict[str, Tensor]:
    """The tensors of ``after``, which is ``before`` with a packed base.

    Args:
        before: the graph that it was.
        after: with the same parameters.
        tensors: of ``before``, by value.
        weights: where some of them are packed as ``after`` has them, so that they are not packed again.
    """
    made = dict(tensors)
    wholes = {part: named for named in named_parameters(after) for part in named.parts}
    for plain, item in zip(before.parameters, after.parameters, strict=True):
        if item.packed is None:
            continue
        tensor, named = made.pop(plain.value), wholes[item.name]
        whole, how = weights.get(named.name, (tensor, None))
        if how != named.packed:
            made[item.value] = packed_rows(tensor, item.packed)
        else:
            number = named.parts.index(item.name)
            start, stop = named.content.bounds[number] if named.content.bounds else (0, len(whole))
            made[item.value] = whole[start:stop]
    return made


def packed_rows(weight: Tensor, how: Packed) -> Tensor:
    """``weight`` in fewer bits: uint8 of ``how.packed_shape``.

    ``q4_0`` and ``q8_0`` as the ``gguf`` package makes them: the scale is the number of largest size over -8,
    or the largest size over 127. ``int8``: the largest size of the row over 127, rounded to even.
    The compiled kernel and torch give the same bytes.
    """
    rows, row_bytes = how.packed_shape
    made = torch.empty(rows, row_bytes, dtype=torch.uint8)
    step = max(1, _ROWS_AT_ONCE // how.columns)
    given = weight.detach().reshape(rows, how.columns)
    if packed_by_library(given, how.format, made):
        return made
    for start in range(0, rows, step):
        part = given[start : start + step]
        numbers = part if how.format == "int8" else part.reshape(-1, BLOCK)
        made[start : start + step] = _packed(numbers, how.format).view(len(part), row_bytes)
    return made


def _packed(numbers: Tensor, format_: str) -> Tensor:
    """Rows that have a scale each, as bytes."""
    sizes = numbers.abs()
    largest, places = sizes.max(1, keepdim=True)
    scale = numbers.gather(1, places) / -8 if format_ == "q4_0" else largest / 127
    inverse = torch.where(scale == 0, 0.0, 1 / scale)
    if format_ == "q4_0":
        whole = (numbers.double() * inverse.double()).add_(8.5).trunc_().clamp_(0, 15).to(torch.uint8)
        low, high = whole.chunk(2, 1)
        content = low | high << 4
    else:
        scaled = numbers * inverse
        size = scaled.abs()
        down = size.floor()
        away = torch.copysign(down + (2 * (size - down)).floor(), scaled)
        whole = (away if format_ == "q8_0" else scaled.round()).clamp_(-127, 127)
        content = whole.to(torch.int8).view(torch.uint8)
    scales = scale.to(torch.float32 if format_ == "int8" else torch.float16).view(torch.uint8)
    return torch.cat([scales, content], 1)
