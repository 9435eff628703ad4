"""Gradients written over what they are made from: strips of one block that end in an assignment.

For kernels that may overwrite an operand. Only ops of the way back are changed: what the way there makes is
worth recomputing, and an op with an effect runs once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from poet.graph import Call, Graph, Link, Op, Ref, Role, Strip, Value

Overwrites = Callable[[Call], tuple[int, ...]]
"""Places of the operands that a library's kernel may overwrite with the first output of a call."""


def with_results_in_place(graph: Graph, overwrites: Overwrites) -> Graph:
    """``graph`` with gradients in the place of what they are made from, where nothing reads that again.

    Args:
        graph: a training step.
        overwrites: of the library that will run it.
    """
    search = _Search(graph, overwrites)
    taken: dict[str, str] = {}  # value that is written over, by op
    homes: dict[str, str] = {}  # buffer that a result moves into, by the buffer that it had
    for place, op in enumerate(graph.ops):
        operand = search.operand(op, place)
        if operand is not None:
            taken[op.name] = operand
            own, other = graph.buffer_of(str(op.outputs[0])), graph.buffer_of(operand)
            homes[own] = homes.get(other, other)
    if not taken:
        return graph
    types = {value.name: value for value in graph.values}
    return replace(
        graph,
        ops=tuple(_in_place(op, types, homes) if op.name in taken else op for op in graph.ops),
        buffers=tuple(item for item in graph.buffers if item.name not in homes),
        values=tuple(replace(value, buffer=homes.get(value.buffer, value.buffer)) for value in graph.values),
    )


def _in_place(op: Op, values: dict[str, Value], homes: dict[str, str]) -> Op:
    result = str(op.outputs[0])
    made = Value(f"{result}.made", f"{result}.made", values[result].type)
    links = (
        Link(op.call, (made.name, *op.outputs[1:]), ()),
        Link(Call("poet.assign", (Ref(result), Ref(made.name))), (), ()),
    )
    strip = Strip(links, (made,), 1, 1)
    home = homes[values[result].buffer]
    return replace(
        op,
        call=strip.call,
        outputs=tuple(name for name in op.outputs[1:] if name is not None),
        updates=(home,),
        repeatable=False,
        strip=strip,
    )


class _Search:
    """What of a graph may be written over."""

    def __init__(self, graph: Graph, overwrites: Overwrites) -> None:
        self.graph, self.overwrites = graph, overwrites
        self.types = {value.name: value.type for value in graph.values}
        self.buffers = {buffer.name: buffer for buffer in graph.buffers}
        self.kept = {graph.buffer_of(name) for name in (graph.loss, *graph.predictions)}
        self.made_at = {name: place for place, op in enumerate(graph.ops) for name in graph.writes(op)}
        self.way_back = self.made_at[graph.buffer_of(graph.loss)] + 1
        self.last_read: dict[str, int] = {}
        for place, op in enumerate(graph.ops):
            again = graph.reads(op.recall) if op.recall is not None else ()
            for name in {*graph.reads(op.call), *again, *op.updates}:
                self.last_read[name] = place

    def operand(self, op: Op, place: int) -> str | None:
        """The value whose memory the first output of ``op``, the one at ``place``, takes over."""
        is_pure = op.strip is None and not op.updates and not op.random and op.repeat_call is None
        if place < self.way_back or not is_pure or not op.outputs or op.outputs[0] is None:
            return None
        result = op.outputs[0]
        for index in self.overwrites(op.call):
            argument = op.call.args[index] if index < len(op.call.args) else None
            if isinstance(argument, Ref) and self._may(op, place, argument.value, result):
                return argument.value
        return None

    def _may(self, op: Op, place: int, operand: str, result: str) -> bool:
        graph, kind = self.graph, self.types[result]
        old, new = graph.buffer_of(operand), graph.buffer_of(result)
        alike = all(self.types[name] == kind for name in op.call.refs() if graph.buffer_of(name) == old)
        return (
            alike
            and old in self.made_at
            and self.last_read[old] == place
            and not self.kept & {old, new}
            and self.buffers[old].size_bytes == self.buffers[new].size_bytes == kind.extent_bytes
            and self.buffers[new].role is not Role.GRADIENT
            and not kind.overlaps_itself
        )
