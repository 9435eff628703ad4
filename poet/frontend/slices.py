"""Which ops of a step could run in slices: strips of one call, whose kernel asks for much memory of its own.

A convolution turns its operands into a layout of its kernel, for example: what that takes is as large as they
are, or a share of it in blocks of output channels. Each way to cut a call is a row of `poet.frontend.cuts`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from poet.frontend.cuts import Cut, slice_cuts, sum_cuts
from poet.frontend.strip_candidates import StripCandidate
from poet.graph import Graph, Link, Op, Strip, TensorType
from poet.kernel_facts import KernelFacts
from poet.runtime.trials.blocks import BLOCK_COUNTS
from poet.strips import MOST_BLOCKS

LEAST_BYTES = 256 * 1024
"""Of a kernel's workspace: less is little beside what a call costs."""

LEAST_SHARE = 1 / 8
"""Of the largest workspace of the step: a smaller one decides no peak, and each trial takes time."""

SUMMED_CHANNELS = (16, 8)
"""In a block of a sum, the best first: as many as kernels add up before they write, one vector's or half."""


def slice_candidates(graph: Graph, kernels: KernelFacts) -> Iterator[tuple[StripCandidate, ...]]:
    """For each op of ``graph`` with a large workspace, by ``kernels``, the ways to slice it."""
    types = {value.name: value.type for value in graph.values}
    largest_bytes = max((kernels.of(op.name).workspace_bytes for op in graph.ops), default=0)
    least_bytes = max(LEAST_BYTES, LEAST_SHARE * largest_bytes)
    for op in graph.ops:
        if is_plain(op) and kernels.of(op.name).workspace_bytes >= least_bytes:
            yield tuple(slices_of(op, types))


def is_plain(op: Op) -> bool:
    """Whether ``op`` is one call without an effect."""
    return op.strip is None and not (op.updates or op.random or op.repeat_call)


def slices_of(op: Op, types: Mapping[str, TensorType]) -> Iterator[StripCandidate]:
    """The ways to make the results of a plain op block by block."""
    for size, cut in slice_cuts(op.call, types):
        if size >= min(BLOCK_COUNTS):
            yield from _candidate(op, size, cut, min(BLOCK_COUNTS))


def sums_of(op: Op, types: Mapping[str, TensorType]) -> Iterator[tuple[StripCandidate, tuple[int, ...]]]:
    """The ways to add up its result block by block, each with the numbers of blocks to be tried."""
    for size, cut in sum_cuts(op.call, types):
        counts = {-(-size // channels): None for channels in SUMMED_CHANNELS}
        tried = tuple(count for count in counts if 2 <= count <= MOST_BLOCKS)
        for candidate in _candidate(op, size, cut, tried[0]) if tried else ():
            yield candidate, tried


def _candidate(op: Op, size: int, cut: Cut, blocks: int) -> Iterator[StripCandidate]:
    """``op`` in so many ``blocks``; nothing where it makes what does not come out so."""
    made = dict(cut.outputs)
    places = [place for place, name in enumerate(op.outputs) if name is not None]
    if {*made, *cut.sums} >= set(places):
        along = tuple((place, made[place]) for place in places if place in made)
        link = Link(op.call, op.outputs, cut.arguments, along, cut.sums)
        yield StripCandidate(
            op.name, op, frozenset({op.name}), Strip((link,), (), size, blocks), outputs=op.outputs
        )


def uncut(op: Op) -> Op:
    """An op that runs in slices as the one call that it is whole."""
    assert op.strip is not None
    (link,) = op.strip.links
    return replace(op, call=link.call, strip=None)
