"""Rows of products of matrices."""

from __future__ import annotations

from dataclasses import replace

from poet.c99.calls import CCall, CStruct, OpRun, Placed
from poet.c99.rules.updates import use
from poet.graph import TensorType


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
    used: str, a: Placed, b: Placed, shape: CStruct, *, images: int = 1, steps: tuple[int, int] = (0, 0)
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
