"""From a trace of ATen calls to the ops of our graph.

The trace (an fx graph over fake tensors) may write tensors in place, and views share memory. Here
every write becomes a new buffer and every view a value on its base's buffer. The bookkeeping is one
table: which buffer holds the present contents of each of the trace's storages. A read of a node is
resolved through it, so that a view taken before a write sees what was written, as it does in eager.

What is special about an operator is one row in `SPECIAL`, `FACTORIES`, `FILLS` or `SHAPE_ONLY`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, fx
from torch._ops import OpOverload

from poet.errors import ModelError, UnsupportedOperator
from poet.graph import ITEM_BYTES, Argument, Blank, Call, Op, Ref, Symbol, TensorType, Value
from poet.runtime.kernels import ATEN, RANDOM


@dataclass(frozen=True, slots=True)
class Lowered:
    """What lowering gives: straight-line ops, with the values and buffers they speak of.

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


def lower(trace: fx.GraphModule, given: tuple[str, ...], constants: Mapping[str, str]) -> Lowered:
    """Lower a traced step.

    Args:
        trace: what `make_fx` made; its nodes carry fake tensors.
        given: a name for each placeholder, which becomes the name of its value and buffer.
        constants: name of each tensor that the trace holds (its attribute) -> name of its value.

    Raises:
        UnsupportedOperator: the trace calls an operator that has no kernel row.
        ModelError: a tensor's element type, layout or way of being written is not supported.
    """
    lowering = _Lowering(trace.graph, constants)
    names = iter(given)
    for node in trace.graph.nodes:
        if node.op == "placeholder":
            lowering.source(node, next(names))
        elif node.op == "get_attr":
            lowering.source(node, constants[node.target])
        elif node.op == "call_function":
            lowering.call(node)
        else:
            return lowering.finish(node.args[0], given)
    raise ModelError("the trace has no output")


def tensor_type(tensor: Tensor, where: str) -> TensorType:
    """The type of a strided tensor.

    Raises:
        ModelError: it is sparse, quantised, complex or of another element type without a row.
    """
    name = str(tensor.dtype).removeprefix("torch.")
    if tensor.layout != torch.strided or name not in ITEM_BYTES:
        raise ModelError(
            f"{where} is a {name} tensor with layout {str(tensor.layout).removeprefix('torch.')}; "
            f"supported are dense tensors of {', '.join(ITEM_BYTES)}"
        )
    return TensorType(name, tuple(tensor.shape), tuple(tensor.stride()), int(tensor.storage_offset()))


def is_dense(type_: TensorType) -> bool:
    """Whether each byte from the buffer's start to the last element belongs to exactly one element."""
    return type_.offset == 0 and type_.extent_bytes == type_.elements * ITEM_BYTES[type_.dtype]


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a node's tensor lies: a storage of the trace, and how it is viewed."""

    storage: int
    type: TensorType


_Known = _Place | tuple["_Place | object", ...] | object  # what a node stands for

# Arguments of which a kernel reads the shape and strides, never the contents (tests/test_kernels.py
# runs each of them both ways).
SHAPE_ONLY: dict[str, tuple[str, ...]] = {
    "aten.max_pool2d_with_indices_backward.default": ("self",),
    "aten.max_pool3d_with_indices_backward.default": ("self",),
    "aten.avg_pool2d_backward.default": ("self",),
    "aten.avg_pool3d_backward.default": ("self",),
    "aten._adaptive_avg_pool2d_backward.default": ("self",),
    "aten._adaptive_avg_pool3d_backward.default": ("self",),
    "aten.adaptive_max_pool2d_backward.default": ("self",),
    "aten.nll_loss_backward.default": ("self",),
    "aten.nll_loss2d_backward.default": ("self",),
}

FACTORIES: dict[str, object] = {
    "aten.zeros.default": 0, "aten.zeros_like.default": 0, "aten.new_zeros.default": 0,
    "aten.ones.default": 1, "aten.ones_like.default": 1, "aten.new_ones.default": 1,
    "aten.full.default": "fill_value", "aten.full_like.default": "fill_value",
    "aten.new_full.default": "fill_value", "aten.scalar_tensor.default": "s",
}  # fmt: skip
"""Operators that give a tensor of one number: that number, or the argument that holds it."""

_UNFILLED = frozenset(
    f"aten.{name}"
    for name in ("empty.memory_format", "empty_like.default", "empty_strided.default",
                 "empty_permuted.default", "new_empty.default", "new_empty_strided.default")
)  # fmt: skip

FILLS: dict[str, tuple[str, tuple[str, ...]]] = {
    "aten.bernoulli_.float": ("poet.bernoulli", ("p",)),
    "aten.uniform_.default": ("poet.uniform", ("from", "to")),
    "aten.normal_.default": ("poet.normal", ("mean", "std")),
}
"""In-place operators that overwrite without reading: the factory that stands for each, and the
arguments it takes over."""

_RESHAPING = frozenset(
    f"aten.{name}_.{overload}"
    for name, overload in (("t", "default"), ("transpose", "default"), ("squeeze", "default"),
                           ("squeeze", "dim"), ("squeeze", "dims"), ("unsqueeze", "default"),
                           ("swapaxes", "default"), ("swapdims", "default"), ("detach", "default"))
)  # fmt: skip
"""In-place operators that change how memory is viewed and not what is in it."""

_DATA_DEPENDENT = frozenset({"aten.prod.default", "aten.prod.dim_int", "aten.cumprod.default"})
"""Eager looks for zeros among the factors before it chooses how to compute the gradient."""

_RESIZING = ("aten.resize_", "aten.set_", "aten.as_strided_")


class _Lowering:
    def __init__(self, graph: fx.Graph, constants: Mapping[str, str]) -> None:
        self.graph = graph
        self.constants = constants
        self.known: dict[fx.Node, _Known] = {}
        self.home: dict[int, str] = {}  # storage -> the buffer with its present contents
        self.size_bytes: dict[str, int] = {}
        self.values: dict[str, Value] = {}
        self.names: dict[tuple[str, TensorType], str] = {}
        self.ops: list[Op] = []
        self.given_storage: dict[str, _Place] = {}
        self.constant_storages: set[int] = set()

    # --- sources and results ------------------------------------------------------------------

    def source(self, node: fx.Node, name: str) -> None:
        """A tensor that is there before the step."""
        place = self.place(node.meta["val"], name)
        if name not in self.size_bytes:
            self.add_value(name, name, place.type, node.meta["val"].untyped_storage().nbytes())
            self.given_storage[name] = place
        self.home[place.storage] = name
        self.known[node] = place
        if node.op == "get_attr":
            self.constant_storages.add(place.storage)

    def finish(self, outputs: Any, given: Iterable[str]) -> Lowered:
        written = {
            name: self.read(place)
            for name, place in self.given_storage.items()
            if name in given and self.home[place.storage] != name
        }
        leaves = tuple(
            self.read(self.known[item]) if isinstance(item, fx.Node) else None
            for item in torch.utils._pytree.tree_leaves(outputs)
        )
        return Lowered(tuple(self.ops), self.values, self.size_bytes, written, leaves)

    def place(self, tensor: Any, where: str) -> _Place:
        return _Place(tensor.untyped_storage()._cdata, tensor_type(tensor, where))

    def add_value(self, name: str, buffer: str, type_: TensorType, size_bytes: int | None = None) -> str:
        if size_bytes is not None:
            self.size_bytes[buffer] = size_bytes
        self.values[name] = Value(name, buffer, type_)
        self.names.setdefault((buffer, type_), name)
        return name

    def unique(self, hint: str) -> str:
        name, count = hint, 1
        while name in self.values or name in self.size_bytes:
            count += 1
            name = f"{hint}.{count}"
        return name

    def read(self, place: Any, hint: str | None = None) -> str:
        """The name of the value that ``place`` has at this point of the step."""
        assert isinstance(place, _Place)
        return self.view(self.home[place.storage], place.type, hint)

    def view(self, buffer: str, type_: TensorType, hint: str | None = None) -> str:
        name = self.names.get((buffer, type_))
        return (
            name if name is not None else self.add_value(self.unique(hint or f"{buffer}.view"), buffer, type_)
        )

    # --- arguments ----------------------------------------------------------------------------

    def argument(self, given: Any) -> Argument:
        if isinstance(given, fx.Node):
            known = self.known[given]
            return Ref(self.read(known, given.name)) if isinstance(known, _Place) else self.argument(known)
        if isinstance(given, list | tuple):
            return tuple(self.argument(item) for item in given)
        if given is None or isinstance(given, bool | int | float | str):
            return given
        for kind, name in ((torch.dtype, "dtype"), (torch.layout, "layout"), (torch.device, "device"),
                           (torch.memory_format, "memory_format")):  # fmt: skip
            if isinstance(given, kind):
                return Symbol(name, str(given).removeprefix("torch."))
        raise ModelError(f"an operator is given {str(given)[:60]!r}, which has no fixed value while tracing")

    def arguments(self, node: fx.Node) -> dict[str, Any]:
        """All of a node's arguments by the names in its schema, defaults included (fx drops them)."""
        schema = node.target._schema.arguments  # type: ignore[union-attr]
        bound = {item.name: item.default_value for item in schema if item.has_default_value()}
        bound.update(zip((item.name for item in schema), node.args, strict=False))
        return {**bound, **node.kwargs}

    def plain_call(self, node: fx.Node, target: str) -> Call:
        """The node as a call of ``target``, spelled as the trace spells it."""
        blanks = SHAPE_ONLY.get(target, ())
        schema = node.target._schema.arguments  # type: ignore[union-attr]
        args = [
            Blank(self.known[item].type) if schema[index].name in blanks else self.argument(item)  # type: ignore[index,attr-defined,union-attr]
            for index, item in enumerate(node.args)
        ]
        skipped = ("layout", "device", "pin_memory", "non_blocking", "generator")
        kwargs = [(key, self.argument(item)) for key, item in node.kwargs.items() if key not in skipped]
        return Call(target, tuple(args), tuple(kwargs))

    # --- nodes --------------------------------------------------------------------------------

    def call(self, node: fx.Node) -> None:
        if node.target is operator.getitem:
            source, index = node.args
            self.known[node] = self.known[source][index]  # type: ignore[index]
            return
        if not isinstance(node.target, OpOverload):
            raise ModelError(f"the trace calls {node.target}, which is not an operator")
        target = str(node.target)
        if target in SPECIAL:
            SPECIAL[target](self, node)
        elif target in _RESHAPING:
            self.known[node] = self.views(node)
        elif target in _DATA_DEPENDENT and node.meta["val"].is_floating_point():
            raise UnsupportedOperator(
                f"operator {target} has a gradient whose formula depends on the data: no graph equals it"
            )
        elif node.target._schema.is_mutable:
            self.write_in_place(node, target)
        elif node.target.is_view or self.is_alias(node):
            self.known[node] = self.views(node)
        elif target in FACTORIES:
            fill = FACTORIES[target]
            self.fill(node, fill if not isinstance(fill, str) else self.arguments(node)[fill])
        else:
            self.emit(node, self.plain_call(node, self.supported(target)))

    def supported(self, target: str) -> str:
        if target not in ATEN:
            raise UnsupportedOperator(f"operator {target} is not one that poet runs")
        return target

    def is_alias(self, node: fx.Node) -> bool:
        """Whether all of the node's outputs lie in memory that was there before it."""
        tensors = _tensors_of(node)
        return bool(tensors) and all(item.untyped_storage()._cdata in self.home for item in tensors)

    def views(self, node: fx.Node) -> _Known:
        """What a view stands for; of a constant, each node may have a storage of its own."""
        source = self.known[node.all_input_nodes[0]]
        assert isinstance(source, _Place)
        places = [self.place(tensor, node.name) for tensor in _tensors_of(node)]
        for place in places:
            self.home.setdefault(place.storage, self.home[source.storage])
            if source.storage in self.constant_storages:
                self.constant_storages.add(place.storage)
        return places[0] if isinstance(node.meta["val"], Tensor) else tuple(places)

    def emit(self, node: fx.Node, call: Call, results: object = None, **fields: Any) -> None:
        """Add an op for ``node`` whose outputs are the node's (or ``results``)."""
        value = node.meta["val"] if results is None else results
        single = isinstance(value, Tensor)
        tensors = (value,) if single else value
        outputs: list[str | None] = []
        known: list[_Known] = []
        for index, tensor in enumerate(tensors):
            name = node.name if single or len(tensors) == 1 else f"{node.name}.{index}"
            outputs.append(self.output(tensor, name) if isinstance(tensor, Tensor) else None)
            known.append(self.place(tensor, name) if isinstance(tensor, Tensor) else tensor)
        self.known[node] = known[0] if single else tuple(known)
        self.add_op(fields.pop("name", node.name), call, tuple(outputs), **fields)

    def output(self, tensor: Tensor, hint: str) -> str | None:
        """Home for an operator's output; ``None`` where it shares an earlier output's memory."""
        place = self.place(tensor, hint)
        if place.storage in self.home:
            self.read(place, hint)
            return None
        name = self.unique(hint)
        self.home[place.storage] = name
        return self.add_value(name, name, place.type, tensor.untyped_storage().nbytes())

    def add_op(self, name: str, call: Call, outputs: tuple[str | None, ...], **fields: Any) -> None:
        if call.target in RANDOM:
            fields |= self.saved_randomness(name, call, outputs)
        self.ops.append(Op(name, call, outputs, **fields))

    def saved_randomness(self, name: str, call: Call, outputs: tuple[str | None, ...]) -> dict[str, Any]:
        """How a random op is run again: from the generator's state, where that is worth its bytes."""
        state_type = TensorType("uint8", (torch.get_rng_state().numel(),), (1,))
        drawn_bytes = sum(self.size_bytes[self.values[item].buffer] for item in outputs if item is not None)
        if drawn_bytes <= state_type.extent_bytes:
            return {"random": True, "repeatable": False}
        state = self.unique(f"{name}.rng_state")
        self.add_value(state, state, state_type, state_type.extent_bytes)
        self.ops.append(Op(state, Call("poet.rng_state", ()), (state,), repeatable=False, random=True))
        again = Call("poet.with_rng_state", (Ref(state), call.target, *call.args), call.kwargs)
        return {"random": True, "repeat_call": again}

    def new(self, hint: str, call: Call, type_: TensorType) -> str:
        """Add an op with one dense output; the output's name."""
        name = self.unique(hint)
        self.add_value(name, name, type_, type_.elements * ITEM_BYTES[type_.dtype])
        self.add_op(name, call, (name,))
        return name

    def fill(self, node: fx.Node, number: Any) -> None:
        value = node.meta["val"]
        self.emit(
            node, Call("poet.full", (*_layout(self.place(value, node.name).type), self.argument(number)))
        )

    def is_whole(self, known: _Known) -> bool:
        """Whether this is all of a buffer that no update will write, so that a copy may share it."""
        if not isinstance(known, _Place) or not is_dense(known.type):
            return False
        buffer = self.home[known.storage]
        lasting = buffer in self.given_storage and buffer not in self.constants.values()
        return not lasting and known.type.extent_bytes == self.size_bytes[buffer]

    # --- writes -------------------------------------------------------------------------------

    def write_in_place(self, node: fx.Node, target: str) -> None:
        """Turn an in-place operator into a functional one whose output takes the place's home."""
        written = [item for item in node.target._schema.arguments if item.is_write]  # type: ignore[union-attr]
        bound = self.arguments(node)
        if (
            len(written) != 1
            or target.startswith(_RESIZING)
            or not isinstance(bound[written[0].name], fx.Node)
        ):
            raise UnsupportedOperator(
                f"operator {target} writes its arguments in a way that poet cannot undo"
            )
        place = self.known[bound[written[0].name]]
        assert isinstance(place, _Place)
        self.known[node] = place
        dense = _dense_like(place.type)
        layout = _layout(dense)
        if target in FILLS:
            own, names = FILLS[target]
            result = self.new(
                node.name, Call(own, (*layout, *(self.argument(bound[n]) for n in names))), dense
            )
        elif target in ("aten.zero_.default", "aten.fill_.Scalar"):
            number = self.argument(bound.get("value", 0))
            result = self.new(node.name, Call("poet.full", (*layout, number)), dense)
        elif target in ("aten.copy_.default", "aten.fill_.Tensor"):
            source = bound["src" if "src" in bound else "value"]
            if self.is_whole(self.known[source]) and self.known[source].type == dense:  # type: ignore[union-attr]
                result = self.read(self.known[source])
            else:
                result = self.new(node.name, Call("poet.copy", (self.argument(source), *layout)), dense)
        else:
            result = self.functional(node, written[0].name, dense)
        self.assign(place, result, node.name)

    def functional(self, node: fx.Node, written: str, wanted: TensorType) -> str:
        """Run the functional form of ``node``; the name of its result, of type ``wanted``."""
        form = _functional_form(node.target, written)
        if form is None:
            raise UnsupportedOperator(f"operator {node.target} has no functional form")
        target = self.supported(str(form))
        kwargs = {key: item for key, item in node.kwargs.items() if key != written or written == "self"}
        fakes = fx.node.map_arg((node.args, kwargs), lambda item: item.meta["val"])
        with _mode_of(node):
            type_ = tensor_type(form(*fakes[0], **fakes[1]), node.name)
        if type_.shape != wanted.shape:
            raise UnsupportedOperator(f"operator {node.target} resizes the tensor it writes")
        call = self.plain_call(node, str(node.target))
        call = Call(target, call.args, tuple(item for item in call.kwargs if item[0] in kwargs))
        result = self.new(node.name, call, type_)
        if type_ != wanted:
            result = self.new(node.name, Call("poet.copy", (Ref(result), *_layout(wanted))), wanted)
        return result

    def assign(self, place: _Place, result: str, hint: str) -> None:
        """Let ``result`` be what ``place`` holds from here on."""
        if place.storage in self.constant_storages:
            raise ModelError(
                f"{hint}: the model writes a tensor of its own that is neither parameter nor buffer; "
                "register it with register_buffer"
            )
        buffer = self.home[place.storage]
        whole_bytes = self.size_bytes[buffer]
        item_bytes = ITEM_BYTES[place.type.dtype]
        if is_dense(place.type) and place.type.extent_bytes == whole_bytes:
            self.home[place.storage] = self.values[result].buffer
            return
        if whole_bytes % item_bytes:
            raise ModelError(f"{hint} writes {place.type} into a buffer of {whole_bytes} bytes")
        flat = TensorType(place.type.dtype, (whole_bytes // item_bytes,), (1,))
        where = (place.type.shape, place.type.strides, place.type.offset)
        base = Ref(self.view(buffer, flat))
        self.home[place.storage] = self.new(hint, Call("poet.scatter", (base, Ref(result), *where)), flat)


def _layout(type_: TensorType) -> tuple[Argument, ...]:
    return (type_.shape, type_.strides, Symbol("dtype", type_.dtype))


def _dense_like(type_: TensorType) -> TensorType:
    """The type of a tensor of its own with this shape and, where they leave no holes, these strides."""
    at_start = replace(type_, offset=0)
    if is_dense(at_start):
        return at_start
    template = torch.empty_strided(type_.shape, type_.strides, device="meta")
    return replace(at_start, strides=tuple(torch.empty_like(template).stride()))


def _functional_form(target: OpOverload, written: str) -> OpOverload | None:
    """The operator that returns what ``target`` writes into its argument ``written`` (self or out)."""
    _, name, _ = str(target).split(".")
    packet = getattr(torch.ops.aten, name if written != "self" else name.removesuffix("_"), None)
    kept = [item for item in target._schema.arguments if written == "self" or item.name != written]
    wanted = [(item.name, str(item.type)) for item in kept]
    for overload in packet.overloads() if packet is not None else ():
        found: OpOverload = getattr(packet, overload)
        given = [(item.name, str(item.type)) for item in found._schema.arguments]
        if given == wanted and not found._schema.is_mutable and not found.is_view:
            return found
    return None


def _tensors_of(node: fx.Node) -> list[Tensor]:
    value = node.meta.get("val")
    items = [value] if isinstance(value, Tensor) else value or ()
    return [item for item in items if isinstance(item, Tensor)]


def _mode_of(node: fx.Node) -> Any:
    for item in (node, *node.all_input_nodes):
        if hasattr(item.meta.get("val"), "fake_mode"):
            return item.meta["val"].fake_mode
    raise ModelError(f"{node.name} has no tensor")


# --- operators with a meaning of their own ----------------------------------------------------


def _empty(lowering: _Lowering, node: fx.Node) -> None:
    shape, strides, element = _layout(lowering.place(node.meta["val"], node.name).type)
    lowering.emit(node, Call("aten.empty_strided.default", (shape, strides), (("dtype", element),)))


def _batch_norm(lowering: _Lowering, node: fx.Node) -> None:
    """The first run updates the running statistics, a recomputation is given none."""
    target = "aten.native_batch_norm.default"
    bound = lowering.arguments(node)
    names = ("input", "weight", "bias", "running_mean", "running_var", "training", "momentum", "eps")
    arguments = [lowering.argument(bound[name]) for name in names]
    statistics = [item.value for item in arguments[3:5] if isinstance(item, Ref)]
    if not bound["training"] or not statistics:
        lowering.emit(node, Call(target, tuple(arguments)))
        return
    lowering.emit(
        node,
        Call(target, tuple(arguments)),
        updates=tuple(lowering.values[name].buffer for name in statistics),
        repeat_call=Call(target, (*arguments[:3], None, None, *arguments[5:])),
    )


def _batch_norm_backward(lowering: _Lowering, node: fx.Node) -> None:
    """In training mode the running statistics are not read, so they are not given."""
    call = lowering.plain_call(node, str(node.target))
    if lowering.arguments(node)["train"]:
        call = replace(call, args=(*call.args[:3], None, None, *call.args[5:]))
    lowering.emit(node, call)


def _convolution_backward(lowering: _Lowering, node: fx.Node) -> None:
    """Two ops: the gradients of weight and bias, then that of the input.

    Each reads only the type of the tensor whose gradient it gives.
    """
    call = lowering.plain_call(node, str(node.target))
    wanted = tuple(node.args[-1])  # type: ignore[arg-type]
    gradients = node.meta["val"]
    known: list[_Known] = [None, None, None]
    for part, mask in (("weight", (False, *wanted[1:])), ("input", (wanted[0], False, False))):
        if not any(mask):
            continue
        own = 2 if part == "weight" else 1
        args = list(call.args)
        args[own] = Blank(lowering.known[node.args[own]].type)  # type: ignore[index,union-attr]
        args[-1] = mask
        results = tuple(item if keep else None for item, keep in zip(gradients, mask, strict=True))
        lowering.emit(node, replace(call, args=tuple(args)), results, name=f"{node.name}.{part}")
        known = [
            new if new is not None else old for new, old in zip(lowering.known[node], known, strict=True)
        ]  # type: ignore[call-overload]
    lowering.known[node] = tuple(known)


def _clone(lowering: _Lowering, node: fx.Node) -> None:
    """A copy of a whole tensor in its own layout is that tensor: no op writes it later.

    Not so for what lives across steps, which an update writes.
    """
    source = lowering.known[node.args[0]]  # type: ignore[index]
    copied = lowering.place(node.meta["val"], node.name)
    assert isinstance(source, _Place)
    if lowering.is_whole(source) and source.type == copied.type:
        lowering.home[copied.storage] = lowering.home[source.storage]
        lowering.known[node] = copied
    elif str(node.target) == "aten.lift_fresh_copy.default":
        lowering.emit(node, Call("aten.clone.default", lowering.plain_call(node, str(node.target)).args))
    else:
        lowering.emit(node, lowering.plain_call(node, str(node.target)))


SPECIAL: dict[str, Callable[[_Lowering, fx.Node], None]] = {
    **dict.fromkeys(_UNFILLED, _empty),
    "aten.native_batch_norm.default": _batch_norm,
    "aten._native_batch_norm_legit.default": _batch_norm,
    "aten.native_batch_norm_backward.default": _batch_norm_backward,
    "aten.convolution_backward.default": _convolution_backward,
    "aten.clone.default": _clone,
    "aten._to_copy.default": _clone,
    "aten.lift_fresh_copy.default": _clone,
}
"""Operators that do not simply become one op."""
