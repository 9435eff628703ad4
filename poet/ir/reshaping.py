"""A training step for other sizes of its inputs, from the graphs for a few sizes: nothing is traced again.

The graphs that a plan of several shapes holds are the same but for numbers (`poet.ir.reshaping`). A graph for
other sizes has each number at its formula. Whoever uses it lets torch check it: every kernel runs on the
types that it names (`poet.runtime.trials.measure`).
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from poet.errors import GraphError, InputError
from poet.ir.calls import ITEM_BYTES, TensorType, Value, contiguous
from poet.ir.graph import Buffer, Graph, Op, Ref, Role
from poet.ir.operators import MIS_TRACED, WRITES

Sizes = tuple[int, ...]
"""One number per size that may vary."""

_POWERS = (0, 1, 2, -1, -2)
_LEAST_FOR_SUMS = 3  # two points lie on every line


@dataclass(frozen=True, slots=True)
class Formula:
    """``constant + factor * product of sizes[i] ** powers[i]``.

    Attributes:
        powers: one per size.
        factor, constant: exact.
        is_float: whether it gives floats.
    """

    powers: tuple[int, ...]
    factor: Fraction
    constant: Fraction
    is_float: bool

    def at(self, sizes: Sizes) -> int | float | None:
        """The number for ``sizes``; ``None``: it is no whole number, and should be one."""
        exact = self.exact(sizes)
        if self.is_float:
            return float(exact)
        return int(exact) if exact.denominator == 1 else None

    def exact(self, sizes: Sizes) -> Fraction:
        """What the formula gives for ``sizes``."""
        return self.constant + self.factor * _product(sizes, self.powers)


def formula_of(values: Sequence[int | float], sizes: Sequence[Sizes]) -> Formula | None:
    """The simplest formula for ``values`` at ``sizes``; ``None``: there is none.

    Args:
        values: one per example, all whole or all floats.
        sizes: of the examples.
    """
    is_float = isinstance(values[0], float)
    if any(isinstance(value, float) != is_float or not math.isfinite(value) for value in values):
        return None
    return _found(tuple(values), tuple(sizes), is_float)


@functools.lru_cache(maxsize=4096)
def _found(values: tuple[int | float, ...], sizes: tuple[Sizes, ...], is_float: bool) -> Formula | None:
    for powers in _every_powers(len(sizes[0])):
        products = [_product(each, powers) for each in sizes]
        for factor, constant in _fits(values, products):
            formula = Formula(powers, factor, constant, is_float)
            if all(formula.at(each) == value for each, value in zip(sizes, values, strict=True)):
                return formula
    return None


@functools.cache
def _every_powers(count: int) -> tuple[tuple[int, ...], ...]:
    """From the simplest on; all but that of the constant."""
    every = itertools.product(_POWERS, repeat=count)
    return tuple(sorted((item for item in every if any(item)), key=lambda item: sum(map(_weight, item))))


def _weight(power: int) -> int:
    return abs(power) if power >= 0 else 3 - power


def _fits(values: Sequence[int | float], products: Sequence[Fraction]) -> Iterator[tuple[Fraction, Fraction]]:
    """Factors and constants that may be meant: floats are roundings of simple numbers."""
    first = Fraction(values[0])
    factor = first / products[0]
    yield factor, Fraction(0)
    yield factor.limit_denominator(1024), Fraction(0)
    if len(values) < _LEAST_FOR_SUMS or len(set(products)) < _LEAST_FOR_SUMS:
        return
    other = next(place for place, product in enumerate(products) if product != products[0])
    slope = (Fraction(values[other]) - first) / (products[other] - products[0])
    yield slope, first - slope * products[0]


def _product(sizes: Iterable[int], powers: Iterable[int]) -> Fraction:
    found = Fraction(1)
    for size, power in zip(sizes, powers, strict=True):
        if power:
            found *= Fraction(size) ** power
    return found


Path = tuple[str | int, ...]


class Reshaping:
    """Gives the graph for other sizes."""

    def __init__(self, graphs: Sequence[Graph]) -> None:
        """Compare the graphs.

        Args:
            graphs: of one training step for batches of different shapes, at least two.

        Raises:
            InputError: they differ in more than numbers that follow from the sizes, or no two are alike.
        """
        whole = _alike([without_strips(graph) for graph in graphs])
        self._places, examples = _varying([_given(graph) for graph in whole])
        if not self._places:
            raise InputError("a plan takes batches of new shapes where it has steps for several already")
        self._examples = [set(sizes) for sizes in zip(*examples, strict=True)]
        self._base, self._types = whole[0], _given(whole[0])
        data = [graph.to_json() for graph in whole]
        unknown = set(_told_by_kernels(whole[0]))
        self._data: Any = data[0]
        self._formulas: dict[Path, Formula] = {}
        for path, values in _differing((), data):
            formula = None if values is None else formula_of(values, examples)
            if formula is None and path[:2] in unknown:
                continue  # as in the first graph, until the kernel has run
            if formula is None:
                where = "/".join(map(str, path))
                raise InputError(
                    f"{whole[0].name}: its steps for several shapes differ in more than sizes (at {where}), "
                    "so that none for another shape follows from them; plan that shape as well"
                )
            self._formulas[path] = formula

    def graph(self, types: Sequence[TensorType]) -> Graph:
        """The training step for inputs and targets of these types, without strips.

        Raises:
            InputError: they vary where the known shapes do not, or have no step.
        """
        sizes = self.sizes(types)
        changed = {path: formula.at(sizes) for path, formula in self._formulas.items()}
        if None in changed.values():
            raise InputError(
                f"{self._base.name}: sizes {sizes} have no step: a tensor would have part of an element"
            )
        try:
            return Graph.from_json(_with(self._data, (), _tree(changed)))
        except GraphError as error:
            raise InputError(f"{self._base.name}: sizes {sizes} have no step ({error})") from None

    @property
    def places(self) -> tuple[tuple[tuple[int, int], ...], ...]:
        """Per size that varies: where it stands, as (number of the tensor, dim)."""
        return tuple(map(tuple, self._places))

    def types(self, sizes: Sizes) -> tuple[TensorType, ...]:
        """The inputs and targets of these ``sizes``, row by row in memory; those that do not vary as ever."""
        shapes = [list(kind.shape) for kind in self._types]
        for size, places in zip(sizes, self._places, strict=True):
            for index, dim in places:
                shapes[index][dim] = size
        return tuple(
            contiguous(kind.dtype, tuple(shape)) for kind, shape in zip(self._types, shapes, strict=True)
        )

    def buffer_bytes(self) -> dict[str, Formula | int]:
        """Of each buffer, by name."""
        return {
            buffer.name: self._formulas.get(("buffers", place, "size_bytes"), buffer.size_bytes)
            for place, buffer in enumerate(self._base.buffers)
        }

    def sizes(self, types: Sequence[TensorType]) -> Sizes:
        """What varies in ``types``.

        Raises:
            InputError: something else does, or torch may compute in another way at such a size.
        """
        if len(types) != len(self._types):
            raise InputError(f"{len(types)} tensors were given, the plan takes {len(self._types)}")
        named = {place: number for number, places in enumerate(self._places) for place in places}
        sizes: dict[int, int] = {}
        for index, (kind, known) in enumerate(zip(types, self._types, strict=True)):
            if kind.dtype != known.dtype or len(kind.shape) != len(known.shape):
                raise InputError(
                    f"{self._base.inputs[index]} is {kind}, the plan takes {known} in other sizes"
                )
            for dim, (size, usual) in enumerate(zip(kind.shape, known.shape, strict=True)):
                number = named.get((index, dim))
                wanted = usual if number is None else sizes.setdefault(number, size)
                if size != wanted or size < 1:
                    raise InputError(
                        f"{self._base.inputs[index]} is {kind}: its dim {dim} is not {wanted}, as in the "
                        "shapes that the plan has steps for"
                    )
        for number, size in sizes.items():
            if size == 1 and 1 not in self._examples[number]:
                index, dim = self._places[number][0]
                raise InputError(
                    f"{self._base.inputs[index]} has size 1 in dim {dim}, where torch may compute in another "
                    "way; plan a shape of that size as well"
                )
        return tuple(sizes[number] for number in range(len(self._places)))


def without_strips(graph: Graph) -> Graph:
    """``graph`` with each strip's calls as ops of their own, as they were traced."""
    values, buffers, ops = list(graph.values), list(graph.buffers), []
    for op in graph.ops:
        if op.strip is None:
            ops.append(op)
            continue
        values += (Value(value.name, value.buffer, value.type) for value in op.strip.inner)
        buffers += (
            Buffer(value.name, value.type.elements * ITEM_BYTES[value.type.dtype], Role.GRADIENT)
            for value in op.strip.inner
            if value.name == value.buffer
        )
        for number, link in enumerate(op.strip.links, 1):
            updated = (link.call.args[place : place + 1] for place in WRITES.get(link.call.target, ()))
            written = tuple(
                graph.buffer_of(item.value) for given in updated for item in given if isinstance(item, Ref)
            )
            name = op.name if number == len(op.strip.links) else f"{op.name}/{number}"
            ops.append(Op(name, link.call, link.outputs, updates=written, repeatable=not written))
    return replace(graph, values=tuple(values), buffers=tuple(buffers), ops=tuple(ops))


# --- what varies ------------------------------------------------------------------------------


def _alike(graphs: Sequence[Graph]) -> list[Graph]:
    """The most that make the same calls on the same values; a slice of all, for example, is none."""
    groups: dict[tuple[object, ...], list[Graph]] = {}
    for graph in graphs:
        calls = tuple((op.name, op.call.target, tuple(op.call.refs()), op.outputs) for op in graph.ops)
        values = tuple((value.name, value.buffer, len(value.type.shape)) for value in graph.values)
        groups.setdefault((calls, values), []).append(graph)
    return max(groups.values(), key=len)


def _told_by_kernels(graph: Graph) -> Iterator[Path]:
    """Where the data of the graph have values and buffers whose sizes a trace does not know."""
    made = {name for op in graph.ops if op.call.target in MIS_TRACED for name in op.outputs}
    buffers = {graph.buffer_of(name) for name in made if name is not None}
    yield from (("values", place) for place, value in enumerate(graph.values) if value.name in made)
    yield from (("buffers", place) for place, buffer in enumerate(graph.buffers) if buffer.name in buffers)


def _given(graph: Graph) -> tuple[TensorType, ...]:
    types = {value.name: value.type for value in graph.values}
    return tuple(types[name] for name in graph.inputs)


def _varying(given: Sequence[tuple[TensorType, ...]]) -> tuple[list[list[tuple[int, int]]], list[Sizes]]:
    """Places (input, dim) whose sizes vary, those that vary alike together; and the sizes of each example."""
    alike: dict[Sizes, list[tuple[int, int]]] = {}
    for index, kind in enumerate(given[0]):
        for dim in range(len(kind.shape)):
            sizes = tuple(types[index].shape[dim] for types in given)
            if len(set(sizes)) > 1:
                alike.setdefault(sizes, []).append((index, dim))
    return list(alike.values()), list(zip(*alike, strict=True))


def _differing(path: Path, data: Sequence[Any]) -> Iterator[tuple[Path, list[int | float] | None]]:
    """Where the trees have different numbers; ``None`` where they differ in another way."""
    first = data[0]
    if isinstance(first, dict) and all(
        isinstance(item, dict) and item.keys() == first.keys() for item in data
    ):
        for key in first:
            yield from _differing((*path, key), [item[key] for item in data])
    elif isinstance(first, list) and all(isinstance(item, list) and len(item) == len(first) for item in data):
        for place, items in enumerate(zip(*data, strict=True)):
            yield from _differing((*path, place), items)
    elif any(item != first or type(item) is not type(first) for item in data):
        yield path, list(data) if all(type(item) in (int, float) for item in data) else None


def _tree(changed: dict[Path, Any]) -> dict[Any, Any]:
    """The paths as a tree of steps."""
    root: dict[Any, Any] = {}
    for path, value in changed.items():
        node = root
        for step in path[:-1]:
            node = node.setdefault(step, {})
        node[path[-1]] = value
    return root


def _with(data: Any, path: Path, changed: dict[Any, Any]) -> Any:
    """``data`` with what is changed in it; the rest is shared."""
    copied = dict(data) if isinstance(data, dict) else list(data)
    for step, value in changed.items():
        copied[step] = _with(data[step], (*path, step), value) if isinstance(value, dict) else value
    return copied
