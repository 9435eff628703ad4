"""The operators that have a C kernel: one row each, from a run of an op to calls of C functions.

None of the kernels needs a workspace, and none writes over what it reads, except an update's parameters.
Those that make a weight's gradient hand on its elements as they are made: to be stored, or to an update.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from poet.c99.calls import WORD_BYTES, CCall, CStruct, OpRun, Placed, pointer_or_null, pointwise
from poet.errors import GraphError, UnsupportedOperator
from poet.graph import ITEM_BYTES, Call, Ref, Strip, Symbol, TensorType

Rule = Callable[[OpRun], list[CCall]]

_UPDATE_SCALARS = {
    "lr": "net->learning_rate",
    "gradient_share": "net->gradient_share",
    "decay_factor": "net->decay_factor",
    "step_size": "net->step_size",
    "second_moment_correction": "net->second_moment_correction",
}


# --- gradients that are used as they are made --------------------------------------------------


def _use(run: OpRun, index: int = 0) -> str:
    """C text of what becomes of the elements of output ``index``: they are stored, or used by an update."""
    update = run.taken.get(index)
    if update is None:
        return f"&(poet_update){{poet_apply_store, {run.output(index).pointer()}, 0, 0, {{0.0f}}}}"
    function, places, numbers = _APPLIED[update.call.target](update)
    parameter, gradient = update.dense(0), update.dense(1)
    if any(update.dense(place).type.strides != gradient.type.strides for place in places):
        raise update.refuse("for a gradient whose elements do not lie as its parameter's")
    pointers = [update.dense(place).pointer() for place in places] + ["0", "0"]
    given = ", ".join((parameter.pointer(), *pointers[:2], "{" + ", ".join(numbers) + "}"))
    return f"&(poet_update){{{function}, {given}}}"


def _made_by(run: OpRun, index: int) -> bool:
    """Whether anything becomes of output ``index``."""
    return index in run.taken or (index < len(run.outputs) and run.outputs[index] is not None)


Applied = tuple[str, tuple[int, ...], list[str]]
"""Function, places of the states among the arguments of the update, numbers."""


def _apply_sgd(run: OpRun) -> Applied:
    return "poet_apply_sgd", (), [_scalar(run, 2), _scalar(run, 3)]


def _apply_momentum(run: OpRun) -> Applied:
    flag = run.float_text(float(run.argument(7) is True))
    return "poet_apply_momentum", (2,), [*(_scalar(run, index) for index in range(3, 7)), flag]


def _apply_adamw(run: OpRun) -> Applied:
    return "poet_apply_adamw", (2, 3), [*(_scalar(run, index) for index in (4, 5, 6)), *_adamw_numbers(run)]


_APPLIED: dict[str, Callable[[OpRun], Applied]] = {
    "poet.sgd": _apply_sgd,
    "poet.momentum": _apply_momentum,
    "poet.adamw": _apply_adamw,
}


# --- element by element -----------------------------------------------------------------------


def _unary(function: str) -> Rule:
    return lambda run: pointwise(run, function, run.made(), [run.tensor(0)])


def _backward(function: str) -> Rule:
    """Gradient and saved value."""
    return lambda run: pointwise(run, function, run.made(), [run.tensor(0), run.tensor(1)])


def _add(run: OpRun, sign: float = 1.0) -> list[CCall]:
    alpha = sign * run.number(2, 1, name="alpha")
    out, other = run.made()[0], run.optional(1)
    if out.type.dtype == "int64":
        amount = alpha * run.number(1) if other is None else math.nan
        if out.type.elements != 1 or not float(amount).is_integer():
            raise run.refuse("for whole numbers, except for counters")
        return [CCall("poet_count", (out.pointer(), run.tensor(0).pointer(), str(int(amount))))]
    if other is None:
        added = run.float_text(alpha * run.number(1))
        return pointwise(run, "poet_add_scalar", [out], [run.tensor(0)], added)
    return pointwise(run, "poet_add", [out], [run.tensor(0), other], run.float_text(alpha))


def _sub(run: OpRun) -> list[CCall]:
    return _add(run, -1.0)


def _mul(run: OpRun) -> list[CCall]:
    other = run.optional(1)
    if other is None:
        factor = run.float_text(run.number(1))
        return pointwise(run, "poet_mul_scalar", run.made(), [run.tensor(0)], factor)
    return pointwise(run, "poet_mul", run.made(), [run.tensor(0), other])


def _neg(run: OpRun) -> list[CCall]:
    return pointwise(run, "poet_mul_scalar", run.made(), [run.tensor(0)], "-1.0f")


def _div(run: OpRun) -> list[CCall]:
    divisor = run.float_text(run.number(1))
    return pointwise(run, "poet_div_scalar", run.made(), [run.tensor(0)], divisor)


def _threshold_backward(run: OpRun) -> list[CCall]:
    read, threshold = [run.tensor(0), run.tensor(1)], run.float_text(run.number(2))
    return pointwise(run, "poet_threshold_backward", run.made(), read, threshold)


def _full(run: OpRun) -> list[CCall]:
    return pointwise(run, "poet_fill", run.made(), [], run.float_text(run.number(3)))


def _assign(run: OpRun) -> list[CCall]:
    state, source = run.tensor(0), run.tensor(1)
    if state.type.dtype != source.type.dtype or not (state.is_dense and source.is_dense):
        raise run.refuse(f"for {source.type} that is put into {state.type}")
    words = state.type.elements * ITEM_BYTES[state.type.dtype] // WORD_BYTES
    return [CCall("poet_assign", (state.pointer(), source.pointer(), str(words)))]


def _pad(run: OpRun) -> list[CCall]:
    x, y = run.dense(0), run.output()
    left, right, top, bottom = (*run.wholes(1), 0, 0, 0, 0)[:4]
    if len(run.wholes(1)) > 4 or not x.type.shape:
        raise run.refuse("for more than two dimensions")
    height, width = ((1, *x.type.shape) if len(x.type.shape) == 1 else x.type.shape)[-2:]
    planes = x.type.elements // max(height * width, 1)
    sizes = (planes, height, width, height + top + bottom, width + left + right, top, left)
    shape = CStruct("poet_pad2d_shape", tuple(map(str, sizes)))
    return [CCall("poet_pad2d", (y.pointer(), x.pointer(), run.float_text(run.number(2, 0.0)), shape))]


# --- matrices ---------------------------------------------------------------------------------


def _product(y: Placed, a: Placed, b: Placed, start: tuple[int, int]) -> CStruct:
    """The shape of a product of two tensors of two dimensions."""
    sizes = (*a.type.shape, b.type.shape[1], *y.type.strides, *start, *a.type.strides, *b.type.strides)
    return CStruct("poet_matmul_shape", tuple(map(str, sizes)))


def _mm(run: OpRun) -> list[CCall]:
    if run.taken:
        return _gradient_mm(run)
    y, a, b = run.output(), run.floats(0), run.floats(1)
    shape = _product(y, a, b, y.type.strides[:2])  # type: ignore[arg-type]  # two dimensions
    return [CCall("poet_matmul", (y.pointer(), "0", a.pointer(), b.pointer(), shape))]


def _gradient_mm(run: OpRun) -> list[CCall]:
    a, b = run.floats(0), run.floats(1)
    rows, inner, columns = *a.type.shape, b.type.shape[1]
    if run.taken[0].dense(1).type.strides not in ((columns, 1), (columns,)):
        raise run.refuse("for a gradient whose columns are not neighbours")
    sizes = (rows, inner, columns, columns, 1, 0, 0, *a.type.strides, *b.type.strides)
    shape = CStruct("poet_matmul_shape", tuple(map(str, sizes)))
    return [CCall("poet_matmul_gradient", (_use(run), a.pointer(), "0", b.pointer(), "0", "1", shape))]


def _addmm(run: OpRun) -> list[CCall]:
    y, bias, a, b = run.output(), run.floats(0), run.floats(1), run.floats(2)
    if run.number(3, 1, name="beta") != 1 or run.number(4, 1, name="alpha") != 1:
        raise run.refuse("with factors other than 1")
    sizes, strides = (1, 1, *bias.type.shape)[-2:], (0, 0, *bias.type.strides)[-2:]
    row, column = (0 if size == 1 else stride for size, stride in zip(sizes, strides, strict=True))
    shape = _product(y, a, b, (row, column))
    return [CCall("poet_matmul", (y.pointer(), bias.pointer(), a.pointer(), b.pointer(), shape))]


def _folded(run: OpRun, dims: Sequence[int], x: TensorType) -> tuple[int, int, int]:
    """Elements before, in and after ``dims``, which lie side by side."""
    found = sorted(dim % len(x.shape) for dim in dims) if dims else list(range(len(x.shape)))
    if found and found != list(range(found[0], found[-1] + 1)):
        raise run.refuse(f"over dimensions {list(dims)}, which are not neighbours")
    first, end = (found[0], found[-1] + 1) if found else (0, 0)
    return math.prod(x.shape[:first]), math.prod(x.shape[first:end]), math.prod(x.shape[end:])


def _sum(run: OpRun, *, is_mean: bool = False) -> list[CCall]:
    x = run.dense(0)
    dims = run.wholes(1, ()) if len(run.call.args) > 1 and run.argument(1) is not None else ()
    outer, count, inner = _folded(run, dims, x.type)
    divisor = run.float_text(float(count) if is_mean else 1.0)
    sizes = (str(outer), str(count), str(inner), divisor)
    return [CCall("poet_sum_blocks", (_use(run), x.pointer(), *sizes))]


def _mean(run: OpRun) -> list[CCall]:
    return _sum(run, is_mean=True)


# --- convolutions -----------------------------------------------------------------------------


def _both(run: OpRun, index: int, otherwise: tuple[int, ...] | None = None) -> tuple[int, int]:
    """An argument for height and width; one number stands for the width alone, or for both in a pooling."""
    found = run.wholes(index, otherwise)
    return (found[0], found[1]) if len(found) == 2 else (found[0], found[0])


def _image(shape: tuple[int, ...]) -> tuple[int, int, int, int]:
    """Images, channels, height, width; a sequence is an image of height 1."""
    return (*shape[:2], *((1, shape[2]) if len(shape) == 3 else shape[2:4]))  # type: ignore[return-value]


class _Convolution:
    """The sizes of a convolution, read from the arguments that it and its backward share."""

    def __init__(self, run: OpRun, first: int, x: TensorType, w: TensorType, y: TensorType) -> None:
        if len(x.shape) not in (3, 4):
            raise run.refuse(f"for an input of {len(x.shape)} dimensions")
        if run.argument(first + 3) is not False or any(run.wholes(first + 4)):
            raise run.refuse("for transposed convolutions")
        is_flat = len(x.shape) == 3
        strides, pads, dilations = (run.wholes(first + item) for item in range(3))
        self.stride = (1, strides[0]) if is_flat else (strides[0], strides[-1])
        self.pad = (0, pads[0]) if is_flat else (pads[0], pads[-1])
        self.dilation = (1, dilations[0]) if is_flat else (dilations[0], dilations[-1])
        self.groups = run.whole(first + 5)
        self.images, channels, self.height, self.width = _image(x.shape)
        self.kernel = _image(w.shape)[2:]
        _, out_channels, self.out_height, self.out_width = _image(y.shape)
        self.in_channels, self.out_channels = channels // self.groups, out_channels // self.groups
        self.in_plane, self.out_plane = self.height * self.width, self.out_height * self.out_width

    @property
    def is_pointwise(self) -> bool:
        """Whether it is a product of matrices for each image."""
        ones = (*self.kernel, *self.stride, self.groups)
        return set(ones) == {1} and not any(self.pad)

    def shape(self, *, is_turned: bool = False) -> CStruct:
        """Of the way there, or ``is_turned`` of the way back through strides of 1."""
        sizes = (self.height, self.width, self.out_height, self.out_width)
        pads = self.pad
        if is_turned:
            sizes = (*sizes[2:], *sizes[:2])
            reach = zip(self.dilation, self.kernel, self.pad, strict=True)
            pads = tuple(dilation * (size - 1) - pad for dilation, size, pad in reach)  # type: ignore[assignment]
        numbers = (*sizes, *self.kernel, *self.stride, *pads, *self.dilation)
        plane = CStruct("poet_plane", tuple(map(str, numbers)))
        counts = (self.images, self.groups, self.in_channels, self.out_channels)
        return CStruct("poet_conv2d_shape", (*map(str, counts), plane))

    def product(self, rows: int, inner: int, columns: int, *strides: int) -> CStruct:
        """Of the matrices of one image."""
        return CStruct("poet_matmul_shape", tuple(map(str, (rows, inner, columns, *strides))))


def _convolution(run: OpRun) -> list[CCall]:
    x, w, bias, y = run.dense(0), run.dense(1), run.optional_dense(2), run.output()
    sizes = _Convolution(run, 3, x.type, w.type, y.type)
    given = pointer_or_null(bias)
    if not sizes.is_pointwise:
        return [CCall("poet_conv2d", (y.pointer(), x.pointer(), w.pointer(), given, sizes.shape()))]
    ins, outs, plane = sizes.in_channels, sizes.out_channels, sizes.in_plane
    shape = sizes.product(outs, ins, plane, plane, 1, 1, 0, ins, 1, plane, 1)
    steps = (str(outs * plane), given, w.pointer(), "0", x.pointer(), str(ins * plane), str(sizes.images))
    return [CCall("poet_matmul_images", (y.pointer(), *steps, shape))]


def _convolution_backward(run: OpRun) -> list[CCall]:
    gy = run.dense(0)
    sizes = _Convolution(run, 4, run.type_of(1), run.type_of(2), gy.type)
    ins, outs, plane = sizes.in_channels, sizes.out_channels, sizes.in_plane
    calls = []
    if _made_by(run, 0):
        gx, w = run.output(0), run.dense(2)
        if sizes.is_pointwise:
            shape = sizes.product(ins, outs, plane, plane, 1, 0, 0, 1, ins, plane, 1)
            steps = (str(ins * plane), "0", w.pointer(), "0", gy.pointer(), str(outs * plane))
            calls.append(CCall("poet_matmul_images", (gx.pointer(), *steps, str(sizes.images), shape)))
        else:
            is_turned = sizes.stride == (1, 1)
            function = "poet_conv2d_backward_input" if is_turned else "poet_conv2d_scatter"
            shape = sizes.shape(is_turned=is_turned)
            calls.append(CCall(function, (gx.pointer(), gy.pointer(), w.pointer(), shape)))
    if _made_by(run, 1):
        x = run.dense(1)
        if sizes.is_pointwise:
            shape = sizes.product(outs, plane, ins, ins, 1, ins, 1, plane, 1, 1, plane)
            read = (gy.pointer(), str(outs * plane), x.pointer(), str(ins * plane), str(sizes.images))
            calls.append(CCall("poet_matmul_gradient", (_use(run, 1), *read, shape)))
        else:
            pointers = (_use(run, 1), gy.pointer(), x.pointer())
            calls.append(CCall("poet_conv2d_backward_weight", (*pointers, sizes.shape())))
    if _made_by(run, 2):
        counts = (sizes.images, outs * sizes.groups, sizes.out_plane)
        calls.append(CCall("poet_channel_sums", (_use(run, 2), gy.pointer(), *map(str, counts))))
    return calls


# --- normalisation and pooling ----------------------------------------------------------------


def _norm_shape(run: OpRun, x: TensorType, momentum: float, eps: float) -> CStruct:
    images, channels = x.shape[:2]
    sizes = (images, channels, math.prod(x.shape[2:]))
    numbers = (run.float_text(momentum), run.float_text(eps))
    return CStruct("poet_batch_norm_shape", (*map(str, sizes), *numbers))


def _batch_norm(run: OpRun) -> list[CCall]:
    x, y = run.dense(0), run.output(0)
    shape = _norm_shape(run, x.type, run.number(6), run.number(7))
    given = [run.optional_dense(index) for index in range(1, 5)]
    if run.argument(5) is True:
        saved = (run.output(1).pointer(), run.output(2).pointer())
        pointers = (y.pointer(), *saved, x.pointer(), *map(pointer_or_null, given))
        return [CCall("poet_batch_norm", (*pointers, shape))]
    if given[2] is None or given[3] is None:
        raise run.refuse("without running statistics in evaluation")
    pointers = (y.pointer(), x.pointer(), *map(pointer_or_null, given))
    return [CCall("poet_batch_norm_fixed", (*pointers, shape))]


def _batch_norm_backward(run: OpRun) -> list[CCall]:
    if run.argument(7) is not True:
        raise run.refuse("in evaluation mode")
    gy, x = run.dense(0), run.dense(1)
    made = [None if out is None else run.checked(out) for out in (*run.outputs, None, None, None)[:3]]
    given = (run.optional_dense(2), run.dense(5), run.dense(6))
    pointers = (*map(pointer_or_null, made), gy.pointer(), x.pointer(), *map(pointer_or_null, given))
    return [CCall("poet_batch_norm_backward", (*pointers, _norm_shape(run, x.type, 0.0, 0.0)))]


def _pool_shape(run: OpRun, first: int, x: TensorType, y: TensorType) -> CStruct:
    kernel = _both(run, first)
    stride = _both(run, first + 1) if run.wholes(first + 1, ()) else kernel
    pad = _both(run, first + 2, (0, 0))
    if run.argument(first + 5) is not None:
        raise run.refuse("with a divisor of its own")
    numbers = (*x.shape[-2:], *y.shape[-2:], *kernel, *stride, *pad, 1, 1)
    planes = (str(math.prod(x.shape[:-2])), str(int(run.argument(first + 4, True) is not False)))
    return CStruct("poet_pool_shape", (*planes, CStruct("poet_plane", tuple(map(str, numbers)))))


def _avg_pool(run: OpRun) -> list[CCall]:
    x, y = run.dense(0), run.output()
    return [CCall("poet_avg_pool2d", (y.pointer(), x.pointer(), _pool_shape(run, 1, x.type, y.type)))]


def _avg_pool_backward(run: OpRun) -> list[CCall]:
    gy, gx = run.dense(0), run.output()
    shape = _pool_shape(run, 2, gx.type, gy.type)
    return [CCall("poet_avg_pool2d_backward", (gx.pointer(), gy.pointer(), shape))]


# --- losses -----------------------------------------------------------------------------------


def _softmax_sizes(run: OpRun, x: TensorType, dim: int) -> tuple[str, ...]:
    return tuple(map(str, _folded(run, (dim,), x)))


def _log_softmax(run: OpRun) -> list[CCall]:
    x, y = run.dense(0), run.output()
    sizes = _softmax_sizes(run, x.type, run.whole(1))
    return [CCall("poet_log_softmax", (y.pointer(), x.pointer(), *sizes))]


def _log_softmax_backward(run: OpRun) -> list[CCall]:
    gy, y, gx = run.dense(0), run.dense(1), run.output()
    sizes = _softmax_sizes(run, y.type, run.whole(2))
    return [CCall("poet_log_softmax_backward", (gx.pointer(), gy.pointer(), y.pointer(), *sizes))]


def _nll_sizes(run: OpRun, scores: TensorType, first: int) -> tuple[str, ...]:
    """Rows, classes, the class that is ignored and whether the mean is wanted."""
    if len(scores.shape) != 2 or run.argument(first) is not None or run.whole(first + 1) not in (1, 2):
        raise run.refuse("except for the mean or the sum over rows, without weights of classes")
    return (*map(str, scores.shape), str(run.whole(first + 2)), str(int(run.whole(first + 1) == 1)))


def _classes(run: OpRun, index: int) -> Placed:
    classes = run.tensor(index)
    if classes.type.dtype != "int64" or not classes.is_dense:
        raise run.refuse(f"for classes of type {classes.type}")
    return classes


def _nll_loss(run: OpRun) -> list[CCall]:
    y, classes = run.dense(0), _classes(run, 1)
    pointers = (run.output(0).pointer(), run.output(1).pointer(), y.pointer(), classes.pointer())
    return [CCall("poet_nll_loss", (*pointers, *_nll_sizes(run, y.type, 2)))]


def _nll_loss_backward(run: OpRun) -> list[CCall]:
    gradient, classes, counted = run.dense(0), _classes(run, 2), run.dense(6)
    pointers = (run.output().pointer(), gradient.pointer(), classes.pointer(), counted.pointer())
    return [CCall("poet_nll_loss_backward", (*pointers, *_nll_sizes(run, run.type_of(1), 3)))]


def _mse_loss(run: OpRun) -> list[CCall]:
    x, target, reduction = run.dense(0), run.dense(1), run.whole(2, 1)
    if reduction not in (1, 2) or x.type.shape != target.type.shape:
        raise run.refuse("except for the mean or the sum over tensors of one shape")
    count = x.type.elements
    divisor = run.float_text(float(count) if reduction == 1 else 1.0)
    pointers = (run.output().pointer(), x.pointer(), target.pointer())
    return [CCall("poet_mse_loss", (*pointers, str(count), divisor))]


def _mse_loss_backward(run: OpRun) -> list[CCall]:
    gradient, x, target, reduction = run.dense(0), run.dense(1), run.dense(2), run.whole(3)
    if reduction not in (1, 2) or gradient.type.elements != 1 or x.type.shape != target.type.shape:
        raise run.refuse("except for the mean or the sum over tensors of one shape")
    count = x.type.elements
    factor = run.float_text(2.0 / count if reduction == 1 else 2.0)
    pointers = (run.output().pointer(), gradient.pointer(), x.pointer(), target.pointer())
    return [CCall("poet_mse_loss_backward", (*pointers, str(count), factor))]


# --- updates ----------------------------------------------------------------------------------


def _scalar(run: OpRun, index: int) -> str:
    """A number that the optimizer gives anew in each step, or that stays."""
    argument = run.argument(index)
    if isinstance(argument, Symbol) and argument.kind == "hyperparameter":
        if argument.name not in _UPDATE_SCALARS:
            raise run.refuse(f"for the hyperparameter {argument.name}")
        return _UPDATE_SCALARS[argument.name]
    return run.float_text(run.number(index))


def _sgd(run: OpRun) -> list[CCall]:
    scalars = (_scalar(run, 2), _scalar(run, 3))
    return pointwise(run, "poet_sgd", [run.tensor(0)], [run.tensor(1)], *scalars)


def _momentum(run: OpRun) -> list[CCall]:
    scalars = [_scalar(run, index) for index in range(3, 7)]
    flag = str(int(run.argument(7) is True))
    written = [run.tensor(0), run.tensor(2)]
    return pointwise(run, "poet_momentum", written, [run.tensor(1)], *scalars, flag)


def _adamw_numbers(run: OpRun) -> list[str]:
    beta1, beta2, eps = (run.number(index) for index in (7, 8, 9))
    return [run.float_text(number) for number in (1.0 - beta1, beta2, 1.0 - beta2, eps)]


def _adamw(run: OpRun) -> list[CCall]:
    written = [run.tensor(0), run.tensor(2), run.tensor(3)]
    numbers = _adamw_numbers(run)
    scalars = [_scalar(run, index) for index in (4, 5, 6)]
    calls = pointwise(run, "poet_adamw", written, [run.tensor(1)], *scalars)
    return [
        CCall(
            call.function,
            (*call.arguments[:-1], CStruct("poet_adamw_shape", (call.arguments[-1], *numbers))),
            call.loops,
        )
        for call in calls
    ]


# --- randomness -------------------------------------------------------------------------------


def _bernoulli(run: OpRun) -> list[CCall]:
    y, p = run.output(), run.float_text(run.number(3))
    return [CCall("poet_bernoulli", (y.pointer(), p, str(y.type.elements), "net->seed", "&net->drawn"))]


def _random_place(run: OpRun) -> list[CCall]:
    place = run.made()[0]
    return [CCall("poet_random_place", (place.pointer(), "&net->drawn"))]


def _again(run: OpRun) -> list[CCall]:
    if run.argument(1) != "poet.bernoulli":
        raise run.refuse(f"to repeat {run.argument(1)}")
    place, y, p = run.tensor(0), run.output(), run.float_text(run.number(5))
    arguments = (y.pointer(), p, str(y.type.elements), "net->seed", place.pointer())
    return [CCall("poet_bernoulli_again", arguments)]


ROWS: dict[str, Rule] = {
    "aten._log_softmax.default": _log_softmax,
    "aten._log_softmax_backward_data.default": _log_softmax_backward,
    "aten.add.Tensor": _add,
    "aten.addmm.default": _addmm,
    "aten.avg_pool2d.default": _avg_pool,
    "aten.avg_pool2d_backward.default": _avg_pool_backward,
    "aten.clone.default": _unary("poet_copy"),
    "aten.constant_pad_nd.default": _pad,
    "aten.convolution.default": _convolution,
    "aten.convolution_backward.default": _convolution_backward,
    "aten.div.Scalar": _div,
    "aten.mean.default": _mean,
    "aten.mean.dim": _mean,
    "aten.mm.default": _mm,
    "aten.mse_loss.default": _mse_loss,
    "aten.mse_loss_backward.default": _mse_loss_backward,
    "aten.mul.Scalar": _mul,
    "aten.mul.Tensor": _mul,
    "aten.native_batch_norm.default": _batch_norm,
    "aten.native_batch_norm_backward.default": _batch_norm_backward,
    "aten.neg.default": _neg,
    "aten.nll_loss_backward.default": _nll_loss_backward,
    "aten.nll_loss_forward.default": _nll_loss,
    "aten.relu.default": _unary("poet_relu"),
    "aten.sigmoid.default": _unary("poet_sigmoid"),
    "aten.sigmoid_backward.default": _backward("poet_sigmoid_backward"),
    "aten.sub.Tensor": _sub,
    "aten.sum.default": _sum,
    "aten.sum.dim_IntList": _sum,
    "aten.tanh.default": _unary("poet_tanh"),
    "aten.tanh_backward.default": _backward("poet_tanh_backward"),
    "aten.threshold_backward.default": _threshold_backward,
    "poet.adamw": _adamw,
    "poet.assign": _assign,
    "poet.bernoulli": _bernoulli,
    "poet.copy": _unary("poet_copy"),
    "poet.full": _full,
    "poet.momentum": _momentum,
    "poet.rng_state": _random_place,
    "poet.sgd": _sgd,
    "poet.with_rng_state": _again,
}
"""Per operator, how a run of it becomes calls of functions in ``kernels/``."""


FUSED = ("aten.convolution_backward.default", "aten.mm.default", "aten.sum.dim_IntList")
"""The operators whose kernels hand on the elements of a gradient."""


OVERWRITTEN: dict[str, tuple[int, ...]] = {
    "aten.add.Tensor": (0, 1),
    "aten.div.Scalar": (0,),
    "aten.mul.Scalar": (0,),
    "aten.mul.Tensor": (0, 1),
    "aten.native_batch_norm_backward.default": (0, 1),
    "aten.neg.default": (0,),
    "aten.sigmoid_backward.default": (0,),
    "aten.sub.Tensor": (0, 1),
    "aten.tanh_backward.default": (0,),
    "aten.threshold_backward.default": (0,),
}
"""Per operator, the places of the operands that its kernel may write its first output over."""


def overwrites(call: Call) -> tuple[int, ...]:
    """Places of the operands that the first output of ``call`` may lie on."""
    return OVERWRITTEN.get(call.target, ())


def strip_calls(
    name: str, strip: Strip, values: Mapping[str, Placed], outputs: Mapping[str, Placed]
) -> list[CCall]:
    """The calls of an op whose elements are used as they are made: by updates, or written over an operand.

    Args:
        name: of the op, for messages.
        strip: of one block: the first call, then those that use what it makes.
        values: the graph's, as far as calls read them.
        outputs: of the op, by name.

    Raises:
        UnsupportedOperator: as for `c_calls`.
        GraphError: likewise.
    """
    gradient, *updates = strip.links
    if strip.is_whole and updates and updates[0].call.target == "poet.assign":
        return _calls_in_place(name, strip, values, outputs)
    if not strip.is_whole or gradient.call.target not in FUSED:
        raise UnsupportedOperator(
            f"op {name}: its strip is cut for PyTorch's kernels; plan for a device with poet-c99"
        )
    inner = {value.name: value for value in strip.inner}
    known = {**values, **{value.name: Placed(value.type, 0) for value in strip.inner}}
    taken = {}
    for link in updates:
        run = OpRun(name, link.call, (), known)
        if link.call.target not in _APPLIED or not isinstance(link.call.args[1], Ref):
            raise run.refuse("that uses a gradient as it is made")
        made = inner.get(link.call.args[1].value)
        number = None if made is None else gradient.outputs.index(made.buffer)
        if number is None or number in taken:
            raise run.refuse("for a gradient that is used twice, or not made here")
        taken[number] = run
    if taken.keys() != {number for number, output in enumerate(gradient.outputs) if output is not None}:
        raise UnsupportedOperator(f"op {name}: something that it makes is of use to nobody")
    return c_calls(OpRun(name, gradient.call, (), known, taken))


def _calls_in_place(
    name: str, strip: Strip, values: Mapping[str, Placed], outputs: Mapping[str, Placed]
) -> list[CCall]:
    """The calls of an op whose first result is written over one of its operands."""
    first, *rest = strip.links
    made = first.outputs[0] if first.outputs else None
    state, source = (*rest[0].call.args, None, None)[:2]
    if len(rest) != 1 or not isinstance(state, Ref) or made is None or source != Ref(made):
        raise UnsupportedOperator(f"op {name}: it does more than to write one result over an operand")
    place = values[state.value]
    given = [first.call.args[index] for index in overwrites(first.call) if index < len(first.call.args)]
    operands = [values[item.value] for item in given if isinstance(item, Ref)]
    others = [values[ref] for ref in first.call.refs() if values[ref].word == place.word]
    if place not in operands or any(other != place for other in others):
        raise UnsupportedOperator(f"op {name}: {first.call.target} cannot be written over {state.value}")
    made_too = (None if item is None else outputs[item] for item in first.outputs[1:])
    return c_calls(OpRun(name, first.call, (place, *made_too), values))


def c_calls(run: OpRun) -> list[CCall]:
    """The calls that make one run of an op.

    Raises:
        UnsupportedOperator: the operator has no row, or its kernel does not do what the run asks for.
        GraphError: its arguments are not those of the operator.
    """
    row = ROWS.get(run.call.target)
    if row is None:
        raise run.refuse("at all")
    try:
        return row(run)
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        # the rules read arguments as torch's exporters write them; a stranger's plan may hold others
        what = f"({type(error).__name__}: {error})"
        raise GraphError(f"op {run.name}: its arguments are not those of {run.call.target} {what}") from None
