"""From a trace of ATen calls to the ops of our graph.

The trace (an fx graph over fake tensors) may write tensors in place, and views share memory. Here
every write becomes a new buffer and every view a value on its base's buffer. The bookkeeping is one
table: which buffer holds the present contents of each of the trace's storages. A read of a node is
resolved through it, so that a view taken before a write sees what was written, as it does in eager.

What is special about an operator is a row of a table in `poet.frontend.rules`.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, fx
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils import _pytree as pytree

from poet.errors import ModelError, UnsupportedOperator
from poet.frontend import rules
from poet.frontend.exporting import line_in
from poet.frontend.layouts import dense_like, is_dense, layout_arguments, tensor_type
from poet.graph import ITEM_BYTES, Argument, Blank, Call, Op, Ref, Symbol, TensorType, Value
from poet.operators import ATEN, RANDOM

_WAY_OUT = "write that line with other torch operators, or export the model and plan the ONNX file"


@dataclass(frozen=True, slots=True)
class Lowered:
    """What lowering gives: straight-line ops, with their values and buffers.

    Attributes:
        ops: in the trace's order, not yet pruned.
        values: by name.
        buffer_bytes: size of each buffer.
        written: for each given name whose storage the trace wrote, the value of its new contents.
        outputs: names of the trace's outputs' values, ``None`` for what is no tensor.
    """

    ops: tuple[Op, ...]
    values: dict[str, Value]
    buffer_bytes: dict[str, int]
    written: dict[str, str]
    outputs: tuple[str | None, ...]


def lower(trace: fx.GraphModule, given: Sequence[str], constants: Mapping[str, str]) -> Lowered:
    """Lower a traced step.

    Args:
        trace: what `make_fx` made; its nodes carry fake tensors.
        given: a name for each placeholder, which becomes the name of its value and buffer.
        constants: name of each tensor that the trace holds (its attribute) -> name of its value.

    Raises:
        UnsupportedOperator: the trace calls an operator that has no kernel row.
        ModelError: a tensor's element type, layout or way of being written is not supported.
    """
    lowering = Lowering(frozenset(constants.values()))
    names = iter(given)
    for node in trace.graph.nodes:
        if node.op == "placeholder":
            lowering.source(node, next(names))
        elif node.op == "get_attr":
            lowering.source(node, constants[str(node.target)])
        elif node.op == "call_function":
            try:
                lowering.call(node)
            except UnsupportedOperator as error:
                raise UnsupportedOperator(f"{error}{line_in(node.stack_trace)}; {_WAY_OUT}") from None
        else:
            return lowering.finish(node.args[0], given)
    raise ModelError("the trace has no output")


@dataclass(frozen=True, slots=True)
class Place:
    """Where a node's tensor lies: a storage of the trace, and how it is viewed."""

    storage: int
    type: TensorType


class Lowering:
    """The state of lowering one trace; what rules of single operators work on."""

    def __init__(self, constants: frozenset[str]) -> None:
        self.ops: list[Op] = []
        self.values: dict[str, Value] = {}
        self.size_bytes: dict[str, int] = {}
        self._constants = constants  # names of buffers
        self._known: dict[fx.Node, object] = {}  # a place, a number, or a tuple of these
        self._home: dict[int, str] = {}  # storage -> the buffer with its present contents
        self._names: dict[tuple[str, TensorType], str] = {}  # values by buffer and type
        self._given: dict[str, Place] = {}
        self._constant_storages: set[int] = set()

    # --- sources and results ------------------------------------------------------------------

    def source(self, node: fx.Node, name: str) -> None:
        """A tensor that is there before the step."""
        tensor = tensors_of(node)[0]
        place = place_of(tensor, name)
        if name not in self.size_bytes:
            self.add_value(name, name, place.type, tensor.untyped_storage().nbytes())
            self._given[name] = place
        self._home[place.storage] = name
        self._known[node] = place
        if node.op == "get_attr":
            self._constant_storages.add(place.storage)

    def finish(self, outputs: object, given: Iterable[str]) -> Lowered:
        """What was lowered, with the values of the trace's ``outputs``."""
        written = {
            name: self.read(self._given[name])
            for name in given
            if self._home[self._given[name].storage] != name
        }
        results = tuple(
            self.read(self.place(item)) if isinstance(item, fx.Node) else None
            for item in pytree.tree_leaves(outputs)
        )
        return Lowered(tuple(self.ops), self.values, self.size_bytes, written, results)

    # --- places and values --------------------------------------------------------------------

    def place(self, node: object) -> Place:
        """Where the tensor of ``node`` lies."""
        known = self._known[node] if isinstance(node, fx.Node) else node
        if not isinstance(known, Place):
            raise ModelError(f"{node} is not a tensor, where an operator needs one")
        return known

    def buffer(self, place: Place) -> str:
        """The buffer that holds the present contents of ``place``."""
        return self._home[place.storage]

    def read(self, place: Place, hint: str | None = None) -> str:
        """The name of the value that ``place`` has at this point of the step."""
        return self.view(self.buffer(place), place.type, hint)

    def view(self, buffer: str, type_: TensorType, hint: str | None = None) -> str:
        """The name of the value of this type on ``buffer``."""
        name = self._names.get((buffer, type_))
        return name or self.add_value(self._unique(hint or f"{buffer}.view"), buffer, type_)

    def add_value(self, name: str, buffer: str, type_: TensorType, size_bytes: int | None = None) -> str:
        """A new value; with ``size_bytes``, on a new buffer. Its name."""
        if size_bytes is not None:
            self.size_bytes[buffer] = size_bytes
        self.values[name] = Value(name, buffer, type_)
        self._names.setdefault((buffer, type_), name)
        return name

    def _unique(self, hint: str) -> str:
        name, count = hint, 1
        while name in self.values or name in self.size_bytes:
            count += 1
            name = f"{hint}.{count}"
        return name

    def is_given(self, place: Place) -> bool:
        """Whether its buffer lives across steps or is the caller's, so that it is not ours to keep."""
        return self.buffer(place) in self._given and self.buffer(place) not in self._constants

    def is_whole(self, place: Place) -> bool:
        """Whether this is all of a buffer that no update will write, so that a copy may share it."""
        whole_bytes = self.size_bytes[self.buffer(place)]
        return not self.is_given(place) and is_dense(place.type) and place.type.extent_bytes == whole_bytes

    def share(self, node: fx.Node, source: Place) -> None:
        """Let ``node``, a copy, be what it copies."""
        place = place_of(tensors_of(node)[0], node.name)
        self._home[place.storage] = self.buffer(source)
        self._known[node] = place

    # --- arguments ----------------------------------------------------------------------------

    def argument(self, given: object) -> Argument:
        """An argument of the trace as one of ours."""
        if isinstance(given, fx.Node):
            known = self._known[given]
            return Ref(self.read(known, given.name)) if isinstance(known, Place) else self.argument(known)
        if isinstance(given, list | tuple):
            return tuple(self.argument(item) for item in given)
        if given is None or isinstance(given, bool | int | float | str):
            return given
        for kind in (torch.dtype, torch.layout, torch.device, torch.memory_format):
            if isinstance(given, kind):
                return Symbol(kind.__name__, str(given).removeprefix("torch."))
        raise ModelError(f"an operator is given {str(given)[:60]!r}, which has no fixed value while tracing")

    def plain_call(self, node: fx.Node, target: str | None = None, *, without: str | None = None) -> Call:
        """The node as a call, of ``target`` where given, without its keyword ``without``."""
        own = _operator(node)
        blanks = rules.SHAPE_ONLY.get(str(own), ())
        args = [
            Blank(self.place(item).type) if parameter.name in blanks else self.argument(item)
            for parameter, item in zip(own._schema.arguments, node.args, strict=False)
        ]
        skipped = ("layout", "device", "pin_memory", "non_blocking", "generator", without)
        kwargs = [(key, self.argument(item)) for key, item in node.kwargs.items() if key not in skipped]
        return Call(target or str(own), tuple(args), tuple(kwargs))

    # --- nodes --------------------------------------------------------------------------------

    def call(self, node: fx.Node) -> None:
        """Lower one call of the trace."""
        if node.target is operator.getitem:
            source, index = node.args
            items = self._known[source] if isinstance(source, fx.Node) else ()
            self._known[node] = items[index] if isinstance(items, tuple) and isinstance(index, int) else None
            return
        own = _operator(node)
        target = str(own)
        if target.startswith(rules.FOR_PROFILERS):
            return
        if target in rules.SPECIAL:
            rules.SPECIAL[target](self, node)
        elif target in rules.RESHAPING or own.is_view or self._is_alias(node):
            self._add_views(node)
        elif own._schema.is_mutable:
            self._write_in_place(node)
        else:
            self.emit(node, self.plain_call(node, supported(target)))

    def _is_alias(self, node: fx.Node) -> bool:
        """Whether all of the node's outputs lie in memory that was there before it, unwritten."""
        tensors = tensors_of(node)
        return (
            not _operator(node)._schema.is_mutable
            and bool(tensors)
            and all(tensor.untyped_storage()._cdata in self._home for tensor in tensors)
        )

    def _add_views(self, node: fx.Node) -> None:
        """Views of the first argument; of a constant, each node may have a storage of its own."""
        source = self.place(node.all_input_nodes[0])
        places = tuple(place_of(tensor, node.name) for tensor in tensors_of(node))
        for place in places:
            self._home.setdefault(place.storage, self.buffer(source))
            if source.storage in self._constant_storages:
                self._constant_storages.add(place.storage)
        self._known[node] = places[0] if isinstance(node.meta["val"], Tensor) else places

    def emit(
        self,
        node: fx.Node,
        call: Call,
        results: Sequence[object] | None = None,
        *,
        name: str | None = None,
        updates: tuple[str, ...] = (),
        repeat_call: Call | None = None,
    ) -> tuple[object, ...]:
        """Add an op for ``node`` whose outputs are the node's, or ``results``; what they stand for."""
        value = rules.results_of(node) if results is None else results
        tensors = (value,) if isinstance(value, Tensor) else tuple(value)
        names = [node.name if len(tensors) == 1 else f"{node.name}.{index}" for index in range(len(tensors))]
        outputs = [
            self._output(tensor, hint) if isinstance(tensor, Tensor) else None
            for tensor, hint in zip(tensors, names, strict=True)
        ]
        known = tuple(place_of(item, node.name) if isinstance(item, Tensor) else item for item in tensors)
        self.stand_for(node, known[0] if isinstance(value, Tensor) else known)
        self._add_op(name or node.name, call, tuple(outputs), updates, repeat_call)
        return known

    def stand_for(self, node: fx.Node, known: object) -> None:
        """Say what later reads of ``node`` mean: a place, a number, or a tuple of these."""
        self._known[node] = known

    def _output(self, tensor: Tensor, hint: str) -> str | None:
        """Home for an operator's output; ``None`` where it shares an earlier output's memory."""
        place = place_of(tensor, hint)
        if place.storage in self._home:
            self.read(place, hint)
            return None
        name = self._unique(hint)
        self._home[place.storage] = name
        return self.add_value(name, name, place.type, tensor.untyped_storage().nbytes())

    def _add_op(
        self,
        name: str,
        call: Call,
        outputs: tuple[str | None, ...],
        updates: tuple[str, ...] = (),
        repeat_call: Call | None = None,
    ) -> None:
        if call.target not in RANDOM:
            self.ops.append(Op(name, call, outputs, updates, repeat_call=repeat_call))
            return
        drawn_bytes = sum(self.size_bytes[self.values[item].buffer] for item in outputs if item is not None)
        state_type = TensorType("uint8", (torch.get_rng_state().numel(),), (1,))
        if drawn_bytes <= state_type.extent_bytes:  # keeping what was drawn is cheaper
            self.ops.append(Op(name, call, outputs, repeatable=False, random=True))
            return
        state = self._unique(f"{name}.rng_state")
        self.add_value(state, state, state_type, state_type.extent_bytes)
        self.ops.append(Op(state, Call("poet.rng_state", ()), (state,), repeatable=False, random=True))
        again = Call("poet.with_rng_state", (Ref(state), call.target, *call.args), call.kwargs)
        self.ops.append(Op(name, call, outputs, repeat_call=again, random=True))

    def new(self, hint: str, call: Call, type_: TensorType) -> str:
        """Add an op with one dense output; the output's name."""
        name = self._unique(hint)
        self.add_value(name, name, type_, type_.elements * ITEM_BYTES[type_.dtype])
        self._add_op(name, call, (name,))
        return name

    # --- writes -------------------------------------------------------------------------------

    def _write_in_place(self, node: fx.Node) -> None:
        """Turn an in-place operator into a functional one, and let its output take the place's home."""
        own = _operator(node)
        written = [item.name for item in own._schema.arguments if item.is_write]
        bound = rules.arguments(node)
        if len(written) != 1 or str(own).startswith(rules.RESIZING) or bound[written[0]] is None:
            raise UnsupportedOperator(f"operator {own} writes its arguments in a way that poet cannot undo")
        place = self.place(bound[written[0]])
        self._known[node] = place
        dense = dense_like(place.type)
        if str(own) in rules.OVERWRITES:
            result = rules.OVERWRITES[str(own)](self, node, dense)
        else:
            result = self._functional(node, written[0], dense)
        self.assign(place, result, node.name)

    def _functional(self, node: fx.Node, written: str, wanted: TensorType) -> str:
        """Run the functional form of ``node``; the name of its result, of type ``wanted``."""
        form = rules.functional_form(_operator(node), written)
        if form is None:
            raise UnsupportedOperator(f"operator {node.target} has no functional form")
        target = supported(str(form))
        dropped = written if written in node.kwargs and written != "self" else None
        kwargs = {key: item for key, item in node.kwargs.items() if key != dropped}
        args, kwargs = fx.node.map_arg((node.args, kwargs), lambda item: item.meta["val"])
        with _fake_mode(node):
            type_ = tensor_type(form(*args, **kwargs), node.name)
        if type_.shape != wanted.shape:
            raise UnsupportedOperator(f"operator {node.target} resizes the tensor it writes")
        result = self.new(node.name, self.plain_call(node, target, without=dropped), type_)
        if type_ != wanted:
            result = self.new(node.name, Call("poet.copy", (Ref(result), *layout_arguments(wanted))), wanted)
        return result

    def assign(self, place: Place, result: str, hint: str) -> None:
        """Let ``result`` be what ``place`` holds from here on."""
        if place.storage in self._constant_storages:
            raise ModelError(
                f"{hint}: the model writes a tensor of its own that is neither parameter nor buffer; "
                "register it with register_buffer"
            )
        buffer = self.buffer(place)
        whole_bytes, item_bytes = self.size_bytes[buffer], ITEM_BYTES[place.type.dtype]
        if is_dense(place.type) and place.type.extent_bytes == whole_bytes:
            self._home[place.storage] = self.values[result].buffer
            return
        if whole_bytes % item_bytes:
            raise ModelError(f"{hint} writes {place.type} into a buffer of {whole_bytes} bytes")
        flat = TensorType(place.type.dtype, (whole_bytes // item_bytes,), (1,))
        where = (place.type.shape, place.type.strides, place.type.offset)
        base = Ref(self.view(buffer, flat))
        self._home[place.storage] = self.new(hint, Call("poet.scatter", (base, Ref(result), *where)), flat)


def supported(target: str) -> str:
    """``target``, if there is a kernel row for it.

    Raises:
        UnsupportedOperator: there is none.
    """
    if target not in ATEN:
        raise UnsupportedOperator(f"operator {target} is not one that poet runs")
    return target


def place_of(tensor: Tensor, where: str) -> Place:
    """The place of a fake tensor."""
    return Place(tensor.untyped_storage()._cdata, tensor_type(tensor, where))


def tensors_of(node: fx.Node) -> list[Tensor]:
    """The fake tensors that ``node`` gives."""
    value = node.meta.get("val")
    items = [value] if isinstance(value, Tensor) else value or ()
    return [item for item in items if isinstance(item, Tensor)]


def _operator(node: fx.Node) -> OpOverload:
    if not isinstance(node.target, OpOverload):
        raise ModelError(f"the trace calls {node.target}, which is not an operator")
    return node.target


def _fake_mode(node: fx.Node) -> FakeTensorMode:
    for item in (node, *node.all_input_nodes):
        for tensor in tensors_of(item):
            if isinstance(tensor, FakeTensor):
                return tensor.fake_mode
    raise ModelError(f"{node.name} has no tensor")
