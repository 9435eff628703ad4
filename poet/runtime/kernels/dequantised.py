"""Packed weights as float32: an integer times its scale, rounded once (`poet.ir.packed` has the formats).

The compiled kernel and NumPy give the same bits. Neither asks torch for memory beside the result.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from poet.errors import PlanError
from poet.ir.packed import BLOCK, BLOCK_BYTES, FORMATS, Packed, row_bytes
from poet.runtime import native

_ROWS_AT_ONCE_BYTES = 1 << 18  # of packed rows: NumPy has a few times that beside the result


def dequantise(packed: Tensor, format: str, shape: Sequence[int]) -> Tensor:
    """The elements that packed rows stand for.

    Args:
        packed: uint8[..., bytes of a row], contiguous; at least one row.
        format: how a row is packed.
        shape: of the result; each row has as many elements as the next.

    Returns:
        float32, contiguous.

    Raises:
        PlanError: rows of that many bytes are no such elements.
    """
    return dequantise_into(torch.empty(tuple(shape), dtype=torch.float32), packed, format)


def dequantise_into(made: Tensor, packed: Tensor, format: str) -> Tensor:
    """Write those elements to ``made``, float32 and contiguous, and return it; see `dequantise`."""
    shape = made.shape
    rows = packed.numel() // max(packed.shape[-1], 1) if packed.dim() else 0
    columns = math.prod(shape) // rows if rows and min(shape, default=0) > 0 else 0
    if (
        packed.dtype != torch.uint8
        or not packed.is_contiguous()
        or format not in FORMATS
        or rows * columns != math.prod(shape)
        or row_bytes(format, columns) != packed.shape[-1]
        or not columns
    ):
        raise PlanError(f"{packed.dtype} of {list(packed.shape)} are no {list(shape)} packed as {format}")
    allocator = native.load()
    if allocator is not None:
        kind = FORMATS.index(format)
        allocator.library.c.poet_dequantise(packed.data_ptr(), kind, rows, columns, made.data_ptr())
        return made
    given, found = packed.view(rows, -1).numpy(), made.view(rows, columns).numpy()
    step = max(1, _ROWS_AT_ONCE_BYTES // packed.shape[-1])
    for start in range(0, rows, step):
        with np.errstate(all="ignore"):  # a scale may be anything
            _fill(given[start : start + step], format, found[start : start + step])
    return made


def as_used(weight: Tensor, packed: Packed | None) -> Tensor:
    """A whole weight as ops read it: float32 of packed rows, else as it is."""
    return weight if packed is None else dequantise(weight, packed.format, packed.shape)


def packed_by_library(given: Tensor, format: str, made: Tensor) -> bool:
    """Pack ``given``, float32[rows, columns], into ``made`` (`poet.passes.base.packed_rows`).

    ``False``: nothing was done, since there is no compiled kernel, or not for such a tensor.
    """
    allocator = native.load()
    if allocator is None or not given.is_contiguous() or given.dtype != torch.float32:
        return False
    kind = FORMATS.index(format)
    allocator.library.c.poet_quantise(given.data_ptr(), kind, *given.shape, made.data_ptr())
    return True


def _fill(packed: npt.NDArray[np.uint8], format: str, made: npt.NDArray[np.float32]) -> None:
    """Write what packed rows stand for into ``made``, float32[rows, columns]."""
    if format == "int8":
        scales = np.ascontiguousarray(packed[:, :4]).view("<f4")
        np.multiply(packed[:, 4:].view(np.int8).astype(np.float32), scales, out=made)
        return
    blocks = packed.reshape(-1, BLOCK_BYTES[format])
    scales = np.ascontiguousarray(blocks[:, :2]).view("<f2").astype(np.float32)
    if format == "q8_0":
        numbers = blocks[:, 2:].view(np.int8).astype(np.float32)
    else:
        numbers = np.concatenate([blocks[:, 2:] & 15, blocks[:, 2:] >> 4], axis=1).astype(np.float32) - 8
    np.multiply(numbers, scales, out=made.reshape(-1, BLOCK))
