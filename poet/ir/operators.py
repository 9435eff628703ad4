"""The operators that a training step may be made of: the allow-list, which of them draw random numbers, and
the arguments of our own. Importer, costs and kernels have one row for each; tests hold the tables together.

A plan file is data from a stranger: an operator runs only if its name is in `ATEN` or `OWN`. All are
functional, except those in `WRITES`, which write the tensors that the op's ``updates`` name. No row reads a
file, an address or another device.
"""

from __future__ import annotations

from collections.abc import Mapping

_GROUPS = {
    "pointwise": """
        abs acos acosh add.Scalar add.Tensor addcdiv addcmul asin asinh atan atan2 atanh ceil celu
        clamp clamp.Tensor clamp_max clamp_max.Tensor clamp_min clamp_min.Tensor copysign.Scalar
        copysign.Tensor cos cosh div.Scalar div.Scalar_mode div.Tensor div.Tensor_mode elu
        elu_backward erf erfc erfinv exp exp2 expm1 floor floor_divide floor_divide.Scalar fmax
        fmin fmod.Scalar fmod.Tensor frac gelu gelu_backward glu glu_backward hardshrink hardshrink_backward
        hardsigmoid hardsigmoid_backward hardswish hardswish_backward hardtanh hardtanh_backward
        hypot leaky_relu leaky_relu_backward lerp.Scalar lerp.Tensor lgamma digamma log log10 log1p log2
        log_sigmoid_backward log_sigmoid_forward logaddexp logaddexp2 logit logit_backward
        maximum minimum mish mish_backward mul.Scalar mul.Tensor nan_to_num neg pow.Scalar
        pow.Tensor_Scalar pow.Tensor_Tensor _prelu_kernel _prelu_kernel_backward reciprocal relu
        remainder.Scalar remainder.Scalar_Tensor remainder.Tensor round round.decimals
        rsqrt rsub.Scalar rsub.Tensor sgn sigmoid sigmoid_backward sign
        silu silu_backward sin sinc sinh softplus softplus_backward softshrink softshrink_backward
        sqrt square sub.Scalar sub.Tensor tan tanh tanh_backward threshold threshold_backward trunc
        where.self where.ScalarSelf where.ScalarOther where.Scalar xlogy.Tensor xlogy.Scalar_Other
        xlogy.Scalar_Self native_dropout_backward""",
    "logic": """
        bitwise_and.Scalar bitwise_and.Tensor bitwise_left_shift.Tensor
        bitwise_left_shift.Tensor_Scalar bitwise_not bitwise_or.Scalar bitwise_or.Tensor
        bitwise_right_shift.Tensor bitwise_right_shift.Tensor_Scalar bitwise_xor.Scalar
        bitwise_xor.Tensor eq.Scalar eq.Tensor ge.Scalar ge.Tensor gt.Scalar gt.Tensor
        isin.Tensor_Tensor isinf isnan isneginf isposinf le.Scalar le.Tensor logical_and logical_not
        logical_or logical_xor lt.Scalar lt.Tensor ne.Scalar ne.Tensor signbit""",
    "reduction": """
        all all.dim all.dims amax amin aminmax any any.dim any.dims argmax argmin count_nonzero
        count_nonzero.dim_IntList cummax cummin cumprod cumsum kthvalue logcumsumexp logsumexp max
        max.dim mean mean.dim median median.dim min min.dim mode nansum norm.Scalar norm.ScalarOpt_dim
        norm.ScalarOpt_dim_dtype norm.ScalarOpt_dtype linalg_vector_norm prod prod.dim_int
        std.correction std_mean.correction sum sum.dim_IntList var.correction
        var_mean.correction""",
    "linear algebra": """
        addbmm addmm addmv addr baddbmm bmm dot linear_backward mm mv outer trace vdot _trilinear
        _cdist_forward _cdist_backward _euclidean_dist""",
    "convolution": "convolution convolution_backward im2col col2im conv_tbc",
    "normalisation": """
        native_batch_norm native_batch_norm_backward _native_batch_norm_legit.no_stats
        native_group_norm native_group_norm_backward native_layer_norm native_layer_norm_backward
        _fused_rms_norm _fused_rms_norm_backward _weight_norm_interface
        _weight_norm_interface_backward renorm""",
    "softmax and attention": """
        _log_softmax _log_softmax_backward_data _safe_softmax _softmax _softmax_backward_data
        _scaled_dot_product_flash_attention_for_cpu
        _scaled_dot_product_flash_attention_for_cpu_backward""",
    "pooling and resampling": """
        _adaptive_avg_pool2d _adaptive_avg_pool2d_backward _adaptive_avg_pool3d
        _adaptive_avg_pool3d_backward adaptive_max_pool2d adaptive_max_pool2d_backward
        adaptive_max_pool3d adaptive_max_pool3d_backward avg_pool2d avg_pool2d_backward avg_pool3d
        avg_pool3d_backward max_pool2d_with_indices max_pool2d_with_indices_backward
        max_pool3d_with_indices max_pool3d_with_indices_backward max_unpool2d max_unpool3d
        grid_sampler_2d grid_sampler_2d_backward grid_sampler_3d grid_sampler_3d_backward
        affine_grid_generator pixel_shuffle pixel_unshuffle channel_shuffle
        upsample_bicubic2d upsample_bicubic2d_backward upsample_bilinear2d
        upsample_bilinear2d_backward upsample_linear1d upsample_linear1d_backward
        upsample_nearest1d upsample_nearest1d_backward upsample_nearest2d
        upsample_nearest2d_backward upsample_nearest3d upsample_nearest3d_backward
        upsample_trilinear3d upsample_trilinear3d_backward _upsample_nearest_exact1d
        _upsample_nearest_exact1d_backward _upsample_nearest_exact2d
        _upsample_nearest_exact2d_backward _upsample_nearest_exact3d
        _upsample_nearest_exact3d_backward _upsample_bilinear2d_aa _upsample_bilinear2d_aa_backward
        _upsample_bicubic2d_aa _upsample_bicubic2d_aa_backward""",
    "recurrent": "mkldnn_rnn_layer mkldnn_rnn_layer_backward _thnn_fused_lstm_cell",
    "loss": """
        binary_cross_entropy binary_cross_entropy_backward binary_cross_entropy_with_logits
        huber_loss huber_loss_backward mse_loss mse_loss_backward multi_margin_loss
        multi_margin_loss_backward nll_loss_forward nll_loss_backward nll_loss2d_forward
        nll_loss2d_backward smooth_l1_loss smooth_l1_loss_backward soft_margin_loss
        soft_margin_loss_backward""",
    "layout and padding": """
        _to_copy cat clone constant_pad_nd diag_embed diagonal_backward flip reflection_pad1d
        reflection_pad1d_backward reflection_pad2d reflection_pad2d_backward reflection_pad3d
        reflection_pad3d_backward repeat replication_pad1d replication_pad1d_backward
        replication_pad2d replication_pad2d_backward replication_pad3d
        replication_pad3d_backward roll rot90 select_backward slice_backward stack tril triu
        unfold_backward unsafe_split.Tensor unsafe_split_with_sizes""",
    "indexing": """
        _embedding_bag _embedding_bag_backward _embedding_bag_forward_only
        _embedding_bag_per_sample_weights_backward
        _unsafe_index.Tensor _unsafe_index_put embedding embedding_dense_backward gather index.Tensor
        index_add index_copy index_fill.int_Scalar index_fill.int_Tensor index_put index_select
        masked_fill.Scalar masked_fill.Tensor masked_scatter scatter.reduce scatter.src scatter.value
        scatter.value_reduce scatter_add scatter_reduce.two searchsorted.Tensor bucketize.Tensor
        select_scatter slice_scatter diagonal_scatter sort sort.stable take take_along_dim topk""",
    "made from nothing": """
        arange arange.start arange.start_step empty_strided eye eye.m linspace tril_indices
        triu_indices""",
    "random": """
        bernoulli bernoulli.p bernoulli.Tensor multinomial native_dropout normal.Tensor_Tensor
        normal.Tensor_float normal.float_Tensor rand rand_like randint randint.low randint_like
        randint_like.low_dtype randn randn_like randperm""",
}


def full_name(name: str) -> str:
    """``aten.<name>.<overload>`` of an ATen operator; a name of one of our own as it is."""
    if name.startswith("poet."):
        return name
    return f"aten.{name if '.' in name else name + '.default'}"


ATEN: frozenset[str] = frozenset(full_name(name) for group in _GROUPS.values() for name in group.split())
"""The ATen operators a plan may call, as ``aten.<name>.<overload>``."""

RANDOM: frozenset[str] = frozenset(full_name(name) for name in _GROUPS["random"].split()) | {
    "poet.bernoulli", "poet.bernoulli_bits", "poet.normal", "poet.uniform"
}  # fmt: skip
"""The operators that draw from torch's default generator."""

OWN: Mapping[str, tuple[str, ...]] = {
    "poet.full": ("shape", "strides", "element", "fill"),
    "poet.copy": ("source", "shape", "strides", "element"),
    "poet.scatter": ("base", "source", "shape", "strides", "offset"),
    "poet.assign": ("state", "source"),
    "poet.bernoulli": ("shape", "strides", "element", "p"),
    "poet.uniform": ("shape", "strides", "element", "low", "high"),
    "poet.normal": ("shape", "strides", "element", "mean", "std"),
    "poet.rng_state": (),
    "poet.with_rng_state": ("state", "target", "*args", "**kwargs"),
    "poet.recurrent": ("kind", "products", "initial", "weight", "bias", "reverse"),
    "poet.recurrent_backward": (
        "kind", "gradients", "products", "initial", "weight", "bias", "states", "reverse", "wanted",
    ),
    "poet.lstm_without_gradients": (
        "source", "weight0", "weight1", "weight2", "weight3", "hidden", "cell", "reverse", "batch_sizes",
        "mode", "hidden_size", "num_layers", "has_biases", "bidirectional", "batch_first", "train",
    ),
    "poet.ctc_loss": (
        "log_probs", "targets", "input_lengths", "target_lengths", "blank", "zero_infinity",
    ),
    "poet.ctc_loss_backward": (
        "gradient", "log_probs", "targets", "input_lengths", "target_lengths", "loss", "log_alpha", "blank",
        "zero_infinity",
    ),
    "poet.sgd": ("parameter", "gradient", "lr", "weight_decay"),
    "poet.momentum": (
        "parameter", "gradient", "momentum_buffer", "lr", "gradient_share", "momentum", "weight_decay",
        "nesterov",
    ),
    "poet.adamw": (
        "parameter", "gradient", "exp_avg", "exp_avg_sq", "decay_factor", "step_size",
        "second_moment_correction", "beta1", "beta2", "eps",
    ),
    "poet.adam": (
        "parameter", "gradient", "exp_avg", "exp_avg_sq", "step_size", "second_moment_correction", "beta1",
        "beta2", "eps", "weight_decay",
    ),
    "poet.adamw_amsgrad": (
        "parameter", "gradient", "exp_avg", "exp_avg_sq", "max_exp_avg_sq", "decay_factor", "step_size",
        "second_moment_correction", "beta1", "beta2", "eps",
    ),
    "poet.adam_amsgrad": (
        "parameter", "gradient", "exp_avg", "exp_avg_sq", "max_exp_avg_sq", "step_size",
        "second_moment_correction", "beta1", "beta2", "eps", "weight_decay",
    ),
    "poet.rmsprop": (
        "parameter", "gradient", "square_avg", "momentum_buffer", "grad_avg", "lr", "alpha", "eps",
        "momentum", "weight_decay",
    ),
    "poet.adagrad": ("parameter", "gradient", "sum_of_squares", "step_size", "eps", "weight_decay"),
    "poet.lion": ("parameter", "gradient", "exp_avg", "lr", "decay_factor", "beta1", "beta2"),
    "poet.adadelta": ("parameter", "gradient", "square_avg", "acc_delta", "lr", "rho", "eps", "weight_decay"),
    "poet.adamax": (
        "parameter", "gradient", "exp_avg", "exp_inf", "step_size", "beta1", "beta2", "eps", "weight_decay",
    ),
    "poet.nadam": (
        "parameter", "gradient", "exp_avg", "exp_avg_sq", "decay_factor", "weight_decay",
        "gradient_step_size", "step_size", "second_moment_correction", "beta1", "beta2", "eps",
    ),
    "poet.radam": (
        "parameter", "gradient", "exp_avg", "exp_avg_sq", "decay_factor", "weight_decay", "lr",
        "first_moment_correction", "second_moment_correction", "rectification", "beta1", "beta2", "eps",
    ),
    "poet.clip_coefficient": ("norms", "largest"),
    "poet.callers_loss": ("outputs", "gradients"),
    "poet.accumulate": ("total", "gradient", "is_first"),
    "poet.look_up": ("rows", "numbers", "first", "count", "found"),
    "poet.look_up_backward": ("gradient", "numbers", "first", "count", "padding"),
    "poet.stored_rows": ("numbers", "count", "width", "element"),
    "poet.stored_rows_sgd": ("numbers", "count", "width", "element", "gradient", "lr", "padding"),
    "poet.logits_loss": ("hidden", "weight", "bias", "classes", "reduction", "ignored", "rows"),
    "poet.logits_hidden_gradient": (
        "gradient", "hidden", "weight", "bias", "classes", "total", "reduction", "ignored", "rows",
    ),
    "poet.logits_weight_gradient": (
        "gradient", "hidden", "weight", "bias", "classes", "total", "largest", "shift", "reduction",
        "ignored", "columns", "count",
    ),
    "poet.relu": ("source", "rows"),
    "poet.relu_backward": ("gradient", "bits"),
    "poet.bernoulli_bits": ("shape", "element", "p", "rows"),
    "poet.masked": ("source", "bits", "factor"),
    "poet.norm_relu": (
        "source", "weight", "bias", "running_mean", "running_variance", "training", "momentum", "eps",
    ),
    "poet.norm_relu_backward": (
        "gradient", "source", "weight", "bias", "saved_mean", "saved_scale", "training", "eps",
    ),
    "poet.padded_convolution": (
        "source", "weight", "bias", "stride", "padding", "dilation", "transposed", "output_padding",
        "groups", "pads",
    ),
    "poet.padded_convolution_backward": (
        "gradient", "source", "weight", "bias_sizes", "stride", "padding", "dilation", "transposed",
        "output_padding", "groups", "output_mask", "pads",
    ),
    "poet.max_pool": ("source", "kernel", "stride", "padding", "dilation", "ceil_mode"),
    "poet.max_pool_backward": (
        "gradient", "source", "kernel", "stride", "padding", "dilation", "ceil_mode", "places",
    ),
}  # fmt: skip
"""Operators of our own with the names of their arguments: factories with explicit strides, saved randomness,
recurrent layers, connectionist temporal classification, optimizer updates, what gradients are clipped by, the
moment at which the caller of a wrapped module has its outputs and gives their gradients, sums of gradients
over micro-batches, some rows of a table of ``count`` rows looked up, and the gradient of ``count`` rows of
one, rows of a table looked up and updated where it lies in storage, a last layer with its loss in strips,
layers that keep bits or bytes for backward, batch norm with a rectifier."""

WRITES: Mapping[str, tuple[int, ...]] = {
    "poet.assign": (0,),
    "poet.accumulate": (0,),
    "poet.sgd": (0,),
    "poet.momentum": (0, 2),
    "poet.adamw": (0, 2, 3),
    "poet.adam": (0, 2, 3),
    "poet.adamw_amsgrad": (0, 2, 3, 4),
    "poet.adam_amsgrad": (0, 2, 3, 4),
    "poet.rmsprop": (0, 2, 3, 4),
    "poet.adagrad": (0, 2),
    "poet.lion": (0, 2),
    "poet.adadelta": (0, 2, 3),
    "poet.adamax": (0, 2, 3),
    "poet.nadam": (0, 2, 3),
    "poet.radam": (0, 2, 3),
    "aten.native_batch_norm.default": (3, 4),
    "poet.norm_relu": (3, 4),
}
"""The operators that write tensors they are given, and the places of those among the arguments."""

MIS_TRACED = frozenset({"aten.mkldnn_rnn_layer.default"})
"""Operators of whose outputs the sizes are known when their kernels have run, not from the trace."""
