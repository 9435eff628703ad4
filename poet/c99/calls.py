"""Calls of C functions on tensors that lie at known places of an arena."""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from poet.errors import UnsupportedOperator
from poet.ir.graph import ITEM_BYTES, Argument, Blank, Call, Ref, TensorType

WORD_BYTES = 4
"""The arena is an array of floats; places count in them."""

LOOPS = "ijklmopq"
"""What loops count with, the outermost first; not n: the numbers of a run."""
_LARGEST = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Address:
    """A place in the arena, or in another array: a word, and C text of what loops add (`` + i * 3``)."""

    word: int
    advance: str = ""
    base: str = "a"


@dataclass(frozen=True, slots=True)
class Update:
    """A ``poet_update``: what becomes of each element that is made.

    Attributes:
        function: ``poet_apply_...``.
        places: of the parameter and of two states; ``None``: a null pointer.
        numbers: C text.
    """

    function: str
    places: tuple[Address | None, ...]
    numbers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Placed:
    """A tensor in the arena; ``word``: of its first element. One that is ``in_flash`` begins at that byte."""

    type: TensorType
    word: int
    in_flash: bool = False

    def pointer(self, strides: Sequence[int] = ()) -> Address:
        """Its address, inside loops whose numbers advance it by ``strides``."""
        items, named = ITEM_BYTES[self.type.dtype] // WORD_BYTES, zip(LOOPS, strides, strict=False)
        return Address(
            self.word, "".join(f" + {name} * {stride * items}" for name, stride in named if stride)
        )

    @property
    def is_dense(self) -> bool:
        """Whether its elements lie one after the other, in order."""
        reach = 1
        for size, stride in zip(reversed(self.type.shape), reversed(self.type.strides), strict=True):
            if size > 1 and stride != reach:
                return False
            reach *= size
        return True


def memory_order(kind: TensorType) -> tuple[int, ...]:
    """The dimensions of a tensor, that whose neighbours lie furthest apart first."""
    return tuple(sorted(range(len(kind.shape)), key=lambda dim: -kind.strides[dim]))


def in_order(tensor: Placed, order: Sequence[int]) -> Placed:
    """``tensor`` with its dimensions in ``order``; those that it lacks are of one element, and first."""
    kind, missing = tensor.type, len(order) - len(tensor.type.shape)
    shape, strides = (1,) * missing + kind.shape, (0,) * missing + kind.strides
    turned = replace(
        kind, shape=tuple(shape[dim] for dim in order), strides=tuple(strides[dim] for dim in order)
    )
    return replace(tensor, type=turned)


def placed_at(kind: TensorType, offset_bytes: int) -> Placed:
    """A tensor whose buffer begins ``offset_bytes`` from the arena's start."""
    return Placed(kind, (offset_bytes + kind.offset * ITEM_BYTES[kind.dtype]) // WORD_BYTES)


@dataclass(frozen=True, slots=True)
class CStruct:
    """A constant record of a C type; ``fields`` are its members' texts, records among them."""

    type: str
    fields: tuple[str | CStruct, ...]

    def text(self) -> str:
        """Its initialiser."""
        inner = (field.text() if isinstance(field, CStruct) else field for field in self.fields)
        return "{" + ", ".join(inner) + "}"


Given = str | Address | CStruct | Update
"""An argument of a call; C text stands for itself."""


@dataclass(frozen=True, slots=True)
class CCall:
    """One call, inside loops where ``loops`` has their lengths, outermost first."""

    function: str
    arguments: tuple[Given, ...]
    loops: tuple[int, ...] = ()

    @property
    def heads(self) -> tuple[str, ...]:
        """C text of the loops, without bodies."""
        named = zip(LOOPS, self.loops, strict=False)
        return tuple(f"for (int32_t {name} = 0; {name} < {size}; ++{name})" for name, size in named)


@dataclass(frozen=True, slots=True)
class OpRun:
    """One run of an op: its call, and the places of what it reads and writes."""

    name: str
    call: Call
    outputs: tuple[Placed | None, ...]
    values: Mapping[str, Placed]
    taken: Mapping[int, OpRun] = field(default_factory=dict)
    """By the number of an output, the update that takes its elements as they are made."""

    def refuse(self, why: str) -> UnsupportedOperator:
        """The error that says why this run cannot be C."""
        return UnsupportedOperator(f"op {self.name}: {self.call.target} has no C kernel {why}")

    def argument(self, index: int, otherwise: Argument = None, *, name: str = "") -> Argument:
        """Positional argument ``index``, or the one of that name."""
        if index < len(self.call.args):
            return self.call.args[index]
        return dict(self.call.kwargs).get(name, otherwise)

    def optional(self, index: int) -> Placed | None:
        """The tensor that is argument ``index``, where there is one."""
        argument = self.argument(index)
        return self.values[argument.value] if isinstance(argument, Ref) else None

    def tensor(self, index: int) -> Placed:
        """The tensor that is argument ``index``."""
        found = self.optional(index)
        if found is None:
            raise self.refuse(f"where argument {index} is no tensor")
        return found

    def floats(self, index: int) -> Placed:
        """Likewise, of floats."""
        found = self.tensor(index)
        if found.type.dtype != "float32":
            raise self.refuse(f"for {found.type}; kernels are of float32")
        return found

    def dense(self, index: int) -> Placed:
        """Likewise, of floats that lie one after the other."""
        return self.checked(self.tensor(index))

    def optional_dense(self, index: int) -> Placed | None:
        """Likewise, where there is one."""
        found = self.optional(index)
        return None if found is None else self.checked(found)

    def type_of(self, index: int) -> TensorType:
        """The type of argument ``index``, whose contents may not be there."""
        argument = self.argument(index)
        return argument.type if isinstance(argument, Blank) else self.tensor(index).type

    def made(self) -> list[Placed]:
        """The outputs that there are, laid out as they may be."""
        return [out for out in self.outputs if out is not None]

    def output(self, index: int = 0) -> Placed:
        """Output ``index``, of floats that lie one after the other."""
        found = self.outputs[index] if index < len(self.outputs) else None
        if found is None:
            raise self.refuse(f"without output {index}")
        return self.checked(found)

    def checked(self, tensor: Placed) -> Placed:
        """``tensor``, if it is of floats that lie one after the other."""
        if tensor.type.dtype != "float32":
            raise self.refuse(f"for {tensor.type}; kernels are of float32")
        if not tensor.is_dense:
            raise self.refuse(
                f"for {tensor.type} with strides {list(tensor.type.strides)}; write .contiguous() before it"
            )
        if tensor.type.elements > _LARGEST:
            raise self.refuse(f"for so large a tensor as {tensor.type}")
        return tensor

    def number(self, index: int, otherwise: float | None = None, *, name: str = "") -> float:
        """The number that is argument ``index``."""
        found = self.argument(index, otherwise, name=name)
        if not isinstance(found, bool | int | float):
            raise self.refuse(f"where argument {index} is not a number")
        return float(found)

    def whole(self, index: int, otherwise: int | None = None) -> int:
        """The whole number that is argument ``index``."""
        found = self.argument(index, otherwise)
        if not isinstance(found, int):
            raise self.refuse(f"where argument {index} is not a whole number")
        return int(found)

    def wholes(self, index: int, otherwise: tuple[int, ...] | None = None) -> tuple[int, ...]:
        """The whole numbers that are argument ``index``."""
        found = self.argument(index, otherwise)
        found = (found,) if isinstance(found, int) else found
        if not isinstance(found, tuple) or not all(isinstance(item, int) for item in found):
            raise self.refuse(f"where argument {index} is not a list of whole numbers")
        return tuple(item for item in found if isinstance(item, int))

    def float_text(self, number: float) -> str:
        """C text of ``number``, rounded to a float.

        Raises:
            UnsupportedOperator: it is not finite.
        """
        return float_text(number) if math.isfinite(number) else self._not_finite(number)

    def _not_finite(self, number: float) -> str:
        raise self.refuse(f"for the number {number}")


def float_text(number: float) -> str:
    """The shortest C text that gives ``number``, rounded to a float, again."""
    rounded: float = struct.unpack("<f", struct.pack("<f", number))[0]
    for digits in range(1, 10):
        text = f"{rounded:.{digits}g}"
        if struct.unpack("<f", struct.pack("<f", float(text)))[0] == rounded:
            break
    return f"{text}f" if "." in text or "e" in text else f"{text}.0f"


def pointer_or_null(tensor: Placed | None) -> Address | str:
    """The address of a tensor that may not be there."""
    return "0" if tensor is None else tensor.pointer()


def pointwise(
    run: OpRun,
    function: str,
    written: Sequence[Placed],
    read: Sequence[Placed],
    *scalars: str,
) -> list[CCall]:
    """A call on each run of elements that lie regularly in all operands; tensors that are read may broadcast.

    Args:
        run: for messages.
        function: takes the written ones, the read ones each with a stride, ``scalars`` and a count.
        written: of one layout, elements next to each other.
        read: of shapes that broadcast to it.
        scalars: C text.
    """
    out = written[0].type
    if any(tensor.type.dtype != "float32" for tensor in (*written, *read)):
        raise run.refuse("for anything but float32")
    rows = [tensor.type.strides for tensor in written]
    rows += [_broadcast(run, tensor.type, out.shape) for tensor in read]
    sizes, strides = _joined(out.shape, rows)
    if any(row[-1] != 1 for row in strides[: len(written)]):  # not neighbours: one by one
        sizes, strides = [*sizes, 1], [[*row, 1] for row in strides]
    loops, count = tuple(sizes[:-1]), sizes[-1]
    if 0 in out.shape:
        return []
    if len(loops) > len(LOOPS):
        raise run.refuse(f"for the strides {list(out.strides)} of its result")
    arguments: list[Given] = [tensor.pointer(row[:-1]) for tensor, row in zip(written, strides, strict=False)]
    for tensor, row in zip(read, strides[len(written) :], strict=True):
        arguments += [tensor.pointer(row[:-1]), str(row[-1])]
    return [CCall(function, (*arguments, *scalars, str(count)), loops)]


def _broadcast(run: OpRun, kind: TensorType, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The strides of a tensor that is repeated until it has ``shape``."""
    missing = len(shape) - len(kind.shape)
    sizes, strides = (1,) * missing + kind.shape, (0,) * missing + kind.strides
    if missing < 0 or any(have not in (1, want) for have, want in zip(sizes, shape, strict=True)):
        raise run.refuse(f"for {kind} beside a result of shape {list(shape)}")
    return tuple(0 if size == 1 else stride for size, stride in zip(sizes, strides, strict=True))


def _joined(shape: Sequence[int], rows: Sequence[Sequence[int]]) -> tuple[list[int], list[list[int]]]:
    """Dimensions as few as possible, the one that is next to each other in the first row last."""
    order = sorted((d for d in range(len(shape)) if shape[d] != 1), key=lambda d: -rows[0][d])
    sizes: list[int] = []
    strides: list[list[int]] = [[] for _ in rows]
    for d in order:
        if sizes and all(out[-1] == row[d] * shape[d] for out, row in zip(strides, rows, strict=True)):
            sizes[-1] *= shape[d]
            for out, row in zip(strides, rows, strict=True):
                out[-1] = row[d]
        else:
            sizes.append(shape[d])
            for out, row in zip(strides, rows, strict=True):
                out.append(row[d])
    return (sizes, strides) if sizes else ([1], [[1] for _ in rows])
