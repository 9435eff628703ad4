"""Tiles of vector registers give the bits of the kernels that go element by element."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Mapping

import numpy as np
import pytest
from helpers.c_build import EXACT, STRICT, Floats

from poet.c99.sources import header_text, needed, source_text

NAMES = (
    "poet_conv2d", "poet_conv2d_backward_input", "poet_conv2d_scatter", "poet_conv2d_backward_weight",
    "poet_matmul", "poet_matmul_gradient", "poet_apply_store",
)  # fmt: skip
SHAPES = 30


class _Update(ctypes.Structure):
    """A ``poet_update``."""

    _fields_ = (
        ("apply", ctypes.c_void_p), ("p", ctypes.c_void_p), ("m", ctypes.c_void_p), ("v", ctypes.c_void_p),
        ("numbers", ctypes.c_float * 2),
    )  # fmt: skip


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, ctypes.CDLL]:
    """The kernels by tiles, and without."""
    folder = tmp_path_factory.mktemp("tiles")
    used = needed(NAMES)
    (folder / "poet_kernels.h").write_text(header_text(used))
    (folder / "poet_kernels.c").write_text(source_text(used))
    found = {}
    for name, flags in (("tiles", ("-O3", "-DPOET_WIDE=1")), ("elements", ("-O2", "-DPOET_WIDE=0"))):
        library = folder / f"{name}.so"
        command = ["gcc", *STRICT, *EXACT, *flags, "-fPIC", "-shared", str(folder / "poet_kernels.c"), "-o"]
        done = subprocess.run([*command, str(library)], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        found[name] = ctypes.CDLL(str(library))
    return found


def _pointer(values: Floats) -> ctypes.c_void_p:
    return ctypes.c_void_p(values.ctypes.data)


def _made(library: ctypes.CDLL, name: str, size: int, left: Floats, right: Floats, *rest: object) -> Floats:
    """What a kernel writes from two tensors and its shape; gradients of weights go through an update."""
    made: Floats = np.full(size, np.nan, dtype=np.float32)
    first: object = _pointer(made)
    if name in ("poet_conv2d_backward_weight", "poet_matmul_gradient"):
        store = ctypes.cast(library.poet_apply_store, ctypes.c_void_p)
        first = ctypes.byref(_Update(store, made.ctypes.data, None, None, (ctypes.c_float * 2)()))
    if name == "poet_matmul_gradient":
        library.poet_matmul_gradient(first, _pointer(left), 0, _pointer(right), 0, 1, *rest)
    else:
        getattr(library, name)(first, _pointer(left), _pointer(right), *rest)
    assert np.isfinite(made).all(), name
    return made


def _same(libraries: Mapping[str, ctypes.CDLL], name: str, size: int, *arguments: object) -> None:
    tiles, elements = (_made(libraries[key], name, size, *arguments) for key in ("tiles", "elements"))  # type: ignore[arg-type]
    np.testing.assert_array_equal(tiles.view(np.uint32), elements.view(np.uint32), err_msg=name)


def _plane(rng: np.random.Generator) -> list[int]:
    """Sizes of a plane with a place: in, out, kernel, stride, pad, dilation, by rows and columns."""
    while True:
        kernel = [3, 3] if rng.random() < 0.6 else rng.integers(1, 6, 2).tolist()
        dilation = [1, 1] if rng.random() < 0.7 else rng.integers(1, 4, 2).tolist()
        stride, pad = rng.integers(1, 4, 2).tolist(), rng.integers(0, 3, 2).tolist()
        if rng.random() < 0.7:
            stride, pad = [stride[0]] * 2, [min(pad[0], 1)] * 2
        size = [int(rng.integers(3, 40)), int(rng.integers(3, 140 if rng.random() < 0.2 else 40))]
        reach = [d * (k - 1) + 1 for d, k in zip(dilation, kernel, strict=True)]
        behind = int(rng.random() < 0.2)  # zeros at the bottom and on the right, as TensorFlow pads
        out = [(n + 2 * p + behind - r) // s + 1 for n, p, r, s in zip(size, pad, reach, stride, strict=True)]
        if min(out) > 0 and all(n + 2 * p + behind >= r for n, p, r in zip(size, pad, reach, strict=True)):
            return [*size, *out, *kernel, *stride, *pad, *dilation]


@pytest.mark.parametrize("seed", range(4))
def test_convolutions_have_the_same_bits(libraries: Mapping[str, ctypes.CDLL], seed: int) -> None:
    """Random shapes, groups, strides, pads and dilations; there, back to the input and to the weight."""
    rng = np.random.default_rng(seed)
    for _ in range(SHAPES):
        plane = _plane(rng)
        height, width, out_height, out_width, *kernel = plane[:6]
        images, groups, ins, outs = (int(rng.integers(1, top)) for top in (4, 3, 21, 40))
        shape = (ctypes.c_int32 * 16)(images, groups, ins, outs, *plane)
        x, y, w = (
            rng.standard_normal(size, dtype=np.float32)
            for size in (
                images * groups * ins * height * width, images * groups * outs * out_height * out_width,
                groups * outs * ins * kernel[0] * kernel[1],
            )
        )  # fmt: skip
        bias = rng.standard_normal(groups * outs, dtype=np.float32)
        _same(libraries, "poet_conv2d", y.size, x, w, _pointer(bias), shape)
        _same(libraries, "poet_conv2d_scatter", x.size, y, w, shape)
        _same(libraries, "poet_conv2d_backward_weight", w.size, y, x, shape)
        if plane[6:8] == [1, 1]:
            pads = [d * (k - 1) - p for d, k, p in zip(plane[10:], kernel, plane[8:10], strict=True)]
            back = (out_height, out_width, height, width, *kernel, 1, 1, *pads, *plane[10:])
            turned = (ctypes.c_int32 * 16)(images, groups, ins, outs, *back)
            _same(libraries, "poet_conv2d_backward_input", x.size, y, w, turned)


def test_products_have_the_same_bits(libraries: Mapping[str, ctypes.CDLL]) -> None:
    """Every order of rows and columns in memory."""
    rng = np.random.default_rng(0)
    for _ in range(SHAPES):
        rows, inner, columns = (int(size) for size in rng.integers(1, 90, 3))
        a, b = (rng.standard_normal(size, dtype=np.float32) for size in (rows * inner, inner * columns))
        start = rng.standard_normal(columns, dtype=np.float32)
        of_a = (inner, 1) if rng.random() < 0.5 else (1, rows)
        of_b = (columns, 1) if rng.random() < 0.5 else (1, inner)
        shape = (ctypes.c_int32 * 11)(rows, inner, columns, columns, 1, 0, 1, *of_a, *of_b)
        _same(libraries, "poet_matmul", rows * columns, start, a, _pointer(b), shape)
        _same(libraries, "poet_matmul_gradient", rows * columns, a, b, shape)
