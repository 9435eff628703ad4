"""Cases of padding, windows, resizing, normalisation, products."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from helpers.onnx_case import Given, f, i64, of, product, types

# fmt: off


# -- padding and blocks -----------------------------------------------------------------------------


@of("Pad")
def _pad(op: str, opset: int) -> Iterator[Given]:
    pads: tuple[int, ...]
    modes = [None, "constant", "reflect", "edge", *(["wrap"] if opset >= 19 else [])]
    x = f(2, 3, 4, 5)
    table = ((0, 0, 1, 1, 0, 0, 1, 1), (0, 0, 0, 2, 0, 0, 1, 0), (0, 1, 0, 0, 0, 1, 0, 0), (0, 0, -1, 0, 0, 0,
            0, -2),
             (0,) * 8, (1, 0, 0, 0, 0, 0, 0, 3), (0, 0, -1, 2, 0, 0, 1, 1), (0, 0, 3, 4, 0, 0, 3, 4), (0, 0,
                 0, 7, 0, 0, 0, 9))
    for mode, pads in itertools.product(modes, table):
        attributes: dict[str, Any] = {} if mode is None else {"mode": mode}
        if opset < 11:
            yield {**attributes, "pads": pads}, [x]
            yield {**attributes, "pads": pads, "value": 1.5}, [x]
            continue
        yield attributes, [x, i64(*pads)]
        yield attributes, [x, i64(*pads), np.array(1.5, np.float32)]
        yield attributes, [f(2, 3, 4, 5, dtype=np.int64), i64(*pads), np.array(2**40 + 1, np.int64)]
        if opset >= 18:
            yield attributes, [x, i64(1, 2), None, i64(-1)]
            yield attributes, [x, i64(1, 0, 2, 1), np.array(2, np.float32), np.array([3, -2], np.int32)]
    if opset >= 11:
        for shape, pads in (((3,), (1, 2)), ((2, 3), (0, 1, 1, 1)), ((2, 3, 4), (0, 0, 1, 0, 0, 2)), ((0, 3),
                (1, 0, 1, 0))):
            for mode in modes:
                yield {} if mode is None else {"mode": mode}, [f(*shape), i64(*pads)]
        yield {}, [f(2, 3, dtype=np.bool_), i64(0, 1, 1, 0), np.array(True)]
        yield {}, [f(2, 3), i64(0, 1), None]


@of("DepthToSpace")
def _depth_to_space(op: str, opset: int) -> Iterator[Given]:
    for mode in (None, "DCR", "CRD") if opset >= 11 else (None,):
        for block in (1, 2):
            for x in (f(2, 8, 2, 3), f(1, 4, 1, 1), f(0, 4, 2, 2)):
                yield {"blocksize": block, **({} if mode is None else {"mode": mode})}, [x]
    yield {"blocksize": 3}, [f(1, 8, 2, 2)]


@of("SpaceToDepth")
def _space_to_depth(op: str, opset: int) -> Iterator[Given]:
    for block in (1, 2, 3):
        for x in (f(2, 3, 4, 6), f(1, 1, 6, 6)):
            yield {"blocksize": block}, [x]


# -- windows ----------------------------------------------------------------------------------------


@of("MaxPool", "AveragePool", "LpPool")
def _pool(op: str, opset: int) -> Iterator[Given]:
    pads: tuple[int, ...] | None
    attributes: dict[str, Any]
    extra: dict[str, Sequence[Any]] = {}
    if op == "AveragePool":
        extra = {"count_include_pad": (None, 1)}
    if op == "LpPool":
        extra = {"p": (None, 1, 3)}
    ceil = opset >= (18 if op == "LpPool" else 10)
    dilate = opset >= {"MaxPool": 10, "AveragePool": 19, "LpPool": 18}[op]
    windows: list[dict[str, Any]] = []
    for kernel, stride, pads in itertools.product(
        ((2, 2), (3, 3), (3, 2), (1, 1)),
        (None, (2, 2), (1, 3), (3, 3)),
        (None, (0, 0, 1, 1), (1, 1, 1, 1), (1, 0, 0, 1), (0, 1, 0, 1), (2, 1, 2, 1), (2, 2, 0, 0), (0, 0, 2,
            2)),
    ):
        windows.append({"kernel_shape": kernel, "strides": stride, "pads": pads})
    for window in windows:
        for ceil_mode in (None, 1) if ceil else (None,):
            for more in product(**extra):
                attributes = {**window, "ceil_mode": ceil_mode, **more}
                yield {k: v for k, v in attributes.items() if v is not None}, [f(1, 2, 5, 6)]
    for auto, kernel, stride in itertools.product(
        ("SAME_UPPER", "SAME_LOWER", "VALID", "NOTSET"), ((2, 2), (3, 3), (4, 2)), (None, (2, 2), (3, 2))
    ):
        for more in product(**extra):
            attributes = {"kernel_shape": kernel, "strides": stride, "auto_pad": auto, **more}
            yield {k: v for k, v in attributes.items() if v is not None}, [f(1, 2, 5, 6)]
            if ceil:
                yield {k: v for k, v in {**attributes, "ceil_mode": 1}.items() if v is not None}, [f(1, 2, 5,
                        6)]
    if dilate:
        for dilations, pads, ceil_mode, more in itertools.product(
            ((2, 2), (1, 2), (3, 1)), (None, (1, 1, 1, 1), (0, 1, 2, 0)), (None, 1), product(**extra)
        ):
            attributes = {"kernel_shape": (2, 2), "dilations": dilations, "pads": pads,
                    "ceil_mode": ceil_mode, "strides": (2, 1), **more}
            yield {k: v for k, v in attributes.items() if v is not None}, [f(1, 2, 6, 7)]
        yield {"kernel_shape": (2, 2), "dilations": (2, 2), "auto_pad": "SAME_UPPER"}, [f(1, 1, 5, 6)]
    for rank in (1, 3):
        for pads in (None, (1,) * 2 * rank, (0,) * rank + (1,) * rank):
            for ceil_mode in (None, 1) if ceil else (None,):
                attributes = {"kernel_shape": (2,) * rank, "strides": (2,) * rank, "pads": pads,
                        "ceil_mode": ceil_mode}
                yield {k: v for k, v in attributes.items() if v is not None}, [f(2, 1, *(5, 4, 5)[:rank])]
    for dtype in types(op, opset):
        yield {"kernel_shape": (2, 2)}, [f(1, 2, 4, 4, dtype=dtype)]
        yield {"kernel_shape": (2, 2), "pads": (0, 0, 1, 1)}, [f(1, 2, 4, 4, dtype=dtype)]
    yield {"kernel_shape": (2, 2)}, [np.where(np.arange(16).reshape(1, 1, 4, 4) == 5, np.nan,
            1).astype(np.float32)]
    yield {"kernel_shape": (2, 2)}, [np.full((1, 1, 4, 4), -np.inf, np.float32)]
    yield {"kernel_shape": (2, 2)}, [f(0, 1, 4, 4)]
    yield {"kernel_shape": (7, 7)}, [f(1, 1, 4, 4)]
    yield {"kernel_shape": (2,)}, [f(1, 1, 4, 4)]
    yield {}, [f(1, 1, 4, 4)]
    if op == "MaxPool":
        for storage, x, pads in itertools.product((None, 0, 1), (f(1, 1, 4, 5), f(2, 3, 4, 5)), (None, (1, 1,
                1, 1), (0, 0, 1, 1))):
            attributes = {"kernel_shape": (2, 2), "strides": (2, 2), "storage_order": storage, "pads": pads}
            yield {k: v for k, v in attributes.items() if v is not None}, [x], 2
        yield {"kernel_shape": (2,)}, [f(2, 2, 6)], 2
        yield {"kernel_shape": (2, 2), "storage_order": 1}, [f(1, 2, 4, 4)]


@of("GlobalAveragePool", "GlobalMaxPool")
def _global_pool(op: str, opset: int) -> Iterator[Given]:
    for shape in ((2, 3, 4, 4), (2, 3, 5), (1, 2, 3, 2, 2), (2, 3)):
        for dtype in types(op, opset):
            yield {}, [f(*shape, dtype=dtype)]


@of("Conv")
def _conv(op: str, opset: int) -> Iterator[Given]:
    pads: tuple[int, ...] | None
    attributes: dict[str, Any]
    for strides, pads, dilations, group in itertools.product(
        (None, (2, 2), (1, 3)), (None, (1, 1, 1, 1), (0, 1, 2, 0), (2, 2, 2, 2)), (None, (2, 1)), (None, 2)
    ):
        attributes = {"strides": strides, "pads": pads, "dilations": dilations, "group": group}
        g = group or 1
        yield {k: v for k, v in attributes.items() if v is not None}, [f(1, 4, 7, 6), f(4, 4 // g, 3, 2),
                f(4)]
    for auto, strides, kernel, dilations in itertools.product(
        ("SAME_UPPER", "SAME_LOWER", "VALID", "NOTSET"), (None, (2, 2), (3, 2)), ((3, 3), (2, 4)), (None, (2,
            2))
    ):
        attributes = {"auto_pad": auto, "strides": strides, "dilations": dilations, "kernel_shape": kernel}
        yield {k: v for k, v in attributes.items() if v is not None}, [f(1, 2, 7, 8), f(3, 2, *kernel)]
    for rank in (1, 3):
        for pads in (None, (1,) * 2 * rank, (0,) * rank + (1,) * rank):
            yield {} if pads is None else {"pads": pads}, [f(2, 2, *(5, 4, 5)[:rank]), f(3, 2, *(2,) * rank),
                    f(3)]
    for dtype in types(op, opset):
        yield {}, [f(1, 2, 4, 4, dtype=dtype), f(3, 2, 2, 2, dtype=dtype), np.zeros(3, dtype)]
    yield {"kernel_shape": (2, 2)}, [f(1, 2, 4, 4), f(3, 2, 3, 3)]
    yield {"group": 3}, [f(1, 3, 4, 4), f(6, 1, 2, 2)]
    yield {}, [f(0, 2, 4, 4), f(3, 2, 2, 2)]
    yield {}, [f(1, 2, 4, 4), f(3, 2, 5, 5)]
    yield {"pads": (-1, 0, 0, 0)}, [f(1, 2, 4, 4), f(3, 2, 2, 2)]
    yield {}, [f(1, 2, 4, 4), f(3, 1, 2, 2)]


@of("ConvTranspose")
def _conv_transpose(op: str, opset: int) -> Iterator[Given]:
    attributes: dict[str, Any]
    x, w = f(1, 4, 3, 4), f(4, 2, 3, 2)
    for strides, pads, dilations, group, more in itertools.product(
        (None, (2, 2), (3, 1)), (None, (1, 1, 1, 1), (0, 1, 1, 0)), (None, (2, 1)), (None, 2), (None, (1, 0))
    ):
        attributes = {"strides": strides, "pads": pads, "dilations": dilations, "group": group,
                "output_padding": more}
        yield {k: v for k, v in attributes.items() if v is not None}, [x, w, f(2 * (group or 1))]
    for auto, strides, shape, more in itertools.product(
        (None, "SAME_UPPER", "SAME_LOWER", "VALID", "NOTSET"), ((2, 2), (3, 2), None),
        (None, (6, 8), (5, 7), (9, 9), (12, 12)), (None, (1, 1)),
    ):
        attributes = {"auto_pad": auto, "strides": strides, "output_shape": shape, "output_padding": more}
        yield {k: v for k, v in attributes.items() if v is not None}, [x, w]
    for rank in (1, 3):
        yield {"strides": (2,) * rank}, [f(1, 2, *(3, 2, 3)[:rank]), f(2, 3, *(2,) * rank), f(3)]
        yield {"pads": (1,) + (0,) * (2 * rank - 1)}, [f(1, 2, *(3, 2, 3)[:rank]), f(2, 3, *(2,) * rank)]
    yield {"kernel_shape": (2, 2)}, [x, w]


@of("Resize")
def _resize(op: str, opset: int) -> Iterator[Given]:
    axes: tuple[int, ...]
    more: dict[str, Any]
    images = (f(1, 2, 4, 4), f(1, 1, 3, 5))
    scalings = ((1, 1, 2, 2), (1, 1, 0.5, 0.5), (1, 1, 1.5, 0.7), (1, 1, 2.6, 1), (1, 1, 0.3, 3), (1, 1, 0.25,
            0.25))
    if opset < 11:
        for mode, x, scales in itertools.product((None, "nearest", "linear"), images, scalings):
            yield {} if mode is None else {"mode": mode}, [x, np.array(scales, np.float32)]
        return
    coordinates = ["half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric", "tf_crop_and_resize"]
    coordinates += ["tf_half_pixel_for_nn"] if opset < 13 else []
    coordinates += ["half_pixel_symmetric"] if opset >= 19 else []
    roundings = (None, "floor", "ceil", "round_prefer_floor", "round_prefer_ceil")
    none, roi = (np.zeros(0, np.float32), np.array([0, 0, 0.2, 0.1, 1, 1, 0.9, 1.2], np.float32))
    empty = None if opset >= 13 else none

    def targets(x: np.ndarray) -> Iterator[list[np.ndarray | None]]:
        for scales in scalings:
            yield [np.array(scales, np.float32)]
        for sizes in ((7, 8), (2, 3), (1, 1), (4, 9)):
            yield [empty, i64(*x.shape[:2], *sizes)]

    for x, coordinate in itertools.product(images, coordinates):
        area = roi if coordinate == "tf_crop_and_resize" else (None if opset >= 13 else none)
        for target in targets(x):
            base: dict[str, Any] = {"coordinate_transformation_mode": coordinate}
            for rounding in roundings:
                more = {} if rounding is None else {"nearest_mode": rounding}
                yield {**base, **more}, [x, area, *target]
            for mode, outside in itertools.product(("linear", "cubic"), (None, 1)):
                more = {} if outside is None else {"exclude_outside": outside}
                yield {**base, "mode": mode, **more}, [x, area, *target]
            yield {**base, "mode": "cubic", "cubic_coeff_a": -0.5}, [x, area, *target]
            if coordinate == "tf_crop_and_resize":
                yield {**base, "mode": "linear", "extrapolation_value": 9.0}, [x, area, *target]
            if opset >= 18:
                for mode in ("linear", "cubic"):
                    yield {**base, "mode": mode, "antialias": 1}, [x, area, *target]
    yield {"mode": "linear"}, [f(1, 2, 6), empty, np.array((1, 1, 2), np.float32)]
    yield {"mode": "linear"}, [f(4, 4), empty, np.array((2, 2), np.float32)]
    yield {"mode": "nearest"}, [f(4, 4), empty, np.array((2, 2), np.float32)]
    yield {"mode": "linear"}, [f(1, 1, 3, 4, 3), empty, np.array((1, 1, 2, 1.5, 2), np.float32)]
    yield {"mode": "linear"}, [f(2, 2, 3, 4), empty, np.array((2, 1, 2, 2), np.float32)]
    yield {"mode": "nearest"}, [f(2, 2, 3, 4), empty, np.array((1, 2, 1, 2), np.float32)]
    yield {"mode": "nearest"}, [f(1, 2, 3, 4, dtype=np.int32), empty, np.array((1, 1, 2, 2), np.float32)]
    yield {"mode": "nearest"}, [f(1, 2, 3, 4, dtype=np.uint8), empty, np.array((1, 1, 2, 2), np.float32)]
    yield {"mode": "linear"}, [f(1, 2, 3, 4, dtype=np.float64), empty, np.array((1, 1, 2, 2), np.float32)]
    yield {"mode": "linear"}, [f(1, 2, 3, 4, dtype=np.int32), empty, np.array((1, 1, 2, 2), np.float32)]
    if opset >= 18:
        for policy, mode in itertools.product(("stretch", "not_larger", "not_smaller"), ("nearest",
                "linear")):
            for sizes, axes in itertools.product(((7, 8), (3, 9), (2, 2)), ((2, 3), (3, 2), (-1, -2))):
                base = {"keep_aspect_ratio_policy": policy, "mode": mode, "axes": axes}
                yield base, [images[1], None, None, i64(*sizes)]
        for axes in ((2, 3), (3,), (0, 1, 2, 3), (-1, -2)):
            for mode in ("nearest", "linear", "cubic"):
                scales = np.array([1.0, 1.0, 2.0, 1.5][-len(axes) :], np.float32)
                yield {"axes": axes, "mode": mode}, [images[0], None, scales]
        yield {"axes": (2, 3), "mode": "linear",
                "coordinate_transformation_mode": "tf_crop_and_resize"}, [images[0], np.array([0.1, 0.2, 0.9,
                    0.8], np.float32), np.array([2, 2], np.float32)]


@of("Upsample")
def _upsample(op: str, opset: int) -> Iterator[Given]:
    for mode, scales in itertools.product((None, "nearest", "linear"), ((1, 1, 2, 2), (1, 1, 1.5, 3), (1, 1,
            1, 1))):
        yield {} if mode is None else {"mode": mode}, [f(1, 2, 4, 4), np.array(scales, np.float32)]


@of("GridSample")
def _grid_sample(op: str, opset: int) -> Iterator[Given]:
    attributes: dict[str, Any]
    modes = (None, "linear", "nearest", "cubic") if opset >= 20 else (None, "bilinear", "nearest", "bicubic")
    grid = f(2, 3, 4, 2, low=-1.4, high=1.4)
    for mode, padding, corners in itertools.product(modes, (None, "zeros", "border", "reflection"), (None, 0,
            1)):
        attributes = {"mode": mode, "padding_mode": padding, "align_corners": corners}
        yield {k: v for k, v in attributes.items() if v is not None}, [f(2, 2, 4, 5), grid]
        if opset >= 20:
            yield {k: v for k, v in attributes.items() if v is not None}, [f(1, 2, 3, 4, 4), f(1, 2, 2, 2, 3,
                    low=-1.2, high=1.2)]


# -- normalisation ----------------------------------------------------------------------------------


@of("BatchNormalization")
def _batch_norm(op: str, opset: int) -> Iterator[Given]:
    for shape in ((2, 3, 4, 4), (2, 3), (2, 3, 5), (1, 3, 2, 2, 2)):
        for attributes in product(epsilon=(None, 1e-2), momentum=(None, 0.5)):
            yield attributes, [f(*shape), f(3), f(3), f(3), f(3, low=0.3)]
    for dtype in types(op, opset):
        yield {}, [f(2, 3, 4, dtype=dtype), *(f(3, dtype=dtype, low=0.3) for _ in range(4))]


@of("InstanceNormalization")
def _instance_norm(op: str, opset: int) -> Iterator[Given]:
    for shape in ((2, 3, 4, 4), (2, 3, 5), (1, 3, 2, 2, 2), (2, 3, 1), (2, 3)):
        for epsilon in (None, 1e-2):
            yield {} if epsilon is None else {"epsilon": epsilon}, [f(*shape), f(3), f(3)]
    for dtype in types(op, opset):
        yield {}, [f(2, 3, 4, dtype=dtype), f(3, dtype=dtype), f(3, dtype=dtype)]


@of("LayerNormalization", "RMSNormalization")
def _layer_norm(op: str, opset: int) -> Iterator[Given]:
    attributes: dict[str, Any]
    most = 1 if op == "RMSNormalization" else 3
    for shape in ((2, 3, 4), (5,), (2, 3, 2, 2)):
        for axis in (None, *range(-len(shape), len(shape))):
            inner = shape[axis if axis is not None else -1 :]
            for scale in {inner, inner[-1:], (1,) * len(inner), ()}:
                for epsilon, outputs in ((None, 1), (1e-2, 1), (None, most)):
                    attributes = {k: v for k, v in (("axis", axis), ("epsilon", epsilon)) if v is not None}
                    yield attributes, [f(*shape), f(*scale)], outputs
                    if op == "LayerNormalization":
                        yield attributes, [f(*shape), f(*scale), f(*scale)], outputs
    for dtype in types(op, opset):
        for stash in (None, 1, 0):
            attributes = {} if stash is None else {"stash_type": stash}
            yield attributes, [f(2, 4, dtype=dtype), f(4, dtype=dtype)], most
        yield {}, [np.array([[100, 200, 300, 400]]).astype(dtype), f(4, dtype=dtype)]
    yield {"axis": 7}, [f(2, 3), f(3)]


@of("GroupNormalization")
def _group_norm(op: str, opset: int) -> Iterator[Given]:
    attributes: dict[str, Any]
    for shape in ((2, 4, 3, 3), (2, 4, 5), (2, 4), (1, 4, 2, 2, 2)):
        for groups, epsilon in itertools.product((1, 2, 4), (None, 1e-2)):
            width = 4 if opset >= 21 else groups
            attributes = {k: v for k, v in (("num_groups", groups), ("epsilon", epsilon)) if v is not None}
            yield attributes, [f(*shape), f(width), f(width)]
    for dtype in types(op, opset):
        width = 4 if opset >= 21 else 2
        yield {"num_groups": 2}, [f(2, 4, 3, dtype=dtype), f(width, dtype=dtype), f(width, dtype=dtype)]
    yield {"num_groups": 3}, [f(2, 4, 3), f(4), f(4)]
    yield {}, [f(2, 4, 3), f(4), f(4)]


@of("LRN")
def _lrn(op: str, opset: int) -> Iterator[Given]:
    for attributes in product(size=(1, 2, 3, 4, 5), alpha=(None, 0.5), beta=(None, 0.5), bias=(None, 2.0)):
        yield attributes, [f(2, 5, 3, 3)]
    yield {"size": 3}, [f(2, 5, 3)]
    yield {"size": 3}, [f(2, 5)]
    yield {"size": 9}, [f(2, 5, 2, 2)]


@of("MeanVarianceNormalization")
def _mvn(op: str, opset: int) -> Iterator[Given]:
    for axes in (None, (0, 2, 3), (1,), (2, 3), (-1,), (0, 1, 2, 3)):
        yield {} if axes is None else {"axes": axes}, [f(2, 3, 4, 4)]


@of("LpNormalization")
def _lp_normalization(op: str, opset: int) -> Iterator[Given]:
    for attributes in product(p=(None, 1, 2, 3), axis=(None, 0, 1, -1)):
        yield attributes, [f(2, 3, 4)]
        yield attributes, [np.zeros((2, 3, 4), np.float32)]
        yield attributes, [f(2, 3, 4) * np.float32(1e-14)]
    yield {}, [f(2, 3, dtype=np.float64)]


# -- products ---------------------------------------------------------------------------------------


@of("MatMul")
def _matmul(op: str, opset: int) -> Iterator[Given]:
    for left, right in (
        ((2, 3), (3, 4)), ((3,), (3,)), ((3,), (3, 4)), ((2, 3), (3,)), ((5, 2, 3), (3, 4)), ((5, 2, 3), (5,
            3, 4)),
        ((1, 2, 3), (5, 3, 4)), ((2, 1, 2, 3), (5, 3, 4)), ((2, 0), (0, 3)), ((0, 2), (2, 3)), ((3,), (5, 3,
            4)),
        ((2, 3), (4, 3)),
    ):
        yield {}, [f(*left), f(*right)]
    for dtype in types(op, opset):
        yield {}, [f(2, 3, dtype=dtype), f(3, 4, dtype=dtype)]


@of("Gemm")
def _gemm(op: str, opset: int) -> Iterator[Given]:
    for attributes in product(transA=(None, 0, 1), transB=(None, 1), alpha=(None, 0.5), beta=(None, 0.25,
            0.0)):
        a = f(*((3, 2) if attributes.get("transA") else (2, 3)))
        b = f(*((4, 3) if attributes.get("transB") else (3, 4)))
        for c in ((4,), (1, 4), (2, 1), (2, 4), (), (1,), (1, 1)):
            yield attributes, [a, b, f(*c)]
        if opset >= 11:
            yield attributes, [a, b]
    for dtype in types(op, opset):
        yield {}, [f(2, 3, dtype=dtype), f(3, 4, dtype=dtype), f(4, dtype=dtype)]
        yield {"transB": 1}, [f(2, 3, dtype=dtype), f(4, 3, dtype=dtype), f(4, dtype=dtype)]
    yield {}, [f(2, 0), f(0, 4), f(4)]
    yield {}, [f(2, 3), f(4, 4), f(4)]
    yield {"transB": 1}, [f(2, 3), f(1, 3), f(1)]
    yield {"transB": 1}, [f(2, 3), f(4, 3), f(2)]


@of("Einsum")
def _einsum(op: str, opset: int) -> Iterator[Given]:
    for equation, shapes in (
        ("ij,jk->ik", ((2, 3), (3, 4))), ("ij,jk", ((2, 3), (3, 4))), ("bij,bjk->bik", ((2, 2, 3), (2, 3,
            2))),
        ("...ij,...jk->...ik", ((2, 2, 3), (2, 3, 2))), ("ii->i", ((3, 3),)), ("ii", ((3, 3),)), ("ij->ji",
            ((2, 3),)),
        ("ij->", ((2, 3),)), ("i,j->ij", ((2,), (3,))), ("i,i->", ((3,), (3,))), ("ij , jk -> ik", ((2, 3),
            (3, 4))),
        ("Ij,jK->IK", ((2, 3), (3, 4))), ("ij,ij,ij->i", ((2, 3),) * 3), ("ij->k", ((2, 3),)), ("i...->...",
            ((2, 3),)),
        ("bhid,bhjd->bhij", ((1, 2, 3, 2), (1, 2, 4, 2))), ("ijj->i", ((2, 3, 3),)), ("ij,j->i", ((2, 3),
            (3,))),
    ):
        yield {"equation": equation}, [f(*shape) for shape in shapes]
    yield {"equation": "ij,jk->ik"}, [f(2, 3, dtype=np.int64), f(3, 4, dtype=np.int64)]


@of("Det")
def _det(op: str, opset: int) -> Iterator[Given]:
    for shape in ((3, 3), (2, 3, 3), (1, 1), (2, 2, 2, 2), (2, 3)):
        yield {}, [f(*shape)]
    yield {}, [f(3, 3, dtype=np.float64)]
    yield {}, [f(2, 2, dtype=np.float16)]
