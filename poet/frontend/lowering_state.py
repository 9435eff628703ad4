"""The state of lowering a trace: which buffer holds what, and the primitives that change it.

`poet.frontend.rules` says with these what is special about single operators; `poet.frontend.lower` goes
through the trace.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, fx
from torch._ops import OpOverload

from poet.errors import ModelError
from poet.ir.graph import ITEM_BYTES, Argument, Blank, Call, Op, Ref, Symbol, TensorType, Value
from poet.ir.operators import RANDOM, spec_of
from poet.passes.layouts import is_dense, tensor_type


@dataclass(frozen=True, slots=True)
class Region:
    """Where a node's tensor lies: a storage of the trace, and how it is viewed."""

    storage: int
    type: TensorType


class Lowering:
    """The state of lowering one trace, and the primitives that rules of single operators are made of."""

    def __init__(self, constants: frozenset[str]) -> None:
        self.ops: list[Op] = []
        self.values: dict[str, Value] = {}
        self.size_bytes: dict[str, int] = {}
        self._constants = constants  # names of buffers
        self._known: dict[fx.Node, object] = {}  # a region, a number, or a tuple of these
        self._home: dict[int, str] = {}  # storage -> the buffer with its present contents
        self._names: dict[tuple[str, TensorType], str] = {}  # values by buffer and type
        self._given: dict[str, Region] = {}
        self._constant_storages: set[int] = set()

    # --- regions and values --------------------------------------------------------------------

    def region(self, node: object) -> Region:
        """Where the tensor of ``node`` lies."""
        known = self._known[node] if isinstance(node, fx.Node) else node
        if not isinstance(known, Region):
            raise ModelError(f"{node} is not a tensor, where an operator needs one")
        return known

    def buffer(self, region: Region) -> str:
        """The buffer that holds the present contents of ``region``."""
        return self._home[region.storage]

    def read(self, region: Region, hint: str | None = None) -> str:
        """The name of the value that ``region`` has at this point of the step."""
        return self.view(self.buffer(region), region.type, hint)

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

    def is_given(self, region: Region) -> bool:
        """Whether its buffer lives across steps or is the caller's, so that it is not ours to keep."""
        return self.buffer(region) in self._given and self.buffer(region) not in self._constants

    def is_whole(self, region: Region) -> bool:
        """Whether this is all of a buffer that no update will write, so that a copy may share it."""
        whole_bytes = self.size_bytes[self.buffer(region)]
        return not self.is_given(region) and is_dense(region.type) and region.type.extent_bytes == whole_bytes

    def share(self, node: fx.Node, source: Region) -> None:
        """Let ``node``, a copy, be what it copies."""
        region = region_of(tensors_of(node)[0], node.name)
        self._home[region.storage] = self.buffer(source)
        self._known[node] = region

    def output_of(self, target: str, given: Ref, numbers: tuple[object, ...]) -> str | None:
        """The output of an op so far that is ``target`` of ``given`` and the first of ``numbers``.

        ``None`` where there is none, or it is laid out otherwise than ``given``.
        """
        for op in self.ops:
            own = (op.call.args[0], *numbers_of(op.call)) if op.call.target == target else ()
            if own and own[0] == given and own[1:] == numbers[: len(own) - 1] and op.outputs[0] is not None:
                same = self.values[op.outputs[0]].type == self.values[given.value].type
                return op.outputs[0] if same else None
        return None

    # --- arguments ----------------------------------------------------------------------------

    def argument(self, given: object) -> Argument:
        """An argument of the trace as one of ours."""
        if isinstance(given, fx.Node):
            known = self._known[given]
            return Ref(self.read(known, given.name)) if isinstance(known, Region) else self.argument(known)
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
        own = operator_of(node)
        blanks = spec_of(str(own)).shape_only
        args = [
            Blank(self.region(item).type) if parameter.name in blanks else self.argument(item)
            for parameter, item in zip(own._schema.arguments, node.args, strict=False)
        ]
        skipped = ("layout", "device", "pin_memory", "non_blocking", "generator", without)
        kwargs = [(key, self.argument(item)) for key, item in node.kwargs.items() if key not in skipped]
        return Call(target or str(own), tuple(args), tuple(kwargs))

    # --- ops ---

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
        value = results_of(node) if results is None else results
        tensors = (value,) if isinstance(value, Tensor) else tuple(value)
        names = [node.name if len(tensors) == 1 else f"{node.name}.{index}" for index in range(len(tensors))]
        outputs = [
            self._output(tensor, hint) if isinstance(tensor, Tensor) else None
            for tensor, hint in zip(tensors, names, strict=True)
        ]
        known = tuple(region_of(item, node.name) if isinstance(item, Tensor) else item for item in tensors)
        self.stand_for(node, known[0] if isinstance(value, Tensor) else known)
        self._add_op(name or node.name, call, tuple(outputs), updates, repeat_call)
        return known

    def stand_for(self, node: fx.Node, known: object) -> None:
        """Say what later reads of ``node`` mean: a region, a number, or a tuple of these."""
        self._known[node] = known

    def _output(self, tensor: Tensor, hint: str) -> str | None:
        """Home for an operator's output; ``None`` where it shares an earlier output's memory."""
        region = region_of(tensor, hint)
        if region.storage in self._home:
            self.read(region, hint)
            return None
        name = self._unique(hint)
        self._home[region.storage] = name
        return self.add_value(name, name, region.type, tensor.untyped_storage().nbytes())

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

    # --- writes ---

    def assign(self, region: Region, result: str, hint: str) -> None:
        """Let ``result`` be what ``region`` holds from here on."""
        if region.storage in self._constant_storages:
            raise ModelError(
                f"{hint}: the model writes a tensor of its own that is neither parameter nor buffer; "
                "register it with register_buffer"
            )
        buffer = self.buffer(region)
        whole_bytes, item_bytes = self.size_bytes[buffer], ITEM_BYTES[region.type.dtype]
        if is_dense(region.type) and region.type.extent_bytes == whole_bytes:
            self._home[region.storage] = self.values[result].buffer
            return
        if whole_bytes % item_bytes:
            raise ModelError(f"{hint} writes {region.type} into a buffer of {whole_bytes} bytes")
        flat = TensorType(region.type.dtype, (whole_bytes // item_bytes,), (1,))
        where = (region.type.shape, region.type.strides, region.type.offset)
        base = Ref(self.view(buffer, flat))
        self._home[region.storage] = self.new(hint, Call("poet.scatter", (base, Ref(result), *where)), flat)


def region_of(tensor: Tensor, where: str) -> Region:
    """The region of a fake tensor."""
    return Region(tensor.untyped_storage()._cdata, tensor_type(tensor, where))


def numbers_of(call: Call) -> tuple[Argument, ...]:
    """The arguments of a call after the first, defaults included, which fx drops."""
    _, name, overload = call.target.split(".")
    schema = getattr(getattr(torch.ops.aten, name), overload)._schema.arguments
    return (*call.args[1:], *(item.default_value for item in schema[len(call.args) :]))


def tensors_of(node: fx.Node) -> list[Tensor]:
    """The fake tensors that ``node`` gives."""
    value = node.meta.get("val")
    items = [value] if isinstance(value, Tensor) else value or ()
    return [item for item in items if isinstance(item, Tensor)]


def operator_of(node: fx.Node) -> OpOverload:
    if not isinstance(node.target, OpOverload):
        raise ModelError(f"the trace calls {node.target}, which is not an operator")
    return node.target


def arguments(node: fx.Node) -> dict[str, object]:
    """All of a node's arguments by the names in its schema, defaults included (fx drops them)."""
    assert isinstance(node.target, OpOverload)
    schema = node.target._schema.arguments
    bound = {item.name: item.default_value for item in schema if item.has_default_value()}
    bound.update(zip((item.name for item in schema), node.args, strict=False))
    return {**bound, **node.kwargs}


def results_of(node: fx.Node) -> Tensor | tuple[object, ...]:
    """What ``node`` gives, with ``None`` for each gradient that its ``output_mask`` does not ask for.

    Fake tensors may stand for those all the same, where a kernel gives nothing.
    """
    value = node.meta["val"]
    if isinstance(value, Tensor):
        return value
    mask = arguments(node).get("output_mask")
    if not isinstance(mask, list | tuple):
        return tuple(value)
    return tuple(item if keep else None for item, keep in zip(value, mask, strict=True))
