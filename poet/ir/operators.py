"""The operators that a training step may be made of, each with all that is known of it, and the sets of them.

A plan file is data from a stranger: an operator runs only if it has a row. All are functional, except those
in `WRITES`, which write the tensors that the op's ``updates`` name. No row reads a file, an address or
another device. What a row may say: `poet.ir.op_spec`.
"""

from __future__ import annotations

from collections.abc import Mapping

from poet.ir.op_spec import (
    Numbers,
    OpClass,
    OpSpec,
    Out,
    c,
    each,
    per_element,
    per_input,
    per_output,
    rule,
)
from poet.ir.optimizer_kinds import updates

op = OpSpec
E, R, T, M = OpClass.ELEMENTWISE, OpClass.REDUCTION, OpClass.TRANSCENDENTAL, OpClass.MOVEMENT
MATMUL, POOLING = OpClass.MATMUL, OpClass.POOLING
TABLE_ROWS = "rows of its table"

# fmt: off
_TABLE: tuple[OpSpec, ...] = (
    # pointwise
    op("abs", E, per_element(1), c=each("poet_absolute")),
    op("acos acosh asin asinh atan atanh cosh erf erfc exp2 expm1 log10 log1p log2 logit sinc sinh tan "
        "xlogy.Tensor xlogy.Scalar_Other xlogy.Scalar_Self", T, per_element(1)),
    op("add.Scalar", E, per_element(1), c=c("elementwise.add")),
    op("add.Tensor", E, per_element(1), passing_cut=rule("elementwise"), out=Out((0, 1), "add.out"),
        c=c("elementwise.add", over=(0, 1))),
    op("addcdiv", E, per_element(5)),
    op("addcmul lerp.Scalar lerp.Tensor", E, per_element(3)),
    op("atan2 erfinv lgamma digamma logaddexp logaddexp2 pow.Tensor_Tensor", T, per_element(2)),
    op("ceil clamp.Tensor clamp_max.Tensor copysign.Scalar copysign.Tensor fmax fmin frac nan_to_num round "
        "round.decimals rsub.Tensor sign square sub.Scalar trunc where.ScalarSelf where.ScalarOther "
        "where.Scalar", E, per_element(1)),
    op("celu", T, per_element(1), c=c("elementwise.celu")),
    op("clamp clamp_min", E, per_element(1), c=c("elementwise.clamp")),
    op("clamp_max", E, per_element(1), c=c("elementwise.bounded", 1, "-1.0f")),
    op("clamp_min.Tensor maximum", E, per_element(1), c=each("poet_maximum", 0, 1)),
    op("cos", T, per_element(1), c=each("poet_cosine")),
    op("div.Scalar", E, per_element(4), out=Out((0,), "div_.Scalar"), c=c("elementwise.div", over=(0,))),
    op("div.Scalar_mode floor_divide.Scalar fmod.Scalar hypot remainder.Scalar", E, per_element(4)),
    op("div.Tensor", E, per_element(4), out=Out((0,), "div.out"), c=c("elementwise.div", dense=(0,))),
    op("div.Tensor_mode floor_divide fmod.Tensor remainder.Scalar_Tensor remainder.Tensor", E, per_element(4),
        divides=True),
    op("elu", T, per_element(1), c=c("elementwise.elu")),
    op("elu_backward", T, per_element(1), out=Out((0,), "elu_backward.grad_input"),
        c=c("elementwise.elu_backward", over=(0,))),
    op("exp", T, per_element(1), c=each("poet_exponential")),
    op("floor", E, per_element(1), c=each("poet_floor")),
    op("gelu", OpClass.GELU, per_element(1), c=c("elementwise.gelu")),
    op("gelu_backward", OpClass.GELU, per_element(2), out=Out((0, 1), "gelu_backward.grad_input"),
        c=c("elementwise.gelu_backward", over=(0, 1))),
    op("glu", T, per_element(1), c=c("elementwise.glu")),
    op("glu_backward", E, per_element(5), c=c("elementwise.glu_backward")),
    op("hardshrink", E, per_element(2), c=each("poet_hardshrink", numbers=((1, 0.5),))),
    op("hardshrink_backward softshrink_backward", E, per_element(2),
        c=each("poet_shrink_backward", 0, 1, numbers=(2,), over=(0, 1))),
    op("hardsigmoid", E, per_element(4), c=each("poet_hardsigmoid")),
    op("hardsigmoid_backward", E, per_element(4), out=Out((0, 1), "hardsigmoid_backward.grad_input"),
        c=each("poet_hardsigmoid_backward", 0, 1, over=(0, 1))),
    op("hardswish", E, per_element(5), c=each("poet_hardswish")),
    op("hardswish_backward", E, per_element(5), c=each("poet_hardswish_backward", 0, 1, over=(0, 1))),
    op("hardtanh", E, per_element(1), c=c("elementwise.hardtanh", over=(0,))),
    op("hardtanh_backward", E, per_element(1), out=Out((0, 1), "hardtanh_backward.grad_input"),
        c=each("poet_hardtanh_backward", 0, 1, numbers=(2, 3), over=(0, 1))),
    op("leaky_relu", E, per_element(2), c=each("poet_leaky_relu", numbers=((1, 0.01),))),
    op("leaky_relu_backward", E, per_element(2), out=Out((0, 1), "leaky_relu_backward.grad_input"),
        c=c("elementwise.leaky_relu_backward", over=(0, 1))),
    op("log", T, per_element(1), c=each("poet_logarithm")),
    op("log_sigmoid_backward", T, per_element(1),
        c=each("poet_log_sigmoid_backward", 0, 1, 2, over=(0, 1, 2))),
    op("log_sigmoid_forward", T, per_element(2), c=c("elementwise.log_sigmoid")),
    op("logit_backward", E, per_element(8)),
    op("minimum", E, per_element(1), c=each("poet_minimum", 0, 1)),
    op("mish", T, per_element(2), c=each("poet_mish")),
    op("mish_backward", T, per_element(2), c=each("poet_mish_backward", 0, 1, over=(0, 1))),
    op("mul.Scalar", E, per_element(1), passing_cut=rule("elementwise"), out=Out((0,), "mul_.Scalar"),
        c=c("elementwise.mul", over=(0,))),
    op("mul.Tensor", E, per_element(1), passing_cut=rule("elementwise"), out=Out((0, 1), "mul.out"),
        c=c("elementwise.mul", over=(0, 1), dense=(0, 1))),
    op("neg", E, per_element(1), passing_cut=rule("elementwise"), out=Out((0,), "neg.out"),
        c=c("elementwise.neg", over=(0,))),
    op("pow.Scalar", T, per_element(2), c=c("elementwise.power_of_number")),
    op("pow.Tensor_Scalar", E, per_element(4), c=c("elementwise.power")),
    op("_prelu_kernel", E, per_element(2), c=each("poet_prelu", 0, 1)),
    op("_prelu_kernel_backward", E, per_element(3), c=c("elementwise.prelu_backward")),
    op("reciprocal", E, per_element(4), c=each("poet_inverse")),
    op("relu", E, per_element(1), saved="signs", c=each("poet_relu")),
    op("rsqrt", E, per_element(4), c=each("poet_inverse_root")),
    op("rsub.Scalar", E, per_element(1), c=c("elementwise.taken_from")),
    op("sgn", E, per_element(1), c=each("poet_sign")),
    op("sigmoid", T, per_element(1), c=each("poet_sigmoid")),
    op("sigmoid_backward", E, per_element(3), out=Out((0,), "sigmoid_backward.grad_input"),
        c=each("poet_sigmoid_backward", 0, 1, over=(0,))),
    op("silu", T, per_element(1), c=each("poet_silu")),
    op("silu_backward", T, per_element(1), out=Out((0, 1), "silu_backward.grad_input"),
        c=each("poet_silu_backward", 0, 1, over=(0, 1))),
    op("sin", T, per_element(1), c=each("poet_sine")),
    op("softplus", T, per_element(2), c=each("poet_softplus", numbers=((1, 1.0), (2, 20.0)))),
    op("softplus_backward", T, per_element(1),
        c=each("poet_softplus_backward", 0, 1, numbers=(2, 3), over=(0, 1))),
    op("softshrink", E, per_element(2), c=each("poet_softshrink", numbers=((1, 0.5),))),
    op("sqrt", E, per_element(4), c=each("poet_root")),
    op("sub.Tensor", E, per_element(1), out=Out((0, 1), "sub.out"),
        c=c("elementwise.add", -1.0, over=(0, 1))),
    op("tanh", OpClass.TANH, per_element(1), c=each("poet_tanh")),
    op("tanh_backward", E, per_element(3), out=Out((0,), "tanh_backward.grad_input"),
        c=each("poet_tanh_backward", 0, 1, over=(0,))),
    op("threshold", E, per_element(1), c=each("poet_threshold", numbers=(1, 2))),
    op("threshold_backward", E, per_element(1), out=Out((0,), "threshold_backward.grad_input"),
        c=each("poet_threshold_backward", 0, 1, numbers=(2,), over=(0,))),
    op("where.self", E, per_element(1), c=c("selection.where", dense=(1, 2))),
    op("native_dropout_backward", E, per_element(2)),
    # logic
    op("bitwise_and.Scalar bitwise_and.Tensor bitwise_left_shift.Tensor bitwise_left_shift.Tensor_Scalar "
        "bitwise_not bitwise_or.Scalar bitwise_or.Tensor bitwise_right_shift.Tensor "
        "bitwise_right_shift.Tensor_Scalar bitwise_xor.Scalar bitwise_xor.Tensor isinf isneginf isposinf "
        "logical_xor signbit", E, per_element(1)),
    op("eq.Scalar", E, per_element(1), c=c("selection.compared", "eq", dense=(0,))),
    op("eq.Tensor", E, per_element(1), c=c("selection.compared", "eq", dense=(0, 1))),
    op("ge.Scalar", E, per_element(1), c=c("selection.compared", "ge", dense=(0,))),
    op("ge.Tensor", E, per_element(1), c=c("selection.compared", "ge", dense=(0, 1))),
    op("gt.Scalar", E, per_element(1), c=c("selection.compared", "gt", dense=(0,))),
    op("gt.Tensor", E, per_element(1), c=c("selection.compared", "gt", dense=(0, 1))),
    op("isin.Tensor_Tensor", R, per_element(8)),
    op("isnan", E, per_element(1), c=c("selection.is_no_number")),
    op("le.Scalar", E, per_element(1), c=c("selection.compared", "le", dense=(0,))),
    op("le.Tensor", E, per_element(1), c=c("selection.compared", "le", dense=(0, 1))),
    op("logical_and", E, per_element(1), c=c("selection.joined", is_either=False)),
    op("logical_not", E, per_element(1), c=c("selection.negated")),
    op("logical_or", E, per_element(1), c=c("selection.joined", is_either=True)),
    op("lt.Scalar", E, per_element(1), c=c("selection.compared", "lt", dense=(0,))),
    op("lt.Tensor", E, per_element(1), c=c("selection.compared", "lt", dense=(0, 1))),
    op("ne.Scalar", E, per_element(1), c=c("selection.compared", "ne", dense=(0,))),
    op("ne.Tensor", E, per_element(1), c=c("selection.compared", "ne", dense=(0, 1))),
    # reduction
    op("all all.dim all.dims aminmax any any.dim any.dims argmax argmin count_nonzero "
        "count_nonzero.dim_IntList cummax cummin cumprod nansum prod prod.dim_int", R, per_input(1)),
    op("amax", R, per_input(1), c=c("reductions.extreme", 1, dense=(0,))),
    op("amin", R, per_input(1), c=c("reductions.extreme", -1, dense=(0,))),
    op("cumsum", R, per_input(1), c=c("places.cumulative_sum", dense=(0,))),
    op("kthvalue median median.dim mode", R, rule("sorting")),
    op("logcumsumexp", T, per_element(1)),
    op("logsumexp", T, per_element(1), c=c("reductions.log_sum_exp", dense=(0,))),
    op("max", R, per_input(1), c=c("reductions.extreme", 1)),
    op("max.dim", R, per_input(1), c=c("reductions.extreme_at", 1, dense=(0,))),
    op("mean mean.dim", R, per_input(1), c=c("reductions.total", is_mean=True)),
    op("min", R, per_input(1), c=c("reductions.extreme", -1)),
    op("min.dim", R, per_input(1), c=c("reductions.extreme_at", -1, dense=(0,))),
    op("norm.Scalar norm.ScalarOpt_dim linalg_vector_norm", R, per_input(2), c=c("reductions.vector_norm")),
    op("norm.ScalarOpt_dim_dtype norm.ScalarOpt_dtype", R, per_input(2)),
    op("std.correction", R, per_input(4), input_passes=2,
        c=c("reductions.variance", is_root=True, dense=(0,))),
    op("std_mean.correction var_mean.correction", R, per_input(4), input_passes=2),
    op("sum", R, per_input(1), c=c("reductions.total")),
    op("sum.dim_IntList", R, per_input(1), c=c("reductions.total", hands_on=True)),
    op("var.correction", R, per_input(4), input_passes=2,
        c=c("reductions.variance", is_root=False, dense=(0,))),
    # linear algebra
    op("addbmm addmv", MATMUL, rule("matrix_product", 1)),
    op("addmm", MATMUL, rule("matrix_product", 1), c=c("products.addmm")),
    op("addr outer", E, per_element(1)),
    op("baddbmm", MATMUL, rule("matrix_product", 1), c=c("products.baddbmm")),
    op("bmm", MATMUL, rule("matrix_product", 0), slices=rule("products"), c=c("products.bmm")),
    op("dot vdot", MATMUL, rule("matrix_product", 0), c=c("products.dot")),
    op("linear_backward", MATMUL, rule("linear_backward")),
    op("mm", MATMUL, rule("matrix_product", 0), gradient_cut=rule("mm"),
        c=c("products.mm", hands_on=True)),
    op("mv", MATMUL, rule("matrix_product", 0), c=c("products.mv")),
    op("trace", R, per_input(1)),
    op("_trilinear", MATMUL, per_element(2)),
    op("_cdist_forward _cdist_backward _euclidean_dist", MATMUL, rule("distances")),
    # convolution
    op("convolution", OpClass.CONVOLUTION, rule("convolution"), special_class=rule("convolution_class"),
        weight=1, count=8, slices=rule("convolution"), c=c("products.convolution", dense=(0, 1))),
    op("convolution_backward", OpClass.CONVOLUTION_BACKWARD, rule("convolution_backward"),
        special_class=rule("convolution_backward_class"), weight=2, count=9,
        gradient_cut=rule("convolution_backward"), slices=rule("convolution_backward"),
        sums=rule("input_gradient"), c=c("products.convolution_backward", dense=(0, 1, 2), hands_on=True)),
    op("im2col", M, per_output(1), c=c("copies.unfold", dense=(0,))),
    op("col2im", M, per_output(1), c=c("copies.fold", dense=(0,))),
    op("conv_tbc", OpClass.CONVOLUTION, rule("time_convolution")),
    # normalisation
    op("native_batch_norm", OpClass.BATCH_NORM, per_input(5), input_passes=2, writes=(3, 4),
        c=c("normalisation.batch_norm", "poet_batch_norm", over=(0,))),
    op("native_batch_norm_backward", OpClass.BATCH_NORM_BACKWARD, per_input(8), input_passes=2,
        slices=rule("channels"), out=Out((0,), is_copied=True),
        c=c("normalisation.batch_norm_backward", "poet_batch_norm_backward", (2,), (5, 6), 7, over=(0, 1))),
    op("_native_batch_norm_legit.no_stats", OpClass.BATCH_NORM, per_input(5), input_passes=2),
    op("native_group_norm", R, per_input(6), input_passes=2, c=c("normalisation.group_norm", dense=(0,))),
    op("native_group_norm_backward", R, per_input(11), input_passes=2,
        c=c("normalisation.group_norm_backward", dense=(0, 1))),
    op("native_layer_norm", R, per_input(6), c=c("normalisation.layer_norm", dense=(0,))),
    op("native_layer_norm_backward", R, per_input(11),
        c=c("normalisation.layer_norm_backward", dense=(0, 1))),
    op("_fused_rms_norm", R, per_input(6)),
    op("_fused_rms_norm_backward", R, per_input(11)),
    op("_weight_norm_interface", R, per_input(2), c=c("reductions.weight_norm")),
    op("_weight_norm_interface_backward", R, per_element(4), c=c("reductions.weight_norm_backward")),
    op("renorm", E, per_element(5)),
    # softmax and attention
    op("_log_softmax", T, per_element(1), special_class=rule("row_class", 1), slices=rule("rows", 0, dim=1),
        c=c("normalisation.along", "poet_log_softmax", dense=(0,))),
    op("_log_softmax_backward_data", T, per_element(1), special_class=rule("row_class", 2),
        slices=rule("rows", 0, 1, dim=2), out=Out((0,), "_log_softmax_backward_data.out", in_rows=True),
        c=c("normalisation.along_backward", "poet_log_softmax_backward", dense=(0, 1))),
    op("_safe_softmax", T, per_element(1), special_class=rule("row_class", 1),
        c=c("normalisation.along", "poet_softmax", "1", dense=(0,))),
    op("_softmax", T, per_element(1), special_class=rule("row_class", 1), slices=rule("rows", 0, dim=1),
        c=c("normalisation.along", "poet_softmax", "0", dense=(0,))),
    op("_softmax_backward_data", R, per_element(4), slices=rule("rows", 0, 1, dim=2),
        out=Out((0,), "_softmax_backward_data.out", "grad_input", in_rows=True),
        c=c("normalisation.along_backward", "poet_softmax_backward", over=(0,), dense=(0, 1))),
    op("_scaled_dot_product_flash_attention_for_cpu", MATMUL, rule("attention", 0, 2.0),
        slices=rule("heads", 0, 1, 2, outputs=2)),
    op("_scaled_dot_product_flash_attention_for_cpu_backward", MATMUL, rule("attention", 1, 5.0),
        slices=rule("heads", 0, 1, 2, 3, 4, 5, outputs=3)),
    # pooling and resampling
    op("_adaptive_avg_pool2d", POOLING, per_input(1), c=c("pooling.adaptive_avg_pool", dense=(0,))),
    op("_adaptive_avg_pool2d_backward", M, per_output(1), shape_only=("self",),
        c=c("pooling.adaptive_avg_pool_backward", dense=(0,))),
    op("_adaptive_avg_pool3d adaptive_max_pool3d", POOLING, per_input(1)),
    op("_adaptive_avg_pool3d_backward max_pool3d_with_indices_backward", M, per_output(1),
        shape_only=("self",)),
    op("adaptive_max_pool2d", POOLING, per_input(1), c=c("pooling.max_pool", is_adaptive=True, dense=(0,))),
    op("adaptive_max_pool2d_backward", M, per_output(1), shape_only=("self",),
        c=c("pooling.max_pool_backward", 2, dense=(0, 2))),
    op("adaptive_max_pool3d_backward max_unpool2d max_unpool3d channel_shuffle upsample_nearest1d "
        "upsample_nearest1d_backward upsample_nearest3d upsample_nearest3d_backward "
        "_upsample_nearest_exact1d _upsample_nearest_exact1d_backward _upsample_nearest_exact2d "
        "_upsample_nearest_exact2d_backward _upsample_nearest_exact3d _upsample_nearest_exact3d_backward",
        M, per_output(1)),
    op("avg_pool2d", POOLING, rule("pooling"), c=c("pooling.avg_pool", dense=(0,))),
    op("avg_pool2d_backward", POOLING, rule("pooling_backward"), shape_only=("self",),
        c=c("pooling.avg_pool_backward", dense=(0, 1))),
    op("avg_pool3d", POOLING, rule("pooling"), c=c("pooling.avg_pool")),
    op("avg_pool3d_backward", POOLING, rule("pooling_backward"), shape_only=("self",),
        c=c("pooling.avg_pool_backward")),
    op("max_pool2d_with_indices", POOLING, rule("pooling"), saved="places",
        c=c("pooling.max_pool", dense=(0,))),
    op("max_pool2d_with_indices_backward", M, per_output(1), shape_only=("self",),
        c=c("pooling.max_pool_backward", 7, dense=(0, 1, 7))),
    op("max_pool3d_with_indices", POOLING, rule("pooling")),
    op("grid_sampler_2d grid_sampler_3d upsample_bicubic2d _upsample_bicubic2d_aa", E, per_output(32)),
    op("grid_sampler_2d_backward grid_sampler_3d_backward upsample_bicubic2d_backward "
        "_upsample_bicubic2d_aa_backward", E, per_input(32)),
    op("affine_grid_generator upsample_trilinear3d _upsample_bilinear2d_aa", E, per_output(8)),
    op("pixel_shuffle", M, per_output(1), c=c("copies.pixel_shuffle")),
    op("pixel_unshuffle", M, per_output(1), c=c("copies.pixel_unshuffle")),
    op("upsample_bilinear2d upsample_linear1d", E, per_output(8), c=c("copies.between", dense=(0,))),
    op("upsample_bilinear2d_backward upsample_linear1d_backward", E, per_input(8),
        c=c("copies.between_backward", dense=(0,))),
    op("upsample_nearest2d", M, per_output(1), c=c("pooling.upsample_nearest", dense=(0,))),
    op("upsample_nearest2d_backward", M, per_output(1), c=c("pooling.upsample_nearest_backward", dense=(0,))),
    op("upsample_trilinear3d_backward _upsample_bilinear2d_aa_backward", E, per_input(8)),
    # recurrent
    op("mkldnn_rnn_layer", MATMUL, rule("recurrent", 1.0), is_mis_traced=True),
    op("mkldnn_rnn_layer_backward", MATMUL, rule("recurrent", 3.0)),
    op("_thnn_fused_lstm_cell", T, rule("lstm_cell")),
    # loss
    op("binary_cross_entropy", T, per_element(2), c=c("normalisation.compared", "poet_bce", 2, dense=(0, 1))),
    op("binary_cross_entropy_backward", E, per_element(8),
        c=c("normalisation.compared_backward", "poet_bce_backward", 1.0, 3, dense=(0, 1, 2))),
    op("binary_cross_entropy_with_logits", T, per_element(2),
        c=c("normalisation.compared", "poet_bce_with_logits", 2, 3, dense=(0, 1))),
    op("huber_loss huber_loss_backward multi_margin_loss multi_margin_loss_backward smooth_l1_loss "
        "smooth_l1_loss_backward", E, per_element(3)),
    op("mse_loss", E, per_element(3), c=c("normalisation.compared", "poet_mse_loss")),
    op("mse_loss_backward", E, per_element(3),
        c=c("normalisation.compared_backward", "poet_mse_loss_backward", 2.0)),
    op("nll_loss_forward nll_loss2d_forward", R, rule("per_picked", 1), gathers=True,
        numbers=Numbers(1, "classes", (0, 1), ignored=4), c=c("normalisation.nll_loss")),
    op("nll_loss_backward nll_loss2d_backward", M, per_output(1), shape_only=("self",),
        c=c("normalisation.nll_loss_backward")),
    op("soft_margin_loss", T, per_element(2)),
    op("soft_margin_loss_backward", T, per_element(1)),
    # layout and padding
    op("_to_copy", M, per_output(1), passing_cut=rule("elementwise"), c=c("elementwise.convert")),
    op("cat", M, per_output(1), c=c("copies.cat")),
    op("clone", M, per_output(1), c=each("poet_copy")),
    op("constant_pad_nd", M, per_output(1), c=c("elementwise.pad", dense=(0,))),
    op("diag_embed diagonal_backward reflection_pad3d reflection_pad3d_backward replication_pad3d "
        "replication_pad3d_backward rot90 unfold_backward unsafe_split.Tensor unsafe_split_with_sizes",
        M, per_output(1)),
    op("flip", M, per_output(1), c=c("places.flip", dense=(0,))),
    op("reflection_pad1d reflection_pad2d", M, per_output(1),
        c=c("copies.pad_edges", is_mirrored=True, dense=(0,))),
    op("reflection_pad1d_backward reflection_pad2d_backward", M, per_output(1),
        c=c("copies.pad_edges_backward", is_mirrored=True, dense=(0,))),
    op("repeat", M, per_output(1), c=c("copies.repeat")),
    op("replication_pad1d replication_pad2d", M, per_output(1),
        c=c("copies.pad_edges", is_mirrored=False, dense=(0,))),
    op("replication_pad1d_backward replication_pad2d_backward", M, per_output(1),
        c=c("copies.pad_edges_backward", is_mirrored=False, dense=(0,))),
    op("roll", M, per_output(1), c=c("places.roll")),
    op("select_backward", M, per_output(1), c=c("copies.select_backward")),
    op("slice_backward", M, per_output(1), c=c("copies.slice_backward")),
    op("stack", M, per_output(1), c=c("copies.stack")),
    op("tril", M, per_output(1), c=c("selection.triangle", is_lower=True)),
    op("triu", M, per_output(1), c=c("selection.triangle", is_lower=False)),
    # indexing
    op("_embedding_bag", R, rule("bag", 0), gathers=True, numbers=Numbers(1, TABLE_ROWS)),
    op("_embedding_bag_backward _unsafe_index_put index_copy masked_scatter scatter.reduce scatter.value "
        "scatter.value_reduce scatter_reduce.two select_scatter slice_scatter diagonal_scatter",
        M, per_output(1)),
    op("_embedding_bag_forward_only", R, rule("bag", 0), gathers=True),
    op("_embedding_bag_per_sample_weights_backward", R, rule("bag", 1)),
    op("_unsafe_index.Tensor take take_along_dim", M, per_output(1), gathers=True),
    op("embedding", M, per_output(1), gathers=True, numbers=Numbers(1, TABLE_ROWS), c=c("places.embedding")),
    op("embedding_dense_backward", M, per_output(1), count=2, gradient_cut=rule("table_rows"),
        c=c("places.embedding_backward", dense=(0,))),
    op("gather index_select", M, per_output(1), gathers=True, c=c("places.gather", dense=(0,))),
    op("index.Tensor", M, per_output(1), gathers=True, c=c("places.index", dense=(0,))),
    op("index_add scatter_add", M, per_output(1), c=c("places.scatter_add", over=(0,), dense=(3,))),
    op("index_fill.int_Scalar index_fill.int_Tensor masked_fill.Tensor", E, per_element(1)),
    op("index_put", M, per_output(1), c=c("places.index_put", over=(0,), dense=(2,))),
    op("masked_fill.Scalar", E, per_element(1), c=c("selection.masked_fill", dense=(0,))),
    op("scatter.src", M, per_output(1), c=c("reductions.scatter_at", over=(0,), dense=(3,))),
    op("searchsorted.Tensor bucketize.Tensor", R, per_element(8)),
    op("sort", R, rule("sorting"), c=c("places.ordered", 1)),
    op("sort.stable", R, rule("sorting"), c=c("places.ordered", 2)),
    op("topk", R, rule("sorting"), c=c("places.top_k", dense=(0,))),
    # made from nothing
    op("arange arange.start arange.start_step", M, per_output(1), c=c("places.arange")),
    op("empty_strided linspace tril_indices triu_indices", M, per_output(1)),
    op("eye eye.m", M, per_output(1), c=c("elementwise.identity")),
    # random
    op("bernoulli bernoulli.p bernoulli.Tensor multinomial native_dropout normal.Tensor_Tensor "
        "normal.Tensor_float normal.float_Tensor rand rand_like randint randint.low randint_like "
        "randint_like.low_dtype randn randn_like randperm", OpClass.RANDOM, per_output(10), is_random=True),
    # our own
    op("poet.full", M, per_output(1), arguments="shape strides element fill", c=c("elementwise.full")),
    op("poet.copy", M, per_output(1), arguments="source shape strides element", passing_cut=rule("copy"),
        c=each("poet_copy")),
    op("poet.scatter", M, per_output(1), arguments="base source shape strides offset",
        c=c("copies.scatter", over=(0,))),
    op("poet.assign", M, per_input(1), arguments="state source", writes=(0,), c=c("elementwise.assign")),
    op("poet.bernoulli", OpClass.RANDOM, per_output(10), arguments="shape strides element p", is_random=True,
        saved="mask", c=c("copies.bernoulli")),
    op("poet.uniform", OpClass.RANDOM, per_output(10), arguments="shape strides element low high",
        is_random=True),
    op("poet.normal", OpClass.RANDOM, per_output(10), arguments="shape strides element mean std",
        is_random=True),
    op("poet.rng_state", M, per_output(1), c=c("copies.random_place")),
    op("poet.with_rng_state", OpClass.RANDOM, per_output(10), arguments="state target *args **kwargs",
        c=c("copies.again")),
    op("poet.recurrent", MATMUL, rule("recurrent_steps", 1.0),
        arguments="kind products initial weight bias reverse"),
    op("poet.recurrent_backward", MATMUL, rule("recurrent_steps", 3.0),
        arguments="kind gradients products initial weight bias states reverse wanted"),
    op("poet.lstm_without_gradients", MATMUL, rule("recurrent", 1.0),
        arguments="source weight0 weight1 weight2 weight3 hidden cell reverse batch_sizes mode hidden_size "
            "num_layers has_biases bidirectional batch_first train"),
    op("poet.ctc_loss", T, per_output(4),
        arguments="log_probs targets input_lengths target_lengths blank zero_infinity",
        numbers=Numbers(1, "classes", (0, 2), padded=True)),
    op("poet.ctc_loss_backward", T, rule("per_read", 5),
        arguments="gradient log_probs targets input_lengths target_lengths loss log_alpha blank "
            "zero_infinity"),
    op("poet.clip_coefficient", E, rule("per_read", 2), arguments="norms largest"),
    op("poet.callers_loss", M, per_element(0.0), arguments="outputs gradients"),
    op("poet.accumulate", E, per_input(1), arguments="total gradient is_first", writes=(0,)),
    op("poet.look_up", M, per_output(1), gathers=True, arguments="rows numbers first count found",
        numbers=Numbers(1, TABLE_ROWS, total=3)),
    op("poet.look_up_backward", M, per_output(1), arguments="gradient numbers first count padding"),
    op("poet.stored_rows", M, per_output(1), arguments="numbers count width element"),
    op("poet.stored_rows_sgd", E, per_input(3), more_bytes=rule("row_passes"),
        arguments="numbers count width element gradient lr padding"),
    op("poet.dequantise", M, per_output(1), arguments="packed format shape", c=c("packed.dequantise")),
    op("poet.logits_loss", MATMUL, rule("logits", 0, 1), more_bytes=rule("logits_bytes", 0, 4, 6),
        arguments="hidden weight bias classes reduction ignored rows format block is_shared",
        numbers=Numbers(3, "classes", (1, 0), ignored=5)),
    op("poet.logits_hidden_gradient", MATMUL, rule("logits", 1, 2),
        more_bytes=rule("logits_bytes", 1, 8, 8),
        arguments="gradient hidden weight bias classes total reduction ignored rows format block is_shared "
        "largest shift"),
    op("poet.logits_weight_gradient", MATMUL, rule("logits", 1, 2),
        more_bytes=rule("logits_bytes", 1, 14, None), count=11,
        arguments="gradient hidden weight bias classes total largest shift reduction ignored columns count",
        gradient_cut=rule("classes")),
    op("poet.relu", E, per_input(3), input_passes=2, arguments="source rows"),
    op("poet.relu_backward", E, per_input(2), arguments="gradient bits", out=Out((0,), in_rows=True)),
    op("poet.bernoulli_bits", OpClass.RANDOM, rule("drawn_bits"), more_bytes=rule("drawn_bytes"),
        arguments="shape element p rows", is_random=True),
    op("poet.masked", E, per_input(3), arguments="source bits factor", out=Out((0,), in_rows=True)),
    op("poet.norm_relu", OpClass.BATCH_NORM, per_input(6), input_passes=2,
        arguments="source weight bias running_mean running_variance training momentum eps", writes=(3, 4),
        c=c("normalisation.batch_norm", "poet_norm_relu", over=(0,))),
    op("poet.norm_relu_backward", OpClass.BATCH_NORM_BACKWARD, per_input(10), input_passes=2,
        arguments="gradient source weight bias saved_mean saved_scale training eps",
        c=c("normalisation.batch_norm_backward", "poet_norm_relu_backward", (2, 3), (4, 5), 6, over=(0,))),
    op("poet.padded_convolution", OpClass.CONVOLUTION, rule("convolution"),
        special_class=rule("convolution_class"), weight=1,
        arguments="source weight bias stride padding dilation transposed output_padding groups pads",
        c=c("products.convolution")),
    op("poet.padded_convolution_backward", OpClass.CONVOLUTION_BACKWARD, rule("convolution_backward"),
        special_class=rule("convolution_backward_class"), weight=2,
        arguments="gradient source weight bias_sizes stride padding dilation transposed output_padding "
            "groups output_mask pads", c=c("products.convolution_backward", hands_on=True)),
    op("poet.max_pool", POOLING, rule("pooling"), more_bytes=rule("indices_bytes"),
        arguments="source kernel stride padding dilation ceil_mode"),
    op("poet.max_pool_backward", M, per_output(1),
        arguments="gradient source kernel stride padding dilation ceil_mode places"),
)
# fmt: on

SPECS: Mapping[str, OpSpec] = {spec.name: spec for row in (*_TABLE, *updates()) for spec in row.named()}
"""Every operator that a plan may call, by its name."""

_NOTHING = OpSpec("", M, per_element(0.0))


def spec_of(target: str) -> OpSpec:
    """The row of an operator; of what has none, such as a strip of several, one that says nothing more."""
    return SPECS.get(target, _NOTHING)


ATEN: frozenset[str] = frozenset(name for name in SPECS if name.startswith("aten."))
"""Those of PyTorch, as ``aten.<name>.<overload>``."""

OWN: Mapping[str, tuple[str, ...]] = {
    name: tuple(spec.arguments.split()) for name, spec in SPECS.items() if name not in ATEN
}
"""Operators of our own with the names of their arguments: factories with explicit strides, saved randomness,
recurrent layers, connectionist temporal classification, optimizer updates, what gradients are clipped by, the
moment at which the caller of a wrapped module has its outputs and gives their gradients, sums of gradients
over micro-batches, some rows of a table of ``count`` rows looked up, and the gradient of ``count`` rows of
one, rows of a table looked up and updated where it lies in storage, a last layer with its loss in strips,
layers that keep bits or bytes for backward, batch norm with a rectifier."""

RANDOM: frozenset[str] = frozenset(name for name, spec in SPECS.items() if spec.is_random)
"""The operators that draw from torch's default generator."""

WRITES: Mapping[str, tuple[int, ...]] = {name: spec.writes for name, spec in SPECS.items() if spec.writes}
"""The operators that write tensors they are given, and the places of those among the arguments."""

UPDATES: frozenset[str] = frozenset(spec.name for spec in updates())
"""Those of `WRITES` by which an optimizer changes a parameter."""

MIS_TRACED: frozenset[str] = frozenset(name for name, spec in SPECS.items() if spec.is_mis_traced)
"""Operators of whose outputs the sizes are known when their kernels have run, not from the trace."""
