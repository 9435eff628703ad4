"""Operator rows: resizing and sampling of images."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from poet.frontend.onnx.node import Alias, Built, Node, row

_LINEAR = {1: "linear", 2: "bilinear", 3: "trilinear"}
_ALIGNED = {"half_pixel": False, "pytorch_half_pixel": False, "align_corners": True}
_ROUNDINGS: dict[str, Callable[[NDArray[np.float64]], NDArray[np.float64]]] = {
    "floor": np.floor,
    "ceil": np.ceil,
    "round_prefer_floor": lambda x: np.ceil(x - 0.5),
    "round_prefer_ceil": lambda x: np.floor(x + 0.5),
}
_Number = TypeVar("_Number", int, float)


@row("Resize", "Upsample")
def _resize(node: Node) -> Built:
    mode = node.text("mode", "nearest").replace("bilinear", "linear")
    # Upsample and the Resize of operator set 10 know one rule
    modern = node.proto.op_type == "Resize" and node.opset >= 11
    coordinates = node.text("coordinate_transformation_mode", "half_pixel") if modern else "asymmetric"
    rounding = node.text("nearest_mode", "round_prefer_floor") if modern else "floor"
    if node.text("keep_aspect_ratio_policy", "stretch") != "stretch":
        raise node.error("only the aspect ratio policy 'stretch' is supported")
    coefficient = node.real("cubic_coeff_a", -0.75)
    sizes, scales = _targets(node, modern=modern)
    shape = list(node.shape(0))
    if sizes[:2] != shape[:2] or len(sizes) - 2 not in _LINEAR:
        raise node.error("only the spatial dimensions of an image can be resized")
    if sizes == shape and (scales is None or all(scale == 1 for scale in scales)):
        return Alias()
    if mode == "nearest":
        return _nearest(node, sizes, scales, coordinates, rounding)
    # torch's kernels place samples by the sizes where corners are aligned, ONNX by the factors
    uneven = scales is not None and any(
        size * scale != new for size, scale, new in zip(shape, scales, sizes, strict=True)
    )
    if (
        coordinates not in _ALIGNED
        or (coordinates == "align_corners" and uneven)
        or (coordinates == "pytorch_half_pixel" and 1 in sizes[2:])
        or (mode == "cubic" and (coefficient != -0.75 or len(sizes) != 4))
        or mode not in ("linear", "cubic")
    ):
        raise node.error(f"mode {mode!r} with {coordinates!r} is not supported for sizes {sizes}")
    kernel = "bicubic" if mode == "cubic" else _LINEAR[len(sizes) - 2]
    corners = _ALIGNED[coordinates]
    return lambda x: _interpolate(x, sizes, scales, kernel, corners)


def _interpolate(
    x: Tensor, sizes: list[int], scales: list[float] | None, kernel: str, corners: bool | None
) -> Tensor:
    if scales is None:
        return F.interpolate(x, sizes[2:], mode=kernel, align_corners=corners)
    factors = tuple(scales[2:])
    return F.interpolate(x, scale_factor=factors, mode=kernel, align_corners=corners)


def _nearest(
    node: Node, sizes: list[int], scales: list[float] | None, coordinates: str, rounding: str
) -> Built:
    """One of torch's kernels where it takes the same samples, else selection by index."""
    if coordinates == "tf_crop_and_resize" or rounding not in _ROUNDINGS:
        raise node.error(f"nearest with {coordinates!r} and {rounding!r} is not supported")
    shape = node.shape(0)
    wanted = [
        _samples(size, new, scales[axis] if scales else new / size, coordinates, rounding)
        for axis, (size, new) in enumerate(zip(shape, sizes, strict=True))
    ][2:]
    for kernel in ("nearest", "nearest-exact"):
        taken = [
            _interpolate(
                torch.arange(size, dtype=torch.float32)[None, None],
                [1, 1, new],
                [1.0, 1.0, scale] if scale else None,
                kernel,
                None,
            )
            for size, new, scale in zip(
                shape[2:], sizes[2:], scales[2:] if scales else [None] * (len(sizes) - 2), strict=True
            )
        ]
        if all(np.array_equal(a, b.reshape(-1).numpy()) for a, b in zip(wanted, taken, strict=True)):
            return lambda x, kernel=kernel: _interpolate(x, sizes, scales, kernel, None)
    indices = [torch.from_numpy(index) for index in wanted]

    def run(x: Tensor) -> Tensor:
        for axis, index in enumerate(indices, 2):
            x = x.index_select(axis, index.to(x.device))
        return x

    return run


def _samples(size: int, new: int, scale: float, coordinates: str, rounding: str) -> NDArray[np.int64]:
    """The input index behind each output index (the formulas of ONNX's Resize)."""
    target = np.arange(new, dtype=np.float64)
    if coordinates == "align_corners":
        source = target * (size - 1) / (new - 1) if new > 1 else np.zeros(new)
    elif coordinates == "asymmetric":
        source = target / scale
    elif coordinates == "pytorch_half_pixel" and new == 1:
        source = np.zeros(1)
    else:
        source = (target + 0.5) / scale - 0.5
    if coordinates == "half_pixel_symmetric":
        source += size / 2 * (1 - new / (scale * size))
    index: NDArray[np.int64] = np.clip(_ROUNDINGS[rounding](source), 0, size - 1).astype(np.int64)
    return index


def _targets(node: Node, *, modern: bool) -> tuple[list[int], list[float] | None]:
    """The output's shape, and the factors where the node states factors."""
    shape = list(node.shape(0))
    if modern:
        node.drop(1)
        if node.has(3):
            node.drop(2)
            return _on_axes(node, node.ints(3, "sizes"), shape), None
        scales = node.floats(2, "scales")
    else:
        scales = node.floats(1, "scales")
    scales = _on_axes(node, scales, [1.0] * len(shape))
    return [math.floor(size * scale) for size, scale in zip(shape, scales, strict=True)], scales


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
    mode = node.text("mode", "linear")
    mode = {"linear": "bilinear", "cubic": "bicubic"}.get(mode, mode)
    padding, corners = node.text("padding_mode", "zeros"), bool(node.integer("align_corners", 0))
    return lambda x, grid: F.grid_sample(x, grid, mode, padding, corners)
