"""A step of a module as a function of all its tensors, and its trace over fake ones."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, fx, nn
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
)
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

from poet.errors import ModelError, PoetError
from poet.frontend.ctc import CtcOfOneSize, LengthsAsTensors
from poet.frontend.eager import unchanged, without_short_cuts
from poet.frontend.exporting import as_exporters_do, line_of, without_checks
from poet.frontend.layouts import dense_like, tensor_type
from poet.frontend.losses import Loss
from poet.frontend.recurrent import LstmByGradientMode, OneOpPerLayer
from poet.frontend.small_operators import as_wanted
from poet.runtime.kernels import arguments


class Step(nn.Module):
    """The whole step as a module, so that the module's tensors stay replaced until its end.

    Activation checkpointing runs parts of the module again while gradients are computed.
    """

    def __init__(
        self,
        module: nn.Module,
        trained: Iterable[str],
        loss: Loss,
        *,
        divisor: int = 1,
        has_backward: bool = True,
    ) -> None:
        super().__init__()
        self.module = module
        self.trained = tuple(trained)
        self.has_backward = has_backward and bool(self.trained)
        self.loss = loss
        self.divisor = divisor  # of the loss, before the backward pass
        self.is_exported = False

    def returned(self, inputs: list[Tensor]) -> tuple[object, list[Tensor]]:
        """What the module returns, and the tensors in it."""
        with as_exporters_do() if self.is_exported else contextlib.nullcontext():
            returned = self.module(*inputs)
        outputs = [item for item in pytree.tree_leaves(returned) if isinstance(item, Tensor)]
        if not outputs:
            raise ModelError(f"{type(self.module).__name__} returns no tensor")
        return returned, outputs

    def forward(self, inputs: list[Tensor], targets: list[Tensor] | None) -> list[Tensor | None]:
        """Loss, gradients of the trained parameters in the module's order, outputs.

        In evaluation there is no backward pass.

        Without ``targets``: the targets that the loss needs for the module's first output.
        """
        returned, outputs = self.returned(inputs)
        if targets is None:
            return [self.loss.targets_like(outputs[0])]
        loss = self.loss.of(returned, targets)
        if not self.has_backward:
            return [loss, *outputs]
        if not loss.requires_grad:
            raise ModelError("the loss does not depend on any parameter that is to be trained")
        parameters = dict(self.module.named_parameters())
        shared = loss if self.divisor == 1 else loss / self.divisor
        trained = [parameters[name] for name in self.trained]
        gradients = torch.autograd.grad(shared, trained, allow_unused=True)
        return [loss, *gradients, *outputs]


@dataclass(frozen=True, slots=True)
class Functional:
    """The step as a function of all its tensors."""

    step: Step
    names: tuple[str, ...]  # of parameters, then of states

    def __call__(
        self, own: list[Tensor], inputs: list[Tensor], targets: list[Tensor] | None
    ) -> list[Tensor | None]:
        """What `Step` gives; fresh leaves stand for the parameters, so that they can have gradients.

        Without a backward pass too: ``torch.no_grad()`` leaves ``requires_grad`` of a parameter and of its
        views, and torch asks for it. A product of a strided batch and a weight is one `mm` where the weight
        requires a gradient and one `bmm` where it does not, with other bits.
        """
        trained = frozenset(self.step.trained)
        leaves = {
            f"module.{name}": tensor.detach().requires_grad_() if name in trained else tensor
            for name, tensor in zip(self.names, own, strict=True)
        }
        has_backward = torch.set_grad_enabled(self.step.has_backward)
        with (
            speaking(self.step.module), unchanged(self.step.module), without_short_cuts(), has_backward,
            without_checks(), OneOpPerLayer(), as_wanted(), LengthsAsTensors(),
            LstmByGradientMode(), CtcOfOneSize(),  # type: ignore[no-untyped-call]
        ):  # fmt: skip
            results: list[Tensor | None] = torch.func.functional_call(self.step, leaves, (inputs, targets))
        return results


_MASK_DETECTION = "_detect_is_causal_mask"
"""Of torch's transformer layers: looks into a mask to find out whether it is causal."""
_SAY_CAUSAL = (
    "say beside the mask whether it is causal (is_causal=True, tgt_is_causal=True): torch then need not look"
)
_USE_TENSOR_OPS = "use tensor ops such as torch.where, or leave it out where torch.compiler.is_exporting()"


@contextlib.contextmanager
def speaking(module: nn.Module) -> Iterator[None]:
    """What fails in here is the model's fault, and said in one line."""
    name = type(module).__name__
    try:
        yield
    except PoetError:
        raise
    except DataDependentOutputException as error:
        looks_at_mask = any(
            frame.name == _MASK_DETECTION for frame in traceback.extract_tb(error.__traceback__)
        )
        raise ModelError(
            f"{name} reads a tensor's contents while it runs ({error.func}){line_of(error.__traceback__)}; "
            + (_SAY_CAUSAL if looks_at_mask else _USE_TENSOR_OPS)
        ) from None
    except DynamicOutputShapeException as error:
        raise ModelError(
            f"{name}: the output shape of {error.func} depends on data{line_of(error.__traceback__)}; "
            "keep the shape and mask what is not wanted"
        ) from None
    except Exception as error:
        line = str(error).strip().splitlines()[0] if str(error).strip() else "no message"
        place = line_of(error.__traceback__)
        raise ModelError(
            f"{name} fails on the example inputs: {type(error).__name__}: {line}{place}"
        ) from error


def fakes(mode: FakeTensorMode, tensors: Iterable[Tensor]) -> list[Tensor]:
    """Fake tensors of the same types, each dense."""
    types = [dense_like(tensor_type(tensor, "an input")) for tensor in tensors]
    with mode:
        return [torch.empty_strided(t.shape, t.strides, dtype=arguments.dtype(t.dtype)) for t in types]


def trace_step(step: Callable[..., object], arguments: tuple[list[Tensor], ...]) -> fx.GraphModule:
    """What ``step`` calls, as a graph of ATen operators, over fake ``arguments``."""

    def function(*groups: list[Tensor]) -> object:  # make_fx miscounts a method's arguments
        return step(*groups)

    traced: fx.GraphModule = make_fx(
        function, tracing_mode="fake", _allow_non_fake_inputs=True, record_stack_traces=True
    )(*arguments)
    return traced
