"""Which ops of a training step run in strips: weight gradients with the updates that read them.

A candidate is a parameter's update with every op that makes its gradient and nothing else: the gradient of a
product, a convolution or a table, sums of those of a shared parameter, copies into the parameter's layout.
They become one op in the update's place, if a trial finds a number of blocks (`poet.runtime.strip_trial`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from poet.frontend.cuts import Cut, gradient_cut, passing_cut, update_cut
from poet.graph import Graph, Link, Op, Parameter, Ref, Strip, Value
from poet.optimizer import STATES
from poet.runtime.strip_trial import BLOCK_COUNTS, Verdict, best_blocks
from poet.strips import outermost

LEAST_BYTES = 256 * 1024
"""Of a parameter: what a smaller one's gradient takes is little beside what a call costs."""

_UPDATES = frozenset(f"poet.{name}" for name in STATES)


@dataclass(frozen=True, slots=True)
class StripCandidate:
    """A strip that has not been tried.

    Attributes:
        parameter: whose gradient it makes.
        update: the op in whose place it stands.
        merged: names of the ops that it replaces, the update's among them.
        strip: in any number of blocks.
        updates: buffers that it writes.
    """

    parameter: str
    update: Op
    merged: frozenset[str]
    strip: Strip
    updates: tuple[str, ...]

    @property
    def op(self) -> Op:
        """The op that it becomes."""
        return replace(
            self.update,
            call=self.strip.call,
            outputs=(),
            updates=self.updates,
            repeatable=False,
            strip=self.strip,
        )


def with_strips(graph: Graph) -> Graph:
    """``graph`` with the strips that give the same bits on this machine and take no longer."""
    taken: dict[str, StripCandidate] = {}  # by the ops that it merges
    for candidate, verdict in strip_trials(graph):
        if verdict.blocks is not None and not candidate.merged & taken.keys():
            chosen = replace(candidate, strip=replace(candidate.strip, blocks=verdict.blocks))
            taken |= dict.fromkeys(candidate.merged, chosen)
    if not taken:
        return graph
    gone = {value.buffer for candidate in taken.values() for value in candidate.strip.inner}
    ops = (_in_place(op, taken.get(op.name)) for op in graph.ops)
    return replace(
        graph,
        ops=tuple(op for op in ops if op is not None),
        buffers=tuple(item for item in graph.buffers if item.name not in gone),
        values=tuple(value for value in graph.values if value.buffer not in gone),
    )


def strip_trials(graph: Graph) -> Iterator[tuple[StripCandidate, Verdict]]:
    """The candidates of each parameter of ``graph`` up to the first that passes, with their verdicts."""
    index = _Index(graph)
    for parameter in graph.parameters:
        for candidate in _untried(index, parameter):
            verdict = best_blocks(candidate.strip, (), index.values)
            yield candidate, verdict
            if verdict.blocks is not None:
                break


def _untried(index: _Index, parameter: Parameter) -> Iterator[StripCandidate]:
    type_ = index.types[parameter.value]
    if parameter.gradient is None or type_.extent_bytes < LEAST_BYTES:
        return
    for dim, size in enumerate(type_.shape[:2]):
        if size >= min(BLOCK_COUNTS):
            found = _Chain(index, parameter, dim, size).candidate()
            if found is not None:
                yield found


def _in_place(op: Op, candidate: StripCandidate | None) -> Op | None:
    """What stands in the place of ``op``: itself, the op that it merges into, or nothing."""
    if candidate is None:
        return op
    return candidate.op if op.name == candidate.update.name else None


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
            update = self._update(self.parameter.value)
            self._join_update(update, self.dim)
            self._join_maker(self.parameter.gradient, self.dim)
            self._check_joined()
        except _NoStrip:
            return None
        return self._as_candidate() if self.leaves else None

    def _update(self, value: str) -> Op:
        found = self.index.updaters.get(self.graph.buffer_of(value), [])
        if len(found) != 1 or found[0].call.target not in _UPDATES or found[0].strip is not None:
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
                if reader.call.target not in _UPDATES or reader.strip is not None or place not in along:
                    raise _NoStrip
                self._join_update(reader, along[place])

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
                    if updater.name not in self.cuts and self.index.places[updater.name] < end:
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
        return StripCandidate(self.parameter.name, joined[-1], frozenset(self.cuts), strip, tuple(updates))

    def _made(self, op: Op) -> tuple[tuple[int, int], ...]:
        return tuple(item for item in self.cuts[op.name].outputs if op.outputs[item[0]] is not None)
