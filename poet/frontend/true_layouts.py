"""Fake tensors that lie as torch's kernels leave them, where torch's own rules for fake ones say otherwise.

While a step is traced, a rule per operator says how its results lie. Of operands that do not lie side by
side, rules and kernels differ here and there. So the kernel itself is asked: it runs once on zeros that lie
as its operands do. What a step does with the results then follows from how they really lie.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

from poet.operators import ATEN, MIS_TRACED
from poet.runtime.kernels.arguments import tensor_type
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
