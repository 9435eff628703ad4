"""Operator rows: arithmetic, comparisons, activations, reductions, products, random numbers."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from poet.frontend.onnx.node import Alias, Built, Modal, Node, plain, row
from poet.frontend.onnx.reader import DTYPES, dtype_of
from poet.runtime.kernels import composed as whole_numbers

plain(
    {
        "Abs": torch.abs, "Acos": torch.acos, "Acosh": torch.acosh, "Asin": torch.asin, "Asinh": torch.asinh,
        "Atan": torch.atan, "Atanh": torch.atanh, "Ceil": torch.ceil, "Cos": torch.cos, "Cosh": torch.cosh,
        "Erf": torch.erf, "Exp": torch.exp, "Floor": torch.floor, "IsNaN": torch.isnan, "Log": torch.log,
        "Neg": torch.neg, "Not": torch.logical_not, "Reciprocal": torch.reciprocal, "Relu": torch.relu,
        "Round": torch.round, "Sigmoid": torch.sigmoid, "Sin": torch.sin,
        "Sinh": torch.sinh, "Softplus": F.softplus, "Softsign": F.softsign, "Sqrt": torch.sqrt,
        "Tan": torch.tan, "Tanh": torch.tanh, "HardSwish": F.hardswish, "Mish": F.mish, "Where": torch.where,
        "BitwiseNot": torch.bitwise_not,
    }
)  # fmt: skip
plain({"MatMul": torch.matmul, "Det": torch.linalg.det}, heavy=True)

_BINARY: dict[str, Callable[..., Tensor]] = {
    "Add": operator.add, "Sub": operator.sub, "Mul": operator.mul,
    "Equal": operator.eq, "Greater": operator.gt, "GreaterOrEqual": operator.ge, "Less": operator.lt,
    "LessOrEqual": operator.le, "And": torch.logical_and, "Or": torch.logical_or, "Xor": torch.logical_xor,
    "BitwiseAnd": operator.and_, "BitwiseOr": operator.or_, "BitwiseXor": operator.xor,
}  # fmt: skip
_TENSORS_ONLY = frozenset({"And", "Or", "Xor"})


@row("Greater", "Less", fixed=(0, 1))
@row(*_BINARY)
def _binary(node: Node) -> Built:
    function = _BINARY[node.proto.op_type]
    if node.proto.op_type in _TENSORS_ONLY:
        return function
    return _with_numbers(node, function)


def _with_numbers(node: Node, function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """``function`` of two operands, of which one may be a Python number.

    A constant of one element was a number in the model's source; ``x ** 2`` and ``x ** tensor(2)`` are
    computed differently.
    """
    if node.is_constant(0) and node.is_constant(1):
        return function
    right = node.operand_number(1)
    if right is not None:
        return lambda x: function(x, right)
    left = node.operand_number(0)
    if left is not None:
        return lambda y: function(left, y)
    return function


@row("Div")
def _div(node: Node) -> Built:
    if node.meta(0).is_floating_point():
        return _with_numbers(node, operator.truediv)
    return whole_numbers.quotient


@row("Pow")
def _pow(node: Node) -> Built:
    base, exponent = node.meta(0).dtype, node.meta(1).dtype
    if base.is_floating_point:
        run = _with_numbers(node, operator.pow)
        return run if base == exponent else lambda *given: run(*given).to(base)
    # a number as exponent must not be negative, a tensor may be
    exact = torch.float64 if exponent.is_floating_point else base
    return lambda x, y: torch.pow(x.to(exact), y.to(exact)).to(base)


@row("Mod")
def _mod(node: Node) -> Built:
    if node.flag("fmod"):
        return torch.fmod
    if node.meta(0).is_floating_point():
        raise node.error("of floats it needs fmod=1")
    return torch.remainder


@row("BitShift")
def _bit_shift(node: Node) -> Built:
    left = node.text("direction", "", ("LEFT", "RIGHT")) == "LEFT"
    return torch.bitwise_left_shift if left else torch.bitwise_right_shift


_VARIADIC: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "Sum": torch.add, "Mean": torch.add, "Max": torch.maximum, "Min": torch.minimum,
}  # fmt: skip


@row(*_VARIADIC)
def _variadic(node: Node) -> Built:
    function = _VARIADIC[node.proto.op_type]
    count = len(node.inputs)
    if count == 1:
        return Alias()

    def run(*tensors: Tensor) -> Tensor:
        total = functools.reduce(function, tensors)
        return total / count if node.proto.op_type == "Mean" else total

    return run


@row("Sign")
def _sign(node: Node) -> Built:
    if node.meta(0).is_floating_point():
        return lambda x: torch.where(torch.isnan(x), x, torch.sign(x))  # torch takes 0 for NaN
    return torch.sign


@row("IsInf")
def _is_inf(node: Node) -> Built:
    positive, negative = node.flag("detect_positive", 1), node.flag("detect_negative", 1)
    if not positive and not negative:
        return lambda x: torch.zeros_like(x, dtype=torch.bool)
    if positive and negative:
        return torch.isinf
    return torch.isposinf if positive else torch.isneginf


@row("Cast")
def _cast(node: Node) -> Built:
    return _to_dtype(node, dtype_of(node.integer("to", 0), node.where))


@row("CastLike")
def _cast_like(node: Node) -> Built:
    node.drop(1)
    return _to_dtype(node, node.meta(1).dtype)


def _to_dtype(node: Node, dtype: torch.dtype) -> Built:
    # both matter for 8 bits alone
    node.flag("saturate", 1)
    node.text("round_mode", "up", ("up", "down", "nearest"))
    return Alias() if node.meta(0).dtype == dtype else lambda x: x.to(dtype)


@row("Clip", fixed=(1, 2))
def _clip(node: Node) -> Built:
    if node.opset < 11:
        most = torch.finfo(torch.float32).max
        low: float | None = node.real("min", -most)
        high: float | None = node.real("max", most)
    elif all(node.is_constant(place) or not node.has(place) for place in (1, 2)):
        low, high = node.optional_scalar(1, "minimum"), node.optional_scalar(2, "maximum")
    elif all(node.prod(place) == 1 for place in (1, 2) if node.has(place)):
        return lambda x, *limits: torch.clamp(x, *(None if y is None else y.reshape(()) for y in limits))
    else:
        raise node.error("its limits must be single numbers")
    if low is None and high is None:
        return Alias()
    if low == 0 and high == 6 and node.meta(0).is_floating_point():
        return F.relu6
    return lambda x: torch.clamp(x, low, high)


# -- activations ------------------------------------------------------------------------------------


_WITH_NUMBERS: dict[str, tuple[dict[str, float], Callable[..., Tensor]]] = {
    "LeakyRelu": ({"alpha": 0.01}, F.leaky_relu),
    "Elu": ({"alpha": 1.0}, F.elu),
    "Celu": ({"alpha": 1.0}, F.celu),
    "ThresholdedRelu": ({"alpha": 1.0}, lambda x, alpha: torch.where(x > alpha, x, 0.0)),  # 0 for NaN, too
    "Shrink": (
        {"bias": 0.0, "lambd": 0.5},
        lambda x, bias, limit: torch.where(x < -limit, x + bias, torch.where(x > limit, x - bias, 0.0)),
    ),
}
"""Functions of a tensor and of attributes, which have these defaults."""


@row(*_WITH_NUMBERS)
def _with_attributes(node: Node) -> Built:
    defaults, function = _WITH_NUMBERS[node.proto.op_type]
    given = [node.real(name, default) for name, default in defaults.items()]
    return lambda x: function(x, *given)


@row("PRelu")
def _prelu(node: Node) -> Built:
    channels = node.shape(0)[1] if node.rank(0) > 1 else 1
    slope = node.shape(1)
    per_channel = len(slope) == node.rank(0) - 1 and slope[:1] == (channels,) and math.prod(slope) == channels
    if node.meta(0).is_floating_point() and (math.prod(slope) == 1 or per_channel):
        return lambda x, weight: F.prelu(x, weight.reshape(-1))
    if np.broadcast_shapes(node.shape(0), slope) != node.shape(0):
        raise node.error(f"a slope of shape {list(slope)} for {list(node.shape(0))}")
    return lambda x, weight: torch.where(x >= 0, x, weight * x)


@row("Selu")
def _selu(node: Node) -> Built:
    alpha, gamma = node.real("alpha", 1.6732632), node.real("gamma", 1.0507009)
    if math.isclose(alpha, 1.6732632, rel_tol=1e-6) and math.isclose(gamma, 1.0507009, rel_tol=1e-6):
        return F.selu
    return lambda x: gamma * F.elu(x, alpha)


@row("Gelu")
def _gelu(node: Node) -> Built:
    approximate = node.text("approximate", "none", ("none", "tanh"))
    return lambda x: F.gelu(x, approximate=approximate)


@row("HardSigmoid")
def _hard_sigmoid(node: Node) -> Built:
    alpha, beta = node.real("alpha", 0.2), node.real("beta", 0.5)
    if math.isclose(alpha, 1 / 6, rel_tol=1e-5) and beta == 0.5:
        return F.hardsigmoid
    return lambda x: torch.clamp(alpha * x + beta, 0, 1)


@row("Swish")
def _swish(node: Node) -> Built:
    alpha = node.real("alpha", 1.0)
    return F.silu if alpha == 1.0 else lambda x: x * torch.sigmoid(alpha * x)


_SOFTMAXES: dict[str, Callable[..., Tensor]] = {
    "Softmax": torch.softmax,
    "LogSoftmax": torch.log_softmax,
    "Hardmax": lambda x, dim: F.one_hot(x.argmax(dim), x.shape[dim]).to(x.dtype).movedim(-1, dim),
}


@row(*_SOFTMAXES)
def _softmax(node: Node) -> Built:
    function = _SOFTMAXES[node.proto.op_type]
    axis = node.axis(node.integer("axis", -1 if node.opset >= 13 else 1))
    if node.opset >= 13 or all(size == 1 for size in node.shape(0)[axis + 1 :]):
        return lambda x: function(x, dim=axis)
    # before operator set 13: over all dimensions from `axis` on
    return lambda x: function(x.flatten(axis), dim=axis).reshape(x.shape)


@row("Dropout", random=True, ignored=("seed",), fixed=(1, 2))
def _dropout(node: Node) -> Built:
    if node.opset >= 12:
        ratio = node.optional_scalar(1, "ratio")
        if node.has(2):
            node.drop(2)
    else:
        ratio = node.real("ratio", 0.5)
    share = 0.5 if ratio is None else float(ratio)
    if not 0 <= share < 1:
        raise node.error(f"ratio {share}, expected one from 0 up to 1")
    if node.read_count <= 1:
        return Modal(train=lambda x: F.dropout(x, share, training=True), evaluate=lambda x: x)
    return Modal(
        train=lambda x: torch.native_dropout(x, share, True),
        evaluate=lambda x: (x, torch.ones_like(x, dtype=torch.bool)),
    )


# -- reductions -------------------------------------------------------------------------------------

_REDUCTIONS: dict[str, Callable[[Tensor, list[int], bool], Tensor]] = {
    "ReduceMean": lambda x, axes, keep: x.mean(axes, keepdim=keep),
    "ReduceSum": lambda x, axes, keep: x.sum(axes, keepdim=keep, dtype=x.dtype),
    "ReduceMax": lambda x, axes, keep: x.amax(axes, keepdim=keep),
    "ReduceMin": lambda x, axes, keep: x.amin(axes, keepdim=keep),
    "ReduceL1": lambda x, axes, keep: x.abs().sum(axes, keepdim=keep, dtype=x.dtype),
    "ReduceL2": lambda x, axes, keep: torch.linalg.vector_norm(x, 2, axes, keepdim=keep),
    "ReduceLogSum": lambda x, axes, keep: x.sum(axes, keepdim=keep).log(),
    "ReduceLogSumExp": lambda x, axes, keep: torch.logsumexp(x, axes, keepdim=keep),
    "ReduceSumSquare": lambda x, axes, keep: x.square().sum(axes, keepdim=keep, dtype=x.dtype),
    "ReduceProd": lambda x, axes, keep: _product(x, axes, keep),
}


def _product(x: Tensor, axes: list[int], keep: bool) -> Tensor:
    for axis in sorted(axes, reverse=True):
        x = x.prod(axis, keepdim=keep, dtype=x.dtype)
    return x


@row(*_REDUCTIONS)
def _reduce(node: Node) -> Built:
    function = _REDUCTIONS[node.proto.op_type]
    keep = node.flag("keepdims", 1)
    axes, reduces = node.ints_or_attribute(1, "axes"), not node.flag("noop_with_empty_axes")
    if not axes:
        if not reduces:  # what is not summed is still squared, or its logarithm taken
            return lambda x: function(x.unsqueeze(-1), [-1], False)
        axes = list(range(node.rank(0)))
    axes = [node.axis(axis) for axis in axes]
    return lambda x: function(x, axes, keep)


@row("ArgMax", "ArgMin")
def _arg(node: Node) -> Built:
    axis = node.axis(node.integer("axis", 0))
    keep = node.flag("keepdims", 1)
    function = torch.argmax if node.proto.op_type == "ArgMax" else torch.argmin
    if not node.flag("select_last_index"):
        return lambda x: function(x, axis, keepdim=keep)
    last = node.shape(0)[axis] - 1
    return lambda x: last - function(x.flip(axis), axis, keepdim=keep)


@row("CumSum")
def _cumsum(node: Node) -> Built:
    axis = node.axis(int(node.scalar(1, "axis")))
    exclusive, reverse = node.flag("exclusive"), node.flag("reverse")
    size = node.shape(0)[axis]

    def run(x: Tensor) -> Tensor:
        x = x.flip(axis) if reverse else x
        if exclusive and size:
            x = torch.cat([torch.zeros_like(x.narrow(axis, 0, 1)), x.narrow(axis, 0, size - 1)], axis)
        total = x.cumsum(axis, dtype=x.dtype)
        return total.flip(axis) if reverse else total

    return run


@row("TopK")
def _top_k(node: Node) -> Built:
    count = node.integer("k", 0) if node.opset < 10 else int(node.scalar(1, "k"))
    axis = node.axis(node.integer("axis", -1))
    largest, _ = node.flag("largest", 1), node.flag("sorted", 1)
    if not 0 <= count <= node.shape(0)[axis]:
        raise node.error(f"{count} of a dimension of {node.shape(0)[axis]}")

    def run(x: Tensor) -> tuple[Tensor, ...]:
        # of equal numbers ONNX takes the first, torch.topk any
        values, indices = torch.sort(x, dim=axis, descending=largest, stable=True)
        return values.narrow(axis, 0, count), indices.narrow(axis, 0, count)

    return run


@row("NonZero", by_data=True)
def _nonzero(node: Node) -> Built:
    return lambda x: x.nonzero().t()


# -- products ---------------------------------------------------------------------------------------


@row("Gemm", heavy=True)
def _gemm(node: Node) -> Built:
    left, right = node.flag("transA"), node.flag("transB")
    alpha, beta = node.real("alpha", 1.0), node.real("beta", 1.0)
    if alpha == beta == 1.0 and right and not left and (not node.has(2) or node.rank(2) == 1):
        return F.linear

    def run(a: Tensor, b: Tensor, c: Tensor | None = None) -> Tensor:
        a, b = (a.t() if left else a), (b.t() if right else b)
        if c is not None:
            return torch.addmm(c, a, b, beta=beta, alpha=alpha)
        return a @ b if alpha == 1.0 else alpha * (a @ b)

    return run


@row("Einsum", heavy=True)
def _einsum(node: Node) -> Built:
    equation = node.text("equation", "")
    return lambda *tensors: torch.einsum(equation, *tensors)


@row("LpNormalization")
def _lp_normalization(node: Node) -> Built:
    power, axis = node.integer("p", 2), node.axis(node.integer("axis", -1))
    if power not in (1, 2):
        raise node.error(f"p is {power}, expected 1 or 2")
    least = torch.finfo(node.meta(0).dtype).tiny  # zeros stay zeros
    return lambda x: F.normalize(x, power, axis, eps=least)


@row("RandomUniform", "RandomUniformLike", random=True, ignored=("seed",), fixed=(0,))
def _uniform(node: Node) -> Built:
    shape, dtype = _made(node)
    low, high = node.real("low", 0.0), node.real("high", 1.0)
    if not (math.isfinite(low) and math.isfinite(high) and low <= high):
        raise node.error(f"low {low} and high {high} are no range")
    return lambda: torch.empty(shape, dtype=dtype).uniform_(low, high)


@row("RandomNormal", "RandomNormalLike", random=True, ignored=("seed",), fixed=(0,))
def _normal(node: Node) -> Built:
    shape, dtype = _made(node)
    mean, scale = node.real("mean", 0.0), node.real("scale", 1.0)
    if not (math.isfinite(mean) and math.isfinite(scale) and scale >= 0):
        raise node.error(f"mean {mean} and scale {scale} are no normal distribution")
    return lambda: torch.empty(shape, dtype=dtype).normal_(mean, scale)


@row("Bernoulli", random=True, ignored=("seed",))
def _bernoulli(node: Node) -> Built:
    dtype = _dtype(node, node.meta(0).dtype)
    return lambda x: torch.bernoulli(x).to(dtype)


def _made(node: Node) -> tuple[list[int], torch.dtype]:
    """Shape and type of what a node makes from nothing, or like an input of which only these are read."""
    if node.proto.op_type.endswith("Like"):
        meta = node.meta(0)
        node.drop(0)
        default = meta.dtype if meta.dtype.is_floating_point else torch.float32
        return list(meta.shape), _dtype(node, default)
    shape = node.rebind_shape(node.int_list("shape"))
    if any(size < 0 for size in shape):
        raise node.error(f"a shape of {shape}")
    return shape, _dtype(node, torch.float32)


def _dtype(node: Node, default: torch.dtype) -> torch.dtype:
    number = node.integer("dtype", 0)
    if number and number not in DTYPES:
        raise node.error(f"element type {number} is not supported")
    dtype = DTYPES[number] if number else default
    if node.proto.op_type != "Bernoulli" and not dtype.is_floating_point:
        raise node.error(f"random numbers of type {str(dtype).removeprefix('torch.')}; expected a float type")
    return dtype
