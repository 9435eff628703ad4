"""Running a strip: its calls on one block after the other, on views of what the op is given."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from poet.errors import PlanError
from poet.ir.graph import Argument, Blank, Link, Ref, Strip, Symbol, TensorType, Value
from poet.ir.strips import cut_type, outermost
from poet.runtime import kernels
from poet.runtime.kernels import arguments, logits, overwriting, tables
from poet.runtime.kernels.arguments import Kernel

See = Callable[[str, int, Tensor, int], None]
"""Called with an inner value's name, the dimension it is cut along, its block, and where that starts."""


class StripRun:
    """A strip bound to its kernels; `run` makes it once."""

    def __init__(
        self,
        strip: Strip,
        outputs: Sequence[str | None],
        types: Mapping[str, TensorType],
        *,
        is_whole: bool = False,
        blank: Callable[[TensorType], Tensor] = arguments.blank,
    ) -> None:
        """Prepare.

        Args:
            strip: as a graph has it.
            outputs: of its op.
            types: of the graph's values, by name.
            is_whole: whether each call runs once, on all of what it is given, with a result of its own; so do
                strips of one block, but for those that write over an operand.
            blank: makes the tensors whose contents nothing reads.

        Raises:
            PlanError: a call of an operator, or an argument, that this runtime does not have.
        """
        over = None if is_whole else overwriting.operand_of(strip, types)
        is_whole = is_whole or strip.is_whole
        self._outputs = tuple(outputs)
        self._types = {name: types[name] for name in outputs if name is not None}
        self._made: dict[str, int] = {}
        self._sums: set[str] = set()
        inner = {value.name: value.type for value in strip.inner}
        roots = {value.name: value.buffer for value in strip.inner}
        last = {
            roots[name]: number
            for number, link in enumerate(strip.links)
            for name in (*link.call.refs(), *link.outputs)
            if name in roots
        }
        self._links = [
            _BoundLink(
                link,
                inner=inner,
                roots=roots,
                size=strip.size,
                is_whole=is_whole,
                spent=[root for root, at in last.items() if at == number],
                over=over,
                blank=blank,
            )
            for number, link in enumerate(strip.links if over is None else strip.links[:1])
        ]
        for link in strip.links:
            made = dict(link.made)
            self._made |= {
                name: made.get(place, 0) for place, name in enumerate(link.outputs) if name is not None
            }
            self._sums |= {str(link.outputs[place]) for place in link.sums}
        self._bounds = ((0, strip.size),) if is_whole else strip.bounds

    def run(
        self,
        tensor: Callable[[str], Tensor],
        hyperparameter: Callable[[str], float],
        see: See | None = None,
    ) -> tuple[Tensor | None, ...]:
        """Run every block; the op's outputs, put together.

        Args:
            tensor: gives a value of the graph.
            hyperparameter: gives one of the optimizer's scalars of this step.
            see: is shown each block of each inner value right after it was made.
        """
        whole: dict[str, Tensor] = {}
        for start, stop in self._bounds:
            blocks: dict[str, Tensor] = {}
            for link in self._links:
                self._take(
                    link.run(tensor, hyperparameter, blocks, start, stop - start), blocks, whole, start
                )
                if see is not None:
                    for name in link.made_inside:
                        see(name, self._made.get(name, 0), blocks[name], start)
                link.drop_spent(blocks)
        return tuple(None if name is None else whole[name] for name in self._outputs)

    def _take(
        self,
        results: Sequence[tuple[str, Tensor]],
        blocks: dict[str, Tensor],
        whole: dict[str, Tensor],
        start: int,
    ) -> None:
        """Keep what a link gave; nothing else holds a block, so that it goes when it is spent."""
        for name, block in results:
            if name not in self._types:
                blocks[name] = block
            elif len(self._bounds) == 1:
                whole[name] = block
            elif name in self._sums:
                self._add(whole, name, block)
            else:
                self._put(whole, name, block, start)

    def _add(self, whole: dict[str, Tensor], name: str, block: Tensor) -> None:
        """The first summand is the sum so far; a copy of it where that is laid out otherwise."""
        type_ = self._types[name]
        if name in whole:
            whole[name].add_(block)
        elif (block.shape, block.stride()) == (type_.shape, type_.strides):
            whole[name] = block
        else:
            whole[name] = self._empty(name).copy_(block)

    def _empty(self, name: str) -> Tensor:
        type_ = self._types[name]
        return torch.empty_strided(type_.shape, type_.strides, dtype=arguments.dtype(type_.dtype))

    def _put(self, whole: dict[str, Tensor], name: str, block: Tensor, start: int) -> None:
        if name not in whole:
            whole[name] = self._empty(name)
        dim = self._made[name]
        whole[name].narrow(dim, start, block.shape[dim]).copy_(block)


class _BoundLink:
    def __init__(
        self,
        link: Link,
        *,
        inner: Mapping[str, TensorType],
        roots: Mapping[str, str],
        size: int,
        is_whole: bool,
        spent: Sequence[str],
        over: str | None = None,
        blank: Callable[[TensorType], Tensor],
    ) -> None:
        self._over, self._blank = over, blank
        self._kernel = kernels.kernel(link.call.target)
        if over is not None:
            self._kernel = overwriting.kernel(link.call.target)
        self._makes_rows = False
        numbers = (isinstance(link.call.args[place], int) for place, _ in link.cuts)
        if not is_whole and link.call.target in _ROWS and any(numbers):
            self._kernel, self._makes_rows = _ROWS[link.call.target], True
        self._outputs = link.outputs
        self.made_inside = tuple(name for name in link.outputs if name is not None and name in inner)
        self._inner, self._roots, self._size = inner, roots, size
        self._cuts, self._dims = dict(link.cuts), dict(link.made)
        self._args, self._kwargs = link.call.args, link.call.kwargs
        self._fixed = {
            place: blank(argument.type) if isinstance(argument, Blank) else arguments.constant(argument)
            for place, argument in enumerate(self._args)
            if place not in self._cuts and not isinstance(argument, Ref | Symbol | tuple)
        }
        self._spent = spent

    def run(
        self,
        tensor: Callable[[str], Tensor],
        hyperparameter: Callable[[str], float],
        blocks: Mapping[str, Tensor],
        start: int,
        length: int,
    ) -> list[tuple[str, Tensor]]:
        """What the call gives on one block, by name."""

        def value(name: str) -> Tensor:
            """Of the graph, or one of the strip where nothing is cut."""
            return self._inner_block(name, blocks, length) if name in self._inner else tensor(name)

        def given(argument: Argument, dim: int) -> object:
            if isinstance(argument, Ref):
                if argument.value in self._inner:
                    return self._inner_block(argument.value, blocks, length)
                return tensor(argument.value).narrow(dim, start, length)
            if isinstance(argument, Blank):
                return self._blank(cut_type(argument.type, dim, length))
            if isinstance(argument, int):
                return length
            assert isinstance(argument, tuple)
            return [length if place == dim else item for place, item in enumerate(argument)]

        args = [
            given(argument, self._cuts[place])
            if place in self._cuts
            else self._fixed[place]
            if place in self._fixed
            else arguments.resolve(argument, value, hyperparameter)
            for place, argument in enumerate(self._args)
        ]
        named = {key: arguments.resolve(argument, value, hyperparameter) for key, argument in self._kwargs}
        if self._over is not None:
            named["out"] = tensor(self._over)
        first = (start,) if self._makes_rows else ()
        results = kernels.outputs_of(self._kernel(*first, *args, **named))
        made = []
        for place, name in enumerate(self._outputs):
            if name is not None:
                result = results[place] if place < len(results) else None
                if result is None:
                    raise PlanError(f"{name} did not come out as a tensor")
                if name in self._inner:
                    self._check_block(name, result, self._dims.get(place), length)
                made.append((name, result))
        return made

    def _check_block(self, name: str, block: Tensor, dim: int | None, length: int) -> None:
        """What later calls are given is what the graph says, which kernels trust."""
        whole = self._inner[name]
        kind = whole if dim is None else cut_type(whole, dim, length)
        if (block.dtype, tuple(block.shape)) != (arguments.dtype(kind.dtype), kind.shape):
            raise PlanError(f"{name} came out as {block.dtype}{list(block.shape)}, the plan says {kind}")

    def drop_spent(self, blocks: dict[str, Tensor]) -> None:
        """Release the blocks that no later call reads."""
        for name in self._spent:
            blocks.pop(name, None)

    def _inner_block(self, name: str, blocks: Mapping[str, Tensor], length: int) -> Tensor:
        block = blocks[self._roots[name]]
        if self._roots[name] == name:
            return block
        type_ = self._inner[name]
        if not self._cuts:
            return block.as_strided(type_.shape, type_.strides, block.storage_offset() + type_.offset)
        dim = outermost(type_, self._size)
        assert dim is not None
        return block.as_strided(cut_type(type_, dim, length).shape, type_.strides, block.storage_offset())


def _embedding_rows(
    start: int, gradient: Tensor, numbers: Tensor, rows: int, padding: int, scales: bool
) -> Tensor:
    if scales:
        raise PlanError("a table's gradient that is scaled by how often rows are read runs in no strip")
    return tables.look_up_backward(gradient, numbers, start, rows, padding)


_ROWS: dict[str, Kernel] = {
    "aten.embedding_dense_backward.default": _embedding_rows,
    "poet.logits_weight_gradient": logits.weight_gradient,
}
"""Operators that make some of their rows; first comes the number of the first."""


def signature(strip: Strip, outputs: Sequence[str | None], values: Mapping[str, Value]) -> Any:
    """What two strips have in common that do the same work on the same types, in however many blocks.

    Each value by its type, its number, and the number of the memory that it is a view of.

    Args:
        strip: with any number of blocks.
        outputs: of its op.
        values: of the graph, by name: those that the strip is given and those that it makes.
    """
    numbers: dict[str, int] = {}
    memory: dict[tuple[bool, str], int] = {}
    inner = {value.name: value for value in strip.inner}

    def known(name: str) -> object:
        value = inner[name] if name in inner else values[name]
        place = memory.setdefault((name in inner, value.buffer), len(memory))
        return value.type, numbers.setdefault(name, len(numbers)), place

    def anonymous(argument: Argument) -> object:
        if isinstance(argument, Ref):
            return known(argument.value)
        if isinstance(argument, tuple):
            return tuple(map(anonymous, argument))
        return type(argument), argument

    def made(name: str | None) -> object:
        return None if name is None else known(name)

    links = tuple(
        (
            link.call.target,
            tuple(map(anonymous, link.call.args)),
            tuple((key, anonymous(argument)) for key, argument in link.call.kwargs),
            tuple(map(made, link.outputs)),
            link.cuts,
            link.made,
            link.sums,
        )
        for link in strip.links
    )
    return links, tuple(map(made, outputs)), strip.size
