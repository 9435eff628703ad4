"""Measured times of single ops: rows by operator, arguments, shapes and element types.

A row holds for an op of any model that is alike. Its key is a text that people can read, with a digest of all
that makes two ops alike: the call, and types without the place in their buffer.
"""

from __future__ import annotations

import hashlib
import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from poet import codec
from poet.calls import Call, TensorType, contiguous
from poet.devices.measurements import OpTime, StepTime

MOST_ROWS = 2000
MOST_ROWS_BYTES = 700_000
"""Of a profile, as its file has them, which `poet.devices.load.MAX_FILE_BYTES` limits; those that take the
most time in all are kept."""

LEAST_WIDTH = 0.05
"""Of the rows' time, either way: what a step differs by from day to day."""

_DIGITS = 12
_FIGURE_BYTES = 16
"""Of a row's line beside its key."""


def row_key(op: OpTime) -> str:
    """Equal for ops that are alike, whatever model they are of."""
    call = {
        "call": codec.encode(op.call),
        "given": [_told(type_) for type_ in op.types],
        "made": [None if type_ is None else _told(type_) for type_ in op.outputs],
        "updated": op.updated_bytes,
    }
    digest = hashlib.sha256(json.dumps(call, sort_keys=True).encode()).hexdigest()[:_DIGITS]
    return f"{op.call.target} {' '.join(map(str, op.types))} #{digest}"


def plain_form(op: OpTime) -> OpTime | None:
    """The op of plain training in whose place ``op`` makes or reads a compressed activation, if it does.

    Profiles are measured on steps that save what plain training saves, so they have rows for that one alone.
    """
    target, args = op.call.target, op.call.args
    if target == "poet.relu" and len(args) == 2:
        return replace(op, call=Call("aten.relu.default", args[:1]), outputs=op.outputs[:1])
    if target == "poet.relu_backward" and len(args) == 2 and len(op.types) == 2:
        call = Call("aten.threshold_backward.default", (*args, 0))
        return replace(op, call=call, types=(op.types[0], _alike(op.types[0])))
    if target == "poet.masked" and len(args) == 3 and len(op.types) == 2:
        return replace(op, call=Call("aten.mul.Tensor", args[:2]), types=(op.types[0], _alike(op.types[0])))
    if target == "poet.max_pool" and len(op.outputs) == 2 and op.outputs[1] is not None:
        indices = contiguous("int64", op.outputs[1].shape)
        call = Call("aten.max_pool2d_with_indices.default", args)
        return replace(op, call=call, outputs=(op.outputs[0], indices))
    if target == "poet.max_pool_backward" and len(op.types) == 2:
        call = Call("aten.max_pool2d_with_indices_backward.default", args)
        return replace(op, call=call, types=(op.types[0], contiguous("int64", op.types[1].shape)))
    return None


def _alike(type_: TensorType) -> TensorType:
    return contiguous(type_.dtype, type_.shape)


def _told(type_: TensorType) -> object:
    return codec.encode(replace(type_, offset=0))


@dataclass(frozen=True, slots=True)
class Rows:
    """What some measured steps come to.

    Attributes:
        models: whose steps.
        seconds: by `row_key`.
        width: of all, relative, either way: how far repeated steps lie apart.
        left_out: how many were one too many.
    """

    models: tuple[str, ...]
    seconds: Mapping[str, float]
    width: float
    left_out: int


def rows_of(steps: Sequence[StepTime]) -> Rows:
    """Rows of the ops of ``steps``, each the median over the steps that have it."""
    taken: dict[str, list[float]] = {}
    weight: dict[str, float] = {}
    for step in steps:
        for op in step.ops:
            key = row_key(op)
            taken.setdefault(key, []).append(op.seconds)
            weight[key] = max(weight.get(key, 0.0), op.seconds * op.runs)
    kept = _fitting(sorted(weight, key=lambda key: -weight[key]))
    return Rows(
        tuple(dict.fromkeys(step.name for step in steps)),
        {key: statistics.median(taken[key]) for key in sorted(kept)},
        max(LEAST_WIDTH, *map(_width, _repeats(steps))) if steps else LEAST_WIDTH,
        len(weight) - len(kept),
    )


def _fitting(keys: Sequence[str]) -> Sequence[str]:
    """The first of ``keys`` that a profile has room for."""
    ends_bytes = accumulate(len(json.dumps(key)) + _FIGURE_BYTES for key in keys)
    return keys[: min(MOST_ROWS, sum(end <= MOST_ROWS_BYTES for end in ends_bytes))]


def _repeats(steps: Sequence[StepTime]) -> list[list[float]]:
    """Seconds of whole steps, those together that are of one name and the same ops."""
    found: dict[tuple[object, ...], list[float]] = {}
    for step in steps:
        alike = (step.name, *sorted((row_key(op), op.runs) for op in step.ops))
        found.setdefault(alike, []).append(step.seconds)
    return list(found.values())


def _width(seconds: Sequence[float]) -> float:
    """Half of how far equal steps lie apart, relative, at most a half."""
    return min(0.5, 0.5 * math.log(max(seconds) / min(seconds)))
