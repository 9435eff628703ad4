"""Operator rows: convolution, pooling, normalisation, attention, losses."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence

import torch
from onnx import TensorProto
from torch import Tensor
from torch.nn import functional as F

from poet.frontend.onnx.node import Built, Modal, Node, Run, complement, row

_Functions = Mapping[int, Callable[..., Tensor]]

_CONV: _Functions = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
_CONV_TRANSPOSE: _Functions = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}
_MAX_POOL: _Functions = {1: F.max_pool1d, 2: F.max_pool2d, 3: F.max_pool3d}
_AVERAGE_POOL: _Functions = {1: F.avg_pool1d, 2: F.avg_pool2d, 3: F.avg_pool3d}


_AUTO_PADS = ("NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID")


class _Window:
    """Kernel, stride, dilation and padding of a convolution or pooling node, per spatial dimension."""

    def __init__(self, node: Node, kernel: Sequence[int]) -> None:
        self.kernel = node.int_list("kernel_shape", kernel)
        self.rank = len(self.kernel)
        self.sizes = node.shape(0)[2:]
        if self.rank not in _CONV or self.rank != len(self.sizes) or (kernel and self.kernel != list(kernel)):
            raise node.error(f"a window {self.kernel} on a tensor of shape {list(node.shape(0))}")
        self.stride = node.int_list("strides", [1] * self.rank)
        self.dilation = node.int_list("dilations", [1] * self.rank)
        pads = node.int_list("pads", [0] * 2 * self.rank)
        self.before, self.after = pads[: self.rank], pads[self.rank :]
        self.automatic = node.text("auto_pad", "NOTSET", _AUTO_PADS)
        lists = (self.stride, self.dilation, self.before, self.after)
        if any(len(entry) != self.rank for entry in lists) or min(pads) < 0:
            raise node.error("strides, dilations and pads do not have one entry per dimension")
        if min(*self.kernel, *self.stride, *self.dilation) < 1:
            raise node.error("a window, stride or dilation below 1")
        if self.automatic != "NOTSET":
            if any(pads):
                raise node.error(f"pads {pads} together with auto_pad {self.automatic}")
            self._pad_automatically()

    @property
    def extents(self) -> list[int]:
        """Elements from the first to the last that a window touches."""
        return [(kernel - 1) * gap + 1 for kernel, gap in zip(self.kernel, self.dilation, strict=True)]

    def _pad_automatically(self) -> None:
        if self.automatic == "VALID":
            return
        totals = [
            max(0, (-(-size // stride) - 1) * stride + extent - size)
            for size, stride, extent in zip(self.sizes, self.stride, self.extents, strict=True)
        ]
        self.split_pads(totals, larger_after=self.automatic == "SAME_UPPER")

    def split_pads(self, totals: Sequence[int], *, larger_after: bool) -> None:
        """Pads ``totals`` half before, half after."""
        small, large = [total // 2 for total in totals], [total - total // 2 for total in totals]
        self.before, self.after = (small, large) if larger_after else (large, small)

    @property
    def symmetric(self) -> bool:
        return self.before == self.after

    @property
    def flat_pads(self) -> list[int]:
        """As ``F.pad`` takes them: last dimension first."""
        pairs = zip(reversed(self.before), reversed(self.after), strict=True)
        return [pad for pair in pairs for pad in pair]

    def pooled(self, node: Node) -> tuple[list[int], list[Tensor], list[Tensor]]:
        """Of a pooling: how much to pad behind, and per window the elements inside and with the padding.

        A last window that begins behind the input and what is padded before it is none, as in torch.

        Raises:
            ModelError: a window has no element of the input.
        """
        if self.automatic.startswith("SAME") and max(self.dilation) > 1:
            raise node.error("dilations together with auto_pad SAME are not supported")
        ceil, after, inside, padded = node.flag("ceil_mode"), list[int](), list[Tensor](), list[Tensor]()
        for size, before, behind, stride, extent, gap in zip(
            self.sizes, self.before, self.after, self.stride, self.extents, self.dilation, strict=True
        ):
            whole = before + size + behind
            count = (whole - extent + (stride - 1 if ceil else 0)) // stride + 1
            count -= ceil and (count - 1) * stride >= before + size
            taps = torch.arange(0, node.limited(extent), gap)
            node.limited(count * len(taps))
            places = torch.arange(max(count, 0)).unsqueeze(1) * stride + taps
            inside.append(((places >= before) & (places < before + size)).sum(1))
            padded.append((places < whole).sum(1))
            after.append((count - 1) * stride + extent - before - size)
            if count < 1 or not bool(inside[-1].all()):
                raise node.error(
                    f"a window {self.kernel} of it has no element of the input {list(self.sizes)}"
                )
        return after, inside, padded


# -- convolution ------------------------------------------------------------------------------------


def _drop_zero_bias(node: Node, index: int) -> None:
    """An exporter writes zeros for a convolution without bias; as an operand they would cost a tensor."""
    if node.is_constant(index) and not bool(node.value(index).constant.any()):  # type: ignore[union-attr]
        node.drop(index)


@row("Conv", heavy=True)
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


@row("ConvTranspose", heavy=True)
def _conv_transpose(node: Node) -> Built:
    window = _Window(node, node.shape(1)[2:])
    _drop_zero_bias(node, 2)
    function, groups = _CONV_TRANSPOSE[window.rank], node.integer("group", 1)
    stride, dilation = window.stride, window.dilation
    extra = node.int_list("output_padding", [0] * window.rank)
    if any(more >= max(pair) for more, *pair in zip(extra, stride, dilation, strict=True)):
        raise node.error(f"output_padding {extra} is not below stride or dilation")
    same = [size * step for size, step in zip(window.sizes, stride, strict=True)]
    wanted = node.int_list("output_shape", same if window.automatic.startswith("SAME") else ())
    if wanted:
        natural = [
            (size - 1) * step + (kernel - 1) * gap + 1 + more
            for size, step, kernel, gap, more in zip(
                window.sizes, stride, window.kernel, dilation, extra, strict=True
            )
        ]
        surplus = [have - want for have, want in zip(natural, wanted, strict=True)]
        if min(surplus) < 0:
            raise node.error(f"output_shape {wanted} is larger than what the kernel gives, {natural}")
        window.split_pads(surplus, larger_after=window.automatic == "SAME_UPPER")
    if window.symmetric and min(window.before) >= 0:
        padding = window.before
        return lambda x, w, b=None: function(x, w, b, stride, padding, extra, groups, dilation)
    crop = [-pad for pad in window.flat_pads]
    return lambda x, w, b=None: F.pad(function(x, w, b, stride, 0, extra, groups, dilation), crop)


# -- pooling ----------------------------------------------------------------------------------------


@row("MaxPool", heavy=True)
def _max_pool(node: Node) -> Built:
    window = _Window(node, ())
    function = _MAX_POOL[window.rank]
    kernel, stride, dilation = window.kernel, window.stride, window.dilation
    after, _, _ = window.pooled(node)
    ceil, indices, by_columns = node.flag("ceil_mode"), node.read_count > 1, node.flag("storage_order")
    is_single = node.prod(0) == math.prod(window.sizes)
    if indices and (not is_single or by_columns or not window.symmetric):
        raise node.error(
            "its second output (indices) is only supported for one channel of one sample, by rows"
        )
    if window.symmetric and all(2 * pad <= size for pad, size in zip(window.before, kernel, strict=True)):
        padding = window.before
        return lambda x: function(x, kernel, stride, padding, dilation, ceil, indices)
    if indices:
        raise node.error("its second output (indices) is not supported with so large pads")
    window.after, dtype = after, node.meta(0).dtype
    pads = window.flat_pads
    least = -math.inf if dtype.is_floating_point else torch.iinfo(dtype).min
    return lambda x: function(F.pad(x, pads, value=least), kernel, stride, 0, dilation)


@row("AveragePool", heavy=True)
def _average_pool(node: Node) -> Built:
    window = _Window(node, ())
    function = _AVERAGE_POOL[window.rank]
    kernel, stride = window.kernel, window.stride
    sums, inside, padded = _sums(node, window)
    ceil, count_pads = node.flag("ceil_mode"), node.flag("count_include_pad")
    fits = all(2 * pad <= size for pad, size in zip(window.before, kernel, strict=True))
    if window.symmetric and fits and set(window.dilation) == {1}:
        padding = window.before
        return lambda x: function(x, kernel, stride, padding, ceil, count_pads)
    counts = torch.ones(())
    for along in padded if count_pads else inside:
        counts = counts.unsqueeze(-1) * along
    return lambda x: sums(x) / counts.to(x)


@row("LpPool", heavy=True)
def _lp_pool(node: Node) -> Built:
    window = _Window(node, ())
    power = float(node.integer("p", 2))
    sums, _, _ = _sums(node, window)
    return lambda x: sums(x.abs() ** power) ** (1 / power)


def _sums(node: Node, window: _Window) -> tuple[Callable[[Tensor], Tensor], list[Tensor], list[Tensor]]:
    """The sum of each window, as a convolution of each channel with ones; elements as in `_Window.pooled`."""
    after, inside, padded = window.pooled(node)
    function, kernel, stride, gaps = _CONV[window.rank], window.kernel, window.stride, window.dilation
    pairs = zip(reversed(window.before), reversed(after), strict=True)
    pads = [pad for pair in pairs for pad in pair]

    def run(x: Tensor) -> Tensor:
        image = F.pad(x, pads).flatten(0, 1).unsqueeze(1)
        found = function(image, image.new_ones(1, 1, *kernel), None, stride, 0, gaps)
        return found.reshape(*x.shape[:2], *found.shape[2:])

    return run, inside, padded


@row("GlobalAveragePool", "GlobalMaxPool")
def _global_pool(node: Node) -> Built:
    axes = list(range(2, node.rank(0)))
    if not axes:
        raise node.error(f"no image, but a tensor of shape {list(node.shape(0))}")
    if node.proto.op_type == "GlobalAveragePool":
        return lambda x: x.mean(axes, keepdim=True)
    return lambda x: x.amax(axes, keepdim=True)


# -- normalisation ----------------------------------------------------------------------------------


@row("BatchNormalization", ignored=("training_mode",), fixed=(3, 4))
def _batch_normalization(node: Node) -> Built:
    node.buffer(3)
    node.buffer(4)
    epsilon = node.real("epsilon", 1e-5)
    momentum = complement(node.real("momentum", 0.9))

    def run(
        x: Tensor, scale: Tensor, shift: Tensor, mean: Tensor, variance: Tensor, *, is_training: bool
    ) -> Tensor:
        return F.batch_norm(x, mean, variance, scale, shift, is_training, momentum, epsilon)

    # further outputs are the running statistics, which torch updates in place
    return Modal(functools.partial(run, is_training=True), functools.partial(run, is_training=False))


@row("InstanceNormalization")
def _instance_normalization(node: Node) -> Built:
    epsilon = node.real("epsilon", 1e-5)
    return lambda x, scale, shift: F.instance_norm(x, weight=scale, bias=shift, eps=epsilon)


@row("LayerNormalization")
def _layer_normalization(node: Node) -> Built:
    epsilon = _epsilon(node)
    shape = node.shape(0)[node.axis(node.integer("axis", -1)) :]
    if all(node.shape(place) == shape for place in (1, 2) if node.has(place)):
        if node.read_count == 1:
            return lambda x, scale, shift=None: F.layer_norm(x, shape, scale, shift, epsilon)
        return lambda x, scale, shift=None: torch.native_layer_norm(x, shape, scale, shift, epsilon)

    def run(x: Tensor, scale: Tensor, shift: Tensor | None = None) -> tuple[Tensor, ...]:
        y, *statistics = torch.native_layer_norm(x, shape, None, None, epsilon)
        return _scaled(y, scale, shift), *statistics

    return run


def _epsilon(node: Node) -> float:
    """Of a normalisation that is computed in single precision at least, as its stash type says."""
    if node.integer("stash_type", TensorProto.FLOAT) != TensorProto.FLOAT:
        raise node.error("only the stash_type 1 (single precision) is supported")
    return node.real("epsilon", 1e-5)


def _scaled(x: Tensor, scale: Tensor, shift: Tensor | None) -> Tensor:
    return x * scale if shift is None else x * scale + shift


@row("RMSNormalization")
def _rms_normalization(node: Node) -> Built:
    epsilon = _epsilon(node)
    shape = node.shape(0)[node.axis(node.integer("axis", -1)) :]
    if node.shape(1) != shape:
        return lambda x, scale: _scaled(F.rms_norm(x, shape, None, epsilon), scale, None)
    return lambda x, scale: F.rms_norm(x, shape, scale, epsilon)


@row("GroupNormalization")
def _group_normalization(node: Node) -> Built:
    groups, epsilon = node.integer("num_groups", 1), _epsilon(node)
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


@row("Attention", heavy=True, ignored=("softmax_precision", "qk_matmul_output_mode"))
def _attention(node: Node) -> Built:
    """Attention of operator set 23, for the outputs and options that training uses."""
    if node.read_count > 1 or any(node.has(i) for i in range(4, len(node.inputs))):
        raise node.error("cached keys and values, and outputs besides the first, are not supported")
    if node.real("softcap", 0.0):
        raise node.error("softcap is not supported")
    heads = (node.integer("q_num_heads", 0), node.integer("kv_num_heads", 0), node.integer("kv_num_heads", 0))
    causal, flat = node.flag("is_causal"), node.rank(0) == 3
    scale = None if node.attribute("scale") is None else node.real("scale", 0.0)

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
    interleaved, heads = node.flag("interleaved"), node.integer("num_heads", 0)
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


@row("SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss", fixed=(2,))
def _class_loss(node: Node) -> Built:
    if node.read_count > 1:
        raise node.error("its second output (log-probabilities) is not supported")
    function: Run = F.cross_entropy if node.proto.op_type == "SoftmaxCrossEntropyLoss" else F.nll_loss
    reduction = node.text("reduction", "mean", ("none", "mean", "sum"))
    ignored = node.integer("ignore_index", -100)
    return lambda scores, labels, weight=None: function(
        scores, labels.long(), weight, ignore_index=ignored, reduction=reduction
    )
