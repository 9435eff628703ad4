"""Ops of a step that one strip could replace."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from poet.graph import Graph, Op, Strip


@dataclass(frozen=True, slots=True)
class StripCandidate:
    """A strip in place of some ops of a graph.

    Attributes:
        of: what is cut: a parameter, or an op.
        last: the op in whose place it stands.
        merged: names of the ops that it replaces, that of ``last`` among them.
        strip: in any number of blocks.
        outputs: of the op that it becomes.
        updates: buffers that it writes.
    """

    of: str
    last: Op
    merged: frozenset[str]
    strip: Strip
    outputs: tuple[str | None, ...] = ()
    updates: tuple[str, ...] = ()

    def in_blocks(self, blocks: int) -> StripCandidate:
        """The same in so many ``blocks``."""
        return replace(self, strip=replace(self.strip, blocks=blocks))

    @property
    def op(self) -> Op:
        """The op that it becomes."""
        return replace(
            self.last,
            call=self.strip.call,
            outputs=self.outputs,
            updates=self.updates,
            repeatable=self.last.repeatable and not self.updates,
            strip=self.strip,
        )


def with_candidates(graph: Graph, chosen: Iterable[StripCandidate]) -> Graph:
    """``graph`` with each of ``chosen`` in the place of the ops that it merges."""
    taken = {name: candidate for candidate in chosen for name in candidate.merged}
    if not taken:
        return graph
    gone = {value.buffer for candidate in taken.values() for value in candidate.strip.inner}
    ops = (_in_place(op, taken.get(op.name)) for op in graph.ops)
    return replace(
        graph,
        ops=tuple(op for op in ops if op is not None),
        buffers=tuple(item for item in graph.buffers if item.name not in gone),
        values=tuple(value for value in graph.values if value.buffer not in gone),
    )


def _in_place(op: Op, candidate: StripCandidate | None) -> Op | None:
    """What stands in the place of ``op``: itself, the op that it merges into, or nothing."""
    if candidate is None:
        return op
    return candidate.op if op.name == candidate.last.name else None
