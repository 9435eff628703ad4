"""Division of whole numbers, of which torch's kernel ends the process for the least one by -1."""

from __future__ import annotations

import torch
from torch import Tensor

from poet.runtime.kernels.aten import aten


def divided(dividend: Tensor, divisor: Tensor | float, *, rounding_mode: str | None = None) -> Tensor:
    """``torch.div``; the least whole number by -1 is itself, as in numpy and with the other roundings.

    Raises:
        RuntimeError: a divisor of whole numbers is zero.
    """
    target = f"aten.div.{'Tensor' if isinstance(divisor, Tensor) else 'Scalar'}_mode"
    kind = torch.result_type(dividend, divisor)
    if rounding_mode == "trunc" and kind.is_signed and not kind.is_floating_point:
        least = torch.iinfo(kind).min
        trapped = torch.logical_and(torch.eq(dividend, least), torch.eq(torch.as_tensor(divisor), -1))
        if bool(trapped.any()):
            target, divisor = "aten.div.Tensor_mode", torch.where(trapped, 1, divisor)
    found: Tensor = aten(target)(dividend, divisor, rounding_mode=rounding_mode)
    return found


def quotient(dividend: Tensor, divisor: Tensor) -> Tensor:
    """Rounded towards zero; on tensors without content, as in a trace, torch's own operator."""
    if type(dividend) is Tensor and not dividend.is_meta and type(divisor) is Tensor:
        return divided(dividend, divisor, rounding_mode="trunc")
    return torch.div(dividend, divisor, rounding_mode="trunc")
