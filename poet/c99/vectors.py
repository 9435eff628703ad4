"""What the exported folder's own test is held to: three steps in PyTorch, in float32 and in float64.

Inputs come from a formula that C and Python share, so that no file of numbers is needed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from poet.c99.calls import float_text
from poet.c99.interface import Interface
from poet.c99.sources import filled
from poet.errors import UnsupportedOperator
from poet.ir.graph import Argument, Blank, Call, Graph, Op, Symbol
from poet.ir.optimizer import OptimizerSpec
from poet.runtime import kernels
from poet.runtime.kernels import arguments
from poet.runtime.kernels.guards import check_calls

STEPS = 3
_DISTANCES, _SHARE = 8.0, 1e-5


@dataclass(frozen=True, slots=True)
class Vectors:
    """The losses of some steps in PyTorch, and how far others may be away; ``None``: not known.

    ``are_shares``: the floats that the steps are given are from 0 to 1, as a net wants that fails below 0.
    """

    losses: tuple[float, ...]
    tolerances: tuple[float | None, ...]
    are_shares: bool = False


def numbers(step: int, stream: int, count: int) -> np.ndarray[tuple[int], np.dtype[np.uint32]]:
    """``count`` numbers of 32 bits for a step and a stream (an input's index), as in ``vectors.c``."""
    index = np.arange(count, dtype=np.uint64)
    start = (step * 1000003 + stream * 10007 + 1) & 0xFFFFFFFF
    mixed = (index * 2654435761 + start * 40503) & 0xFFFFFFFF
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
        mixed = ((mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)) & np.uint64(0xFFFFFFFF)
    return (mixed ^ (mixed >> np.uint64(16))).astype(np.uint32)


def floats(step: int, stream: int, count: int) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    """Likewise, numbers from -1 up to 1."""
    return (
        (numbers(step, stream, count) >> 8).astype(np.float32) * np.float32(2.0**-23) - np.float32(1.0)
    ).astype(np.float32)


def given_tensors(
    graph: Graph, interface: Interface, step: int, *, are_shares: bool = False
) -> dict[str, Tensor]:
    """Inputs and target of a step of the test, by value name; floats from -1 or (``are_shares``) 0 to 1."""
    streams = [*interface.inputs, *([interface.target] if interface.target else [])]
    found = {}
    for stream, (name, placed) in enumerate(streams):
        count, shape = placed.type.elements, placed.type.shape
        rows = interface.rows[stream] if stream < len(interface.rows) else 0
        if rows:
            looked_up = numbers(step, stream, count).astype(np.int64) % rows
            found[name] = torch.from_numpy(looked_up).reshape(shape)
        elif placed.type.dtype == "int64" and interface.classes is not None:
            classes = numbers(step, stream, count).astype(np.int64) % interface.classes
            found[name] = torch.from_numpy(classes).reshape(shape)
        else:
            drawn = torch.from_numpy(floats(step, stream, count).copy()).reshape(shape)
            found[name] = (drawn + 1) / 2 if are_shares else drawn
    return found


class PlainSteps:
    """A graph's steps in PyTorch, op by op in order, in float32 or with every float as a float64.

    Attributes:
        tensors: by buffer name, a tensor of its elements; those that live across steps stay.
    """

    def __init__(
        self, graph: Graph, spec: OptimizerSpec, kept: Mapping[str, Tensor], *, is_double: bool = False
    ) -> None:
        check_calls(graph)
        self.graph, self.spec, self.is_double, self.steps = graph, spec, is_double, 0
        self.types = {value.name: value for value in graph.values}
        self.types |= {value.name: value for op in graph.ops if op.strip for value in op.strip.inner}
        self.tensors = {name: self._own(tensor) for name, tensor in kept.items()}

    def _own(self, tensor: Tensor) -> Tensor:
        return tensor.double() if self.is_double and tensor.is_floating_point() else tensor.clone()

    def value(self, name: str) -> Tensor:
        """The view of its buffer that a value is."""
        kind, flat = self.types[name].type, self.tensors[self.types[name].buffer]
        return flat.as_strided(kind.shape, kind.strides, kind.offset)

    def fill(self, values: Mapping[str, Tensor]) -> None:
        """Give a step its inputs and target."""
        for name, tensor in values.items():
            kind = self.types[name].type
            own = self._own(tensor)
            flat = torch.empty(kind.extent_bytes // arguments.dtype(kind.dtype).itemsize, dtype=own.dtype)
            flat.as_strided(kind.shape, kind.strides, kind.offset).copy_(own)
            self.tensors[self.types[name].buffer] = flat

    def step(self) -> float:
        """Run one step; the loss."""
        self.steps += 1
        scalars = self.spec.hyperparameters(self.steps)
        for op in self.graph.ops:
            self.run(op, scalars)
        return float(self.value(self.graph.loss))

    def run(self, op: Op, scalars: Mapping[str, float]) -> None:
        """Run one op on what there is; of a strip each call, whole."""
        for part in (op,) if op.strip is None else op.strip.links:
            given = doubled(part.call) if self.is_double else part.call
            made = kernels.run(given, self.value, scalars.__getitem__)
            for name, tensor in zip(part.outputs, made, strict=False):
                if name is not None and tensor is not None:
                    self._put(name, tensor)

    def _put(self, name: str, tensor: Tensor) -> None:
        kind = self.types[name].type
        size = 1 + sum((n - 1) * s for n, s in zip(kind.shape, kind.strides, strict=True)) + kind.offset
        is_widened = self.is_double and tensor.is_floating_point()  # of what `eye` makes, for one
        dtype = torch.float64 if is_widened else tensor.dtype
        flat = torch.empty(size if tensor.numel() else 0, dtype=dtype)
        if tensor.numel():
            flat.as_strided(kind.shape, kind.strides, kind.offset).copy_(tensor)
        self.tensors[self.types[name].buffer] = flat


def doubled(call: Call) -> Call:
    """``call`` with float64 wherever it says float32."""

    def of(argument: Argument) -> Argument:
        if isinstance(argument, Symbol) and (argument.kind, argument.name) == ("dtype", "float32"):
            return Symbol("dtype", "float64")
        if isinstance(argument, Blank) and argument.type.dtype == "float32":
            return Blank(replace(argument.type, dtype="float64"))
        return tuple(map(of, argument)) if isinstance(argument, tuple) else argument

    kwargs = tuple((key, of(argument)) for key, argument in call.kwargs)
    return Call(call.target, tuple(map(of, call.args)), kwargs)


def vectors_of(
    graph: Graph, spec: OptimizerSpec, interface: Interface, kept: Mapping[str, Tensor]
) -> Vectors:
    """Losses of `STEPS` steps from ``kept``; tolerances follow PyTorch's own distance from float64.

    A step that draws random numbers has none: C draws others.

    Raises:
        UnsupportedOperator: PyTorch fails on inputs from -1 to 1 and on those from 0 to 1, or its loss is not
            finite there.
    """
    try:
        found = _losses_of(graph, spec, interface, kept, are_shares=False)
    except RuntimeError:  # of a kernel: a logarithm's argument, a probability
        found = None
    if found is None or not all(map(math.isfinite, found.losses)):
        try:
            found = _losses_of(graph, spec, interface, kept, are_shares=True)
        except RuntimeError as error:
            raise UnsupportedOperator(f"PyTorch fails on the test's inputs from 0 to 1: {error}") from None
    if not all(map(math.isfinite, found.losses)):
        raise UnsupportedOperator(
            "PyTorch's loss is not finite for the test's inputs, neither from -1 to 1 nor from 0 to 1"
        )
    return found


def _losses_of(
    graph: Graph,
    spec: OptimizerSpec,
    interface: Interface,
    kept: Mapping[str, Tensor],
    *,
    are_shares: bool,
) -> Vectors:
    plain = PlainSteps(graph, spec, kept)
    is_random = any(op.random for op in graph.ops)
    exact = None if is_random else PlainSteps(graph, spec, kept, is_double=True)
    losses, tolerances = [], list[float | None]()
    distance = 0.0
    for step in range(STEPS):
        given = given_tensors(graph, interface, step, are_shares=are_shares)
        plain.fill(given)
        losses.append(plain.step())
        if exact is None:
            tolerances.append(None)
            continue
        exact.fill(given)
        distance = max(distance, abs(exact.step() - losses[-1]))
        tolerances.append(_DISTANCES * distance + _SHARE * (1.0 + abs(losses[-1])))
    return Vectors(tuple(losses), tuple(tolerances), are_shares)


def vectors_header() -> str:
    """``test/vectors.h``."""
    return filled("vectors.h", STEPS=str(STEPS))


def _of_rows(index: int) -> str:
    """C text that fills an input of numbers of rows."""
    return (
        f"    for (int32_t at = 0; at < POET_INPUT_{index}_NUMBERS; ++at) {{\n"
        f"        const uint32_t drawn = number(step, {index}, at) % POET_INPUT_{index}_ROWS;\n"
        f"        (void)poet_set_number(net, {index}, at, (int32_t)drawn);\n    }}"
    )


def vectors_source(interface: Interface, vectors: Vectors) -> str:
    """``test/vectors.c``."""
    fills = [
        _of_rows(index)
        if rows
        else f"    fill(poet_input(net, {index}), step, {index}, POET_INPUT_{index}_FLOATS);"
        for index, rows in enumerate(interface.rows)
    ]
    stream = len(interface.inputs)
    if interface.target is not None and interface.classes is not None:
        fills.append(
            "    for (int32_t row = 0; row < POET_ROWS; ++row) {\n"
            f"        const uint32_t drawn = number(step, {stream}, row) % POET_CLASSES;\n"
            "        (void)poet_set_class(net, row, (int32_t)drawn);\n    }"
        )
    elif interface.target is not None:
        fills.append(f"    fill(poet_target(net), step, {stream}, POET_TARGET_FLOATS);")
    losses = ", ".join(float_text(loss) for loss in vectors.losses)
    allowed = ", ".join("3e38f" if item is None else float_text(item) for item in vectors.tolerances)
    remark = "" if None not in vectors.tolerances else " /* random: its masks are not PyTorch's */"
    drawn = "* 0x1p-24f" if vectors.are_shares else "* 0x1p-23f - 1.0f"
    fill = (
        f"""
static void fill(float *y, int32_t step, int32_t stream, int32_t count)
{{
    for (int32_t i = 0; i < count; ++i) {{
        y[i] = (float)(number(step, stream, i) >> 8) {drawn};
    }}
}}
"""
        if 0 in interface.rows or (interface.target is not None and interface.classes is None)
        else ""
    )
    return filled(
        "vectors.c", LOSSES=losses, TOLERANCES=allowed, REMARK=remark, FILL=fill, FILLS="\n".join(fills)
    )
