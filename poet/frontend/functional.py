"""A step of a module as a function of all its tensors, and its trace over fake ones.

Fake tensors lie as torch's kernels leave them: where torch's own rules may say otherwise, the kernel itself
runs once on zeros that lie as its operands do.
"""

from __future__ import annotations

import contextlib
import re
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch._guards import detect_fake_mode
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
)
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

from poet.errors import ModelError, PoetError
from poet.frontend.eager import (
    Kept,
    State,
    as_exporters_do,
    has_own_code,
    line_of,
    roots_of,
    unchanged,
    without_checks,
    without_short_cuts,
)
from poet.frontend.losses import Loss
from poet.frontend.repeated_pass import AsPlainCode, Pass, listed
from poet.frontend.traced_operators import AsTraced, OurKernels, as_wanted
from poet.ir.graph import TensorType
from poet.ir.operators import ATEN, MIS_TRACED
from poet.passes.layouts import dense_like, tensor_type
from poet.runtime.kernels import arguments
from poet.runtime.kernels.signatures import SIGNATURES, signature_missed

_NOT_ASKED = MIS_TRACED | {
    f"aten.{name}.default" for name in ("mm", "bmm", "addmm", "baddbmm", "mkldnn_rnn_layer_backward")
}
"""Products, which take long and whose results lie side by side; and what reads tensors of unknown size."""
_ASKED = ATEN - _NOT_ASKED

_Lying = tuple[tuple[int, ...], tuple[int, ...]] | None
"""The shape and the strides of a tensor; ``None`` of what is none."""


class TrueLayouts(FakeTensorMode):  # type: ignore[no-untyped-call]
    """The mode in which steps are traced."""

    def __init__(self) -> None:
        super().__init__(allow_non_fake_inputs=True)
        self._found: dict[object, list[_Lying]] = {}
        self._is_inside = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        # gives one tensor for both biases, which torch's cache of results gives as two
        self.cache_enabled = func is not torch.ops.aten.mkldnn_rnn_layer_backward.default
        if self._is_inside or func.is_view or func._schema.is_mutable or str(func) not in _ASKED:
            return super().__torch_dispatch__(func, types, args, kwargs)
        self._is_inside = True
        try:
            result: Any = super().__torch_dispatch__(func, types, args, kwargs)
            made, tree = pytree.tree_flatten(result)
            found = self._kernel(func, *pytree.tree_flatten((args, kwargs or {})))
            if len(found) != len(made):
                return result
            return pytree.tree_unflatten([*map(self._lying, made, found)], tree)
        finally:
            self._is_inside = False

    def _kernel(self, func: Any, leaves: Sequence[object], tree: pytree.TreeSpec) -> list[_Lying]:
        """How the kernel's results lie; empty where its operands lie side by side, or it runs on no zeros."""
        tensors = [item for item in leaves if isinstance(item, Tensor)]
        if any(item.layout != torch.strided for item in tensors) or all(map(Tensor.is_contiguous, tensors)):
            return []
        key = func, tree, tuple(map(_signature, leaves))
        if key not in self._found:
            self._found[key] = _tried(func, leaves, tree)
        return self._found[key]

    def _lying(self, result: object, found: _Lying) -> object:
        """``result``, or another in its place that lies as was ``found``."""
        if not isinstance(result, Tensor) or found is None or found[0] != result.shape:
            return result
        if found[1] == result.stride():
            return result
        given = {"dtype": result.dtype, "device": torch.device("cpu")}
        return super().__torch_dispatch__(torch.ops.aten.empty_strided.default, (), found, given)


def _signature(leaf: object) -> object:
    if isinstance(leaf, Tensor):
        return leaf.dtype, tuple(leaf.shape), leaf.stride()
    return type(leaf), str(leaf)


def _tried(func: Any, leaves: Sequence[object], tree: pytree.TreeSpec) -> list[_Lying]:
    try:
        if not _survives(func, leaves, tree):
            return []
        with _disable_current_modes(), torch.no_grad(), torch.random.fork_rng(devices=[]):
            args, kwargs = pytree.tree_unflatten([*map(_zeros, leaves)], tree)
            found = pytree.tree_leaves(func(*args, **kwargs))
    except Exception:
        return []
    return [(tuple(item.shape), item.stride()) if isinstance(item, Tensor) else None for item in found]


def _survives(func: Any, leaves: Sequence[object], tree: pytree.TreeSpec) -> bool:
    kinds = [tensor_type(item, str(func)) if isinstance(item, Tensor) else item for item in leaves]
    args, kwargs = pytree.tree_unflatten(kinds, tree)
    args = (tuple(item) if isinstance(item, list) else item for item in args)
    return str(func) not in SIGNATURES or signature_missed(str(func), *args, **kwargs) is None


def _zeros(leaf: object) -> object:
    if not isinstance(leaf, Tensor):
        return leaf
    extent = sum(stride * (size - 1) for stride, size in zip(leaf.stride(), leaf.shape, strict=True))
    whole = torch.zeros(extent + 1 if leaf.numel() else 0, dtype=leaf.dtype)
    return whole.as_strided(leaf.shape, leaf.stride())


_NOT_REACHED = (
    "torch.utils.checkpoint(use_reentrant=True), of whose arguments none requires a gradient, trains nothing "
    "in its block (use_reentrant=False does)"
)
_MOST_PASSES = 3
GradientHook = Callable[[Tensor], Tensor | None]


class Step(nn.Module):
    """The whole step as a module, so that the module's tensors stay replaced until its end.

    Activation checkpointing runs parts of the module again while gradients are computed.
    """

    is_callers = False  # whether gradients are handed to a loop, which may have hooks of its own

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
        self.names: tuple[str, ...] = ()  # of the module's parameters, then of its states
        self.hooks: Mapping[str, Sequence[GradientHook]] = {}  # on gradients, by parameter
        self.blocks: AsPlainCode | None = None  # in `torch.utils.checkpoint`, while a step is traced
        self.last: Pass | None = None  # that was made

    def __call__(self, *given: Any) -> Any:
        """`forward`, without the hooks that a process has for all modules: this is none of the model's."""
        return self.forward(*given)

    def run(self, *args: Any, **kwargs: Any) -> object:
        """What the module returns."""
        self._buffers_before = dict(self.module.named_buffers(remove_duplicate=False))
        with as_exporters_do() if self.is_exported else contextlib.nullcontext():
            return self.module(*args, **kwargs)

    def write_replaced(self) -> None:
        """A buffer in whose place the module has put another tensor (``self.mean = ...``) is written.

        Raises:
            ModelError: that tensor has another type, or a gradient.
        """
        for name, now in self.module.named_buffers(remove_duplicate=False):
            before = self._buffers_before.get(name, now)
            if before is now:
                continue
            if now.requires_grad or (now.dtype, now.shape) != (before.dtype, before.shape):
                raise ModelError(
                    f"{type(self.module).__name__} puts a tensor of another type, or with a gradient, in "
                    f"place of its buffer {name}; detach it, and keep shape and type"
                )
            with torch.no_grad():
                before.copy_(now)

    def forward(self, inputs: list[Tensor], targets: list[Tensor] | None) -> list[Tensor | None]:
        """Loss, gradients of the trained parameters in the module's order, outputs.

        In evaluation there is no backward pass.

        Without ``targets``: the targets that the loss needs for the module's first output.
        """
        returned = self.run(*inputs)
        outputs = [item for item in pytree.tree_leaves(returned) if isinstance(item, Tensor)]
        if not outputs:
            raise ModelError(f"{type(self.module).__name__} returns no tensor")
        if targets is None:
            return [self.loss.targets_like(outputs[0])]
        loss = self.loss.of(returned, targets)
        if not self.has_backward:
            self.write_replaced()
            return [loss, *outputs]
        if not loss.requires_grad:
            without_gradient = self.blocks is not None and sorted(self.blocks.without_gradient)
            hint = f"; {_NOT_REACHED}: {listed(without_gradient)}" if without_gradient else ""
            raise ModelError(f"the loss does not depend on any parameter that is to be trained{hint}")
        parameters = dict(self.module.named_parameters())
        shared = loss if self.divisor == 1 else loss / self.divisor
        trained = [parameters[name] for name in self.trained]
        gradients = torch.autograd.grad(shared, trained, allow_unused=True)
        self.write_replaced()
        return [loss, *gradients, *outputs]

    def as_function(
        self, own: list[Tensor], inputs: list[Tensor], targets: list[Tensor] | None
    ) -> list[Tensor | None]:
        """What `forward` gives with ``own`` in place of the module's tensors.

        Fresh leaves stand for the parameters, so that they can have gradients.

        Without a backward pass too: ``torch.no_grad()`` leaves ``requires_grad`` of a parameter and of its
        views, and torch asks for it. A product of a strided batch and a weight is one `mm` where the weight
        requires a gradient and one `bmm` where it does not, with other bits.
        """
        trained = frozenset(self.trained)
        leaves = {
            f"module.{name}": tensor.detach().requires_grad_() if name in trained else tensor
            for name, tensor in zip(self.names, own, strict=True)
        }
        for name in trained:
            for hook in self.hooks.get(name, ()):
                leaves[f"module.{name}"].register_hook(hook)  # type: ignore[no-untyped-call]
        module, given = self.module, [item.detach() for item in inputs]
        hooked = trained if self.is_callers else frozenset(key for key, hooks in self.hooks.items() if hooks)
        self.blocks = AsPlainCode(module, dict(zip(self.names, own, strict=True)), hooked)
        self.last = Pass(type(module).__name__, (*own, *inputs, *(targets or ())), self.last)
        has_backward = torch.set_grad_enabled(self.has_backward)
        with (
            speaking(module), without_short_cuts(), has_backward,
            without_checks(), AsTraced(), as_wanted(), OurKernels(),  # type: ignore[no-untyped-call]
            self.last, self.blocks,
        ):  # fmt: skip
            results: list[Tensor | None] = torch.func.functional_call(self, leaves, (given, targets))
        self.last.ends(results)
        return results

    def alone(self, own: list[Tensor], inputs: list[Tensor]) -> list[Tensor | None]:
        """What `forward` gives without targets, and nothing of the pass is left in the module."""
        with unchanged(self.module):
            return self.as_function(own, inputs, None)


_MASK_DETECTION = "_detect_is_causal_mask"
"""Of torch's transformer layers: looks into a mask to find out whether it is causal."""
_SAY_CAUSAL = (
    "say beside the mask whether it is causal (is_causal=True, tgt_is_causal=True): torch then need not look"
)
_CONTROL_FLOW = re.compile(r"HigherOrderOperator (\w+)")
"""In what torch says of ``torch.cond``, ``while_loop``, ``map`` and the like, which no mode of ours takes."""
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
        if control := _CONTROL_FLOW.search(line):
            raise ModelError(
                f"{name} has control flow that data steers ({control[1]}){place}; compute both ways and "
                "choose with torch.where, or write the branch or loop in Python with what is fixed"
            ) from None
        if "TorchScript" in line:
            line = "in code that torch.jit made; plan the module that it was made from"
        raise ModelError(
            f"{name} fails on the example inputs: {type(error).__name__}: {line}{place}"
        ) from error


def fakes(mode: FakeTensorMode, tensors: Iterable[Tensor | TensorType]) -> list[Tensor]:
    """Fake tensors of the same types, each dense."""
    found = [tensor_type(item, "an input") if isinstance(item, Tensor) else item for item in tensors]
    types = [dense_like(item) for item in found]
    with mode:
        return [torch.empty_strided(t.shape, t.strides, dtype=arguments.dtype(t.dtype)) for t in types]


def trace_step(step: Step, arguments: tuple[list[Tensor], ...]) -> fx.GraphModule:
    """What ``step`` calls, as a graph of ATen operators, over fake ``arguments``.

    Where the model's own code runs, it runs once more with what the first pass has left in Python, and must
    do the same: a plan repeats one pass.

    Raises:
        ModelError: it draws from generators other than torch's, or the second pass is another.

    Warns:
        UserWarning: something changes from pass to pass that may matter later; or a block trains nothing.
    """
    module = step.module
    name, passes = type(module).__name__, list[Pass]()

    def one_pass(
        given: Sequence[list[Tensor]], *, is_traced: bool = True
    ) -> tuple[fx.GraphModule | None, dict[str, object]]:
        before = Kept([*roots_of(module), ("the loss", step.loss.apply)])
        traced = _ran(step, given, is_traced=is_traced)
        changed = before.changed()
        if drawn := [key for key, now in changed.items() if isinstance(now, State)]:
            raise ModelError(
                f"{name} draws from {drawn[0]} while it runs, of which a plan would repeat the first "
                "numbers; draw with torch (torch.rand, torch.bernoulli), or give the numbers as an input"
            )
        assert step.last is not None
        passes.append(step.last)
        return traced, changed

    with unchanged(module, ("the loss", step.loss.apply)):
        traced, left = one_pass(arguments)
        may_differ = has_own_code(module) or step.loss.takes_everything
        while may_differ and not passes[0].writes_constants:  # which lowering refuses
            _, changed = one_pass([_others(group) for group in arguments], is_traced=False)
            names = passes[0].check_same(passes[-1], changed, left)
            may_differ = bool(names) and len(passes) < _MOST_PASSES
            if names and not may_differ:
                warnings.warn(
                    f"{name} changes {listed(names)} in every pass, and a plan's steps do not; where a later "
                    "pass depends on that, keep it in a buffer (register_buffer) as a tensor",
                    stacklevel=2,
                )
    if step.blocks is not None and (without_gradient := sorted(step.blocks.without_gradient)):
        warnings.warn(
            f"not trained, as in plain PyTorch: {_NOT_REACHED}: {listed(without_gradient)}", stacklevel=2
        )
    assert traced is not None
    return traced


def _others(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Further fake tensors of the same types: what a pass has kept of those is not taken for these."""
    return [item.new_empty_strided(item.shape, item.stride()) for item in tensors]


def _ran(step: Step, arguments: Sequence[list[Tensor]], *, is_traced: bool) -> fx.GraphModule | None:
    """The trace of a pass; without ``is_traced``, the ops of the pass are not recorded."""

    def function(*groups: list[Tensor]) -> object:  # make_fx miscounts a method's arguments
        return step.as_function(*groups)

    tensors = [
        (held, dict(held))
        for part in step.modules()
        for held in (part._parameters, part._buffers)
        if isinstance(held, dict)
    ]
    traced: fx.GraphModule | None = None
    try:
        if is_traced:
            traced = make_fx(
                function, tracing_mode="fake", _allow_non_fake_inputs=True, record_stack_traces=True
            )(*arguments)
        else:
            with detect_fake_mode(arguments) or contextlib.nullcontext():
                function(*arguments)
    finally:
        for held, before in tensors:  # of a part with two names, torch puts others back
            held.update(before)  # type: ignore[arg-type]
    return traced
