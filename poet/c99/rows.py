"""The operators that have a C kernel: one row each, from a run of an op to calls of C functions.

None of the kernels needs a workspace, and none writes over what it reads, except an update's parameters.
Those that make a weight's gradient hand on its elements as they are made: to be stored, or to an update.
"""

from __future__ import annotations

from collections.abc import Mapping

from poet.c99.calls import CCall, OpRun, Placed
from poet.c99.rules import (
    convolutions,
    copies,
    elementwise,
    extremes,
    lengths,
    lookup,
    losses,
    matrices,
    normalisation,
    pooling,
    randomness,
    selection,
    sums,
    updates,
)
from poet.c99.rules.rule import Rule
from poet.errors import GraphError, UnsupportedOperator
from poet.graph import Call, Op, Ref, Strip, TensorType

ROWS: dict[str, Rule] = {
    "aten._adaptive_avg_pool2d.default": pooling.adaptive_avg_pool,
    "aten._adaptive_avg_pool2d_backward.default": pooling.adaptive_avg_pool_backward,
    "aten._log_softmax.default": losses.log_softmax,
    "aten._log_softmax_backward_data.default": losses.log_softmax_backward,
    "aten._prelu_kernel.default": elementwise.prelu,
    "aten._prelu_kernel_backward.default": elementwise.prelu_backward,
    "aten._safe_softmax.default": losses.safe_softmax,
    "aten._softmax.default": losses.softmax,
    "aten._softmax_backward_data.default": losses.softmax_backward,
    "aten._weight_norm_interface.default": lengths.weight_norm,
    "aten._weight_norm_interface_backward.default": lengths.weight_norm_backward,
    "aten.abs.default": elementwise.unary("poet_absolute"),
    "aten.adaptive_max_pool2d.default": pooling.adaptive_max_pool,
    "aten.adaptive_max_pool2d_backward.default": pooling.adaptive_max_pool_backward,
    "aten.add.Scalar": elementwise.add,
    "aten.add.Tensor": elementwise.add,
    "aten.addmm.default": matrices.addmm,
    "aten.amax.default": extremes.extreme(1),
    "aten.amin.default": extremes.extreme(-1),
    "aten.arange.default": lookup.arange,
    "aten.arange.start_step": lookup.arange_from,
    "aten.avg_pool2d.default": pooling.avg_pool,
    "aten.avg_pool2d_backward.default": pooling.avg_pool_backward,
    "aten.bmm.default": matrices.bmm,
    "aten.cat.default": copies.cat,
    "aten.celu.default": elementwise.celu,
    "aten.clamp.default": elementwise.clamp,
    "aten.clamp_max.default": elementwise.at_most,
    "aten.clamp_min.Tensor": elementwise.maximum,
    "aten.clamp_min.default": elementwise.clamp,
    "aten.clone.default": elementwise.unary("poet_copy"),
    "aten.constant_pad_nd.default": elementwise.pad,
    "aten.convolution.default": convolutions.convolution,
    "aten.convolution_backward.default": convolutions.convolution_backward,
    "aten.div.Scalar": elementwise.div,
    "aten.div.Tensor": elementwise.div,
    "aten.elu.default": elementwise.elu,
    "aten.elu_backward.default": elementwise.elu_backward,
    "aten.embedding.default": lookup.embedding,
    "aten.embedding_dense_backward.default": lookup.embedding_backward,
    "aten.eq.Scalar": selection.compared(selection.EQUAL),
    "aten.eq.Tensor": selection.compared(selection.EQUAL),
    "aten.exp.default": elementwise.unary("poet_exponential"),
    "aten.ge.Scalar": selection.compared(selection.MORE | selection.EQUAL),
    "aten.ge.Tensor": selection.compared(selection.MORE | selection.EQUAL),
    "aten.gelu.default": elementwise.gelu,
    "aten.gelu_backward.default": elementwise.gelu_backward,
    "aten.gt.Scalar": selection.compared(selection.MORE),
    "aten.gt.Tensor": selection.compared(selection.MORE),
    "aten.hardsigmoid.default": elementwise.unary("poet_hardsigmoid"),
    "aten.hardsigmoid_backward.default": elementwise.backward("poet_hardsigmoid_backward"),
    "aten.hardswish.default": elementwise.unary("poet_hardswish"),
    "aten.hardswish_backward.default": elementwise.backward("poet_hardswish_backward"),
    "aten.hardtanh.default": elementwise.hardtanh,
    "aten.hardtanh_backward.default": elementwise.hardtanh_backward,
    "aten.isnan.default": selection.is_no_number,
    "aten.le.Scalar": selection.compared(selection.LESS | selection.EQUAL),
    "aten.le.Tensor": selection.compared(selection.LESS | selection.EQUAL),
    "aten.leaky_relu.default": elementwise.leaky_relu,
    "aten.leaky_relu_backward.default": elementwise.leaky_relu_backward,
    "aten.linalg_vector_norm.default": lengths.vector_norm,
    "aten.log.default": elementwise.unary("poet_logarithm"),
    "aten.log_sigmoid_backward.default": elementwise.log_sigmoid_backward,
    "aten.log_sigmoid_forward.default": elementwise.log_sigmoid,
    "aten.logical_and.default": selection.joined(is_either=False),
    "aten.logical_not.default": selection.negated,
    "aten.logical_or.default": selection.joined(is_either=True),
    "aten.lt.Scalar": selection.compared(selection.LESS),
    "aten.lt.Tensor": selection.compared(selection.LESS),
    "aten.masked_fill.Scalar": selection.masked_fill,
    "aten.max.default": extremes.extreme(1),
    "aten.max.dim": extremes.extreme_at(1),
    "aten.max_pool2d_with_indices.default": pooling.max_pool,
    "aten.max_pool2d_with_indices_backward.default": pooling.max_pool_backward,
    "aten.maximum.default": elementwise.maximum,
    "aten.mean.default": sums.mean,
    "aten.mean.dim": sums.mean,
    "aten.min.default": extremes.extreme(-1),
    "aten.min.dim": extremes.extreme_at(-1),
    "aten.minimum.default": elementwise.minimum,
    "aten.mish.default": elementwise.unary("poet_mish"),
    "aten.mish_backward.default": elementwise.backward("poet_mish_backward"),
    "aten.mm.default": matrices.mm,
    "aten.mse_loss.default": losses.mse_loss,
    "aten.mse_loss_backward.default": losses.mse_loss_backward,
    "aten.mul.Scalar": elementwise.mul,
    "aten.mul.Tensor": elementwise.mul,
    "aten.native_batch_norm.default": normalisation.batch_norm,
    "aten.native_batch_norm_backward.default": normalisation.batch_norm_backward,
    "aten.native_group_norm.default": normalisation.group_norm,
    "aten.native_group_norm_backward.default": normalisation.group_norm_backward,
    "aten.native_layer_norm.default": normalisation.layer_norm,
    "aten.native_layer_norm_backward.default": normalisation.layer_norm_backward,
    "aten.ne.Scalar": selection.compared(selection.LESS | selection.MORE | selection.UNORDERED),
    "aten.ne.Tensor": selection.compared(selection.LESS | selection.MORE | selection.UNORDERED),
    "aten.neg.default": elementwise.neg,
    "aten.nll_loss2d_backward.default": losses.nll_loss_backward,
    "aten.nll_loss2d_forward.default": losses.nll_loss,
    "aten.nll_loss_backward.default": losses.nll_loss_backward,
    "aten.nll_loss_forward.default": losses.nll_loss,
    "aten.pixel_shuffle.default": copies.pixel_shuffle,
    "aten.pixel_unshuffle.default": copies.pixel_unshuffle,
    "aten.pow.Tensor_Scalar": elementwise.power,
    "aten.reciprocal.default": elementwise.unary("poet_inverse"),
    "aten.relu.default": elementwise.unary("poet_relu"),
    "aten.repeat.default": copies.repeat,
    "aten.rsqrt.default": elementwise.unary("poet_inverse_root"),
    "aten.rsub.Scalar": elementwise.taken_from,
    "aten.scatter.src": extremes.scatter_at,
    "aten.select_backward.default": copies.select_backward,
    "aten.sgn.default": elementwise.unary("poet_sign"),
    "aten.sigmoid.default": elementwise.unary("poet_sigmoid"),
    "aten.sigmoid_backward.default": elementwise.backward("poet_sigmoid_backward"),
    "aten.silu.default": elementwise.unary("poet_silu"),
    "aten.silu_backward.default": elementwise.backward("poet_silu_backward"),
    "aten.slice_backward.default": copies.slice_backward,
    "aten.softplus.default": elementwise.softplus,
    "aten.softplus_backward.default": elementwise.softplus_backward,
    "aten.sqrt.default": elementwise.unary("poet_root"),
    "aten.stack.default": copies.stack,
    "aten.std.correction": extremes.variance(is_root=True),
    "aten.sub.Tensor": elementwise.sub,
    "aten.sum.default": sums.total,
    "aten.sum.dim_IntList": sums.total,
    "aten.tanh.default": elementwise.unary("poet_tanh"),
    "aten.tanh_backward.default": elementwise.backward("poet_tanh_backward"),
    "aten.threshold_backward.default": elementwise.threshold_backward,
    "aten.tril.default": selection.lower,
    "aten.triu.default": selection.upper,
    "aten.upsample_nearest2d.default": pooling.upsample_nearest,
    "aten.upsample_nearest2d_backward.default": pooling.upsample_nearest_backward,
    "aten.var.correction": extremes.variance(is_root=False),
    "aten.where.self": selection.where,
    "poet.adamw": updates.adamw,
    "poet.assign": elementwise.assign,
    "poet.bernoulli": randomness.bernoulli,
    "poet.copy": elementwise.unary("poet_copy"),
    "poet.full": elementwise.full,
    "poet.momentum": updates.momentum,
    "poet.norm_relu": normalisation.norm_relu,
    "poet.norm_relu_backward": normalisation.norm_relu_backward,
    "poet.padded_convolution": convolutions.convolution,
    "poet.padded_convolution_backward": convolutions.convolution_backward,
    "poet.rng_state": randomness.random_place,
    "poet.scatter": copies.scatter,
    "poet.sgd": updates.sgd,
    "poet.with_rng_state": randomness.again,
}
"""Per operator, how a run of it becomes calls of functions in ``kernels/``."""


FUSED = (
    "aten.convolution_backward.default",
    "aten.mm.default",
    "aten.sum.dim_IntList",
    "poet.padded_convolution_backward",
)
"""The operators whose kernels hand on the elements of a gradient."""


OVERWRITTEN: dict[str, tuple[int, ...]] = {
    "aten._softmax_backward_data.default": (0,),
    "aten.add.Tensor": (0, 1),
    "aten.div.Scalar": (0,),
    "aten.elu_backward.default": (0,),
    "aten.gelu_backward.default": (0, 1),
    "aten.hardsigmoid_backward.default": (0, 1),
    "aten.hardswish_backward.default": (0, 1),
    "aten.hardtanh_backward.default": (0, 1),
    "aten.leaky_relu_backward.default": (0, 1),
    "aten.log_sigmoid_backward.default": (0, 1, 2),
    "aten.mish_backward.default": (0, 1),
    "aten.mul.Scalar": (0,),
    "aten.mul.Tensor": (0, 1),
    "aten.native_batch_norm_backward.default": (0, 1),
    "aten.neg.default": (0,),
    "aten.scatter.src": (0,),
    "aten.sigmoid_backward.default": (0,),
    "aten.silu_backward.default": (0, 1),
    "aten.softplus_backward.default": (0, 1),
    "aten.sub.Tensor": (0, 1),
    "aten.tanh_backward.default": (0,),
    "aten.threshold_backward.default": (0,),
    "poet.norm_relu_backward": (0,),
    "poet.scatter": (0,),
}
"""Per operator, the places of the operands that its kernel may write its first output over."""


DENSE: dict[str, tuple[int, ...]] = {
    "aten._adaptive_avg_pool2d.default": (0,),
    "aten._adaptive_avg_pool2d_backward.default": (0,),
    "aten._log_softmax.default": (0,),
    "aten._log_softmax_backward_data.default": (0, 1),
    "aten._safe_softmax.default": (0,),
    "aten._softmax.default": (0,),
    "aten._softmax_backward_data.default": (0, 1),
    "aten.adaptive_max_pool2d.default": (0,),
    "aten.adaptive_max_pool2d_backward.default": (0, 2),
    "aten.amax.default": (0,),
    "aten.amin.default": (0,),
    "aten.avg_pool2d.default": (0,),
    "aten.avg_pool2d_backward.default": (0, 1),
    "aten.constant_pad_nd.default": (0,),
    "aten.convolution.default": (0, 1),
    "aten.convolution_backward.default": (0, 1, 2),
    "aten.div.Tensor": (0,),
    "aten.eq.Scalar": (0,),
    "aten.eq.Tensor": (0, 1),
    "aten.ge.Scalar": (0,),
    "aten.ge.Tensor": (0, 1),
    "aten.gt.Scalar": (0,),
    "aten.gt.Tensor": (0, 1),
    "aten.le.Scalar": (0,),
    "aten.le.Tensor": (0, 1),
    "aten.lt.Scalar": (0,),
    "aten.lt.Tensor": (0, 1),
    "aten.masked_fill.Scalar": (0,),
    "aten.max.dim": (0,),
    "aten.max_pool2d_with_indices.default": (0,),
    "aten.max_pool2d_with_indices_backward.default": (0, 1, 7),
    "aten.min.dim": (0,),
    "aten.mul.Tensor": (0, 1),
    "aten.native_group_norm.default": (0,),
    "aten.native_group_norm_backward.default": (0, 1),
    "aten.native_layer_norm.default": (0,),
    "aten.native_layer_norm_backward.default": (0, 1),
    "aten.ne.Scalar": (0,),
    "aten.ne.Tensor": (0, 1),
    "aten.scatter.src": (3,),
    "aten.std.correction": (0,),
    "aten.upsample_nearest2d.default": (0,),
    "aten.upsample_nearest2d_backward.default": (0,),
    "aten.var.correction": (0,),
    "aten.where.self": (1, 2),
}
"""Per operator, the operands that torch's own kernel copies where they do not lie side by side, or reads to
the same bits as a copy."""


def wants_dense(op: Op, types: Mapping[str, TensorType]) -> tuple[int, ...]:
    """Places of the operands of ``op`` that its kernel refuses as they lie and torch's copies as well."""
    found = [
        place
        for place in DENSE.get(op.call.target, ())
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
    return OVERWRITTEN.get(call.target, ())


def strip_calls(
    name: str, strip: Strip, values: Mapping[str, Placed], outputs: Mapping[str, Placed]
) -> list[CCall]:
    """The calls of an op whose elements are used as they are made: by updates, or written over an operand.

    Args:
        name: of the op, for messages.
        strip: of one block: the first call, then those that use what it makes.
        values: the graph's, as far as calls read them.
        outputs: of the op, by name.

    Raises:
        UnsupportedOperator: as for `c_calls`.
        GraphError: likewise.
    """
    gradient, *users = strip.links
    if strip.is_whole and users and users[0].call.target == "poet.assign":
        return _calls_in_place(name, strip, values, outputs)
    if not strip.is_whole or gradient.call.target not in FUSED:
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


def _calls_in_place(
    name: str, strip: Strip, values: Mapping[str, Placed], outputs: Mapping[str, Placed]
) -> list[CCall]:
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
        UnsupportedOperator: the operator has no row, or its kernel does not do what the run asks for.
        GraphError: its arguments are not those of the operator.
    """
    row = ROWS.get(run.call.target)
    if row is None:
        raise run.refuse("at all")
    try:
        return row(run)
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        # the rules read arguments as torch's exporters write them; a stranger's plan may hold others
        what = f"({type(error).__name__}: {error})"
        raise GraphError(f"op {run.name}: its arguments are not those of {run.call.target} {what}") from None
