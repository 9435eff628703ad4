"""Gradients written over what they are made from: strips of one block that end in an assignment.

For kernels that may overwrite an operand. Only ops of the way back are changed: what the way there makes is
worth recomputing, and an op with an effect runs once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from poet.graph import Call, Graph, Link, Op, Ref, Role, Strip, Value

Overwrites = Callable[[Call], tuple[int, ...]]
"""Places of the operands that a library's kernel may overwrite with the first output of a call."""


Takeovers = Mapping[str, str]
"""By the name of an op, the value in whose memory its first result comes to lie."""


def with_results_in_place(graph: Graph, overwrites: Overwrites) -> Graph:
    """``graph`` with gradients in the place of what they are made from, where nothing reads that again.

    Args:
        graph: a training step.
        overwrites: of the library that will run it.
    """
    return with_takeovers(graph, takeovers(graph, overwrites))


def takeovers(graph: Graph, overwrites: Overwrites, *, of_gradients: bool = False) -> dict[str, str]:
    """What `with_results_in_place` changes, by the name of the op.

    Args:
        graph: a training step.
        overwrites: of the library that will run it.
        of_gradients: whether only what the way back makes is written over, and no parameter's gradient.
    """
    search = _Search(graph, overwrites, of_gradients=of_gradients)
    found = {op.name: search.operand(op, place) for place, op in enumerate(graph.ops)}
    return {name: operand for name, operand in found.items() if operand is not None}


def with_takeovers(graph: Graph, taken: Takeovers) -> Graph:
    """``graph`` with those results in the memory of operands, all or some of what `takeovers` finds."""
    if not taken:
        return graph
    homes: dict[str, str] = {}  # buffer that a result moves into, by the buffer that it had
    for op in graph.ops:
        if op.name in taken:
            own, other = graph.buffer_of(str(op.outputs[0])), graph.buffer_of(taken[op.name])
            homes[own] = homes.get(other, other)
    types = {value.name: value for value in graph.values}
    return replace(
        graph,
        ops=tuple(
            _in_place(op, taken[op.name], types, homes) if op.name in taken else op for op in graph.ops
        ),
        buffers=tuple(item for item in graph.buffers if item.name not in homes),
        values=tuple(replace(value, buffer=homes.get(value.buffer, value.buffer)) for value in graph.values),
    )


def strip_over(op: Op, operand: str, result: Value) -> Strip:
    """``op`` with its first result, ``result``, written over ``operand``."""
    made = Value(f"{result.name}.made", f"{result.name}.made", result.type)
    links = (
        Link(op.call, (made.name, *op.outputs[1:]), ()),
        Link(Call("poet.assign", (Ref(operand), Ref(made.name))), (), ()),
    )
    return Strip(links, (made,), 1, 1)


def others(op: Op) -> tuple[str, ...]:
    """The outputs of ``op`` but for the first."""
    return tuple(name for name in op.outputs[1:] if name is not None)


def _in_place(op: Op, operand: str, values: dict[str, Value], homes: dict[str, str]) -> Op:
    result = values[str(op.outputs[0])]
    strip = strip_over(op, operand, result)
    return replace(
        op,
        call=strip.call,
        outputs=others(op),
        updates=(homes[result.buffer],),
        repeatable=False,
        strip=strip,
    )


class _Search:
    """What of a graph may be written over."""

    def __init__(self, graph: Graph, overwrites: Overwrites, *, of_gradients: bool) -> None:
        self.graph, self.overwrites, self.of_gradients = graph, overwrites, of_gradients
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
            and (old in self.made_at and self.last_read[old] == place)
            and not self.kept & {old, new}
            and self.buffers[old].size_bytes == self.buffers[new].size_bytes == kind.extent_bytes
            and self.buffers[new].role is not Role.GRADIENT
            and not kind.overlaps_itself
            and not (self.of_gradients and self._is_forward(old))
        )

    def _is_forward(self, buffer: str) -> bool:
        """Whether it is worth recomputing, or a parameter's gradient, which somebody may ask to see."""
        return self.made_at[buffer] < self.way_back or self.buffers[buffer].role is Role.GRADIENT
