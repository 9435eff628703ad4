"""Cases of operators on shapes, constants and indices."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
from onnx import numpy_helper

from helpers.onnx_case import Given, f, i64, of, product, types

# fmt: off


# -- shapes -----------------------------------------------------------------------------------------


@of("Shape", "Size")
def _shape(op: str, opset: int) -> Iterator[Given]:
    for x in (f(2, 3, 4), f(), f(0, 2), f(2, 3, dtype=np.bool_)):
        yield {}, [x]
        if opset >= 15 and op == "Shape":
            for attributes in product(start=(None, 0, 1, -1, -9), end=(None, 0, 2, -1, 9)):
                yield attributes, [x]


@of("Reshape")
def _reshape(op: str, opset: int) -> Iterator[Given]:
    for shape, wanted in (
        ((2, 3, 4), (6, 4)), ((2, 3, 4), (-1,)), ((2, 3, 4), (0, -1)), ((2, 3, 4), (0, 0, 4)), ((2, 3, 4), (4,
            0, 2)),
        ((2, 3, 4), (1, 2, -1, 1)), ((), (1,)), ((1, 1), ()), ((0, 3), (3, 0)), ((0, 3), (0, 3)), ((2, 3), (0,
            3, 1)),
        ((0, 3), (0, -1)), ((2, 3), (5,)), ((2, 3), (-1, -1)), ((2, 3), (2, 3, 0)), ((2, 3), (-2, 3)),
    ):
        yield {}, [f(*shape), i64(*wanted)]
        if opset >= 14:
            yield {"allowzero": 1}, [f(*shape), i64(*wanted)]
            yield {"allowzero": 0}, [f(*shape, dtype=np.int64), i64(*wanted)]


@of("Flatten")
def _flatten(op: str, opset: int) -> Iterator[Given]:
    for shape in ((2, 3, 4), (3,), (), (2, 0, 3)):
        for axis in (None, 0, 1, 2, 3, -1, -2, -3, 7, -7):
            if opset < 11 and (axis or 0) < 0:
                continue
            yield {} if axis is None else {"axis": axis}, [f(*shape)]


@of("Transpose")
def _transpose(op: str, opset: int) -> Iterator[Given]:
    yield {}, [f(2, 3, 4)]
    yield {}, [f()]
    yield {}, [f(0, 2)]
    for perm in itertools.permutations(range(3)):
        yield {"perm": perm}, [f(2, 3, 4)]
    for perm in ((0, 0, 1), (0, 1), (0, 1, 3), (0, -1, 1)):
        yield {"perm": perm}, [f(2, 3, 4)]


@of("Squeeze")
def _squeeze(op: str, opset: int) -> Iterator[Given]:
    for shape, axes in (
        ((1, 3, 1), None), ((1, 3, 1), (0,)), ((1, 3, 1), (-1,)), ((1, 3, 1), (0, 2)), ((2, 3), None), ((1,),
            (0,)),
        ((1, 3, 1), (1,)), ((1, 3, 1), ()), ((1, 3, 1), (5,)), ((1, 3, 1), (0, 0)), ((), None), ((1, 0),
            None),
    ):
        if axes is None:
            yield {}, [f(*shape)]
        elif opset < 13:
            yield {"axes": axes}, [f(*shape)]
        else:
            yield {}, [f(*shape), i64(*axes)]


@of("Unsqueeze")
def _unsqueeze(op: str, opset: int) -> Iterator[Given]:
    for shape, axes in (
        ((2, 3), (0,)), ((2, 3), (2,)), ((2, 3), (-1,)), ((2, 3), (0, 3)), ((2, 3), (3, 0)), ((2, 3), (-1,
            0)),
        ((), (0,)), ((2, 3), (1, 1)), ((2, 3), (7,)), ((2, 3), ()), ((2, 3), (0, -4)), ((0, 2), (1,)),
    ):
        if opset >= 13:
            yield {}, [f(*shape), i64(*axes)]
        elif axes:
            yield {"axes": axes}, [f(*shape)]


@of("Expand")
def _expand(op: str, opset: int) -> Iterator[Given]:
    for shape, wanted in (
        ((3, 1), (3, 4)), ((3, 1), (2, 1, 6)), ((3, 1), (1, 1)), ((3,), (2, 3)), ((), (2, 2)), ((1, 3), (1,)),
        ((3, 1), (0, 1, 1)), ((2, 3), (3,)), ((2, 3), (2, 2)), ((1, 3), (-1, 3)), ((2, 3), ()), ((0, 3), (1,
            3)),
    ):
        yield {}, [f(*shape), i64(*wanted)]
        yield {}, [f(*shape, dtype=np.int64), i64(*wanted)]


@of("Tile")
def _tile(op: str, opset: int) -> Iterator[Given]:
    for shape, repeats in (((2, 3), (1, 2)), ((2, 3), (2, 0)), ((3,), (2,)), ((2, 3), (2,)), ((2, 3), (1, 2,
            3)), ((2, 3), (-1, 1)), ((), ())):
        yield {}, [f(*shape), i64(*repeats)]


@of("Concat")
def _concat(op: str, opset: int) -> Iterator[Given]:
    for axis in (0, 1, -1, -2, 2, 5):
        yield {"axis": axis}, [f(2, 3, 4), f(2, 3, 4), f(2, 3, 4)]
    for dtype in (np.int64, np.bool_, np.float64, np.float16, np.uint8):
        yield {"axis": 1}, [f(2, 3, dtype=dtype), f(2, 1, dtype=dtype)]
    yield {"axis": 0}, [f(2, 3)]
    yield {"axis": 0}, [f(0, 3), f(2, 3)]
    yield {"axis": 0}, [f(0), f(2, 3)]
    yield {"axis": 0}, [f(2), f(3)]
    yield {}, [f(2), f(3)]


@of("Split")
def _split(op: str, opset: int) -> Iterator[Given]:
    attributes: dict[str, Any]
    x = f(6, 5, 2)
    for axis in (None, 0, 1, -1):
        attributes = {} if axis is None else {"axis": axis}
        for count in (1, 2, 3):
            yield attributes, [x], count
            if opset >= 18:
                yield {**attributes, "num_outputs": count}, [x], count
        for parts in ((2, 4), (1, 2, 3), (6,), (0, 6), (4, 1), (2, 3), (1, 1), (7, -1), (2, 2)):
            if opset < 13:
                yield {**attributes, "split": parts}, [x], len(parts)
            else:
                yield attributes, [x, i64(*parts)], len(parts)
    if opset >= 18:
        for count in (4, 5):
            yield {"axis": 1, "num_outputs": count}, [x], count
            yield {"num_outputs": count}, [x], count
        yield {"num_outputs": 2}, [x], 3


@of("Slice")
def _slice(op: str, opset: int) -> Iterator[Given]:
    big, x = 2**63 - 1, f(4, 5, 3)
    table = [
        ((0,), (2,), None, None), ((1, 1), (3, 4), None, None), ((-3,), (-1,), (1,), None), ((0,), (big,),
            (1,), None),
        ((2,), (2**31 - 1,), (0,), None), ((3,), (1,), (0,), None), ((9,), (12,), (0,), None), ((-9,), (9,),
            (-1,), None),
        ((-1,), (-big - 1,), (1,), (-1,)), ((-1,), (-big - 1,), (1,), (-2,)), ((3,), (0,), (0,), (-1,)),
        ((0,), (5,), (1,), (2,)), ((1,), (5,), (1,), (3,)), ((9,), (-9,), (1,), (-2,)), ((0,), (-1,), (1,),
            (-1,)),
        ((0, 0), (1, 2), (2, 0), (1, 1)), ((0, 0), (4, 5), (0, -2), (2, 2)), ((2,), (0,), (0,), (1,)),
        ((-2**31,), (2**31 - 1,), (0,), None), ((4,), (-2**31,), (1,), (-1,)), ((1,), (3,), (0,), (0,)),
        ((1, 2), (3, 4), (1, 1), None),
    ]
    for starts, ends, axes, steps in table:
        if opset < 10:
            if steps is None:
                yield {"starts": starts, "ends": ends, **({} if axes is None else {"axes": axes})}, [x]
            continue
        for kind in (np.int64, np.int32):
            if kind == np.int32 and max(map(abs, (*starts, *ends))) > 2**31 - 1:
                continue
            given = [np.array(e, kind) for e in (starts, ends)]
            if axes is not None or steps is not None:
                given.append(np.array(range(len(starts)) if axes is None else axes, kind))
            if steps is not None:
                given.append(np.array(steps, kind))
            yield {}, [x, *given]
    if opset >= 10:
        yield {}, [f(6), i64(5), i64(0), None, i64(-2)]
        yield {}, [f(0, 3), i64(0), i64(1), i64(0), i64(1)]


@of("ConstantOfShape")
def _constant_of_shape(op: str, opset: int) -> Iterator[Given]:
    for shape in ((2, 3), (), (0, 2), (-1,)):
        yield {}, [i64(*shape)]
        for value in (np.array([2], np.int64), np.array([1.5], np.float32), np.array([True]), np.array([3],
                np.uint8)):
            yield {"value": numpy_helper.from_array(value)}, [i64(*shape)]
    yield {"value": numpy_helper.from_array(np.array([1.0, 2.0]))}, [i64(2)]


@of("Range")
def _range(op: str, opset: int) -> Iterator[Given]:
    start: float
    limit: float
    step: float
    for dtype in types(op, opset):
        for start, limit, step in ((0, 5, 1), (1, 10, 3), (10, 0, -3), (5, 5, 1), (5, 0, 1), (0, 5, 0)):
            yield {}, [np.array(e, dtype) for e in (start, limit, step)]
        if np.issubdtype(dtype, np.floating):
            for start, limit, step in ((0, 1, 0.1), (0.5, 2.25, 0.25), (1, -1, -0.3), (0, 0.95, 0.1)):
                yield {}, [np.array(e, dtype) for e in (start, limit, step)]


@of("EyeLike")
def _eye_like(op: str, opset: int) -> Iterator[Given]:
    for attributes in product(k=(None, 0, 1, -1, 5, -5), dtype=(None, 1, 7, 11, 9)):
        yield attributes, [f(3, 4)]
        yield attributes, [f(2, 2, dtype=np.int32)]
    yield {}, [f(3)]


@of("OneHot")
def _one_hot(op: str, opset: int) -> Iterator[Given]:
    attributes: dict[str, Any]
    for axis in (None, 0, 1, -1, -2, 2):
        for values in (np.array([0, 1], np.float32), np.array([-2, 2**40 + 1], np.int64), np.array([0.1,
                0.7]), np.array([False, True])):
            attributes = {} if axis is None else {"axis": axis}
            yield attributes, [np.array([[0, 2], [-1, 5]], np.int64), np.array(4, np.int64), values]
            yield attributes, [np.array([[0, -4], [-5, 3]], np.int32), i64(4), values]
    yield {}, [np.array([0, 2, -1], np.float32), np.array(3, np.float32), np.array([0, 1], np.float32)]
    yield {}, [np.array(1, np.int64), np.array(3, np.int64), np.array([0, 1], np.float32)]


@of("Trilu")
def _trilu(op: str, opset: int) -> Iterator[Given]:
    attributes: dict[str, Any]
    for upper in (None, 0, 1):
        for k in (None, 0, 1, -1, 7, -7):
            for x in (f(3, 4), f(2, 3, 3), f(0, 3, 3), f(3, 4, dtype=np.int64), f(3, 3, dtype=np.bool_)):
                attributes = {} if upper is None else {"upper": upper}
                yield attributes, [x] if k is None else [x, np.array(k, np.int64)]


# -- indices ----------------------------------------------------------------------------------------


@of("Gather")
def _gather(op: str, opset: int) -> Iterator[Given]:
    for kind in (np.int64, np.int32):
        for axis in (None, 0, 1, -1):
            for index in (np.array(1), np.array([0, 1]), np.array([[0, -1], [-2, 1]]), np.array(-1),
                    np.zeros((0,)), np.array([[[1]]])):
                for shape in ((2, 3), (2, 3, 4), (3,)):
                    if axis == 1 and len(shape) == 1:
                        continue
                    yield {} if axis is None else {"axis": axis}, [f(*shape), index.astype(kind)]
    for dtype in (np.int64, np.bool_, np.float16, np.uint8):
        yield {}, [f(3, 2, dtype=dtype), i64(2, -1)]
        yield {"axis": 1}, [f(3, 2, dtype=dtype), i64(1, -1)]
    yield {}, [f(3, 2), i64(3)]
    yield {"axis": 1}, [f(3, 2), i64(0, -3)]


@of("GatherElements")
def _gather_elements(op: str, opset: int) -> Iterator[Given]:
    attributes: dict[str, Any]
    for kind in (np.int64, np.int32):
        for axis in (None, 0, 1, -1):
            attributes = {} if axis is None else {"axis": axis}
            yield attributes, [f(3, 3), np.array([[0, 1], [2, -1]], kind)]
            yield attributes, [f(3, 3, dtype=np.int64), np.array([[0, -3, 1]], kind)]
    yield {}, [f(3, 3), np.array([[3, 0]], np.int64)]
    yield {}, [f(3), np.zeros((0,), np.int64)]


@of("GatherND")
def _gather_nd(op: str, opset: int) -> Iterator[Given]:
    for x, index in (
        (f(2, 3), [[0, 1], [1, -1]]), (f(2, 3), [[1], [-2]]), (f(2, 3, 4), [[0, 1], [1, 2]]),
        (f(2, 3, 4), [[[0, 1, -1]], [[1, 2, 3]]]), (f(2, 3), [0, 1]), (f(2, 3), [1]),
    ):
        yield {}, [x, np.array(index, np.int64)]
    if opset >= 12:
        yield {"batch_dims": 1}, [f(2, 3, 4), np.array([[1], [-1]], np.int64)]
        yield {"batch_dims": 1}, [f(2, 3, 4), np.array([[[1, 2]], [[0, -1]]], np.int64)]
        yield {"batch_dims": 2}, [f(2, 2, 4), np.array([[[1], [0]], [[3], [2]]], np.int64)]
        yield {"batch_dims": 0}, [f(2, 3), np.array([[0, 2]], np.int64)]


@of("ScatterElements", "Scatter")
def _scatter_elements(op: str, opset: int) -> Iterator[Given]:
    attributes: dict[str, Any]
    reductions: tuple[str | None, ...] = (None,)
    if op == "ScatterElements" and opset >= 16:
        reductions += ("none", "add", "mul") + (("max", "min") if opset >= 18 else ())
    for reduction in reductions:
        for kind in (np.int64, np.int32):
            for axis in (None, 0, 1, -1):
                attributes = {k: v for k, v in (("axis", axis), ("reduction", reduction)) if v is not None}
                yield attributes, [f(3, 3), np.array([[0, 1], [2, -1]], kind), f(2, 2, low=4, high=9)]
                yield attributes, [f(3, 3, dtype=np.int64), np.array([[-3, 1]], kind), f(1, 2,
                        dtype=np.int64)]
        if reduction not in (None, "none"):
            yield {"reduction": reduction, "axis": 1}, [f(2, 4), np.array([[1, 1, -3]], np.int64), f(1, 3)]


@of("ScatterND")
def _scatter_nd(op: str, opset: int) -> Iterator[Given]:
    attributes: dict[str, Any]
    reductions: tuple[str | None, ...] = (None,)
    if opset >= 16:
        reductions += ("none", "add", "mul") + (("max", "min") if opset >= 18 else ())
    for reduction in reductions:
        attributes = {} if reduction is None else {"reduction": reduction}
        yield attributes, [f(8), np.array([[4], [3], [-1], [1]], np.int64), f(4)]
        yield attributes, [f(4, 3), np.array([[0], [-2]], np.int64), f(2, 3)]
        yield attributes, [f(4, 3), np.array([[0, 1], [-1, -1]], np.int64), f(2)]
        yield attributes, [f(4, 3, dtype=np.int64), np.array([[[0, 1]], [[2, 0]]], np.int64), f(2, 1,
                dtype=np.int64)]
        if reduction not in (None, "none"):
            yield attributes, [f(4), np.array([[1], [1], [-3]], np.int64), f(3)]


@of("ReverseSequence")
def _reverse_sequence(op: str, opset: int) -> Iterator[Given]:
    for attributes in ({}, {"time_axis": 1, "batch_axis": 0}, {"time_axis": 0, "batch_axis": 1}):
        n = 4 if attributes.get("time_axis") == 1 else 3
        for lengths in ([4, 3, 2, 1][:n], [3, 3, 3, 3][:n], [4, 4, 4, 4][:n], [1, 1, 1, 1][:n]):
            lengths = [min(e, 3 if n == 4 else 4) for e in lengths]
            yield attributes, [f(4, 3), i64(*lengths)]
            yield attributes, [f(4, 3, 2), i64(*lengths)]
