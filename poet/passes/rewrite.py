"""One rewrite of a graph: some of its ops in another form with the same bits."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

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
