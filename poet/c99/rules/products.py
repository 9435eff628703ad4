"""Rows of products of matrices, and of convolutions: products where the kernel is a point, else windows.

A transposed convolution is the backward pass of a plain one to its input, and the other way round.
"""

from __future__ import annotations

from dataclasses import replace

from poet.c99.calls import Address, CCall, CStruct, OpRun, Placed, Update, pointer_or_null, pointwise
from poet.c99.rules.updates import made_by, use
from poet.ir.graph import TensorType


def _product(run: OpRun, y: Placed, a: Placed, b: Placed, start: tuple[int, int]) -> CStruct:
    """The shape of a product of two tensors of two dimensions."""
    _check_product(run, y.type.shape, a.type.shape, b.type.shape)
    sizes = (*a.type.shape, b.type.shape[1], *y.type.strides, *start, *a.type.strides, *b.type.strides)
    return CStruct("poet_matmul_shape", tuple(map(str, sizes)))


def _check_product(run: OpRun, y: tuple[int, ...], a: tuple[int, ...], b: tuple[int, ...]) -> None:
    is_right = len(a) == len(b) == 2 and a[1] == b[0] and y == (a[0], b[1])
    if not is_right:
        raise run.refuse(f"for matrices of shapes {list(a)} and {list(b)} that give {list(y)}")


def mm(run: OpRun) -> list[CCall]:
    """A product, or the gradient of a weight."""
    if run.taken:
        return _gradient_mm(run)
    y, a, b = run.output(), run.floats(0), run.floats(1)
    shape = _product(run, y, a, b, y.type.strides[:2])  # type: ignore[arg-type]  # two dimensions
    return [CCall("poet_matmul", (y.pointer(), "0", a.pointer(), b.pointer(), shape))]


def bmm(run: OpRun) -> list[CCall]:
    """A product for each of a batch of matrices."""
    placed = (run.made()[0], run.floats(0), run.floats(1))
    if len({item.type.shape[:1] for item in placed}) != 1:
        raise run.refuse("for batches of different sizes")
    y, a, b = (Placed(_of_one(item), item.word) for item in placed)
    shape = _product(run, y, a, b, (0, 0))
    pointers = [item.pointer(item.type.strides[:1]) for item in placed]
    return [CCall("poet_matmul", (pointers[0], "0", *pointers[1:], shape), placed[0].type.shape[:1])]


def _of_one(batch: Placed) -> TensorType:
    """The type of each tensor of a batch."""
    return replace(batch.type, shape=batch.type.shape[1:], strides=batch.type.strides[1:])


def _gradient_mm(run: OpRun) -> list[CCall]:
    a, b = run.floats(0), run.floats(1)
    _check_product(run, (*a.type.shape[:1], *b.type.shape[1:]), a.type.shape, b.type.shape)
    rows, inner, columns = *a.type.shape, b.type.shape[1]
    if run.taken[0].dense(1).type.strides not in ((columns, 1), (columns,)):
        raise run.refuse("for a gradient whose columns are not neighbours")
    sizes = (rows, inner, columns, columns, 1, 0, 0, *a.type.strides, *b.type.strides)
    shape = CStruct("poet_matmul_shape", tuple(map(str, sizes)))
    return [gradient_call(use(run), a, b, shape)]


def gradient_call(
    used: Update, a: Placed, b: Placed, shape: CStruct, *, images: int = 1, steps: tuple[int, int] = (0, 0)
) -> CCall:
    """The gradient of a weight, a * b summed over images.

    Args:
        used: what becomes of its elements.
        a: left factor of the first image.
        b: right factor.
        shape: a ``poet_matmul_shape``.
        images: how many.
        steps: from one image to the next, in a and in b.
    """
    rows, inner, b_column = (int(str(shape.fields[place])) for place in (0, 1, -1))
    if images == 1 and inner == 4 and rows % 2 == 0 and b_column == 1:
        return CCall("poet_matmul_gradient_narrow", (used, a.pointer(), b.pointer(), shape))
    read = (a.pointer(), str(steps[0]), b.pointer(), str(steps[1]), str(images))
    return CCall("poet_matmul_gradient", (used, *read, shape))


def addmm(run: OpRun) -> list[CCall]:
    """A product on top of a bias."""
    y, bias, a, b = run.output(), run.floats(0), run.floats(1), run.floats(2)
    if run.number(3, 1, name="beta") != 1 or run.number(4, 1, name="alpha") != 1:
        raise run.refuse("with factors other than 1")
    sizes, strides = (1, 1, *bias.type.shape)[-2:], (0, 0, *bias.type.strides)[-2:]
    if any(size not in (1, have) for size, have in zip(sizes, y.type.shape, strict=True)):
        raise run.refuse(f"for a bias of shape {list(bias.type.shape)} beside {list(y.type.shape)}")
    row, column = (0 if size == 1 else stride for size, stride in zip(sizes, strides, strict=True))
    shape = _product(run, y, a, b, (row, column))
    return [CCall("poet_matmul", (y.pointer(), bias.pointer(), a.pointer(), b.pointer(), shape))]


def mv(run: OpRun) -> list[CCall]:
    """A product with a vector."""
    y, a, v = run.output(), run.floats(0), run.floats(1)
    column, made = _column(v), _column(y)
    shape = _product(run, made, a, column, (0, 0))
    return [CCall("poet_matmul", (y.pointer(), "0", a.pointer(), v.pointer(), shape))]


def dot(run: OpRun) -> list[CCall]:
    """The product of two vectors."""
    y, a, b = run.output(), _column(run.floats(0)), _column(run.floats(1))
    row = Placed(replace(a.type, shape=a.type.shape[::-1], strides=a.type.strides[::-1]), a.word)
    made = Placed(replace(y.type, shape=(1, 1), strides=(1, 1)), y.word)
    shape = _product(run, made, row, b, (0, 0))
    return [CCall("poet_matmul", (y.pointer(), "0", a.pointer(), b.pointer(), shape))]


def _column(v: Placed) -> Placed:
    return Placed(replace(v.type, shape=(*v.type.shape, 1), strides=(*v.type.strides, 1)), v.word)


def baddbmm(run: OpRun) -> list[CCall]:
    """A product for each of a batch, on top of a start that may be repeated."""
    if run.number(3, 1, name="beta") != 1 or run.number(4, 1, name="alpha") != 1:
        raise run.refuse("with factors other than 1")
    placed = (run.made()[0], run.floats(1), run.floats(2))
    start, made = run.floats(0), placed[0].type.shape
    missing = len(made) - len(start.type.shape)
    sizes, strides = (1,) * missing + start.type.shape, (0,) * missing + start.type.strides
    if len({item.type.shape[:1] for item in placed}) != 1:
        raise run.refuse("for batches of different sizes")
    if missing < 0 or any(size not in (1, have) for size, have in zip(sizes, made, strict=True)):
        raise run.refuse(f"for a start {start.type} beside {list(made)}")
    steps = [0 if size == 1 else stride for size, stride in zip(sizes, strides, strict=True)]
    y, a, b = (Placed(_of_one(item), item.word) for item in placed)
    shape = _product(run, y, a, b, (steps[1], steps[2]))
    pointers = [item.pointer(item.type.strides[:1]) for item in placed]
    return [CCall("poet_matmul", (pointers[0], start.pointer(steps[:1]), *pointers[1:], shape), made[:1])]


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

    def of_each_image(self, tensor: Placed, elements: int) -> Address:
        """The address of an image of so many elements, inside ``loops``."""
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
            images = (gy.pointer(), str(outs * plane), str(self.images))
            return [CCall("poet_matmul_images", (*written, *images, shape))]
        columns, step, down = self.out_width, self.stride[1], self.stride[0] * self.width
        shape = self.product(ins, outs, columns, plane, step, 0, 0, 1, ins, self.out_plane, 1)
        written = (self.of_each_image(gx, ins * plane), str(down), "0", w.pointer(), "0")
        read = (self.of_each_image(gy, outs * self.out_plane), str(columns), str(self.out_height))
        fills = pointwise(run, "poet_fill", [gx], [], "0.0f")
        return [*fills, CCall("poet_matmul_images", (*written, *read, shape), self.loops)]

    def to_weight(self, used: Update, gy: Placed, x: Placed) -> CCall:
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
