"""Batch norm and the rectifier behind it as one op, and so their ways back.

For libraries that have such kernels. What is between the two exists nowhere, and the way back finds the
rectifier's signs from the norm's input, which it reads anyway: the rectifier's output may be gone by then.
"""

from __future__ import annotations

from dataclasses import replace

from poet.graph import Call, Graph, Op, Ref

_NORM, _NORM_BACKWARD = "aten.native_batch_norm.default", "aten.native_batch_norm_backward.default"
_RELU, _RELU_BACKWARD = "aten.relu.default", "aten.threshold_backward.default"
FORWARD, BACKWARD = "poet.norm_relu", "poet.norm_relu_backward"


def with_norms_and_relus(graph: Graph) -> Graph:
    """``graph`` with each batch norm in training whose output only a rectifier reads as one op with it.

    Ways back become one where all of them can; elsewhere both ops stay as they are.
    """
    uses = _Uses(graph)
    made: dict[str, Op] = {}  # by the name of the op that it stands in the place of
    gone: set[str] = set()
    for op in graph.ops:
        relu = uses.only_reader(op.outputs[0]) if _is_norm(op) else None
        if relu is None or relu.call.target != _RELU or not uses.is_alike(op.outputs[0], relu.outputs[0]):
            continue
        back = uses.way_back(op, relu)
        if back is None:
            continue
        made[op.name] = _forward(op, relu)
        gone |= {relu.name, *(gate.name for gate, _ in back)}
        made.update((norm.name, _backward(op, gate, norm)) for gate, norm in back)
    if not made:
        return graph
    dropped = {graph.buffer_of(str(op.outputs[0])) for op in graph.ops if op.name in gone}
    dropped |= {graph.buffer_of(str(op.outputs[0])) for op in graph.ops if op.name in made and _is_norm(op)}
    kept = {graph.buffer_of(name) for op in made.values() for name in op.outputs if name is not None}
    dropped -= kept
    return replace(
        graph,
        ops=tuple(made.get(op.name, op) for op in graph.ops if op.name not in gone),
        buffers=tuple(item for item in graph.buffers if item.name not in dropped),
        values=tuple(value for value in graph.values if value.buffer not in dropped),
    )


def _is_norm(op: Op) -> bool:
    is_norm = op.call.target == _NORM and op.strip is None and op.repeatable and not op.call.kwargs
    return is_norm and op.call.args[5] is True and None not in op.outputs


def _forward(norm: Op, relu: Op) -> Op:
    """Both in the norm's place."""
    again = None if norm.repeat_call is None else replace(norm.repeat_call, target=FORWARD)
    call = replace(norm.call, target=FORWARD)
    return replace(norm, call=call, outputs=(relu.outputs[0], *norm.outputs[1:]), repeat_call=again)


def _backward(forward: Op, gate: Op, norm: Op) -> Op:
    """The way back through both in the place of that through the norm."""
    source, weight, bias = forward.call.args[:3]
    saved = norm.call.args[5:7]
    call = Call(BACKWARD, (gate.call.args[0], source, weight, bias, *saved, True, norm.call.args[8]))
    return replace(norm, call=call)


class _Uses:
    """Who reads what in a graph."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.types = {value.name: value for value in graph.values}
        self.places = {op.name: place for place, op in enumerate(graph.ops)}
        self.kept = {graph.buffer_of(name) for name in (graph.loss, *graph.predictions)}
        self._readers: dict[str, list[Op]] = {}
        for op in graph.ops:
            again = graph.reads(op.recall) if op.recall is not None else ()
            for name in {*graph.reads(op.call), *again, *op.updates}:
                self._readers.setdefault(name, []).append(op)

    def readers(self, value: str | None) -> list[Op]:
        """The ops that read or change the buffer of ``value``."""
        return self._readers.get(self.graph.buffer_of(str(value)), [])

    def only_reader(self, value: str | None) -> Op | None:
        """The op that alone reads the buffer of ``value``, which nobody else is given."""
        found = self.readers(value)
        is_free = self.graph.buffer_of(str(value)) not in self.kept
        return found[0] if is_free and len(found) == 1 and found[0].strip is None else None

    def is_alike(self, one: str | None, other: str | None) -> bool:
        """Whether both values have one type."""
        return self.types[str(one)].type == self.types[str(other)].type

    def way_back(self, norm: Op, relu: Op) -> list[tuple[Op, Op]] | None:
        """The pairs of ops that lead back through both; ``None``: they are not all pairs."""
        gates = [op for op in self.readers(relu.outputs[0]) if op.call.target == _RELU_BACKWARD]
        found = [(gate, self.only_reader(gate.outputs[0])) for gate in gates]
        result = str(relu.outputs[0])
        pairs = [
            (gate, back)
            for gate, back in found
            if back is not None and self._is_pair(norm, result, gate, back)
        ]
        backs = [op for op in self.readers(norm.outputs[1]) if op.call.target == _NORM_BACKWARD]
        whole = len(pairs) == len(gates) and {op.name for op in backs} == {back.name for _, back in pairs}
        return pairs if whole else None

    def _is_pair(self, norm: Op, result: str, gate: Op, back: Op) -> bool:
        """Whether ``back`` is the way back through ``norm`` of what ``gate`` lets through."""
        args, given = back.call.args, gate.call.args[0]
        is_alike = isinstance(given, Ref) and self.is_alike(given.value, gate.outputs[0])  # layout included
        is_plain = back.call.target == _NORM_BACKWARD and gate.strip is None and gate.call.args[2] == 0
        is_plain = is_plain and gate.call.args[1] == Ref(result)
        is_whole = len(back.outputs) == 3 and all(
            (name is None) is (argument is None)
            for name, argument in zip(back.outputs[1:], norm.call.args[1:3], strict=True)
        )
        return (
            is_plain
            and is_alike
            and is_whole
            and back.outputs[0] is not None
            and args[0] == Ref(str(gate.outputs[0]))
            and args[1:3] == norm.call.args[:2]
            and args[5:8] == (Ref(str(norm.outputs[1])), Ref(str(norm.outputs[2])), True)
            and args[8] == norm.call.args[7]
            and not self._changes(norm.call.args[2], back)
            and not self._changes(given, back, since=gate)
        )

    def _changes(self, argument: object, before: Op, *, since: Op | None = None) -> bool:
        """Whether an op changes ``argument`` before ``before`` has read it."""
        if not isinstance(argument, Ref):
            return False
        name = self.graph.buffer_of(argument.value)
        first = 0 if since is None else self.places[since.name]
        return any(name in op.updates for op in self.graph.ops[first : self.places[before.name]])
