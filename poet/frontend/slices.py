"""Which ops of a step could run in slices: strips of one call, whose kernel asks for much memory of its own.

A convolution turns its operands into a layout of its kernel, for example: what that takes is as large as they
are, or a share of it in blocks of output channels. Each way to cut a call is a row of `poet.frontend.cuts`.
"""

from __future__ import annotations

from collections.abc import Iterator

from poet.frontend.cuts import slice_cuts
from poet.frontend.strip_candidates import StripCandidate
from poet.graph import Graph, Link, Op, Strip, TensorType
from poet.kernel_facts import KernelFacts
from poet.runtime.trials.strip_trial import BLOCK_COUNTS

LEAST_BYTES = 256 * 1024
"""Of a kernel's workspace: less is little beside what a call costs."""

LEAST_SHARE = 1 / 8
"""Of the largest workspace of the step: a smaller one decides no peak, and each trial takes time."""


def slice_candidates(graph: Graph, kernels: KernelFacts) -> Iterator[tuple[StripCandidate, ...]]:
    """For each op of ``graph`` with a large workspace, by ``kernels``, the ways to slice it."""
    types = {value.name: value.type for value in graph.values}
    largest_bytes = max((kernels.of(op.name).workspace_bytes for op in graph.ops), default=0)
    least_bytes = max(LEAST_BYTES, LEAST_SHARE * largest_bytes)
    for op in graph.ops:
        is_plain = op.strip is None and not (op.updates or op.random or op.repeat_call)
        if is_plain and kernels.of(op.name).workspace_bytes >= least_bytes:
            yield tuple(_ways(op, types))


def _ways(op: Op, types: dict[str, TensorType]) -> Iterator[StripCandidate]:
    for size, cut in slice_cuts(op.call, types):
        if size < min(BLOCK_COUNTS):
            continue
        made = dict(cut.outputs)
        places = [place for place, name in enumerate(op.outputs) if name is not None]
        if not made.keys() >= set(places):
            continue
        along = tuple((place, made[place]) for place in places)
        strip = Strip((Link(op.call, op.outputs, cut.arguments, along),), (), size, min(BLOCK_COUNTS))
        yield StripCandidate(op.name, op, frozenset({op.name}), strip, outputs=op.outputs)
