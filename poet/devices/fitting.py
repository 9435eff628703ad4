"""Speeds of the cost model that fit measured ops best, with how far each may be off.

Each op is one equation, ``max(FLOPs / speed, bytes / bandwidth) + overhead = seconds``, and counts by its
relative error. Non-negative least squares over the sum in place of the maximum gives the start; least squares
over logarithms ends it, in which no op pulls harder than one that is off by `OUTLIER`. What is known before
about a figure pulls it back by how narrow its interval is, beside the factors that figures share: a few
ops move what they touch, then their family, and the rest with the machine as a whole. On how many channels
the kernels of convolutions work at once is that of a few counts with which the ops fit best.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from poet.devices.amounts import Amounts, amounts_of
from poet.devices.known_figures import SHARED_WIDTHS, Floats, Known, known_of, shared_of, widths_of
from poet.devices.measurements import OpTime
from poet.devices.profile import OpClass, Profile

OUTLIER = 0.25
"""Error of an op, as a logarithm, from which it pulls no harder; a usual op is off by as much."""

RESAMPLINGS = 40
LEAST_WIDTH = 0.03
"""Of a fitted interval, either way: what clocks of a machine do from day to day."""

MOST_FACTOR = 1.5
"""Median factor between fitted and measured ops of a class beyond which the class is refused."""

_SHARPNESSES = (3.0, math.inf)
"""Of the maximum in the model, first to last: at its edges a descent would stop."""

_MIDDLE = 0.5
_STARTS = (0.1, 0.3, _MIDDLE, 0.7, 0.9)
"""Quantiles of how far single ops are from the base, from which the common factor begins."""

_BLOCKS_CHANNELS = (1, 4, 8, 16)
"""On which kernels of convolutions work at once: one, or the lanes of a vector."""

_LEAST_EVIDENCE = 3.0
"""Natural logarithm by which ops must be likelier with another block than with the one believed before."""

_MOST_ITERATIONS, _LEAST_STEP = 80, 1e-4
_LEAST_SECONDS_PER_UNIT = 1e-14


@dataclass(frozen=True, slots=True)
class Speeds:
    """What a fit found.

    Attributes:
        flops_per_second, overhead_seconds: by class of op, for those that ops were measured of.
        bandwidth_bytes_per_second: of the memory.
        common_factor: that the machine's speeds as a whole are higher than what was known beforehand.
        speed_factors, call_factors: by which the speed of a class, and what its calls cost, differ from what
            was known beforehand by all that the class shares with others; of every class, measured or not.
        factors: by class, the median factor between fitted and measured ops.
        block_channels: on which the kernels of dense convolutions work at once; see
            `poet.devices.amounts.Amounts.padded_flops`.
        ops: how many were fitted to.
    """

    flops_per_second: Mapping[OpClass, Known]
    overhead_seconds: Mapping[OpClass, Known]
    bandwidth_bytes_per_second: Known
    common_factor: float
    speed_factors: Mapping[OpClass, float]
    call_factors: Mapping[OpClass, float]
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

    def modelled(self, logs: Floats, sharpness: float = math.inf) -> Floats:
        """Seconds at logarithms of speeds, overheads and the bandwidth.

        Below infinite ``sharpness`` a norm of that degree stands for the maximum, whose edges it rounds.
        """
        count = len(self.classes)
        figures = np.exp(logs)
        by_flops, by_bytes = self.flops / figures[self.place], self.moved / figures[-1]
        busy = np.maximum(by_flops, by_bytes)
        if sharpness < math.inf:
            less = np.minimum(by_flops, by_bytes) / np.maximum(busy, _LEAST_SECONDS_PER_UNIT)
            busy = busy * (1.0 + less**sharpness) ** (1.0 / sharpness)
        return np.asarray(busy + figures[count + self.place])


def fit_speeds(
    ops: Sequence[OpTime], base: Profile | None = None, *, resamplings: int = RESAMPLINGS
) -> Speeds:
    """The speeds that fit ``ops`` best, near those of ``base`` as far as its intervals are narrow.

    Their intervals are of fits to so many ``resamplings`` of the ops.

    Raises:
        UnsupportedOperator: an op has no row in the cost table.
    """
    block, table, known, logs, free = _fit_of_best_block([(amounts_of(op), op.seconds) for op in ops], base)
    draw, count = np.random.default_rng(0), len(table.seconds)
    drawn = [_fit(table.rows(draw.integers(0, count, count)), known, free)[0] for _ in range(resamplings)]
    low, high = np.quantile(np.array(drawn), (0.05, 0.95), axis=0)
    figures = [
        Known(math.exp(value), (math.exp(min(a, value - LEAST_WIDTH)), math.exp(max(b, value + LEAST_WIDTH))))
        for value, a, b in zip(logs, low, high, strict=True)
    ]
    errors = np.abs(np.log(table.modelled(logs) / table.seconds))
    classes, shared = table.classes, free[len(logs) :]
    every = tuple(OpClass)
    moved = np.exp(shared_of(every) @ shared)
    return Speeds(
        dict(zip(classes, figures, strict=False)),
        dict(zip(classes, figures[len(classes) :], strict=False)),
        figures[-1],
        math.exp(shared[0]),
        dict(zip(every, map(float, moved), strict=False)),
        dict(zip(every, map(float, moved[len(every) :]), strict=False)),
        {c: math.exp(float(np.median(errors[table.place == i]))) for i, c in enumerate(classes)},
        block,
        count,
    )


def log_evidence(ops: Sequence[OpTime], base: Profile) -> float:
    """How well what is known from ``base`` foretells ``ops``: the logarithm of their likelihood under it.

    That is the integral over all figures, by Laplace's method at the best fit, but for a constant of the ops.

    Raises:
        UnsupportedOperator: an op has no row in the cost table.
    """
    table = _table([(amounts_of(op), op.seconds) for op in ops], _block_of(base))
    known = known_of(table.classes, base, _start(table))
    begin = _begins(table, known, (_MIDDLE,))[0]
    logs, _free, badness = _fit(table, known, begin, _SHARPNESSES)
    widths, common = widths_of(known), shared_of(table.classes)
    errors, slopes = _errors(table, logs, math.inf)
    slopes = np.column_stack([slopes, slopes @ common])
    weighted = slopes / np.sqrt(1.0 + (errors / OUTLIER) ** 2)[:, None]
    curvature = weighted.T @ slopes / OUTLIER**2 + np.diag(widths**-2.0)
    _, log_volume = np.linalg.slogdet(curvature)
    return -(badness / (2.0 * OUTLIER**2) + float(np.sum(np.log(widths))) + 0.5 * float(log_volume))


def _block_of(base: Profile | None) -> int:
    block = None if base is None else base.compute.convolution_block_channels
    return 1 if block is None else int(block.value)


def _fit_of_best_block(
    found: Sequence[tuple[Amounts, float]], base: Profile | None
) -> tuple[int, _Table, list[Known], Floats, Floats]:
    """With the block that the ops say is the likeliest, if clearly; else with that of ``base``."""
    believed = _block_of(base)
    best = None
    for block in (believed, *(other for other in _BLOCKS_CHANNELS if other != believed)):
        table = _table(found, block)
        if best is not None and np.array_equal(table.flops, best[1].flops):
            continue  # no op tells the two apart
        known = known_of(table.classes, base, _start(table))
        logs, free, badness = _best_fit(table, known)
        badness += 2.0 * OUTLIER**2 * _LEAST_EVIDENCE * (block != believed)
        if best is None or badness < best[0]:
            best = badness, table, known, logs, free, block
    assert best is not None
    _, table, known, logs, free, block = best
    return block, table, known, logs, free


def _table(found: Sequence[tuple[Amounts, float]], block_channels: int) -> _Table:
    classes = tuple(c for c in OpClass if any(amounts.op_class is c for amounts, _ in found))
    return _Table(
        classes,
        np.array([classes.index(amounts.op_class) for amounts, _ in found], dtype=np.intp),
        np.array([amounts.padded_flops(block_channels) for amounts, _ in found]),
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


def _best_fit(table: _Table, known: Sequence[Known]) -> tuple[Floats, Floats, float]:
    """`_fit` from several beginnings: where few ops are of few kinds, one of them may mislead it."""
    begins = _begins(table, known, _STARTS)
    return min((_fit(table, known, begin, _SHARPNESSES) for begin in begins), key=lambda found: found[2])


def _begins(table: _Table, known: Sequence[Known], shares: Sequence[float]) -> list[Floats]:
    """What is known, with the machine as a whole as far off as each such share of the ops is."""
    prior = np.log(np.array([figure.value for figure in known]))
    off = np.log(table.modelled(prior) / table.seconds)
    begins = []
    for share in shares:
        begin = np.zeros(len(known) + len(SHARED_WIDTHS))
        begin[len(known)] = float(np.quantile(off, share))
        begins.append(begin)
    return begins


def _fit(
    table: _Table, known: Sequence[Known], begin: Floats, sharpnesses: Sequence[float] = (math.inf,)
) -> tuple[Floats, Floats, float]:
    """Logarithms of the figures; how far each is from what was known, with the common factors; how bad it is.

    Gauss-Newton, each op weighted by how far it is off, so that none pulls harder than one off by `OUTLIER`.
    """
    figures = len(known)
    prior = np.log(np.array([figure.value for figure in known]))
    common = shared_of(table.classes)
    pull = (OUTLIER / widths_of(known)) ** 2

    def logs_at(free: Floats) -> Floats:
        return np.asarray(prior + free[:figures] + common @ free[figures:])

    def objective(free: Floats, sharpness: float) -> float:
        errors = np.log(table.modelled(logs_at(free), sharpness) / table.seconds)
        soft = 2.0 * OUTLIER**2 * (np.sqrt(1.0 + (errors / OUTLIER) ** 2) - 1.0)
        return float(np.sum(soft) + np.sum(pull * free**2))

    free, best = begin, math.inf
    for sharpness in sharpnesses:
        best = objective(free, sharpness)
        for _ in range(_MOST_ITERATIONS):
            errors, slopes = _errors(table, logs_at(free), sharpness)
            slopes = np.column_stack([slopes, slopes @ common])
            weighted = slopes / np.sqrt(1.0 + (errors / OUTLIER) ** 2)[:, None]
            step = -np.linalg.solve(weighted.T @ slopes + np.diag(pull), weighted.T @ errors + pull * free)
            step = np.clip(step, -1.0, 1.0)
            while (found := objective(free + step, sharpness)) > best and np.max(np.abs(step)) > _LEAST_STEP:
                step = 0.5 * step
            if found > best or np.max(np.abs(step)) <= _LEAST_STEP:
                break
            free, best = free + step, found
    return logs_at(free), free, best


def _errors(table: _Table, logs: Floats, sharpness: float) -> tuple[Floats, Floats]:
    """Logarithm of modelled over measured seconds per op, and its slope in each figure's logarithm."""
    count, rows = len(table.classes), np.arange(len(table.seconds))
    figures = np.exp(logs)
    by_flops, by_bytes = table.flops / figures[table.place], table.moved / figures[-1]
    calls = figures[count + table.place]
    total = table.modelled(logs, sharpness)
    if sharpness < math.inf:
        more = np.maximum(np.maximum(by_flops, by_bytes), _LEAST_SECONDS_PER_UNIT)
        flops_part, bytes_part = (by_flops / more) ** sharpness, (by_bytes / more) ** sharpness
        flops_share = flops_part / np.maximum(flops_part + bytes_part, _LEAST_SECONDS_PER_UNIT)
    else:
        flops_share = np.where(by_flops >= by_bytes, 1.0, 0.0)
    busy_share = (total - calls) / total
    slopes = np.zeros((len(rows), len(logs)))
    slopes[rows, table.place] = -flops_share * busy_share
    slopes[rows, count + table.place] = calls / total
    slopes[:, -1] = -(1.0 - flops_share) * busy_share
    return np.asarray(np.log(total / table.seconds)), slopes
