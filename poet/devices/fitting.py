"""Speeds of the cost model that fit measured ops best, with how far each may be off.

Each op is one equation, ``max(FLOPs / speed, bytes / bandwidth) + overhead = seconds``, and counts by its
relative error. Non-negative least squares over the sum in place of the maximum gives the start; least squares
over logarithms ends it, in which no op pulls harder than one that is off by `OUTLIER`. What is known before
about a figure pulls it back by how narrow its interval is, beside a factor that is common to all: a few ops
move what they touch, and the rest with the machine as a whole.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from poet.devices.amounts import Amounts, amounts_of
from poet.devices.measurements import OpTime
from poet.devices.profile import OpClass, Profile

Floats = NDArray[np.float64]
Interval = tuple[float, float]

OUTLIER = 0.25
"""Error of an op, as a logarithm, from which it pulls no harder; a usual op is off by as much."""

RESAMPLINGS = 40
LEAST_WIDTH = 0.03
"""Of a fitted interval, either way: what clocks of a machine do from day to day."""

LEAST_KNOWN_WIDTH = math.log(1.5)
"""Of what is known beforehand: the base may be another board than the one that was measured."""

MOST_FACTOR = 1.5
"""Median factor between fitted and measured ops of a class beyond which the class is refused."""

_UNKNOWN_WIDTH = math.log(30.0)
_COMMON_WEIGHT = 0.01
_MOST_ITERATIONS, _LEAST_STEP = 80, 1e-4
_LEAST_SECONDS_PER_UNIT = 1e-14


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


@dataclass(frozen=True, slots=True)
class Speeds:
    """What a fit found.

    Attributes:
        flops_per_second, overhead_seconds: by class of op, for those that ops were measured of.
        bandwidth_bytes_per_second: of the memory.
        common_factor: that the machine as a whole is faster than what was known beforehand.
        factors: by class, the median factor between fitted and measured ops.
        ops: how many were fitted to.
    """

    flops_per_second: Mapping[OpClass, Known]
    overhead_seconds: Mapping[OpClass, Known]
    bandwidth_bytes_per_second: Known
    common_factor: float
    factors: Mapping[OpClass, float]
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

    def modelled(self, logs: Floats) -> Floats:
        """Seconds at logarithms of speeds, overheads and the bandwidth."""
        count = len(self.classes)
        figures = np.exp(logs)
        busy = np.maximum(self.flops / figures[self.place], self.moved / figures[-1])
        return np.asarray(busy + figures[count + self.place])


def fit_speeds(ops: Sequence[OpTime], base: Profile | None = None) -> Speeds:
    """The speeds that fit ``ops`` best, near those of ``base`` as far as its intervals are narrow.

    Raises:
        UnsupportedOperator: an op has no row in the cost table.
    """
    found = [(amounts_of(op), op.seconds) for op in ops]
    table = _table(found)
    start = _start(table)
    known = _known(table.classes, base, start)
    logs, free = _fit(table, known)
    draw, count = np.random.default_rng(0), len(table.seconds)
    drawn = [_fit(table.rows(draw.integers(0, count, count)), known, free)[0] for _ in range(RESAMPLINGS)]
    low, high = np.quantile(np.array(drawn), (0.05, 0.95), axis=0)
    figures = [
        Known(math.exp(value), (math.exp(min(a, value - LEAST_WIDTH)), math.exp(max(b, value + LEAST_WIDTH))))
        for value, a, b in zip(logs, low, high, strict=True)
    ]
    errors = np.abs(np.log(table.modelled(logs) / table.seconds))
    classes = table.classes
    return Speeds(
        dict(zip(classes, figures, strict=False)),
        dict(zip(classes, figures[len(classes) :], strict=False)),
        figures[-1],
        math.exp(free[-1]),
        {c: math.exp(float(np.median(errors[table.place == i]))) for i, c in enumerate(classes)},
        count,
    )


def _table(found: Sequence[tuple[Amounts, float]]) -> _Table:
    classes = tuple(c for c in OpClass if any(amounts.op_class is c for amounts, _ in found))
    return _Table(
        classes,
        np.array([classes.index(amounts.op_class) for amounts, _ in found], dtype=np.intp),
        np.array([amounts.flops for amounts, _ in found]),
        np.array([float(amounts.bytes_moved) for amounts, _ in found]),
        np.array([seconds for _, seconds in found]),
    )


def _start(table: _Table) -> Floats:
    """Logarithms by non-negative least squares of FLOPs, bytes and calls, each op by its relative error."""
    count, rows = len(table.classes), np.arange(len(table.seconds))
    columns = np.zeros((len(rows), 2 * count + 1))
    columns[rows, table.place] = table.flops
    columns[rows, count + table.place] = 1.0
    columns[:, -1] = table.moved
    scales = np.maximum(columns.max(axis=0), 1.0)
    solution, _ = nnls(columns / scales / table.seconds[:, None], np.ones(len(rows)))
    found = solution / scales
    for place in range(count):  # where bytes or calls took all the time, no op may be faster than its FLOPs
        mine = table.place == place
        floor = float(np.min(table.seconds[mine] / np.maximum(table.flops[mine], 1.0)))
        found[place] = max(found[place], 0.5 * floor, _LEAST_SECONDS_PER_UNIT)
        found[count + place] = max(found[count + place], 0.2 * float(np.min(table.seconds[mine])))
    fastest = float(np.min(table.seconds / np.maximum(table.moved, 1.0)))
    found[-1] = max(found[-1], fastest, _LEAST_SECONDS_PER_UNIT)
    signs = np.concatenate([-np.ones(count), np.ones(count), [-1.0]])
    return np.asarray(signs * np.log(found))


def _known(classes: Sequence[OpClass], base: Profile | None, start: Floats) -> list[Known]:
    if base is None:
        wide = (math.exp(-_UNKNOWN_WIDTH), math.exp(_UNKNOWN_WIDTH))
        return [
            Known(math.exp(value), (math.exp(value) * wide[0], math.exp(value) * wide[1])) for value in start
        ]
    speeds, overheads = [], []
    for op_class in classes:
        throughput = base.compute.throughput(op_class)
        overhead = base.compute.call_overhead_seconds
        bandwidth = base.memory.bandwidth_bytes_per_second
        if throughput is not None:
            figure = throughput.flops_per_second
            speeds.append(Known(figure.value, figure.interval))
            overhead = throughput.call_overhead_seconds or overhead
        else:  # only the memory limits it: an element of four bytes is one FLOP
            assert bandwidth is not None
            speeds.append(Known(bandwidth.value, (bandwidth.value / 30.0, bandwidth.value * 30.0)))
        value = max(overhead.value, 1e-9)
        overheads.append(Known(value, (max(overhead.interval[0], 1e-9), max(overhead.interval[1], 2e-9))))
    bandwidth = base.memory.bandwidth_bytes_per_second
    memory = (
        Known(math.exp(start[-1]), (math.exp(start[-1]) / 30.0, math.exp(start[-1]) * 30.0))
        if bandwidth is None
        else Known(bandwidth.value, bandwidth.interval)
    )
    return [*speeds, *overheads, memory]


def _fit(table: _Table, known: Sequence[Known], begin: Floats | None = None) -> tuple[Floats, Floats]:
    """Logarithms of the figures, and how far each is from what was known, with the common factor at the end.

    Gauss-Newton, each op weighted by how far it is off, so that none pulls harder than one off by `OUTLIER`.
    """
    count = len(table.classes)
    prior = np.log(np.array([figure.value for figure in known]))
    faster = np.concatenate([np.ones(count), -np.ones(count), [1.0]])
    pull = np.append((OUTLIER / np.array([figure.width for figure in known])) ** 2, _COMMON_WEIGHT**2)
    if begin is None:
        common = float(np.median(np.log(table.modelled(prior) / table.seconds)))
        begin = np.append(np.zeros(len(prior)), common)

    def logs_at(free: Floats) -> Floats:
        return np.asarray(prior + free[:-1] + faster * free[-1])

    def objective(free: Floats) -> float:
        errors = np.log(table.modelled(logs_at(free)) / table.seconds)
        soft = 2.0 * OUTLIER**2 * (np.sqrt(1.0 + (errors / OUTLIER) ** 2) - 1.0)
        return float(np.sum(soft) + np.sum(pull * free**2))

    free, best = begin, objective(begin)
    for _ in range(_MOST_ITERATIONS):
        errors, slopes = _errors(table, logs_at(free))
        slopes = np.column_stack([slopes, slopes @ faster])
        weighted = slopes / np.sqrt(1.0 + (errors / OUTLIER) ** 2)[:, None]
        step = -np.linalg.solve(weighted.T @ slopes + np.diag(pull), weighted.T @ errors + pull * free)
        step = np.clip(step, -1.0, 1.0)
        while (found := objective(free + step)) > best and np.max(np.abs(step)) > _LEAST_STEP:
            step = 0.5 * step
        if found > best or np.max(np.abs(step)) <= _LEAST_STEP:
            break
        free, best = free + step, found
    return logs_at(free), free


def _errors(table: _Table, logs: Floats) -> tuple[Floats, Floats]:
    """Logarithm of modelled over measured seconds per op, and its slope in each figure's logarithm."""
    count, rows = len(table.classes), np.arange(len(table.seconds))
    figures = np.exp(logs)
    by_flops, by_bytes = table.flops / figures[table.place], table.moved / figures[-1]
    calls = figures[count + table.place]
    total = np.maximum(by_flops, by_bytes) + calls
    slopes = np.zeros((len(rows), len(logs)))
    slopes[rows, table.place] = np.where(by_flops >= by_bytes, -by_flops / total, 0.0)
    slopes[rows, count + table.place] = calls / total
    slopes[:, -1] = np.where(by_flops >= by_bytes, 0.0, -by_bytes / total)
    return np.asarray(np.log(total / table.seconds)), slopes
