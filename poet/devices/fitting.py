"""Speeds of the cost model that fit measured ops best, with how far each may be off.

Each op is one equation, ``max(FLOPs / speed, bytes / bandwidth) + overhead = seconds``, and counts by the
logarithm of its error, softly from `OUTLIER` on. A figure may move away from what a base says by itself, or
together with others by factors that they share: those of the machine, of its calls, and of kernels that are
made alike. A few ops so move what they touch, then its family, and the rest with the machine as a whole.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from poet.devices.cost_table import Amounts
from poet.devices.costs import amounts_of
from poet.devices.figures import OpClass
from poet.devices.measurements import OpTime
from poet.devices.profile import Profile

Floats = NDArray[np.float64]
Interval = tuple[float, float]

OUTLIER = 0.25
"""Error of an op, as a logarithm, from which it pulls less; a usual op is off by as much."""

RESAMPLINGS = 40
LEAST_WIDTH = 0.03
"""Of a fitted interval, either way: what clocks of a machine do from day to day."""

MOST_FACTOR = 1.5
"""Median factor between fitted and measured ops of a class beyond which the class is refused."""

OWN_WIDTH, SHARED_WIDTH, UNKNOWN_WIDTH = math.log(2.0), math.log(10.0), math.log(30.0)
"""How far a figure may be from the base's by itself, how far by a factor that it shares, and how far where
there is no base; as logarithms."""

_C = OpClass
TWINS = (
    (_C.CONVOLUTION, _C.CONVOLUTION_BACKWARD),
    (_C.DEPTHWISE, _C.DEPTHWISE_BACKWARD),
    (_C.POINTWISE, _C.POINTWISE_BACKWARD),
    (_C.BATCH_NORM, _C.BATCH_NORM_BACKWARD),
)
"""Classes of which the one tells of the other: a kernel and that of its gradients."""

_DENSE = (_C.MATMUL, *TWINS[0], *TWINS[2])
_BY_CHANNEL = (*TWINS[1], _C.GROUPED)
_FAMILIES = (_DENSE, _BY_CHANNEL, tuple(c for c in OpClass if c not in _DENSE + _BY_CHANNEL), *TWINS)
"""Classes whose speeds differ together from one machine or library to another."""

_BLOCKS_CHANNELS = (1, 4, 8, 16)
"""On which kernels of convolutions work at once: one, or the lanes of a vector."""

_SHARPNESSES = (3.0, math.inf)
"""Of the maximum in the model, first to last: a speed that limits no op at first would stay where it is."""

_SOFTLY: dict[str, Any] = {"loss": "soft_l1", "f_scale": OUTLIER, "xtol": 1e-4, "ftol": 1e-6}
_LEAST_SECONDS = 1e-14
_CLEARLY_BETTER = 3.0
"""Natural logarithm by which ops must be likelier with another block than with the one believed before."""


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of a figure."""

    value: float
    interval: Interval

    def wider(self, factor: float) -> Known:
        """With an interval that reaches so far from the value either way, if it does not already."""
        low, high = self.interval
        return Known(self.value, (min(low, self.value / factor), max(high, self.value * factor)))


@dataclass(frozen=True, slots=True)
class Speeds:
    """What a fit found.

    Attributes:
        flops_per_second, overhead_seconds: by class of op: of those that were measured, and with a base of
            all, moved by what they share with measured ones.
        bandwidth_bytes_per_second: of the memory.
        factors: by measured class, the median factor between fitted and measured ops.
        block_channels: on which the kernels of dense convolutions work at once; see
            `poet.devices.cost_table.Amounts.padded_flops`.
        ops: how many were fitted to.
    """

    flops_per_second: Mapping[OpClass, Known]
    overhead_seconds: Mapping[OpClass, Known]
    bandwidth_bytes_per_second: Known
    factors: Mapping[OpClass, float]
    block_channels: int
    ops: int

    @property
    def refused(self) -> tuple[OpClass, ...]:
        """Classes that the model does not describe."""
        return tuple(op_class for op_class, factor in self.factors.items() if factor > MOST_FACTOR)


@dataclass(frozen=True)
class _Table:
    """Ops as columns; ``place`` is that of the op's class among ``classes``."""

    classes: tuple[OpClass, ...]
    place: NDArray[np.intp]
    flops: Floats
    moved: Floats
    seconds: Floats

    def rows(self, chosen: NDArray[np.intp]) -> _Table:
        return _Table(
            self.classes, self.place[chosen], self.flops[chosen], self.moved[chosen], self.seconds[chosen]
        )

    def errors(self, logs: Floats, sharpness: float = math.inf) -> Floats:
        """Logarithms of modelled over measured seconds, at logarithms of speeds, overheads and bandwidth.

        A norm of the degree ``sharpness`` stands for the maximum of both times.
        """
        busy, call, _ = self._parts(logs, sharpness)
        return np.asarray(np.log((busy + call) / self.seconds))

    def slopes(self, logs: Floats, sharpness: float) -> Floats:
        """Derivative of each op's error by each figure's logarithm."""
        busy, call, by_flops = self._parts(logs, sharpness)
        share, rows, count = busy / (busy + call), np.arange(len(busy)), len(self.classes)
        slopes = np.zeros((len(rows), len(logs)))
        slopes[rows, self.place] = -share * by_flops
        slopes[rows, count + self.place] = 1.0 - share
        slopes[:, -1] = -share * (1.0 - by_flops)
        return slopes

    def _parts(self, logs: Floats, sharpness: float) -> tuple[Floats, Floats, Floats]:
        """Seconds of the work and of the call, and the share of FLOPs in what limits the work."""
        figures, count = np.exp(logs), len(self.classes)
        by_flops, by_bytes = self.flops / figures[self.place], self.moved / figures[-1]
        busy = np.maximum(by_flops, by_bytes)
        if sharpness < math.inf:
            powers = (np.stack([by_flops, by_bytes]) / np.maximum(busy, _LEAST_SECONDS)) ** sharpness
            total = np.maximum(powers.sum(axis=0), 1.0)
            busy, share = busy * total ** (1.0 / sharpness), powers[0] / total
        else:
            share = np.where(by_flops >= by_bytes, 1.0, 0.0)
        return busy, figures[count + self.place], share


def fit_speeds(
    ops: Sequence[OpTime], base: Profile | None = None, *, resamplings: int = RESAMPLINGS
) -> Speeds:
    """The speeds that fit ``ops`` best, near those of ``base``.

    Their intervals are of fits to so many ``resamplings`` of the ops.

    Raises:
        UnsupportedOperator: the cost of an op is not known.
    """
    found = [(amounts_of(op), op.seconds) for op in ops]
    measured = {amounts.op_class for amounts, _ in found}
    classes = tuple(c for c in OpClass if base is not None or c in measured)
    block, fit = _best_block(found, classes, base)
    draw, count, logs = np.random.default_rng(0), len(found), fit.logs
    drawn = [
        _Fit(fit.table.rows(draw.integers(0, count, count)), fit.prior, fit.widths, fit.free).logs
        for _ in range(resamplings)
    ]
    low, high = np.quantile(np.array(drawn), (0.05, 0.95), axis=0)
    figures = [
        Known(math.exp(value), (math.exp(min(a, value - LEAST_WIDTH)), math.exp(max(b, value + LEAST_WIDTH))))
        for value, a, b in zip(logs, low, high, strict=True)
    ]
    errors = np.abs(fit.table.errors(logs))
    return Speeds(
        dict(zip(classes, figures, strict=False)),
        dict(zip(classes, figures[len(classes) :], strict=False)),
        figures[-1],
        {
            c: math.exp(float(np.median(errors[fit.table.place == i])))
            for i, c in enumerate(classes)
            if c in measured
        },
        block,
        count,
    )


class _Fit:
    """Figures near a ``prior`` that fit a table best.

    Attributes:
        logs: of the figures.
        free: how far each is from the prior by itself, then the factors that they share.
        cost: half of the sum of softened squares.
    """

    def __init__(self, table: _Table, prior: Floats, widths: Floats, begin: Floats) -> None:
        self.table, self.prior, self.widths = table, prior, widths
        follow = np.column_stack([np.eye(len(prior)), _shared(table.classes)])
        pull = OUTLIER / widths

        def residuals(free: Floats, sharpness: float) -> Floats:
            return np.concatenate([table.errors(prior + follow @ free, sharpness), pull * free])

        def slopes(free: Floats, sharpness: float) -> Floats:
            return np.vstack([table.slopes(prior + follow @ free, sharpness) @ follow, np.diag(pull)])

        for sharpness in _SHARPNESSES:
            found = least_squares(residuals, begin, slopes, args=(sharpness,), **_SOFTLY)
            begin = found.x
        self.free, self.cost = np.asarray(found.x), float(found.cost)
        self.logs = prior + follow @ self.free


def _best_block(
    found: Sequence[tuple[Amounts, float]], classes: tuple[OpClass, ...], base: Profile | None
) -> tuple[int, _Fit]:
    """With the block that the ops say is the likeliest, if clearly; else with that of ``base``."""
    stated = None if base is None else base.compute.convolution_block_channels
    believed = 1 if stated is None else int(stated.value)
    best: tuple[float, int, _Fit] | None = None
    for block in (believed, *(other for other in _BLOCKS_CHANNELS if other != believed)):
        table = _table(found, classes, block)
        if best is not None and np.array_equal(table.flops, best[2].table.flops):
            continue  # no op tells the two apart
        prior = _start(table) if base is None else _known(classes, base)
        own = UNKNOWN_WIDTH if base is None else OWN_WIDTH
        shared = _shared(classes).shape[1]
        widths = np.array([own] * (len(prior) - 1) + [SHARED_WIDTH] * (1 + shared))  # the memory goes apart
        begin = np.zeros(len(widths))
        begin[len(prior)] = np.median(table.errors(prior))  # the machine as a whole
        fit = _Fit(table, prior, widths, begin)
        worse = fit.cost / OUTLIER**2 + _CLEARLY_BETTER * (block != believed)
        if best is None or worse < best[0]:
            best = worse, block, fit
    assert best is not None
    return best[1], best[2]


def _table(
    found: Sequence[tuple[Amounts, float]], classes: tuple[OpClass, ...], block_channels: int
) -> _Table:
    return _Table(
        classes,
        np.array([classes.index(amounts.op_class) for amounts, _ in found], dtype=np.intp),
        np.array([amounts.padded_flops(block_channels) for amounts, _ in found]),
        np.array([float(amounts.bytes_moved) for amounts, _ in found]),
        np.array([seconds for _, seconds in found]),
    )


def _start(table: _Table) -> Floats:
    """Logarithms without a base: the fastest op of a class tells its speed, the shortest its overhead."""
    speeds, calls = [], []
    for place in range(len(table.classes)):
        mine = table.place == place
        speeds.append(np.max(np.maximum(table.flops[mine], 1.0) / table.seconds[mine]))
        calls.append(0.5 * np.min(table.seconds[mine]))
    return np.asarray(np.log([*speeds, *calls, np.max(np.maximum(table.moved, 1.0) / table.seconds)]))


def _known(classes: Sequence[OpClass], base: Profile) -> Floats:
    """Logarithms of the base's figures; where only the memory limits a class, four bytes are one FLOP."""
    bandwidth = base.memory.bandwidth_bytes_per_second
    bytes_per_second = 1e12 if bandwidth is None else bandwidth.value
    speeds = []
    for op_class in classes:
        throughput = base.compute.throughput(op_class)
        speeds.append(bytes_per_second if throughput is None else throughput.flops_per_second.value)
    calls = [max(base.compute.overhead_seconds(op_class), 1e-9) for op_class in classes]
    return np.asarray(np.log([*speeds, *calls, bytes_per_second]))


def _shared(classes: Sequence[OpClass]) -> Floats:
    """How speeds, overheads and the bandwidth, one a row, follow the factors that they share, one a column.

    The machine as a whole, its calls, the calls of convolutions, and each of `_FAMILIES`.
    """
    ones, none = np.ones(len(classes)), np.zeros(len(classes))
    convolves = np.array([float(c in (*_DENSE[1:], *_BY_CHANNEL)) for c in classes])
    families = [np.array([float(c in family) for c in classes]) for family in _FAMILIES]
    return np.column_stack(
        [
            np.concatenate([ones, -ones, [1.0]]),
            np.concatenate([none, ones, [0.0]]),
            np.concatenate([none, convolves, [0.0]]),
            *(np.concatenate([family, none, [0.0]]) for family in families),
        ]
    )
