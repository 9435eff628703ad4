"""The kernels a plan may call: one table from operator name to torch callable, and nothing beside it.

A plan file is data from a stranger. An operator runs only if its name is in `ATEN` or `OWN`; all of
these are functional, except the optimizer updates, `poet.assign` and batch norm, which write the
tensors that the op's ``updates`` name. No row reads a file, an address or another device.
"""

from __future__ import annotations

import mmap
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from poet.errors import PlanError, nearest
from poet.graph import ITEM_BYTES, Argument, Blank, Call, Ref, Symbol, TensorType
from poet.runtime import recurrent

Kernel = Callable[..., Any]
"""Called with a call's arguments; returns a tensor, or a tuple or list of tensors and ``None``."""

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
        _cdist_forward _cdist_backward""",
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
        _embedding_bag _embedding_bag_backward _embedding_bag_per_sample_weights_backward
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

ATEN: frozenset[str] = frozenset(
    f"aten.{name if '.' in name else name + '.default'}"
    for group in _GROUPS.values()
    for name in group.split()
)
"""The ATen operators a plan may call, as ``aten.<name>.<overload>``."""

RANDOM: frozenset[str] = frozenset(
    f"aten.{name if '.' in name else name + '.default'}" for name in _GROUPS["random"].split()
) | {"poet.bernoulli", "poet.normal", "poet.uniform"}
"""The operators that draw from torch's default generator."""


def kernel(target: str) -> Kernel:
    """The torch callable behind an operator's name.

    Raises:
        PlanError: the name is not in the table, or this torch has no such operator.
    """
    if target in OWN:
        return OWN[target]
    if target in _WRAPPED:
        return _WRAPPED[target]
    if target not in ATEN:
        known = [*ATEN, *OWN]
        raise PlanError(f"operator {target!r} is not one that poet runs{nearest(target, known)}")
    _, name, overload = target.split(".")
    try:
        found: Kernel = getattr(getattr(torch.ops.aten, name), overload)._op  # without Python in between
    except AttributeError:
        raise PlanError(f"operator {target!r} does not exist in torch {torch.__version__}") from None
    return found


# --- arguments --------------------------------------------------------------------------------


def dtype(name: str) -> torch.dtype:
    """Torch's element type of that name.

    Raises:
        PlanError: a graph has no such element type.
    """
    if name not in ITEM_BYTES:
        raise PlanError(f"element type {name!r} is not one of {', '.join(ITEM_BYTES)}")
    found: torch.dtype = getattr(torch, name)
    return found


_SYMBOLS: dict[tuple[str, str], object] = {
    ("layout", "strided"): torch.strided,
    ("device", "cpu"): torch.device("cpu"),
    **{
        ("memory_format", name): getattr(torch, name)
        for name in ("contiguous_format", "preserve_format", "channels_last", "channels_last_3d")
    },
}


def constant(argument: Argument) -> object:
    """What torch is given for an argument that is neither a value nor a hyperparameter.

    Raises:
        PlanError: a symbol that torch does not know.
    """
    if isinstance(argument, Blank):
        return blank(argument.type)
    if isinstance(argument, Symbol):
        if argument.kind == "dtype":
            return dtype(argument.name)
        if (argument.kind, argument.name) not in _SYMBOLS:
            raise PlanError(f"{argument.kind} {argument.name!r} is not one that poet runs")
        return _SYMBOLS[argument.kind, argument.name]
    return argument


def resolve(
    argument: Argument, tensor: Callable[[str], Tensor], hyperparameter: Callable[[str], float]
) -> object:
    """What torch is given for ``argument``; tuples become lists of what their items become."""
    if isinstance(argument, Ref):
        return tensor(argument.value)
    if isinstance(argument, Symbol) and argument.kind == "hyperparameter":
        return hyperparameter(argument.name)
    if isinstance(argument, tuple):
        return [resolve(item, tensor, hyperparameter) for item in argument]
    return constant(argument)


def run(
    call: Call, tensor: Callable[[str], Tensor], hyperparameter: Callable[[str], float]
) -> tuple[Tensor | None, ...]:
    """Run one call: look the kernel up, resolve the arguments, return the outputs as a tuple."""
    given = [resolve(argument, tensor, hyperparameter) for argument in call.args]
    named = {key: resolve(argument, tensor, hyperparameter) for key, argument in call.kwargs}
    return outputs_of(kernel(call.target)(*given, **named))


def outputs_of(result: Any) -> tuple[Tensor | None, ...]:
    """A kernel's return value as a tuple with one place per output, ``None`` for what is no tensor."""
    if result is None:
        return ()
    if isinstance(result, Tensor):
        return (result,)
    return tuple(item if isinstance(item, Tensor) else None for item in result)


_blanks: list[Tensor] = []  # the largest mapping so far


def _untouched_pages(size_bytes: int) -> mmap.mmap:
    try:
        if sys.platform == "win32":
            return mmap.mmap(-1, size_bytes, access=mmap.ACCESS_READ)
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        return mmap.mmap(-1, size_bytes, flags=flags, prot=mmap.PROT_READ)
    except OSError as error:
        raise PlanError(f"no room in the address space for a tensor of {size_bytes} bytes") from error


def blank(type_: TensorType) -> Tensor:
    """A tensor of this type that takes no memory: a view of pages that are mapped and never touched.

    Its bytes cannot be written; reading them gives zeros.

    Raises:
        PlanError: the address space is limited and has no room for it.
    """
    size_bytes = max(type_.extent_bytes, 1)
    if not _blanks or _blanks[0].numel() < size_bytes:
        pages = _untouched_pages(size_bytes)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="The given buffer is not writable")
            _blanks[:] = [torch.frombuffer(pages, dtype=torch.uint8)]
    item_bytes = ITEM_BYTES[type_.dtype]
    whole = _blanks[0][: _blanks[0].numel() // item_bytes * item_bytes].view(dtype(type_.dtype))
    return whole.as_strided(type_.shape, type_.strides, type_.offset)


# --- operators that need a word more ----------------------------------------------------------


def _mkldnn_rnn_layer(*args: object) -> Any:
    """Gives the workspace that its backward needs only where gradients are enabled."""
    with torch.enable_grad():
        return torch.ops.aten.mkldnn_rnn_layer.default(*args)


_WRAPPED: dict[str, Kernel] = {"aten.mkldnn_rnn_layer.default": _mkldnn_rnn_layer}


# --- operators of our own ---------------------------------------------------------------------


def _empty(shape: Sequence[int], strides: Sequence[int], element: torch.dtype) -> Tensor:
    return torch.empty_strided(shape, strides, dtype=element)


def _full(shape: Sequence[int], strides: Sequence[int], element: torch.dtype, fill: float) -> Tensor:
    return _empty(shape, strides, element).fill_(fill)


def _copy(source: Tensor, shape: Sequence[int], strides: Sequence[int], element: torch.dtype) -> Tensor:
    """``source``, broadcast and converted, in the given layout."""
    return _empty(shape, strides, element).copy_(source)


def _scatter(
    base: Tensor, source: Tensor, shape: Sequence[int], strides: Sequence[int], offset: int
) -> Tensor:
    """A copy of ``base`` with the elements of one of its views replaced by ``source``."""
    result = base.clone()
    result.as_strided(shape, strides, offset).copy_(source)
    return result


def _assign(state: Tensor, source: Tensor) -> None:
    state.copy_(source)


def _bernoulli(shape: Sequence[int], strides: Sequence[int], element: torch.dtype, p: float) -> Tensor:
    return _empty(shape, strides, element).bernoulli_(p)


def _uniform(
    shape: Sequence[int], strides: Sequence[int], element: torch.dtype, low: float, high: float
) -> Tensor:
    return _empty(shape, strides, element).uniform_(low, high)


def _normal(
    shape: Sequence[int], strides: Sequence[int], element: torch.dtype, mean: float, std: float
) -> Tensor:
    return _empty(shape, strides, element).normal_(mean, std)


def _rng_state() -> Tensor:
    return torch.get_rng_state()


def _with_rng_state(state: Tensor, target: str, /, *args: object, **kwargs: object) -> Any:
    """Run a random operator from a generator state taken earlier; leave the generator as it is now."""
    if target not in RANDOM:
        raise PlanError(f"operator {target!r} is not random and needs no generator state")
    present = torch.get_rng_state()
    torch.set_rng_state(state)
    try:
        return kernel(target)(*args, **kwargs)
    finally:
        torch.set_rng_state(present)


def _sgd(parameter: Tensor, gradient: Tensor, lr: float, weight_decay: float) -> None:
    """`torch.optim.SGD` without momentum, one tensor at a time."""
    if weight_decay != 0:
        gradient = gradient.add(parameter, alpha=weight_decay)
    parameter.add_(gradient, alpha=-lr)


def _momentum(
    parameter: Tensor,
    gradient: Tensor,
    momentum_buffer: Tensor,
    lr: float,
    gradient_share: float,
    momentum: float,
    weight_decay: float,
    nesterov: bool,
) -> None:
    """`torch.optim.SGD` with momentum, one tensor at a time."""
    if weight_decay != 0:
        gradient = gradient.add(parameter, alpha=weight_decay)
    momentum_buffer.mul_(momentum).add_(gradient, alpha=gradient_share)
    gradient = gradient.add(momentum_buffer, alpha=momentum) if nesterov else momentum_buffer
    parameter.add_(gradient, alpha=-lr)


def _adamw(
    parameter: Tensor,
    gradient: Tensor,
    exp_avg: Tensor,
    exp_avg_sq: Tensor,
    decay_factor: float,
    step_size: float,
    second_moment_correction: float,
    beta1: float,
    beta2: float,
    eps: float,
) -> None:
    """`torch.optim.AdamW`, one tensor at a time, with one temporary where torch has two."""
    if decay_factor != 1.0:
        parameter.mul_(decay_factor)
    exp_avg.lerp_(gradient, 1 - beta1)
    exp_avg_sq.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
    denominator = exp_avg_sq.sqrt().div_(second_moment_correction).add_(eps)
    parameter.addcdiv_(exp_avg, denominator, value=-step_size)


OWN: dict[str, Kernel] = {
    "poet.full": _full,
    "poet.copy": _copy,
    "poet.scatter": _scatter,
    "poet.assign": _assign,
    "poet.bernoulli": _bernoulli,
    "poet.uniform": _uniform,
    "poet.normal": _normal,
    "poet.rng_state": _rng_state,
    "poet.with_rng_state": _with_rng_state,
    "poet.recurrent": recurrent.forward,
    "poet.recurrent_backward": recurrent.backward,
    "poet.sgd": _sgd,
    "poet.momentum": _momentum,
    "poet.adamw": _adamw,
}
"""Operators of our own: factories with explicit strides, saved randomness, recurrent layers, updates."""
