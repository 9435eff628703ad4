"""What one run of an operator amounts to: its class, its FLOPs, the bytes it moves. One row each.

A row's key is an operator, ``aten.add``, or one overload of it, ``aten.pow.Tensor_Scalar``, which
goes first. Counting conventions: a multiply-add is 2 FLOPs, a division or square root 4, one
evaluation of exp, log, tanh or erf is 1 FLOP of class ``transcendental``, one element copied is 1
FLOP of class ``movement``. Torch is not imported: the rules see types and arguments alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from poet.devices.profile import OpClass
from poet.errors import UnsupportedOperator, nearest
from poet.graph import ITEM_BYTES, Argument, Blank, Call, Ref, TensorType
from poet.operators import ATEN, OWN


@dataclass(frozen=True, slots=True)
class Operands:
    """All that a rule may read.

    Attributes:
        call: the operator and its arguments.
        types: of the graph's values, by name.
        outputs: types of what it writes, ``None`` where the operator returns nothing.
        updated_bytes: written in place.
        cached: names of the inputs that are still in the processor's cache.
        cached_outputs: types of the outputs that are read again before they leave it.
    """

    call: Call
    types: Mapping[str, TensorType]
    outputs: tuple[TensorType | None, ...]
    updated_bytes: int = 0
    cached: frozenset[str] = frozenset()
    cached_outputs: tuple[TensorType, ...] = ()

    def argument(self, index: int) -> Argument:
        """Positional argument ``index``, ``None`` where it was left out."""
        return self.call.args[index] if index < len(self.call.args) else None

    def tensor(self, index: int) -> TensorType:
        """Type of the tensor that is positional argument ``index``.

        Raises:
            UnsupportedOperator: the argument is no tensor.
        """
        argument = self.argument(index)
        if isinstance(argument, Ref):
            return self.types[argument.value]
        if isinstance(argument, Blank):
            return argument.type
        raise UnsupportedOperator(
            f"{self.call.target}: argument {index} is no tensor, so its cost is not known"
        )

    @property
    def inputs(self) -> tuple[TensorType, ...]:
        """Types of the distinct values read, in order."""
        return tuple(self.types[name] for name in dict.fromkeys(self.call.refs()))

    @property
    def written(self) -> tuple[TensorType, ...]:
        """Types of the values allocated and written."""
        return tuple(output for output in self.outputs if output is not None)


Rule = Callable[[Operands], float]


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
    """

    op_class: OpClass
    flops: Rule
    input_passes: int = 1
    gathers: bool = False
    more_bytes: Rule | None = None
    special_class: Callable[[Operands], OpClass] | None = None

    def class_of(self, operands: Operands) -> OpClass:
        """What limits this run."""
        return self.op_class if self.special_class is None else self.special_class(operands)

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


# --- rules ------------------------------------------------------------------------------------


def _per_element(flops: float) -> Rule:
    """``flops`` per element of the largest tensor read or written."""
    return lambda o: flops * max((t.elements for t in (*o.inputs, *o.written)), default=0)


def _per_output(flops: float) -> Rule:
    """``flops`` per element written."""
    return lambda o: flops * sum(output.elements for output in o.written)


def _per_input(flops: float) -> Rule:
    """``flops`` per element of the first tensor."""
    return lambda o: flops * o.tensor(0).elements


def _per_read(flops: float) -> Rule:
    """``flops`` per element read."""
    return lambda o: flops * sum(given.elements for given in o.inputs)


def _per_picked(flops: float) -> Rule:
    """``flops`` per element of the second tensor, which picks from the first."""
    return lambda o: flops * o.tensor(1).elements


def _matrix_product(left: int) -> Rule:
    """2 × elements written × the inner size, which is the last of positional argument ``left``."""
    return lambda o: 2.0 * sum(t.elements for t in o.written) * o.tensor(left).shape[-1]


def _macs(weight: TensorType, output: TensorType, input_: TensorType, transposed: Argument) -> float:
    """Multiply-adds of a convolution; a weight is (out, in / groups, kernel ...), transposed (in, ...)."""
    return float((input_ if transposed else output).elements * math.prod(weight.shape[1:]))


def _bag(weight: int) -> Rule:
    """One FLOP per element of every row looked up; the indices follow the table of rows."""
    return lambda o: float(o.tensor(weight + 1).elements * o.tensor(weight).shape[-1])


def _convolution(o: Operands) -> float:
    output = o.written[0]
    bias_flops = output.elements if o.argument(2) is not None else 0
    return 2.0 * _macs(o.tensor(1), output, o.tensor(0), o.argument(6)) + bias_flops


def _kernel_of(weight: TensorType, groups: Argument) -> OpClass:
    """Which kernel a convolution takes; its weight is (out, in / groups, kernel ...)."""
    if isinstance(groups, int) and groups > 1:
        return OpClass.DEPTHWISE if weight.shape[1] == 1 else OpClass.GROUPED
    return OpClass.POINTWISE if set(weight.shape[2:]) == {1} else OpClass.CONVOLUTION


_BACKWARD = {
    OpClass.CONVOLUTION: OpClass.CONVOLUTION_BACKWARD,
    OpClass.DEPTHWISE: OpClass.DEPTHWISE_BACKWARD,
    OpClass.GROUPED: OpClass.GROUPED,
    OpClass.POINTWISE: OpClass.POINTWISE_BACKWARD,
}


def _convolution_class(o: Operands) -> OpClass:
    return _kernel_of(o.tensor(1), o.argument(8))


def _convolution_backward_class(o: Operands) -> OpClass:
    return _BACKWARD[_kernel_of(o.tensor(2), o.argument(9))]


def _time_convolution(o: Operands) -> float:
    """The weight is (kernel, in, out)."""
    return 2.0 * o.written[0].elements * math.prod(o.tensor(1).shape[:2])


def _convolution_backward(o: Operands) -> float:
    """Each of the input's and the weight's gradient costs a forward pass, the bias's one sum."""
    grad_output, mask = o.tensor(0), o.argument(10)
    wanted = mask if isinstance(mask, tuple) else (True, True, False)
    macs = _macs(o.tensor(2), grad_output, o.tensor(1), o.argument(7))
    return 2.0 * macs * (bool(wanted[0]) + bool(wanted[1])) + grad_output.elements * bool(wanted[2])


def _attention(query: int, products: float) -> Rule:
    """``products`` / 2 × (2 L S E + 2 L S Ev) per head; query, key and value follow one another."""

    def rule(o: Operands) -> float:
        q, k, v = (o.tensor(query + offset) for offset in range(3))
        return products * q.elements * k.shape[-2] * (1 + v.shape[-1] / q.shape[-1])

    return rule


def _recurrent(passes: float) -> Rule:
    """Every element of both weight matrices meets every time step of every sequence."""

    def rule(o: Operands) -> float:
        steps = math.prod(o.tensor(0).shape[:2])
        return passes * 2.0 * steps * (o.tensor(1).elements + o.tensor(2).elements)

    return rule


def _recurrent_steps(passes: float) -> Rule:
    """Every element of the hidden weights meets every step of every sequence; the gates count a little more.

    The arguments are those of `poet.runtime.recurrent`, the products of the input first among tensors; the
    backward makes each step again.
    """

    def rule(o: Operands) -> float:
        first = 1 if passes == 1.0 else 2
        products, weight = o.tensor(first), o.tensor(first + 2)
        return passes * (2.0 * math.prod(products.shape[:2]) * weight.elements + 3.0 * products.elements)

    return rule


def _linear_backward(o: Operands) -> float:
    """Both gradients of a linear layer given (input, grad, weight): a product each."""
    return 2 * 2.0 * o.tensor(1).elements * o.tensor(0).shape[-1]


def _distances(o: Operands) -> float:
    """Three FLOPs per coordinate of every pair; the points are the last two matrices given."""
    first = 0 if o.call.target.startswith("aten._cdist_forward") else 1
    left, right = o.tensor(first), o.tensor(first + 1)
    return 3.0 * left.elements * right.shape[-2]


def _lstm_cell(o: Operands) -> float:
    """Three sigmoids and two tanhs per unit; the first tensor holds the four gates."""
    return 5.0 * o.tensor(0).elements / 4


def _sorting(o: Operands) -> float:
    """Comparisons of a merge sort along rows as long as the tensor at most."""
    elements = o.tensor(0).elements
    return elements * math.log2(max(elements, 2))


def _pooling(windows: Callable[[Operands], int], *, window: int) -> Rule:
    """One FLOP per element of every window; positional argument ``window`` gives its shape."""

    def rule(o: Operands) -> float:
        shape, spatial = o.argument(window), len(o.tensor(0).shape) - 2
        sizes = [size for size in shape if isinstance(size, int)] if isinstance(shape, tuple) else []
        area = sizes[0] ** spatial if len(sizes) == 1 else math.prod(sizes)
        return float(windows(o) * area)

    return rule


def _indices_bytes(o: Operands) -> float:
    """Of the indices that torch's kernel gives, block by block, before places are made of them."""
    return 2.0 * ITEM_BYTES["int64"] * o.written[0].elements


def _drawn_bytes(o: Operands) -> float:
    """Of the numbers drawn, of 4 bytes each, before bits are made of them."""
    return 2.0 * 4 * 8 * sum(output.elements for output in o.written)


def _drawn_bits(o: Operands) -> float:
    """As for each number drawn; eight of them are a byte of the output."""
    return 10.0 * 8 * sum(output.elements for output in o.written)


def _logits(hidden: int, products: float) -> Rule:
    """So many products of the input with the weight after it, and an exponential for each logit."""

    def rule(o: Operands) -> float:
        given, weight = o.tensor(hidden), o.tensor(hidden + 1)
        return (2.0 * products * given.shape[1] + 1.0) * given.shape[0] * weight.shape[0]

    return rule


def _logits_bytes(hidden: int, passes: int, rows: int | None) -> Rule:
    """Logits go to RAM or back in each of the ``passes`` over them.

    Each strip of rows, as many as argument ``rows`` says, reads the weight again; each block of classes, of
    the size in argument 10, reads the input.
    """

    def rule(o: Operands) -> float:
        given, weight = o.tensor(hidden), o.tensor(hidden + 1)
        size = o.argument(rows) if rows is not None else o.argument(10)
        whole, again = (given, weight) if rows is not None else (weight, given)
        strips = -(-whole.shape[0] // size) if isinstance(size, int) and size > 0 else 1
        repeated = (strips - 1) * again.elements * ITEM_BYTES[again.dtype]
        return passes * given.shape[0] * weight.shape[0] * ITEM_BYTES[given.dtype] + repeated

    return rule


# --- the table --------------------------------------------------------------------------------


def _aten(
    op_class: OpClass, flops: Rule, names: str, *, input_passes: int = 1, gathers: bool = False
) -> dict[str, OperatorCost]:
    return {f"aten.{name}": OperatorCost(op_class, flops, input_passes, gathers) for name in names.split()}


_E, _R, _T, _M = OpClass.ELEMENTWISE, OpClass.REDUCTION, OpClass.TRANSCENDENTAL, OpClass.MOVEMENT
_P = OpClass.POOLING

_PRODUCTS = {
    **_aten(OpClass.MATMUL, _matrix_product(0), "mm bmm mv dot vdot"),
    **_aten(OpClass.MATMUL, _matrix_product(1), "addmm baddbmm addbmm addmv"),
    **_aten(OpClass.MATMUL, _linear_backward, "linear_backward"),
    "aten.convolution": OperatorCost(OpClass.CONVOLUTION, _convolution, special_class=_convolution_class),
    **_aten(OpClass.CONVOLUTION, _time_convolution, "conv_tbc"),
    "aten.convolution_backward": OperatorCost(
        OpClass.CONVOLUTION_BACKWARD, _convolution_backward, special_class=_convolution_backward_class
    ),
    **_aten(OpClass.MATMUL, _attention(0, 2.0), "_scaled_dot_product_flash_attention_for_cpu"),
    **_aten(OpClass.MATMUL, _attention(1, 5.0), "_scaled_dot_product_flash_attention_for_cpu_backward"),
    **_aten(OpClass.MATMUL, _recurrent(1.0), "mkldnn_rnn_layer"),
    **_aten(OpClass.MATMUL, _recurrent(3.0), "mkldnn_rnn_layer_backward"),
    "poet.lstm_without_gradients": OperatorCost(OpClass.MATMUL, _recurrent(1.0)),
    "poet.logits_loss": OperatorCost(OpClass.MATMUL, _logits(0, 1), more_bytes=_logits_bytes(0, 4, 6)),
    "poet.logits_hidden_gradient": OperatorCost(
        OpClass.MATMUL, _logits(1, 2), more_bytes=_logits_bytes(1, 8, 8)
    ),
    "poet.logits_weight_gradient": OperatorCost(
        OpClass.MATMUL, _logits(1, 2), more_bytes=_logits_bytes(1, 14, None)
    ),
    "poet.recurrent": OperatorCost(OpClass.MATMUL, _recurrent_steps(1.0)),
    "poet.recurrent_backward": OperatorCost(OpClass.MATMUL, _recurrent_steps(3.0)),
    **_aten(OpClass.MATMUL, _distances, "_cdist_forward _cdist_backward"),
    **_aten(OpClass.MATMUL, _per_element(2), "_trilinear"),
}

_ELEMENTWISE = {
    **_aten(
        _E,
        _per_element(1),
        """abs add neg sub rsub mul sgn sign square relu threshold threshold_backward where maximum minimum
        fmax fmin clamp clamp_min clamp_max hardtanh hardtanh_backward floor ceil round trunc frac copysign
        nan_to_num outer addr masked_fill index_fill
        bitwise_and bitwise_or bitwise_xor bitwise_not bitwise_left_shift bitwise_right_shift
        eq ne lt le gt ge logical_and logical_or logical_xor logical_not
        isnan isinf isneginf isposinf signbit""",
    ),
    **_aten(
        _E,
        _per_element(2),
        """leaky_relu leaky_relu_backward _prelu_kernel softshrink softshrink_backward hardshrink
        hardshrink_backward native_dropout_backward""",
    ),
    **_aten(
        _E,
        _per_element(3),
        """_prelu_kernel_backward addcmul lerp tanh_backward sigmoid_backward mse_loss mse_loss_backward
        huber_loss huber_loss_backward smooth_l1_loss smooth_l1_loss_backward multi_margin_loss
        multi_margin_loss_backward""",
    ),
    **_aten(
        _E,
        _per_element(4),
        """div reciprocal sqrt rsqrt fmod remainder floor_divide hypot hardsigmoid hardsigmoid_backward
        pow.Tensor_Scalar""",
    ),
    **_aten(_E, _per_element(5), "addcdiv hardswish hardswish_backward glu_backward renorm"),
    **_aten(_E, _per_element(8), "binary_cross_entropy_backward logit_backward"),
    **_aten(
        _E,
        _per_output(8),
        """upsample_linear1d upsample_bilinear2d _upsample_bilinear2d_aa upsample_trilinear3d
        affine_grid_generator""",
    ),
    **_aten(
        _E,
        _per_input(8),
        """upsample_linear1d_backward upsample_bilinear2d_backward _upsample_bilinear2d_aa_backward
        upsample_trilinear3d_backward""",
    ),
    **_aten(_E, _per_output(32), "upsample_bicubic2d _upsample_bicubic2d_aa grid_sampler_2d grid_sampler_3d"),
    **_aten(
        _E,
        _per_input(32),
        """upsample_bicubic2d_backward _upsample_bicubic2d_aa_backward grid_sampler_2d_backward
        grid_sampler_3d_backward""",
    ),
    **_aten(
        OpClass.RANDOM,
        _per_output(10),
        """bernoulli multinomial native_dropout normal rand rand_like randint randint_like randn randn_like
        randperm""",
    ),
    **{
        name: OperatorCost(OpClass.RANDOM, _per_output(10))
        for name in ("poet.bernoulli", "poet.uniform", "poet.normal", "poet.with_rng_state")
    },
    "poet.bernoulli_bits": OperatorCost(OpClass.RANDOM, _drawn_bits, more_bytes=_drawn_bytes),
    "poet.sgd": OperatorCost(_E, _per_input(4)),
    "poet.momentum": OperatorCost(_E, _per_input(6)),
    "poet.adamw": OperatorCost(OpClass.ADAPTIVE_UPDATE, _per_input(20)),
    "poet.adam": OperatorCost(OpClass.ADAPTIVE_UPDATE, _per_input(20)),
    "poet.rmsprop": OperatorCost(OpClass.ADAPTIVE_UPDATE, _per_input(18)),
    "poet.adagrad": OperatorCost(OpClass.ADAPTIVE_UPDATE, _per_input(14)),
    "poet.lion": OperatorCost(OpClass.ADAPTIVE_UPDATE, _per_input(9)),
    "poet.clip_coefficient": OperatorCost(_E, _per_read(2)),
    "poet.accumulate": OperatorCost(_E, _per_input(1)),
    "poet.relu": OperatorCost(_E, _per_input(3), input_passes=2),  # its output is read again for the bits
    "poet.relu_backward": OperatorCost(_E, _per_input(2)),
    "poet.masked": OperatorCost(_E, _per_input(3)),
}

_TRANSCENDENTAL = {
    **_aten(
        _T,
        _per_element(1),
        """exp exp2 expm1 log log2 log10 log1p tanh sigmoid erf erfc sin cos tan asin acos atan sinh cosh
        asinh acosh atanh sinc silu silu_backward elu elu_backward celu glu logit xlogy
        softplus_backward log_sigmoid_backward soft_margin_loss_backward
        _softmax _safe_softmax _log_softmax _log_softmax_backward_data logsumexp logcumsumexp""",
    ),
    **_aten(
        _T,
        _per_element(2),
        """pow atan2 softplus mish mish_backward log_sigmoid_forward logaddexp logaddexp2
        binary_cross_entropy binary_cross_entropy_with_logits soft_margin_loss lgamma digamma erfinv""",
    ),
    **_aten(_T, _lstm_cell, "_thnn_fused_lstm_cell"),
    **_aten(OpClass.GELU, _per_element(1), "gelu"),
    **_aten(OpClass.GELU, _per_element(2), "gelu_backward"),
}

_REDUCTIONS = {
    **_aten(
        _R,
        _per_input(1),
        """all any amax amin aminmax argmax argmin count_nonzero max min mean sum nansum prod trace cumsum
        cumprod cummax cummin""",
    ),
    **_aten(
        _P,
        _per_input(1),
        "_adaptive_avg_pool2d _adaptive_avg_pool3d adaptive_max_pool2d adaptive_max_pool3d",
    ),
    **_aten(_R, _per_input(2), "norm linalg_vector_norm _weight_norm_interface"),
    **_aten(_R, _per_input(4), "std var std_mean var_mean", input_passes=2),
    **_aten(_R, _sorting, "sort topk kthvalue median mode"),
    **_aten(_R, _per_element(4), "_softmax_backward_data _weight_norm_interface_backward"),
    **_aten(OpClass.BATCH_NORM, _per_input(5), "native_batch_norm _native_batch_norm_legit", input_passes=2),
    **_aten(OpClass.BATCH_NORM_BACKWARD, _per_input(8), "native_batch_norm_backward", input_passes=2),
    **_aten(_R, _per_input(6), "native_layer_norm _fused_rms_norm"),
    **_aten(_R, _per_input(6), "native_group_norm", input_passes=2),
    **_aten(_R, _per_input(11), "native_layer_norm_backward _fused_rms_norm_backward"),
    **_aten(_R, _per_input(11), "native_group_norm_backward", input_passes=2),
    **_aten(
        _P,
        _pooling(lambda o: o.written[0].elements, window=1),
        "max_pool2d_with_indices max_pool3d_with_indices avg_pool2d avg_pool3d",
    ),
    **_aten(
        _P, _pooling(lambda o: o.tensor(0).elements, window=2), "avg_pool2d_backward avg_pool3d_backward"
    ),
    "poet.max_pool": OperatorCost(
        _P, _pooling(lambda o: o.written[0].elements, window=1), more_bytes=_indices_bytes
    ),
    **_aten(_R, _per_element(8), "isin searchsorted bucketize"),
    **_aten(_R, _bag(0), "_embedding_bag _embedding_bag_forward_only", gathers=True),
    **_aten(_R, _bag(1), "_embedding_bag_per_sample_weights_backward"),
    **_aten(_R, _per_picked(1), "nll_loss_forward nll_loss2d_forward", gathers=True),
}

_MOVEMENT = {
    **_aten(
        _M,
        _per_output(1),
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
        _per_output(1),
        "embedding gather index _unsafe_index index_select take take_along_dim",
        gathers=True,
    ),
    **{
        name: OperatorCost(_M, _per_output(1))
        for name in ("poet.full", "poet.copy", "poet.scatter", "poet.rng_state")
    },
    "poet.look_up": OperatorCost(_M, _per_output(1), gathers=True),
    "poet.look_up_backward": OperatorCost(_M, _per_output(1)),
    "poet.assign": OperatorCost(_M, _per_input(1)),
    "poet.max_pool_backward": OperatorCost(_M, _per_output(1)),
    "poet.callers_loss": OperatorCost(_M, lambda o: 0.0),
}

TABLE: dict[str, OperatorCost] = {**_PRODUCTS, **_ELEMENTWISE, **_TRANSCENDENTAL, **_REDUCTIONS, **_MOVEMENT}
"""Every operator that a plan may call, by name without its overload, or one overload by its own."""
