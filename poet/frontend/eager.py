"""A module as plain PyTorch trains it: itself, not a compiled wrapper, by the ops it is written in.

Two short cuts are off, while a step is traced and while plain PyTorch makes one to compare with. Neither
can be traced, and both give other bits than the ops that they stand for: code from ``torch.compile``,
and the kernel that `nn.TransformerEncoderLayer` and `nn.MultiheadAttention` use for a forward pass
in eval mode of which nothing needs a gradient, as that of a frozen encoder.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Mapping

import torch
from torch import nn

from poet.errors import ModelError
from poet.frontend.python_state import unchanged


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
