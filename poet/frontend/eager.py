"""Running a module as plain PyTorch does: itself, not a compiled wrapper, by the ops it is written in.

Off are code from ``torch.compile`` and the kernel that `nn.TransformerEncoderLayer` and
`nn.MultiheadAttention` use in eval mode without gradients: both give other bits than the ops that they stand
for. And running it as exporters do, with the line of the model's source where something happened.
"""

from __future__ import annotations

import contextlib
import linecache
import math
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
import torch.distributions
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from poet.errors import ModelError
from poet.frontend.python_state import unchanged

_NOT_THE_MODELS = (str(Path(torch.__file__).parent), str(Path(__file__).parents[1]))
_FRAME = re.compile(r'File "([^"]+)", line (\d+)')


@contextlib.contextmanager
def as_exporters_do() -> Iterator[None]:
    """Inside, a model is told that it is exported, so that it leaves out shortcuts that look at contents.

    ``torch.compiler.is_exporting()``, ``is_compiling()`` and ``torch.jit.is_tracing()`` are true.
    """
    compiler = torch.compiler
    core: Any = torch._C  # what `torch.jit.is_tracing` asks, by whatever name a model imported it
    before = compiler._is_compiling_flag, compiler._is_exporting_flag, core._is_tracing
    compiler._is_compiling_flag = compiler._is_exporting_flag = True
    core._is_tracing = lambda: True
    try:
        yield
    finally:
        compiler._is_compiling_flag, compiler._is_exporting_flag, core._is_tracing = before


def line_of(trace: TracebackType | None) -> str:
    """The innermost line of the model's own source in a traceback, as `` at net.py:12 (if x.all():)``."""
    found = ""
    while trace is not None:
        found = _place(trace.tb_frame.f_code.co_filename, trace.tb_lineno) or found
        trace = trace.tb_next
    return found


def line_in(stack_trace: str | None) -> str:
    """The same from a formatted traceback, as a traced node has one."""
    found = ""
    for file, number in _FRAME.findall(stack_trace or ""):
        found = _place(file, int(number)) or found
    return found


def _place(file: str, number: int) -> str:
    if file.startswith(_NOT_THE_MODELS) or file.startswith("<frozen"):
        return ""
    source = linecache.getline(file, number).strip()
    return f" at {Path(file).name}:{number}" + (f" ({source[:80]})" if source else "")


@contextlib.contextmanager
def without_checks() -> Iterator[None]:
    """Inside, distributions and the Gaussian loss do not look whether their parameters are allowed.

    Fake tensors have no contents to look at; the checks change no bit of what is computed.
    """
    kind: Any = torch.distributions.Distribution
    before = kind._validate_args
    kind.set_default_validate_args(False)
    try:
        with _UncheckedVariance():
            yield
    finally:
        kind.set_default_validate_args(before)


class _UncheckedVariance(TorchFunctionMode):
    """Inside, ``torch.nn.functional.gaussian_nll_loss`` takes variances as they are."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """``func`` itself, but for that loss."""
        is_loss = func is torch.nn.functional.gaussian_nll_loss
        return (_gaussian_nll_loss if is_loss else func)(*args, **(kwargs or {}))


def _gaussian_nll_loss(
    input: Tensor,  # as torch names it
    target: Tensor,
    var: Tensor | float,
    full: bool = False,
    eps: float = 1e-6,
    reduction: str = "mean",
) -> Tensor:
    """The calls that torch makes once it has looked at ``var``."""
    if not isinstance(var, Tensor):
        var = var * torch.ones_like(input)
    if var.shape != input.shape and input.shape[:-1] == var.shape:
        var = torch.unsqueeze(var, -1)
    var = var.clone()
    with torch.no_grad():
        var.clamp_(min=eps)
    loss = 0.5 * (torch.log(var) + (input - target) ** 2 / var)
    if full:
        loss += 0.5 * math.log(2 * math.pi)
    return loss.mean() if reduction == "mean" else loss.sum() if reduction == "sum" else loss


def original(module: nn.Module) -> nn.Module:
    """``module``, or what `torch.compile` made it from: the same tensors under their own names."""
    if "torch._dynamo" not in sys.modules:  # nothing is compiled yet, and importing it takes seconds
        return module
    while isinstance(module, torch._dynamo.OptimizedModule):
        module = module._orig_mod
    return module


@contextlib.contextmanager
def without_short_cuts() -> Iterator[None]:
    """Modules run the ops that they are written in, as they do while they train."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with _uncompiled():
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


@contextlib.contextmanager
def _uncompiled() -> Iterator[None]:
    """Compiled parts of a module, and compiled functions that it calls, run as they are written."""
    if "torch._dynamo" not in sys.modules:
        yield
        return
    config = torch._dynamo.config.patch(error_on_nested_fx_trace=False)
    with torch.compiler.set_stance("force_eager"), config:
        yield


@contextlib.contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """``module`` in evaluation mode; afterwards it is as it was, with every part in the mode that it was in.

    Raises:
        ModelError: it is an exported program, whose mode is fixed; or its own ``eval`` changes its tensors,
            as where adapters are added to a weight.
    """
    modes = {part: part.training for part in module.modules()}
    is_own = any(type(part).train is not nn.Module.train for part in modes)
    contents = {name: (item, item.detach(), item.detach().clone()) for name, item in _own(module) if is_own}
    with unchanged(module):
        try:
            _evaluate(module, contents)
            yield
        finally:
            for part, was_training in modes.items():
                part.training = was_training
            for item, memory, content in contents.values():
                item.data = memory.copy_(content)


def _evaluate(module: nn.Module, contents: Mapping[str, tuple[torch.Tensor, ...]]) -> None:
    try:
        module.eval()
    except NotImplementedError:
        raise ModelError("an exported program has no other mode than that in which it was exported") from None
    now = dict(_own(module))
    for name, (_, _, content) in contents.items():
        if name not in now or not torch.equal(now[name], content):
            raise ModelError(f"the model's own eval() changes {name}, of which a plan has one content")


def _own(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    yield from (*module.named_parameters(), *module.named_buffers())


@contextlib.contextmanager
def lent(module: nn.Module) -> Iterator[None]:
    """``module`` may be trained inside; afterwards it is as it was, with its contents and gradients.

    Its tensors have other memory meanwhile. It is not copied: hooks and functions may speak of itself.
    """
    own = (*module.parameters(), *module.buffers())
    before = [(item, item.data, item.grad, item.requires_grad) for item in own]
    with unchanged(module):
        try:
            for item, memory, *_ in before:
                item.data, item.grad = memory.clone(), None
            yield
        finally:
            for item, memory, gradient, requires_grad in before:
                item.data, item.grad = memory, gradient
                item.requires_grad_(requires_grad)
