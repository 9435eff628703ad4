"""Rows of convolutions: products of matrices where the kernel is a point, else windows.

A transposed convolution is the way back of a plain one to its input; its own way back is the way there.
"""

from __future__ import annotations

from poet.c99.calls import CCall, CStruct, OpRun, Placed, pointer_or_null, pointwise
from poet.c99.rules.matrices import gradient_call
from poet.c99.rules.updates import made_by, use
from poet.graph import TensorType


def _image(shape: tuple[int, ...]) -> tuple[int, int, int, int]:
    """Images, channels, height, width; a sequence is an image of height 1."""
    return (*shape[:2], *((1, shape[2]) if len(shape) == 3 else shape[2:4]))  # type: ignore[return-value]


class _Convolution:
    """The sizes of a convolution from x to y, read from the arguments that it and its backward share.

    Of a transposed one they are those of the plain convolution from what it gives to what it is given. One
    that pads for itself has the zeros on the left, right, top and bottom as its last argument; on the left
    and at the top there are none.
    """

    def __init__(self, run: OpRun, first: int, x: TensorType, w: TensorType, y: TensorType) -> None:
        if len(x.shape) not in (3, 4) or not len(x.shape) == len(w.shape) == len(y.shape):
            raise run.refuse(f"for an input of {len(x.shape)} dimensions")
        self.is_transposed = run.argument(first + 3) is True
        if self.is_transposed:
            x, y = y, x
        elif any(run.wholes(first + 4)):
            raise run.refuse("for a padding of what a plain convolution gives")
        is_flat = len(x.shape) == 3
        strides, pads, dilations = (run.wholes(first + item) for item in range(3))
        self.stride = (1, strides[0]) if is_flat else (strides[0], strides[-1])
        self.pad = (0, pads[0]) if is_flat else (pads[0], pads[-1])
        self.behind = self._zeros_behind(run, first)
        self.dilation = (1, dilations[0]) if is_flat else (dilations[0], dilations[-1])
        self.groups = run.whole(first + 5)
        self.images, channels, self.height, self.width = _image(x.shape)
        self.kernel = _image(w.shape)[2:]
        images, out_channels, self.out_height, self.out_width = _image(y.shape)
        self.in_channels, self.out_channels = channels // self.groups, out_channels // self.groups
        self.in_plane, self.out_plane = self.height * self.width, self.out_height * self.out_width
        made = tuple(map(self._windows, (self.height, self.width), (0, 1)))
        found = (images, made, _image(w.shape)[:2], channels % self.groups, out_channels % self.groups)
        sizes = (self.out_height, self.out_width)
        if found != (self.images, sizes, (out_channels, self.in_channels), 0, 0):
            raise run.refuse(f"from {x} through {w} to {y}")

    @staticmethod
    def _zeros_behind(run: OpRun, first: int) -> tuple[int, int]:
        """Rows and columns of zeros that the op adds at the bottom and on the right."""
        if not run.call.target.startswith("poet.padded"):
            return 0, 0
        left, right, top, bottom = run.wholes(first + (6 if first == 3 else 7))
        if left or top or min(right, bottom) < 0:
            raise run.refuse("for zeros on the left or at the top, or for fewer than none")
        return bottom, right

    def _windows(self, size: int, axis: int) -> int:
        """How many windows there are along an axis."""
        reach = self.dilation[axis] * (self.kernel[axis] - 1) + 1
        return (size + 2 * self.pad[axis] + self.behind[axis] - reach) // self.stride[axis] + 1

    @property
    def is_pointwise(self) -> bool:
        """Whether it is a product of matrices for each image."""
        return self.is_point and set(self.stride) == {1}

    @property
    def is_point(self) -> bool:
        """Whether each of its windows is one place: a product of matrices for each row at least."""
        return {*self.kernel, self.groups} == {1} and not any((*self.pad, *self.behind))

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

    def there(self, y: Placed, x: Placed, w: Placed, bias: Placed | None) -> list[CCall]:
        """The calls from x to y."""
        given = pointer_or_null(bias)
        ins, outs, plane = self.in_channels, self.out_channels, self.in_plane
        if not self.is_point:
            return [CCall("poet_conv2d", (y.pointer(), x.pointer(), w.pointer(), given, self.shape()))]
        if self.is_pointwise:
            shape = self.product(outs, ins, plane, plane, 1, 1, 0, ins, 1, plane, 1)
            written = (y.pointer(), str(outs * plane), given, w.pointer(), "0")
            return [
                CCall(
                    "poet_matmul_images",
                    (*written, x.pointer(), str(ins * plane), str(self.images), shape),
                )
            ]
        columns, step, down = self.out_width, self.stride[1], self.stride[0] * self.width
        shape = self.product(outs, ins, columns, self.out_plane, 1, 1, 0, ins, 1, plane, step)
        written = (self.of_each_image(y, outs * self.out_plane), str(columns), given, w.pointer(), "0")
        read = (self.of_each_image(x, ins * plane), str(down), str(self.out_height))
        return [CCall("poet_matmul_images", (*written, *read, shape), self.loops)]

    def to_input(self, run: OpRun, gx: Placed, gy: Placed, w: Placed) -> list[CCall]:
        """The calls from y's gradient to x's."""
        ins, outs, plane = self.in_channels, self.out_channels, self.in_plane
        if not self.is_point:
            is_turned = self.stride == (1, 1)
            function = "poet_conv2d_backward_input" if is_turned else "poet_conv2d_scatter"
            shape = self.shape(is_turned=is_turned)
            return [CCall(function, (gx.pointer(), gy.pointer(), w.pointer(), shape))]
        if self.is_pointwise:
            shape = self.product(ins, outs, plane, plane, 1, 0, 0, 1, ins, plane, 1)
            written = (gx.pointer(), str(ins * plane), "0", w.pointer(), "0")
            read = (gy.pointer(), str(outs * plane), str(self.images))
            return [CCall("poet_matmul_images", (*written, *read, shape))]
        columns, step, down = self.out_width, self.stride[1], self.stride[0] * self.width
        shape = self.product(ins, outs, columns, plane, step, 0, 0, 1, ins, self.out_plane, 1)
        written = (self.of_each_image(gx, ins * plane), str(down), "0", w.pointer(), "0")
        read = (self.of_each_image(gy, outs * self.out_plane), str(columns), str(self.out_height))
        fills = pointwise(run, "poet_fill", [gx], [], "0.0f")
        return [*fills, CCall("poet_matmul_images", (*written, *read, shape), self.loops)]

    def to_weight(self, used: str, gy: Placed, x: Placed) -> CCall:
        """The call from y's gradient and x to what the weight gets."""
        ins, outs, plane = self.in_channels, self.out_channels, self.in_plane
        if self.is_pointwise:
            shape = self.product(outs, plane, ins, ins, 1, ins, 1, plane, 1, 1, plane)
            return gradient_call(used, gy, x, shape, images=self.images, steps=(outs * plane, ins * plane))
        if self.is_point and self.images == 1:
            columns, step, down = self.out_width, self.stride[1], self.stride[0] * self.width
            shape = self.product(outs, columns, ins, ins, 1, ins, 1, self.out_plane, 1, step, plane)
            return gradient_call(used, gy, x, shape, images=self.out_height, steps=(columns, down))
        return CCall("poet_conv2d_backward_weight", (used, gy.pointer(), x.pointer(), self.shape()))


def _check_bias(run: OpRun, bias: Placed | None, channels: int) -> None:
    if bias is not None and bias.type.shape != (channels,):
        raise run.refuse(f"for a bias {bias.type} of {channels} channels")


def convolution(run: OpRun) -> list[CCall]:
    """The way there."""
    x, w, bias, y = run.dense(0), run.dense(1), run.optional_dense(2), run.output()
    sizes = _Convolution(run, 3, x.type, w.type, y.type)
    _check_bias(run, bias, y.type.shape[1])
    if not sizes.is_transposed:
        return sizes.there(y, x, w, bias)
    calls = sizes.to_input(run, y, x, w)
    if bias is not None:
        counts = (sizes.images, y.type.shape[1], sizes.in_plane)
        calls.append(CCall("poet_add_channels", (y.pointer(), bias.pointer(), *map(str, counts))))
    return calls


def convolution_backward(run: OpRun) -> list[CCall]:
    """The gradients that are wanted: of the input, the weight, the bias."""
    gy = run.dense(0)
    sizes = _Convolution(run, 4, run.type_of(1), run.type_of(2), gy.type)
    calls = []
    if made_by(run, 0):
        gx, w = run.output(0), run.dense(2)
        _check_same(run, gx.type, run.type_of(1))
        calls += sizes.there(gx, gy, w, None) if sizes.is_transposed else sizes.to_input(run, gx, gy, w)
    if made_by(run, 1):
        x = run.dense(1)
        if 1 not in run.taken:
            _check_same(run, run.output(1).type, run.type_of(2))
        read = (x, gy) if sizes.is_transposed else (gy, x)
        calls.append(sizes.to_weight(use(run, 1), *read))
    if made_by(run, 2):
        if 2 not in run.taken:
            _check_bias(run, run.output(2), gy.type.shape[1])
        plane = sizes.in_plane if sizes.is_transposed else sizes.out_plane
        counts = (sizes.images, gy.type.shape[1], plane)
        calls.append(CCall("poet_channel_sums", (use(run, 2), gy.pointer(), *map(str, counts))))
    return calls


def _check_same(run: OpRun, made: TensorType, given: TensorType) -> None:
    if made.shape != given.shape:
        raise run.refuse(f"for a gradient {made} of {given}")
