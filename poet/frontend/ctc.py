"""While a step is traced, connectionist temporal classification has tensors of one size.

The forward variables of ``aten::_ctc_loss`` are as wide as the longest target of the batch, which no trace
knows. Ours (`poet.runtime.kernels.ctc`) are as wide as the targets' tensor, whatever is in it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from poet.runtime.kernels import ctc

FORWARD, BACKWARD = "poet.ctc_loss", "poet.ctc_loss_backward"
"""Our operators' names in a graph."""

_LIBRARY: Any = torch.library.Library("poet", "FRAGMENT")  # type: ignore[no-untyped-call]
_LIBRARY.define(
    "ctc_loss(Tensor log_probs, Tensor targets, Tensor input_lengths, Tensor target_lengths, int blank=0,"
    " bool zero_infinity=False) -> (Tensor, Tensor)"
)
_LIBRARY.define(
    "ctc_loss_backward(Tensor gradient, Tensor log_probs, Tensor targets, Tensor input_lengths,"
    " Tensor target_lengths, Tensor loss, Tensor log_alpha, int blank, bool zero_infinity=False) -> Tensor"
)
_LIBRARY.impl("ctc_loss", ctc.forward, "CPU")
_LIBRARY.impl("ctc_loss_backward", ctc.backward, "CPU")
torch.library.register_fake("poet::ctc_loss", ctc.forward_types, lib=_LIBRARY)
torch.library.register_fake("poet::ctc_loss_backward", ctc.backward_types, lib=_LIBRARY)

_OURS: dict[Any, Any] = {
    torch.ops.aten._ctc_loss.Tensor: torch.ops.poet.ctc_loss,
    torch.ops.aten._ctc_loss_backward.Tensor: torch.ops.poet.ctc_loss_backward,
}


_LENGTHS = ("input_lengths", "target_lengths")


class LengthsAsTensors(TorchFunctionMode):
    """Inside, ``torch.nn.functional.ctc_loss`` is given lengths as tensors; of numbers it makes real ones."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """``func`` itself, of that loss with other arguments."""
        given = kwargs or {}
        if func in (F.ctc_loss, torch.ctc_loss):
            lengths = (item if isinstance(item, Tensor) else torch.tensor(item) for item in args[2:4])
            args = (*args[:2], *lengths, *args[4:])
            given = {
                key: torch.tensor(item) if key in _LENGTHS and not isinstance(item, Tensor) else item
                for key, item in given.items()
            }
        return func(*args, **given)


class CtcOfOneSize(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Inside, ``aten::_ctc_loss`` and its gradient are `FORWARD` and `BACKWARD`."""

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Ours for these, else ``func`` itself."""
        ours: Callable[..., Any] = _OURS.get(func, func)
        return ours(*args, **(kwargs or {}))
