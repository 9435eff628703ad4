"""Which instructions of a schedule wait for transfers that run in the background."""

from __future__ import annotations

from collections.abc import Sequence

from poet.graph import Graph
from poet.memory.places import MadeMove
from poet.schedule import Compute, Free, PageOut, Step


class UnderWay:
    """Which buffers have transfers that nothing has waited for, while a schedule is compiled."""

    def __init__(self, graph: Graph) -> None:
        self._reads = {
            op.name: (graph.reads(op.call), graph.reads(op.recall) if op.recall is not None else ())
            for op in graph.ops
        }
        self._updates = {op.name: op.updates for op in graph.ops}
        self._in: set[str] = set()
        self._out: set[str] = set()

    def before(self, step: Step, *, is_first: bool) -> tuple[str, ...]:
        """Buffers that ``step`` must wait for: what it reads has arrived, what it changes has left."""
        waits: set[str] = set()
        if isinstance(step, Compute):
            first, again = self._reads[step.op]
            waits = self._in.intersection(first if is_first else again)
            if is_first:
                waits |= (self._in | self._out).intersection(self._updates[step.op])
        elif isinstance(step, Free):
            waits = (self._in | self._out) & {step.tensor}
        else:
            (self._out if isinstance(step, PageOut) else self._in).add(step.tensor)
        return self._waited(waits)

    def before_moves(self, moves: Sequence[MadeMove]) -> tuple[str, ...]:
        """Buffers that ``moves`` must wait for: those that they move."""
        return self._waited((self._in | self._out).intersection(move.tensor for move in moves))

    def _waited(self, waits: set[str]) -> tuple[str, ...]:
        self._in -= waits
        self._out -= waits
        return tuple(sorted(waits))
