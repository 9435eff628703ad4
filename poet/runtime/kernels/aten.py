"""ATen's operators by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from poet.errors import PlanError

Kernel = Callable[..., Any]
"""Called with a call's arguments; returns a tensor, or a tuple or list of tensors and ``None``."""


def aten(target: str) -> Kernel:
    """The ATen operator of that name, without Python in between."""
    found: Kernel = operator(target)._op
    return found


def operator(target: str) -> torch._ops.OpOverload:
    """Likewise, with its schema."""
    _, name, overload = target.split(".")
    try:
        found: torch._ops.OpOverload = getattr(getattr(torch.ops.aten, name), overload)
    except AttributeError:
        raise PlanError(f"operator {target!r} does not exist in torch {torch.__version__}") from None
    return found
