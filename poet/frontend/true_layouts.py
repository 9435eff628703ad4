"""Fake tensors that lie as torch's kernels leave them, where torch's own rules for fake ones say otherwise.

While a step is traced, no kernel runs: a rule per operator says how its results lie. For a few operators, of
operands that do not lie side by side, the rule and the kernel differ. What is named here was found by calling
each with transposed operands, and a trace is held against the kernels themselves later
(`poet.runtime.trials.measure`).
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

_aten = torch.ops.aten
_SIDE_BY_SIDE = -1
_LIKE: dict[object, int] = {
    _aten.mse_loss_backward.default: _SIDE_BY_SIDE,
    _aten.huber_loss_backward.default: _SIDE_BY_SIDE,
    _aten.smooth_l1_loss_backward.default: _SIDE_BY_SIDE,
    _aten._log_softmax_backward_data.default: _SIDE_BY_SIDE,
    _aten.log_sigmoid_forward.default: _SIDE_BY_SIDE,
    _aten.binary_cross_entropy.default: 0,
    _aten.binary_cross_entropy_backward.default: 1,
    _aten.hardtanh_backward.default: 0,
    _aten.hardswish_backward.default: 0,
    _aten.hardsigmoid_backward.default: 0,
    _aten.softplus_backward.default: 0,
}
"""Per operator, the place of the operand that its results lie like."""


class TrueLayouts(FakeTensorMode):  # type: ignore[no-untyped-call]
    """The mode in which steps are traced."""

    def __init__(self) -> None:
        super().__init__(allow_non_fake_inputs=True)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result: Any = super().__torch_dispatch__(func, types, args, kwargs)
        place = _LIKE.get(func)
        if place is None:
            return result
        model = None if place == _SIDE_BY_SIDE else args[place]
        if isinstance(result, Tensor):
            return self._lying(result, model)
        return tuple(self._lying(item, model) for item in result)

    def _lying(self, result: Tensor, model: Tensor | None) -> Tensor:
        """``result``, or another in its place that lies like ``model``, or side by side without one."""
        if model is not None and model.shape != result.shape:
            return result
        if model is None:
            strides = torch.empty(result.shape, device="meta").stride()
        else:
            template = torch.empty_strided(model.shape, model.stride(), device="meta")
            strides = torch.empty_like(template).stride()
        if strides == result.stride():
            return result
        return self._call(_aten.empty_strided.default, (result.shape, strides), {"dtype": result.dtype})

    def _call(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Tensor:
        on_cpu = {**kwargs, "device": torch.device("cpu")}
        return cast(Tensor, super().__torch_dispatch__(func, (), args, on_cpu))
