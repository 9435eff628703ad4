"""Types of tensors, by their shapes alone."""

from __future__ import annotations

import math

from poet.ir.graph import TensorType


def contiguous(*shape: int, dtype: str = "float32") -> TensorType:
    strides = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
    return TensorType(dtype, shape, tuple(strides))
