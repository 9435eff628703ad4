"""What one run of an operator amounts to: its class, its FLOPs, the bytes it moves. One row each.

A row's key is an operator, ``aten.add``, or one overload of it, ``aten.pow.Tensor_Scalar``, which
goes first. How FLOPs are counted: `poet.devices.cost_rules`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from poet.devices.cost_rules import (
    DENSE_CONVOLUTIONS,
    Operands,
    Rule,
    attention,
    bag,
    convolution,
    convolution_backward,
    convolution_backward_class,
    convolution_class,
    distances,
    drawn_bits,
    drawn_bytes,
    indices_bytes,
    linear_backward,
    logits,
    logits_bytes,
    lstm_cell,
    matrix_product,
    per_element,
    per_input,
    per_output,
    per_picked,
    per_read,
    pooling,
    recurrent,
    recurrent_steps,
    row_class,
    row_passes,
    sorting,
    time_convolution,
)
from poet.devices.figures import OpClass
from poet.errors import GraphError, UnsupportedOperator, nearest
from poet.ir.graph import ITEM_BYTES, TensorType
from poet.ir.operators import ATEN, OWN


@dataclass(frozen=True, slots=True)
class OperatorCost:
    """What an operator costs.

    Attributes:
        op_class: what limits it, whatever its arguments.
        flops: of one run.
        input_passes: how often the inputs are read from memory.
        gathers: of its first input it reads only as many elements as it writes.
        more_bytes: moved beside inputs and outputs, each once.
        special_class: the class of a run, where that follows from its arguments.
        weight: the positional argument that is a convolution's.
    """

    op_class: OpClass
    flops: Rule
    input_passes: int = 1
    gathers: bool = False
    more_bytes: Rule | None = None
    special_class: Callable[[Operands], OpClass] | None = None
    weight: int | None = None

    def class_of(self, operands: Operands) -> OpClass:
        """What limits this run."""
        return self.op_class if self.special_class is None else self.special_class(operands)

    def channels_of(self, operands: Operands) -> tuple[int, int] | None:
        """The first two sizes of the weight, where the run is a convolution of all channels with all."""
        if self.weight is None or self.class_of(operands) not in DENSE_CONVOLUTIONS:
            return None
        made, summed = operands.tensor(self.weight).shape[:2]
        return made, summed

    def bytes_moved(self, operands: Operands) -> int:
        """Bytes read and written: each distinct value by its own element count, however it is viewed.

        What stays in the cache is not among them.
        """
        written = sum(_touched_bytes(output) for output in operands.written)
        written -= sum(_touched_bytes(output) for output in operands.cached_outputs)
        cached = operands.cached
        read = [
            0 if name in cached else _touched_bytes(value)
            for name, value in zip(dict.fromkeys(operands.call.refs()), operands.inputs, strict=True)
        ]
        if self.gathers and read:
            read[0] = min(read[0], written)
        more = 0 if self.more_bytes is None else int(self.more_bytes(operands))
        return self.input_passes * sum(read) + written + operands.updated_bytes + more


def row_of(target: str) -> OperatorCost:
    """The row of an operator by its full name, ``aten.add.Tensor`` or ``poet.sgd``.

    Raises:
        UnsupportedOperator: it has none.
    """
    row = TABLE.get(target) or TABLE.get(target.rpartition(".")[0])
    if row is None:
        raise UnsupportedOperator(
            f"operator {target} has no row in the cost table{nearest(target, (*ATEN, *OWN))}"
        )
    return row


def _touched_bytes(value: TensorType) -> int:
    """Bytes of the elements that lie apart in memory; a broadcast dimension repeats the same ones."""
    sizes = (
        size for size, stride in zip(value.shape, value.strides, strict=True) if stride != 0 or size == 0
    )
    return math.prod(sizes) * ITEM_BYTES[value.dtype]


# --- the table --------------------------------------------------------------------------------


def _aten(
    op_class: OpClass, flops: Rule, names: str, *, input_passes: int = 1, gathers: bool = False
) -> dict[str, OperatorCost]:
    return {f"aten.{name}": OperatorCost(op_class, flops, input_passes, gathers) for name in names.split()}


_E, _R, _T, _M = OpClass.ELEMENTWISE, OpClass.REDUCTION, OpClass.TRANSCENDENTAL, OpClass.MOVEMENT
_P = OpClass.POOLING

_PRODUCTS = {
    **_aten(OpClass.MATMUL, matrix_product(0), "mm bmm mv dot vdot"),
    **_aten(OpClass.MATMUL, matrix_product(1), "addmm baddbmm addbmm addmv"),
    **_aten(OpClass.MATMUL, linear_backward, "linear_backward"),
    "aten.convolution": OperatorCost(
        OpClass.CONVOLUTION, convolution, special_class=convolution_class, weight=1
    ),
    **_aten(OpClass.CONVOLUTION, time_convolution, "conv_tbc"),
    "aten.convolution_backward": OperatorCost(
        OpClass.CONVOLUTION_BACKWARD, convolution_backward, special_class=convolution_backward_class, weight=2
    ),
    "poet.padded_convolution": OperatorCost(
        OpClass.CONVOLUTION, convolution, special_class=convolution_class, weight=1
    ),
    "poet.padded_convolution_backward": OperatorCost(
        OpClass.CONVOLUTION_BACKWARD, convolution_backward, special_class=convolution_backward_class, weight=2
    ),
    **_aten(OpClass.MATMUL, attention(0, 2.0), "_scaled_dot_product_flash_attention_for_cpu"),
    **_aten(OpClass.MATMUL, attention(1, 5.0), "_scaled_dot_product_flash_attention_for_cpu_backward"),
    **_aten(OpClass.MATMUL, recurrent(1.0), "mkldnn_rnn_layer"),
    **_aten(OpClass.MATMUL, recurrent(3.0), "mkldnn_rnn_layer_backward"),
    "poet.lstm_without_gradients": OperatorCost(OpClass.MATMUL, recurrent(1.0)),
    "poet.logits_loss": OperatorCost(OpClass.MATMUL, logits(0, 1), more_bytes=logits_bytes(0, 4, 6)),
    "poet.logits_hidden_gradient": OperatorCost(
        OpClass.MATMUL, logits(1, 2), more_bytes=logits_bytes(1, 8, 8)
    ),
    "poet.logits_weight_gradient": OperatorCost(
        OpClass.MATMUL, logits(1, 2), more_bytes=logits_bytes(1, 14, None)
    ),
    "poet.recurrent": OperatorCost(OpClass.MATMUL, recurrent_steps(1.0)),
    "poet.recurrent_backward": OperatorCost(OpClass.MATMUL, recurrent_steps(3.0)),
    **_aten(OpClass.MATMUL, distances, "_cdist_forward _cdist_backward _euclidean_dist"),
    **_aten(OpClass.MATMUL, per_element(2), "_trilinear"),
}

_ELEMENTWISE = {
    **_aten(
        _E,
        per_element(1),
        """abs add neg sub rsub mul sgn sign square relu threshold threshold_backward where maximum minimum
        fmax fmin clamp clamp_min clamp_max hardtanh hardtanh_backward floor ceil round trunc frac copysign
        nan_to_num outer addr masked_fill index_fill
        bitwise_and bitwise_or bitwise_xor bitwise_not bitwise_left_shift bitwise_right_shift
        eq ne lt le gt ge logical_and logical_or logical_xor logical_not
        isnan isinf isneginf isposinf signbit""",
    ),
    **_aten(
        _E,
        per_element(2),
        """leaky_relu leaky_relu_backward _prelu_kernel softshrink softshrink_backward hardshrink
        hardshrink_backward native_dropout_backward""",
    ),
    **_aten(
        _E,
        per_element(3),
        """_prelu_kernel_backward addcmul lerp tanh_backward sigmoid_backward mse_loss mse_loss_backward
        huber_loss huber_loss_backward smooth_l1_loss smooth_l1_loss_backward multi_margin_loss
        multi_margin_loss_backward""",
    ),
    **_aten(
        _E,
        per_element(4),
        """div reciprocal sqrt rsqrt fmod remainder floor_divide hypot hardsigmoid hardsigmoid_backward
        pow.Tensor_Scalar""",
    ),
    **_aten(_E, per_element(5), "addcdiv hardswish hardswish_backward glu_backward renorm"),
    **_aten(_E, per_element(8), "binary_cross_entropy_backward logit_backward"),
    **_aten(
        _E,
        per_output(8),
        """upsample_linear1d upsample_bilinear2d _upsample_bilinear2d_aa upsample_trilinear3d
        affine_grid_generator""",
    ),
    **_aten(
        _E,
        per_input(8),
        """upsample_linear1d_backward upsample_bilinear2d_backward _upsample_bilinear2d_aa_backward
        upsample_trilinear3d_backward""",
    ),
    **_aten(_E, per_output(32), "upsample_bicubic2d _upsample_bicubic2d_aa grid_sampler_2d grid_sampler_3d"),
    **_aten(
        _E,
        per_input(32),
        """upsample_bicubic2d_backward _upsample_bicubic2d_aa_backward grid_sampler_2d_backward
        grid_sampler_3d_backward""",
    ),
    **_aten(
        OpClass.RANDOM,
        per_output(10),
        """bernoulli multinomial native_dropout normal rand rand_like randint randint_like randn randn_like
        randperm""",
    ),
    **{
        name: OperatorCost(OpClass.RANDOM, per_output(10))
        for name in ("poet.bernoulli", "poet.uniform", "poet.normal", "poet.with_rng_state")
    },
    "poet.bernoulli_bits": OperatorCost(OpClass.RANDOM, drawn_bits, more_bytes=drawn_bytes),
    "poet.sgd": OperatorCost(_E, per_input(4)),
    "poet.momentum": OperatorCost(_E, per_input(6)),
    "poet.adamw": OperatorCost(OpClass.ADAPTIVE_UPDATE, per_input(20)),
    "poet.adam": OperatorCost(OpClass.ADAPTIVE_UPDATE, per_input(20)),
    "poet.adamw_amsgrad": OperatorCost(OpClass.ADAPTIVE_UPDATE, per_input(21)),
    "poet.adam_amsgrad": OperatorCost(OpClass.ADAPTIVE_UPDATE, per_input(21)),
    "poet.rmsprop": OperatorCost(OpClass.ADAPTIVE_UPDATE, per_input(18)),
    "poet.adagrad": OperatorCost(OpClass.ADAPTIVE_UPDATE, per_input(14)),
    "poet.lion": OperatorCost(OpClass.ADAPTIVE_UPDATE, per_input(9)),
    "poet.adadelta": OperatorCost(OpClass.ADAPTIVE_UPDATE, per_input(27)),
    "poet.adamax": OperatorCost(OpClass.ADAPTIVE_UPDATE, per_input(14)),
    "poet.nadam": OperatorCost(OpClass.ADAPTIVE_UPDATE, per_input(29)),
    "poet.radam": OperatorCost(OpClass.ADAPTIVE_UPDATE, per_input(28)),
    "poet.clip_coefficient": OperatorCost(_E, per_read(2)),
    "poet.accumulate": OperatorCost(_E, per_input(1)),
    "poet.relu": OperatorCost(_E, per_input(3), input_passes=2),  # its output is read again for the bits
    "poet.relu_backward": OperatorCost(_E, per_input(2)),
    "poet.masked": OperatorCost(_E, per_input(3)),
}

_TRANSCENDENTAL = {
    **_aten(
        _T,
        per_element(1),
        """exp exp2 expm1 log log2 log10 log1p sigmoid erf erfc sin cos tan asin acos atan sinh cosh
        asinh acosh atanh sinc silu silu_backward elu elu_backward celu glu logit xlogy
        softplus_backward log_sigmoid_backward soft_margin_loss_backward
        logsumexp logcumsumexp""",
    ),
    **{
        f"aten.{name}": OperatorCost(_T, per_element(1), special_class=row_class(dim))
        for name, dim in (
            *(("_softmax", 1), ("_safe_softmax", 1), ("_log_softmax", 1)),
            ("_log_softmax_backward_data", 2),
        )
    },
    **_aten(OpClass.TANH, per_element(1), "tanh"),
    **_aten(
        _T,
        per_element(2),
        """pow atan2 softplus mish mish_backward log_sigmoid_forward logaddexp logaddexp2
        binary_cross_entropy binary_cross_entropy_with_logits soft_margin_loss lgamma digamma erfinv""",
    ),
    **_aten(_T, lstm_cell, "_thnn_fused_lstm_cell"),
    "poet.ctc_loss": OperatorCost(_T, per_output(4)),
    "poet.ctc_loss_backward": OperatorCost(_T, per_read(5)),
    **_aten(OpClass.GELU, per_element(1), "gelu"),
    **_aten(OpClass.GELU, per_element(2), "gelu_backward"),
}

_REDUCTIONS = {
    **_aten(
        _R,
        per_input(1),
        """all any amax amin aminmax argmax argmin count_nonzero max min mean sum nansum prod trace cumsum
        cumprod cummax cummin""",
    ),
    **_aten(
        _P,
        per_input(1),
        "_adaptive_avg_pool2d _adaptive_avg_pool3d adaptive_max_pool2d adaptive_max_pool3d",
    ),
    **_aten(_R, per_input(2), "norm linalg_vector_norm _weight_norm_interface"),
    **_aten(_R, per_input(4), "std var std_mean var_mean", input_passes=2),
    **_aten(_R, sorting, "sort topk kthvalue median mode"),
    **_aten(_R, per_element(4), "_softmax_backward_data _weight_norm_interface_backward"),
    **_aten(OpClass.BATCH_NORM, per_input(5), "native_batch_norm _native_batch_norm_legit", input_passes=2),
    **_aten(OpClass.BATCH_NORM_BACKWARD, per_input(8), "native_batch_norm_backward", input_passes=2),
    "poet.norm_relu": OperatorCost(OpClass.BATCH_NORM, per_input(6), input_passes=2),
    "poet.norm_relu_backward": OperatorCost(OpClass.BATCH_NORM_BACKWARD, per_input(10), input_passes=2),
    **_aten(_R, per_input(6), "native_layer_norm _fused_rms_norm"),
    **_aten(_R, per_input(6), "native_group_norm", input_passes=2),
    **_aten(_R, per_input(11), "native_layer_norm_backward _fused_rms_norm_backward"),
    **_aten(_R, per_input(11), "native_group_norm_backward", input_passes=2),
    **_aten(
        _P,
        pooling(lambda o: o.written[0].elements, window=1),
        "max_pool2d_with_indices max_pool3d_with_indices avg_pool2d avg_pool3d",
    ),
    **_aten(_P, pooling(lambda o: o.tensor(0).elements, window=2), "avg_pool2d_backward avg_pool3d_backward"),
    "poet.max_pool": OperatorCost(
        _P, pooling(lambda o: o.written[0].elements, window=1), more_bytes=indices_bytes
    ),
    **_aten(_R, per_element(8), "isin searchsorted bucketize"),
    **_aten(_R, bag(0), "_embedding_bag _embedding_bag_forward_only", gathers=True),
    **_aten(_R, bag(1), "_embedding_bag_per_sample_weights_backward"),
    **_aten(_R, per_picked(1), "nll_loss_forward nll_loss2d_forward", gathers=True),
}

_MOVEMENT = {
    **_aten(
        _M,
        per_output(1),
        """_to_copy cat clone stack constant_pad_nd diag_embed flip repeat roll rot90 tril triu unsafe_split
        unsafe_split_with_sizes arange empty_strided eye linspace tril_indices triu_indices
        select_backward slice_backward diagonal_backward unfold_backward
        select_scatter slice_scatter diagonal_scatter masked_scatter scatter scatter_add scatter_reduce
        index_add index_copy index_put _unsafe_index_put embedding_dense_backward
        _embedding_bag_backward
        nll_loss_backward nll_loss2d_backward max_unpool2d max_unpool3d
        max_pool2d_with_indices_backward max_pool3d_with_indices_backward
        adaptive_max_pool2d_backward adaptive_max_pool3d_backward
        _adaptive_avg_pool2d_backward _adaptive_avg_pool3d_backward
        reflection_pad1d reflection_pad1d_backward reflection_pad2d reflection_pad2d_backward
        reflection_pad3d reflection_pad3d_backward replication_pad1d replication_pad1d_backward
        replication_pad2d replication_pad2d_backward replication_pad3d replication_pad3d_backward
        upsample_nearest1d upsample_nearest1d_backward upsample_nearest2d upsample_nearest2d_backward
        upsample_nearest3d upsample_nearest3d_backward _upsample_nearest_exact1d
        _upsample_nearest_exact1d_backward _upsample_nearest_exact2d _upsample_nearest_exact2d_backward
        _upsample_nearest_exact3d _upsample_nearest_exact3d_backward
        pixel_shuffle pixel_unshuffle channel_shuffle im2col col2im""",
    ),
    **_aten(
        _M,
        per_output(1),
        "embedding gather index _unsafe_index index_select take take_along_dim",
        gathers=True,
    ),
    **{
        name: OperatorCost(_M, per_output(1))
        for name in ("poet.full", "poet.copy", "poet.scatter", "poet.rng_state")
    },
    "poet.look_up": OperatorCost(_M, per_output(1), gathers=True),
    "poet.look_up_backward": OperatorCost(_M, per_output(1)),
    "poet.stored_rows": OperatorCost(_M, per_output(1)),
    "poet.stored_rows_sgd": OperatorCost(_E, per_input(3), more_bytes=row_passes),
    "poet.assign": OperatorCost(_M, per_input(1)),
    "poet.max_pool_backward": OperatorCost(_M, per_output(1)),
    "poet.callers_loss": OperatorCost(_M, lambda o: 0.0),
}

TABLE: dict[str, OperatorCost] = {**_PRODUCTS, **_ELEMENTWISE, **_TRANSCENDENTAL, **_REDUCTIONS, **_MOVEMENT}
"""Every operator that a plan may call, by name without its overload, or one overload by its own."""


@dataclass(frozen=True, slots=True)
class Amounts:
    """What one run of an op amounts to.

    Attributes:
        op_class: what limits it.
        flops: that its result takes.
        bytes_moved: to and from RAM.
        channels: the first two sizes of a dense convolution's weight; ``None`` for all else.
    """

    op_class: OpClass
    flops: float
    bytes_moved: int
    channels: tuple[int, int] | None = None

    def padded_flops(self, block_channels: int) -> float:
        """FLOPs of a kernel that works on so many channels at once, and so fills up the last block.

        Fewer channels than a block, of those that are summed over, are read as they lie: the kernels of a
        first layer (oneDNN, ``is_1stconv`` in ``jit_avx512_common_conv_kernel.cpp``).
        """
        if self.channels is None:
            return self.flops
        made, summed = self.channels
        factor = math.ceil(made / block_channels) * block_channels / made
        if summed >= block_channels:
            factor *= math.ceil(summed / block_channels) * block_channels / summed
        return self.flops * factor


def amounts_for(operands: Operands, who: str, operator: str) -> Amounts:
    """Of one run on ``operands``; messages name ``who`` makes it, and the ``operator``.

    Raises:
        UnsupportedOperator: the cost table has no row for it.
        GraphError: its arguments are not those of its operator.
    """
    row = row_of(operands.call.target)
    try:
        return Amounts(
            row.class_of(operands),
            row.flops(operands),
            row.bytes_moved(operands),
            row.channels_of(operands),
        )
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        # the rules read arguments as torch's exporters write them; a stranger's plan may hold others
        raise GraphError(
            f"{who}: its arguments are not those of {operator} ({type(error).__name__}: {error})"
        ) from None
