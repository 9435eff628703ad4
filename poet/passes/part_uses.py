"""What is done with a parameter, and how each op of it is divided where the parameter is in parts.

A row says what makes sense by an operator's meaning; whether runs on parts give the bits of the whole is
another question, which `poet.runtime.trials.forms` answers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from poet.ir.calls import blanked, contiguous
from poet.ir.graph import Blank, Call, Graph, Op, Parameter, Ref, TensorType, lasting_of
from poet.ir.named import Bounds
from poet.ir.operators import UPDATES
from poet.ir.wholes import FACTORS, Axis, PartedCall, narrowed
from poet.passes.layouts import dense_like
from poet.passes.rewrite import GraphUses, is_pure
from poet.runtime.trials.forms import ROWS_DIM, rows_trial
from poet.runtime.trials.trial import is_exact

IsExact = Callable[[PartedCall, Bounds], bool]
"""Whether a call in such parts gives the bits of the whole."""


ACCUMULATE = "poet.accumulate"
_ENDS = UPDATES | {ACCUMULATE}
_CONVOLUTION_BACKWARD = "aten.convolution_backward.default"
_LOOK_UP, _TABLE, _SUM = "aten.embedding.default", "aten.embedding_dense_backward.default", "aten.add.Tensor"


@dataclass(frozen=True, slots=True)
class Uses:
    """What is done with one parameter, each op with how it is divided.

    Attributes:
        products: that read it, and look-ups.
        makers: of its gradient, in order: those of each summand, then their sum; none where it is frozen.
        ends: updates, and additions to the sum of its gradients.
        undivided: ops that read it and cannot be divided.
    """

    products: Mapping[str, PartedCall]
    makers: Mapping[str, PartedCall]
    ends: Mapping[str, PartedCall]
    undivided: tuple[Op, ...] = ()

    def with_joined(self, graph: Graph, bounds: Bounds, is_exact: IsExact) -> Uses:
        """The same with those products undivided that are not exact in such parts."""
        wrong = {name for name, parted in self.products.items() if not is_exact(parted, bounds)}
        return replace(
            self,
            products={name: parted for name, parted in self.products.items() if name not in wrong},
            undivided=(*self.undivided, *(op for op in graph.ops if op.name in wrong)),
        )

    @property
    def calls(self) -> tuple[PartedCall, ...]:
        """What there is to try, each distinct call once."""
        found = (*self.products.values(), *self.makers.values(), *self.ends.values())
        return tuple(dict.fromkeys(found))


def uses_of(index: GraphUses, parameter: Parameter) -> Uses | None:
    """How the parameter's ops are divided; ``None`` where one cannot be."""
    uses = found_uses(index, parameter)
    return None if uses is None or uses.undivided else uses


def found_uses(index: GraphUses, parameter: Parameter) -> Uses | None:
    graph, type_ = index.graph, index.types[parameter.value]
    if len(type_.shape) != 2 or min(type_.shape) < 2 or type_ != contiguous(type_.dtype, type_.shape):
        return None
    if index.sizes_bytes[graph.buffer_of(parameter.value)] != type_.extent_bytes:
        return None
    if parameter.value in (graph.loss, *graph.predictions, *(value for _, value in graph.states)):
        return None
    ends = _ends(index, parameter, type_)
    if ends is None:
        return None
    makers = dict[str, PartedCall]()
    if parameter.gradient is not None and not _join_makers(index, parameter.gradient, type_, ends, makers):
        return None
    products, undivided = {}, []
    for op in index.readers_of(parameter.value):
        if op.name not in ends:
            buffer = graph.buffer_of(parameter.value)
            parted = _looked_up(index, op, buffer, type_) or _product(index, op, buffer, type_)
            if parted is None:
                undivided.append(op)
            else:
                products[op.name] = parted
    if len(makers) > 1 and any(
        buffer in index.updaters for name in makers for buffer in graph.reads(index.op(name).call)
    ):
        return None  # what makes it runs with its last maker, and would find something else
    return Uses(products, makers, ends, tuple(undivided))


def rows_alone(call: Call, types: Mapping[str, TensorType], rows: tuple[int, int]) -> tuple[int, Call] | None:
    """What makes only some rows of a weight's gradient, by a product or a convolution without groups.

    The dimension in which its first argument is cut, and the call, still with that argument whole; ``None``
    where there is none, or it gives other bits here.
    """
    made = list(call.args)
    if call.target not in ROWS_DIM:
        return None
    if call.target == _CONVOLUTION_BACKWARD:
        weight = call.args[2]
        if not isinstance(weight, Blank) or call.args[7] is not False or call.args[9] != 1:
            return None
        made[2] = Blank(dense_like(narrowed(weight.type, 0, *rows)))
        made[3] = None if call.args[3] is None else (rows[1] - rows[0],)
    alone, whole = replace(call, args=tuple(made)), blanked(call, types)
    dim = ROWS_DIM[call.target]
    return (dim, alone) if is_exact(rows_trial(whole, blanked(alone, types), dim, rows)) else None


def _ends(index: GraphUses, parameter: Parameter, type_: TensorType) -> dict[str, PartedCall] | None:
    """The ops that write what lives across steps for it; ``None`` where something else reads that."""
    found = {}
    for _, value in lasting_of(parameter):
        for op in index.readers_of(value):
            if op.updates:
                if op.call.target not in _ENDS or any(index.types[ref] != type_ for ref in op.call.refs()):
                    return None
                found[op.name] = PartedCall(blanked(op.call, index.types), Axis.ELEMENTS)
            elif value != parameter.value:
                return None
    return found


def _join_makers(
    index: GraphUses,
    value: str,
    type_: TensorType,
    ends: Mapping[str, PartedCall],
    makers: dict[str, PartedCall],
) -> bool:
    """Put what makes ``value``, a gradient or a part of one, among ``makers``; whether that could be done."""
    op = index.maker_of(value)
    if op is None or not _is_repeatable(op) or op.outputs != (value,) or op.call.kwargs or op.name in makers:
        return False
    if index.types[value] != type_ or _is_result(index, value):
        return False
    axis = Axis.TABLE if op.call.target == _TABLE else Axis.ROWS
    parted = PartedCall(blanked(op.call, index.types), axis)
    if op.call.target == _SUM:
        if len(op.call.args) != 2:
            return False
        for item in op.call.args:
            if not isinstance(item, Ref):
                return False
            if not _join_makers(index, item.value, type_, {op.name: parted}, makers):
                return False
    elif op.call.target != "aten.mm.default" and (axis is not Axis.TABLE or op.call.args[4] is not False):
        return False
    makers[op.name] = parted
    return {reader.name for reader in index.readers_of(value)} <= ends.keys()


def _looked_up(index: GraphUses, op: Op, buffer: str, type_: TensorType) -> PartedCall | None:
    """``op`` along the rows of the table on ``buffer``; ``None`` where it is no look-up in it."""
    if op.call.target != _LOOK_UP or op.call.kwargs or not _is_repeatable(op) or len(op.outputs) != 1:
        return None
    table, numbers = op.call.args[:2]
    result = index.types[op.outputs[0] or ""]
    is_plain = (
        isinstance(table, Ref)
        and index.types[table.value] == type_
        and isinstance(numbers, Ref)
        and index.graph.buffer_of(numbers.value) != buffer
        and result == contiguous(result.dtype, result.shape)
    )
    if not is_plain or index.sizes_bytes[index.graph.buffer_of(op.outputs[0] or "")] != result.extent_bytes:
        return None
    return PartedCall(blanked(op.call, index.types), Axis.LOOK_UP)


def _product(index: GraphUses, op: Op, buffer: str, type_: TensorType) -> PartedCall | None:
    """``op`` along the rows of the parameter on ``buffer``; ``None`` where it cannot be divided so."""
    first = FACTORS.get(op.call.target)
    if first is None or op.call.kwargs or not _is_repeatable(op) or len(op.outputs) != 1:
        return None
    result = index.types[op.outputs[0] or ""]
    places = [
        place
        for place, item in enumerate(op.call.args)
        if isinstance(item, Ref) and index.graph.buffer_of(item.value) == buffer
    ]
    is_plain = result == contiguous(result.dtype, result.shape) and places in ([first], [first + 1])
    if not is_plain or index.sizes_bytes[index.graph.buffer_of(op.outputs[0] or "")] != result.extent_bytes:
        return None
    factor = op.call.args[places[0]]
    assert isinstance(factor, Ref)
    found = index.types[factor.value]
    if found == type_:
        dim = 0
    elif found == replace(type_, shape=type_.shape[::-1], strides=type_.strides[::-1]):
        dim = 1
    else:
        return None
    is_second = places[0] == first + 1
    axis = Axis.SUM if dim != is_second else (Axis.COLUMNS if is_second else Axis.ROWS)
    return PartedCall(blanked(op.call, index.types), axis)


def _is_result(index: GraphUses, value: str) -> bool:
    """Whether ``value`` is handed to the caller, or kept as state."""
    buffer = index.graph.buffer_of(value)
    states = {index.graph.buffer_of(state) for _, state in index.graph.states}
    return buffer in index.kept or buffer in states


def _is_repeatable(op: Op) -> bool:
    return is_pure(op) and op.repeatable
