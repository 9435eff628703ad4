"""Another form of the ops that decide in how little RAM a step can run: in more blocks.

`poet.frontend.strip_choice` spends 2 % of a step's time on blocks. What that leaves whole or in few of them
may run in the most that a trial finds exact: mostly slower, with less memory of its own. A plan takes it so
where RAM is scarce (`poet.planning.saves_choice`).
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import dataclass

from poet.frontend.slices import is_plain, slices_of, sums_of, uncut
from poet.frontend.strip_candidates import StripCandidate, with_candidates
from poet.frontend.strips import gradient_candidates
from poet.graph import Graph, Op
from poet.kernel_facts import KernelFacts, OpFacts
from poet.runtime.trials.blocks import BLOCK_COUNTS, is_exact, offer
from poet.runtime.trials.trial import recalled

LEAST_SHARE = 1 / 2
"""Of what the neediest op holds once others run in more blocks: what holds less decides no plan."""

LEAST_BYTES = 256 * 1024
"""Of what a kernel, or what flows between an op's calls, takes: less is not worth a trial."""

LEAST_SAVED_BYTES = 64 * 1024
"""Of what an op holds: less is not worth its calls."""

Measure = Callable[[Graph, KernelFacts], tuple[Graph, KernelFacts]]
"""Given a graph and facts of ops that need not run again: the facts of all its ops."""


@dataclass(frozen=True, slots=True)
class Finer:
    """One form in more blocks: what it replaces, and what its kernel needs."""

    candidate: StripCandidate
    facts: OpFacts


def finer_blocks(
    graph: Graph, kernels: KernelFacts, *, measure: Measure, others: Container[str] = ()
) -> dict[str, Finer]:
    """What of ``graph`` could run in more blocks with the same bits and in less RAM, by the name of the op.

    Args:
        graph: a training step with its strips.
        kernels: of its ops.
        measure: runs kernels.
        others: ops that have other forms already.
    """
    with recalled():
        chosen = _Search(graph, kernels, others).chosen()
    if not chosen:
        return {}
    finer = with_candidates(graph, chosen)
    names = {candidate.last.name for candidate in chosen}
    told = KernelFacts(
        kernels.library,
        tuple(facts for facts in kernels.ops if facts.name not in names),
        alignment_bytes=kernels.alignment_bytes,
        threads=kernels.threads,
    )
    _, facts = measure(finer, told)
    found = {each.last.name: Finer(each, facts.of(each.last.name)) for each in chosen}
    needs_bytes, then_bytes = _Needs(graph, kernels), _Needs(finer, facts)
    return {
        name: each
        for name, each in found.items()
        if then_bytes.of(each.candidate.op) + LEAST_SAVED_BYTES
        <= max(needs_bytes.of(op) for op in graph.ops if op.name in each.candidate.merged)
    }


class _Needs:
    """What ops hold at once."""

    def __init__(self, graph: Graph, kernels: KernelFacts) -> None:
        self._graph, self._kernels = graph, kernels
        self._sizes_bytes = {buffer.name: buffer.size_bytes for buffer in graph.buffers}

    def of(self, op: Op) -> int:
        """Bytes of what it reads and makes, and of its kernel's own."""
        return self.operands(op) + self._kernels.of(op.name).workspace_bytes

    def operands(self, op: Op) -> int:
        """Bytes of what it reads and makes."""
        held = {*self._graph.reads(op.call), *self._graph.writes(op)}
        return sum(map(self._sizes_bytes.__getitem__, held))


class _Search:
    """From the neediest op on, the most blocks of each, until what is left decides no plan."""

    def __init__(self, graph: Graph, kernels: KernelFacts, others: Container[str]) -> None:
        self.graph, self.others = graph, others
        self.kernels, self.needs_bytes = kernels, _Needs(graph, kernels)
        self.values = {value.name: value for value in graph.values}
        self.types = {name: value.type for name, value in self.values.items()}
        self.ops = {op.name: op for op in graph.ops}
        self.chains: dict[str, list[StripCandidate]] = {}  # by each op of theirs
        for ways in gradient_candidates(graph):
            for way in ways:
                for name in way.merged:
                    self.chains.setdefault(name, []).append(way)

    def chosen(self) -> tuple[StripCandidate, ...]:
        found: dict[str, StripCandidate] = {}
        taken: set[str] = set()
        floor_bytes = 0
        for op in sorted(self.graph.ops, key=lambda op: -self.needs_bytes.of(op)):
            if op.name in taken:
                continue
            if self.needs_bytes.of(op) < LEAST_SHARE * floor_bytes:
                break
            best = self.best(op, taken)
            if best is None:
                floor_bytes = max(floor_bytes, self.needs_bytes.of(op))
                continue
            found[best.last.name] = best
            taken |= best.merged
            floor_bytes = max(floor_bytes, self.needs_bytes.operands(best.op))
        return tuple(found.values())

    def best(self, op: Op, taken: Container[str]) -> StripCandidate | None:
        """The form of ``op`` that needs least memory of its own, and gives every bit; ``None``: its own."""
        best: StripCandidate | None = None
        most_bytes = 0
        for way, counts in self.ways(op):
            if any(name in taken or name in self.others for name in way.merged) or not self.is_large(way):
                continue
            if way.strip.links[0].sums and best is not None and best.strip.blocks >= max(BLOCK_COUNTS):
                break  # as many blocks without a sum
            saved_bytes, found = self.most_blocks(way, counts)
            if found is not None and saved_bytes > most_bytes:
                best, most_bytes = found, saved_bytes
        if best is None or best.op == op:
            return None
        return best

    def ways(self, op: Op) -> Iterator[tuple[StripCandidate, Iterable[int]]]:
        """To cut ``op``, each with the numbers of blocks to be tried: sums last, which take longest."""
        if op.strip is not None and op.strip.is_whole:
            return
        if op.strip is not None and (op.updates or len(op.strip.links) > 1):
            yield (
                StripCandidate(
                    op.name, op, frozenset({op.name}), op.strip, outputs=op.outputs, updates=op.updates
                ),
                BLOCK_COUNTS,
            )
            return
        for way in self.chains.get(op.name, ()):
            if not any(self.ops[name].updates for name in way.merged if name != way.last.name):
                yield way, BLOCK_COUNTS
        bare = op if op.strip is None else uncut(op)
        if is_plain(bare):
            for way in slices_of(bare, self.types):
                yield way, BLOCK_COUNTS
            yield from sums_of(bare, self.types)

    def is_large(self, way: StripCandidate) -> bool:
        """Whether enough is there while ``way`` runs that blocks would make smaller."""
        own_bytes = max(self.kernels.of(name).workspace_bytes for name in way.merged)
        return max(own_bytes, way.strip.whole_bytes) >= LEAST_BYTES

    def most_blocks(self, way: StripCandidate, counts: Iterable[int]) -> tuple[int, StripCandidate | None]:
        """The most blocks of ``way`` that are exact at all numbers of threads, and what that saves."""
        counts = tuple(counts)
        found = offer(way.strip, way.outputs, self.values, counts=counts)
        if found is None:
            return 0, None
        for count in counts:
            cut = way.in_blocks(count)
            if count <= found.blocks and is_exact(cut.strip, cut.outputs, self.values):
                return round(found.saves(count)), cut
        return 0, None
