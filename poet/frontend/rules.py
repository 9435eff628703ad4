"""What is special about single operators when a trace is lowered: one row each.

An operator without a row becomes one op with the same arguments.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor, fx
from torch._ops import OpOverload

from poet.errors import UnsupportedOperator
from poet.frontend.lowering_state import Lowering, arguments
from poet.frontend.traced_operators import BACKWARD, CTC_BACKWARD, CTC_FORWARD, FORWARD, LSTM
from poet.ir.graph import Blank, Call, Ref, TensorType
from poet.passes.layouts import dense_like, layout_arguments, tensor_type

Rule = Callable[[Lowering, fx.Node], None]
Overwrite = Callable[[Lowering, fx.Node, TensorType], str]

RESHAPING = frozenset(
    f"aten.{name}"
    for name in ("t_.default", "transpose_.default", "squeeze_.default", "squeeze_.dim", "squeeze_.dims",
                 "unsqueeze_.default", "swapaxes_.default", "swapdims_.default", "detach_.default",
                 "as_strided_.default")
)  # fmt: skip
"""In-place operators that change how memory is viewed and not what is in it."""

FOR_PROFILERS = "profiler."
"""Beginning of the names of operators that mark a stretch of time for a profiler and compute nothing."""

RESIZING = ("aten.resize_", "aten.set_")
"""Beginnings of the names of in-place operators that change which memory a tensor has."""


def functional_form(target: OpOverload, written: str) -> OpOverload | None:
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


# --- in-place operators that overwrite without reading ----------------------------------------


def _drawn(target: str, *names: str) -> Overwrite:
    def overwrite(lowering: Lowering, node: fx.Node, dense: TensorType) -> str:
        bound = arguments(node)
        given = (lowering.argument(bound[name]) for name in names)
        return lowering.new(node.name, Call(target, (*layout_arguments(dense), *given)), dense)

    return overwrite


def _filled(lowering: Lowering, node: fx.Node, dense: TensorType) -> str:
    number = lowering.argument(arguments(node).get("value", 0))
    return lowering.new(node.name, Call("poet.full", (*layout_arguments(dense), number)), dense)


def _copied(name: str) -> Overwrite:
    def overwrite(lowering: Lowering, node: fx.Node, dense: TensorType) -> str:
        source = lowering.region(arguments(node)[name])
        if lowering.is_whole(source) and source.type == dense:
            return lowering.read(source)
        call = Call("poet.copy", (Ref(lowering.read(source)), *layout_arguments(dense)))
        return lowering.new(node.name, call, dense)

    return overwrite


OVERWRITES: dict[str, Overwrite] = {
    "aten.bernoulli_.float": _drawn("poet.bernoulli", "p"),
    "aten.uniform_.default": _drawn("poet.uniform", "from", "to"),
    "aten.normal_.default": _drawn("poet.normal", "mean", "std"),
    "aten.zero_.default": _filled,
    "aten.fill_.Scalar": _filled,
    "aten.fill_.Tensor": _copied("value"),
    "aten.copy_.default": _copied("src"),
}
"""What makes the new contents, and returns the name of their value."""


# --- operators with a rule of their own -------------------------------------------------------


def _full(fill: float | str) -> Rule:
    """A tensor of one number: ``fill``, or the argument of that name."""

    def rule(lowering: Lowering, node: fx.Node) -> None:
        number = lowering.argument(arguments(node)[fill]) if isinstance(fill, str) else fill
        type_ = tensor_type(node.meta["val"], node.name)
        lowering.emit(node, Call("poet.full", (*layout_arguments(type_), number)))

    return rule


def _empty(lowering: Lowering, node: fx.Node) -> None:
    shape, strides, element = layout_arguments(tensor_type(node.meta["val"], node.name))
    lowering.emit(node, Call("aten.empty_strided.default", (shape, strides), (("dtype", element),)))


def _batch_norm(lowering: Lowering, node: fx.Node) -> None:
    """The first run updates the running statistics, a recomputation is given none."""
    bound = arguments(node)
    names = ("input", "weight", "bias", "running_mean", "running_var", "training", "momentum", "eps")
    statistics = [bound[name] for name in names[3:5] if bound[name] is not None]
    for item in statistics if bound["training"] else ():
        region = lowering.region(item)
        if not lowering.is_given(region):  # what the op writes must be nobody else's
            dense = dense_like(region.type)
            copy = Call("poet.copy", (Ref(lowering.read(region)), *layout_arguments(dense)))
            lowering.assign(region, lowering.new(f"{node.name}.statistics", copy, dense), node.name)
    given = tuple(lowering.argument(bound[name]) for name in names)
    call = Call("aten.native_batch_norm.default", given)
    if not bound["training"] or not statistics:
        lowering.emit(node, call)
        return
    updates = tuple(lowering.buffer(lowering.region(item)) for item in statistics)
    repeat_call = replace(call, args=(*given[:3], None, None, *given[5:]))
    lowering.emit(node, call, updates=updates, repeat_call=repeat_call)


def _batch_norm_backward(lowering: Lowering, node: fx.Node) -> None:
    """A mode reads the running statistics or those that forward saved; it is not given the others.

    Of an evaluating forward pass nothing is saved: those are tensors of no bytes.
    """
    call = lowering.plain_call(node)
    unread = slice(3, 5) if arguments(node)["train"] else slice(5, 7)
    call = replace(call, args=(*call.args[: unread.start], None, None, *call.args[unread.stop :]))
    lowering.emit(node, call)


def _convolution_backward(lowering: Lowering, node: fx.Node) -> None:
    """Two ops: the gradients of weight and bias, then that of the input.

    Each reads only the type of the tensor whose gradient it gives.
    """
    call = lowering.plain_call(node)
    wanted, gradients = call.args[-1], node.meta["val"]
    assert isinstance(wanted, tuple)
    known: list[object] = [None] * 3
    for part, own, mask in (
        ("weight", 2, (False, *wanted[1:])),
        ("input", 1, (wanted[0], False, False)),
    ):
        if not any(mask):
            continue
        args = [*call.args[:-1], mask]
        args[own] = Blank(lowering.region(node.args[own]).type)
        results = [item if keep else None for item, keep in zip(gradients, mask, strict=True)]
        regions = lowering.emit(node, replace(call, args=tuple(args)), results, name=f"{node.name}.{part}")
        known = [new or old for new, old in zip(regions, known, strict=True)]
    lowering.stand_for(node, tuple(known))


def _backward_of(forward: str, slopes: Callable[[tuple[object, ...]], bool] = lambda _: True) -> Rule:
    """An element-wise backward operator that finds in the forward's output what it asks of the input.

    Its second argument is the input, and it compares that with numbers only: on whichever side of them the
    input is, the output is too, NaN and -0.0 included. The forward's output is mostly kept anyway, as the
    input of the next layer; the input then need not be. torch does the same where the forward wrote in place.

    Args:
        forward: the operator, whose arguments are the input and the backward's numbers.
        slopes: whether this holds for these numbers.
    """

    def rule(lowering: Lowering, node: fx.Node) -> None:
        call = lowering.plain_call(node)
        given, numbers = call.args[1], call.args[2:]
        assert isinstance(given, Ref)
        output = lowering.output_of(forward, given, numbers) if slopes(numbers) else None
        if output is not None:
            call = replace(call, args=(call.args[0], Ref(output), *numbers))
        lowering.emit(node, call)

    return rule


def _is_no_fold(numbers: tuple[object, ...]) -> bool:
    """Whether a leaky rectifier of this slope leaves each number on its side of 0."""
    slope = numbers[0]
    return isinstance(slope, int | float) and slope >= 0


def _clone(lowering: Lowering, node: fx.Node) -> None:
    """A copy of a whole tensor in its own layout is that tensor: no op writes it later.

    Not so for what lives across steps, which an update writes.
    """
    source = lowering.region(node.args[0])
    if lowering.is_whole(source) and source.type == tensor_type(node.meta["val"], node.name):
        lowering.share(node, source)
    elif str(node.target) == "aten.lift_fresh_copy.default":
        lowering.emit(node, lowering.plain_call(node, "aten.clone.default"))
    else:
        lowering.emit(node, lowering.plain_call(node))


def _product(lowering: Lowering, node: fx.Node) -> None:
    value = node.meta["val"]
    if isinstance(value, Tensor) and value.is_floating_point():
        raise UnsupportedOperator(
            f"operator {node.target}: eager looks for zeros among the factors before it chooses a formula "
            "for the gradient, so that no fixed graph equals it"
        )
    lowering.emit(node, lowering.plain_call(node))


def _own(target: str) -> Rule:
    """An operator that tracing knows by our name, and the runtime as one of its own."""

    def rule(lowering: Lowering, node: fx.Node) -> None:
        lowering.emit(node, lowering.plain_call(node, target))

    return rule


SPECIAL: dict[str, Rule] = {
    **dict.fromkeys(
        (f"aten.{name}" for name in ("empty.memory_format", "empty_like.default", "empty_strided.default",
                                     "empty_permuted.default", "new_empty.default",
                                     "new_empty_strided.default")),
        _empty,
    ),
    **dict.fromkeys(("aten.zeros.default", "aten.zeros_like.default", "aten.new_zeros.default"), _full(0)),
    **dict.fromkeys(("aten.ones.default", "aten.ones_like.default", "aten.new_ones.default"), _full(1)),
    **dict.fromkeys(
        ("aten.full.default", "aten.full_like.default", "aten.new_full.default"), _full("fill_value")
    ),
    "aten.scalar_tensor.default": _full("s"),
    "aten.native_batch_norm.default": _batch_norm,
    "aten._native_batch_norm_legit.default": _batch_norm,
    "aten.native_batch_norm_backward.default": _batch_norm_backward,
    "aten.convolution_backward.default": _convolution_backward,
    "aten.hardtanh_backward.default": _backward_of("aten.hardtanh.default"),
    "aten.leaky_relu_backward.default": _backward_of("aten.leaky_relu.default", _is_no_fold),
    **dict.fromkeys(
        ("aten.clone.default", "aten._to_copy.default", "aten.lift_fresh_copy.default"), _clone
    ),
    **{
        f"{target}.default": _own(target)
        for target in (FORWARD, BACKWARD, LSTM, CTC_FORWARD, CTC_BACKWARD)
    },
    **dict.fromkeys(("aten.prod.default", "aten.prod.dim_int", "aten.cumprod.default"), _product),
}  # fmt: skip
"""Operators that do not simply become one op of the same arguments."""
