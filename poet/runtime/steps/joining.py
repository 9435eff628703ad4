"""Parameters in parts, as callers see them: whole, under the module's names."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from torch import Tensor

from poet.graph import Graph
from poet.named import Joined, named_parameters
from poet.runtime.kernels.cells import new_buffer, view_of

Tap = Callable[[str, Tensor], None]


def joined(item: Joined, fetch: Callable[[str], Tensor]) -> Tensor:
    """All of ``item``: what ``fetch`` gives of its one value, or a new tensor of its parts, one at a time.

    Raises:
        ReplayError: there is no memory for it.
    """
    if not item.bounds:
        return fetch(item.values[0])
    whole = _empty(item)
    for value, part in pieces(item, whole):
        part.copy_(fetch(value))
    return whole


def pieces(item: Joined, whole: Tensor) -> Iterator[tuple[str, Tensor]]:
    """The values that make up ``item``, each with its rows of ``whole``."""
    if not item.bounds:
        yield item.values[0], whole
    for value, (start, stop) in zip(item.values, item.bounds, strict=False):
        yield value, whole[start:stop]


def _empty(item: Joined) -> Tensor:
    return view_of(new_buffer(item.type.extent_bytes).untyped_storage(), item.type)


def joining_tap(graph: Graph, tap: Tap) -> Tap:
    """What takes gradients of the graph's parameters and gives ``tap`` those of the module's.

    Parts are put together; the whole is given once its last part was made.
    """
    owners = {
        part: (named.content, number)
        for named in named_parameters(graph)
        for number, part in enumerate(named.parts)
        if named.content.bounds
    }
    wholes: dict[str, Tensor] = {}
    missing: dict[str, set[int]] = {}

    def take(name: str, gradient: Tensor) -> None:
        if name not in owners:
            tap(name, gradient)
            return
        item, number = owners[name]
        if item.name not in wholes:
            wholes[item.name] = _empty(item)
            missing[item.name] = set(range(len(item.bounds)))
        start, stop = item.bounds[number]
        wholes[item.name][start:stop].copy_(gradient)
        missing[item.name].discard(number)
        if not missing[item.name]:
            tap(item.name, wholes.pop(item.name))

    return take
