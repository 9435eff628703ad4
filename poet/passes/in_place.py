"""Gradients written over what they are made from: strips of one block that end in an assignment.

Only ops of the backward pass are changed; by kernels of a library's own also those of the forward pass that
no trained parameter leads to. What else that makes is worth recomputing. Of PyTorch's kernels a trial shows
which are exact. A batch norm's backward copies blocks of channels for it, which takes time: a plan makes that
apart where there is room for both (`poet.planning.step_search`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from poet.ir.graph import Call, Graph, Link, Op, Ref, Role, Strip, TensorType, Value
from poet.ir.packed import DEQUANTISE
from poet.passes.rewrite import GraphUses, is_pure
from poet.runtime.kernels import overwriting
from poet.runtime.trials.blocks import is_exact
from poet.runtime.trials.trial import recalled

Overwrites = Callable[[Call], tuple[int, ...]]
"""Places of the operands that a library's kernel may overwrite with the first output of a call."""


LEAST_BYTES = 128 * 1024
"""Of a result by PyTorch's kernels: a smaller one decides no peak, and each trial takes time."""

LEAST_COPIED_BYTES = 512 * 1024
"""Likewise where blocks of it are copied."""

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
        updates=(*op.updates, homes[result.buffer]),
        repeatable=False,
        repeat_call=None,
        strip=strip,
    )


class _Search(GraphUses):
    """What of a graph may be written over."""

    def __init__(self, graph: Graph, overwrites: Overwrites, *, of_gradients: bool) -> None:
        super().__init__(graph)
        self.overwrites, self.of_gradients = overwrites, of_gradients
        self.buffers = {buffer.name: buffer for buffer in graph.buffers}
        self.frozen = frozenset[str]() if of_gradients else self._frozen()

    def _frozen(self) -> frozenset[str]:
        """Names of the ops of the forward pass that no trained parameter leads to.

        None, where what backward reads of their results takes as much as the largest of them: then that is
        better made again.
        """
        trained = {self.graph.buffer_of(item.value) for item in self.graph.parameters if item.gradient}
        found, made = [], list[str]()
        for op in self.graph.ops[: self.backward_place]:
            if trained.isdisjoint(self.graph.reads(op.call)):
                found.append(op.name)
                made += self.graph.writes(op) if op.call.target != DEQUANTISE else ()
            else:
                trained.update(self.graph.writes(op))
        saved = (name for name in made if any(map(self.is_backward, self.readers.get(name, ()))))
        largest = max((self.sizes_bytes[name] for name in made), default=0)
        return frozenset(found if largest > sum(map(self.sizes_bytes.__getitem__, saved)) else ())

    def operand(self, op: Op, place: int) -> str | None:
        """The value whose memory the first output of ``op``, the one at ``place``, takes over."""
        may_run_once = op.name in self.frozen and not op.random and op.strip is None
        if not may_run_once and (place < self.backward_place or not is_pure(op)):
            return None
        if not op.outputs or op.outputs[0] is None:
            return None
        result = op.outputs[0]
        for index in self.overwrites(op.call):
            argument = op.call.args[index] if index < len(op.call.args) else None
            if isinstance(argument, Ref) and self._may(op, argument.value, result):
                return argument.value
        return None

    def _may(self, op: Op, operand: str, result: str) -> bool:
        graph, kind = self.graph, self.types[result]
        old, new = graph.buffer_of(operand), graph.buffer_of(result)
        alike = all(self.types[name] == kind for name in op.call.refs() if graph.buffer_of(name) == old)
        return (
            alike
            and (old in self.makers and self.readers[old][-1] is op)
            and not self.kept & {old, new}
            and self.buffers[old].size_bytes == self.buffers[new].size_bytes == kind.extent_bytes
            and self.buffers[new].role is not Role.GRADIENT
            and not kind.overlaps_itself
            and not (self.of_gradients and self._is_forward(old))
        )

    def _is_forward(self, buffer: str) -> bool:
        """Whether it is worth recomputing, or a parameter's gradient, which somebody may ask to see."""
        return not self.is_backward(self.makers[buffer]) or self.buffers[buffer].role is Role.GRADIENT


# --- by PyTorch's kernels ----------------------------------------------------------------------------


def chosen_takeovers(*forms: Graph) -> Takeovers:
    """What is written over an operand in each of a step's ``forms``, none of which has any of it."""
    first, *rest = (_chosen(graph) for graph in forms)
    return {
        name: operand for name, operand in first.items() if all(other.get(name) == operand for other in rest)
    }


def copied_takeovers(graph: Graph, taken: Takeovers) -> tuple[str, ...]:
    """The ops of ``graph`` among ``taken`` whose result is copied over the operand, which takes time."""
    return tuple(op.name for op in graph.ops if op.name in taken and op.call.target in overwriting.COPIED)


def _chosen(graph: Graph) -> Takeovers:
    values = {value.name: value for value in graph.values}
    ops = {op.name: op for op in graph.ops}
    found = {
        name: operand
        for name, operand in takeovers(graph, overwriting.overwrites, of_gradients=True).items()
        if values[operand].type.extent_bytes >= _least_bytes(ops[name])
    }
    types = {name: value.type for name, value in values.items()}
    with recalled():
        return {
            name: operand for name, operand in found.items() if _is_exact(ops[name], operand, values, types)
        }


def _least_bytes(op: Op) -> int:
    return LEAST_COPIED_BYTES if op.call.target in overwriting.COPIED else LEAST_BYTES


def _is_exact(op: Op, operand: str, values: dict[str, Value], types: dict[str, TensorType]) -> bool:
    """Whether the kernel that writes over the operand gives the bits of the one that does not."""
    strip = strip_over(op, operand, values[str(op.outputs[0])])
    has_kernel = overwriting.operand_of(strip, types) is not None
    return has_kernel and is_exact(strip, others(op), values)
