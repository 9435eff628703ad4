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
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils import _pytree as pytree

from poet.errors import ModelError, UnsupportedOperator
from poet.frontend import rules
from poet.frontend.eager import line_in
from poet.frontend.lowering_state import Lowering, arguments, operator_of, region_of, tensors_of
from poet.ir.graph import Call, Op, Ref, TensorType, Value
from poet.ir.operators import ATEN
from poet.passes.layouts import dense_like, layout_arguments, tensor_type

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
    lowering = _Lowering(frozenset(constants.values()))
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


class _Lowering(Lowering):
    """`Lowering` that goes through a trace node by node."""

    # --- sources and results ------------------------------------------------------------------

    def source(self, node: fx.Node, name: str) -> None:
        """A tensor that is there before the step."""
        tensor = tensors_of(node)[0]
        region = region_of(tensor, name)
        if name not in self.size_bytes:
            self.add_value(name, name, region.type, tensor.untyped_storage().nbytes())
            self._given[name] = region
        self._home[region.storage] = name
        self._known[node] = region
        if node.op == "get_attr":
            self._constant_storages.add(region.storage)

    def finish(self, outputs: object, given: Iterable[str]) -> Lowered:
        """What was lowered, with the values of the trace's ``outputs``."""
        written = {
            name: self.read(self._given[name])
            for name in given
            if self._home[self._given[name].storage] != name
        }
        results = tuple(
            self.read(self.region(item)) if isinstance(item, fx.Node) else None
            for item in pytree.tree_leaves(outputs)
        )
        return Lowered(tuple(self.ops), self.values, self.size_bytes, written, results)

    # --- nodes --------------------------------------------------------------------------------

    def call(self, node: fx.Node) -> None:
        """Lower one call of the trace."""
        if node.target is operator.getitem:
            source, index = node.args
            items = self._known[source] if isinstance(source, fx.Node) else ()
            self._known[node] = items[index] if isinstance(items, tuple) and isinstance(index, int) else None
            return
        own = operator_of(node)
        target = str(own)
        if target.startswith(rules.FOR_PROFILERS):
            return
        if any(tensor.layout != torch.strided for tensor in tensors_of(node)):
            raise UnsupportedOperator(
                f"operator {target} gives a sparse tensor, and a step is of dense ones; where an embedding "
                "has sparse=True, leave that out"
            )
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
            not operator_of(node)._schema.is_mutable
            and bool(tensors)
            and all(tensor.untyped_storage()._cdata in self._home for tensor in tensors)
        )

    def _add_views(self, node: fx.Node) -> None:
        """Views of the first argument; of a constant, each node may have a storage of its own."""
        source = self.region(node.all_input_nodes[0])
        regions = tuple(region_of(tensor, node.name) for tensor in tensors_of(node))
        for region in regions:
            self._home.setdefault(region.storage, self.buffer(source))
            if source.storage in self._constant_storages:
                self._constant_storages.add(region.storage)
        self._known[node] = regions[0] if isinstance(node.meta["val"], Tensor) else regions

    # --- writes -------------------------------------------------------------------------------

    def _write_in_place(self, node: fx.Node) -> None:
        """Turn an in-place operator into a functional one, and let its output take the region's home."""
        own = operator_of(node)
        written = [item.name for item in own._schema.arguments if item.is_write]
        bound = arguments(node)
        if len(written) != 1 or str(own).startswith(rules.RESIZING) or bound[written[0]] is None:
            raise UnsupportedOperator(f"operator {own} writes its arguments in a way that poet cannot undo")
        region = self.region(bound[written[0]])
        self._known[node] = region
        dense = dense_like(region.type)
        if str(own) in rules.OVERWRITES:
            result = rules.OVERWRITES[str(own)](self, node, dense)
        else:
            result = self._functional(node, written[0], dense)
        self.assign(region, result, node.name)

    def _functional(self, node: fx.Node, written: str, wanted: TensorType) -> str:
        """Run the functional form of ``node``; the name of its result, of type ``wanted``."""
        form = rules.functional_form(operator_of(node), written)
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


def supported(target: str) -> str:
    """``target``, if there is a kernel row for it.

    Raises:
        UnsupportedOperator: there is none.
    """
    if target not in ATEN:
        raise UnsupportedOperator(f"operator {target} is not one that poet runs")
    return target


def _fake_mode(node: fx.Node) -> FakeTensorMode:
    for item in (node, *node.all_input_nodes):
        for tensor in tensors_of(item):
            if isinstance(tensor, FakeTensor):
                return tensor.fake_mode
    raise ModelError(f"{node.name} has no tensor")
