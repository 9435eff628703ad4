"""Strips: chains of calls that run as one op, block by block.

A weight gradient and the update that reads it, for example: each block of the gradient is made, used and
dropped, so that the gradient never exists whole. The calls are those that would run whole; on a block, some
of their arguments are blocks. Whether that gives the same bits is found by trial
(`poet.runtime.trials.blocks`).

A strip of one block is for kernels that use each element as they make it, in a register: nothing of the
gradient lies in memory, and nothing is cut; or of a packed weight, of which they make float32 a block at a
time. PyTorch, which has no such kernels, makes its calls whole.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from poet.errors import GraphError
from poet.ir.calls import Argument, Blank, Call, Ref, TensorType, Value
from poet.ir.operators import RANDOM, WRITES, spec_of
from poet.ir.packed import DEQUANTISE, USED_BYTES

MOST_BLOCKS = 256
_EVEN = 16

_COPIED_BLOCKS = 16
_COPIED_BLOCK_BYTES = 64 * 1024
"""Of what is made in blocks and copied over an operand: more or smaller blocks save nothing worth a call."""


class Gradients(enum.Enum):
    """What becomes of weight gradients; the values are what a user writes."""

    STREAM = "stream"  # made and used block by block, where that gives the same bits
    LOGITS = "logits"  # likewise, and the last layer with its loss makes its logits in strips
    KEEP = "keep"  # whole, beside their parameters

    @property
    def are_streamed(self) -> bool:
        """Whether what can be made in blocks is."""
        return self is not Gradients.KEEP


def copied_blocks(size_bytes: int, channels: int) -> tuple[tuple[int, int], ...]:
    """The first channel of each block, and the one after its last, in which PyTorch's batch norm goes back.

    Its kernel writes over no operand: each block is made apart and copied over the gradient that it is from.

    Args:
        size_bytes: of the gradient.
        channels: of it.
    """
    count = max(1, min(_COPIED_BLOCKS, size_bytes // _COPIED_BLOCK_BYTES))
    step = -(-channels // count)
    return tuple((start, min(start + step, channels)) for start in range(0, channels, step))


@dataclass(frozen=True, slots=True)
class Link:
    """One call of a strip.

    Attributes:
        call: as it would run whole; it may be given values that links before it make.
        outputs: names of what it gives, each of the strip's op or of the strip; ``None`` where nothing is.
        cuts: (place among the arguments, dimension) of what a run on a block is given a block of: a tensor,
            a blank, or one number in a list of sizes.
        made: (place among the outputs, dimension) along which its results are blocks of the whole.
        sums: places among the outputs of which each block gives a summand, as large as the whole; they are
            added up in the order of the blocks.
    """

    call: Call
    outputs: tuple[str | None, ...]
    cuts: tuple[tuple[int, int], ...]
    made: tuple[tuple[int, int], ...] = ()
    sums: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Strip:
    """A chain of calls that runs block by block, so that what flows between them exists one block at a time.

    Attributes:
        links: the calls, in order.
        inner: the values between them, with the types they would have whole; ``buffer`` is the output whose
            memory a value views, its own name where it is that output. No buffers of the graph.
        size: elements along the dimension that is cut, whichever it is of each tensor; 1 where none is.
        blocks: how many there are; all but the last are of equal size. 1: used element by element.
    """

    links: tuple[Link, ...]
    inner: tuple[Value, ...]
    size: int
    blocks: int

    TARGET: ClassVar[str] = "poet.strip"

    @property
    def bounds(self) -> tuple[tuple[int, int], ...]:
        """First element of each block and the one after its last; fewer where rounding up fills them.

        Blocks of more than 16 elements are multiples of 16, as the vectors and tiles of kernels are.
        """
        step = -(-self.size // self.blocks)
        if step > _EVEN:
            step = -(-step // _EVEN) * _EVEN
        return tuple((start, min(start + step, self.size)) for start in range(0, self.size, step))

    @property
    def is_whole(self) -> bool:
        """Whether nothing is cut: each element of what flows between the calls is used as it is made."""
        return self.blocks == 1

    @property
    def overwritten(self) -> Ref | None:
        """The operand that a strip of one block writes its first result over; ``None``: it does not."""
        if not self.is_whole or len(self.links) != 2:
            return None
        made, then = self.links[0].outputs, self.links[1].call
        if then.target != "poet.assign" or not made or then.args[1:] != (Ref(str(made[0])),):
            return None
        return then.args[0] if isinstance(then.args[0], Ref) else None

    @property
    def call(self) -> Call:
        """What the op is given: the values that links read and none of them makes."""
        inner = {value.name for value in self.inner}
        refs = dict.fromkeys(name for link in self.links for name in link.call.refs() if name not in inner)
        return Call(Strip.TARGET, tuple(map(Ref, refs)))

    @property
    def whole_bytes(self) -> int:
        """Of the inner values, if all of them existed whole."""
        return sum(value.type.extent_bytes for value in self.inner if value.name == value.buffer)

    @property
    def block_bytes(self) -> int:
        """Of the inner values, for the largest block; 0 where elements never lie in memory.

        Of a packed weight that is used by kernels that have none such: what they make float32 of at once.
        """
        if self.is_whole:
            return USED_BYTES if self.links[0].call.target == DEQUANTISE else 0
        start, stop = self.bounds[0]
        return -(-self.whole_bytes * (stop - start) // self.size)


def outermost(type_: TensorType, size: int) -> int | None:
    """The dimension of ``size`` whose blocks are stretches of memory of a dense tensor, if it has one."""
    if type_.offset or type_.overlaps_itself or not size:
        return None
    for dim, (length, stride) in enumerate(zip(type_.shape, type_.strides, strict=True)):
        if length == size and stride * size == type_.elements:
            return dim
    return None


def cut_type(type_: TensorType, dim: int, length: int) -> TensorType:
    """The type of a block of ``length`` along ``dim``, with the strides that it has in the whole."""
    shape = (*type_.shape[:dim], length, *type_.shape[dim + 1 :])
    return TensorType(type_.dtype, shape, type_.strides, type_.offset)


def check_strip(
    where: str, strip: Strip, outputs: Sequence[str | None], values: Mapping[str, Value]
) -> set[str]:
    """The buffers that ``strip`` writes in place.

    Args:
        where: said first in errors.
        strip: to be checked.
        outputs: of the op that it is.
        values: of the graph, by name.

    Raises:
        GraphError: a block of the strip cannot be, or is not all that a link needs.
    """
    is_possible = 2 <= strip.blocks <= min(strip.size, MOST_BLOCKS) or (strip.blocks, strip.size) == (1, 1)
    if not strip.links or not is_possible:
        raise GraphError(
            f"{where}: {len(strip.links)} calls in {strip.blocks} blocks of {strip.size} elements; "
            f"a strip has at least one call, and from 2 to {MOST_BLOCKS} blocks, or 1 of size 1"
        )
    check = _StripCheck(where, strip, values)
    for link in strip.links:
        check.link(link)
    check.results({name for name in outputs if name is not None})
    return check.written


class _StripCheck:
    def __init__(self, where: str, strip: Strip, values: Mapping[str, Value]) -> None:
        self.where, self.strip, self.values = where, strip, values
        self.inner = {value.name: value for value in strip.inner}
        self.dims: dict[str, int] = {}  # along which what was made is a block
        self.written: set[str] = set()

    def fail(self, what: str) -> GraphError:
        return GraphError(f"{self.where}: {what}")

    def link(self, link: Link) -> None:
        call, target = link.call, link.call.target
        if target in RANDOM or target in (Strip.TARGET, "poet.with_rng_state"):
            raise self.fail(f"{target} cannot run in blocks")
        places = dict(link.cuts)
        if self.strip.is_whole and (link.cuts or link.made or link.sums):
            raise self.fail(f"{target} is cut in a strip of one block")
        if not self.strip.is_whole and (not places or len(places) < len(link.cuts)):
            raise self.fail(f"{target} is given no block, or two of one argument")
        for place, dim in link.cuts:
            if not 0 <= place < len(call.args):
                raise self.fail(f"{target} has no argument {place}")
            self.cut(call.args[place], dim, target, place)
        cut = [call.args[place] for place in places]
        for name in call.refs():
            if name in self.inner and self.inner[name].buffer not in self.dims:
                raise self.fail(f"{target} is given {name}, which no call before it makes")
            if name in self.inner and Ref(name) not in cut and not self.strip.is_whole:
                raise self.fail(f"{target} is given {name} whole, of which there are only blocks")
            if name not in self.inner and name not in self.values:
                raise self.fail(f"there is no value {name!r}")
        for place in WRITES.get(target, ()):
            argument = call.args[place] if place < len(call.args) else None
            if argument is None and place:
                continue  # a state that this optimizer does without
            is_cut = place in places or self.strip.is_whole
            if not isinstance(argument, Ref) or not is_cut or argument.value not in self.values:
                raise self.fail(f"{target} does not update blocks of the graph's values")
            self.written.add(self.values[argument.value].buffer)
        self.make(link)

    def cut(self, argument: Argument, dim: int, target: str, place: int) -> None:
        """A block of ``argument`` can be taken along ``dim``."""
        if isinstance(argument, Ref) and argument.value in self.inner:
            if self.dim_of(argument.value) != dim:
                raise self.fail(f"{target} is not given the block of {argument.value} that was made")
            return
        sizes: tuple[object, ...] = ()
        if isinstance(argument, Ref) and argument.value in self.values:
            sizes = self.values[argument.value].type.shape
        elif isinstance(argument, Blank):
            sizes = argument.type.shape
        elif isinstance(argument, tuple):
            sizes = argument
        elif type(argument) is int and place == spec_of(target).count:
            sizes = (argument,)
        if not 0 <= dim < len(sizes) or type(sizes[dim]) is not int or sizes[dim] != self.strip.size:
            raise self.fail(
                f"{target} is given a block of what has no {self.strip.size} elements along {dim}"
            )

    def dim_of(self, name: str) -> int | None:
        """Along which dimension the inner value is a block."""
        value = self.inner[name]
        made = self.dims.get(value.buffer)
        if made is None or value.name == value.buffer:
            return made
        whole, size = self.inner[value.buffer].type, self.strip.size
        is_alike = (whole.dtype, whole.elements) == (value.type.dtype, value.type.elements)
        return outermost(value.type, size) if is_alike and outermost(whole, size) == made else None

    def make(self, link: Link) -> None:
        made = dict(link.made)
        for place, name in enumerate(link.outputs):
            if name is None:
                continue
            known = self.inner if name in self.inner else self.values
            if name not in known or name in self.dims or (name in self.inner and known[name].buffer != name):
                raise self.fail(
                    f"{link.call.target} gives {name!r}, which is not an output, or is one already"
                )
            dim, shape = made.get(place, -1), known[name].type.shape
            if place in link.sums:
                self.summed(link, place, name)
            elif self.strip.is_whole:
                dim = 0
            elif not 0 <= dim < len(shape) or shape[dim] != self.strip.size:
                raise self.fail(f"{link.call.target} gives {name} in no blocks of its {self.strip.size}")
            self.dims[name] = dim
        given = {place for place, name in enumerate(link.outputs) if name is not None}
        if not {*made, *link.sums} <= given:
            raise self.fail(f"{link.call.target} has fewer outputs than it gives blocks of")

    def summed(self, link: Link, place: int, name: str) -> None:
        """The output at ``place`` is a sum over blocks: an output of the op, there after the last one."""
        if name in self.inner or place in dict(link.made) or link.sums.count(place) > 1:
            raise self.fail(f"{link.call.target} sums up {name}, of which there are blocks, or twice")

    def results(self, outputs: set[str]) -> None:
        """Everything that is named was made, and nothing else."""
        for value in self.strip.inner:
            is_made = value.buffer in self.dims
            if not is_made or (not self.strip.is_whole and self.dim_of(value.name) is None):
                raise self.fail(f"no call makes blocks of {value.name}")
            whole = self.inner.get(value.buffer)
            if whole is None or value.type.extent_bytes > whole.type.extent_bytes:
                raise self.fail(f"{value.name} is larger than what it views")
        if self.dims.keys() - self.inner.keys() != outputs:
            raise self.fail("its calls give other values than its outputs")
