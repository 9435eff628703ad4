"""In how many blocks the ops of a step run.

Times differ from one measurement to the next, by more than a strip's own gain or loss. So no strip is chosen
by its time alone: all of them share one allowance, a part of the step's time, which goes first where a second
saves most bytes (`chosen_strips`). What that leaves whole or in few blocks may run in the most that a trial
finds exact, mostly slower: the planner takes it so where RAM is scarce (`finer_blocks`).
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import replace

from poet.ir.graph import Graph, Op, Value
from poet.ir.kernel_facts import KernelFacts
from poet.passes.rewrite import Rewrite, Technique, is_pure, rewritten
from poet.passes.strips import (
    StripCandidate,
    gradient_candidates,
    slice_candidates,
    slices_of,
    sums_of,
    uncut,
)
from poet.runtime.kernels.strips import signature
from poet.runtime.trials.blocks import BLOCK_COUNTS, Offer, is_exact, offer
from poet.runtime.trials.trial import recalled

ALLOWANCE = 0.02
"""Of a step's time: what all its strips may add to it. Those that save time do not make it larger."""

TRIED_SHARE = 1 / 4
"""Of a step's time: what all ops that are tried may take together, each distinct one once."""

LARGE_SHARE = 1 / 8
"""Of the bytes of all that could run in blocks: what has so many is tried whatever its ops take."""

FINER_SHARE = 1 / 2
"""Of what the neediest op holds once others run in more blocks: what holds less decides no plan."""

FINER_BYTES = 256 * 1024
"""Of what a kernel, or what flows between an op's calls, takes: less is not worth a trial."""

LEAST_SAVED_BYTES = 64 * 1024
"""Of what an op holds: less is not worth its calls."""

Ways = tuple[StripCandidate, ...]
"""To cut the same thing."""


Measure = Callable[[Graph, KernelFacts], tuple[Graph, KernelFacts]]
"""Given a graph and facts of ops that need not run again: the facts of all its ops."""


def with_strips(graph: Graph, kernels: KernelFacts) -> Graph:
    """``graph`` with the strips that give the same bits here and that its step has time for.

    Args:
        graph: of which every gradient exists whole.
        kernels: of its ops, with their times.
    """
    with recalled():
        return rewritten(graph, (each.rewrite for each in chosen_strips(graph, kernels)))


def chosen_strips(graph: Graph, kernels: KernelFacts) -> tuple[StripCandidate, ...]:
    """What of ``graph`` runs in blocks, and in how many."""
    values = {value.name: value for value in graph.values}
    step_seconds = sum(facts.seconds or 0.0 for facts in kernels.ops)
    found = list(offered(graph, kernels))
    offers, barred = [each for _, each in found], set[tuple[int, int]]()
    while True:
        counts = chosen_blocks(offers, ALLOWANCE * step_seconds, barred)
        chosen = [
            (number, candidate.in_blocks(count))
            for number, ((candidate, _), count) in enumerate(zip(found, counts, strict=True))
            if count > 1
        ]
        wrong = {
            (number, candidate.strip.blocks)
            for number, candidate in chosen
            if not is_exact(candidate.strip, candidate.outputs, values)
        }
        if not wrong:
            return tuple(candidate for _, candidate in chosen)
        barred |= wrong


def offered(graph: Graph, kernels: KernelFacts) -> Iterator[tuple[StripCandidate, Offer]]:
    """What could run in blocks in ``graph``: no op in two of them, and each in the best of its ways."""
    values, taken = {value.name: value for value in graph.values}, set[str]()
    for ways in worth_trying(graph, kernels):
        best = _best((way for way in ways if not way.merged & taken), values)
        if best is not None:
            taken |= best[0].merged
            yield best


def worth_trying(graph: Graph, kernels: KernelFacts) -> tuple[Ways, ...]:
    """What of ``graph`` is tried: what could save most for its seconds, within `TRIED_SHARE` of the step.

    A strip costs a share of what its ops take, so what is left out would hardly be chosen. That says nothing
    of the few largest, whose blocks stay in the cache: they are tried in any case, and besides the others.
    """
    values = {value.name: value for value in graph.values}
    found = [ways for ways in (*gradient_candidates(graph), *slice_candidates(graph, kernels)) if ways]
    facts = [[kernels.of(name) for name in ways[0].merged] for ways in found]
    seconds = [sum(item.seconds or 0.0 for item in each) for each in facts]
    own_bytes = [
        ways[0].strip.whole_bytes + max(item.workspace_bytes for item in each)
        for ways, each in zip(found, facts, strict=True)
    ]
    left_seconds = TRIED_SHARE * sum(item.seconds or 0.0 for item in kernels.ops)
    large_bytes = LARGE_SHARE * sum(own_bytes)
    paid, chosen = set[object](), set[int]()
    for number in sorted(
        range(len(found)), key=lambda number: -own_bytes[number] / max(seconds[number], 1e-9)
    ):
        way = found[number][0]
        distinct = signature(way.strip, way.outputs, values)
        if distinct not in paid and own_bytes[number] < large_bytes:
            if seconds[number] > left_seconds:
                continue
            left_seconds -= seconds[number]
            paid.add(distinct)
        chosen.add(number)
    return tuple(found[number] for number in sorted(chosen))


def _best(ways: Iterable[StripCandidate], values: dict[str, Value]) -> tuple[StripCandidate, Offer] | None:
    """The first way that costs no time or gives most blocks; else that which saves most for its time."""
    best: tuple[StripCandidate, Offer] | None = None
    for way in ways:
        found = offer(way.strip, way.outputs, values)
        if found is not None and (best is None or _rank(found) < _rank(best[1])):
            best = way, found
        if best is not None and (not best[1].block_seconds or best[1].blocks == max(BLOCK_COUNTS)):
            break
    return best


def _rank(given: Offer) -> tuple[float, int]:
    return given.takes(given.blocks) / given.saved_bytes, -given.saved_bytes


def chosen_blocks(
    offers: Sequence[Offer], allowance_seconds: float, barred: Container[tuple[int, int]] = ()
) -> tuple[int, ...]:
    """The number of blocks for each of ``offers``; 1: whole.

    Each is raised to its next number of blocks as long as that can be paid, the raise that saves most bytes
    per second first.

    Args:
        offers: of ops that run one after the other.
        allowance_seconds: for all of them.
        barred: numbers of offers with numbers of blocks that they may not have.
    """
    counts = [1] * len(offers)
    left_seconds = allowance_seconds
    pending = set(range(len(offers)))
    while pending:
        raises = []
        for number in sorted(pending):
            more = _next(offers[number], counts[number], number, barred)
            if more is not None:
                raises.append((_bytes_per_second(offers[number], counts[number], more), -number, more))
        if not raises:
            break
        _, number, more = max(raises)
        number = -number
        price = offers[number].takes(more) - offers[number].takes(counts[number])
        if price <= left_seconds:
            left_seconds -= price
            counts[number] = more
        else:
            pending.remove(number)
    return tuple(counts)


def _next(given: Offer, now: int, number: int, barred: Container[tuple[int, int]]) -> int | None:
    """The smallest number of blocks above ``now`` that it may have."""
    larger = [
        count
        for count in {*BLOCK_COUNTS, given.blocks}
        if now < count <= given.blocks and (number, count) not in barred
    ]
    return min(larger, default=None)


def _bytes_per_second(given: Offer, now: int, more: int) -> float:
    price = given.takes(more) - given.takes(now)
    saved = given.saves(more) - given.saves(now)
    return saved / price if price > 0 else float("inf")


# --- more blocks, for the planner to choose ---------------------------------------------------------


def finer_blocks(
    graph: Graph, kernels: KernelFacts, *, measure: Measure, others: Container[str] = ()
) -> dict[str, Rewrite]:
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
    finer = rewritten(graph, (each.rewrite for each in chosen))
    names = {candidate.last.name for candidate in chosen}
    told = replace(kernels, ops=tuple(facts for facts in kernels.ops if facts.name not in names))
    _, facts = measure(finer, told)
    needs_bytes, then_bytes = _Needs(graph, kernels), _Needs(finer, facts)
    found = {}
    for each in chosen:
        name = each.last.name
        before_bytes = max(needs_bytes.of(op) for op in graph.ops if op.name in each.merged)
        if then_bytes.of(each.op) + LEAST_SAVED_BYTES <= before_bytes:
            found[name] = replace(each.rewrite, technique=Technique.BLOCKS, facts={name: facts.of(name)})
    return found


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
            if self.needs_bytes.of(op) < FINER_SHARE * floor_bytes:
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
        if is_pure(bare):
            for way in slices_of(bare, self.types):
                yield way, BLOCK_COUNTS
            yield from sums_of(bare, self.types)

    def is_large(self, way: StripCandidate) -> bool:
        """Whether enough is there while ``way`` runs that blocks would make smaller."""
        own_bytes = max(self.kernels.of(name).workspace_bytes for name in way.merged)
        return max(own_bytes, way.strip.whole_bytes) >= FINER_BYTES

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
