"""A tensor's elements in C order, one piece after the other, for files that are written beside a full arena.

What is contiguous is given where it lies; what is not is put into C order some rows at a time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import torch

from poet.calls import TensorType, contiguous
from poet.graph import ITEM_BYTES
from poet.runtime.kernels import arguments

Pieces = Callable[[str], Iterator[torch.Tensor]]
"""Gives of one of a graph's values the elements in C order, in contiguous tensors of one dimension, each of
which is gone when the next is asked for."""

PIECE_BYTES = 64 * 1024
"""The most that is copied at a time: rows that lie in another order, and transfers through the page cache."""


def pieces_of(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """The elements of ``tensor``, in contiguous tensors of one dimension; its own memory where that does."""
    tensor = tensor.detach()
    if tensor.is_contiguous():
        yield tensor.reshape(-1)
        return
    count = max(1, PIECE_BYTES // max(1, tensor[0].nbytes))
    for start in range(0, len(tensor), count):
        yield tensor[start : start + count].contiguous().reshape(-1)


def unit_bytes(kind: TensorType, size_bytes: int) -> int | None:
    """Where bytes of a buffer may be cut so that each stretch has elements that follow each other in C order.

    Args:
        kind: of the one value that takes the buffer.
        size_bytes: of the buffer.

    Returns:
        At multiples of this: of an element, or of a row; ``None``: nowhere.
    """
    if kind.offset or not kind.elements or kind.extent_bytes != size_bytes:
        return None
    if kind == contiguous(kind.dtype, kind.shape):
        return ITEM_BYTES[kind.dtype]
    row = kind.strides[0]
    inner = 1 + sum(
        (size - 1) * stride for size, stride in zip(kind.shape[1:], kind.strides[1:], strict=True)
    )
    row_bytes = row * ITEM_BYTES[kind.dtype]
    return row_bytes if inner <= row and row_bytes <= PIECE_BYTES // 2 else None


def elements_of(stretch: memoryview, kind: TensorType) -> torch.Tensor:
    """The elements in bytes of a buffer that were cut at multiples of `unit_bytes`, in C order."""
    flat = torch.frombuffer(stretch, dtype=arguments.dtype(kind.dtype))
    if kind == contiguous(kind.dtype, kind.shape):
        return flat
    rows = math.ceil(len(flat) / kind.strides[0])
    return flat.as_strided((rows, *kind.shape[1:]), kind.strides).contiguous().reshape(-1)
