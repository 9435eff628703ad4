"""From a run of an op to calls of C functions, for the operators that have a C kernel (`poet.ir.operators`).

None writes over what it reads but an update's parameters, or needs a workspace but for a packed weight.
Those that make a weight's gradient hand on its elements as they are made: to be stored, or to an update.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from poet.c99.calls import Address, CCall, OpRun, Placed
from poet.c99.rules import (
    copies,
    elementwise,
    normalisation,
    packed,
    places,
    pooling,
    products,
    reductions,
    selection,
    updates,
)
from poet.errors import GraphError, UnsupportedOperator
from poet.ir.graph import Call, Op, Ref, Strip, TensorType
from poet.ir.op_spec import CKernel
from poet.ir.operators import SPECS, spec_of
from poet.ir.packed import DEQUANTISE

_MODULES = {
    module.__name__.rpartition(".")[2]: module
    for module in (
        *(copies, elementwise, normalisation, packed, places, pooling, products, reductions, selection),
        updates,
    )
}

KERNELS: Mapping[str, CKernel] = {name: spec.c for name, spec in SPECS.items() if spec.c is not None}
"""Per operator, its kernel in C."""


def rule_of(kernel: CKernel) -> Callable[..., list[CCall]]:
    """What makes calls of functions in ``kernels/`` of a run of an op."""
    module, _, function = kernel.rule.name.partition(".")
    found: Callable[..., list[CCall]] = getattr(_MODULES[module], function)
    return found


def wants_dense(op: Op, types: Mapping[str, TensorType]) -> tuple[int, ...]:
    """Places of the operands of ``op`` that its kernel refuses as they lie and torch's copies as well."""
    kernel = spec_of(op.call.target).c
    if kernel is None:
        return ()
    found = [
        place
        for place in kernel.dense
        if place < len(op.call.args)
        and isinstance(item := op.call.args[place], Ref)
        and not Placed(types[item.value], 0).is_dense
    ]
    outputs = tuple(None if name is None else Placed(types[name], 0) for name in op.outputs)
    if not found or not all(item is None or item.is_dense for item in outputs):
        return ()  # a result that follows the layout of an operand would follow the copy's
    try:
        c_calls(OpRun(op.name, op.call, outputs, {name: Placed(types[name], 0) for name in op.call.refs()}))
    except (UnsupportedOperator, GraphError):
        return tuple(found)
    return ()


def overwrites(call: Call) -> tuple[int, ...]:
    """Places of the operands that the first output of ``call`` may lie on."""
    kernel = spec_of(call.target).c
    return () if kernel is None else kernel.over


_Places = Mapping[str, Placed]


def strip_calls(
    name: str, strip: Strip, values: _Places, outputs: _Places, workspace: Address | None = None
) -> list[CCall]:
    """The calls of an op whose elements are used as they are made: by updates, or written over an operand.

    Or of one that multiplies by a packed weight.

    Args:
        name: of the op, for messages.
        strip: of one block: the first call, then those that use what it makes.
        values: the graph's, as far as calls read them.
        outputs: of the op, by name.
        workspace: where it has `poet.ir.packed.USED_BYTES` of its own, if it has.

    Raises:
        UnsupportedOperator: as for `c_calls`.
        GraphError: likewise.
    """
    gradient, *users = strip.links
    if strip.is_whole and users and users[0].call.target == "poet.assign":
        return _calls_in_place(name, strip, values, outputs)
    if strip.is_whole and gradient.call.target == DEQUANTISE:
        return _calls_with_weight(name, strip, values, outputs, workspace)
    kernel = spec_of(gradient.call.target).c
    if not strip.is_whole or kernel is None or not kernel.hands_on:
        raise UnsupportedOperator(
            f"op {name}: its strip is cut for PyTorch's kernels; plan for a device with poet-c99"
        )
    inner = {value.name: value for value in strip.inner}
    known = {**values, **{value.name: Placed(value.type, 0) for value in strip.inner}}
    taken = {}
    for link in users:
        run = OpRun(name, link.call, (), known)
        if link.call.target not in updates.APPLIED or not isinstance(link.call.args[1], Ref):
            raise run.refuse("that uses a gradient as it is made")
        made = inner.get(link.call.args[1].value)
        number = None if made is None else gradient.outputs.index(made.buffer)
        if number is None or number in taken:
            raise run.refuse("for a gradient that is used twice, or not made here")
        taken[number] = run
    if taken.keys() != {number for number, output in enumerate(gradient.outputs) if output is not None}:
        raise UnsupportedOperator(f"op {name}: something that it makes is of use to nobody")
    return c_calls(OpRun(name, gradient.call, (), known, taken))


def _calls_with_weight(
    name: str, strip: Strip, values: _Places, outputs: _Places, workspace: Address | None
) -> list[CCall]:
    made_by, *users = strip.links
    inner = {value.name: Placed(value.type, packed.WEIGHT_WORD + value.type.offset) for value in strip.inner}
    if len(users) != 1 or users[0].call.target not in packed.USES or workspace is None:
        raise UnsupportedOperator(f"op {name}: it does something else with a packed weight than to multiply")
    made = tuple(None if item is None else outputs[item] for item in users[0].outputs)
    used = OpRun(name, users[0].call, made, {**values, **inner})
    return packed.inside(OpRun(name, made_by.call, (), values), c_calls(used), workspace)


def _calls_in_place(name: str, strip: Strip, values: _Places, outputs: _Places) -> list[CCall]:
    """The calls of an op whose first result is written over one of its operands."""
    first, *rest = strip.links
    made = first.outputs[0] if first.outputs else None
    state, source = (*rest[0].call.args, None, None)[:2]
    if len(rest) != 1 or not isinstance(state, Ref) or made is None or source != Ref(made):
        raise UnsupportedOperator(f"op {name}: it does more than to write one result over an operand")
    place = values[state.value]
    given = [first.call.args[index] for index in overwrites(first.call) if index < len(first.call.args)]
    operands = [values[item.value] for item in given if isinstance(item, Ref)]
    others = [values[ref] for ref in first.call.refs() if values[ref].word == place.word]
    if place not in operands or any(other != place for other in others):
        raise UnsupportedOperator(f"op {name}: {first.call.target} cannot be written over {state.value}")
    made_too = (None if item is None else outputs[item] for item in first.outputs[1:])
    return c_calls(OpRun(name, first.call, (place, *made_too), values))


def c_calls(run: OpRun) -> list[CCall]:
    """The calls that make one run of an op.

    Raises:
        UnsupportedOperator: the operator has no kernel, or its kernel does not do what the run asks for.
        GraphError: its arguments are not those of the operator.
    """
    kernel = spec_of(run.call.target).c
    if kernel is None:
        raise run.refuse("at all")
    if run.call.target != DEQUANTISE and any(run.values[name].in_flash for name in run.call.refs()):
        raise run.refuse("for a packed weight as it is")
    try:
        return rule_of(kernel)(run, *kernel.rule.given, **dict(kernel.rule.named))
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        # the rules read arguments as torch's exporters write them; a stranger's plan may hold others
        what = f"({type(error).__name__}: {error})"
        raise GraphError(f"op {run.name}: its arguments are not those of {run.call.target} {what}") from None
