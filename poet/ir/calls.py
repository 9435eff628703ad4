"""What a call is: an operator and its arguments, which may be values of static types.

It knows no torch and no kernels. `poet.ir.graph` puts calls together.
"""

from __future__ import annotations

import functools
import math
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

from poet.errors import GraphError
from poet.ir.op_spec import Numbers
from poet.ir.operators import spec_of
from poet.util import codec
from poet.util.reading import LARGEST_WHOLE, MOST_DIMENSIONS, is_whole, shown

ITEM_BYTES = {
    "float64": 8, "float32": 4, "float16": 2, "bfloat16": 2,
    "int64": 8, "int32": 4, "int16": 2, "int8": 1, "uint8": 1, "bool": 1,
}  # fmt: skip
"""The element types a graph may use, by torch's name, and their size in bytes."""


@dataclass(frozen=True, slots=True)
class TensorType:
    """Element type, shape, strides and offset (in elements, from the start of the buffer)."""

    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int = 0

    def __post_init__(self) -> None:
        if self.dtype not in ITEM_BYTES:
            raise GraphError(f"element type {self.dtype!r} is not one of {', '.join(ITEM_BYTES)}")
        if len(self.shape) != len(self.strides):
            raise GraphError(f"shape {self.shape} and strides {self.strides} differ in length")
        if len(self.shape) > MOST_DIMENSIONS:
            raise GraphError(f"{len(self.shape)} dimensions; a tensor has at most {MOST_DIMENSIONS}")
        if self.offset < 0 or any(size < 0 for size in (*self.shape, *self.strides)):
            raise GraphError(f"negative size, stride or offset in {self}")
        if self.elements > LARGEST_WHOLE:
            raise GraphError(f"{self} has more elements than 64 bits can count")

    @property
    def elements(self) -> int:
        """Number of elements."""
        return functools.reduce(lambda product, size: product * size, self.shape, 1)

    @property
    def extent_bytes(self) -> int:
        """Bytes from the buffer's start to the end of the last element addressed."""
        if self.elements == 0:
            return 0
        last = sum((size - 1) * stride for size, stride in zip(self.shape, self.strides, strict=True))
        return (self.offset + last + 1) * ITEM_BYTES[self.dtype]

    @property
    def is_dense(self) -> bool:
        """Whether the elements lie one after the other in some order, wherever they begin."""
        end_bytes = (self.offset + self.elements) * ITEM_BYTES[self.dtype]
        return self.elements == 0 or (self.extent_bytes == end_bytes and not self.overlaps_itself)

    @property
    def overlaps_itself(self) -> bool:
        """Whether two elements may lie at one place, as after an expansion; such a value cannot be filled."""
        reach = 0
        for stride, size in sorted(zip(self.strides, self.shape, strict=True)):
            if size > 1:
                if stride <= reach:
                    return self.elements > 0
                reach += (size - 1) * stride
        return False

    @property
    def is_contiguous(self) -> bool:
        """Whether the elements lie one after the other in row-major order, wherever they begin."""
        rows = contiguous(self.dtype, self.shape).strides
        lie_so = (
            size == 1 or stride == row
            for size, stride, row in zip(self.shape, self.strides, rows, strict=True)
        )
        return self.elements == 0 or all(lie_so)

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"


def contiguous(dtype: str, shape: tuple[int, ...]) -> TensorType:
    """The type of a tensor of its own in row-major order."""
    strides: list[int] = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return TensorType(dtype, shape, tuple(reversed(strides)))


@dataclass(frozen=True, slots=True)
class Value:
    """A typed view of a buffer."""

    name: str
    buffer: str
    type: TensorType


@dataclass(frozen=True, slots=True)
class Ref:
    """An argument that is the value of this name."""

    value: str


@dataclass(frozen=True, slots=True)
class Symbol:
    """An argument that torch spells as an object of its own.

    ``kind`` is ``dtype``, ``layout``, ``memory_format`` or ``device`` (``name`` is torch's name for
    it), or ``hyperparameter`` (``name`` is one of the optimizer's per-step scalars).
    """

    kind: str
    name: str

    KINDS: ClassVar[tuple[str, ...]] = ("dtype", "layout", "memory_format", "device", "hyperparameter")

    def __post_init__(self) -> None:
        if self.kind not in Symbol.KINDS:
            raise GraphError(f"symbol kind {self.kind!r} is not one of {', '.join(Symbol.KINDS)}")


@dataclass(frozen=True, slots=True)
class Blank:
    """A tensor argument of which the operator reads the type and never the contents.

    A convolution's input gradient is given the forward input, a pooling's too, for its shape only:
    nothing need be kept in RAM for it. Whoever runs the call gives any tensor of this type.
    """

    type: TensorType


Argument = None | bool | int | float | str | Ref | Symbol | Blank | tuple["Argument", ...]
"""What an operator may be given; floats may be infinite."""


@dataclass(frozen=True, slots=True)
class Call:
    """An operator and its arguments: ``target`` is ``aten.<name>.<overload>`` or ``poet.<name>``."""

    target: str
    args: tuple[Argument, ...]
    kwargs: tuple[tuple[str, Argument], ...] = ()

    def refs(self) -> Iterator[str]:
        """Names of the values that this call is given, in order, with repetitions."""
        pending: list[Argument] = [*self.args, *(argument for _, argument in self.kwargs)]
        for argument in pending:
            if isinstance(argument, Ref):
                yield argument.value
            elif isinstance(argument, tuple):
                pending.extend(argument)

    def to_data(self) -> dict[str, object]:
        """JSON-ready form, read back by `from_data`."""
        data: dict[str, object] = {"target": self.target, "args": [_encode_argument(a) for a in self.args]}
        if self.kwargs:
            data["kwargs"] = {key: _encode_argument(argument) for key, argument in self.kwargs}
        return data

    @staticmethod
    def from_data(data: Any, where: str) -> Call:
        """The call that `to_data` wrote.

        Raises:
            GraphError: ``data`` is not of that form.
        """
        if not isinstance(data, dict) or not {"target", "args"} <= data.keys() <= {
            "target",
            "args",
            "kwargs",
        }:
            raise GraphError(f"{where}: a call has a target, args and perhaps kwargs")
        target, args, kwargs = data["target"], data["args"], data.get("kwargs", {})
        if not isinstance(target, str) or not isinstance(args, list) or not isinstance(kwargs, dict):
            raise GraphError(f"{where}: a call is a string, a list and an object")
        return Call(
            target,
            tuple(_decode_argument(argument, where, 0) for argument in args),
            tuple((key, _decode_argument(argument, where, 0)) for key, argument in kwargs.items()),
        )

    def __str__(self) -> str:
        given = [_show(argument) for argument in self.args]
        given += [f"{key}={_show(argument)}" for key, argument in self.kwargs]
        return f"{self.target}({', '.join(given)})"


# --- text and JSON ----------------------------------------------------------------------------


def _show(argument: Argument) -> str:
    if isinstance(argument, Ref):
        return f"%{argument.value}"
    if isinstance(argument, Symbol):
        return argument.name
    if isinstance(argument, Blank):
        return f"blank {argument.type}"
    if isinstance(argument, tuple):
        return f"[{', '.join(map(_show, argument))}]"
    return repr(argument)


_SPELLED_FLOATS = {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}  # JSON has no word for these


def _encode_argument(argument: Argument) -> Any:
    if isinstance(argument, Ref):
        return {"value": argument.value}
    if isinstance(argument, Symbol):
        return {argument.kind: argument.name}
    if isinstance(argument, Blank):
        return {"blank": codec.encode(argument.type)}
    if isinstance(argument, tuple):
        return [_encode_argument(item) for item in argument]
    if isinstance(argument, float) and not math.isfinite(argument):
        return {"float": str(argument)}
    return argument


def _decode_argument(data: Any, where: str, depth: int) -> Argument:
    if data is None or isinstance(data, bool | float | str) or is_whole(data):
        return typing.cast(Argument, data)
    if isinstance(data, list) and depth < 8:
        return tuple(_decode_argument(item, where, depth + 1) for item in data)
    if isinstance(data, dict) and len(data) == 1:
        kind, name = next(iter(data.items()))
        if kind == "blank":
            return Blank(codec.decode(TensorType, name, where=where, error=GraphError))
        if isinstance(name, str):
            if kind == "value":
                return Ref(name)
            if kind == "float" and name in _SPELLED_FLOATS:
                return _SPELLED_FLOATS[name]
            if kind in Symbol.KINDS:
                return Symbol(kind, name)
    raise GraphError(f"{where}: {shown(data)} is not an operator's argument")


class Counted(NamedTuple):
    """Whole numbers that a call is given: the value, how many there are, of what, and one left out."""

    value: str
    below: int
    numbers: Numbers
    ignored: int | None


def counted(call: Call, types: Mapping[str, TensorType]) -> Counted | None:
    """The argument of ``call`` that numbers classes or rows; ``None``: it has none."""
    numbers = spec_of(call.target).numbers
    if numbers is None:
        return None

    def argument(place: int | None) -> Argument:
        return call.args[place] if place is not None and place < len(call.args) else None

    given, table, below = argument(numbers.place), argument(numbers.table[0]), argument(numbers.total)
    if numbers.total is None and isinstance(table, Ref):
        shape, dim = types[table.value].shape, numbers.table[1]
        below = (*shape, None)[min(dim if len(shape) > 1 else 0, len(shape))]
    ignored = argument(numbers.ignored)
    if not isinstance(given, Ref) or not isinstance(below, int):
        return None
    return Counted(given.value, below, numbers, ignored if isinstance(ignored, int) else None)


def blanked(call: Call, types: Mapping[str, TensorType]) -> Call:
    """The call with a blank, at the beginning of its memory, for each tensor."""
    args: tuple[Argument, ...] = tuple(
        Blank(replace(types[item.value], offset=0)) if isinstance(item, Ref) else item for item in call.args
    )
    return replace(call, args=args)
