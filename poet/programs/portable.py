"""The operators of a plan in those for which ExecuTorch has portable kernels, all tensors in row-major order.

What the kernels lack, or compute wrongly, is written out in others: gradients of norms by means and products,
of pooling by scattering (the kernel of maximum pooling's gradient adds to memory that nobody set to zero), of
losses by gathering. Each rule is held against PyTorch by a test, in the wheel. The arithmetic is chosen so that
few temporaries are as large as what it works on.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from poet.errors import PlanError
from poet.ir.graph import Blank, Call, Op, Ref
from poet.programs.schedule import Walk, empty

_aten = torch.ops.aten

PLAIN = frozenset(
    f"aten.{name}"
    for name in (
        "abs.default add.Scalar add.Tensor sub.Scalar sub.Tensor mul.Scalar mul.Tensor div.Scalar div.Tensor "
        "neg.default exp.default log.default sqrt.default rsqrt.default reciprocal.default sigmoid.default "
        "tanh.default relu.default hardtanh.default gelu.default leaky_relu.default erf.default sin.default "
        "cos.default pow.Tensor_Scalar maximum.default minimum.default clamp.default eq.Scalar eq.Tensor "
        "ne.Scalar ne.Tensor ge.Scalar gt.Scalar le.Scalar lt.Scalar logical_and.default logical_not.default "
        "logical_or.default where.self masked_fill.Scalar sum.dim_IntList mean.dim mean.default var.correction "
        "amax.default amin.default bmm.default mm.default convolution.default constant_pad_nd.default "
        "avg_pool2d.default max_pool2d_with_indices.default _softmax.default _log_softmax.default "
        "embedding.default cat.default clone.default gather.default index_select.default "
        "tril.default flip.default repeat.default stack.default"
    ).split()
)
"""Operators whose portable kernels are used as they are."""

IN_PLACE = frozenset(
    "add mul sub div neg exp sqrt rsqrt reciprocal sigmoid tanh relu hardtanh erf maximum".split()
)
"""Operators that read each element before they write it: a result may lie where an operand of its shape does."""

Rule = Callable[..., Any]
_RULES: dict[str, Rule] = {}


def _rule(*targets: str) -> Callable[[Rule], Rule]:
    def add(rule: Rule) -> Rule:
        _RULES.update(dict.fromkeys(targets, rule))
        return rule

    return add


def run(op: Op, call: Call, walk: Walk) -> Sequence[Tensor | None]:
    """Make ``call``, or the calls of a strip one after the other on all they are given.

    Raises:
        PlanError: there are no kernels for it.
    """
    if op.strip is None:
        return _outputs(_made(op, call, walk))
    made: dict[str, Tensor] = {}
    inside = walk.inside({value.name: value for value in op.strip.inner})
    for link in op.strip.links:
        for name, result in zip(link.outputs, _outputs(_made(op, link.call, inside)), strict=False):
            if name is not None and result is not None:
                made[name] = result
                if name in inside.types:
                    inside.install(name, result)
    return [None if name is None else made[name] for name in op.outputs]


def _outputs(result: Any) -> tuple[Tensor | None, ...]:
    return tuple(result) if isinstance(result, tuple | list) else (result,)


def _made(op: Op, call: Call, walk: Walk) -> Any:
    target = call.target
    if target in _WRITING:
        return _WRITING[target](walk, call)
    given = [walk.given(argument) for argument in call.args]
    named = {key: walk.given(argument) for key, argument in call.kwargs}
    if target in _RULES:
        return _RULES[target](*given, **named)
    if target in PLAIN:
        given = [empty(item.type) if isinstance(item, Blank) else item for item in given]
        return getattr(getattr(_aten, target.split(".")[1]), target.split(".")[2])(*given, **named)
    raise PlanError(
        f"op {op.name}: ExecuTorch has no kernel for {target}, and poet does not write it out in others; "
        "use `poet export pt2`, or another layer in its place"
    )


# --- element by element -------------------------------------------------------------------------


@_rule("aten.threshold_backward.default")
def _threshold_backward(gradient: Tensor, output: Tensor, threshold: float) -> Tensor:
    return _aten.mul.Tensor(gradient, _aten.gt.Scalar(output, threshold))


@_rule("aten.hardtanh_backward.default")
def _hardtanh_backward(gradient: Tensor, source: Tensor, low: float, high: float) -> Tensor:
    inside = _aten.logical_and.default(_aten.gt.Scalar(source, low), _aten.lt.Scalar(source, high))
    return _aten.mul.Tensor(gradient, inside)


@_rule("aten.tanh_backward.default")
def _tanh_backward(gradient: Tensor, output: Tensor) -> Tensor:
    slope = _aten.add.Scalar(_aten.neg.default(_aten.mul.Tensor(output, output)), 1.0)
    return _aten.mul.Tensor(slope, gradient)


@_rule("aten.sigmoid_backward.default")
def _sigmoid_backward(gradient: Tensor, output: Tensor) -> Tensor:
    slope = _aten.mul.Tensor(_aten.add.Scalar(_aten.neg.default(output), 1.0), output)
    return _aten.mul.Tensor(slope, gradient)


@_rule("aten.silu.default")
def _silu(source: Tensor) -> Tensor:
    return _aten.mul.Tensor(_aten.sigmoid.default(source), source)


@_rule("aten.gelu_backward.default")
def _gelu_backward(gradient: Tensor, source: Tensor, *, approximate: str = "none") -> Tensor:
    """Hendrycks and Gimpel, "Gaussian error linear units", 2016: the slope is cdf + x pdf."""
    square = _aten.mul.Tensor(source, source)
    if approximate == "tanh":
        scale = math.sqrt(2 / math.pi)
        inner = _aten.mul.Tensor(_aten.add.Scalar(_aten.mul.Scalar(square, 0.044715), 1.0), source)
        bent = _aten.tanh.default(_aten.mul.Scalar(inner, scale))
        steep = _aten.mul.Scalar(_aten.add.Scalar(_aten.mul.Scalar(square, 3 * 0.044715), 1.0), scale / 2)
        flat = _aten.add.Scalar(_aten.neg.default(_aten.mul.Tensor(bent, bent)), 1.0)
        tail = _aten.mul.Tensor(_aten.mul.Tensor(steep, flat), source)
        body = _aten.mul.Scalar(_aten.add.Scalar(bent, 1.0), 0.5)
    else:
        density = _aten.exp.default(_aten.mul.Scalar(square, -0.5))
        tail = _aten.mul.Tensor(_aten.mul.Scalar(density, 1 / math.sqrt(2 * math.pi)), source)
        body = _aten.erf.default(_aten.mul.Scalar(source, math.sqrt(0.5)))
        body = _aten.mul.Scalar(_aten.add.Scalar(body, 1.0), 0.5)
    return _aten.mul.Tensor(_aten.add.Tensor(body, tail), gradient)


@_rule("poet.full")
def _full(shape: Sequence[int], _: Sequence[int], element: torch.dtype, fill: float) -> Tensor:
    return _aten.full.default(shape, fill, dtype=element)


@_rule("poet.copy")
def _copy(source: Tensor, shape: Sequence[int], _: Sequence[int], element: torch.dtype) -> Tensor:
    if source.dtype != element:
        source = _aten._to_copy.default(source, dtype=element)
    if list(source.shape) == list(shape):
        return _aten.clone.default(source)
    return _aten.expand_copy.default(source, shape)


@_rule("aten.slice_backward.default")
def _slice_backward(
    gradient: Tensor, sizes: Sequence[int], dim: int, start: int, end: int, step: int
) -> Tensor:
    zeros = _aten.full.default(sizes, 0.0, dtype=gradient.dtype)
    return _aten.slice_scatter.default(zeros, gradient, dim, start, end, step)


@_rule("aten.select_backward.default")
def _select_backward(gradient: Tensor, sizes: Sequence[int], dim: int, index: int) -> Tensor:
    zeros = _aten.full.default(sizes, 0.0, dtype=gradient.dtype)
    return _aten.select_scatter.default(zeros, gradient, dim, index)


# --- norms --------------------------------------------------------------------------------------


def _channels(source: Tensor) -> tuple[list[int], list[int]]:
    """The dims that batch norm sums over, and the shape in which a channel's number meets the source."""
    dims = [dim for dim in range(source.dim()) if dim != 1]
    return dims, [source.shape[1] if dim == 1 else 1 for dim in range(source.dim())]


def batch_norm(walk: Walk, call: Call) -> tuple[Tensor, Tensor, Tensor]:
    """``aten.native_batch_norm``; in training it moves the running statistics that it is given."""
    source, weight, bias, mean, variance, training, momentum, eps = map(walk.given, call.args)
    dims, shape = _channels(source)
    if training:
        found = _aten.mean.dim(source, dims, False)
        spread = _aten.var.correction(source, dims, correction=0, keepdim=False)
        count = source.numel() // source.shape[1]
        for place, new, scale in ((3, found, 1.0), (4, spread, count / max(count - 1, 1))):
            if call.args[place] is not None:
                old = _aten.mul.Scalar(walk.given(call.args[place]), 1 - momentum)
                walk.write(call.args[place], _aten.add.Tensor(old, new, alpha=momentum * scale))
    else:
        found, spread = mean, variance
    root = _aten.rsqrt.default(_aten.add.Scalar(spread, eps))
    scale = root if weight is None else _aten.mul.Tensor(root, weight)
    shift = _aten.neg.default(_aten.mul.Tensor(found, scale))
    shift = shift if bias is None else _aten.add.Tensor(shift, bias)
    made = _aten.mul.Tensor(source, _aten.view_copy.default(scale, shape))
    made = _aten.add.Tensor(made, _aten.view_copy.default(shift, shape))
    if not training:
        found = root = empty_of([0], source.dtype)
    return made, found, root


def empty_of(shape: Sequence[int], element: torch.dtype) -> Tensor:
    """A tensor without contents."""
    made: Tensor = _aten.empty.memory_format(shape, dtype=element)
    return made


def _row_products(one: Tensor, other: Tensor, rows: int, shape: Sequence[int]) -> Tensor:
    """The inner product of each of so many rows of both, without a tensor as large as they are."""
    length = one.numel() // max(rows, 1)
    if length == 1:
        return _aten.view_copy.default(_aten.mul.Tensor(one, other), shape)
    flat, upright = _aten.view_copy.default(one, [rows, 1, length]), [rows, length, 1]
    made = _aten.bmm.default(flat, _aten.view_copy.default(other, upright))
    return _aten.view_copy.default(made, shape)


@_rule("aten.native_batch_norm_backward.default")
def _batch_norm_backward(
    gradient: Tensor,
    source: Tensor,
    weight: Tensor | None,
    running_mean: Tensor | None,
    running_variance: Tensor | None,
    mean: Tensor | None,
    root: Tensor | None,
    training: bool,
    eps: float,
    mask: Sequence[bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Ioffe and Szegedy, "Batch normalization", 2015, section 3: the sums of g and g x say it all."""
    dims, shape = _channels(source)
    if not training:
        mean, root = running_mean, _aten.rsqrt.default(_aten.add.Scalar(running_variance, eps))
    of_gradient = _aten.sum.dim_IntList(gradient, dims, False)
    batch, channels = source.shape[:2]
    pixels = source.numel() // max(batch * channels, 1)
    products = _row_products(gradient, source, batch * channels, [batch, channels])
    of_products = _aten.sum.dim_IntList(products, [0], False)
    to_weight = _aten.sub.Tensor(of_products, _aten.mul.Tensor(mean, of_gradient))
    to_weight = _aten.mul.Tensor(to_weight, root)
    to_source = None
    if mask[0]:
        scale = root if weight is None else _aten.mul.Tensor(root, weight)
        if training:
            share = _aten.mul.Scalar(_aten.mul.Tensor(to_weight, root), -1 / (batch * pixels))
            shift = _aten.mul.Tensor(mean, share)
            shift = _aten.add.Tensor(shift, of_gradient, alpha=1 / (batch * pixels))
            to_source = _aten.mul.Tensor(source, _aten.view_copy.default(share, shape))
            to_source = _aten.add.Tensor(to_source, gradient)
            to_source = _aten.sub.Tensor(to_source, _aten.view_copy.default(shift, shape))
            to_source = _aten.mul.Tensor(to_source, _aten.view_copy.default(scale, shape))
        else:
            to_source = _aten.mul.Tensor(gradient, _aten.view_copy.default(scale, shape))
    return to_source, to_weight if mask[1] else None, of_gradient if mask[2] else None


@_rule("aten.native_layer_norm.default")
def _layer_norm(source: Tensor, shape: Sequence[int], *rest: Any) -> Any:
    return _aten.native_layer_norm.default(source, shape, *rest)


@_rule("aten.native_layer_norm_backward.default")
def _layer_norm_backward(
    gradient: Tensor,
    source: Tensor,
    shape: Sequence[int],
    mean: Tensor,
    root: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mask: Sequence[bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Ba et al., "Layer normalization", 2016."""
    outer, inner = (
        list(range(source.dim() - len(shape))),
        list(range(source.dim() - len(shape), source.dim())),
    )
    normed = _aten.mul.Tensor(_aten.sub.Tensor(source, mean), root)
    to_weight = _aten.sum.dim_IntList(_aten.mul.Tensor(normed, gradient), outer, False) if mask[1] else None
    to_bias = _aten.sum.dim_IntList(gradient, outer, False) if mask[2] else None
    if not mask[0]:
        return None, to_weight, to_bias
    scaled = gradient if weight is None else _aten.mul.Tensor(gradient, weight)
    along = _aten.mean.dim(_aten.mul.Tensor(normed, scaled), inner, True)
    to_source = _aten.neg.default(_aten.mul.Tensor(normed, along))
    to_source = _aten.add.Tensor(to_source, scaled)
    to_source = _aten.sub.Tensor(to_source, _aten.mean.dim(scaled, inner, True))
    return _aten.mul.Tensor(to_source, root), to_weight, to_bias


# --- products, pooling --------------------------------------------------------------------------


def _product(walk: Walk, call: Call) -> Tensor:
    """``mm`` and ``addmm``; of a transposed second factor ``linear``, which reads it where it lies."""
    *before, first, second = call.args
    bias = walk.given(before[0]) if before else None
    whole = walk.transposed(second)
    if call.kwargs:
        raise PlanError(f"{call.target} with {call.kwargs[0][0]} is not written out for ExecuTorch")
    if whole is not None and (bias is None or bias.dim() == 1):
        made: Tensor = _aten.linear.default(walk.given(first), whole, bias)
        return made
    made = _aten.mm.default(walk.given(first), walk.given(second))
    return made if bias is None else _aten.add.Tensor(made, bias)


@_rule("aten.convolution_backward.default")
def _convolution_backward(
    gradient: Tensor, source: Tensor | Blank, weight: Tensor | Blank, sizes: Any, *rest: Any
) -> Any:
    transposed, mask = rest[3], list(rest[6])
    if transposed:
        raise PlanError(
            "ExecuTorch has no gradients of transposed convolutions; upsample and convolve instead"
        )
    made = list(_aten.convolution_backward.default(
        gradient, _filled(source), _filled(weight), sizes or [gradient.shape[1]], *rest[:6], mask
    ))  # fmt: skip
    return made


def _filled(given: Tensor | Blank) -> Tensor:
    return empty_of(given.type.shape, getattr(torch, given.type.dtype)) if isinstance(given, Blank) else given


def _shape(given: Tensor | Blank) -> list[int]:
    return list(given.type.shape if isinstance(given, Blank) else given.shape)


@_rule("aten._adaptive_avg_pool2d.default")
def _adaptive(source: Tensor, size: Sequence[int]) -> Tensor:
    if list(size) != [1, 1]:
        raise PlanError(f"adaptive pooling to {list(size)} is not written out for ExecuTorch; use AvgPool2d")
    return _aten.mean.dim(source, [-1, -2], True)


@_rule("aten._adaptive_avg_pool2d_backward.default")
def _adaptive_backward(gradient: Tensor, source: Tensor | Blank) -> Tensor:
    shape = _shape(source)
    return _aten.expand_copy.default(_aten.mul.Scalar(gradient, 1 / (shape[-1] * shape[-2])), shape)


@_rule("aten.avg_pool2d_backward.default")
def _avg_pool_backward(
    gradient: Tensor,
    source: Tensor | Blank,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    ceil_mode: bool,
    counts_padding: bool,
    divisor: int | None,
) -> Tensor:
    """A transposed convolution of each channel by itself; of one window an expansion."""
    shape, kernel = _shape(source), list(kernel)
    stride = list(stride) or kernel
    share = 1 / (divisor or kernel[0] * kernel[1])
    if kernel == shape[2:] and not any(padding):
        return _aten.expand_copy.default(_aten.mul.Scalar(gradient, share), shape)
    if ceil_mode or (any(padding) and not counts_padding):
        raise PlanError(
            "average pooling with ceil_mode or uncounted padding is not written out for ExecuTorch"
        )
    reached = [(gradient.shape[2 + i] - 1) * stride[i] - 2 * padding[i] + kernel[i] for i in range(2)]
    window = _aten.full.default([shape[1], 1, *kernel], share, dtype=gradient.dtype)
    rest = [shape[2 + i] - reached[i] for i in range(2)]
    return _aten.convolution.default(
        gradient, window, None, stride, list(padding), [1, 1], True, rest, shape[1]
    )


@_rule("aten.max_pool2d_with_indices_backward.default")
def _max_pool_backward(gradient: Tensor, source: Tensor | Blank, *rest: Any) -> Tensor:
    shape, places = _shape(source), rest[-1]
    rows = [shape[0], shape[1], -1] if len(shape) == 4 else [shape[0], -1]
    last = len(rows) - 1
    zeros = _aten.full.default([*rows[:-1], shape[-1] * shape[-2]], 0.0, dtype=gradient.dtype)
    flat = [*rows[:-1], gradient.shape[-1] * gradient.shape[-2]]
    given = (_aten.view_copy.default(places, flat), _aten.view_copy.default(gradient, flat))
    return _aten.view_copy.default(_aten.scatter_add.default(zeros, last, *given), shape)


# --- losses, tables -----------------------------------------------------------------------------


@_rule("aten._softmax_backward_data.default")
def _softmax_backward(gradient: Tensor, output: Tensor, dim: int, _: Any) -> Tensor:
    if dim in (-1, output.dim() - 1):
        shape = [*output.shape[:-1], 1]
        along = _row_products(gradient, output, math.prod(shape), shape)
    else:
        along = _aten.sum.dim_IntList(_aten.mul.Tensor(gradient, output), [dim], True)
    return _aten.mul.Tensor(_aten.sub.Tensor(gradient, along), output)


@_rule("aten._log_softmax_backward_data.default")
def _log_softmax_backward(gradient: Tensor, output: Tensor, dim: int, _: Any) -> Tensor:
    along = _aten.sum.dim_IntList(gradient, [dim], True)
    return _aten.add.Tensor(_aten.neg.default(_aten.mul.Tensor(_aten.exp.default(output), along)), gradient)


def _chosen(classes: Tensor, ignored: int, element: torch.dtype) -> tuple[Tensor, Tensor]:
    """The numbers of classes, 0 for what is left out, and 1 or 0 for what counts."""
    counts = _aten.ne.Scalar(classes, ignored)
    numbers = _aten.mul.Tensor(classes, counts)
    return _aten.unsqueeze_copy.default(numbers, 1), _aten._to_copy.default(counts, dtype=element)


@_rule("aten.nll_loss_forward.default")
def _nll_loss(
    scores: Tensor, classes: Tensor, weight: Tensor | None, reduction: int, ignored: int
) -> tuple[Tensor, Tensor]:
    if weight is not None or reduction == 0 or scores.dim() != 2:
        raise PlanError(
            "a weighted or unreduced cross-entropy is not written out for ExecuTorch; use the mean"
        )
    numbers, counts = _chosen(classes, ignored, scores.dtype)
    picked = _aten.squeeze_copy.dims(_aten.gather.default(scores, 1, numbers), [1])
    total = _aten.sum.dim_IntList(counts, [0], False)
    loss = _aten.neg.default(_aten.sum.dim_IntList(_aten.mul.Tensor(picked, counts), [0], False))
    return (_aten.div.Tensor(loss, total) if reduction == 1 else loss), total


@_rule("aten.nll_loss_backward.default")
def _nll_loss_backward(
    gradient: Tensor,
    scores: Tensor | Blank,
    classes: Tensor,
    weight: Tensor | None,
    reduction: int,
    ignored: int,
    total: Tensor,
) -> Tensor:
    numbers, counts = _chosen(classes, ignored, gradient.dtype)
    share = _aten.div.Tensor(gradient, total) if reduction == 1 else gradient
    each = _aten.neg.default(_aten.mul.Tensor(counts, share))
    zeros = _aten.full.default(_shape(scores), 0.0, dtype=gradient.dtype)
    return _aten.scatter.src(zeros, 1, numbers, _aten.unsqueeze_copy.default(each, 1))


@_rule("aten.mse_loss.default")
def _mse_loss(source: Tensor, target: Tensor, reduction: int = 1) -> Tensor:
    apart = _aten.sub.Tensor(source, target)
    square = _aten.mul.Tensor(apart, apart)
    dims = list(range(source.dim()))
    if reduction == 0:
        return square
    return (_aten.mean.dim if reduction == 1 else _aten.sum.dim_IntList)(square, dims, False)


@_rule("aten.mse_loss_backward.default")
def _mse_loss_backward(gradient: Tensor, source: Tensor, target: Tensor, reduction: int) -> Tensor:
    share = 2 / source.numel() if reduction == 1 else 2.0
    apart = _aten.mul.Scalar(_aten.sub.Tensor(source, target), share)
    return _aten.mul.Tensor(apart, gradient)


@_rule("aten.embedding_dense_backward.default")
def _embedding_backward(gradient: Tensor, numbers: Tensor, rows: int, padding: int, scales: bool) -> Tensor:
    if scales:
        raise PlanError("a table's gradient scaled by frequency is not written out for ExecuTorch")
    width = gradient.shape[-1]
    flat, each = _aten.view_copy.default(numbers, [-1]), _aten.view_copy.default(gradient, [-1, width])
    if padding >= 0:
        counts = _aten.unsqueeze_copy.default(_aten.ne.Scalar(flat, padding), 1)
        each = _aten.mul.Tensor(each, counts)
    zeros = _aten.full.default([rows, width], 0.0, dtype=gradient.dtype)
    return _aten.index_put.default(zeros, [flat], each, True)


# --- what writes --------------------------------------------------------------------------------


def _assign(walk: Walk, call: Call) -> tuple[()]:
    walk.write(call.args[0], walk.given(call.args[1]))
    return ()


def _sgd(walk: Walk, call: Call) -> tuple[()]:
    parameter, gradient, lr, decay = map(walk.given, call.args)
    if decay:
        gradient = _aten.add.Tensor(gradient, parameter, alpha=decay)
    walk.write(call.args[0], _aten.add.Tensor(parameter, gradient, alpha=-lr))
    return ()


def _momentum(walk: Walk, call: Call) -> tuple[()]:
    parameter, gradient, buffer, lr, share, momentum, decay, nesterov = map(walk.given, call.args)
    if decay:
        gradient = _aten.add.Tensor(gradient, parameter, alpha=decay)
    walk.write(call.args[2], _aten.mul.Scalar(buffer, momentum))
    walk.write(call.args[2], _aten.add.Tensor(walk.given(call.args[2]), gradient, alpha=share))
    kept = walk.given(call.args[2])
    gradient = _aten.add.Tensor(gradient, kept, alpha=momentum) if nesterov else kept
    walk.write(call.args[0], _aten.add.Tensor(parameter, gradient, alpha=-lr))
    return ()


_WRITING: Mapping[str, Callable[[Walk, Call], Any]] = {
    "aten.native_batch_norm.default": batch_norm,
    "aten.mm.default": _product,
    "aten.addmm.default": _product,
    "poet.assign": _assign,
    "poet.sgd": _sgd,
    "poet.momentum": _momentum,
}
"""Those that are given a call as it stands, as they write tensors or read them where they lie."""
