"""The values of a graph that live across steps."""

from __future__ import annotations

from poet.graph import Graph, TensorType


def stored_values(graph: Graph) -> dict[str, TensorType]:
    """Values that live across steps, by name: parameters, optimizer state, module state, constants."""
    types = {value.name: value.type for value in graph.values}
    names = [parameter.value for parameter in graph.parameters]
    names += [value for parameter in graph.parameters for _, value in parameter.optimizer_state]
    names += [value for _, value in (*graph.states, *graph.constants)]
    return {name: types[name] for name in names}


def lasting_values(graph: Graph) -> dict[str, TensorType]:
    """`stored_values`, and the sums of gradients, which no file holds: a step starts them over."""
    types = {value.name: value.type for value in graph.values}
    sums = [item.accumulator for item in graph.parameters if item.accumulator is not None]
    return stored_values(graph) | {name: types[name] for name in sums}
