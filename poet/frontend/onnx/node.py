"""What a row of the operator table sees of a node, and what it gives back.

A row reads attributes, shapes and constants once, at import, and returns a function of the remaining inputs
in plain torch. A node outside of the ONNX standard is refused before a row sees it (`defined`), and so is a
result of another type than the standard promises.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, TypeAlias

import numpy as np
import onnx
import torch
from onnx import AttributeProto, NodeProto
from onnx.defs import OpSchema
from onnx.helper import get_attribute_value
from torch import Tensor

from poet.errors import ModelError, nearest
from poet.frontend.onnx.reader import DTYPES

Run: TypeAlias = Callable[..., Tensor | Sequence[Tensor]]
"""Takes the operands of a step (``None`` for absent ones) and returns its output or outputs."""

Number: TypeAlias = int | float | bool

_MOST_ENTRIES = 1 << 27


@dataclass(frozen=True)
class Modal:
    """What a node does in training and in evaluation, where that differs."""

    train: Run
    evaluate: Run


@dataclass(frozen=True)
class Alias:
    """The node's output is its input number ``index``; nothing runs."""

    index: int = 0


Built: TypeAlias = Run | Modal | Alias | Tensor
"""What a row makes of a node; a tensor is a constant output."""


@dataclass(frozen=True)
class OnnxValue:
    """A value of the graph.

    Attributes:
        slot: its number, unique in the model.
        name: its name in the file.
        meta: shape and type, as a tensor without content; a tuple for a sequence.
        constant: its content where it depends on no input and no parameter.
        state: the initialiser it is, where it is one.
    """

    slot: int
    name: str
    meta: Tensor | tuple[Tensor, ...]
    constant: Tensor | None = None
    state: str | None = None


@dataclass(frozen=True)
class Rebound:
    """A first dimension that the file fixes to ``old`` and the user bound to ``new``."""

    old: int
    new: int


def shortest(value: float) -> float:
    """The float with the fewest decimal digits that is the same in single precision.

    ONNX attributes are float32: an epsilon of 1e-5 comes as 9.99999974e-06, and with that value most
    gradients have other bits.
    """
    return float(str(np.float32(value)))


def complement(value: float) -> float:
    """``1 - value`` in decimal: 0.1 for 0.9, where binary arithmetic gives 0.09999999999999998."""
    return float(1 - Decimal(repr(shortest(value))))


@dataclass
class Node:
    """One node at import: its attributes, and what is known of its inputs.

    Attributes:
        output_count: how many outputs it has, those behind the last named one left out.
        read_count: how many of them, those behind the last one that something reads left out: exporters name
            a dropout's mask that nobody wants.
    """

    proto: NodeProto
    inputs: tuple[OnnxValue | None, ...]
    opset: int
    output_count: int
    read_count: int
    rebound: Rebound | None = None
    definition: OpSchema | None = None
    taken: set[int] = field(default_factory=set)
    buffers: set[int] = field(default_factory=set)
    seen: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._attributes = {attribute.name: attribute for attribute in self.proto.attribute}

    # -- errors -----------------------------------------------------------------------------------

    @property
    def where(self) -> str:
        """The node in words, for messages."""
        return describe(self.proto)

    def error(self, message: str) -> ModelError:
        """A :class:`ModelError` that names this node."""
        return ModelError(f"{self.where}: {message}")

    # -- attributes -------------------------------------------------------------------------------

    def attribute(self, name: str) -> AttributeProto | None:
        """Attribute ``name``, ``None`` if absent; it counts as understood."""
        self.seen.add(name)
        return self._attributes.get(name)

    def integer(self, name: str, default: int) -> int:
        """An integer attribute."""
        found = self.attribute(name)
        return default if found is None else found.i

    def flag(self, name: str, default: int = 0) -> bool:
        """An integer attribute that is 0 or 1."""
        value = self.integer(name, default)
        if value not in (0, 1):
            raise self.error(f"its attribute {name!r} is {value}, expected 0 or 1")
        return bool(value)

    def real(self, name: str, default: float) -> float:
        """A float attribute, as the shortest decimal."""
        found = self.attribute(name)
        return default if found is None else shortest(found.f)

    def text(self, name: str, default: str, among: Collection[str] = ()) -> str:
        """A string attribute; where it has a few values only, one ``among`` these."""
        found = self.attribute(name)
        value = default if found is None else found.s.decode("utf-8", "replace")
        if among and value not in among:
            raise self.error(f"its attribute {name!r} is {value!r}, expected {' or '.join(sorted(among))}")
        return value

    def texts(self, name: str) -> tuple[str, ...]:
        """A list of strings; empty if absent."""
        found = self.attribute(name)
        return tuple(entry.decode("utf-8", "replace") for entry in (found.strings if found else ()))

    def int_list(self, name: str, default: Sequence[int] = ()) -> list[int]:
        """A list of integers."""
        found = self.attribute(name)
        return list(default if found is None else found.ints)

    def refuse_unseen(self, ignored: frozenset[str]) -> None:
        """An attribute that no one looked at could change the result: it must have its default.

        Raises:
            ModelError: one has not.
        """
        formal = self.definition.attributes if self.definition else {}
        for name, found in self._attributes.items():
            if name in self.seen or name in ignored:
                continue
            default = formal[name].default_value if name in formal else AttributeProto()
            if not default.name or get_attribute_value(found) != get_attribute_value(default):
                raise self.error(f"the attribute {name!r} is not supported")

    # -- inputs -----------------------------------------------------------------------------------

    def has(self, index: int) -> bool:
        """Whether input ``index`` is given."""
        return index < len(self.inputs) and self.inputs[index] is not None

    def value(self, index: int) -> OnnxValue:
        """Input ``index``.

        Raises:
            ModelError: it is not given.
        """
        value = self.inputs[index] if index < len(self.inputs) else None
        if value is None:
            raise self.error(f"input {index} is missing")
        return value

    def meta(self, index: int) -> Tensor:
        """Shape and type of input ``index``, which must not be a sequence."""
        meta = self.value(index).meta
        if isinstance(meta, tuple):
            raise self.error(f"input {index} is a sequence, expected a tensor")
        return meta

    def shape(self, index: int) -> tuple[int, ...]:
        """Shape of input ``index``."""
        return tuple(self.meta(index).shape)

    def rank(self, index: int) -> int:
        """Number of dimensions of input ``index``."""
        return self.meta(index).dim()

    def axis(self, axis: int, index: int = 0, *, extra: int = 0) -> int:
        """``axis`` counted from the front, of input ``index`` with ``extra`` more dimensions."""
        rank = self.rank(index) + extra
        if not -max(rank, 1) <= axis < max(rank, 1):
            raise self.error(f"axis {axis} of a tensor with {rank} dimensions")
        return axis % max(rank, 1)

    # -- constants --------------------------------------------------------------------------------

    def is_constant(self, index: int) -> bool:
        """Whether input ``index`` is given and known at import."""
        return self.has(index) and self.value(index).constant is not None

    def constant(self, index: int, what: str) -> Tensor:
        """The content of input ``index``, which is no operand any more.

        Raises:
            ModelError: it depends on data; ``what`` says what it stands for.
        """
        value = self.value(index)
        if value.constant is None:
            raise self.error(f"its {what} ({value.name!r}) depends on data or on weights; it must be fixed")
        self.taken.add(index)
        return value.constant

    def ints(self, index: int, what: str) -> list[int]:
        """Input ``index`` as integers."""
        return [int(entry) for entry in self.constant(index, what).reshape(-1).tolist()]

    def floats(self, index: int, what: str) -> list[float]:
        """Input ``index`` as floats."""
        return [shortest(entry) for entry in self.constant(index, what).reshape(-1).tolist()]

    def scalar(self, index: int, what: str) -> Number:
        """Input ``index`` as one number."""
        content = self.constant(index, what)
        if content.numel() != 1:
            raise self.error(f"its {what} has {content.numel()} elements, expected one")
        return number(content)

    def optional_scalar(self, index: int, what: str) -> Number | None:
        """Input ``index`` as one number, ``None`` if absent."""
        return self.scalar(index, what) if self.has(index) else None

    def operand_number(self, index: int) -> Number | None:
        """Input ``index`` as a Python number if it is a constant of one element that only broadcasts."""
        other = max((self.rank(i) for i in range(len(self.inputs)) if i != index and self.has(i)), default=0)
        content = self.value(index).constant
        if content is None or content.numel() != 1 or content.dim() > other:
            return None
        self.taken.add(index)
        return number(content)

    def ints_or_attribute(self, index: int, name: str) -> list[int] | None:
        """Integers that older operator sets have as attribute ``name`` and newer ones as input ``index``."""
        if self.attribute(name) is not None:
            return self.int_list(name)
        return self.ints(index, name) if self.has(index) else None

    def buffer(self, index: int) -> None:
        """Declares input ``index`` as state that the node changes itself (running statistics)."""
        self.buffers.add(index)

    def drop(self, index: int) -> None:
        """Takes input ``index`` out of the operands without reading it."""
        self.taken.add(index)

    def limited(self, count: int) -> int:
        """``count``, of the entries of a table that is made at import."""
        if count > _MOST_ENTRIES:
            raise self.error(f"a table of {count} entries; the limit is {_MOST_ENTRIES}")
        return count

    # -- the batch dimension ----------------------------------------------------------------------

    def rebind_shape(self, shape: list[int]) -> list[int]:
        """``shape`` with a first dimension that the exporter had baked in replaced by the bound one."""
        if self.rebound is None or not shape or shape[0] != self.rebound.old:
            return shape
        return [self.rebound.new, *shape[1:]]

    def prod(self, index: int) -> int:
        """Number of elements of input ``index``."""
        return math.prod(self.shape(index))


def number(content: Tensor) -> Number:
    """The single element of ``content``; a float as the shortest decimal."""
    entry = content.reshape(-1)[0].item()
    if isinstance(entry, float) and content.dtype == torch.float32 and math.isfinite(entry):
        return shortest(entry)
    assert isinstance(entry, int | float | bool)
    return entry


def describe(proto: NodeProto) -> str:
    """``"node '/conv1/Conv' (Conv)"``; by its first output where it has no name."""
    name = proto.name or next((output for output in proto.output if output), "?")
    domain = f"{proto.domain}::" if proto.domain not in ("", "ai.onnx") else ""
    return f"node {name!r} ({domain}{proto.op_type})"


@dataclass(frozen=True)
class OperatorRow:
    """One row of the operator table.

    Attributes:
        build: makes of a node what is to be run.
        random: its result depends on the generator; it is never computed at import.
        by_data: the shape of its output depends on the content of its inputs: only computed at import.
        heavy: its work is more than that of reading inputs and writing outputs.
        ignored: attributes without effect on what is run.
        fixed: inputs that are never weights: statistics, initial states, limits, scales, what is only
            compared or measured.
    """

    build: Callable[[Node], Built]
    random: bool = False
    by_data: bool = False
    heavy: bool = False
    ignored: frozenset[str] = frozenset()
    fixed: tuple[int, ...] = ()


ROWS: dict[str, OperatorRow] = {}
"""The operator table: one row per operator of the standard domain."""


def row(
    *names: str,
    random: bool = False,
    by_data: bool = False,
    heavy: bool = False,
    ignored: Sequence[str] = (),
    fixed: tuple[int, ...] = (),
) -> Callable[..., Callable[[Node], Built]]:
    """Enters the decorated function into :data:`ROWS` under ``names``."""

    def enter(build: Callable[[Node], Built]) -> Callable[[Node], Built]:
        entry = OperatorRow(build, random, by_data, heavy, frozenset(ignored), fixed)
        ROWS.update(dict.fromkeys(names, entry))
        return build

    return enter


def plain(functions: Mapping[str, Run], *, heavy: bool = False) -> None:
    """Enters operators that are one torch function of all their inputs, without attributes."""
    for name, function in functions.items():
        ROWS[name] = OperatorRow(functools.partial(_always, function), heavy=heavy)


def _always(run: Run, node: Node) -> Built:
    return run


_NAMES = {
    DTYPES[number]: f"tensor({name.lower()})"
    for name, number in onnx.TensorProto.DataType.items()
    if number in DTYPES
}
_VARIADIC, _SINGLE = OpSchema.FormalParameterOption.Variadic, OpSchema.FormalParameterOption.Single


def defined(node: Node) -> OpSchema:
    """The definition of a node's operator in the model's operator set, to which attributes and inputs keep.

    Raises:
        ModelError: there is none, or they do not.
    """
    newest = onnx.defs.onnx_opset_version()
    if node.opset > newest:
        raise node.error(
            f"the installed onnx {onnx.__version__} knows operator sets to {newest}; install a newer one"
        )
    try:
        found = onnx.defs.get_schema(node.proto.op_type, node.opset)
    except onnx.defs.SchemaError:
        raise node.error(f"there is no such operator in operator set {node.opset}") from None
    _check_attributes(node, found)
    _check_inputs(node, found)
    return found


def _check_attributes(node: Node, found: OpSchema) -> None:
    given = [attribute.name for attribute in node.proto.attribute]
    for attribute in node.proto.attribute:
        formal = found.attributes.get(attribute.name)
        if formal is None:
            known = nearest(attribute.name, found.attributes)
            raise node.error(f"operator set {node.opset} gives it no attribute {attribute.name!r}{known}")
        wanted: Any = formal.type
        if attribute.type != wanted.value or given.count(attribute.name) > 1:
            raise node.error(f"its attribute {attribute.name!r} must be one {wanted.name}")
    for name, formal in found.attributes.items():
        if formal.required and name not in given:
            raise node.error(f"its attribute {name!r} is missing")


def _check_inputs(node: Node, found: OpSchema) -> None:
    if not found.min_input <= len(node.inputs) <= found.max_input:
        raise node.error(f"{len(node.inputs)} inputs, expected {found.min_input} to {found.max_input}")
    if node.output_count > found.max_output:
        raise node.error(f"{node.output_count} outputs, expected at most {found.max_output}")
    bound = dict[str, str]()
    for place, value in enumerate(node.inputs):
        formal = found.inputs[min(place, len(found.inputs) - 1)]
        if value is None:
            if formal.option == _SINGLE:
                raise node.error(f"its input {formal.name!r} is missing")
            continue
        name = _type(value)
        if name not in formal.types:
            raise node.error(f"its input {formal.name!r} is a {name}, not of operator set {node.opset}")
        if formal.is_homogeneous and bound.setdefault(formal.type_str, name) != name:
            raise node.error(f"its input {formal.name!r} is a {name}, another one a {bound[formal.type_str]}")


def check_results(node: Node, results: Sequence[OnnxValue | None]) -> None:
    """Refuse results of another type than the definition of ``node`` promises.

    Raises:
        ModelError: names both types.
    """
    found = node.definition
    assert found is not None
    inputs = [found.inputs[min(place, len(found.inputs) - 1)] for place in range(len(node.inputs))]
    bound: Mapping[str, str] = {
        formal.type_str: _type(value) for formal, value in zip(inputs, node.inputs, strict=True) if value
    }
    for place, value in enumerate(results[: node.output_count]):
        formal = found.outputs[min(place, len(found.outputs) - 1)]
        expected = bound.get(formal.type_str)
        if value is None or (_type(value) == expected if expected else _type(value) in formal.types):
            continue
        raise node.error(f"its result would be a {_type(value)}, where ONNX promises {expected or 'another'}")


def _type(value: OnnxValue) -> str:
    """The type of a value as definitions write it."""
    if isinstance(value.meta, Tensor):
        return _NAMES[value.meta.dtype]
    return f"seq({_NAMES[value.meta[0].dtype]})" if value.meta else "seq(tensor(float))"
