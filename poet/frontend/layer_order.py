"""All micro-batches of a step in one graph, layer by layer: a layer runs for all of them before the next one.

A parameter that is at home in storage then comes into RAM for a layer's ops of every micro-batch at once, in
the forward pass and in the backward pass, and not once per micro-batch. What backward reads is kept for all.

The bits are those of a backward pass per micro-batch, one after the other: the calls are the same on the same
values, a parameter's gradients are added in the order of the micro-batches, and whatever has an effect
(statistics of batch norm, random numbers) happens in the order in which it does there. So a model that draws
random numbers while it runs forward goes through its forward pass micro-batch by micro-batch from the first
draw on, and layer by layer in the backward pass alone.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from poet.errors import ModelError
from poet.frontend.assemble import StepNames
from poet.frontend.lower import Lowered
from poet.graph import ITEM_BYTES, Argument, Call, Op, Ref, TensorType, Value


def in_layer_order(lowered: Lowered, names: StepNames, count: int) -> tuple[Lowered, StepNames]:
    """The step of ``count`` micro-batches, of which ``lowered`` is one.

    Its inputs hold all micro-batches, one after the other in the first dimension, and so do its predictions.
    Its loss is the mean of theirs.

    Raises:
        ModelError: an input is not made of samples one after the other, or the model writes a tensor that
            lives across steps in another layout than it has.
    """
    made = _LayerOrder(lowered, names, count)
    return made.lowered(), made.names()


@dataclass(frozen=True, slots=True)
class _Placed:
    """An op with its place in the wanted order: layer, micro-batch, and place in its own list."""

    place: tuple[int, int, float]
    op: Op


class _LayerOrder:
    def __init__(self, lowered: Lowered, names: StepNames, count: int) -> None:
        self._one, self._names, self._count = lowered, names, count
        self._lasting = {*names.parameters, *names.states, *names.constants}
        self._written = {name: new for name, new in lowered.written.items() if name not in names.inputs}
        self._layers = _layers(lowered.ops, lowered.values, set(names.parameters))
        self._makers = {
            lowered.values[name].buffer: number
            for number, op in enumerate(lowered.ops)
            for name in op.outputs
            if name is not None
        }
        self.values: dict[str, Value] = {}
        self.size_bytes: dict[str, int] = {}
        self._placed: list[_Placed] = []
        for name, value in lowered.written.items():
            old, new = lowered.values[name], lowered.values[value]
            if name in self._written and (old.type, new.type.offset) != (new.type, 0):
                raise ModelError(
                    f"{name} is written in another layout than it has; train with micro-batches in the order "
                    "of pieces"
                )
        for piece in range(1, count + 1):
            self._add_piece(piece)
        self._loss = self._mean([self._of(piece, names.loss) for piece in range(1, count + 1)])
        self._predictions = tuple(self._joined(name, number) for number, name in enumerate(names.predictions))
        self._gradients = {
            parameter: None if gradient is None else self._sum(parameter, gradient)
            for parameter, gradient in names.gradients.items()
        }

    def lowered(self) -> Lowered:
        ops = _ordered(self._placed, self.values, self._lasting)
        written = {name: self._of(self._count, value) for name, value in self._written.items()}
        return Lowered(tuple(ops), self.values, self.size_bytes, written, ())

    def names(self) -> StepNames:
        return replace(self._names, loss=self._loss, predictions=self._predictions, gradients=self._gradients)

    # --- one micro-batch ----------------------------------------------------------------------

    def _of(self, piece: int, value: str) -> str:
        """What ``value`` of a micro-batch is called in that with the number ``piece``."""
        if value in self._lasting:
            if piece > 1 and value in self._written:
                return self._of(piece - 1, self._written[value])
            return value
        return f"{value}.piece{piece}"

    def _buffer(self, piece: int, buffer: str) -> str:
        if buffer in self._names.inputs or (buffer in self._lasting and not self._is_renewed(piece, buffer)):
            return buffer
        if buffer in self._lasting:
            return self.values[self._of(piece, buffer)].buffer
        return f"{buffer}.piece{piece}"

    def _is_renewed(self, piece: int, buffer: str) -> bool:
        """Whether the micro-batch before has left the new contents of ``buffer`` in another one."""
        return piece > 1 and buffer in self._written

    def _add_piece(self, piece: int) -> None:
        names = self._names
        for buffer, size_bytes in self._one.buffer_bytes.items():
            if buffer in self._lasting:
                self.size_bytes[buffer] = size_bytes
            elif buffer not in names.inputs:
                self.size_bytes[f"{buffer}.piece{piece}"] = size_bytes
        for name, value in self._one.values.items():
            if name in self._lasting:
                self.values[name] = value
            elif value.buffer in names.inputs:
                self._add_view_of_input(piece, name, value)
            else:
                called = f"{name}.piece{piece}"
                self.values[called] = Value(called, self._buffer(piece, value.buffer), value.type)
        for number, op in enumerate(self._one.ops):
            self._placed.append(_Placed((self._layers[number], piece, number), self._renamed(piece, op)))

    def _add_view_of_input(self, piece: int, name: str, value: Value) -> None:
        """Of an input that holds all micro-batches, the part that this one reads; first the whole."""
        own = self._one.values[value.buffer].type
        samples = own.shape[0] if own.shape else 0
        rows = own.elements // samples if samples else 0
        if not samples or own.offset or (samples > 1 and own.strides[0] != rows):
            raise ModelError(
                f"{value.buffer} is not made of samples one after the other; train with micro-batches in the "
                "order of pieces"
            )
        if piece == 1 and name == value.buffer:
            whole = replace(
                own, shape=(samples * self._count, *own.shape[1:]), strides=(rows, *own.strides[1:])
            )
            self.values[name] = Value(name, name, whole)
            self.size_bytes[name] = whole.elements * ITEM_BYTES[whole.dtype]
        type_ = replace(value.type, offset=value.type.offset + (piece - 1) * own.elements)
        self.values[f"{name}.piece{piece}"] = Value(f"{name}.piece{piece}", value.buffer, type_)

    def _renamed(self, piece: int, op: Op) -> Op:
        def argument(given: Argument) -> Argument:
            if isinstance(given, Ref):
                return Ref(self._of(piece, given.value))
            return tuple(map(argument, given)) if isinstance(given, tuple) else given

        def call(given: Call) -> Call:
            named = tuple((key, argument(item)) for key, item in given.kwargs)
            return Call(given.target, tuple(map(argument, given.args)), named)

        return replace(
            op,
            name=f"{op.name}.piece{piece}",
            call=call(op.call),
            outputs=tuple(None if name is None else f"{name}.piece{piece}" for name in op.outputs),
            updates=tuple(self._buffer(piece, name) for name in op.updates),
            repeat_call=None if op.repeat_call is None else call(op.repeat_call),
        )

    # --- all micro-batches --------------------------------------------------------------------

    def _place_of(self, value: str, piece: int) -> tuple[int, int, float]:
        """Right after the op that makes ``value`` of a micro-batch."""
        number = self._makers.get(self._one.values[value].buffer, 0)
        return (self._layers[number] if self._layers else 0, piece, number + 0.5)

    def _computed(self, name: str, call: Call, type_: TensorType, place: tuple[int, int, float]) -> str:
        self.values[name] = Value(name, name, type_)
        self.size_bytes[name] = type_.elements * ITEM_BYTES[type_.dtype]
        self._placed.append(_Placed(place, Op(name, call, (name,))))
        return name

    def _mean(self, losses: Sequence[str]) -> str:
        type_ = self.values[losses[0]].type
        place = self._place_of(self._names.loss, self._count)
        every = self._put_together("loss.pieces", self._names.loss)
        call = Call("aten.mean.default", (Ref(every),))
        return self._computed("loss.mean", call, TensorType(type_.dtype, (), ()), place)

    def _joined(self, value: str, number: int) -> str:
        return self._put_together(f"output{number}.pieces", value)

    def _put_together(self, called: str, value: str) -> str:
        """Of all micro-batches, one after the other in the first dimension; a scalar of each is a vector."""
        parts = [self._of(piece, value) for piece in range(1, self._count + 1)]
        type_ = self.values[parts[0]].type
        if not type_.shape:
            for number, part in enumerate(parts):
                parts[number] = f"{part}.row"
                own = self.values[part]
                row = TensorType(type_.dtype, (1,), (1,), own.type.offset)
                self.values[parts[number]] = Value(parts[number], own.buffer, row)
            type_ = TensorType(type_.dtype, (1,), (1,))
        call = Call("aten.cat.default", (tuple(map(Ref, parts)),))
        whole = torch.cat([_like(type_)] * self._count)
        return self._computed(called, call, _type_of(whole, type_), self._place_of(value, self._count))

    def _sum(self, parameter: str, gradient: str) -> str:
        """What a backward pass per micro-batch leaves in ``.grad``."""
        total = self._of(1, gradient)
        for piece in range(2, self._count + 1):
            call = Call("aten.add.Tensor", (Ref(total), Ref(self._of(piece, gradient))))
            summand, other = self.values[total].type, self.values[self._of(piece, gradient)].type
            type_ = _type_of(_like(summand) + _like(other), summand)
            place = self._place_of(gradient, piece)
            total = self._computed(f"{parameter}.grad_sum.piece{piece}", call, type_, place)
        return total


def _like(type_: TensorType) -> Tensor:
    return torch.empty_strided(type_.shape, type_.strides, device="meta")


def _type_of(made: Tensor, of: TensorType) -> TensorType:
    """The type of what a kernel makes, with the elements ``of`` another one."""
    return TensorType(of.dtype, tuple(made.shape), tuple(made.stride()))


def _layers(ops: Sequence[Op], values: dict[str, Value], parameters: set[str]) -> list[int]:
    """The number of the layer that each op is of: one begins where an op reads parameters not read in it."""
    layers, layer, read = [], 0, set[str]()
    for op in ops:
        own = {values[name].buffer for name in op.call.refs()} & parameters
        if own and read and not own <= read:
            layer, read = layer + 1, set()
        read |= own
        layers.append(layer)
    return layers


def _ordered(placed: Iterable[_Placed], values: dict[str, Value], lasting: set[str]) -> list[Op]:
    """The ops by their places, each after what it reads; effects in the order of micro-batches."""
    sequential = sorted(placed, key=lambda item: (item.place[1], item.place[2], item.place[0]))
    waits = _waits([item.op for item in sequential], values)
    waiting = [len(before) for before in waits]
    followers: dict[int, list[int]] = {}
    for number, before in enumerate(waits):
        for other in before:
            followers.setdefault(other, []).append(number)
    ready = [(item.place, number) for number, item in enumerate(sequential) if not waiting[number]]
    heapq.heapify(ready)
    ordered = []
    while ready:
        _, number = heapq.heappop(ready)
        ordered.append(sequential[number].op)
        for follower in followers.get(number, ()):
            waiting[follower] -= 1
            if not waiting[follower]:
                heapq.heappush(ready, (sequential[follower].place, follower))
    return ordered


def _waits(ops: Sequence[Op], values: dict[str, Value]) -> list[set[int]]:
    """Per op, those of ``ops`` that it must run after: what made, read or wrote the same bytes before."""
    made: dict[str, int] = {}  # by buffer, the op that wrote it last
    readers: dict[str, list[int]] = {}  # since then
    drawn: int | None = None
    waits: list[set[int]] = []
    for number, op in enumerate(ops):
        before: set[int] = set()
        again = op.recall.refs() if op.recall is not None else ()
        for buffer in {values[name].buffer for name in (*op.call.refs(), *again)}:
            if buffer in made:
                before.add(made[buffer])
            readers.setdefault(buffer, []).append(number)
        for buffer in op.updates:
            before |= set(readers.get(buffer, ())) - {number}
            made[buffer], readers[buffer] = number, []
        made |= {values[name].buffer: number for name in op.outputs if name is not None}
        if op.random:
            before |= set() if drawn is None else {drawn}
            drawn = number
        waits.append(before)
    return waits
