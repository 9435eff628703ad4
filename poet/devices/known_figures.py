"""What is known of a machine's speeds before its ops are measured, and which of them are off together.

A figure's interval says how far it may be off by itself, beside factors that figures share: one that is
common to all, one of each family of classes whose kernels are made alike, one that overheads have in common,
for these follow interpreters and caches and not the arithmetic, and one of the calls of convolutions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from poet.devices.profile import OpClass, Profile

Floats = NDArray[np.float64]
Interval = tuple[float, float]

LEAST_KNOWN_WIDTH = math.log(1.5)
"""Of what is known beforehand: the base may be another board than the one that was measured."""

_UNKNOWN_WIDTH = math.log(30.0)
_INHERITED_WIDTH = math.log(5.0)
"""Of the speed of a class that the base costs like its parent: kernels of both may be quite different."""

_MOST_SPEED_WIDTH = math.log(2.0)
"""Of the speed of a class of the base, beside what its family has in common."""

_MOST_CALL_WIDTH = math.log(2.0)
"""Of an overhead, beside what all have in common: calls of all classes go through the same code."""

_LEAST_MEMORY_WIDTH = math.log(5.0)
"""Of the memory beside the machine's other speeds, from one machine to another."""

_C = OpClass
_FAMILIES = (
    (
        (_C.MATMUL, _C.CONVOLUTION, _C.CONVOLUTION_BACKWARD, _C.POINTWISE, _C.POINTWISE_BACKWARD),
        math.log(3.0),
    ),
    ((_C.DEPTHWISE, _C.DEPTHWISE_BACKWARD, _C.GROUPED), math.log(10.0)),
    (
        (
            *(_C.ELEMENTWISE, _C.REDUCTION, _C.TRANSCENDENTAL, _C.MOVEMENT, _C.POOLING, _C.GELU),
            *(_C.BATCH_NORM, _C.BATCH_NORM_BACKWARD, _C.ADAPTIVE_UPDATE, _C.RANDOM),
            *(_C.TANH, _C.SHORT_ROWS),
        ),
        math.log(3.0),
    ),
)
"""Classes whose speeds differ together from one machine or library to another, and how far, beside the
machine as a whole. Libraries differ most by convolutions of few channels each: by 40 beside products."""

_CONVOLUTIONS = frozenset((*_FAMILIES[0][0][1:], *_FAMILIES[1][0]))
"""Their calls cost more than others' where a library chooses and prepares kernels for each."""

_CONVOLUTION_CALL_WIDTH = math.log(3.0)

_COMMON_WIDTHS = (math.log(30.0), math.log(5.0))
"""How far the machine as a whole may be from the base, and how far its calls from the rest."""

SHARED_WIDTHS = (*_COMMON_WIDTHS, _CONVOLUTION_CALL_WIDTH, *(width for _, width in _FAMILIES))
"""How far each factor that figures share may be from 1, as a logarithm."""


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of a figure: before the fit, or from it."""

    value: float
    interval: Interval

    @property
    def width(self) -> float:
        """Half of the interval, as a logarithm."""
        low, high = self.interval
        return max(LEAST_KNOWN_WIDTH, 0.5 * math.log(high / low)) if low > 0 else _UNKNOWN_WIDTH

    def times(self, factor: float) -> Known:
        """Scaled."""
        return Known(self.value * factor, (self.interval[0] * factor, self.interval[1] * factor))


def known_of(classes: Sequence[OpClass], base: Profile | None, start: Floats) -> list[Known]:
    """Speeds and overheads of ``classes``, and the bandwidth: near ``base``, without one near ``start``."""
    if base is None:
        return [_within(math.exp(value), _UNKNOWN_WIDTH) for value in start]
    bandwidth = base.memory.bandwidth_bytes_per_second
    speeds, overheads = [], []
    for op_class in classes:
        throughput = base.compute.throughput(op_class)
        overhead = base.compute.call_overhead_seconds
        if throughput is not None:
            figure = throughput.flops_per_second
            known = Known(figure.value, figure.interval)
            inherited = getattr(base.compute, op_class.value) is None
            width = _INHERITED_WIDTH if inherited else min(known.width, _MOST_SPEED_WIDTH)
            speeds.append(_within(known.value, width))
            overhead = throughput.call_overhead_seconds or overhead
        else:  # only the memory limits it: an element of four bytes is one FLOP
            assert bandwidth is not None
            speeds.append(_within(bandwidth.value, _UNKNOWN_WIDTH))
        value = max(overhead.value, 1e-9)
        width = Known(value, overhead.interval).width
        overheads.append(_within(value, min(width, _MOST_CALL_WIDTH)))
    memory = (
        _within(math.exp(start[-1]), _UNKNOWN_WIDTH)
        if bandwidth is None
        else _within(
            bandwidth.value, max(Known(bandwidth.value, bandwidth.interval).width, _LEAST_MEMORY_WIDTH)
        )
    )
    return [*speeds, *overheads, memory]


def _within(value: float, width: float) -> Known:
    """A figure of a ``width`` as `Known.width` has it."""
    return Known(value, (value * math.exp(-width), value * math.exp(width)))


def widths_of(known: Sequence[Known]) -> Floats:
    """How far each figure may be off, and after these each factor that figures share, as logarithms."""
    return np.array([*(figure.width for figure in known), *SHARED_WIDTHS])


def shared_of(classes: Sequence[OpClass]) -> Floats:
    """How a table's figures, one a row, follow what they share, one a column, in `SHARED_WIDTHS`' order."""
    speeds, calls, zeros = np.ones(len(classes)), np.ones(len(classes)), np.zeros(len(classes))
    convolves = np.array([float(c in _CONVOLUTIONS) for c in classes])
    families = [
        np.concatenate([[float(c in family) for c in classes], zeros, [0.0]]) for family, _ in _FAMILIES
    ]
    return np.column_stack(
        [
            np.concatenate([speeds, -calls, [1.0]]),
            np.concatenate([zeros, calls, [0.0]]),
            np.concatenate([zeros, convolves, [0.0]]),
            *families,
        ]
    )
