"""Which gradients PyTorch's kernels write over what they are made from: those that a trial shows to be exact.

Where nothing is copied for it (`poet.runtime.kernels.overwriting`) it takes no time. A batch norm's backward
copies blocks of channels, which is worth its time where the gradient is large and RAM is scarce: a plan makes
it apart where there is room for both (`poet.planning.saves_choice`).
"""

from __future__ import annotations

from poet.frontend.in_place import Takeovers, others, strip_over, takeovers
from poet.graph import Graph, Op, Value
from poet.runtime.kernels import overwriting
from poet.runtime.trials.blocks import is_exact
from poet.runtime.trials.trial import recalled

LEAST_BYTES = 128 * 1024
"""Of a result: a smaller one decides no peak, and each trial takes time."""

LEAST_COPIED_BYTES = 512 * 1024
"""Likewise where blocks of it are copied."""


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
    with recalled():
        return {name: operand for name, operand in found.items() if _is_exact(ops[name], operand, values)}


def _least_bytes(op: Op) -> int:
    return LEAST_COPIED_BYTES if op.call.target in overwriting.COPIED else LEAST_BYTES


def _is_exact(op: Op, operand: str, values: dict[str, Value]) -> bool:
    """Whether the kernel that writes over the operand gives the bits of the one that does not."""
    strip = strip_over(op, operand, values[str(op.outputs[0])])
    types = {name: value.type for name, value in values.items()}
    has_kernel = overwriting.operand_of(strip, types) is not None
    return has_kernel and is_exact(strip, others(op), values)
