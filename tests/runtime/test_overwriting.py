"""Kernels that write their result over an operand: the bits of those that do not, and no memory beside it."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from poet.errors import PlanError
from poet.ir import strips
from poet.ir.graph import Call, Link, Ref, Strip, Symbol, TensorType, Value
from poet.ir.operators import ATEN, OWN
from poet.runtime import kernels, native
from poet.runtime.kernels import overwriting, packed
from poet.runtime.kernels.strips import StripRun, signature
from poet.runtime.trials.measure import recorded

SPECIAL = (-math.inf, -6.0, -1.0, -0.0, 0.0, 1e-45, 0.5, 1.0, 6.0, math.inf, math.nan)
SHAPES = ((7,), (3, 33, 5), (2, 8, 40, 40))
REST: dict[str, tuple[object, ...]] = {
    "aten._log_softmax_backward_data.default": (-1, torch.float32),
    "aten._softmax_backward_data.default": (-1, torch.float32),
    "aten.hardtanh_backward.default": (-1.0, 1.0),
    "aten.leaky_relu_backward.default": (0.01, False),
    "aten.threshold_backward.default": (0,),
}
"""Arguments after two tensors."""
SCALAR = ("aten.div.Scalar", "aten.mul.Scalar")
BATCH_NORM = "aten.native_batch_norm_backward.default"
OTHERS = ("aten.elu_backward.default", BATCH_NORM, "poet.masked", "poet.relu_backward")
PLAIN = sorted({*overwriting.ROWS} - {*OTHERS, *SCALAR, "aten.neg.default"})


@pytest.fixture(autouse=True, params=[1, 2])
def _threads(request: pytest.FixtureRequest) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(before)


def numbers(*shape: int, seed: int = 0, special: bool = True) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    found = torch.randn(shape, generator=generator)
    if special:
        some = torch.tensor(SPECIAL)[torch.randint(len(SPECIAL), shape, generator=generator)]
        found = torch.where(torch.rand(shape, generator=generator) < 0.2, some, found)
    return found


def bits(tensor: Tensor) -> Tensor:
    return tensor.view(torch.int32)


def agree(target: str, *args: object, at: int = 0) -> None:
    """The result over operand ``at`` has the bits of the result that is made apart."""
    wanted = kernels.kernel(target)(*args)
    given = [item.clone() if isinstance(item, Tensor) else item for item in args]
    out = given[at]
    assert isinstance(out, Tensor)
    place = out.data_ptr()
    found = overwriting.kernel(target)(*given, out=out)
    wanted, found = kernels.outputs_of(wanted), kernels.outputs_of(found)
    assert found[0] is out
    assert out.data_ptr() == place
    assert len(wanted) == len(found)
    for one, other in zip(wanted, found, strict=True):
        assert (one is None) == (other is None)
        assert one is None or other is None or torch.equal(bits(one), bits(other)), target


@pytest.mark.parametrize("target", PLAIN)
def test_a_result_over_an_operand_has_the_same_bits(target: str) -> None:
    for shape in SHAPES:
        for place in overwriting.ROWS[target].places:
            args = (numbers(*shape), numbers(*shape, seed=1), *REST.get(target, ()))
            agree(target, *args, at=place)


def test_a_softmax_along_any_dimension() -> None:
    for dim in range(3):
        for target in ("aten._softmax_backward_data.default", "aten._log_softmax_backward_data.default"):
            agree(target, numbers(3, 33, 5), numbers(3, 33, 5, seed=1), dim, torch.float32)


def test_with_one_tensor_numbers_and_broadcasts() -> None:
    for shape in SHAPES:
        x = numbers(*shape)
        agree("aten.neg.default", x)
        for target in SCALAR:
            agree(target, x, 0.3)
        agree("aten.mul.Tensor", x, numbers(*shape[:-1], 1, seed=2))
        agree("aten.elu_backward.default", x, 1.0, 1.0, 1.0, False, numbers(*shape, seed=1))


@pytest.mark.parametrize("is_compiled", [True, False])
def test_own_kernels_of_short_forms(is_compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not is_compiled:
        monkeypatch.setattr(packed, "_library", lambda: None)
    elif not native.available():
        pytest.skip(native.why_unavailable())
    x, gradient = numbers(4, 1027), numbers(4, 1027, seed=1)
    _, signs = packed.relu(x, 1)
    agree("poet.relu_backward", gradient, signs)
    agree("poet.masked", gradient, signs, 1.25)


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("mask", [[True, True, True], [True, False, True]])
def test_batch_norm_by_channels(batch: int, mask: list[bool], monkeypatch: pytest.MonkeyPatch) -> None:
    """In blocks that do not divide the channels, contiguous and with channels last."""
    monkeypatch.setattr(strips, "_COPIED_BLOCK_BYTES", 4096)
    for layout in (torch.contiguous_format, torch.channels_last):
        x, gradient = (
            numbers(batch, 37, 16, 16, seed=seed, special=False).contiguous(memory_format=layout)
            for seed in (0, 1)
        )
        weight = numbers(37, seed=2, special=False)
        mean, invstd = x.mean((0, 2, 3)), x.var((0, 2, 3), unbiased=False).add(1e-5).rsqrt()
        args = (gradient, x, weight, None, None, mean, invstd, True, 1e-5, mask)
        if layout is torch.contiguous_format:
            agree(BATCH_NORM, *args)
        else:  # torch has another kernel for it: the trial decides whether its bits are those of blocks
            found = overwriting.kernel(BATCH_NORM)(*args, out=gradient.clone())
            torch.testing.assert_close(found[0], kernels.kernel(BATCH_NORM)(*args)[0])


def test_nothing_is_allocated() -> None:
    allocator = native.load()
    if allocator is None:
        pytest.skip(native.why_unavailable())
    for target in PLAIN:
        args = (numbers(64, 64), numbers(64, 64, seed=1), *REST.get(target, ()))
        run = overwriting.kernel(target)
        run(*args, out=args[0])  # libraries make their own tables

        def once(run: Callable[..., Any] = run, args: tuple[Any, ...] = args) -> tuple[Tensor | None, ...]:
            run(*args, out=args[0])
            return ()

        assert recorded(allocator, once) == (), target


def test_rows_are_operators() -> None:
    assert set(overwriting.ROWS) <= ATEN | OWN.keys()
    assert set(overwriting.ROWS) >= overwriting.COPIED
    assert overwriting.overwrites(Call("aten.relu.default", (Ref("x"),))) == ()


def test_a_result_of_another_shape_is_refused() -> None:
    """A stranger's plan may ask for it; torch would make the operand larger."""
    run = overwriting.kernel("aten.add.Tensor")
    out = torch.zeros(2, 1)
    with pytest.raises((PlanError, RuntimeError)):
        run(torch.zeros(2, 3), torch.zeros(2, 3), out=out)


def test_which_strips_write_over_an_operand() -> None:
    kind = TensorType("float32", (4,), (1,))
    made = Value("r", "r", kind)

    def strip(state: str, target: str = "aten.threshold_backward.default", source: str = "r") -> Strip:
        call = Call(target, (Ref("g"), Ref("y"), 0))
        assign = Call("poet.assign", (Ref(state), Ref(source)))
        return Strip((Link(call, ("r",), ()), Link(assign, (), ())), (made,), 1, 1)

    types = dict.fromkeys("gy", kind)
    assert overwriting.operand_of(strip("g"), types) == "g"
    assert overwriting.operand_of(strip("y"), types) is None, "its kernel reads y after it has written"
    assert overwriting.operand_of(strip("g", source="y"), types) is None
    assert overwriting.operand_of(strip("g", target="aten.where.self"), types) is None
    other = TensorType("float32", (2, 2), (2, 1))
    assert overwriting.operand_of(strip("g"), {"g": other, "y": kind}) is None


LOG_SOFTMAX = "aten._log_softmax_backward_data.default"
MADE_OVER: dict[str, tuple[Any, ...]] = {
    LOG_SOFTMAX: (Ref("y"), 1, Symbol("dtype", "float32")),
    "aten._softmax_backward_data.default": (Ref("y"), 1, Symbol("dtype", "float32")),
    "poet.masked": (Ref("bits"), 2.0),
    "poet.relu_backward": (Ref("bits"),),
    "aten.mul.Tensor": (Ref("y"),),
}
"""Arguments after the operand that is written over."""
BESIDE = {"y": TensorType("float32", (4, 8), (8, 1)), "bits": TensorType("uint8", (1, 4), (4, 1))}


@pytest.mark.parametrize("target", MADE_OVER)
def test_where_the_operand_does_not_lie_as_the_kernel_writes_a_copy_is_made(target: str) -> None:
    memory = torch.arange(1.0, 257.0)
    given = {"y": numbers(4, 8, special=False), "bits": torch.tensor([[7, 9, 0, 255]], dtype=torch.uint8)}
    wanted = {name: given[name] for name in ("y", "bits")}
    for strides in ((8, 1), (1, 4), (16, 2), (16, 1), (0, 0), (1, 1), (0, 1)):
        kind = TensorType("float32", (4, 8), strides)
        call = Call(target, (Ref("g"), *MADE_OVER[target]))
        assign = Call("poet.assign", (Ref("g"), Ref("r")))
        strip = Strip((Link(call, ("r",), ()), Link(assign, (), ())), (Value("r", "r", kind),), 1, 1)
        types = BESIDE | {"g": kind}
        has_kernel = not kind.overlaps_itself and (strides == (8, 1) or target == "aten.mul.Tensor")
        assert overwriting.operand_of(strip, types) == ("g" if has_kernel else None), strides
        around = memory.clone()
        tensors = wanted | {"g": around.as_strided((4, 8), strides)}
        made = kernels.run(call, (wanted | {"g": memory.as_strided((4, 8), strides)}).__getitem__, no_scalar)
        run = StripRun(strip, (), types)
        if kind.overlaps_itself:
            extent = kind.extent_bytes // 4
            with contextlib.suppress(RuntimeError):  # torch sees most of them
                run.run(tensors.__getitem__, no_scalar)
            assert torch.equal(around[extent:], memory[extent:]), strides
            continue
        (result,) = kernels.outputs_of(made)
        assert result is not None
        run.run(tensors.__getitem__, no_scalar)
        expected = memory.clone()
        expected.as_strided((4, 8), strides).copy_(result)
        assert torch.equal(around, expected), "and nothing beside it"


def no_scalar(name: str) -> float:
    raise AssertionError(name)


def test_a_strip_that_is_given_its_operand_twice_is_another() -> None:
    kind = TensorType("float32", (4, 8), (8, 1))
    call = Call(LOG_SOFTMAX, (Ref("g"), *MADE_OVER[LOG_SOFTMAX]))
    assign = Call("poet.assign", (Ref("g"), Ref("r")))
    strip = Strip((Link(call, ("r",), ()), Link(assign, (), ())), (Value("r", "r", kind),), 1, 1)

    def told_apart(g: str, y: str) -> object:
        return signature(strip, (), {"g": Value("g", g, kind), "y": Value("y", y, kind)})

    assert told_apart("g", "y") == told_apart("one", "other")
    assert told_apart("g", "g") == told_apart("one", "one")
    assert told_apart("g", "y") != told_apart("g", "g"), "y changes while it is read"
