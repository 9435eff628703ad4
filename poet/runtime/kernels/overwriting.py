"""Kernels that write their result over an operand: torch's ``out=`` forms, which make no tensor of their own.

Each takes an element, or a row, wholly into account before it writes there, so that the result may lie where
that operand lies. Whether the bits are those of the plain kernel is found by trial all the same
(`poet.runtime.trials.blocks`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from poet.errors import PlanError
from poet.ir.graph import Call, TensorType
from poet.ir.op_spec import Out
from poet.ir.operators import SPECS, spec_of
from poet.ir.strips import Strip, copied_blocks
from poet.runtime.kernels import packed

ROWS: Mapping[str, Out] = {name: spec.out for name, spec in SPECS.items() if spec.out is not None}
"""Per operator, how it writes over an operand."""

COPIED = frozenset(name for name, row in ROWS.items() if row.is_copied)
"""The operators of which blocks are made apart and copied."""


def _batch_norm_backward(
    gradient: Tensor,
    source: Tensor,
    weight: Tensor | None,
    mean: Tensor | None,
    variance: Tensor | None,
    saved_mean: Tensor | None,
    saved_invstd: Tensor | None,
    train: bool,
    eps: float,
    mask: list[bool],
    *,
    out: Tensor,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """``native_batch_norm_backward`` of some channels at a time, each block copied over its ``gradient``.

    Torch's kernel sums in another order where channels lie between others, so such blocks are copied first.
    """
    channels = source.shape[1]
    sums = [torch.empty(channels, dtype=source.dtype) if wanted else None for wanted in mask[1:]]
    for start, stop in copied_blocks(source.nbytes, channels):

        def some(item: Tensor | None, begin: int = start, end: int = stop) -> Tensor | None:
            return None if item is None else item[begin:end]

        given = (_dense(item[:, start:stop]) for item in (gradient, source))
        statistics = map(some, (weight, mean, variance, saved_mean, saved_invstd))
        made = torch.ops.aten.native_batch_norm_backward.default(*given, *statistics, train, eps, mask)
        out[:, start:stop].copy_(made[0])
        for whole, part in zip(sums, made[1:], strict=True):
            if whole is not None:
                whole[start:stop].copy_(part)
    return out, sums[0], sums[1]


def _dense(block: Tensor) -> Tensor:
    return block if block.is_contiguous() else block.clone()


_OWN: dict[str, Callable[..., Any]] = {
    "aten.native_batch_norm_backward.default": _batch_norm_backward,
    "poet.masked": packed.masked_into,
    "poet.relu_backward": packed.relu_backward_into,
}


def overwrites(call: Call) -> tuple[int, ...]:
    """Places of the operands that the result of ``call`` may be written over; none: it has no such kernel."""
    row = spec_of(call.target).out
    return () if row is None else row.places


def operand_of(strip: Strip, types: Mapping[str, TensorType]) -> str | None:
    """The value that ``strip``, of one block, writes its result over as a kernel here does it.

    ``None``: it does other things, or no kernel does where the operand's elements lie, and the result is made
    apart and copied.

    Args:
        strip: of a graph.
        types: of the graph's values, by name.
    """
    over = strip.overwritten
    if over is None or [value.type for value in strip.inner] != [types.get(over.value)]:
        return None
    call, kind = strip.links[0].call, types[over.value]
    row = ROWS.get(call.target)
    if row is None or kind.overlaps_itself or (row.in_rows and not kind.is_contiguous):
        return None
    at = {place for place, item in enumerate(call.args) if item == over}
    return over.value if at and at <= set(row.places) else None


def kernel(target: str) -> Callable[..., Any]:
    """The kernel of the operator ``target`` that writes over an operand, which is given once more as ``out``.

    Raises:
        PlanError: this torch does not have it.
    """
    row = ROWS[target]
    if not row.kernel:
        return _OWN[target]
    name, overload = row.kernel.split(".")
    keyword = "" if name.endswith("_") else row.keyword or overload  # ``mul_`` writes its first argument
    try:
        found: Callable[..., Tensor] = getattr(getattr(torch.ops.aten, name), overload)._op
    except AttributeError:
        raise PlanError(f"operator aten.{row.kernel} does not exist in torch {torch.__version__}") from None
    return functools.partial(_writing, found, keyword)


def _writing(
    found: Callable[..., Tensor], keyword: str, *args: object, out: Tensor, **named: object
) -> Tensor:
    shape = out.shape
    found(*args, **named, **({keyword: out} if keyword else {}))
    if out.shape != shape:  # torch makes a tensor larger that is too small for a result
        raise PlanError(f"a result of shape {tuple(out.shape)} is to be written over one of {tuple(shape)}")
    return out
