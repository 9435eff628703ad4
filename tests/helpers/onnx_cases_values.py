"""Cases of operators element by element, reductions, softmax."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from helpers.onnx_case import EDGES, Given, f, i64, of, product, types

# fmt: off


# -- element by element -----------------------------------------------------------------------------


@of(
    "Abs", "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "Ceil", "Cos", "Cosh", "Erf", "Exp", "Floor",
    "IsNaN", "Log", "Neg", "Not", "Reciprocal", "Relu", "Round", "Sigmoid", "Sign", "Sin", "Sinh",
    "Softplus", "Softsign", "Sqrt", "Tan", "Tanh", "HardSwish", "Mish", "BitwiseNot",
)
def _unary(op: str, opset: int) -> Iterator[Given]:
    names = {"Acosh": (1, 4), "Log": (0.1, 4), "Sqrt": (0, 4), "Acos": (-1, 1), "Asin": (-1, 1),
            "Atanh": (-0.9, 0.9)}
    low, high = names.get(op, (-3, 3))
    for dtype in types(op, opset):
        yield {}, [f(2, 3, dtype=dtype, low=low, high=high)]
        if np.issubdtype(dtype, np.floating):
            yield {}, [EDGES.astype(dtype)]
        elif dtype != np.bool_:
            yield {}, [np.array([np.iinfo(dtype).min, np.iinfo(dtype).max, 1], dtype)]
    kind = types(op, opset)[0]
    yield {}, [f(dtype=kind, low=low, high=high)]
    yield {}, [f(0, 3, dtype=kind)]
    yield {}, [f(2, 1, 3, 2, 2, dtype=kind, low=low, high=high)]


_ALPHAS: dict[str, dict[str, Sequence[Any]]] = {
    "LeakyRelu": {"alpha": (None, 0.2, -0.1, 0.0)}, "Elu": {"alpha": (None, 0.5, 2.0, -1.0)},
    "Celu": {"alpha": (None, 0.5, 2.0)}, "Selu": {"alpha": (None, 1.5), "gamma": (None, 2.0)},
    "HardSigmoid": {"alpha": (None, 0.5, 1 / 6), "beta": (None, 0.6, 0.5)},
    "Gelu": {"approximate": (None, "none", "tanh")}, "Swish": {"alpha": (None, 1.0, 2.0)},
    "ThresholdedRelu": {"alpha": (None, 0.5, 2.0, -1.0)}, "Shrink": {"bias": (None, 0.5), "lambd": (None,
        1.5)},
}


@of(*_ALPHAS)
def _with_alpha(op: str, opset: int) -> Iterator[Given]:
    for attributes in product(**_ALPHAS[op]):
        for dtype in types(op, opset):
            yield attributes, [f(2, 3, 2, dtype=dtype)]
        yield attributes, [EDGES]
        yield attributes, [f()]


@of(
    "Add", "Sub", "Mul", "Div", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "And", "Or",
    "Xor", "BitwiseAnd", "BitwiseOr", "BitwiseXor",
)
def _binary(op: str, opset: int) -> Iterator[Given]:
    shapes = [((2, 3), (2, 3)), ((2, 3), (3,)), ((2, 3), ()), ((), (2, 3)), ((2, 1, 4), (3, 1)), ((1,), (2,
            3)),
              ((2, 3), (1, 1, 1)), ((0, 3), (1, 3)), ((), ()), ((1,), ()), ((1, 1), (1,))]
    second = op not in ("Pow", "BitShift")
    for dtype in types(op, opset):
        if op == "Mod" and np.issubdtype(dtype, np.floating):
            continue
        unsigned = op in ("Div", "Mod")
        for left, right in shapes:
            a, b = f(*left, dtype=dtype), f(*right, dtype=dtype, low=1 if unsigned or not second else -3)
            if op == "Div" and dtype != np.bool_:
                b = np.where(b == 0, 2, b).astype(dtype)
            yield {}, [a, b]
        if np.issubdtype(dtype, np.floating):
            yield {}, [EDGES.astype(dtype), EDGES[:1].astype(dtype)]
            yield {}, [EDGES.astype(dtype), EDGES[::-1].astype(dtype)]
            yield {}, [EDGES.astype(dtype), np.array(0.5, dtype)]
            yield {}, [np.array(2, dtype), EDGES.astype(dtype)]
        elif dtype != np.bool_ and op in ("Add", "Sub", "Mul", "Less", "Equal", "Greater"):
            info = np.iinfo(dtype)
            yield {}, [np.array([info.min, info.max], dtype), np.array([[1], [info.max]], dtype)]
    if op == "Div":
        for dtype in (np.int32, np.int64, np.int8 if opset >= 14 else np.int32):
            yield {}, [np.array([-7, 7, -7, 7, -6], dtype), np.array([2, -2, -2, 2, 4], dtype)]
            yield {}, [np.array([-7, 7], dtype), np.array(2, dtype)]


@of("Mod")
def _mod(op: str, opset: int) -> Iterator[Given]:
    yield from _binary(op, opset)
    for dtype in types(op, opset):
        for fmod in (0, 1):
            if np.issubdtype(dtype, np.floating) and not fmod:
                continue
            a: np.ndarray = np.array([-7, 7, -7, 7, -6, 5], np.float64).astype(dtype)
            b: np.ndarray = np.array([2, -2, -2, 2, 4, 3], np.float64).astype(dtype)
            yield {"fmod": fmod}, [a, b]
            yield {"fmod": fmod}, [a, np.array(3, dtype)]
    yield {"fmod": 0}, [f(3), f(3, low=1)]
    yield {"fmod": 1}, [EDGES, EDGES[::-1].copy()]


@of("Pow")
def _pow(op: str, opset: int) -> Iterator[Given]:
    yield from _binary(op, opset)
    if opset < 12:
        return
    bases = [t for t in types(op, opset) if t in (np.float32, np.float64, np.int32, np.int64, np.float16)]
    for base, exponent in itertools.product(bases, types(op, opset, 1)):
        x = f(2, 3, dtype=base, low=1)
        for e in (2, 3, 0.5, -1, 0):
            if np.array(e).astype(exponent) == e:
                yield {}, [x, np.array(e).astype(exponent)]
        yield {}, [x, f(3, dtype=exponent, low=0)]
        yield {}, [f(2, dtype=base, low=1), f(2, dtype=exponent, low=0)]
    yield {}, [np.array([3, 10], np.int32), np.array([0.5, 1.5], np.float32)]
    yield {}, [np.array([123456789, 3], np.int64), np.array(2.0, np.float32)]
    yield {}, [np.array([123456789, 3], np.int64), np.array(1.0, np.float32)]


@of("BitShift")
def _bit_shift(op: str, opset: int) -> Iterator[Given]:
    for dtype in types(op, opset):
        for direction in ("LEFT", "RIGHT"):
            yield {"direction": direction}, [np.array([1, 2, 200, 7], dtype), np.array([1, 0, 3, 7], dtype)]
            yield {"direction": direction}, [np.array([[1], [9]], dtype), np.array(2, dtype)]


@of("Sum", "Mean", "Max", "Min")
def _variadic(op: str, opset: int) -> Iterator[Given]:
    for dtype in types(op, opset):
        for count in (1, 2, 3):
            yield {}, [f(*[(2, 3), (3,), (1, 3)][n], dtype=dtype) for n in range(count)]
        yield {}, [f(2, 1, dtype=dtype), f(dtype=dtype)]
    yield {}, [EDGES, EDGES[::-1].copy()]
    yield {}, [EDGES]


@of("IsInf")
def _is_inf(op: str, opset: int) -> Iterator[Given]:
    for attributes in product(detect_negative=(None, 0, 1), detect_positive=(None, 0, 1)):
        yield attributes, [EDGES]
        yield attributes, [EDGES.astype(np.float64)]


@of("Cast")
def _cast(op: str, opset: int) -> Iterator[Given]:
    sources = [np.float32, np.float64, np.float16, np.int64, np.int32, np.int8, np.uint8, np.bool_, np.int16,
               np.uint16, np.uint32]
    targets = (1, 2, 3, 4, 5, 6, 7, 9, 10, 11, 12, 13)
    for source, to in itertools.product(sources, targets):
        if np.issubdtype(source, np.floating):
            x: np.ndarray = np.array([0.0, 1.5, 0.4, 100.6, 2.5, -0.0], source)
            yield {"to": to}, [x]
            if to in (1, 10, 11, 9):
                yield {"to": to}, [np.array([np.nan, np.inf, -np.inf, 65519.0, -70000],
                        np.float64).astype(source)]
            if to in (3, 5, 6, 7):
                yield {"to": to}, [np.array([-1.5, -0.9, -100.6], source)]
        else:
            yield {"to": to}, [f(2, 3, dtype=source, low=0)]
            if source in (np.int64, np.int32):
                yield {"to": to}, [np.array([-1, 300, 70000, -129], source)]
    yield {"to": 1}, [np.array([2**24 + 1, 2**53 + 1], np.int64)]
    yield {"to": 16}, [f(3)]
    yield {"to": 17}, [f(3)]
    yield {"to": 8}, [f(3)]
    yield {"to": 0}, [f(3)]
    yield {"to": 99}, [f(3)]
    if opset >= 19:
        yield {"to": 7, "saturate": 0}, [f(3)]


@of("CastLike")
def _cast_like(op: str, opset: int) -> Iterator[Given]:
    for to in (np.float16, np.float64, np.int32, np.bool_):
        yield {}, [f(2, 3), f(1, dtype=to)]


@of("Clip")
def _clip(op: str, opset: int) -> Iterator[Given]:
    if opset < 11:
        for attributes in product(min=(None, -1.0, 2.0), max=(None, 1.0, -2.0)):
            yield attributes, [f(2, 3)]
            yield attributes, [EDGES]
        yield {"min": 0.0, "max": 6.0}, [EDGES]
        return
    for dtype in types(op, opset):
        for low, high in ((None, None), (1, None), (None, 1), (1, 2), (2, 1), (0, 6)):
            given: list[Any] = [None if x is None else np.array(x, dtype) for x in (low, high)]
            while given and given[-1] is None:
                given.pop()
            yield {}, [f(2, 3, dtype=dtype), *given]
    yield {}, [EDGES, np.array(-1, np.float32), np.array(1, np.float32)]
    yield {}, [EDGES, np.array(0, np.float32), np.array(6, np.float32)]
    yield {}, [EDGES, np.array(-np.inf, np.float32), np.array(np.inf, np.float32)]


@of("Where")
def _where(op: str, opset: int) -> Iterator[Given]:
    for dtype in types(op, opset, 1):
        yield {}, [f(2, 3, dtype=np.bool_), f(2, 3, dtype=dtype), f(3, dtype=dtype)]
        yield {}, [f(2, 1, dtype=np.bool_), f(dtype=dtype), f(1, 3, dtype=dtype)]
    yield {}, [f(dtype=np.bool_), f(2, 3), f(2, 3)]


@of("PRelu")
def _prelu(op: str, opset: int) -> Iterator[Given]:
    for dtype in types(op, opset):
        for shape, slope in (
            ((2, 3), (3,)), ((2, 3), (1,)), ((2, 3), ()), ((2, 3), (2, 3)), ((2, 3, 4), (3, 1)), ((2, 3, 4),
                (4,)),
            ((2, 3, 4), (1,)), ((2, 3, 4), (3, 4)), ((2, 3, 4, 4), (3, 1, 1)), ((2, 3, 4, 4), (1, 3, 1, 1)),
            ((3,), (3,)), ((3,), (1,)), ((2, 3, 3), (3,)), ((1, 3), (1, 3)), ((4, 1), (1,)),
        ):
            yield {}, [f(*shape, dtype=dtype), f(*slope, dtype=dtype)]


# -- reductions -------------------------------------------------------------------------------------


@of(
    "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin",
    "ReduceProd", "ReduceSum", "ReduceSumSquare",
)
def _reduce(op: str, opset: int) -> Iterator[Given]:
    as_input = opset >= (13 if op == "ReduceSum" else 18)
    for dtype in types(op, opset):
        low = 0.2 if "Log" in op else -3
        for axes in (None, (0,), (1,), (-1,), (0, 2), (0, 1, 2), (-2, -1)):
            for keep in (None, 0, 1) if dtype == np.float32 else (0,):
                attributes: dict[str, Any] = {} if keep is None else {"keepdims": keep}
                x = f(2, 3, 2, dtype=dtype, low=low)
                if as_input:
                    yield attributes, [x] if axes is None else [x, i64(*axes)]
                else:
                    yield {**attributes, **({} if axes is None else {"axes": axes})}, [x]
        yield {}, [f(dtype=dtype, low=low)]
        yield {"keepdims": 0}, [f(3, dtype=dtype, low=low)]
    yield {}, [np.array([[-np.inf, -np.inf], [1, np.nan], [np.inf, 2]], np.float32)]
    if as_input:
        for attributes in product(noop_with_empty_axes=(None, 0, 1), keepdims=(None, 0)):
            for dtype in {np.float32, *({np.int64} & set(types(op, opset)))}:
                yield attributes, [f(2, 3, dtype=dtype, low=0.2)]
                yield attributes, [f(2, 3, dtype=dtype, low=0.2), i64()]
                yield attributes, [f(2, 3, dtype=dtype, low=0.2), i64(1)]
        yield {"keepdims": 0}, [f(2, 0, 3), i64(1)]
        yield {}, [f(2, 0, 3), i64(1)]
        yield {}, [f(0)]
        yield {"keepdims": 0}, [f(2, 0, 3), i64(0)]
    else:
        yield {"axes": (1,), "keepdims": 0}, [f(2, 0, 3)]


@of("ArgMax", "ArgMin")
def _arg(op: str, opset: int) -> Iterator[Given]:
    for dtype in types(op, opset):
        yield {}, [f(3, 4, dtype=dtype)]
    for attributes in product(axis=(None, 0, 1, -1, -3), keepdims=(None, 0, 1), select_last_index=(None, 0,
            1)):
        if opset < 12 and attributes.pop("select_last_index", None) is not None:
            continue
        yield attributes, [np.array(f(2, 3, 4, dtype=np.int64), np.float32)]
        yield attributes, [np.ones((2, 3, 4), np.float32)]
    yield {"axis": 0}, [np.array([1, np.nan, 3], np.float32)]
    yield {"axis": 0}, [np.array([1, np.inf, np.inf, -np.inf], np.float32)]
    yield {}, [f()]


@of("CumSum")
def _cumsum(op: str, opset: int) -> Iterator[Given]:
    for dtype in types(op, opset):
        for attributes in product(exclusive=(None, 0, 1), reverse=(None, 0, 1)):
            for axis in (np.array(0, np.int64), np.array(1, np.int32), i64(-1), np.array(-2, np.int64)):
                yield attributes, [f(2, 3, dtype=dtype), axis]
    yield {"exclusive": 1}, [np.array([1, np.inf, 2, np.nan, 3], np.float32), np.array(0, np.int64)]
    yield {"exclusive": 1}, [f(2, 0), np.array(1, np.int64)]
    yield {}, [f(2, 0), np.array(1, np.int64)]


@of("TopK")
def _top_k(op: str, opset: int) -> Iterator[Given]:
    ties = np.array([[3, 1, 3, 2, 3], [0, 0, 0, 0, 0]], np.float32)
    if opset < 10:
        for attributes in product(k=(1, 3), axis=(None, 0, -1)):
            yield attributes, [f(4, 5), *[]], 2
        yield {"k": 2}, [ties], 2
        return
    choices: dict[str, Sequence[Any]] = {"axis": (None, 0, 1, -1)}
    if opset >= 11:
        choices |= {"largest": (None, 0, 1), "sorted": (None, 1)}
    for attributes in product(**choices):
        for k in (1, 2, 0):
            yield attributes, [f(4, 5), i64(k)], 2
        yield attributes, [ties, i64(2)], 2
    for dtype in types(op, opset):
        yield {}, [f(4, 5, dtype=dtype), i64(2)], 2
    yield {}, [np.array([1, np.nan, 3, np.inf, -np.inf], np.float32), i64(3)], 2
    yield {}, [f(4, 5), i64(7)], 2


# -- softmax and its like ---------------------------------------------------------------------------


@of("Softmax", "LogSoftmax", "Hardmax")
def _softmax(op: str, opset: int) -> Iterator[Given]:
    for dtype in types(op, opset):
        for shape in ((4,), (2, 3), (2, 3, 4), (2, 1, 3, 2)):
            for axis in (None, *range(-len(shape), len(shape))):
                if opset < 11 and axis is not None and axis < 0:
                    continue
                yield {} if axis is None else {"axis": axis}, [f(*shape, dtype=dtype)]
    yield {}, [np.ones((2, 3), np.float32)]
    yield {}, [np.array([[1, np.inf, 2], [-np.inf, -np.inf, 1], [100, 200, 300]], np.float32)]
    yield {"axis": 1}, [f(0, 3)]
    yield {"axis": 5}, [f(2, 3)]
