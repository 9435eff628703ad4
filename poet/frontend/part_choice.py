"""Which parameters are in parts, and in which.

Those that decide the least RAM in which a step can run, once the larger ones are in parts; in about as many
parts as leave little of them beside what else an op holds, ending where a trial finds the bits of the whole.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from poet.frontend.part_uses import IsExact, PartIndex, uses_of
from poet.frontend.parts import divided
from poet.graph import Graph, Parameter
from poet.graph_parts import lasting_of
from poet.named import Bounds
from poet.runtime.trials.forms import is_exact_in_parts
from poet.runtime.trials.trial import recalled
from poet.wholes import Axis, PartedCall

LEAST_BYTES = 4 * 1024 * 1024
"""Of a parameter: each part costs some calls."""

LEAST_SHARE = 1 / 8
"""Of what the hungriest op holds: a parameter below decides no bound."""

_MOST_PARTS = 16  # about so many: more save little beside what else an op holds
_LEAST_PART_BYTES = 1024 * 1024
_STEPS = (64, 96, 128, 192, 256, 384, 512, 768, 1024)
"""Rows at which kernels' own stretches of a sum were seen to end; and all multiples of the next."""
_LONG_STEP = 1536


def with_parts(graph: Graph, is_exact: IsExact = is_exact_in_parts) -> Graph:
    """``graph`` with those parameters in parts that decide its bound and can be, bit for bit.

    Args:
        graph: as traced, with no strips.
        is_exact: tries them.
    """
    with recalled():
        return divided(graph, _chosen(graph, is_exact))


def _chosen(graph: Graph, is_exact: IsExact) -> dict[str, Bounds]:
    """The parameters in parts, by name, and where their parts begin and end."""
    index = PartIndex(graph)
    bytes_of = {buffer.name: buffer.size_bytes for buffer in graph.buffers}
    shares: dict[str, float] = {}  # of what each buffer of a parameter in parts takes, that is there at once
    chosen: dict[str, Bounds] = {}
    for parameter in sorted(graph.parameters, key=lambda item: -bytes_of[graph.buffer_of(item.value)]):
        size_bytes = bytes_of[graph.buffer_of(parameter.value)]
        hungriest = max(
            sum(bytes_of[name] * shares.get(name, 1.0) for name in {*graph.reads(op.call), *graph.writes(op)})
            for op in graph.ops
        )
        if size_bytes < max(LEAST_BYTES, LEAST_SHARE * hungriest):
            break
        uses = uses_of(index, parameter)
        bounds = None if uses is None else _exact_bounds(index, parameter, uses.calls, is_exact)
        if bounds is None:
            continue
        chosen[parameter.name] = bounds
        share = (bounds[0][1] - bounds[0][0]) / bounds[-1][1]
        own = [value for _, value in lasting_of(parameter)]
        own += [] if parameter.gradient is None else [parameter.gradient]
        shares |= {graph.buffer_of(value): share for value in own}
    return chosen


def _exact_bounds(
    index: PartIndex,
    parameter: Parameter,
    calls: Iterable[PartedCall],
    is_exact: IsExact,
) -> Bounds | None:
    """The parts nearest to what is wanted with which every call is exact."""
    type_ = index.types[parameter.value]
    rows = type_.shape[0]
    row_bytes = type_.extent_bytes // rows
    wanted = max(rows / _MOST_PARTS, _LEAST_PART_BYTES / row_bytes)
    steps = {*_STEPS, *range(_LONG_STEP, rows, _LONG_STEP)}
    offered = [step for step in steps if wanted / 2 <= step <= max(wanted * 4, rows / 2) and step < rows]
    sums_first = sorted(calls, key=lambda item: item.axis is not Axis.SUM)
    for step in sorted(offered, key=lambda item: abs(math.log(item / wanted)))[:6]:
        bounds = tuple((start, min(start + step, rows)) for start in range(0, rows, step))
        if all(is_exact(parted, bounds) for parted in sums_first):
            return bounds
    return None
