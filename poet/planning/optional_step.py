"""What of a training step only some groups of parameters need, and the least that each op may take."""

from __future__ import annotations

from dataclasses import replace

from poet.devices.costs import op_cost
from poet.ir.graph import Graph, Op
from poet.planning.prepared import Prepared
from poet.solvers.bounds.optional_ops import OptionalOps


def optional_ops(prepared: Prepared, members: list[frozenset[str]], shares: tuple[float, ...]) -> OptionalOps:
    """What of the step of ``prepared`` only some groups need, and the least that each op may take."""
    graph, profile = prepared.step.graph, prepared.profile
    parts = {part: whole.name for whole in graph.wholes for part in whole.parts}
    values = {value.name for value in graph.values}
    trained = {
        item.name if item.name in values else item.value: parts.get(item.name, item.name)
        for item in graph.parameters
        if item.gradient
    }
    updates = {
        op.name: {trained[name] for name in op.call.refs() if name in trained and op.updates}
        for op in graph.ops
    }
    always = [op for op in graph.ops if not updates[op.name] and _has_effect(graph, op)]
    base = _ancestors(graph, always)
    needs: dict[str, set[int]] = {op.name: set() for op in graph.ops if op.name not in base}
    for number, names in enumerate(members):
        for name in _ancestors(graph, [op for op in graph.ops if updates[op.name] & names]) - base:
            needs[name].add(number)
    streams = prepared.kernels.library != profile.kernels.name or prepared.step.forms is not None
    return OptionalOps(
        problem=prepared.problem,
        shares=shares,
        needs={name: frozenset(groups) for name, groups in needs.items()},
        least={op.name: _least(graph, op, prepared) for op in graph.ops if len(_parts(op)) > 1},
        spared_bytes={op.name: _spared_bytes(prepared, op, whole=streams) for op in graph.ops},
    )


def _has_effect(graph: Graph, op: Op) -> bool:
    """Whether the step needs ``op`` whatever is trained."""
    results = {graph.buffer_of(name) for name in (graph.loss, *graph.predictions)}
    lasting = graph.persistent()
    return op.random or bool(results & {*graph.writes(op)}) or any(name in lasting for name in op.updates)


def _ancestors(graph: Graph, roots: list[Op]) -> set[str]:
    """Names of ``roots`` and of the ops that what they read depends on."""
    found, wanted = {op.name for op in roots}, set[str]()
    for op in reversed(graph.ops):
        if op.name in found or wanted & {*graph.writes(op), *op.updates}:
            found.add(op.name)
            wanted |= {*graph.reads(op.call)}
    return found


def _parts(op: Op) -> list[int]:
    """Places of the outputs of an op whose last argument says which of them are wanted."""
    mask = op.call.args[-1] if op.call.args else None
    if not isinstance(mask, tuple) or not all(isinstance(item, bool) for item in mask):
        return []
    return [place for place, name in enumerate(op.outputs) if name is not None]


def _least(graph: Graph, op: Op, prepared: Prepared) -> tuple[float, float]:
    """Joules and seconds of the cheapest single output of ``op``."""
    costs = []
    for place in _parts(op):
        mask = tuple(number == place for number in range(len(op.outputs)))
        outputs = tuple(name if keep else None for name, keep in zip(op.outputs, mask, strict=True))
        alone = replace(op, call=replace(op.call, args=(*op.call.args[:-1], mask)), outputs=outputs)
        costs.append(op_cost(alone, graph, prepared.profile))
    return min(cost.joules for cost in costs), min(cost.seconds for cost in costs)


_PRODUCTS = ("convolution", "mm", "bmm", "addmm", "baddbmm")


def _spared_bytes(prepared: Prepared, op: Op, *, whole: bool) -> int:
    """By how much less ``op`` may hold in a step that trains less: a result written over an operand.

    With blocks chosen again for each step (``whole``), no workspace or result is sure.
    """
    graph, problem = prepared.step.graph, prepared.problem
    sizes = {item.name: problem.aligned_bytes(item.size_bytes) for item in graph.buffers}
    made, lasting = graph.writes(op), graph.persistent()
    workspace = problem.aligned_bytes(prepared.kernels.of(op.name).workspace_bytes)
    if whole:
        return workspace + sum(sizes[name] for name in made)
    apart = sum(sizes[name] for name in made) - max((sizes[name] for name in made), default=0)
    if any(word == op.call.target.split(".")[1].removesuffix("_backward") for word in _PRODUCTS):
        return workspace + apart
    operands = [sizes[name] for name in graph.reads(op.call) if name not in lasting]
    over = min(max(operands, default=0), max((sizes[name] for name in made), default=0))
    return workspace + apart + over
