"""How tensors lie in memory: between torch's tensors and the types of our graph."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from poet.calls import contiguous
from poet.graph import Argument, Symbol, TensorType
from poet.runtime.kernels.arguments import same_layout, tensor_type

__all__ = [
    "compact", "contiguous", "dense_like", "is_dense", "layout_arguments", "same_layout", "tensor_type",
]  # fmt: skip


def layout_arguments(type_: TensorType) -> tuple[Argument, ...]:
    """Shape, strides and element type, as our own operators take them."""
    return (type_.shape, type_.strides, Symbol("dtype", type_.dtype))


def is_dense(type_: TensorType) -> bool:
    """Whether each element from the buffer's start on is addressed exactly once, with no gap."""
    return type_.elements == 0 or (type_.offset == 0 and type_.is_dense)


def dense_like(type_: TensorType) -> TensorType:
    """The type of a tensor of its own with this shape and, where they leave no holes, these strides."""
    at_start = replace(type_, offset=0)
    if is_dense(at_start):
        return at_start
    template = torch.empty_strided(type_.shape, type_.strides, device="meta")
    return replace(at_start, strides=tuple(torch.empty_like(template).stride()))


def compact(tensor: Tensor) -> Tensor:
    """``tensor``, detached, where it fills its storage; else a copy of the same strides that does."""
    tensor = tensor.detach()
    strides = torch.empty_like(tensor, device="meta").stride()
    if tensor.stride() == strides and tensor.untyped_storage().nbytes() == tensor.nbytes:
        return tensor
    return torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype).copy_(tensor)
