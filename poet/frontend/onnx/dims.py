"""The dimensions of a model's inputs: which are open, and what the user binds them to."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from onnx import ValueInfoProto

from poet.errors import ModelError, nearest
from poet.files.reading import MOST_DIMENSIONS
from poet.frontend.onnx.build import Input
from poet.frontend.onnx.node import Rebound
from poet.frontend.onnx.reader import OnnxFile, dtype_of
from poet.micro import BATCH_NAMES

MOST_ELEMENTS = 1 << 48
"""Of a tensor: what is larger no machine holds, and torch refuses to describe it."""


@dataclass(frozen=True)
class Dims:
    """An input's dimensions: a size, or the name to bind."""

    name: str
    dims: tuple[int | str, ...]

    def __str__(self) -> str:
        return f"{self.name!r} ({' x '.join(map(str, self.dims)) or 'a single number'})"


def input_dims(file: OnnxFile) -> tuple[Dims, ...]:
    """The inputs that a caller gives (initialisers that are also inputs are none of them).

    Raises:
        ModelError: an input is not a tensor, or has no shape.
    """
    return tuple(Dims(entry.name, _dims(entry)) for entry in _inputs(file))


def _inputs(file: OnnxFile) -> list[ValueInfoProto]:
    return [entry for entry in file.model.graph.input if entry.name not in file.tensors]


def _dims(entry: ValueInfoProto) -> tuple[int | str, ...]:
    if not entry.type.HasField("tensor_type"):
        raise ModelError(f"input {entry.name!r} is not a tensor")
    if not entry.type.tensor_type.HasField("shape"):
        raise ModelError(f"input {entry.name!r} has no shape; export the model with one")
    return tuple(
        dim.dim_param or (dim.dim_value if dim.dim_value > 0 else f"{entry.name}.{axis}")
        for axis, dim in enumerate(entry.type.tensor_type.shape.dim)
    )


def fixed_batch(inputs: Sequence[Dims]) -> int | None:
    """The first dimension that all inputs share and the file fixes; ``None`` if there is none."""
    first = {entry.dims[0] if entry.dims else None for entry in inputs}
    size = first.pop() if len(first) == 1 else None
    return size if isinstance(size, int) else None


def bind_inputs(file: OnnxFile, bind: Mapping[str, int]) -> tuple[tuple[Input, ...], Rebound | None]:
    """The inputs with every dimension bound, and the first dimension that was fixed, if it is rebound.

    Raises:
        ModelError: a dimension is open, or ``bind`` names none of the model's.
    """
    inputs = input_dims(file)
    open_names = {dim for entry in inputs for dim in entry.dims if isinstance(dim, str)}
    rebound = _rebound(inputs, bind, open_names)
    for name, size in bind.items():
        if size < 1:
            raise ModelError(f"{file.name}: dimension {name!r} is bound to {size}, expected at least 1")
        if name not in open_names and not (rebound and name in BATCH_NAMES):
            known = sorted(open_names) or ["none"]
            raise ModelError(
                f"{file.name}: {name!r} is not an open dimension{nearest(name, open_names)}; "
                f"open are: {', '.join(known)}"
            )
    missing = sorted(open_names - set(bind))
    if missing:
        shapes = "; ".join(str(entry) for entry in inputs if set(entry.dims) & set(missing))
        options = " ".join(f"--bind {name}=8" for name in missing)
        raise ModelError(f"{file.name}: open dimensions in input {shapes}; bind them, for example {options}")
    return tuple(
        Input(
            entry.name,
            dtype_of(entry.type.tensor_type.elem_type, f"input {entry.name!r}"),
            _shape(dims, bind, rebound),
        )
        for entry, dims in zip(_inputs(file), inputs, strict=True)
    ), rebound


def _rebound(inputs: Sequence[Dims], bind: Mapping[str, int], open_names: set[str]) -> Rebound | None:
    old = fixed_batch(inputs)
    new = next((bind[name] for name in BATCH_NAMES if name in bind and name not in open_names), None)
    return None if old is None or new is None else Rebound(old, new)


def _shape(entry: Dims, bind: Mapping[str, int], rebound: Rebound | None) -> tuple[int, ...]:
    shape = [bind[dim] if isinstance(dim, str) else dim for dim in entry.dims]
    if rebound is not None:
        shape[0] = rebound.new
    if len(shape) > MOST_DIMENSIONS:
        raise ModelError(
            f"input {entry.name!r} has {len(shape)} dimensions; a tensor has at most {MOST_DIMENSIONS}"
        )
    if math.prod(shape) > MOST_ELEMENTS:
        raise ModelError(f"input {entry.name!r} is bound to {shape}; no machine holds such a tensor")
    return tuple(shape)
