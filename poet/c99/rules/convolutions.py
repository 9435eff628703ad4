"""Rows of convolutions: products of matrices where the kernel is a point, else windows."""

from __future__ import annotations

from poet.c99.calls import CCall, CStruct, OpRun, Placed, pointer_or_null, pointwise
from poet.c99.rules.matrices import gradient_call
from poet.c99.rules.updates import made_by, use
from poet.graph import TensorType


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
        return self.is_point and set(self.stride) == {1}

    @property
    def is_point(self) -> bool:
        """Whether each of its windows is one place: a product of matrices for each row, if not for each image."""
        return {*self.kernel, self.groups} == {1} and not any(self.pad)

    @property
    def loops(self) -> tuple[int, ...]:
        """Over images, where there are several."""
        return (self.images,) if self.images > 1 else ()

    def of_each_image(self, tensor: Placed, elements: int) -> str:
        """C text of the address of an image of so many elements, inside ``loops``."""
        return tensor.pointer((elements,) if self.images > 1 else ())

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


def convolution(run: OpRun) -> list[CCall]:
    """The way there."""
    x, w, bias, y = run.dense(0), run.dense(1), run.optional_dense(2), run.output()
    sizes = _Convolution(run, 3, x.type, w.type, y.type)
    given = pointer_or_null(bias)
    ins, outs, plane = sizes.in_channels, sizes.out_channels, sizes.in_plane
    if sizes.is_point and not sizes.is_pointwise:
        columns, step, down = sizes.out_width, sizes.stride[1], sizes.stride[0] * sizes.width
        shape = sizes.product(outs, ins, columns, sizes.out_plane, 1, 1, 0, ins, 1, plane, step)
        y_pointer, x_pointer = (
            sizes.of_each_image(y, outs * sizes.out_plane),
            sizes.of_each_image(x, ins * plane),
        )
        pointers = (y_pointer, str(columns), given, w.pointer(), "0", x_pointer)
        counts = (str(down), str(sizes.out_height))
        return [CCall("poet_matmul_images", (*pointers, *counts, shape), sizes.loops)]
    if not sizes.is_pointwise:
        return [CCall("poet_conv2d", (y.pointer(), x.pointer(), w.pointer(), given, sizes.shape()))]
    shape = sizes.product(outs, ins, plane, plane, 1, 1, 0, ins, 1, plane, 1)
    steps = (str(outs * plane), given, w.pointer(), "0", x.pointer(), str(ins * plane), str(sizes.images))
    return [CCall("poet_matmul_images", (y.pointer(), *steps, shape))]


def convolution_backward(run: OpRun) -> list[CCall]:
    """The gradients that are wanted: of the input, the weight, the bias."""
    gy = run.dense(0)
    sizes = _Convolution(run, 4, run.type_of(1), run.type_of(2), gy.type)
    ins, outs, plane = sizes.in_channels, sizes.out_channels, sizes.in_plane
    columns, step, down = sizes.out_width, sizes.stride[1], sizes.stride[0] * sizes.width
    calls = []
    if made_by(run, 0):
        gx, w = run.output(0), run.dense(2)
        if sizes.is_point and not sizes.is_pointwise:
            shape = sizes.product(ins, outs, columns, plane, step, 0, 0, 1, ins, sizes.out_plane, 1)
            pointers = (sizes.of_each_image(gx, ins * plane), str(down), "0", w.pointer(), "0")
            read = (sizes.of_each_image(gy, outs * sizes.out_plane), str(columns), str(sizes.out_height))
            calls += pointwise(run, "poet_fill", [gx], [], "0.0f")
            calls.append(CCall("poet_matmul_images", (*pointers, *read, shape), sizes.loops))
        elif sizes.is_pointwise:
            shape = sizes.product(ins, outs, plane, plane, 1, 0, 0, 1, ins, plane, 1)
            steps = (str(ins * plane), "0", w.pointer(), "0", gy.pointer(), str(outs * plane))
            calls.append(CCall("poet_matmul_images", (gx.pointer(), *steps, str(sizes.images), shape)))
        else:
            is_turned = sizes.stride == (1, 1)
            function = "poet_conv2d_backward_input" if is_turned else "poet_conv2d_scatter"
            shape = sizes.shape(is_turned=is_turned)
            calls.append(CCall(function, (gx.pointer(), gy.pointer(), w.pointer(), shape)))
    if made_by(run, 1):
        x = run.dense(1)
        if sizes.is_pointwise:
            shape = sizes.product(outs, plane, ins, ins, 1, ins, 1, plane, 1, 1, plane)
            images_apart = (outs * plane, ins * plane)
            calls.append(gradient_call(use(run, 1), gy, x, shape, images=sizes.images, steps=images_apart))
        elif sizes.is_point and sizes.images == 1:
            shape = sizes.product(outs, columns, ins, ins, 1, ins, 1, sizes.out_plane, 1, step, plane)
            apart = (columns, down)
            calls.append(gradient_call(use(run, 1), gy, x, shape, images=sizes.out_height, steps=apart))
        else:
            pointers = (use(run, 1), gy.pointer(), x.pointer())
            calls.append(CCall("poet_conv2d_backward_weight", (*pointers, sizes.shape())))
    if made_by(run, 2):
        counts = (sizes.images, outs * sizes.groups, sizes.out_plane)
        calls.append(CCall("poet_channel_sums", (use(run, 2), gy.pointer(), *map(str, counts))))
    return calls
