"""A module as plain PyTorch trains it: itself, not a compiled wrapper, by the ops it is written in.

Two short cuts are off, while a step is traced and while plain PyTorch makes one to compare with. Neither
can be traced, and both give other bits than the ops that they stand for: code from ``torch.compile``,
and the kernel that `nn.TransformerEncoderLayer` and `nn.MultiheadAttention` use for a forward pass
in eval mode of which nothing needs a gradient, as that of a frozen encoder.
"""

from __future__ import annotations

import contextlib
import copy
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


_OF_TORCH = {"_parameters", "_buffers", "_modules"}


@contextlib.contextmanager
def unchanged(module: nn.Module) -> Iterator[None]:
    """What ``module`` and its parts keep beside parameters and buffers is afterwards what it was before.

    Attributes that a forward pass sets (an attention map that is looked at later, a table of sines that is
    made at the first call, a weight that a hook makes) would else hold what a trace runs with: tensors
    without contents. So do dictionaries and lists, not what lies deeper in them.
    """
    before = [
        (part, {name: value for name, value in vars(part).items() if name not in _OF_TORCH})
        for part in module.modules()
    ]
    contents = [
        (value, copy.copy(value))
        for _, kept in before
        for value in kept.values()
        if type(value) in (dict, list)
    ]
    try:
        yield
    finally:
        for part, kept in before:
            for name in vars(part).keys() - kept.keys() - _OF_TORCH:
                del vars(part)[name]
            vars(part).update(kept)
        for value, held in contents:
            value.clear()
            value.update(held) if isinstance(value, dict) else value.extend(held)


def copied(module: nn.Module) -> nn.Module:
    """A deep copy; tensors beside parameters that autograd made, which torch does not copy, as they are now.

    Old `torch.nn.utils.weight_norm` and `torch.nn.utils.prune` keep the weight that they put together so.
    """
    made = {
        id(value): value.detach().clone()
        for part in module.modules()
        for value in vars(part).values()
        if isinstance(value, torch.Tensor) and not value.is_leaf
    }
    return copy.deepcopy(module, made)
