"""Kernels that write their result over an operand: torch's ``out=`` forms, which make no tensor of their own.

Each takes an element, or a row, wholly into account before it writes there, so that the result may lie where
that operand lies. Whether the bits are those of the plain kernel is found by trial all the same
(`poet.runtime.trials.blocks`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from poet.errors import PlanError
from poet.ir.graph import Call, TensorType
from poet.ir.strips import Strip, copied_blocks
from poet.runtime.kernels import packed


@dataclass(frozen=True, slots=True)
class Row:
    """How an operator writes over an operand.

    Attributes:
        places: of the operands that it may overwrite.
        name: of the ATen operator that does; ``""``: one of our own.
        keyword: of the tensor that it writes; ``""``: it writes its first argument.
        in_rows: it asks for no strides, and writes as many elements as there are one after the other.
    """

    places: tuple[int, ...]
    name: str = ""
    keyword: str = ""
    in_rows: bool = False


ROWS: dict[str, Row] = {
    "aten._log_softmax_backward_data.default": Row(
        (0,), "_log_softmax_backward_data.out", "out", in_rows=True
    ),
    "aten._softmax_backward_data.default": Row(
        (0,), "_softmax_backward_data.out", "grad_input", in_rows=True
    ),
    "aten.add.Tensor": Row((0, 1), "add.out", "out"),
    "aten.div.Scalar": Row((0,), "div_.Scalar"),
    "aten.div.Tensor": Row((0,), "div.out", "out"),
    "aten.elu_backward.default": Row((0,), "elu_backward.grad_input", "grad_input"),
    "aten.gelu_backward.default": Row((0, 1), "gelu_backward.grad_input", "grad_input"),
    "aten.hardsigmoid_backward.default": Row((0, 1), "hardsigmoid_backward.grad_input", "grad_input"),
    "aten.hardtanh_backward.default": Row((0, 1), "hardtanh_backward.grad_input", "grad_input"),
    "aten.leaky_relu_backward.default": Row((0, 1), "leaky_relu_backward.grad_input", "grad_input"),
    "aten.mul.Scalar": Row((0,), "mul_.Scalar"),
    "aten.mul.Tensor": Row((0, 1), "mul.out", "out"),
    "aten.native_batch_norm_backward.default": Row((0,)),
    "aten.neg.default": Row((0,), "neg.out", "out"),
    "aten.sigmoid_backward.default": Row((0,), "sigmoid_backward.grad_input", "grad_input"),
    "aten.silu_backward.default": Row((0, 1), "silu_backward.grad_input", "grad_input"),
    "aten.sub.Tensor": Row((0, 1), "sub.out", "out"),
    "aten.tanh_backward.default": Row((0,), "tanh_backward.grad_input", "grad_input"),
    "aten.threshold_backward.default": Row((0,), "threshold_backward.grad_input", "grad_input"),
    "poet.masked": Row((0,), in_rows=True),
    "poet.relu_backward": Row((0,), in_rows=True),
}


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


COPIED = frozenset({"aten.native_batch_norm_backward.default"})
"""The operators of which blocks are made apart and copied."""


def overwrites(call: Call) -> tuple[int, ...]:
    """Places of the operands that the result of ``call`` may be written over; none: it has no such kernel."""
    row = ROWS.get(call.target)
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
    if not row.name:
        return _OWN[target]
    name, overload = row.name.split(".")
    try:
        found: Callable[..., Tensor] = getattr(getattr(torch.ops.aten, name), overload)._op
    except AttributeError:
        raise PlanError(f"operator aten.{row.name} does not exist in torch {torch.__version__}") from None
    return functools.partial(_writing, found, row.keyword)


def _writing(
    found: Callable[..., Tensor], keyword: str, *args: object, out: Tensor, **named: object
) -> Tensor:
    shape = out.shape
    found(*args, **named, **({keyword: out} if keyword else {}))
    if out.shape != shape:  # torch makes a tensor larger that is too small for a result
        raise PlanError(f"a result of shape {tuple(out.shape)} is to be written over one of {tuple(shape)}")
    return out
