"""The parameters of a graph as users know them: by the module's names, whether in parts or not."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from poet.ir.graph import Graph, Parameter, TensorType, Whole

Bounds = tuple[tuple[int, int], ...]
"""First row of each part and the one after its last."""


@dataclass(frozen=True, slots=True)
class Joined:
    """A tensor that lives across steps, under a user's name.

    Attributes:
        name: of it.
        type: of all of it.
        values: that make it up, the first rows first; mostly one.
        bounds: of the rows of each; empty where there is one value.
    """

    name: str
    type: TensorType
    values: tuple[str, ...]
    bounds: Bounds = ()


@dataclass(frozen=True, slots=True)
class Named:
    """A parameter as users know it.

    Attributes:
        content: its elements, under the module's own name.
        optimizer_state: per state name the elements.
        parts: names of the graph's parameters that make it up; its own where it is in no parts.
        is_trained: whether it has a gradient.
    """

    content: Joined
    optimizer_state: tuple[tuple[str, Joined], ...]
    parts: tuple[str, ...]
    is_trained: bool

    @property
    def name(self) -> str:
        """The module's own name."""
        return self.content.name


def named_parameters(graph: Graph) -> tuple[Named, ...]:
    """The parameters of ``graph`` as users know them, in the module's order."""
    types = {value.name: value.type for value in graph.values}
    parameters = {parameter.name: parameter for parameter in graph.parameters}
    whole_of = {part: whole for whole in graph.wholes for part in whole.parts}
    found = []
    for parameter in graph.parameters:
        whole = whole_of.get(parameter.name)
        if whole is None:
            found.append(_named(parameter.name, types[parameter.value], (parameter,), ()))
        elif parameter.name == whole.parts[0]:
            parts = tuple(parameters[name] for name in whole.parts)
            found.append(_named(whole.name, whole.type, parts, bounds_of(graph, whole)))
    return tuple(found)


def _named(name: str, type_: TensorType, parts: tuple[Parameter, ...], bounds: Bounds) -> Named:
    states = [state for state, _ in parts[0].optimizer_state]
    values = zip(*([value for _, value in part.optimizer_state] for part in parts), strict=True)
    return Named(
        content=Joined(name, type_, tuple(part.value for part in parts), bounds),
        optimizer_state=tuple(
            (state, Joined(f"optimizer/{name}/{state}", type_, tuple(column), bounds))
            for state, column in zip(states, values, strict=True)
        ),
        parts=tuple(part.name for part in parts),
        is_trained=parts[0].gradient is not None,
    )


def bounds_of(graph: Graph, whole: Whole) -> Bounds:
    """First row of each part of ``whole``, and the one after its last."""
    types = {value.name: value.type for value in graph.values}
    values = {parameter.name: parameter.value for parameter in graph.parameters}
    rows = [types[values[name]].shape[0] for name in whole.parts]
    return tuple(itertools.pairwise(itertools.accumulate(rows, initial=0)))


def trained_in_words(graph: Graph) -> str:
    """For people: how many of the module's parameters are trained."""
    named = named_parameters(graph)
    return f"{sum(item.is_trained for item in named)} of {len(named)} parameters"
