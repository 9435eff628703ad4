"""A module as plain PyTorch trains it: itself, not a compiled wrapper, by the ops it is written in.

Two short cuts are off, while a step is traced and while plain PyTorch makes one to compare with. Neither
can be traced, and both give other bits than the ops that they stand for: code from ``torch.compile``,
and the kernel that `nn.TransformerEncoderLayer` and `nn.MultiheadAttention` use for a forward pass
in eval mode of which nothing needs a gradient, as that of a frozen encoder.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

import torch
from torch import nn

from poet.errors import ModelError


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
    """``module`` in evaluation mode; afterwards every part of it is in the mode that it was in.

    Raises:
        ModelError: it is an exported program, whose mode is fixed.
    """
    before = {part: part.training for part in module.modules()}
    try:
        module.eval()
    except NotImplementedError:
        raise ModelError("an exported program has no other mode than that in which it was exported") from None
    try:
        yield
    finally:
        for part, was_training in before.items():
            part.training = was_training
