"""Running a model as exporters run it, and where in the model's source something happened."""

from __future__ import annotations

import contextlib
import linecache
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
import torch.distributions
from torch import Tensor
from torch.overrides import TorchFunctionMode

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
