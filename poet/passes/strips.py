"""Which ops of a training step could run in strips, block by block.

A parameter's update with every op that makes its gradient and nothing else becomes one op in the update's
place. A single op whose kernel asks for much memory of its own runs in slices: a convolution turns its
operands into another layout, for example. How calls are cut is in `poet.passes.cuts`; in how many blocks they
run is chosen in `poet.passes.block_choice`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from poet.ir.graph import Graph, Link, Op, Parameter, Ref, Strip, TensorType
from poet.ir.kernel_facts import KernelFacts
from poet.ir.operators import UPDATES
from poet.ir.strips import MOST_BLOCKS, outermost
from poet.passes.cuts import Cut, gradient_cut, passing_cut, slice_cuts, sum_cuts, update_cut
from poet.passes.rewrite import GraphUses, Rewrite, is_pure
from poet.runtime.trials.blocks import BLOCK_COUNTS

LEAST_BYTES = 256 * 1024
"""Of a parameter: what a smaller one's gradient takes is little beside what a call costs."""

LEAST_WORKSPACE_BYTES = 256 * 1024
"""Likewise of a kernel's workspace."""

LEAST_SHARE = 1 / 8
"""Of the largest workspace of the step: a smaller one decides no peak, and each trial takes time."""

SUMMED_CHANNELS = (16, 8)
"""In a block of a sum, the best first: as many as kernels add up before they write, one vector's or half."""

_ACCUMULATE = "poet.accumulate"
_ENDS = UPDATES | {_ACCUMULATE}
"""What a chain may end with: updates of parameters, and additions to the sums of their gradients."""


@dataclass(frozen=True, slots=True)
class StripCandidate:
    """A strip in place of some ops of a graph.

    Attributes:
        of: what is cut: a parameter, or an op.
        last: the op in whose place it stands.
        merged: names of the ops that it replaces, that of ``last`` among them.
        strip: in any number of blocks.
        outputs: of the op that it becomes.
        updates: buffers that it writes.
    """

    of: str
    last: Op
    merged: frozenset[str]
    strip: Strip
    outputs: tuple[str | None, ...] = ()
    updates: tuple[str, ...] = ()

    def in_blocks(self, blocks: int) -> StripCandidate:
        """The same in so many ``blocks``."""
        return replace(self, strip=replace(self.strip, blocks=blocks))

    @property
    def op(self) -> Op:
        """The op that it becomes."""
        return replace(
            self.last,
            call=self.strip.call,
            outputs=self.outputs,
            updates=self.updates,
            repeatable=self.last.repeatable and not self.updates,
            strip=self.strip,
        )

    @property
    def rewrite(self) -> Rewrite:
        """What it makes of a graph."""
        gone = dict.fromkeys(value.buffer for value in self.strip.inner)
        return Rewrite({**dict.fromkeys(sorted(self.merged)), self.last.name: self.op}, gone=tuple(gone))


def gradient_candidates(graph: Graph) -> Iterator[tuple[StripCandidate, ...]]:
    """For each trained parameter of ``graph``, the ways in which its gradient could be made in blocks.

    Parts of a parameter are small already, and many.
    """
    index, parts = GraphUses(graph), {name for whole in graph.wholes for name in whole.parts}
    for parameter in graph.parameters:
        if parameter.name not in parts:
            yield tuple(_ways(index, parameter))


def _ways(index: GraphUses, parameter: Parameter) -> Iterator[StripCandidate]:
    type_ = index.types[parameter.value]
    if parameter.gradient is None or type_.extent_bytes < LEAST_BYTES:
        return
    for dim, size in enumerate(type_.shape[:2]):
        if size >= min(BLOCK_COUNTS):
            found = _Chain(index, parameter, dim, size).candidate()
            if found is not None:
                yield found


class _NoStrip(Exception):
    """A chain cannot run in blocks."""


class _Chain:
    """The ops that lead to one parameter's update and to nothing else, cut along one dimension."""

    def __init__(self, index: GraphUses, parameter: Parameter, dim: int, size: int) -> None:
        self.index, self.parameter, self.dim, self.size = index, parameter, dim, size
        self.graph, self.types = index.graph, index.types
        self.cuts: dict[str, Cut] = {}  # by op
        self.leaves = 0

    def candidate(self) -> StripCandidate | None:
        """The chain as a strip, or ``None``."""
        assert self.parameter.gradient is not None
        try:
            self._join_ends(self.dim)
            self._join_maker(self.parameter.gradient, self.dim)
            self._check_joined()
        except _NoStrip:
            return None
        return self._as_candidate() if self.leaves else None

    def _join_ends(self, dim: int) -> None:
        """The parameter's update; or the addition to its sum, and the update where it reads just that."""
        if self.parameter.accumulator is None:
            self._join_update(self._end(self.parameter.value), dim)
            return
        addition = self._end(self.parameter.accumulator)
        self._join_update(addition, dim)
        self._join_updates_by(addition, dim)

    def _join_updates_by(self, addition: Op, dim: int) -> None:
        """Updates that read the sum itself, not what was clipped."""
        total = addition.call.args[0]
        assert isinstance(total, Ref)
        for reader in self.index.readers_of(total.value):
            if reader.call.target in UPDATES and reader.strip is None and reader.call.args[1] == total:
                self._join_update(reader, dim)

    def _end(self, value: str) -> Op:
        found = self.index.updaters.get(self.graph.buffer_of(value), [])
        if len(found) != 1 or found[0].call.target not in _ENDS or found[0].strip is not None:
            raise _NoStrip
        return found[0]

    def _join_update(self, op: Op, dim: int) -> None:
        cut = update_cut(op.call, dim)
        shapes = {self.types[name].shape for name in op.call.refs()}
        if len(shapes) != 1:
            raise _NoStrip
        self.cuts[op.name] = cut

    def _join_maker(self, value: str, dim: int) -> None:
        """The op that makes ``value``, of which a block along ``dim`` is wanted, and what leads to it."""
        buffer = self.graph.buffer_of(value)
        op = self.index.makers.get(buffer)
        if op is None or not is_pure(op):
            raise _NoStrip
        whole = next(name for name in op.outputs if name and self.graph.buffer_of(name) == buffer)
        made_along = self._dim_of_whole(value, whole, dim)
        if op.name in self.cuts:
            if dict(self.cuts[op.name].outputs).get(op.outputs.index(whole)) != made_along:
                raise _NoStrip
            return
        gradient = gradient_cut(op.call, self.types, made_along)
        cut = gradient or passing_cut(op.call, self.types, made_along)
        if cut is None or dict(cut.outputs).get(op.outputs.index(whole)) != made_along:
            raise _NoStrip
        self.cuts[op.name] = cut
        if gradient is not None:
            self.leaves += 1
            self._join_other_updates(op, cut, whole)
            return
        for place, argument_dim in cut.arguments:
            argument = op.call.args[place]
            if isinstance(argument, Ref):
                self._join_maker(argument.value, argument_dim)

    def _dim_of_whole(self, value: str, whole: str, dim: int) -> int:
        """The dimension of the output ``whole`` that is ``dim`` of its view ``value``."""
        if value == whole or self.types[value] == self.types[whole]:
            return dim
        found = outermost(self.types[whole], self.size)
        same_bytes = self.types[value].elements == self.types[whole].elements
        if found is None or not same_bytes or outermost(self.types[value], self.size) != dim:
            raise _NoStrip
        return found

    def _join_other_updates(self, op: Op, cut: Cut, whole: str) -> None:
        """What else the op makes, a bias's gradient, must be of use to updates alone, which join."""
        along = dict(cut.outputs)
        for place, name in enumerate(op.outputs):
            if name is None or name == whole:
                continue
            for reader in self.index.readers_of(name):
                if reader.call.target not in _ENDS or reader.strip is not None or place not in along:
                    raise _NoStrip
                self._join_update(reader, along[place])
                if reader.call.target == _ACCUMULATE:
                    self._join_updates_by(reader, along[place])

    def _joined(self) -> list[Op]:
        """The ops of the chain, in order."""
        return [self.graph.ops[place] for place in sorted(self.index.places[name] for name in self.cuts)]

    def _check_joined(self) -> None:
        """Nothing outside reads what the ops make, or changes what they read before they now run."""
        joined = self._joined()
        for op in joined:
            for buffer in self.graph.writes(op):
                readers = {reader.name for reader in self.index.readers.get(buffer, ())}
                if not readers <= self.cuts.keys() or buffer in self.index.kept:
                    raise _NoStrip
        end = self.index.places[joined[-1].name]
        for op in joined:
            for buffer in self.graph.reads(op.call):
                for updater in self.index.updaters.get(buffer, ()):
                    place = self.index.places[updater.name]
                    if updater.name not in self.cuts and self.index.places[op.name] < place < end:
                        raise _NoStrip
            for buffer in op.updates:
                for reader in self.index.readers.get(buffer, ()):
                    place = self.index.places[reader.name]
                    if reader.name not in self.cuts and self.index.places[op.name] < place < end:
                        raise _NoStrip

    def _as_candidate(self) -> StripCandidate:
        joined = self._joined()
        mentioned = {name for op in joined for name in (*op.call.refs(), *op.outputs)}
        mentioned.add(self.parameter.gradient)
        inner = tuple(
            value
            for op in joined
            for buffer in self.graph.writes(op)
            for value in self.index.values_on[buffer]
            if value.name in mentioned
        )
        links = tuple(
            Link(op.call, op.outputs, self.cuts[op.name].arguments, self._made(op)) for op in joined
        )
        strip = Strip(links, inner, self.size, min(BLOCK_COUNTS))
        updates = dict.fromkeys(buffer for op in joined for buffer in op.updates)
        return StripCandidate(
            self.parameter.name, joined[-1], frozenset(self.cuts), strip, updates=tuple(updates)
        )

    def _made(self, op: Op) -> tuple[tuple[int, int], ...]:
        return tuple(item for item in self.cuts[op.name].outputs if op.outputs[item[0]] is not None)


# --- slices of one call ----------------------------------------------------------------------------


def slice_candidates(graph: Graph, kernels: KernelFacts) -> Iterator[tuple[StripCandidate, ...]]:
    """For each op of ``graph`` with a large workspace, by ``kernels``, the ways to slice it."""
    types = {value.name: value.type for value in graph.values}
    largest_bytes = max((kernels.of(op.name).workspace_bytes for op in graph.ops), default=0)
    least_bytes = max(LEAST_WORKSPACE_BYTES, LEAST_SHARE * largest_bytes)
    for op in graph.ops:
        if is_pure(op) and kernels.of(op.name).workspace_bytes >= least_bytes:
            yield tuple(slices_of(op, types))


def slices_of(op: Op, types: Mapping[str, TensorType]) -> Iterator[StripCandidate]:
    """The ways to make the results of a plain op block by block."""
    for size, cut in slice_cuts(op.call, types):
        if size >= min(BLOCK_COUNTS):
            yield from _candidate(op, size, cut, min(BLOCK_COUNTS))


def sums_of(op: Op, types: Mapping[str, TensorType]) -> Iterator[tuple[StripCandidate, tuple[int, ...]]]:
    """The ways to add up its result block by block, each with the numbers of blocks to be tried."""
    for size, cut in sum_cuts(op.call, types):
        counts = {-(-size // channels): None for channels in SUMMED_CHANNELS}
        tried = tuple(count for count in counts if 2 <= count <= MOST_BLOCKS)
        for candidate in _candidate(op, size, cut, tried[0]) if tried else ():
            yield candidate, tried


def _candidate(op: Op, size: int, cut: Cut, blocks: int) -> Iterator[StripCandidate]:
    """``op`` in so many ``blocks``; nothing where it makes what does not come out so."""
    made = dict(cut.outputs)
    places = [place for place, name in enumerate(op.outputs) if name is not None]
    if {*made, *cut.sums} >= set(places):
        along = tuple((place, made[place]) for place in places if place in made)
        link = Link(op.call, op.outputs, cut.arguments, along, cut.sums)
        yield StripCandidate(
            op.name, op, frozenset({op.name}), Strip((link,), (), size, blocks), outputs=op.outputs
        )


def uncut(op: Op) -> Op:
    """An op that runs in slices as the one call that it is whole."""
    assert op.strip is not None
    (link,) = op.strip.links
    return replace(op, call=link.call, strip=None)
