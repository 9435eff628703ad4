"""The numbered cells that hold everything an operator may be given, and the memory behind them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from poet.errors import PlanError, ReplayError
from poet.ir.graph import Argument, Graph, Ref, Symbol, TensorType, Value
from poet.runtime.kernels import arguments


@dataclass(frozen=True, slots=True)
class Padded:
    """A tensor that is smaller than its place in a step, and what stands behind it there."""

    tensor: torch.Tensor
    value: float

    def put(self, target: torch.Tensor) -> None:
        """Copy it into the beginning of ``target``, along every dim, and the value into the rest."""
        part = target.fill_(self.value)
        for dim, size in enumerate(self.tensor.shape):
            part = part.narrow(dim, 0, size)
        part.copy_(self.tensor)


@dataclass(frozen=True, slots=True)
class Repeated:
    """A tensor of fewer samples than its place in a step, where they begin again; of none there are zeros."""

    tensor: torch.Tensor | None

    def put(self, target: torch.Tensor) -> None:
        """Fill ``target``."""
        given = self.tensor
        if given is None:
            target.zero_()
        elif given.shape == target.shape:
            target.copy_(given)
        else:
            for start in range(0, len(target), len(given)):
                part = target[start : start + len(given)]
                part.copy_(given[: len(part)])


class Cells:
    """The numbered places: ``contents[number]``.

    Only values that something reads have a cell; `of_buffer` lists those of each buffer.
    """

    def __init__(self, graph: Graph) -> None:
        self.contents: list[Any] = []
        self.types = {value.name: value.type for value in graph.values}
        self.sizes_bytes = {buffer.name: buffer.size_bytes for buffer in graph.buffers}
        self.of_buffer: dict[str, list[tuple[int, TensorType]]] = {name: [] for name in self.sizes_bytes}
        self._values: dict[str, int] = {}
        self._hyperparameters: dict[str, int] = {}
        needed = _needed_values(graph)
        for value in graph.values:
            if value.name in needed:
                self._add_value(value)

    def value(self, name: str) -> int:
        """The number of the value's cell."""
        return self._values[name]

    def constant(self, content: object) -> int:
        """The number of a new cell that holds ``content`` for good."""
        self.contents.append(content)
        return len(self.contents) - 1

    def argument(self, argument: Argument) -> int:
        """The number of the cell from which an operator is given ``argument``.

        Raises:
            PlanError: a symbol that this runtime does not know.
        """
        if isinstance(argument, Ref):
            return self._values[argument.value]
        if isinstance(argument, Symbol) and argument.kind == "hyperparameter":
            if argument.name not in self._hyperparameters:
                self._hyperparameters[argument.name] = self.constant(None)
            return self._hyperparameters[argument.name]
        return self.constant(resolved(argument))

    def set_hyperparameters(self, amounts: Mapping[str, float]) -> None:
        """Put this step's scalars into their cells."""
        for name, number in self._hyperparameters.items():
            self.contents[number] = amounts[name]

    @property
    def hyperparameters(self) -> frozenset[str]:
        """Names of the scalars that instructions read."""
        return frozenset(self._hyperparameters)

    def install(self, buffer: str, raw: torch.Tensor) -> None:
        """Make every cell of ``buffer`` a view of the storage of ``raw``."""
        storage = raw.untyped_storage()
        for number, kind in self.of_buffer[buffer]:
            self.contents[number] = view_of(storage, kind)

    def allocate(self, buffer: str) -> None:
        """Give ``buffer`` fresh memory.

        Raises:
            ReplayError: there is none.
        """
        self.install(buffer, new_buffer(self.sizes_bytes[buffer]))

    def clear(self, buffer: str) -> None:
        """Empty every cell of ``buffer``."""
        for number, _ in self.of_buffer[buffer]:
            self.contents[number] = None

    def holds(self, buffer: str) -> bool:
        """Whether the buffer is in RAM."""
        numbers = self.of_buffer[buffer]
        return bool(numbers) and self.contents[numbers[0][0]] is not None

    def raw(self, buffer: str) -> torch.Tensor:
        """The bytes of a buffer that is in RAM."""
        anchor: torch.Tensor = self.contents[self.of_buffer[buffer][0][0]]
        return _flat_bytes(anchor)

    def _add_value(self, value: Value) -> None:
        number = self.constant(None)
        self._values[value.name] = number
        self.of_buffer[value.buffer].append((number, value.type))


def new_buffer(size_bytes: int, *, zeroed: bool = False) -> torch.Tensor:
    """``size_bytes`` fresh bytes.

    Raises:
        ReplayError: there is no memory for them.
    """
    try:
        make = torch.zeros if zeroed else torch.empty
        return make(size_bytes, dtype=torch.uint8)
    except (RuntimeError, TypeError):
        raise ReplayError(f"there is no memory for a buffer of {size_bytes} bytes") from None


def memory_of(raw: torch.Tensor) -> memoryview:
    """The memory of a contiguous byte tensor."""
    return raw.numpy().data


def _needed_values(graph: Graph) -> frozenset[str]:
    """Values that something reads, and those by which buffers are known."""
    needed = {*graph.inputs, graph.loss, *graph.predictions}
    inner = {value.name for op in graph.ops if op.strip is not None for value in op.strip.inner}
    needed.update(value for _, value in (*graph.states, *graph.constants))
    for parameter in graph.parameters:
        needed.add(parameter.value)
        if parameter.accumulator is not None:
            needed.add(parameter.accumulator)
        needed.update(value for _, value in parameter.optimizer_state)
        if parameter.gradient is not None and parameter.gradient not in inner:
            needed.add(parameter.gradient)
    for op in graph.ops:
        needed.update(name for name in op.outputs if name is not None)
        needed.update(op.call.refs())
        needed.update(op.recall.refs() if op.recall is not None else ())
    return frozenset(needed)


def resolved(argument: Argument) -> object:
    """A constant argument as torch spells it."""
    if isinstance(argument, tuple):
        return [resolved(item) for item in argument]
    if isinstance(argument, Ref):
        raise PlanError(f"value {argument.value} stands in a list inside a list")
    return arguments.constant(argument)


def view_of(storage: torch.UntypedStorage, kind: TensorType) -> torch.Tensor:
    """The value of type ``kind`` that lies in ``storage``."""
    empty = torch.empty(0, dtype=arguments.dtype(kind.dtype))
    return empty.set_(storage, kind.offset, kind.shape, kind.strides)


def _flat_bytes(tensor: torch.Tensor) -> torch.Tensor:
    storage = tensor.untyped_storage()
    return torch.empty(0, dtype=torch.uint8).set_(storage, 0, (storage.nbytes(),), (1,))
