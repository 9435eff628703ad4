"""Which moments the relaxation looks at: where RAM has a price, and where it pretends.

The relaxation (`poet.solvers.bounds.relaxation`) knows of RAM at all moments what is held, but what is made
again in a window appears at its end. Two kinds of moments are worth a place on the grids:

- those at which the linear program puts a *price* on RAM: with windows from use to use it makes
  things again while RAM is plenty;
- those in the middle of windows in which one rerun serves many. A rerun late in the step wants a
  chain of others before it, each of them for its own later use as well: then their results wait,
  unseen, from the first of these times to the last. At such a moment t, the program must say what
  is held; what is not costs another rerun. The moment with the most to say is taken: the joules of
  what waits at t, times the share of its bytes for which RAM at t has no room.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from poet.clock import WALL, Clock
from poet.solvers.bounds.relaxation import Bound, bound_overhead
from poet.solvers.engines.matrix import Numbers, value
from poet.solvers.instance.instance import Instance

Watcher = Callable[[Bound], None]

_PRICED_ROUNDS = 4
_MOMENTS_PER_ROUND = 6
_PRICED = 1e-3  # of the sum of all prices, from which on a moment is taken
_MADE = 0.3  # share of a content from which on it counts as made again
_WORTH = 0.01  # of the bound's joules that a moment must promise
_LEVELS = (0.25, 0.5, 0.75)  # of the most that a moment promises, of which the last one is taken
_PROGRESS, _PATIENCE = 1e-3, 2  # rounds without which the last ones are
_ROUNDS_LEFT = 1.5  # as long as the last one: with less time, another is not begun


def tightest_bound(
    instance: Instance,
    *,
    seconds: float = 60.0,
    watcher: Watcher | None = None,
    begin: Bound | None = None,
    clock: Clock = WALL,
) -> Bound:
    """The best bound of some rounds, each with more moments on the grids, of both kinds.

    Args:
        instance: what to bound.
        seconds: of ``clock``; without ``begin`` a first round is always begun.
        watcher: called with each bound.
        begin: with a bound that is there already.
        clock: of the search.
    """
    end = clock.now() + seconds
    best = bound = begin or priced_bound(instance, seconds=seconds, watcher=watcher, clock=clock)
    vain = 0
    while vain < _PATIENCE and bound.answer.done and (left := end - clock.now()) > 0.0:
        moments = bound.moments | priced_moments(bound) | pretended_moments(instance, bound)
        if moments == bound.moments:
            break
        bound = bound_overhead(instance, seconds=left, moments=moments, clock=clock)
        vain = 0 if bound.overhead_joules > (1.0 + _PROGRESS) * best.overhead_joules else vain + 1
        best = max(best, bound, key=lambda found: found.overhead_joules)
        if watcher is not None:
            watcher(bound)
        if end - clock.now() < _ROUNDS_LEFT * (left - (end - clock.now())):
            break
    return best


def priced_bound(
    instance: Instance, *, seconds: float = 60.0, watcher: Watcher | None = None, clock: Clock = WALL
) -> Bound:
    """The best bound of a few rounds, each with the moments on the grids at which RAM had a price.

    Args:
        instance: what to bound.
        seconds: of ``clock``; the first round is always begun.
        watcher: called with each bound.
        clock: of the search.
    """
    end = clock.now() + seconds
    best = bound = bound_overhead(instance, seconds=seconds, clock=clock)
    for _ in range(_PRICED_ROUNDS):
        if watcher is not None:
            watcher(bound)
        moments = bound.moments | priced_moments(bound)
        left = end - clock.now()
        if left <= 0.0 or not bound.answer.done or moments == bound.moments:
            break
        bound = bound_overhead(instance, seconds=left, moments=moments, clock=clock)
        best = max(best, bound, key=lambda found: found.overhead_joules)
    return best


def priced_moments(bound: Bound) -> frozenset[int]:
    """The moments at which a little more RAM would save most, by the prices of the linear program."""
    moments = bound.relaxation.moments
    prices = bound.answer.prices[: len(moments)]
    dearest = np.argsort(-prices, kind="stable")[:_MOMENTS_PER_ROUND]
    return frozenset(moments[row] for row in dearest if prices[row] > _PRICED * prices.sum())


def pretended_moments(
    instance: Instance, bound: Bound, *, levels: tuple[float, ...] = _LEVELS, latest: int | None = None
) -> frozenset[int]:
    """The moments at which the answer leaves most unsaid; empty where that is little.

    Args:
        instance: what is bounded.
        bound: with its answer.
        levels: of the most that a moment promises; the last moment that promises as much is taken.
        latest: moment; ``None``: any.
    """
    values, moments = bound.answer.values, bound.relaxation.moments
    if values is None or not moments:
        return frozenset()
    joules, waiting = np.zeros(len(instance.tasks) + 2), np.zeros(len(instance.tasks) + 2)
    for wait in _waits(instance, bound, values):
        joules[wait.first : wait.last] += wait.joules
        waiting[wait.first : wait.last] += wait.bytes
    rows = np.array(moments)
    room = _room_bytes(instance, bound, values)
    unsaid = joules[rows] * np.maximum(0.0, 1.0 - room / np.maximum(waiting[rows], 1.0))
    unsaid[np.isin(rows, list(bound.moments))] = 0.0
    unsaid[rows > (len(instance.tasks) if latest is None else latest)] = 0.0
    most = float(unsaid.max())
    if most <= _WORTH * bound.overhead_joules:
        return frozenset()
    return frozenset(moments[np.flatnonzero(unsaid >= level * most)[-1]] for level in levels)


@dataclass(frozen=True, slots=True)
class _Wait:
    """What one rerun makes, from the first op before which it is wanted to the last."""

    first: int
    last: int
    joules: float
    bytes: int


def _waits(instance: Instance, bound: Bound, values: Numbers) -> list[_Wait]:
    """What the reruns of each window make, in as far as it is wanted more than once."""
    windows: dict[int, dict[tuple[int, int], int]] = {}  # per task and window, bytes that are used at its end
    for used, stretches in ((True, bound.relaxation.segments), (False, bound.relaxation.tails)):
        for segment in stretches:
            content = instance.contents[segment.content]
            ends = (*segment.moments[1:], segment.until)
            for begin, end, made in zip(segment.moments, ends, segment.made, strict=True):
                if content.producer is not None and value(made, values) > _MADE:
                    mine = windows.setdefault(content.producer, {})
                    mine[begin, end] = mine.get((begin, end), 0) + used * content.bytes
    readers: dict[int, list[int]] = {}
    for number in windows:
        for content_number in instance.tasks[number].rerun_reads:
            producer = instance.contents[content_number].producer
            if producer in windows:
                readers.setdefault(producer, []).append(number)
    waits: list[_Wait] = []
    wanted: dict[int, list[tuple[int, int]]] = {}  # per task, from when to when; readers come later
    for number in sorted(windows, reverse=True):
        for (begin, end), size in windows[number].items():
            times = [end] if size else []
            for reader in readers.get(number, ()):
                times += [moment for pair in wanted[reader] for moment in pair if begin < moment <= end]
            if times:
                wanted.setdefault(number, []).append((min(times), max(times)))
                waits.append(_Wait(min(times), max(times), instance.tasks[number].cost.joules, size))
        wanted.setdefault(number, [])
    return waits


def _room_bytes(instance: Instance, bound: Bound, values: Numbers) -> Numbers:
    """Per moment, what the answer leaves of the budget."""
    program, count = bound.relaxation.program.matrix(), len(bound.relaxation.moments)
    of_memory = program.rows < count
    parts = program.factors[of_memory] * values[program.columns[of_memory]]
    used = np.bincount(program.rows[of_memory], weights=parts, minlength=count)
    left: Numbers = np.maximum(program.at_most[:count] - used, 0.0)
    return left * float(max(instance.limits.ram_budget_bytes or 0, 1))
