"""One rewrite of a graph: some of its ops in another form with the same bits; and who uses what in it."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from poet.ir.graph import Buffer, Graph, Op, Role, Value
from poet.ir.kernel_facts import OpFacts


class Technique(enum.Enum):
    """What a rewrite is, of those that a plan may choose."""

    COMPRESSED = "compressed activation"
    BLOCKS = "more blocks"
    STORED_ROWS = "rows in storage"


@dataclass(frozen=True, slots=True)
class Rewrite:
    """What stands in the place of some ops of a graph.

    Attributes:
        ops: the new form by the name of the op that it replaces; ``None``: nothing stands there any more.
        added: values that are new or of another type, each on a buffer of its own.
        gone: buffers that nothing makes any more.
        gradients: by parameter, the value that stands for its gradient from now on.
        technique: ``None``: a plan does not choose it.
        facts: what the kernels of the new ops need, by name, where that is known.
    """

    ops: Mapping[str, Op | None]
    added: tuple[Value, ...] = ()
    gone: tuple[str, ...] = ()
    gradients: Mapping[str, str] = field(default_factory=dict)
    technique: Technique | None = None
    facts: Mapping[str, OpFacts] = field(default_factory=dict)

    @property
    def made(self) -> tuple[Op, ...]:
        """The new forms."""
        return tuple(op for op in self.ops.values() if op is not None)

    @property
    def omitted(self) -> tuple[str, ...]:
        """Names of the ops in whose place there is nothing."""
        return tuple(name for name, op in self.ops.items() if op is None)


def rewritten(
    graph: Graph, rewrites: Iterable[Rewrite], *, predictions: tuple[str, ...] | None = None
) -> Graph:
    """``graph`` with all of ``rewrites``, of which no two change the same op.

    ``predictions``: what is handed to the caller from now on; ``None``: the same.
    """
    rewrites = tuple(rewrites)
    if not any(each.ops for each in rewrites):
        return graph
    forms = {name: op for each in rewrites for name, op in each.ops.items()}
    added = {value.name: value for each in rewrites for value in each.added}
    fresh = {value.buffer for value in added.values()}
    gone = {name for each in rewrites for name in each.gone}
    gradients = {name: value for each in rewrites for name, value in each.gradients.items()}
    ops = (forms.get(op.name, op) for op in graph.ops)
    values = (item for item in graph.values if item.name not in added and item.buffer not in gone)
    buffers = (item for item in graph.buffers if item.name not in fresh and item.name not in gone)
    saved = (Buffer(value.buffer, value.type.extent_bytes, Role.SAVED) for value in added.values())
    return replace(
        graph,
        ops=tuple(op for op in ops if op is not None),
        values=(*values, *added.values()),
        buffers=(*buffers, *saved),
        parameters=tuple(
            replace(item, gradient=gradients.get(item.name, item.gradient)) for item in graph.parameters
        ),
        predictions=graph.predictions if predictions is None else predictions,
    )


def with_updates_placed(
    ops: Sequence[Op], updates: Iterable[Op], buffer_of: Callable[[str], str]
) -> list[Op]:
    """``ops`` with each of ``updates`` as early as it may run, so that gradients do not pile up.

    That is right after the last op that makes or reads what it touches.

    Args:
        ops: of a step, in order.
        updates: to be put among them.
        buffer_of: the buffer behind a value.
    """

    def written(op: Op) -> set[str]:
        return {buffer_of(name) for name in op.outputs if name is not None}

    last_touch: dict[str, int] = {}
    for index, op in enumerate(ops):
        for name in {buffer_of(name) for name in op.call.refs()} | written(op):
            last_touch[name] = index
    made_at = {name: index for index, op in enumerate(ops) for name in {*written(op), *op.updates}}
    due: dict[int, list[Op]] = {}
    for update in updates:
        reads = {buffer_of(name) for name in update.call.refs()}
        index = max(
            max(made_at.get(name, -1) for name in reads),
            max(last_touch.get(name, -1) for name in update.updates),
        )
        due.setdefault(index, []).append(update)
    ordered = due.get(-1, [])
    for index, op in enumerate(ops):
        ordered += [op, *due.get(index, [])]
    return ordered


# --- who makes, reads and updates what --------------------------------------------------------


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
