"""What torch is given for a graph's arguments: element types, layouts, symbols, blanks."""

from __future__ import annotations

import mmap
import sys
import threading
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from poet.errors import ModelError, PlanError
from poet.ir.graph import ITEM_BYTES, Argument, Blank, Ref, Symbol, TensorType

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


def dtype(name: str) -> torch.dtype:
    """Torch's element type of that name.

    Raises:
        PlanError: a graph has no such element type.
    """
    if name not in ITEM_BYTES:
        raise PlanError(f"element type {name!r} is not one of {', '.join(ITEM_BYTES)}")
    found: torch.dtype = getattr(torch, name)
    return found


def tensor_type(tensor: Tensor, where: str) -> TensorType:
    """The type of a strided tensor.

    Raises:
        ModelError: it is sparse, quantised, complex or of another element type without a row.
    """
    name = str(tensor.dtype).removeprefix("torch.")
    if tensor.layout != torch.strided or tensor.is_nested or name not in ITEM_BYTES:
        layout = "nested" if tensor.is_nested else str(tensor.layout).removeprefix("torch.")
        raise ModelError(
            f"{where} is a {name} tensor with layout {layout}; "
            f"supported are dense tensors of {', '.join(ITEM_BYTES)}"
        )
    return TensorType(name, tuple(tensor.shape), tuple(tensor.stride()), int(tensor.storage_offset()))


def same_layout(one: TensorType, other: TensorType) -> bool:
    """Whether two types lay the same elements out alike, wherever they begin.

    The stride of a dimension of one element is no matter.
    """
    return (one.dtype, one.shape) == (other.dtype, other.shape) and all(
        size == 1 or mine == theirs
        for size, mine, theirs in zip(one.shape, one.strides, other.strides, strict=True)
    )


_SYMBOLS: dict[tuple[str, str], object] = {
    ("layout", "strided"): torch.strided,
    ("device", "cpu"): torch.device("cpu"),
    **{
        ("memory_format", name): getattr(torch, name)
        for name in ("contiguous_format", "preserve_format", "channels_last", "channels_last_3d")
    },
}


def constant(argument: Argument) -> object:
    """What torch is given for an argument that is neither a value nor a hyperparameter.

    Raises:
        PlanError: a symbol that torch does not know.
    """
    if isinstance(argument, Blank):
        return blank(argument.type)
    if isinstance(argument, Symbol):
        if argument.kind == "dtype":
            return dtype(argument.name)
        if (argument.kind, argument.name) not in _SYMBOLS:
            raise PlanError(f"{argument.kind} {argument.name!r} is not one that poet runs")
        return _SYMBOLS[argument.kind, argument.name]
    return argument


def resolve(
    argument: Argument, tensor: Callable[[str], Tensor], hyperparameter: Callable[[str], float]
) -> object:
    """What torch is given for ``argument``; tuples become lists of what their items become."""
    if isinstance(argument, Ref):
        return tensor(argument.value)
    if isinstance(argument, Symbol) and argument.kind == "hyperparameter":
        return hyperparameter(argument.name)
    if isinstance(argument, tuple):
        return [resolve(item, tensor, hyperparameter) for item in argument]
    return constant(argument)


_blanks: list[Tensor] = []  # the largest mapping so far
_blanks_lock = threading.Lock()


def _untouched_pages(size_bytes: int) -> mmap.mmap:
    try:
        if sys.platform == "win32":
            return mmap.mmap(-1, size_bytes, access=mmap.ACCESS_READ)
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        return mmap.mmap(-1, size_bytes, flags=flags, prot=mmap.PROT_READ)
    except OSError as error:
        raise PlanError(f"no room in the address space for a tensor of {size_bytes} bytes") from error


def blank(type_: TensorType) -> Tensor:
    """A tensor of this type that takes no memory: a view of pages that are mapped and never touched.

    Its bytes cannot be written; reading them gives zeros.

    Raises:
        PlanError: the address space is limited and has no room for it.
    """
    size_bytes = max(type_.extent_bytes, 1)
    with _blanks_lock:
        if not _blanks or _blanks[0].numel() < size_bytes:
            pages = _untouched_pages(size_bytes)
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message="The given buffer is not writable")
                _blanks[:] = [torch.frombuffer(pages, dtype=torch.uint8)]
        largest = _blanks[0]
    item_bytes = ITEM_BYTES[type_.dtype]
    whole = largest[: largest.numel() // item_bytes * item_bytes].view(dtype(type_.dtype))
    return whole.as_strided(type_.shape, type_.strides, type_.offset)
