"""Weight gradients that are used as they are made: strips of one block, for kernels that have them.

The gradient's op and the updates that read what it makes become one op in the place of the last update.
No trial is needed: such kernels make each element as the separate ones do, and PyTorch makes the calls whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from poet.graph import Graph, Link, Op, Parameter, Strip
from poet.optimizer_kinds import STATES

HasKernel = Callable[[Strip, Graph], bool]
"""Whether a library's kernels can use each element of a strip's gradient as it is made."""

_UPDATES = frozenset(f"poet.{name}" for name in STATES)


@dataclass(frozen=True, slots=True)
class _Fusion:
    """A gradient's op, its updates in order, and the op that they become."""

    made_by: Op
    updates: tuple[Op, ...]
    op: Op

    @property
    def merged(self) -> frozenset[str]:
        return frozenset(op.name for op in (self.made_by, *self.updates))


def with_updates_fused(graph: Graph, has_kernel: HasKernel, *, is_always: bool = False) -> Graph:
    """``graph`` with a gradient's op and its updates as one, where kernels have it and it saves memory.

    Args:
        graph: a training step.
        has_kernel: of the library that will run it.
        is_always: also where it needs more.
    """
    taken: dict[str, _Fusion] = {}  # by the ops that it merges
    index = _Index(graph)
    for parameter in graph.parameters:
        found = index.fusion(parameter)
        if found is None or found.merged & taken.keys():
            continue
        assert found.op.strip is not None
        if has_kernel(found.op.strip, graph) and (is_always or index.saves(found)):
            taken |= dict.fromkeys(found.merged, found)
    if not taken:
        return graph
    fusions = {id(item): item for item in taken.values()}.values()
    gone = {buffer for item in fusions for buffer in graph.writes(item.made_by)}
    last = {item.updates[-1].name: item.op for item in fusions}
    ops = (last.get(op.name) if op.name in taken else op for op in graph.ops)
    return replace(
        graph,
        ops=tuple(op for op in ops if op is not None),
        buffers=tuple(item for item in graph.buffers if item.name not in gone),
        values=tuple(value for value in graph.values if value.buffer not in gone),
    )


class _Index:
    """Who makes and who reads what in a graph."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.sizes_bytes = {buffer.name: buffer.size_bytes for buffer in graph.buffers}
        self.places = {op.name: place for place, op in enumerate(graph.ops)}
        self.makers = {buffer: op for op in graph.ops for buffer in graph.writes(op)}
        self.readers: dict[str, list[Op]] = {}
        for op in graph.ops:
            again = graph.reads(op.recall) if op.recall is not None else ()
            for buffer in {*graph.reads(op.call), *again}:
                self.readers.setdefault(buffer, []).append(op)
        self.kept = {graph.buffer_of(name) for name in (graph.loss, *graph.predictions)}

    def fusion(self, parameter: Parameter) -> _Fusion | None:
        """What the gradient of ``parameter`` and its updates become; ``None``: something else needs it."""
        if parameter.gradient is None:
            return None
        made_by = self.makers.get(self.graph.buffer_of(parameter.gradient))
        if made_by is None or made_by.strip or made_by.random or made_by.updates or made_by.repeat_call:
            return None
        written = self.graph.writes(made_by)
        updates = {op.name: op for name in written for op in self.readers.get(name, ())}
        ordered = tuple(sorted(updates.values(), key=lambda op: self.places[op.name]))
        if self.kept.intersection(written) or len(ordered) != len(written):
            return None
        if any(op.call.target not in _UPDATES or op.strip is not None for op in ordered):
            return None
        return (
            _Fusion(made_by, ordered, self._as_one(made_by, ordered))
            if self._moves(made_by, ordered)
            else None
        )

    def _moves(self, made_by: Op, updates: tuple[Op, ...]) -> bool:
        """Whether all of them may run where the last one does."""
        merged = {made_by.name, *(op.name for op in updates)}
        read = set(self.graph.reads(made_by.call))
        changed_late = set[str]()  # by updates that have had their turn
        for op in self.graph.ops[self.places[made_by.name] : self.places[updates[-1].name]]:
            touched = {*self.graph.reads(op.call), *op.updates}
            if op.name not in merged and (read & set(op.updates) or changed_late & touched):
                return False
            if op.name in merged:
                changed_late |= set(op.updates)
        written = {buffer for op in updates for buffer in op.updates}
        return not read & written

    def _as_one(self, made_by: Op, updates: tuple[Op, ...]) -> Op:
        mentioned = {name for op in (made_by, *updates) for name in (*op.call.refs(), *op.outputs)}
        buffers = set(self.graph.writes(made_by))
        inner = tuple(
            value for value in self.graph.values if value.buffer in buffers and value.name in mentioned
        )
        links = (Link(made_by.call, made_by.outputs, ()), *(Link(op.call, (), ()) for op in updates))
        strip = Strip(links, inner, 1, 1)
        return replace(
            updates[-1],
            call=strip.call,
            outputs=(),
            updates=tuple(dict.fromkeys(buffer for op in updates for buffer in op.updates)),
            repeatable=False,
            strip=strip,
        )

    def _bytes(self, buffers: Iterator[str] | set[str]) -> int:
        return sum(self.sizes_bytes[name] for name in set(buffers))

    def saves(self, found: _Fusion) -> bool:
        """Whether the largest need of the ops on the way is smaller as one op.

        An op that reads the old parameter (the way back to the layer's input) comes before its update: its
        result is there while the one op runs, but the gradient is there while *it* runs if they are separate.
        """
        graph = self.graph
        gradient = set(graph.writes(found.made_by))
        changed = {buffer for op in found.updates for buffer in op.updates}
        start, end = self.places[found.made_by.name], self.places[found.updates[-1].name]
        between = [op for op in graph.ops[start + 1 : end] if changed.intersection(graph.reads(op.call))]
        beside = [op for op in between if op not in found.updates]
        made = {buffer for op in beside for buffer in graph.writes(op)}
        read = set(graph.reads(found.made_by.call))
        apart = [self._bytes(read | gradient), self._bytes(gradient | changed | made)]
        apart += [self._bytes(gradient | {*graph.reads(op.call), *graph.writes(op)}) for op in beside]
        return self._bytes(read | changed | made) <= max(apart)
