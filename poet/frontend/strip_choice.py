"""In how many blocks each strip of a step runs: the memory that a few per cent of its time can save.

Times differ from one measurement to the next, by more than a strip's own gain or loss. So no strip is chosen
by its time alone: all of them share one allowance, a part of the step's time, which goes first where a second
saves most bytes. What a measurement's noise still decides are the last strips that it pays for, those that
save least.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence

from poet.frontend.slices import slice_candidates
from poet.frontend.strip_candidates import StripCandidate, with_candidates
from poet.frontend.strips import gradient_candidates
from poet.graph import Graph, Value
from poet.kernel_facts import KernelFacts
from poet.runtime.kernels.strips import signature
from poet.runtime.trials.blocks import BLOCK_COUNTS, Offer, is_exact, offer
from poet.runtime.trials.trial import recalled

ALLOWANCE = 0.02
"""Of a step's time: what all its strips may add to it. Those that save time do not make it larger."""

TRIED_SHARE = 1 / 4
"""Of a step's time: what all ops that are tried may take together, each distinct one once."""

LARGE_SHARE = 1 / 8
"""Of the bytes of all that could run in blocks: what has so many is tried whatever its ops take."""

Ways = tuple[StripCandidate, ...]
"""To cut the same thing."""


def with_strips(graph: Graph, kernels: KernelFacts) -> Graph:
    """``graph`` with the strips that give the same bits here and that its step has time for.

    Args:
        graph: of which every gradient exists whole.
        kernels: of its ops, with their times.
    """
    with recalled():
        return with_candidates(graph, chosen_strips(graph, kernels))


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
