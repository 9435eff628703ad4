"""The operators that have a C kernel: one row each, from a run of an op to calls of C functions.

None of the kernels needs a workspace, and none writes over what it reads, except an update's parameters.
Those that make a weight's gradient hand on its elements as they are made: to be stored, or to an update.
"""

from __future__ import annotations

from collections.abc import Mapping

from poet.c99.calls import CCall, OpRun, Placed, Rule
from poet.c99.rules import (
    copies,
    elementwise,
    normalisation,
    places,
    pooling,
    products,
    reductions,
    selection,
    updates,
)
from poet.errors import GraphError, UnsupportedOperator
from poet.ir.graph import Call, Op, Ref, Strip, TensorType

ROWS: dict[str, Rule] = {
    "aten._adaptive_avg_pool2d.default": pooling.adaptive_avg_pool,
    "aten._adaptive_avg_pool2d_backward.default": pooling.adaptive_avg_pool_backward,
    "aten._log_softmax.default": normalisation.log_softmax,
    "aten._log_softmax_backward_data.default": normalisation.log_softmax_backward,
    "aten._prelu_kernel.default": elementwise.prelu,
    "aten._prelu_kernel_backward.default": elementwise.prelu_backward,
    "aten._safe_softmax.default": normalisation.safe_softmax,
    "aten._softmax.default": normalisation.softmax,
    "aten._softmax_backward_data.default": normalisation.softmax_backward,
    "aten._to_copy.default": elementwise.convert,
    "aten._weight_norm_interface.default": reductions.weight_norm,
    "aten._weight_norm_interface_backward.default": reductions.weight_norm_backward,
    "aten.abs.default": elementwise.unary("poet_absolute"),
    "aten.adaptive_max_pool2d.default": pooling.adaptive_max_pool,
    "aten.adaptive_max_pool2d_backward.default": pooling.adaptive_max_pool_backward,
    "aten.add.Scalar": elementwise.add,
    "aten.add.Tensor": elementwise.add,
    "aten.addmm.default": products.addmm,
    "aten.amax.default": reductions.extreme(1),
    "aten.amin.default": reductions.extreme(-1),
    "aten.arange.default": places.arange,
    "aten.arange.start": places.arange_between,
    "aten.arange.start_step": places.arange_from,
    "aten.avg_pool2d.default": pooling.avg_pool,
    "aten.avg_pool2d_backward.default": pooling.avg_pool_backward,
    "aten.avg_pool3d.default": pooling.avg_pool,
    "aten.avg_pool3d_backward.default": pooling.avg_pool_backward,
    "aten.baddbmm.default": products.baddbmm,
    "aten.binary_cross_entropy.default": normalisation.bce("poet_bce"),
    "aten.binary_cross_entropy_backward.default": normalisation.bce_backward,
    "aten.binary_cross_entropy_with_logits.default": normalisation.bce("poet_bce_with_logits"),
    "aten.bmm.default": products.bmm,
    "aten.cat.default": copies.cat,
    "aten.celu.default": elementwise.celu,
    "aten.clamp.default": elementwise.clamp,
    "aten.clamp_max.default": elementwise.at_most,
    "aten.clamp_min.Tensor": elementwise.maximum,
    "aten.clamp_min.default": elementwise.clamp,
    "aten.clone.default": elementwise.unary("poet_copy"),
    "aten.col2im.default": copies.fold,
    "aten.constant_pad_nd.default": elementwise.pad,
    "aten.convolution.default": products.convolution,
    "aten.convolution_backward.default": products.convolution_backward,
    "aten.cos.default": elementwise.unary("poet_cosine"),
    "aten.cumsum.default": places.cumulative_sum,
    "aten.div.Scalar": elementwise.div,
    "aten.div.Tensor": elementwise.div,
    "aten.dot.default": products.dot,
    "aten.elu.default": elementwise.elu,
    "aten.elu_backward.default": elementwise.elu_backward,
    "aten.embedding.default": places.embedding,
    "aten.embedding_dense_backward.default": places.embedding_backward,
    "aten.eq.Scalar": selection.compared(selection.EQUAL),
    "aten.eq.Tensor": selection.compared(selection.EQUAL),
    "aten.exp.default": elementwise.unary("poet_exponential"),
    "aten.eye.default": elementwise.identity,
    "aten.eye.m": elementwise.identity,
    "aten.flip.default": places.flip,
    "aten.floor.default": elementwise.unary("poet_floor"),
    "aten.gather.default": places.gather,
    "aten.ge.Scalar": selection.compared(selection.MORE | selection.EQUAL),
    "aten.ge.Tensor": selection.compared(selection.MORE | selection.EQUAL),
    "aten.gelu.default": elementwise.gelu,
    "aten.gelu_backward.default": elementwise.gelu_backward,
    "aten.glu.default": elementwise.glu,
    "aten.glu_backward.default": elementwise.glu_backward,
    "aten.gt.Scalar": selection.compared(selection.MORE),
    "aten.gt.Tensor": selection.compared(selection.MORE),
    "aten.hardshrink.default": elementwise.shrink("poet_hardshrink"),
    "aten.hardshrink_backward.default": elementwise.shrink_backward,
    "aten.hardsigmoid.default": elementwise.unary("poet_hardsigmoid"),
    "aten.hardsigmoid_backward.default": elementwise.backward("poet_hardsigmoid_backward"),
    "aten.hardswish.default": elementwise.unary("poet_hardswish"),
    "aten.hardswish_backward.default": elementwise.backward("poet_hardswish_backward"),
    "aten.hardtanh.default": elementwise.hardtanh,
    "aten.hardtanh_backward.default": elementwise.hardtanh_backward,
    "aten.im2col.default": copies.unfold,
    "aten.index.Tensor": places.index,
    "aten.index_add.default": places.scatter_add,
    "aten.index_put.default": places.index_put,
    "aten.index_select.default": places.gather,
    "aten.isnan.default": selection.is_no_number,
    "aten.le.Scalar": selection.compared(selection.LESS | selection.EQUAL),
    "aten.le.Tensor": selection.compared(selection.LESS | selection.EQUAL),
    "aten.leaky_relu.default": elementwise.leaky_relu,
    "aten.leaky_relu_backward.default": elementwise.leaky_relu_backward,
    "aten.linalg_vector_norm.default": reductions.vector_norm,
    "aten.log.default": elementwise.unary("poet_logarithm"),
    "aten.log_sigmoid_backward.default": elementwise.log_sigmoid_backward,
    "aten.log_sigmoid_forward.default": elementwise.log_sigmoid,
    "aten.logical_and.default": selection.joined(is_either=False),
    "aten.logical_not.default": selection.negated,
    "aten.logical_or.default": selection.joined(is_either=True),
    "aten.logsumexp.default": reductions.log_sum_exp,
    "aten.lt.Scalar": selection.compared(selection.LESS),
    "aten.lt.Tensor": selection.compared(selection.LESS),
    "aten.masked_fill.Scalar": selection.masked_fill,
    "aten.max.default": reductions.extreme(1),
    "aten.max.dim": reductions.extreme_at(1),
    "aten.max_pool2d_with_indices.default": pooling.max_pool,
    "aten.max_pool2d_with_indices_backward.default": pooling.max_pool_backward,
    "aten.maximum.default": elementwise.maximum,
    "aten.mean.default": reductions.mean,
    "aten.mean.dim": reductions.mean,
    "aten.min.default": reductions.extreme(-1),
    "aten.min.dim": reductions.extreme_at(-1),
    "aten.minimum.default": elementwise.minimum,
    "aten.mish.default": elementwise.unary("poet_mish"),
    "aten.mish_backward.default": elementwise.backward("poet_mish_backward"),
    "aten.mm.default": products.mm,
    "aten.mse_loss.default": normalisation.mse_loss,
    "aten.mse_loss_backward.default": normalisation.mse_loss_backward,
    "aten.mul.Scalar": elementwise.mul,
    "aten.mul.Tensor": elementwise.mul,
    "aten.mv.default": products.mv,
    "aten.native_batch_norm.default": normalisation.batch_norm,
    "aten.native_batch_norm_backward.default": normalisation.batch_norm_backward,
    "aten.native_group_norm.default": normalisation.group_norm,
    "aten.native_group_norm_backward.default": normalisation.group_norm_backward,
    "aten.native_layer_norm.default": normalisation.layer_norm,
    "aten.native_layer_norm_backward.default": normalisation.layer_norm_backward,
    "aten.ne.Scalar": selection.compared(selection.LESS | selection.MORE | selection.UNORDERED),
    "aten.ne.Tensor": selection.compared(selection.LESS | selection.MORE | selection.UNORDERED),
    "aten.neg.default": elementwise.neg,
    "aten.nll_loss2d_backward.default": normalisation.nll_loss_backward,
    "aten.nll_loss2d_forward.default": normalisation.nll_loss,
    "aten.nll_loss_backward.default": normalisation.nll_loss_backward,
    "aten.nll_loss_forward.default": normalisation.nll_loss,
    "aten.norm.Scalar": reductions.vector_norm,
    "aten.norm.ScalarOpt_dim": reductions.vector_norm,
    "aten.pixel_shuffle.default": copies.pixel_shuffle,
    "aten.pixel_unshuffle.default": copies.pixel_unshuffle,
    "aten.pow.Scalar": elementwise.power_of_number,
    "aten.pow.Tensor_Scalar": elementwise.power,
    "aten.reciprocal.default": elementwise.unary("poet_inverse"),
    "aten.reflection_pad1d.default": copies.pad_edges(is_mirrored=True),
    "aten.reflection_pad1d_backward.default": copies.pad_edges_backward(is_mirrored=True),
    "aten.reflection_pad2d.default": copies.pad_edges(is_mirrored=True),
    "aten.reflection_pad2d_backward.default": copies.pad_edges_backward(is_mirrored=True),
    "aten.relu.default": elementwise.unary("poet_relu"),
    "aten.repeat.default": copies.repeat,
    "aten.replication_pad1d.default": copies.pad_edges(is_mirrored=False),
    "aten.replication_pad1d_backward.default": copies.pad_edges_backward(is_mirrored=False),
    "aten.replication_pad2d.default": copies.pad_edges(is_mirrored=False),
    "aten.replication_pad2d_backward.default": copies.pad_edges_backward(is_mirrored=False),
    "aten.roll.default": places.roll,
    "aten.rsqrt.default": elementwise.unary("poet_inverse_root"),
    "aten.rsub.Scalar": elementwise.taken_from,
    "aten.scatter.src": reductions.scatter_at,
    "aten.scatter_add.default": places.scatter_add,
    "aten.select_backward.default": copies.select_backward,
    "aten.sgn.default": elementwise.unary("poet_sign"),
    "aten.sigmoid.default": elementwise.unary("poet_sigmoid"),
    "aten.sigmoid_backward.default": elementwise.backward("poet_sigmoid_backward"),
    "aten.silu.default": elementwise.unary("poet_silu"),
    "aten.silu_backward.default": elementwise.backward("poet_silu_backward"),
    "aten.sin.default": elementwise.unary("poet_sine"),
    "aten.slice_backward.default": copies.slice_backward,
    "aten.softplus.default": elementwise.softplus,
    "aten.softplus_backward.default": elementwise.softplus_backward,
    "aten.softshrink.default": elementwise.shrink("poet_softshrink"),
    "aten.softshrink_backward.default": elementwise.shrink_backward,
    "aten.sort.default": places.ordered(1),
    "aten.sort.stable": places.ordered(2),
    "aten.sqrt.default": elementwise.unary("poet_root"),
    "aten.stack.default": copies.stack,
    "aten.std.correction": reductions.variance(is_root=True),
    "aten.sub.Tensor": elementwise.sub,
    "aten.sum.default": reductions.total,
    "aten.sum.dim_IntList": reductions.total,
    "aten.tanh.default": elementwise.unary("poet_tanh"),
    "aten.tanh_backward.default": elementwise.backward("poet_tanh_backward"),
    "aten.threshold.default": elementwise.threshold,
    "aten.threshold_backward.default": elementwise.threshold_backward,
    "aten.topk.default": places.top_k,
    "aten.tril.default": selection.lower,
    "aten.triu.default": selection.upper,
    "aten.upsample_bilinear2d.default": copies.between,
    "aten.upsample_bilinear2d_backward.default": copies.between_backward,
    "aten.upsample_linear1d.default": copies.between,
    "aten.upsample_linear1d_backward.default": copies.between_backward,
    "aten.upsample_nearest2d.default": pooling.upsample_nearest,
    "aten.upsample_nearest2d_backward.default": pooling.upsample_nearest_backward,
    "aten.var.correction": reductions.variance(is_root=False),
    "aten.vdot.default": products.dot,
    "aten.where.self": selection.where,
    "poet.adamw": updates.adamw,
    "poet.assign": elementwise.assign,
    "poet.bernoulli": copies.bernoulli,
    "poet.copy": elementwise.unary("poet_copy"),
    "poet.full": elementwise.full,
    "poet.momentum": updates.momentum,
    "poet.norm_relu": normalisation.norm_relu,
    "poet.norm_relu_backward": normalisation.norm_relu_backward,
    "poet.padded_convolution": products.convolution,
    "poet.padded_convolution_backward": products.convolution_backward,
    "poet.rng_state": copies.random_place,
    "poet.scatter": copies.scatter,
    "poet.sgd": updates.sgd,
    "poet.with_rng_state": copies.again,
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
    "aten.hardshrink_backward.default": (0, 1),
    "aten.hardsigmoid_backward.default": (0, 1),
    "aten.hardswish_backward.default": (0, 1),
    "aten.hardtanh_backward.default": (0, 1),
    "aten.index_add.default": (0,),
    "aten.index_put.default": (0,),
    "aten.leaky_relu_backward.default": (0, 1),
    "aten.log_sigmoid_backward.default": (0, 1, 2),
    "aten.mish_backward.default": (0, 1),
    "aten.mul.Scalar": (0,),
    "aten.mul.Tensor": (0, 1),
    "aten.native_batch_norm_backward.default": (0, 1),
    "aten.neg.default": (0,),
    "aten.scatter.src": (0,),
    "aten.scatter_add.default": (0,),
    "aten.sigmoid_backward.default": (0,),
    "aten.silu_backward.default": (0, 1),
    "aten.softplus_backward.default": (0, 1),
    "aten.softshrink_backward.default": (0, 1),
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
    "aten.binary_cross_entropy.default": (0, 1),
    "aten.binary_cross_entropy_backward.default": (0, 1, 2),
    "aten.binary_cross_entropy_with_logits.default": (0, 1),
    "aten.col2im.default": (0,),
    "aten.constant_pad_nd.default": (0,),
    "aten.convolution.default": (0, 1),
    "aten.convolution_backward.default": (0, 1, 2),
    "aten.cumsum.default": (0,),
    "aten.div.Tensor": (0,),
    "aten.embedding_dense_backward.default": (0,),
    "aten.eq.Scalar": (0,),
    "aten.eq.Tensor": (0, 1),
    "aten.flip.default": (0,),
    "aten.gather.default": (0,),
    "aten.ge.Scalar": (0,),
    "aten.ge.Tensor": (0, 1),
    "aten.gt.Scalar": (0,),
    "aten.gt.Tensor": (0, 1),
    "aten.im2col.default": (0,),
    "aten.index.Tensor": (0,),
    "aten.index_add.default": (3,),
    "aten.index_put.default": (2,),
    "aten.index_select.default": (0,),
    "aten.le.Scalar": (0,),
    "aten.le.Tensor": (0, 1),
    "aten.logsumexp.default": (0,),
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
    "aten.reflection_pad1d.default": (0,),
    "aten.reflection_pad1d_backward.default": (0,),
    "aten.reflection_pad2d.default": (0,),
    "aten.reflection_pad2d_backward.default": (0,),
    "aten.replication_pad1d.default": (0,),
    "aten.replication_pad1d_backward.default": (0,),
    "aten.replication_pad2d.default": (0,),
    "aten.replication_pad2d_backward.default": (0,),
    "aten.scatter.src": (3,),
    "aten.scatter_add.default": (3,),
    "aten.std.correction": (0,),
    "aten.topk.default": (0,),
    "aten.upsample_bilinear2d.default": (0,),
    "aten.upsample_bilinear2d_backward.default": (0,),
    "aten.upsample_linear1d.default": (0,),
    "aten.upsample_linear1d_backward.default": (0,),
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
