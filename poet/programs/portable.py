"""The operators of a plan in those for which ExecuTorch has portable kernels, all tensors in row-major order.

What the kernels lack, or compute wrongly, is written out in others: gradients of norms by means and products,
of pooling by scattering (the kernel of maximum pooling's gradient adds to memory that nobody set to zero), of
losses by gathering. A test holds each rule and kernel against PyTorch, in the wheel. The arithmetic is chosen
so that few temporaries are as large as what it works on.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from poet.errors import PlanError
from poet.ir.graph import Blank, Call, Op
from poet.programs.row_major import RowMajorWalk
from poet.runtime.kernels import outputs_of
from poet.runtime.kernels.arguments import dtype

_aten = torch.ops.aten

_PLAIN = """
    _log_softmax _softmax abs add.Scalar add.Tensor amax amin avg_pool2d bmm cat clamp clone convolution cos
    div.Scalar div.Tensor embedding eq.Scalar eq.Tensor erf exp flip gather ge.Scalar gelu gt.Scalar hardtanh
    index_select le.Scalar leaky_relu log logical_and logical_not logical_or lt.Scalar masked_fill.Scalar
    max_pool2d_with_indices maximum mean mean.dim minimum mul.Scalar mul.Tensor native_layer_norm ne.Scalar
    ne.Tensor neg pow.Tensor_Scalar reciprocal relu repeat rsqrt sigmoid sin sqrt stack sub.Scalar sub.Tensor
    sum.dim_IntList tanh tril var.correction where.self
"""
PLAIN = frozenset(f"aten.{name if '.' in name else name + '.default'}" for name in _PLAIN.split())
"""Operators whose portable kernels are used as they are."""

_IN_PLACE = "add div erf exp hardtanh maximum mul neg reciprocal relu rsqrt sigmoid sqrt sub tanh"
IN_PLACE = frozenset(_IN_PLACE.split())
"""Operators that read each element before they write it: the result may lie where an operand does."""

Rule = Callable[..., Any]
RULES: dict[str, Rule] = {
    "aten.hardtanh_backward.default": lambda g, x, low, high: g * ((x > low).logical_and(x < high)),
    "aten.select_backward.default": lambda g, sizes, *at: _zeros(sizes, g).select_scatter(g, *at),
    "aten.sigmoid_backward.default": lambda g, y: (1.0 - y) * y * g,
    "aten.silu.default": lambda x: torch.sigmoid(x) * x,
    "aten.slice_backward.default": lambda g, sizes, *at: _zeros(sizes, g).slice_scatter(g, *at),
    "aten.tanh_backward.default": lambda g, y: (1.0 - y * y) * g,
    "aten.threshold_backward.default": lambda g, y, threshold: g * (y > threshold),
    "poet.full": lambda shape, _, element, fill: torch.full(shape, fill, dtype=element),
}
"""Those that are written out, with the operator's arguments; what is read for its shape may be a blank."""


def _rule(target: str) -> Callable[[Rule], Rule]:
    def add(rule: Rule) -> Rule:
        RULES[target] = rule
        return rule

    return add


def run(op: Op, call: Call, walk: RowMajorWalk) -> Sequence[Tensor | None]:
    """Make ``call``, or the calls of a strip one after the other on all they are given.

    Raises:
        PlanError: there are no kernels for it.
    """
    if op.strip is None:
        return outputs_of(made(op.name, call, walk))
    results: dict[str, Tensor] = {}
    inside = walk.inside({value.name: value for value in op.strip.inner})
    for link in op.strip.links:
        for name, result in zip(link.outputs, outputs_of(made(op.name, link.call, inside)), strict=False):
            if name is not None and result is not None:
                results[name] = result
                inside.install(name, result)
    return [None if name is None else results[name] for name in op.outputs]


def made(where: str, call: Call, walk: RowMajorWalk) -> Any:
    """The result of one call.

    Raises:
        PlanError: there are no kernels for it.
    """
    target = call.target
    if target in READING:
        return READING[target](walk, call)
    given = [walk.given(argument) for argument in call.args]
    named = {key: walk.given(argument) for key, argument in call.kwargs}
    if target in RULES:
        return RULES[target](*given, **named)
    if target not in PLAIN:
        raise PlanError(
            f"op {where}: ExecuTorch has no kernel for {target}, and poet does not write it out in others; "
            "use `poet export pt2`, or another layer in its place"
        )
    given = list(map(_filled, given))
    _, name, overload = target.split(".")
    return getattr(getattr(_aten, name), overload)(*given, **named)


def _refused(what: str, way: str) -> PlanError:
    return PlanError(f"{what} is not written out for ExecuTorch; {way}, or use `poet export pt2`")


def _shape(given: Tensor | Blank) -> list[int]:
    return list(given.type.shape if isinstance(given, Blank) else given.shape)


def _filled(given: Any) -> Any:
    blank = isinstance(given, Blank)
    return torch.empty(_shape(given), dtype=dtype(given.type.dtype)) if blank else given


def _zeros(shape: Sequence[int], like: Tensor) -> Tensor:
    return torch.full(shape, 0.0, dtype=like.dtype)


def _row_products(one: Tensor, other: Tensor, rows: int, shape: Sequence[int]) -> Tensor:
    """The inner product of each of so many rows of both, without a tensor as large as they are."""
    length = one.numel() // max(rows, 1)
    if length == 1:
        return (one * other).view(shape)
    return torch.bmm(one.view(rows, 1, length), other.view(rows, length, 1)).view(shape)


# --- element by element -------------------------------------------------------------------------


@_rule("aten.gelu_backward.default")
def _gelu_backward(g: Tensor, x: Tensor, *, approximate: str = "none") -> Tensor:
    """Hendrycks and Gimpel, "Gaussian error linear units", 2016: the slope is cdf + x pdf."""
    if approximate == "tanh":
        root = math.sqrt(2 / math.pi)
        bent = torch.tanh((x * x * 0.044715 + 1.0) * x * root)
        tail = (x * x * (3 * 0.044715) + 1.0) * (root / 2) * (1.0 - bent * bent) * x
        return ((bent + 1.0) * 0.5 + tail) * g
    tail = torch.exp(x * x * -0.5) * (1 / math.sqrt(2 * math.pi)) * x
    return ((torch.erf(x * math.sqrt(0.5)) + 1.0) * 0.5 + tail) * g


@_rule("poet.copy")
def _copy(source: Tensor, shape: Sequence[int], _: Sequence[int], element: torch.dtype) -> Tensor:
    source = source if source.dtype == element else source.to(element)
    return source.clone() if list(source.shape) == list(shape) else torch.expand_copy(source, shape)


@_rule("aten.constant_pad_nd.default")
def _pad(source: Tensor, pads: Sequence[int], value: float = 0.0) -> Tensor:
    """The kernel takes no negative padding, by which tensors are cut."""
    for place, (before, after) in enumerate(zip(pads[::2], pads[1::2], strict=True)):
        dim = source.dim() - 1 - place
        if before < 0 or after < 0:
            source = torch.slice_copy(source, dim, max(-before, 0), source.shape[dim] + min(after, 0))
    added = [max(pad, 0) for pad in pads]
    return _aten.constant_pad_nd.default(source, added, value) if any(added) else source


def _bits() -> Tensor:
    """1, 2, 4 ... 128 as uint8."""
    return torch.pow(2.0, torch.arange(8, dtype=torch.float32)).to(torch.uint8)


@_rule("poet.relu")
def _packed_relu(source: Tensor, rows: int) -> tuple[Tensor, Tensor]:
    """A rectifier, and a bit of each element for backward; see `poet.runtime.kernels.packed`."""
    output, length = torch.relu(source), source.numel() // rows
    flags = (output > 0).to(torch.uint8).view(rows, length)
    if length % 8:
        flags = _aten.constant_pad_nd.default(flags, [0, -length % 8], 0)
    packed = (flags.view(-1, 8) * _bits()).sum([1], dtype=torch.uint8)
    return output, packed.view(rows, -(-length // 8))


@_rule("poet.relu_backward")
def _packed_relu_backward(gradient: Tensor, bits: Tensor) -> Tensor:
    rows, length = bits.shape[0], gradient.numel() // bits.shape[0]
    flags = (bits.view(-1, 1) & _bits()).ne(0).view(rows, -1)
    flags = torch.slice_copy(flags, 1, 0, length) if length % 8 else flags
    return gradient * torch.view_copy(flags, gradient.shape)


# --- norms --------------------------------------------------------------------------------------


def _batch_norm(walk: RowMajorWalk, call: Call) -> tuple[Tensor, Tensor, Tensor]:
    """``native_batch_norm``; in training it moves the running statistics that it is given."""
    source, weight, bias, mean, variance, training, momentum, eps = map(walk.given, call.args)
    dims, count = [dim for dim in range(source.dim()) if dim != 1], source.numel() // source.shape[1]
    if training:
        mean, variance = source.mean(dims), source.var(dims, correction=0)
        for place, new, scale in ((3, mean, 1.0), (4, variance, count / max(count - 1, 1))):
            if call.args[place] is not None:
                old = walk.write(call.args[place], walk.given(call.args[place]) * (1 - momentum))
                walk.write(call.args[place], old.add(new, alpha=momentum * scale))
    root = torch.rsqrt(variance + eps)
    scale = root if weight is None else root * weight
    shift = -(mean * scale) if bias is None else -(mean * scale) + bias
    shape = [source.shape[1], *[1] * (source.dim() - 2)]
    result = source * scale.view(shape) + shift.view(shape)
    nothing = torch.empty([0], dtype=source.dtype)
    return (result, mean, root) if training else (result, nothing, nothing)


@_rule("aten.native_batch_norm_backward.default")
def _batch_norm_backward(
    g: Tensor, x: Tensor, weight: Tensor | None, running_mean: Tensor, running_variance: Tensor,
    mean: Tensor, root: Tensor, training: bool, eps: float, mask: Sequence[bool],
) -> tuple[Tensor | None, Tensor, Tensor]:  # fmt: skip
    """Ioffe and Szegedy, "Batch normalization", 2015, section 3: the sums of g and of g x say it all."""
    if not training:
        mean, root = running_mean, torch.rsqrt(running_variance + eps)
    (batch, channels), count = x.shape[:2], x.numel() // x.shape[1]
    of_gradient = g.sum([dim for dim in range(x.dim()) if dim != 1])
    shape = [channels, *[1] * (x.dim() - 2)]
    centred = x - mean.view(shape)
    to_weight = _row_products(g, centred, batch * channels, [batch, channels]).sum([0]) * root
    if not mask[0]:
        return None, to_weight, of_gradient
    scale = (root if weight is None else root * weight).view(shape)
    share, shift = (to_weight * root * (-1 / count)).view(shape), (of_gradient * (1 / count)).view(shape)
    to_source = (centred * share + g - shift) * scale if training else g * scale
    return to_source, to_weight, of_gradient


@_rule("aten.native_layer_norm_backward.default")
def _layer_norm_backward(
    g: Tensor, x: Tensor, shape: Sequence[int], mean: Tensor, root: Tensor,
    weight: Tensor | None, bias: Tensor | None, mask: Sequence[bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:  # fmt: skip
    """Ba et al., "Layer normalization", 2016."""
    outer = list(range(x.dim() - len(shape)))
    inner = list(range(x.dim() - len(shape), x.dim()))
    normed = (x - mean) * root
    to_weight = (normed * g).sum(outer) if mask[1] else None
    to_bias = g.sum(outer) if mask[2] else None
    if not mask[0]:
        return None, to_weight, to_bias
    scaled = g if weight is None else g * weight
    along = (normed * scaled).mean(inner, True)
    return (-(normed * along) + scaled - scaled.mean(inner, True)) * root, to_weight, to_bias


# --- products, pooling --------------------------------------------------------------------------


def _product(walk: RowMajorWalk, call: Call) -> Tensor:
    """``mm`` and ``addmm``; of a transposed second factor ``linear``, which reads it where it lies."""
    *before, first, second = call.args
    if call.kwargs:
        raise _refused(f"{call.target} with {call.kwargs[0][0]}", "leave it out")
    bias, whole = walk.given(before[0]) if before else None, walk.transposed(second)
    if whole is not None and (bias is None or bias.dim() == 1):
        result: Tensor = _aten.linear.default(walk.given(first), whole, bias)
        return result
    result = torch.mm(walk.given(first), walk.given(second))
    return result if bias is None else result + bias


@_rule("aten.convolution_backward.default")
def _convolution_backward(
    g: Tensor, source: Tensor | Blank, weight: Tensor | Blank, sizes: Any, *rest: Any
) -> Any:
    if rest[3]:
        raise _refused("the gradient of a transposed convolution", "upsample and convolve instead")
    sizes = sizes or [g.shape[1]]
    return _aten.convolution_backward.default(g, _filled(source), _filled(weight), sizes, *rest)


@_rule("aten.avg_pool2d_backward.default")
def _avg_pool_backward(
    g: Tensor, source: Tensor | Blank, kernel: Sequence[int], stride: Sequence[int], padding: Sequence[int],
    ceil_mode: bool, counts_padding: bool, divisor: int | None,
) -> Tensor:  # fmt: skip
    """A transposed convolution of each channel by itself; of one window an expansion."""
    shape, kernel = _shape(source), list(kernel)
    stride, share = list(stride) or kernel, 1 / (divisor or math.prod(kernel))
    if kernel == shape[2:] and not any(padding):
        return torch.expand_copy(g * share, shape)
    if ceil_mode or (any(padding) and not counts_padding):
        raise _refused("average pooling with ceil_mode or uncounted padding", "leave them out")
    reached = [(g.shape[2 + i] - 1) * stride[i] - 2 * padding[i] + kernel[i] for i in range(2)]
    rest = [shape[2 + i] - reached[i] for i in range(2)]
    window = torch.full([shape[1], 1, *kernel], share, dtype=g.dtype)
    result: Tensor = _aten.convolution.default(
        g, window, None, stride, list(padding), [1, 1], True, rest, shape[1]
    )
    return result


@_rule("aten.max_pool2d_with_indices_backward.default")
def _max_pool_backward(g: Tensor, source: Tensor | Blank, *rest: Any) -> Tensor:
    shape = _shape(source)
    rows, pixels = math.prod(shape[:-2]), math.prod(shape[-2:])
    zeros = _zeros([rows, pixels], g)
    return zeros.scatter_add(1, rest[-1].view(rows, -1), g.view(rows, -1)).view(shape)


# --- losses, tables -----------------------------------------------------------------------------


@_rule("aten._softmax_backward_data.default")
def _softmax_backward(g: Tensor, output: Tensor, dim: int, _: Any) -> Tensor:
    if dim not in (-1, output.dim() - 1):
        return (g - (g * output).sum([dim], True)) * output
    shape = [*output.shape[:-1], 1]
    return (g - _row_products(g, output, math.prod(shape), shape)) * output


@_rule("aten._log_softmax_backward_data.default")
def _log_softmax_backward(g: Tensor, output: Tensor, dim: int, _: Any) -> Tensor:
    return -(torch.exp(output) * g.sum([dim], True)) + g


def _chosen(classes: Tensor, ignored: int, element: torch.dtype) -> tuple[Tensor, Tensor]:
    """The numbers of classes, 0 for what is left out, and 1 or 0 for what counts."""
    counts = classes.ne(ignored)
    return (classes * counts).unsqueeze(1), counts.to(element)


@_rule("aten.nll_loss_forward.default")
def _nll_loss(
    scores: Tensor, classes: Tensor, weight: Tensor | None, reduction: int, ignored: int
) -> tuple[Tensor, Tensor]:
    if weight is not None or reduction == 0 or scores.dim() != 2:
        raise _refused("a weighted or unreduced cross-entropy", "take the mean of all classes alike")
    numbers, counts = _chosen(classes, ignored, scores.dtype)
    total = counts.sum([0])
    loss = -(torch.gather(scores, 1, numbers).squeeze(1) * counts).sum([0])
    return (loss / total if reduction == 1 else loss), total


@_rule("aten.nll_loss_backward.default")
def _nll_loss_backward(
    g: Tensor, scores: Tensor | Blank, classes: Tensor, _: Any, reduction: int, ignored: int, total: Tensor
) -> Tensor:
    numbers, counts = _chosen(classes, ignored, g.dtype)
    each = -(counts * (g / total if reduction == 1 else g))
    return _zeros(_shape(scores), g).scatter(1, numbers, each.unsqueeze(1))


@_rule("aten.mse_loss.default")
def _mse_loss(source: Tensor, target: Tensor, reduction: int = 1) -> Tensor:
    apart = source - target
    dims, square = list(range(source.dim())), apart * apart
    return square if reduction == 0 else square.mean(dims) if reduction == 1 else square.sum(dims)


@_rule("aten.mse_loss_backward.default")
def _mse_loss_backward(g: Tensor, source: Tensor, target: Tensor, reduction: int) -> Tensor:
    return (source - target) * (2 / source.numel() if reduction == 1 else 2.0) * g


@_rule("aten.embedding_dense_backward.default")
def _embedding_backward(g: Tensor, numbers: Tensor, rows: int, padding: int, scales: bool) -> Tensor:
    if scales:
        raise _refused("a table's gradient scaled by frequency", "leave scale_grad_by_freq out")
    flat, each = numbers.view(-1), g.view(-1, g.shape[-1])
    each = each if padding < 0 else each * flat.ne(padding).unsqueeze(1)
    return _zeros([rows, g.shape[-1]], g).index_put([flat], each, True)


# --- what writes --------------------------------------------------------------------------------


def _assign(walk: RowMajorWalk, call: Call) -> None:
    walk.write(call.args[0], walk.given(call.args[1]))


def _sgd(walk: RowMajorWalk, call: Call) -> None:
    parameter, gradient, lr, decay = map(walk.given, call.args)
    gradient = gradient.add(parameter, alpha=decay) if decay else gradient
    walk.write(call.args[0], parameter.add(gradient, alpha=-lr))


def _momentum(walk: RowMajorWalk, call: Call) -> None:
    parameter, gradient, kept, lr, share, momentum, decay, nesterov = map(walk.given, call.args)
    gradient = gradient.add(parameter, alpha=decay) if decay else gradient
    kept = walk.write(call.args[2], kept * momentum)
    kept = walk.write(call.args[2], kept.add(gradient, alpha=share))
    gradient = gradient.add(kept, alpha=momentum) if nesterov else kept
    walk.write(call.args[0], parameter.add(gradient, alpha=-lr))


def _adamw(walk: RowMajorWalk, call: Call) -> None:
    """See `poet.runtime.kernels.updates.adamw`; numbers of the step are tensors of one element."""
    parameter, gradient, first, second = call.args[:4]
    factor, size, correction, beta1, beta2, eps = map(walk.given, call.args[4:])
    made, size, correction = walk.given(gradient), size.to(torch.float32), correction.to(torch.float32)
    if factor != 1.0:
        walk.write(parameter, walk.given(parameter) * factor)
    mean = walk.write(first, walk.given(first) * beta1)
    mean = walk.write(first, mean.add(made, alpha=1 - beta1))
    square = walk.write(second, walk.given(second) * beta2)
    square = walk.write(second, made * made * (1 - beta2) + square)
    change = mean / (torch.sqrt(square) / correction + eps) * size
    walk.write(parameter, walk.given(parameter) - change)


def _adam(walk: RowMajorWalk, call: Call) -> None:
    decay = walk.given(call.args[-1])
    if decay:
        raise _refused("weight decay of adam", "plan with --optimizer adamw")
    _adamw(walk, replace(call, args=(*call.args[:4], 1.0, *call.args[4:-1])))


READING: Mapping[str, Callable[[Any, Call], Any]] = {
    "aten.native_batch_norm.default": _batch_norm,
    "aten.mm.default": _product,
    "aten.addmm.default": _product,
    "poet.assign": _assign,
    "poet.sgd": _sgd,
    "poet.momentum": _momentum,
    "poet.adam": _adam,
    "poet.adamw": _adamw,
}
"""Those that are given a call as it stands, as they write tensors or read them where they lie."""
