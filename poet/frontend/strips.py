"""Which ops of a training step could run in strips: weight gradients with the updates that read them.

A candidate is a parameter's update with every op that makes its gradient and nothing else: the gradient of a
product, a convolution or a table, sums of those of a shared parameter, copies into the parameter's layout.
They become one op in the update's place, in as many blocks as a trial finds exact
(`poet.runtime.trials.blocks`) and the step's time allows (`poet.frontend.strip_choice`).
"""

from __future__ import annotations

from collections.abc import Iterator

from poet.frontend.cuts import Cut, gradient_cut, passing_cut, update_cut
from poet.frontend.strip_candidates import StripCandidate
from poet.graph import Graph, Link, Op, Parameter, Ref, Strip, Value
from poet.optimizer_kinds import STATES
from poet.runtime.trials.blocks import BLOCK_COUNTS
from poet.strips import outermost

LEAST_BYTES = 256 * 1024
"""Of a parameter: what a smaller one's gradient takes is little beside what a call costs."""

_ACCUMULATE = "poet.accumulate"
_UPDATES = frozenset(f"poet.{name}" for name in STATES)
_ENDS = _UPDATES | {_ACCUMULATE}
"""What a chain may end with: updates of parameters, and additions to the sums of their gradients."""


def gradient_candidates(graph: Graph) -> Iterator[tuple[StripCandidate, ...]]:
    """For each trained parameter of ``graph``, the ways in which its gradient could be made in blocks.

    Parts of a parameter are small already, and many.
    """
    index, parts = _Index(graph), {name for whole in graph.wholes for name in whole.parts}
    for parameter in graph.parameters:
        if parameter.name not in parts:
            yield tuple(_ways(index, parameter))


def _ways(index: _Index, parameter: Parameter) -> Iterator[StripCandidate]:
    type_ = index.types[parameter.value]
    if parameter.gradient is None or type_.extent_bytes < LEAST_BYTES:
        return
    for dim, size in enumerate(type_.shape[:2]):
        if size >= min(BLOCK_COUNTS):
            found = _Chain(index, parameter, dim, size).candidate()
            if found is not None:
                yield found


class _Index:
    """Who makes and who reads what in a graph."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.values = {value.name: value for value in graph.values}
        self.types = {name: value.type for name, value in self.values.items()}
        self.places = {op.name: place for place, op in enumerate(graph.ops)}
        self.makers = {buffer: op for op in graph.ops for buffer in graph.writes(op)}
        self.updaters: dict[str, list[Op]] = {}
        self.readers: dict[str, list[Op]] = {}
        for op in graph.ops:
            again = graph.reads(op.recall) if op.recall is not None else ()
            for buffer in {*graph.reads(op.call), *again}:
                self.readers.setdefault(buffer, []).append(op)
            for buffer in op.updates:
                self.updaters.setdefault(buffer, []).append(op)
        self.values_on: dict[str, list[Value]] = {}
        for value in graph.values:
            self.values_on.setdefault(value.buffer, []).append(value)
        self.kept = {graph.buffer_of(name) for name in (graph.loss, *graph.predictions)}


class _NoStrip(Exception):
    """A chain cannot run in blocks."""


class _Chain:
    """The ops that lead to one parameter's update and to nothing else, cut along one dimension."""

    def __init__(self, index: _Index, parameter: Parameter, dim: int, size: int) -> None:
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
        for reader in self.index.readers.get(self.graph.buffer_of(total.value), ()):
            if reader.call.target in _UPDATES and reader.strip is None and reader.call.args[1] == total:
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
        if op is None or op.strip is not None or op.random or op.updates or op.repeat_call is not None:
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
            for reader in self.index.readers.get(self.graph.buffer_of(name), ()):
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
