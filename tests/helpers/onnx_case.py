"""Single-operator ONNX cases: every imported operator over attributes, ranks, element types and opsets.

A case is what a node gets: attributes, inputs (``None`` is an absent one), how many outputs are asked for.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx

Given = tuple[dict[str, Any], Sequence[Any]] | tuple[dict[str, Any], Sequence[Any], int]
Maker = Callable[[str, int], Iterator[Given]]

OPSETS = (9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24)
NUMPY = {
    "tensor(float)": np.float32,
    "tensor(double)": np.float64,
    "tensor(float16)": np.float16,
    "tensor(int64)": np.int64,
    "tensor(int32)": np.int32,
    "tensor(int16)": np.int16,
    "tensor(int8)": np.int8,
    "tensor(uint8)": np.uint8,
    "tensor(uint16)": np.uint16,
    "tensor(uint32)": np.uint32,
    "tensor(uint64)": np.uint64,
    "tensor(bool)": np.bool_,
}
EDGES = np.array(
    [np.nan, np.inf, -np.inf, -0.0, 0.0, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 1e-3, 88.0, -88.0, 6.0, 3.0],
    np.float32,
)


MAKERS: dict[str, Maker] = {}
"""By operator, what gives its cases in an opset."""


@dataclass(frozen=True)
class Case:
    """One node with its inputs; ``number`` among the cases of its operator and opset."""

    op: str
    opset: int
    number: int
    attributes: dict[str, Any]
    inputs: tuple[np.ndarray | None, ...]
    outputs: int = 1

    def __str__(self) -> str:
        shapes = ", ".join("-" if x is None else f"{x.dtype}{list(x.shape)}" for x in self.inputs)
        return f"{self.op}-{self.opset} #{self.number} {self.attributes} ({shapes})"


def cases(op: str) -> Iterator[Case]:
    """The cases of ``op`` at each opset in which its definition changed, and at the newest."""
    for opset in versions(op):
        with np.errstate(all="ignore"):
            made = list(MAKERS[op](op, opset))
        for number, given in enumerate(made):
            yield Case(op, opset, number, given[0], tuple(given[1]), given[2] if len(given) == 3 else 1)


def versions(op: str) -> list[int]:
    """Opsets from 9 on at which ``op`` is another one, the oldest and the newest."""
    since = {opset: schema(op, opset) for opset in OPSETS}
    found = {one.since_version: opset for opset, one in reversed(since.items()) if one is not None}
    usable = [opset for opset, one in since.items() if one is not None]
    return sorted({*found.values(), *usable[-1:]})


def schema(op: str, opset: int) -> onnx.defs.OpSchema | None:
    """The definition of ``op`` in ``opset``; ``None`` where there is none."""
    try:
        found = onnx.defs.get_schema(op, opset)
    except onnx.defs.SchemaError:
        return None
    return None if found.deprecated else found


def of(*names: str) -> Callable[[Maker], Maker]:
    """Enters a function as that which gives the cases of these operators."""

    def enter(maker: Maker) -> Maker:
        MAKERS.update(dict.fromkeys(names, maker))
        return maker

    return enter


def types(op: str, opset: int, place: int = 0) -> list[type]:
    """Element types that input ``place`` may have, which torch has too."""
    found = schema(op, opset)
    assert found is not None
    return [NUMPY[name] for name in NUMPY if name in found.inputs[place].types]


def _rng() -> np.random.Generator:
    return np.random.default_rng(7)


def f(*shape: int, dtype: Any = np.float32, low: float = -3, high: float = 3) -> np.ndarray:
    """Numbers of any type between ``low`` and ``high``."""
    rng = _rng()
    if np.dtype(dtype) == np.bool_:
        return rng.integers(0, 2, shape).astype(bool)
    if np.issubdtype(dtype, np.integer):
        low = max(low, 0) if np.issubdtype(dtype, np.unsignedinteger) else low
        return rng.integers(int(low), int(high) + 1, shape).astype(dtype)
    return np.asarray(rng.uniform(low, high, shape)).astype(dtype)


def i64(*numbers: int) -> np.ndarray:
    """A vector of whole numbers."""
    return np.array(numbers, np.int64)


def product(**choices: Sequence[Any]) -> Iterator[dict[str, Any]]:
    """Every combination; an attribute whose value is ``None`` is left out."""
    for values in itertools.product(*choices.values()):
        yield {k: v for k, v in zip(choices, values, strict=True) if v is not None}
