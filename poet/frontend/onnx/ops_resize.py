"""Operator rows: resizing and sampling of images."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from poet.frontend.onnx.node import Alias, Built, Node, Run, row

_Floats = NDArray[np.float64]
_ROUNDINGS: dict[str, Callable[[_Floats], _Floats]] = {
    "floor": np.floor,
    "ceil": np.ceil,
    "round_prefer_floor": lambda x: np.ceil(x - 0.5),
    "round_prefer_ceil": lambda x: np.floor(x + 0.5),
}
_COORDINATES = {
    "half_pixel": range(11, 99), "pytorch_half_pixel": range(11, 99), "align_corners": range(11, 99),
    "asymmetric": range(11, 99), "tf_half_pixel_for_nn": range(11, 13), "half_pixel_symmetric": range(19, 99),
}  # fmt: skip
"""With the operator sets that have them; ``tf_crop_and_resize`` is not supported."""
_KERNELS = {
    "nearest": (("nearest", "nearest-exact"),) * 3,
    "linear": (("linear",), ("bilinear",), ("trilinear",)),
    "cubic": ((), ("bicubic",), ()),
}
"""torch's by mode, for one, two and three spatial dimensions."""
_Number = TypeVar("_Number", int, float)


@dataclass(frozen=True)
class _Axis:
    """One dimension resized, to ``new`` elements and by a factor."""

    size: int
    new: int
    scale: float


@dataclass(frozen=True)
class _Rule:
    """The attributes of a node that say which samples it takes."""

    mode: str
    coordinates: str
    rounding: str
    coefficient: float
    excludes: bool
    antialias: bool

    def sources(self, axis: _Axis) -> _Floats:
        """The place in the input behind each output element (the formulas of ONNX's Resize)."""
        target, size, length = np.arange(axis.new, dtype=np.float64), axis.size, axis.scale * axis.size
        if self.coordinates == "align_corners":
            return target * (size - 1) / (length - 1) if length != 1 else np.zeros(axis.new)
        if self.coordinates == "asymmetric":
            return target / axis.scale
        if self.coordinates == "pytorch_half_pixel" and axis.new == 1:
            return np.zeros(1)
        source = (target + 0.5) / axis.scale
        if self.coordinates == "half_pixel_symmetric":
            source += size / 2 * (1 - axis.new / length)
        return source if self.coordinates == "tf_half_pixel_for_nn" else source - 0.5

    def taps(self, axis: _Axis) -> tuple[Tensor, Tensor]:
        """Per output element the input elements it is a sum of, and their weights."""
        source = self.sources(axis)
        if self.mode == "nearest":
            rounding = self.rounding or ("floor" if axis.scale >= 1 else "ceil")
            index = _ROUNDINGS[rounding](source).astype(np.int64)[:, None]
            weights = np.ones(index.shape)
        else:
            stretch = max(1.0, 1 / axis.scale) if self.antialias else 1.0
            radius = stretch * (1 if self.mode == "linear" else 2)
            index = np.floor(source - radius).astype(np.int64)[:, None] + 1 + np.arange(math.ceil(2 * radius))
            weights = self._weights(np.abs(index - source[:, None]) / stretch)
            weights /= weights.sum(1, keepdims=True) if self.antialias else 1
            if self.excludes:
                weights[(index < 0) | (index >= axis.size)] = 0
                weights /= weights.sum(1, keepdims=True)
        return torch.from_numpy(np.clip(index, 0, axis.size - 1)), torch.from_numpy(weights)

    def _weights(self, distance: _Floats) -> _Floats:
        if self.mode == "linear":
            return np.maximum(1 - distance, 0)
        a, d = self.coefficient, distance
        near, far = ((a + 2) * d - (a + 3)) * d * d + 1, ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
        return np.where(d <= 1, near, np.where(d < 2, far, 0))


@row("Resize", "Upsample", fixed=(1, 2, 3))
def _resize(node: Node) -> Built:
    modern = node.proto.op_type == "Resize" and node.opset >= 11
    modes = ("nearest", "linear", "cubic") if modern else ("nearest", "linear")
    known = [name for name, opsets in _COORDINATES.items() if node.opset in opsets]
    # Upsample and the Resize of operator set 10 know one rule, with onnxruntime's rounding
    coordinates = node.text("coordinate_transformation_mode", "half_pixel" if modern else "asymmetric", known)
    rule = _Rule(
        mode=node.text("mode", "nearest", modes),
        coordinates=coordinates,
        rounding=node.text("nearest_mode", "round_prefer_floor", _ROUNDINGS) if modern else "",
        coefficient=node.real("cubic_coeff_a", -0.75),
        excludes=node.flag("exclude_outside"),
        antialias=node.flag("antialias"),
    )
    node.text("keep_aspect_ratio_policy", "stretch", ("stretch",))
    axes, factors = _targets(node, modern=modern)
    changed = {n: axis for n, axis in enumerate(axes) if axis.size != axis.new or axis.scale != 1}
    if not changed:
        return Alias()
    if rule.mode != "nearest" and not node.meta(0).is_floating_point():
        raise node.error(f"mode {rule.mode!r} of whole numbers is not supported")
    if rule.excludes and rule.mode != "cubic":
        raise node.error(f"exclude_outside with mode {rule.mode!r} is not supported")
    for axis in axes:
        node.limited(max(axis.new, axis.size))
    found = _kernel(rule, axes, factors) if min(changed) >= 2 else None
    return found or _summed(rule, changed)


def _kernel(rule: _Rule, axes: Sequence[_Axis], factors: Sequence[float] | None) -> Run | None:
    """The kernel of torch that takes the same samples, if there is one: it is tried along each dimension."""
    rank = len(axes) - 2
    corners = None if rule.mode == "nearest" else rule.coordinates == "align_corners"
    kind = torch.float32 if rule.mode == "nearest" else torch.float64

    def interpolate(x: Tensor, sizes: Sequence[int], scales: Sequence[float] | None, name: str) -> Tensor:
        wanted: dict[str, Any] = {"size": list(sizes)} if scales is None else {"scale_factor": tuple(scales)}
        return F.interpolate(x, mode=name, align_corners=corners, antialias=rule.antialias, **wanted)

    def is_same(name: str) -> bool:
        for number, axis in enumerate(axes[2:]):
            line = torch.rand(axis.size, dtype=kind, generator=torch.Generator().manual_seed(number))
            sizes, shape, scales = [1] * rank, [1] * rank, [1.0] * rank if factors else None
            sizes[number], shape[number] = axis.new, axis.size
            if scales and factors:
                scales[number] = factors[number]
            index, weights = rule.taps(axis)
            ours = interpolate(line.reshape(1, 1, *shape), sizes, scales, name).flatten()
            if not torch.allclose(ours, (line[index] * weights).sum(1).to(kind), rtol=0, atol=1e-6):
                return False
        return True

    if not 1 <= rank <= 3 or (rule.antialias and rank != 2):
        return None
    sizes, names = [axis.new for axis in axes[2:]], _KERNELS[rule.mode][rank - 1]
    return next((lambda x, n=n: interpolate(x, sizes, factors, n) for n in names if is_same(n)), None)


def _summed(rule: _Rule, axes: Mapping[int, _Axis]) -> Run:
    """Input elements times their weights, along one dimension after the other."""
    found = {number: rule.taps(axis) for number, axis in axes.items()}

    def run(x: Tensor) -> Tensor:
        for number, (index, weights) in found.items():
            shape = [-1, *[1] * (x.dim() - number - 1)]
            taken = [x.index_select(number, places.to(x.device)) for places in index.unbind(1)]
            if rule.mode != "nearest":
                taken = [x * w.reshape(shape).to(x) for x, w in zip(taken, weights.unbind(1), strict=True)]
            x = functools.reduce(torch.add, taken)
        return x

    return run


def _targets(node: Node, *, modern: bool) -> tuple[list[_Axis], list[float] | None]:
    """How each dimension is resized, and the spatial factors where the node states factors."""
    shape = list(node.shape(0))
    if modern:
        node.drop(1)
        if node.has(3) and node.prod(3):
            node.drop(2)
            sizes = _on_axes(node, node.ints(3, "sizes"), shape)
            return [
                _Axis(size, new, new / max(size, 1)) for size, new in zip(shape, sizes, strict=True)
            ], None
        node.drop(3)
    scales = _on_axes(node, node.floats(2 if modern else 1, "scales"), [1.0] * len(shape))
    axes = [_Axis(size, math.floor(size * by), by) for size, by in zip(shape, scales, strict=True)]
    return axes, scales[2:]


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
    names = ("linear", "nearest", "cubic") if node.opset >= 20 else ("bilinear", "nearest", "bicubic")
    mode = node.text("mode", names[0], names)
    mode = {"linear": "bilinear", "cubic": "bicubic"}.get(mode, mode)
    padding = node.text("padding_mode", "zeros", ("zeros", "border", "reflection"))
    corners = node.flag("align_corners")
    return lambda x, grid: F.grid_sample(x, grid, mode, padding, corners)
