"""Operator rows: convolution, pooling, normalisation, attention, resizing, losses."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import torch
from torch import Tensor
from torch.nn import functional as F

from poet.frontend.onnx_node import Alias, Built, Modal, Node, Run, complement, row

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
        """As ``F.pad`` wants them: last dimension first."""
        pairs = zip(reversed(self.before), reversed(self.after), strict=True)
        return [pad for pair in pairs for pad in pair]


# -- convolution ------------------------------------------------------------------------------------


def _drop_zero_bias(node: Node, index: int) -> None:
    """An exporter writes zeros for a convolution without bias; as an operand they would cost a tensor."""
    if node.is_constant(index) and not bool(node.value(index).constant.any()):  # type: ignore[union-attr]
        node.drop(index)


@row("Conv")
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


@row("ConvTranspose")
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
        window.before = [(have - want) // 2 for have, want in zip(natural, wanted, strict=True)]
        window.after = [
            have - want - low for have, want, low in zip(natural, wanted, window.before, strict=True)
        ]
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
    ceil, indices = bool(node.integer("ceil_mode", 0)), node.output_count > 1
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
    function: Run = F.lp_pool1d if window.rank == 1 else F.lp_pool2d
    kernel, stride = window.kernel, window.stride
    return lambda x: function(x, power, kernel, stride, ceil)


@row("GlobalAveragePool", "GlobalMaxPool")
def _global_pool(node: Node) -> Built:
    axes = list(range(2, node.rank(0)))
    if node.proto.op_type == "GlobalAveragePool":
        return lambda x: x.mean(axes, keepdim=True)
    return lambda x: x.amax(axes, keepdim=True)


# -- normalisation ----------------------------------------------------------------------------------


@row("BatchNormalization")
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


@row("LayerNormalization")
def _layer_normalization(node: Node) -> Built:
    epsilon = node.real("epsilon", 1e-5)
    shape = node.shape(0)[node.axis(node.integer("axis", -1)) :]
    if node.output_count > 1:
        return lambda x, scale, shift=None: torch.native_layer_norm(x, shape, scale, shift, epsilon)
    if node.shape(1) != shape:
        return lambda x, scale, shift=None: _scaled(F.layer_norm(x, shape, eps=epsilon), scale, shift)
    return lambda x, scale, shift=None: F.layer_norm(x, shape, scale, shift, epsilon)


def _scaled(x: Tensor, scale: Tensor, shift: Tensor | None) -> Tensor:
    return x * scale if shift is None else x * scale + shift


@row("RMSNormalization")
def _rms_normalization(node: Node) -> Built:
    epsilon = node.real("epsilon", 1e-5)
    shape = node.shape(0)[node.axis(node.integer("axis", -1)) :]
    return lambda x, scale: F.rms_norm(x, shape, scale, epsilon)


@row("GroupNormalization")
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


@row("Attention")
def _attention(node: Node) -> Built:
    """Attention of operator set 23, for the outputs and options that training uses."""
    if node.output_count > 1 or any(node.has(i) for i in range(4, len(node.inputs))):
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
    flat = node.rank(0) == 3

    def run(x: Tensor, cosine: Tensor, sine: Tensor, positions: Tensor | None = None) -> Tensor:
        x = _heads_apart(x, heads) if flat else x
        if positions is not None:
            cosine, sine = F.embedding(positions, cosine), F.embedding(positions, sine)
        cosine, sine = cosine.unsqueeze(1), sine.unsqueeze(1)
        width = node.integer("rotary_embedding_dim", 0) or x.shape[-1]
        turned, rest = x[..., :width], x[..., width:]
        if interleaved:
            real, imaginary = turned[..., 0::2], turned[..., 1::2]
        else:
            real, imaginary = turned.chunk(2, -1)
        parts = (real * cosine - imaginary * sine, real * sine + imaginary * cosine)
        turned = torch.stack(parts, -1).flatten(-2) if interleaved else torch.cat(parts, -1)
        x = torch.cat([turned, rest], -1)
        return x.transpose(1, 2).flatten(2) if flat else x

    return run


# -- resizing ---------------------------------------------------------------------------------------

# (mode, coordinate transformation, rounding of nearest) -> torch's mode, align_corners
_RESIZE: dict[tuple[str, str, str], tuple[str, bool | None]] = {
    ("nearest", "asymmetric", "floor"): ("nearest", None),
    ("nearest", "half_pixel", "round_prefer_ceil"): ("nearest-exact", None),
    ("nearest", "half_pixel", "round_prefer_floor"): ("nearest-exact", None),
    ("linear", "half_pixel", ""): ("linear", False),
    ("linear", "pytorch_half_pixel", ""): ("linear", False),
    ("linear", "align_corners", ""): ("linear", True),
    ("cubic", "half_pixel", ""): ("bicubic", False),
    ("cubic", "pytorch_half_pixel", ""): ("bicubic", False),
    ("cubic", "align_corners", ""): ("bicubic", True),
}
_LINEAR = {1: "linear", 2: "bilinear", 3: "trilinear"}


@row("Resize", "Upsample")
def _resize(node: Node) -> Built:
    mode = node.text("mode", "nearest").replace("bilinear", "linear")
    # Upsample and the Resize of operator set 10 know one rule
    modern = node.proto.op_type == "Resize" and node.opset >= 11
    transformation = node.text("coordinate_transformation_mode", "half_pixel") if modern else "asymmetric"
    rounding = node.text("nearest_mode", "round_prefer_floor") if modern else "floor"
    sizes, scales = _resize_targets(node, modern=modern)
    if sizes[:2] != list(node.shape(0)[:2]):
        raise node.error("resizing the batch or channel dimension is not supported")
    if sizes == list(node.shape(0)):
        return Alias()
    rank = len(sizes) - 2
    whole = mode == "nearest" and all(
        new % old == 0 for new, old in zip(sizes[2:], node.shape(0)[2:], strict=True)
    )
    if whole and (transformation, rounding) in {
        ("half_pixel", "round_prefer_floor"),
        ("asymmetric", "floor"),
    }:
        found: tuple[str, bool | None] | None = ("nearest", None)  # all rules agree for whole factors
    else:
        found = _RESIZE.get((mode, transformation, rounding if mode == "nearest" else ""))
    cubic = mode == "cubic"
    if (
        found is None
        or rank not in _LINEAR
        or (cubic and (node.real("cubic_coeff_a", -0.75) != -0.75 or rank != 2))
    ):
        raise node.error(f"mode {mode!r} with {transformation!r} and {rounding!r} is not supported")
    torch_mode = _LINEAR[rank] if found[0] == "linear" else found[0]
    corners = found[1]
    if scales is not None:
        factors = scales[2:]
        return lambda x: F.interpolate(x, scale_factor=factors, mode=torch_mode, align_corners=corners)
    spatial = sizes[2:]
    return lambda x: F.interpolate(x, spatial, mode=torch_mode, align_corners=corners)


def _resize_targets(node: Node, *, modern: bool) -> tuple[list[int], list[float] | None]:
    """The output's shape, and the factors where the node states factors."""
    shape = list(node.shape(0))
    if node.proto.op_type == "Upsample" and node.opset < 9:
        scales = node.float_list("scales")
    elif modern:
        node.drop(1)
        if node.has(3):
            sizes = node.ints(3, "sizes")
            if node.has(2):
                node.drop(2)
            return _on_axes(node, sizes, shape), None
        scales = node.floats(2, "scales")
    else:
        scales = node.floats(1, "scales")
    scales = _on_axes(node, scales, [1.0] * len(shape))
    return [math.floor(size * scale) for size, scale in zip(shape, scales, strict=True)], scales


_Number = TypeVar("_Number", int, float)


def _on_axes(node: Node, entries: list[_Number], default: list[_Number]) -> list[_Number]:
    """``entries`` given for some axes, over ``default`` for all."""
    axes = node.int_list("axes", range(len(default)))
    if len(axes) != len(entries):
        raise node.error(f"{len(entries)} scales or sizes for {len(axes)} axes")
    full = list(default)
    for axis, entry in zip(axes, entries, strict=True):
        full[node.axis(axis)] = entry
    return full


@row("GridSample")
def _grid_sample(node: Node) -> Built:
    mode = {"linear": "bilinear", "cubic": "bicubic"}.get(node.text("mode", "linear"), node.text("mode", ""))
    padding, corners = node.text("padding_mode", "zeros"), bool(node.integer("align_corners", 0))
    return lambda x, grid: F.grid_sample(x, grid, mode, padding, corners)


# -- losses -----------------------------------------------------------------------------------------


@row("SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss")
def _class_loss(node: Node) -> Built:
    if node.output_count > 1:
        raise node.error("its second output (log-probabilities) is not supported")
    function: Run = F.cross_entropy if node.proto.op_type == "SoftmaxCrossEntropyLoss" else F.nll_loss
    reduction, ignored = node.text("reduction", "mean"), node.integer("ignore_index", -100)
    return lambda scores, labels, weight=None: function(
        scores, labels, weight, ignore_index=ignored, reduction=reduction
    )
