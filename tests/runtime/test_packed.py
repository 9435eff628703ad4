"""Kernels that keep bits and bytes for backward: torch's results, and little memory, compiled or not.

A plan has what was measured at import, and does not know which kind there is where it runs.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from poet.errors import PlanError
from poet.runtime import kernels, native
from poet.runtime.kernels import packed

SPECIAL = (-math.inf, -6.0, -1.0, -0.0, 0.0, 1e-45, -1e-45, 1e-38, 0.5, 1.0, 6.0, 7.0, math.inf, math.nan)
"""Infinities, zeros of both signs, subnormal numbers, ties, NaN."""

DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


def special(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    """The special numbers in an order of chance, each many times."""
    count, generator = math.prod(shape), torch.Generator().manual_seed(seed)
    return (
        torch.tensor(SPECIAL)[torch.randint(len(SPECIAL), (count,), generator=generator)]
        .view(shape)
        .to(dtype)
    )


def same_bits(one: Tensor, other: Tensor) -> None:
    """Equal in every bit and laid out alike; a NaN is a NaN, of which torch itself makes two in bfloat16."""
    assert (one.shape, one.stride(), one.dtype) == (other.shape, other.stride(), other.dtype)
    assert torch.equal(one.isnan(), other.isnan())
    one, other = (item.masked_fill(item.isnan(), 1.0).reshape(-1) for item in (one, other))
    assert torch.equal(one.view(torch.uint8), other.view(torch.uint8))


@pytest.fixture(params=["compiled", "Python"], autouse=True)
def _kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test with either kind of kernel."""
    if request.param == "Python":
        monkeypatch.setattr(packed, "_library", lambda: None)
    elif not native.available():
        pytest.skip(native.why_unavailable())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1,), (3, 5), (2, 8), (4, 1027), (2, 3, 1 << 14)])
def test_a_rectifiers_gradient_follows_from_its_bits(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    """At lengths within a byte, of whole bytes, and over several blocks with a rest."""
    x, gradient = special(*shape, dtype=dtype), special(*shape, dtype=dtype, seed=1)
    y = torch.relu(x)
    wanted = torch.ops.aten.threshold_backward(gradient, y, 0)
    for rows in {1, shape[0]}:
        output, bits = packed.relu(x, rows)
        same_bits(output, y)
        assert bits.numel() == rows * math.ceil(y.numel() / rows / 8)
        same_bits(packed.relu_backward(gradient, bits), wanted)


def test_a_gradient_of_any_strides_is_read_as_it_is_meant() -> None:
    y, bits = packed.relu(special(40), 1)
    wide = special(40, 3, seed=2)
    for gradient in (wide[:, 1], wide[0, :1].expand(40)):
        wanted = torch.ops.aten.threshold_backward(gradient, y, 0).contiguous()
        same_bits(packed.relu_backward(gradient, bits), wanted)
        same_bits(
            packed.masked(gradient, bits, 2.0), gradient * (2.0 * packed.relu_backward(torch.ones(40), bits))
        )


def test_rows_serve_gradients_that_are_slices_of_something_wider() -> None:
    y, bits = packed.relu(special(3, 4, 5), 3)
    wide = special(3, 9, 5, seed=2)
    wanted = torch.ops.aten.threshold_backward(wide[:, 2:6], y, 0).contiguous()
    same_bits(packed.relu_backward(wide[:, 2:6], bits), wanted)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("share", [0.9, 0.5, 0.3])
@pytest.mark.parametrize("shape", [(7,), (3, 11), (5, 1 << 14)])
def test_dropout_draws_and_multiplies_as_torch_does(
    dtype: torch.dtype, share: float, shape: tuple[int, ...]
) -> None:
    """Forward and backward; dropped infinities are NaN and dropped negative numbers -0.0, as in eager."""
    x = special(*shape, dtype=dtype)
    factor = torch.ones((), dtype=dtype).div_(share).item()
    for rows in {1, shape[0]}:
        torch.manual_seed(3)
        mask = torch.empty(shape, dtype=dtype).bernoulli_(share)
        after = torch.get_rng_state()
        torch.manual_seed(3)
        bits = kernels.OWN_KERNELS["poet.bernoulli_bits"](shape, dtype, share, rows)
        assert torch.equal(torch.get_rng_state(), after)
        same_bits(packed.masked(x, bits, factor), x * mask.div_(share))


def test_dropout_draws_again_from_a_saved_state() -> None:
    given = ((4, 999), torch.float32, 0.7, 4)
    state = torch.get_rng_state()
    first = kernels.OWN_KERNELS["poet.bernoulli_bits"](*given)
    again = kernels.OWN_KERNELS["poet.with_rng_state"](state, "poet.bernoulli_bits", *given)
    assert torch.equal(first, again)


WINDOWS = tuple(
    itertools.product(((2, 2), (1, 1), (2, 3)), ((0, 0), (1, 0), (1, 1)), ((1, 1), (2, 1)), (False, True))
)
"""Stride, padding, dilation, and whether a window may reach over the end."""


@pytest.mark.parametrize("kernel", [(2, 2), (3, 3), (3, 2), (1, 5)], ids=str)
def test_places_in_windows_serve_as_indices_do(kernel: tuple[int, int]) -> None:
    """Ties, NaN, windows of infinities alone, padding, gaps and windows that reach over the end."""
    lowest = torch.full((1, 1, 6, 7), -math.inf)
    for stride, padding, dilation, ceil_mode in WINDOWS:
        if any(2 * pad > size for pad, size in zip(padding, kernel, strict=True)):
            continue
        settings = (kernel, stride, padding, dilation, ceil_mode)
        for x in (special(2, 3, 9, 11), special(1, 2, 7, 8).clamp_max(0.0), lowest):
            wanted, indices = torch.ops.aten.max_pool2d_with_indices(x, *settings)
            found, places = packed.max_pool(x, *settings)
            same_bits(found, wanted)
            assert places.dtype == torch.uint8
            gradient = special(*wanted.shape, seed=4)
            back = torch.ops.aten.max_pool2d_with_indices_backward(gradient, x, *settings, indices)
            same_bits(packed.max_pool_backward(gradient, x, *settings, places), back)


@pytest.mark.parametrize("dtype", DTYPES)
def test_pooling_goes_by_channels_over_large_planes(dtype: torch.dtype) -> None:
    x = special(2, 5, 150, 130, dtype=dtype)
    settings = ((3, 3), (2, 2), (1, 1), (1, 1), False)
    wanted, indices = F.max_pool2d(x, 3, 2, 1, return_indices=True)
    found, places = packed.max_pool(x, *settings)
    same_bits(found, wanted)
    wide = special(2, 9, *wanted.shape[2:], dtype=dtype, seed=5)
    back = torch.ops.aten.max_pool2d_with_indices_backward(wide[:, 2:7], x, *settings, indices)
    same_bits(packed.max_pool_backward(wide[:, 2:7], x, *settings, places), back)


def test_a_strangers_bits_and_places_reach_no_other_memory() -> None:
    x = special(1, 2, 4, 4)
    with pytest.raises(PlanError, match="bits of shape"):
        packed.relu_backward(x, torch.zeros(1, 3, dtype=torch.uint8))
    with pytest.raises(PlanError, match="bits of shape"):
        packed.masked(x, torch.zeros(3, 2, dtype=torch.uint8), 1.0)
    settings = ((2, 2), (2, 2), (1, 1), (1, 1), False)
    gradient = torch.ones(1, 2, 3, 3)
    with pytest.raises(PlanError, match="places of shape"):
        packed.max_pool_backward(gradient, x, *settings, torch.zeros(1, 2, 2, 2, dtype=torch.uint8))
    for place in (0, 200):  # of the first window in the padding before the plane; of no window at all
        places = torch.full((1, 2, 3, 3), place, dtype=torch.uint8)
        assert packed.max_pool_backward(gradient, x, *settings, places).sum() == gradient.sum()
    with pytest.raises(PlanError, match="no pooling has windows"):
        packed.max_pool(x, (2, 2), (0, 0), *settings[2:])


def test_nothing_is_as_good_as_something() -> None:
    output, bits = packed.relu(torch.empty(2, 0), 1)
    assert output.shape == (2, 0)
    assert packed.relu_backward(torch.empty(2, 0), bits).shape == (2, 0)


# --- memory --------------------------------------------------------------------------------------


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


@pytest.mark.parametrize("_kernels", ["compiled"], indirect=True)
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
    call = made(dtype)
    compiled_bytes, results_bytes = _peak_bytes(call)
    monkeypatch.setattr(packed, "_library", lambda: None)
    python_bytes, _ = _peak_bytes(call)
    assert abs(python_bytes - compiled_bytes) <= SCALARS_BYTES
    assert python_bytes - results_bytes <= most_kib * KIB
