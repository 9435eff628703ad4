"""Operator rows: convolution, pooling, normalisation, attention, losses."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from poet.frontend.onnx.node import Built, Modal, Node, Run, complement, row

_Functions = Mapping[int, Callable[..., Tensor]]

_CONV: _Functions = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
_CONV_TRANSPOSE: _Functions = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}
_MAX_POOL: _Functions = {1: F.max_pool1d, 2: F.max_pool2d, 3: F.max_pool3d}
_AVERAGE_POOL: _Functions = {1: F.avg_pool1d, 2: F.avg_pool2d, 3: F.avg_pool3d}


class _Window:
    """Kernel, stride, dilation and padding of a convolution or pooling node, per spatial dimension."""

    def __init__(self, node: Node, kernel: Sequence[int]) -> None:
        self.kernel = list(kernel)
        self.rank = len(self.kernel)
        if self.rank not in _CONV or self.rank != node.rank(0) - 2:
            raise node.error(f"a window of {self.rank} dimensions on a tensor of shape {list(node.shape(0))}")
        self.stride = node.int_list("strides", [1] * self.rank)
        self.dilation = node.int_list("dilations", [1] * self.rank)
        pads = node.int_list("pads", [0] * 2 * self.rank)
        self.before, self.after = pads[: self.rank], pads[self.rank :]
        automatic = node.text("auto_pad", "NOTSET")
        if automatic in ("SAME_UPPER", "SAME_LOWER"):
            self._pad_to_same(node.shape(0)[2:], lower=automatic == "SAME_LOWER")
        elif automatic == "VALID":
            self.before = self.after = [0] * self.rank
        lists = (self.stride, self.dilation, self.before, self.after)
        if any(len(entry) != self.rank for entry in lists):
            raise node.error("strides, dilations and pads do not have one entry per dimension")

    def _pad_to_same(self, sizes: Sequence[int], *, lower: bool) -> None:
        self.before, self.after = [], []
        for size, kernel, stride, dilation in zip(
            sizes, self.kernel, self.stride, self.dilation, strict=True
        ):
            total = max(0, (-(-size // stride) - 1) * stride + (kernel - 1) * dilation + 1 - size)
            small, large = total // 2, total - total // 2
            self.before.append(large if lower else small)
            self.after.append(small if lower else large)

    @property
    def symmetric(self) -> bool:
        return self.before == self.after

    @property
    def flat_pads(self) -> list[int]:
        """As ``F.pad`` takes them: last dimension first."""
        pairs = zip(reversed(self.before), reversed(self.after), strict=True)
        return [pad for pair in pairs for pad in pair]


# -- convolution ------------------------------------------------------------------------------------


def _drop_zero_bias(node: Node, index: int) -> None:
    """An exporter writes zeros for a convolution without bias; as an operand they would cost a tensor."""
    if node.is_constant(index) and not bool(node.value(index).constant.any()):  # type: ignore[union-attr]
        node.drop(index)


@row("Conv", ignored=("kernel_shape",))
def _conv(node: Node) -> Built:
    window = _Window(node, node.shape(1)[2:])
    _drop_zero_bias(node, 2)
    function, groups = _CONV[window.rank], node.integer("group", 1)
    stride, dilation = window.stride, window.dilation
    if window.symmetric:
        padding = window.before
        return lambda x, w, b=None: function(x, w, b, stride, padding, dilation, groups)
    pads = window.flat_pads
    return lambda x, w, b=None: function(F.pad(x, pads), w, b, stride, 0, dilation, groups)


@row("ConvTranspose", ignored=("kernel_shape",))
def _conv_transpose(node: Node) -> Built:
    window = _Window(node, node.shape(1)[2:])
    if node.text("auto_pad", "NOTSET").startswith("SAME"):
        raise node.error("auto_pad SAME is not supported; export explicit pads")
    _drop_zero_bias(node, 2)
    function, groups = _CONV_TRANSPOSE[window.rank], node.integer("group", 1)
    stride, dilation = window.stride, window.dilation
    extra = node.int_list("output_padding", [0] * window.rank)
    wanted = node.int_list("output_shape")
    if wanted:
        natural = [
            (size - 1) * step + (kernel - 1) * gap + 1 + more
            for size, step, kernel, gap, more in zip(
                node.shape(0)[2:], stride, window.kernel, dilation, extra, strict=True
            )
        ]
        surplus = [have - want for have, want in zip(natural, wanted, strict=True)]
        if min(surplus) < 0:
            raise node.error(f"output_shape {wanted} is larger than what the kernel gives, {natural}")
        window.after = [total // 2 for total in surplus]
        window.before = [total - total // 2 for total in surplus]
    if window.symmetric and min(window.before) >= 0:
        padding = window.before
        return lambda x, w, b=None: function(x, w, b, stride, padding, extra, groups, dilation)
    crop = [-pad for pad in window.flat_pads]
    return lambda x, w, b=None: F.pad(function(x, w, b, stride, 0, extra, groups, dilation), crop)


# -- pooling ----------------------------------------------------------------------------------------


@row("MaxPool")
def _max_pool(node: Node) -> Built:
    window = _Window(node, node.int_list("kernel_shape"))
    function = _MAX_POOL[window.rank]
    kernel, stride, dilation = window.kernel, window.stride, window.dilation
    ceil, indices = bool(node.integer("ceil_mode", 0)), node.read_count > 1
    fits = all(2 * pad <= size for pad, size in zip(window.before, kernel, strict=True))
    if indices and (node.prod(0) != math.prod(node.shape(0)[2:]) or not window.symmetric):
        raise node.error("its second output (indices) is only supported for one channel of one sample")
    if window.symmetric and fits:
        padding = window.before
        return lambda x: function(x, kernel, stride, padding, dilation, ceil, indices)
    pads = window.flat_pads
    return lambda x: function(F.pad(x, pads, value=-math.inf), kernel, stride, 0, dilation, ceil)


@row("AveragePool")
def _average_pool(node: Node) -> Built:
    window = _Window(node, node.int_list("kernel_shape"))
    if any(gap != 1 for gap in window.dilation):
        raise node.error("dilations are not supported")
    function = _AVERAGE_POOL[window.rank]
    kernel, stride = window.kernel, window.stride
    ceil, count_pads = bool(node.integer("ceil_mode", 0)), bool(node.integer("count_include_pad", 0))
    fits = all(2 * pad <= size for pad, size in zip(window.before, kernel, strict=True))
    if window.symmetric and fits:
        padding = window.before
        return lambda x: function(x, kernel, stride, padding, ceil, count_pads)
    pads = window.flat_pads
    if count_pads:
        return lambda x: function(F.pad(x, pads), kernel, stride, 0, ceil)

    def run(x: Tensor) -> Tensor:
        inside = F.pad(torch.ones_like(x[:1, :1]), pads)
        return function(F.pad(x, pads), kernel, stride, 0, ceil) / function(inside, kernel, stride, 0, ceil)

    return run


@row("LpPool")
def _lp_pool(node: Node) -> Built:
    window = _Window(node, node.int_list("kernel_shape"))
    if any((*window.before, *window.after)) or window.rank > 2 or any(gap != 1 for gap in window.dilation):
        raise node.error("pads and dilations are not supported")
    power, ceil = float(node.integer("p", 2)), bool(node.integer("ceil_mode", 0))
    kernel, stride = tuple(window.kernel), tuple(window.stride)
    if window.rank == 1:
        return lambda x: F.lp_pool1d(x.abs(), power, kernel[0], stride[0], ceil)
    return lambda x: F.lp_pool2d(x.abs(), power, (kernel[0], kernel[1]), stride, ceil)


@row("GlobalAveragePool", "GlobalMaxPool")
def _global_pool(node: Node) -> Built:
    axes = list(range(2, node.rank(0)))
    if node.proto.op_type == "GlobalAveragePool":
        return lambda x: x.mean(axes, keepdim=True)
    return lambda x: x.amax(axes, keepdim=True)


# -- normalisation ----------------------------------------------------------------------------------


@row("BatchNormalization", ignored=("spatial", "training_mode", "is_test"))
def _batch_normalization(node: Node) -> Built:
    node.buffer(3)
    node.buffer(4)
    epsilon = node.real("epsilon", 1e-5)
    momentum = complement(node.real("momentum", 0.9))

    def train(x: Tensor, scale: Tensor, shift: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        return F.batch_norm(x, mean, variance, scale, shift, True, momentum, epsilon)

    def evaluate(x: Tensor, scale: Tensor, shift: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        return F.batch_norm(x, mean, variance, scale, shift, False, momentum, epsilon)

    # further outputs are the running statistics, which torch updates in place
    return Modal(train, evaluate)


@row("InstanceNormalization")
def _instance_normalization(node: Node) -> Built:
    epsilon = node.real("epsilon", 1e-5)
    return lambda x, scale, shift: F.instance_norm(x, weight=scale, bias=shift, eps=epsilon)


@row("LayerNormalization", ignored=("stash_type",))
def _layer_normalization(node: Node) -> Built:
    epsilon = node.real("epsilon", 1e-5)
    shape = node.shape(0)[node.axis(node.integer("axis", -1)) :]
    if node.read_count > 1:
        return lambda x, scale, shift=None: torch.native_layer_norm(x, shape, scale, shift, epsilon)
    if node.shape(1) != shape:
        return lambda x, scale, shift=None: _scaled(F.layer_norm(x, shape, eps=epsilon), scale, shift)
    return lambda x, scale, shift=None: F.layer_norm(x, shape, scale, shift, epsilon)


def _scaled(x: Tensor, scale: Tensor, shift: Tensor | None) -> Tensor:
    return x * scale if shift is None else x * scale + shift


@row("RMSNormalization", ignored=("stash_type",))
def _rms_normalization(node: Node) -> Built:
    epsilon = node.real("epsilon", 1e-5)
    shape = node.shape(0)[node.axis(node.integer("axis", -1)) :]
    return lambda x, scale: F.rms_norm(x, shape, scale, epsilon)


@row("GroupNormalization", ignored=("stash_type",))
def _group_normalization(node: Node) -> Built:
    groups, epsilon = node.integer("num_groups", 1), node.real("epsilon", 1e-5)
    channels = node.shape(0)[1]
    if node.opset >= 21 or node.shape(1) == (channels,):
        return lambda x, scale, shift: F.group_norm(x, groups, scale, shift, epsilon)
    repeat = channels // groups  # before operator set 21: one scale per group
    return lambda x, scale, shift: F.group_norm(
        x, groups, scale.repeat_interleave(repeat), shift.repeat_interleave(repeat), epsilon
    )


@row("LRN")
def _lrn(node: Node) -> Built:
    size = node.integer("size", 1)
    alpha, beta, bias = node.real("alpha", 1e-4), node.real("beta", 0.75), node.real("bias", 1.0)
    if size % 2:
        return lambda x: F.local_response_norm(x, size, alpha, beta, bias)
    # an even window lies to the right in ONNX, to the left in torch
    return lambda x: F.local_response_norm(x.flip(1), size, alpha, beta, bias).flip(1)


@row("MeanVarianceNormalization")
def _mean_variance_normalization(node: Node) -> Built:
    axes = [node.axis(axis) for axis in node.int_list("axes", [0, 2, 3])]

    def run(x: Tensor) -> Tensor:
        centred = x - x.mean(axes, keepdim=True)
        return centred / (centred.square().mean(axes, keepdim=True).sqrt() + 1e-9)

    return run


# -- attention --------------------------------------------------------------------------------------


def _heads_apart(x: Tensor, heads: int) -> Tensor:
    """From (batch, length, heads * width) to (batch, heads, length, width)."""
    batch, length, width = x.shape
    return x.reshape(batch, length, heads, width // heads).transpose(1, 2)


@row("Attention", ignored=("softmax_precision", "qk_matmul_output_mode"))
def _attention(node: Node) -> Built:
    """Attention of operator set 23, for the outputs and options that training uses."""
    if node.read_count > 1 or any(node.has(i) for i in range(4, len(node.inputs))):
        raise node.error("cached keys and values, and outputs besides the first, are not supported")
    if node.real("softcap", 0.0):
        raise node.error("softcap is not supported")
    heads = (node.integer("q_num_heads", 0), node.integer("kv_num_heads", 0), node.integer("kv_num_heads", 0))
    causal, flat = bool(node.integer("is_causal", 0)), node.rank(0) == 3
    scale = node.real("scale", 0.0) or None

    def run(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Tensor:
        q, k, v = (
            _heads_apart(x, count) if flat else x for x, count in zip((query, key, value), heads, strict=True)
        )
        if mask is not None and causal:
            raise node.error("a mask together with is_causal is not supported")
        shared = q.shape[1] != k.shape[1]
        mixed = F.scaled_dot_product_attention(q, k, v, mask, 0.0, causal, scale=scale, enable_gqa=shared)
        return mixed.transpose(1, 2).flatten(2) if flat else mixed

    return run


@row("RotaryEmbedding")
def _rotary_embedding(node: Node) -> Built:
    interleaved, heads = node.integer("interleaved", 0), node.integer("num_heads", 0)
    width = node.integer("rotary_embedding_dim", 0)
    flat = node.rank(0) == 3

    def run(x: Tensor, cosine: Tensor, sine: Tensor, positions: Tensor | None = None) -> Tensor:
        x = _heads_apart(x, heads) if flat else x
        if positions is not None:
            cosine, sine = F.embedding(positions, cosine), F.embedding(positions, sine)
        cosine, sine = cosine.unsqueeze(1), sine.unsqueeze(1)
        turned, rest = x[..., : width or None], x[..., width or x.shape[-1] :]
        if interleaved:
            real, imaginary = turned[..., 0::2], turned[..., 1::2]
        else:
            real, imaginary = turned.chunk(2, -1)
        parts = (real * cosine - imaginary * sine, real * sine + imaginary * cosine)
        turned = torch.stack(parts, -1).flatten(-2) if interleaved else torch.cat(parts, -1)
        x = torch.cat([turned, rest], -1)
        return x.transpose(1, 2).flatten(2) if flat else x

    return run


# -- losses -----------------------------------------------------------------------------------------


@row("SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss")
def _class_loss(node: Node) -> Built:
    if node.read_count > 1:
        raise node.error("its second output (log-probabilities) is not supported")
    function: Run = F.cross_entropy if node.proto.op_type == "SoftmaxCrossEntropyLoss" else F.nll_loss
    reduction, ignored = node.text("reduction", "mean"), node.integer("ignore_index", -100)
    return lambda scores, labels, weight=None: function(
        scores, labels, weight, ignore_index=ignored, reduction=reduction
    )
