"""Kernels that keep bits and bytes: compiled or not, they take the same memory.

A plan has what was measured at import, and does not know which kind there is where it runs.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from poet.runtime import native
from poet.runtime.kernels import packed

KIB = 1 << 10
SCALARS_BYTES = KIB
"""For numbers that torch makes tensors of, in the Python kernels alone."""
POOL = ((3, 3), (2, 2), (1, 1), (1, 1), False)


def _rectifier(dtype: torch.dtype) -> Callable[[], object]:
    x = torch.ones(4, 33, 1000, dtype=dtype)
    return lambda: packed.relu(x, 4)


def _rectifier_back(dtype: torch.dtype) -> Callable[[], object]:
    _, bits = packed.relu(torch.ones(4, 33, 1000, dtype=dtype), 4)
    gradient = torch.ones(4, 40, 1000, dtype=dtype)[:, 3:36]
    return lambda: packed.relu_backward(gradient, bits)


def _mask(dtype: torch.dtype) -> Callable[[], object]:
    _, bits = packed.relu(torch.ones(1, 100, 1000, dtype=dtype), 1)
    wide = torch.ones(1, 1000, 200, dtype=dtype)[:, :, ::2].transpose(1, 2)
    return lambda: packed.masked(wide, bits, 2.0)


def _pool(dtype: torch.dtype) -> Callable[[], object]:
    x = torch.ones(2, 24, 112, 112, dtype=dtype)
    return lambda: packed.max_pool(x, *POOL)


def _pool_back(dtype: torch.dtype) -> Callable[[], object]:
    """Of a gradient that is a slice of something wider, in two samples."""
    x = torch.ones(2, 24, 112, 112, dtype=dtype)
    _, places = packed.max_pool(x, *POOL)
    gradient = torch.ones(2, 30, 56, 56, dtype=dtype)[:, 5:29]
    return lambda: packed.max_pool_backward(gradient, x, *POOL, places)


def _peak_bytes(call: Callable[[], object]) -> tuple[int, int]:
    """The most in use beside what was there before, and how much of it is results."""
    allocator = native.load()
    assert allocator is not None
    call()
    with allocator.tracking() as tracked:
        result = call()
        peak_bytes = tracked.peak_bytes
    results = result if isinstance(result, tuple) else (result,)
    return peak_bytes, sum(item.nbytes for item in results if isinstance(item, Tensor))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    ("made", "most_kib"),
    [(_rectifier, 16), (_rectifier_back, 80), (_mask, 900), (_pool, 1200), (_pool_back, 500)],
)
def test_both_kinds_of_kernels_take_the_same_memory(
    made: Callable[[torch.dtype], Callable[[], object]],
    most_kib: int,
    dtype: torch.dtype,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And little beside their results; the mask's input is copied whole, as its elements lie apart."""
    if not native.available():
        pytest.skip(native.why_unavailable())
    call = made(dtype)
    compiled_bytes, results_bytes = _peak_bytes(call)
    monkeypatch.setattr(packed, "_library", lambda: None)
    python_bytes, _ = _peak_bytes(call)
    assert abs(python_bytes - compiled_bytes) <= SCALARS_BYTES
    assert python_bytes - results_bytes <= most_kib * KIB
