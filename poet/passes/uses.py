"""Who makes, reads and updates what in a graph."""

from __future__ import annotations

from functools import cached_property

from poet.ir.graph import Graph, Op, Value


def is_pure(op: Op) -> bool:
    """Whether ``op`` is one call without an effect."""
    return op.strip is None and not (op.updates or op.random or op.repeat_call)


class GraphUses:
    """The ops behind each value and buffer of a graph.

    Attributes:
        graph: of which.
        values: by name; ``types``: their types.
        sizes_bytes: of buffers.
        places: of ops in their order, by name.
        makers: the op that makes a buffer.
        readers: the ops that read or change a buffer, on a first or a later run, in order.
        updaters: the ops that change it.
        kept: buffers that are handed to the caller.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.values = {value.name: value for value in graph.values}
        self.types = {value.name: value.type for value in graph.values}
        self.sizes_bytes = {buffer.name: buffer.size_bytes for buffer in graph.buffers}
        self.places = {op.name: place for place, op in enumerate(graph.ops)}
        self.makers = {buffer: op for op in graph.ops for buffer in graph.writes(op)}
        self.readers: dict[str, list[Op]] = {}
        self.updaters: dict[str, list[Op]] = {}
        for op in graph.ops:
            again = graph.reads(op.recall) if op.recall is not None else ()
            for buffer in {*graph.reads(op.call), *again, *op.updates}:
                self.readers.setdefault(buffer, []).append(op)
            for buffer in op.updates:
                self.updaters.setdefault(buffer, []).append(op)
        self.kept = {graph.buffer_of(name) for name in (graph.loss, *graph.predictions)}

    @cached_property
    def values_on(self) -> dict[str, list[Value]]:
        """The values on each buffer."""
        found: dict[str, list[Value]] = {}
        for value in self.graph.values:
            found.setdefault(value.buffer, []).append(value)
        return found

    @cached_property
    def backward_place(self) -> int:
        """Of the first op of the backward pass."""
        return self.places[self.makers[self.graph.buffer_of(self.graph.loss)].name] + 1

    def op(self, name: str) -> Op:
        """The op of this name."""
        return self.graph.ops[self.places[name]]

    def is_backward(self, op: Op) -> bool:
        """Whether ``op`` is of the backward pass."""
        return self.places[op.name] >= self.backward_place

    def readers_of(self, value: str | None) -> list[Op]:
        """The ops that read or change the buffer behind ``value``."""
        return [] if value is None else self.readers.get(self.graph.buffer_of(value), [])

    def maker_of(self, value: str) -> Op | None:
        """The op that makes the buffer behind ``value``."""
        return self.makers.get(self.graph.buffer_of(value))

    def is_kept(self, value: str) -> bool:
        """Whether ``value`` is handed to the caller."""
        return self.graph.buffer_of(value) in self.kept

    def is_changed(self, buffer: str, start: int, stop: int) -> bool:
        """Whether an op from place ``start`` to before ``stop`` changes ``buffer``."""
        return any(start <= self.places[op.name] < stop for op in self.updaters.get(buffer, ()))
