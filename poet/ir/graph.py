"""The intermediate representation: buffers, values, ops, and the training graph made of them.

It knows no torch, no ONNX and no kernels (see `poet.ir.kernel_facts`). An op is one call of a functional
operator on named values with static shapes; a value is a typed, strided view of a buffer; a buffer is the
bytes that memory, paging and freeing refer to. A view is a second value on the same buffer and needs no op.

A record that exists is well formed: `Graph` checks itself when it is made.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from poet.errors import GraphError, spelled_out
from poet.ir.calls import ITEM_BYTES, Argument, Blank, Call, Ref, Symbol, TensorType, Value
from poet.ir.graph_checks import check
from poet.ir.graph_parts import Buffer, GraphParts, Op, Parameter, Role, stored_row_of
from poet.ir.strips import Link, Strip
from poet.ir.wholes import Whole
from poet.util import codec
from poet.util.brief import shortened, told
from poet.util.reading import shown

__all__ = [
    "ITEM_BYTES",
    "Argument",
    "Blank",
    "Buffer",
    "Call",
    "Graph",
    "Link",
    "Op",
    "Parameter",
    "Ref",
    "Role",
    "Strip",
    "Symbol",
    "TensorType",
    "Value",
    "Whole",
]

FORMAT_VERSION = 2


@dataclass(frozen=True, slots=True, repr=False)
class Graph(GraphParts):
    """A training step: forward, loss, backward and update as one list of ops in a runnable order.

    Raises:
        GraphError: it is not well formed (`poet.ir.graph_checks`).
    """

    def __post_init__(self) -> None:
        GraphParts.__post_init__(self)
        check(self)

    def __repr__(self) -> str:
        parts = f"{len(self.ops)} ops, {len(self.buffers)} buffers, {len(self.parameters)} parameters"
        return told(self, f"of {shortened(self.name)}: {parts}")

    def to_text(self, remarks: Mapping[str, str] | None = None) -> str:
        """The graph as a person reads it: sources, then one line per op, with its remark."""
        return "\n".join(map(spelled_out, _text_lines(self, remarks or {}))) + "\n"

    def to_json(self) -> dict[str, object]:
        """JSON-ready form; `from_json` gives an equal graph back."""
        return {"format": "poet-graph", "version": FORMAT_VERSION, **codec.encode(self)}

    @staticmethod
    def from_json(data: object, *, where: str = "graph") -> Graph:
        """The graph that `to_json` wrote.

        Raises:
            GraphError: another format or version, a key too many or missing, or a malformed graph.
        """
        if not isinstance(data, dict) or data.get("format") != "poet-graph":
            raise GraphError(f"{where}: not a poet-graph")
        if data.get("version") != FORMAT_VERSION:
            raise GraphError(
                f"{where}: version {shown(data.get('version'))}, this poet reads {FORMAT_VERSION}"
            )
        fields = {key: item for key, item in data.items() if key not in ("format", "version")}
        return codec.decode(Graph, fields, where=where, error=GraphError)


# --- text and JSON ----------------------------------------------------------------------------


def _text_lines(graph: Graph, remarks: Mapping[str, str]) -> Iterator[str]:
    types = {value.name: value.type for value in graph.values}
    buffers = {buffer.name: buffer for buffer in graph.buffers}
    produced = {written for op in graph.ops for written in graph.writes(op)}
    yield f"graph {graph.name}"
    for value in graph.values:
        buffer = buffers[value.buffer]
        if value.buffer not in produced:
            place = f"@{buffer.name} ({buffer.size_bytes} B)"
            yield f"  %{value.name}: {value.type} = {buffer.role.value} {place}"
    views: dict[str, list[Value]] = {}
    for value in graph.values:
        views.setdefault(value.buffer, []).append(value)
    for op in graph.ops:
        outputs = [f"%{name}: {types[name]}" if name is not None else "_" for name in op.outputs]
        notes = [remarks[op.name]] if op.name in remarks else []
        notes += [f"updates @{name}" for name in op.updates]
        notes += [f"reads rows of @{name} in storage" for name in op.stored]
        notes += ["random"] if op.random else []
        notes += [] if op.repeatable else ["never recomputed"]
        notes += [f"recomputed by {op.repeat_call}"] if op.repeat_call is not None else []
        suffix = f"    # {'; '.join(notes)}" if notes else ""
        yield f"  {', '.join(outputs) or '_'} = {op.call}{suffix}"
        if op.strip is not None:
            links = "; ".join(str(link.call) for link in op.strip.links)
            yield f"    in {len(op.strip.bounds)} blocks: {links}"
        for written in graph.writes(op):
            for view in views[written]:
                if view.name not in op.outputs:
                    yield f"    %{view.name}: {view.type} views @{written}"
    yield f"  loss %{graph.loss}; predictions {', '.join('%' + name for name in graph.predictions)}"


def stored_row_bytes(graph: Graph) -> dict[str, int]:
    """The buffers of ``graph`` that are read by row in storage, with the bytes of a row."""
    return {name: stored_row_of(op)[0] for op in graph.ops for name in op.stored}
