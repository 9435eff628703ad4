"""The allow-list: what it holds, what it refuses, and that our own operators are torch's arithmetic."""

from __future__ import annotations

import inspect
import itertools
import resource
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from poet.errors import InputError, PlanError
from poet.frontend.plain import torch_optimizer
from poet.ir import operators
from poet.ir.graph import Call, Ref, Symbol, TensorType
from poet.ir.operators import OWN, WRITES
from poet.ir.optimizer import OptimizerSpec
from poet.ir.optimizer_kinds import KINDS
from poet.passes.layouts import tensor_type
from poet.runtime import kernels
from poet.runtime.kernels import arguments


def test_every_row_exists_and_is_functional() -> None:
    for target in operators.ATEN:
        schema = getattr(kernels.kernel(target), "_schema", None)
        if schema is not None:
            assert not schema.is_mutable, target
            assert all(item.alias_info is None for item in schema.returns), target


def test_our_own_operators_have_a_kernel_each_with_the_arguments_they_name() -> None:
    assert kernels.OWN_KERNELS.keys() == OWN.keys()
    for target, named in OWN.items():
        parameters = inspect.signature(kernels.OWN_KERNELS[target]).parameters.values()
        assert tuple(str(item).split(":")[0] for item in parameters) == named, target


@pytest.mark.parametrize("target", WRITES)
def test_an_operator_writes_what_it_is_said_to_write_and_nothing_else(target: str) -> None:
    settings = (0.1,) * (len(OWN.get(target, ())) - 1)
    counts = {
        "poet.assign": 2, "poet.accumulate": 2, "poet.sgd": 2, "poet.momentum": 3, "poet.adamw": 4,
        "poet.adam": 4, "poet.rmsprop": 5, "poet.adagrad": 3, "poet.lion": 3,
        "poet.adamw_amsgrad": 5, "poet.adam_amsgrad": 5, "poet.adadelta": 4, "poet.adamax": 4,
        "poet.nadam": 4, "poet.radam": 4,
    }  # fmt: skip
    if target in counts:
        tensors = tuple(torch.rand(5) + 1.0 for _ in range(counts[target]))
        given: tuple[Any, ...] = (*tensors, *settings[counts[target] - 1 :])
    else:
        given = (torch.rand(2, 5, 3, 3), *(torch.rand(5) + 1.0 for _ in range(4)), True, 0.1, 1e-5)
    before = [item.clone() if isinstance(item, Tensor) else item for item in given]
    kernels.kernel(target)(*given)
    changed = [
        place
        for place, (old, new) in enumerate(zip(before, given, strict=True))
        if isinstance(new, Tensor) and not torch.equal(old, new)
    ]
    assert tuple(changed) == WRITES[target]


def test_whatever_writes_its_arguments_is_listed() -> None:
    for target in (*operators.ATEN, *OWN):
        schema = getattr(kernels.kernel(target), "_schema", None)
        assert schema is None or not schema.is_mutable or target in WRITES, target
    assert set(WRITES) <= operators.ATEN | set(OWN)
    assert {f"poet.{name}" for name in KINDS} <= set(WRITES)


@pytest.mark.parametrize(
    "target",
    [
        "aten.from_file.default",
        "aten.set_.source_Storage",
        "os.system",
        "aten.relu",
        "",
        "prim.device.default",
    ],
)
def test_other_names_are_refused(target: str) -> None:
    with pytest.raises(PlanError, match="is not one that poet runs"):
        kernels.kernel(target)


@pytest.mark.parametrize(
    ("refused", "message"),
    [
        (lambda: kernels.kernel("aten.relu.defualt"), r"did you mean 'aten\.relu\.default'"),
        (
            lambda: kernels.OWN_KERNELS["poet.with_rng_state"](
                torch.get_rng_state(), "aten.relu.default", torch.ones(1)
            ),
            "is not random",
        ),
        (lambda: arguments.constant(Symbol("device", "cuda")), "is not one that poet runs"),
        (lambda: arguments.constant(Symbol("layout", "sparse_coo")), "is not one that poet runs"),
        (lambda: arguments.constant(Symbol("dtype", "complex64")), "complex64"),
    ],
)
def test_what_is_outside_of_the_tables_is_refused(refused: Callable[[], object], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        refused()


# --- blanks -----------------------------------------------------------------------------------


def test_a_blank_takes_no_memory() -> None:
    size_bytes = 1 << 38  # more than any machine that runs this has
    tensor = arguments.blank(TensorType("float32", (size_bytes // 4,), (1,)))
    assert tensor.nbytes == size_bytes
    assert tensor[-1].item() == 0.0
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 < size_bytes / 4


def test_a_blank_is_of_its_type() -> None:
    type_ = TensorType("int64", (2, 3), (1, 4), 5)
    assert tensor_type(arguments.blank(type_), "blank") == type_


def _pooled(dimensions: int) -> Tensor:
    return torch.randn(2, 3, *[9] * dimensions)


def _shape_only_calls() -> Iterator[tuple[str, tuple[object, ...], int]]:
    """A call for each row of the table: operator, arguments, place of the argument that is not read."""
    aten = torch.ops.aten
    for dimensions in (2, 3):
        x, name = _pooled(dimensions), f"{dimensions}d"
        window = ([3] * dimensions, [2] * dimensions, [1] * dimensions)
        y, indices = getattr(aten, f"max_pool{name}_with_indices").default(x, *window)
        dilated = ([1] * dimensions, False, indices)
        given: tuple[object, ...] = (torch.randn_like(y), x, *window, *dilated)
        yield f"aten.max_pool{name}_with_indices_backward.default", given, 1
        y = getattr(aten, f"avg_pool{name}").default(x, *window)
        given = (torch.randn_like(y), x, *window, False, True, None)
        yield f"aten.avg_pool{name}_backward.default", given, 1
        y = getattr(aten, f"_adaptive_avg_pool{name}").default(x, [2] * dimensions)
        yield f"aten._adaptive_avg_pool{name}_backward.default", (torch.randn_like(y), x), 1
    x = _pooled(2)
    y, indices = aten.adaptive_max_pool2d.default(x, [2, 2])
    yield "aten.adaptive_max_pool2d_backward.default", (torch.randn_like(y), x, indices), 1
    for name, x in (("nll_loss", torch.randn(4, 5)), ("nll_loss2d", torch.randn(2, 5, 3, 3))):
        targets = torch.randint(5, (4,) if name == "nll_loss" else (2, 3, 3))
        _, weight = getattr(aten, f"{name}_forward").default(x, targets, None, 1, -100)
        given = (torch.tensor(1.5), x, targets, None, 1, -100, weight)
        yield f"aten.{name}_backward.default", given, 1


def test_contents_of_shape_only_arguments_are_not_read() -> None:
    seen = set()
    for target, given, place in _shape_only_calls():
        kernel, original = kernels.kernel(target), given[place]
        assert isinstance(original, Tensor)
        blank = arguments.blank(tensor_type(original, target))
        assert torch.equal(kernel(*given), kernel(*given[:place], blank, *given[place + 1 :])), target
        seen.add(target)
    assert seen == {name for name, spec in operators.SPECS.items() if spec.shape_only}


def _convolutions() -> Iterator[tuple[object, ...]]:
    kernels_strides_dilations = ((1, 1, 1), (1, 2, 1), (3, 1, 1), (3, 2, 1), (3, 1, 2))
    for kernel, stride, dilation in kernels_strides_dilations:
        for transposed, channels_last, groups in itertools.product((False, True), (False, True), (1, 2, 8)):
            across = 12 if groups == 1 else 8
            shape = (8, across // groups) if transposed else (across, 8 // groups)
            x, weight = torch.randn(2, 8, 9, 9), torch.randn(*shape, kernel, kernel)
            if channels_last:
                x = x.to(memory_format=torch.channels_last)
            padding = [dilation * (kernel // 2)] * 2
            settings = ([stride] * 2, padding, [dilation] * 2, transposed, [0, 0], groups)
            y = torch.ops.aten.convolution.default(x, weight, None, *settings)
            yield torch.randn_like(y), x, weight, [across], *settings


def test_convolution_gradients_can_be_had_one_by_one() -> None:
    """Weight and bias alone, and the input alone, each without the tensor it is the gradient of."""
    backward = torch.ops.aten.convolution_backward.default
    for gradient, x, weight, *settings in _convolutions():
        assert isinstance(x, Tensor)
        assert isinstance(weight, Tensor)
        whole = backward(gradient, x, weight, *settings, [True, True, True])
        no_x, no_weight = arguments.blank(tensor_type(x, "x")), arguments.blank(tensor_type(weight, "weight"))
        inputs = backward(gradient, no_x, weight, *settings, [True, False, False])
        weights = backward(gradient, x, no_weight, *settings, [False, True, True])
        for one, other in zip(whole, (inputs[0], *weights[1:]), strict=True):
            assert torch.equal(one, other), (x.shape, weight.shape, settings)
            assert one.stride() == other.stride(), (x.shape, weight.shape, settings)


# --- effects ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "arguments"),
    [
        ("poet.bernoulli", ([40, 50], [1, 40], torch.float32, 0.3)),
        ("poet.uniform", ([40, 50], [50, 1], torch.float64, -1.0, 2.0)),
        ("poet.normal", ([2000], [1], torch.float32, 0.5, 2.0)),
        ("aten.randperm.default", (2000,)),
    ],
)
def test_randomness_is_drawn_again_from_the_saved_state(target: str, arguments: tuple[object, ...]) -> None:
    state = kernels.kernel("poet.rng_state")()
    first = kernels.kernel(target)(*arguments)
    torch.rand(7)
    present = torch.get_rng_state()
    again = kernels.kernel("poet.with_rng_state")(state, target, *arguments)
    assert torch.equal(first, again)
    assert torch.equal(present, torch.get_rng_state())


def test_own_factories() -> None:
    call = Call("poet.scatter", (Ref("base"), Ref("new"), (2, 2), (4, 1), 1))
    base, new = torch.zeros(8), torch.arange(1.0, 5.0).view(2, 2)
    (result,) = kernels.run(call, {"base": base, "new": new}.__getitem__, _none)
    assert result is not None
    assert result.tolist() == [0, 1, 2, 0, 0, 3, 4, 0]
    assert not base.any()
    call = Call("poet.copy", (Ref("new"), (3, 2, 2), (4, 1, 2), Symbol("dtype", "int64")))
    (copied,) = kernels.run(call, {"new": new}.__getitem__, _none)
    assert copied is not None
    assert copied.stride() == (4, 1, 2)
    assert torch.equal(copied, new.long().expand(3, 2, 2))


def _none(name: str) -> float:
    raise AssertionError(name)


# --- optimizers -------------------------------------------------------------------------------

SPECS = (
    OptimizerSpec("sgd", lr=0.1),
    OptimizerSpec("sgd", lr=0.1, weight_decay=0.3),
    OptimizerSpec("momentum", lr=0.1, momentum=0.7),
    OptimizerSpec("momentum", lr=0.1, weight_decay=0.01, dampening=0.3),
    OptimizerSpec("momentum", lr=0.1, weight_decay=0.01, nesterov=True),
    OptimizerSpec("adamw", lr=0.01),
    OptimizerSpec("adamw", lr=0.01, weight_decay=0.0, betas=(0.8, 0.95), eps=1e-6),
    OptimizerSpec("adam", lr=0.01),
    OptimizerSpec("adam", lr=0.01, weight_decay=0.1, betas=(0.8, 0.95), eps=1e-6),
    OptimizerSpec("adamw", lr=0.01, amsgrad=True),
    OptimizerSpec("adam", lr=0.01, weight_decay=0.1, betas=(0.8, 0.5), amsgrad=True),
    OptimizerSpec("rmsprop", lr=0.01),
    OptimizerSpec("rmsprop", lr=0.01, weight_decay=0.1, alpha=0.9, momentum=0.8, centered=True),
    OptimizerSpec("adagrad", lr=0.01),
    OptimizerSpec("adagrad", lr=0.01, weight_decay=0.1, lr_decay=0.05, initial=0.25, eps=1e-8),
    OptimizerSpec("lion", lr=0.01),
    OptimizerSpec("lion", lr=0.01, weight_decay=0.1, betas=(0.8, 0.95)),
    OptimizerSpec("adadelta", lr=0.1),
    OptimizerSpec("adadelta", lr=0.1, weight_decay=0.1, rho=0.7, eps=1e-4),
    OptimizerSpec("adamax", lr=0.01),
    OptimizerSpec("adamax", lr=0.01, weight_decay=0.1, betas=(0.8, 0.95), eps=1e-6),
    OptimizerSpec("nadam", lr=0.01),
    OptimizerSpec("nadam", lr=0.01, weight_decay=0.1, betas=(0.8, 0.95), eps=1e-6, momentum_decay=0.5),
    OptimizerSpec("nadam", lr=0.01, weight_decay=0.1, decoupled_weight_decay=True),
    OptimizerSpec("radam", lr=0.01),
    OptimizerSpec("radam", lr=0.01, weight_decay=0.1, betas=(0.8, 0.5), eps=1e-6),
    OptimizerSpec("radam", lr=0.01, weight_decay=0.1, betas=(0.8, 0.95), decoupled_weight_decay=True),
)


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: f"{spec.name}-{SPECS.index(spec)}")
def test_updates_are_those_of_torch(spec: OptimizerSpec) -> None:
    """Bit for bit, signs of zeros included."""
    for shape in ((7,), (33, 65), (3, 5, 3, 3)):
        theirs = torch.randn(shape).requires_grad_()
        ours = theirs.detach().clone()
        optimizer = torch_optimizer(spec, {"parameter": theirs})
        states = {name: torch.full(shape, fill) for name, fill in spec.states.items()}
        call = spec.update("parameter", "gradient", tuple(states))
        for step in range(1, 9):  # RAdam's step changes its form at the sixth
            gradient = F.dropout(torch.randn(shape)) * torch.randn(shape).sign() * 0.5
            theirs.grad = gradient.clone()
            optimizer.step()
            given = {"parameter": ours, "gradient": gradient, **states}
            assert kernels.run(call, given.__getitem__, spec.hyperparameters(step).__getitem__) == ()
            assert _same_bits(ours, theirs.detach())
            for name, state in states.items():
                assert _same_bits(state, optimizer.state[theirs][name])


def test_the_momenta_of_nadam_are_torchs_for_as_long_as_float32_has_their_product() -> None:
    for settings in ({}, {"betas": (0.3, 0.9), "momentum_decay": 0.1}, {"betas": (0.0, 0.9)}):
        spec = OptimizerSpec("nadam", lr=0.01, **settings)
        theirs, gradient = torch.zeros(1).requires_grad_(), torch.ones(1)
        optimizer = torch_optimizer(spec, {"parameter": theirs})
        ours, states = torch.zeros(1), {name: torch.zeros(1) for name in spec.states}
        call = spec.update("parameter", "gradient", tuple(states))
        given = {"parameter": ours, "gradient": gradient, **states}
        for step in range(1, 1500):
            theirs.grad = gradient.clone()
            optimizer.step()
            kernels.run(call, given.__getitem__, spec.hyperparameters(step).__getitem__)
            assert _same_bits(ours, theirs.detach())
        assert float(optimizer.state[theirs]["mu_product"]) < 1e-44
        assert spec.hyperparameters(10**6)["gradient_step_size"] > 0.0


def _same_bits(one: Tensor, other: Tensor) -> bool:
    return torch.equal(one.view(torch.int32), other.view(torch.int32))


def test_every_optimizer_is_tested() -> None:
    assert {spec.name for spec in SPECS} == set(KINDS)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: OptimizerSpec("adamm"), "did you mean 'adam'"),
        (lambda: OptimizerSpec(lr=-1.0), "lr is -1.0"),
        (lambda: OptimizerSpec(lr=float("nan")), "lr is nan"),
        (lambda: OptimizerSpec("adamw", betas=(0.9, 1.0)), "betas"),
        (lambda: OptimizerSpec("momentum", nesterov=True, dampening=0.1), "nesterov"),
        (lambda: OptimizerSpec().hyperparameters(0), "count from 1"),
    ],
)
def test_settings_that_cannot_be(make: Callable[[], object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        make()
