"""Which moments to add to the grids of the windows relaxation, after Boland et al. (2017).

At every moment the relaxation (`poet.solvers.bounds.relaxation`) counts in RAM what is held through a
window; but what is made again in a window is counted at the window's end only. Two kinds of moments are
worth a place on the grids:

- *priced* moments, whose memory row has a dual price in the linear program. With windows from use to
  use, the program recomputes at moments at which RAM is plentiful;
- *under-counted* moments, inside windows in which one rerun serves several reads. A rerun late in the
  step needs a chain of others before it, the result of each of which has a later read of its own as
  well. These results wait in RAM, uncounted, from the first of their reads to the last. With such a
  moment t on the grids, the program must hold them at t or pay for another rerun. The value of t is
  the joules of the reruns whose results wait at t, times the share of the results' bytes for which the
  solution leaves no room at t.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from poet.clock import WALL, Clock
from poet.solvers.bounds.windows_bound import Bound, bound_overhead, taken_up
from poet.solvers.engines.program import Numbers, value
from poet.solvers.instance.candidates import fullest_stage, last_use_stages, worth_rerunning
from poet.solvers.instance.instance import Instance

VAIN_GRIDS = 3
"""In a row that hardly raise the bound, after which finer ones are left to whole numbers."""

PROGRESS_SHARE = 0.001
"""Of the bound, by which a grid must raise it; at 0 the last grids take most of the time."""


def refined_bounds(
    instance: Instance, seconds_left: Callable[[], float], *, clock: Clock = WALL
) -> Iterator[Bound]:
    """Bounds by grid after grid, each with more priced and under-counted moments; until they stand still.

    The first grid has the moment at which most would be held if everything were kept, which mostly has the
    largest price. A program that is cut short is told as well, and taken up again for the next bound.

    Args:
        instance: what to bound.
        seconds_left: asked before each piece of work, how long it may take.
        clock: of the search.
    """
    moments = frozenset({fullest_stage(instance, last_use_stages(instance, worth_rerunning(instance)))})
    vain, best_joules = 0, 0.0
    while vain < VAIN_GRIDS:
        bound = bound_overhead(instance, seconds=seconds_left(), moments=moments, clock=clock)
        while not bound.answer.done and bound.answer.go_on is not None:
            yield bound
            bound = taken_up(bound, seconds=seconds_left(), clock=clock)
        yield bound
        if bound.answer.values is None:
            return
        vain = 0 if bound.overhead_joules > (1.0 + PROGRESS_SHARE) * best_joules else vain + 1
        best_joules = max(best_joules, bound.overhead_joules)
        more = (priced_moments(instance, bound) | pretended_moments(instance, bound)) - moments
        # where the dearest are there, others have a price as well
        more = more or priced_moments(instance, bound, besides=moments) - moments
        if not more:
            return
        moments |= more


def priced_moments(instance: Instance, bound: Bound, besides: frozenset[int] = frozenset()) -> frozenset[int]:
    """The moments at which more RAM would save most joules, by the duals of the memory rows; none of
    ``besides``.
    """
    moments, tuning = bound.relaxation.moments, instance.tuning.grids
    prices = bound.answer.prices[: len(moments)]
    least = tuning.price_share * prices.sum()
    dearest = [row for row in np.argsort(-prices, kind="stable") if moments[row] not in besides]
    return frozenset(moments[row] for row in dearest[: tuning.priced_moments] if prices[row] > least)


def pretended_moments(
    instance: Instance, bound: Bound, *, levels: tuple[float, ...] | None = None, latest: int | None = None
) -> frozenset[int]:
    """Moments at which the solution under-counts memory most (joules × missing share of the bytes).

    Empty where no value exceeds ``worth_share`` of the bound. Moments that are on all grids already do not
    count.

    Args:
        instance: what is bounded.
        bound: with its solution.
        levels: shares of the largest value; for each, the last moment of at least that value is taken;
            ``None``: as tuned.
        latest: the last moment to consider; ``None``: the end.
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
    if most <= instance.tuning.grids.worth_share * bound.overhead_joules:
        return frozenset()
    levels = instance.tuning.grids.level_shares if levels is None else levels
    return frozenset(moments[np.flatnonzero(unsaid >= level * most)[-1]] for level in levels)


@dataclass(frozen=True, slots=True)
class _Wait:
    """The results of one rerun, which wait in RAM from their first read to their last.

    Attributes:
        first, last: the ops before which they are read first and last.
        joules: of the rerun.
        bytes: of those results that are read at the window's end.
    """

    first: int
    last: int
    joules: float
    bytes: int


def _waits(instance: Instance, bound: Bound, values: Numbers) -> list[_Wait]:
    """What the reruns of a fractional solution keep in RAM between their first and their last read.

    The relaxation counts RAM at the moments of its grids only. A rerun inside a window puts its results there
    from some point in the window to its end, and the relaxation does not see how early that must be: other
    reruns in the same window may read the results. Tasks are looked at from the last one back, so that the
    reads by later reruns are known: a result is read at the window's end, if the plan holds it there, and
    whenever something is remade from it inside the window. A window whose results nobody reads is left out.
    """
    least = instance.tuning.grids.made_share
    windows: dict[int, dict[tuple[int, int], int]] = {}  # per task and window, bytes that are read at its end
    for used, stretches in ((True, bound.relaxation.segments), (False, bound.relaxation.tails)):
        for segment in stretches:
            content = instance.contents[segment.content]
            for begin, end, made in zip(segment.moments, segment.ends, segment.made, strict=True):
                if content.producer is not None and value(made, values) > least:
                    mine = windows.setdefault(content.producer, {})
                    mine[begin, end] = mine.get((begin, end), 0) + used * content.bytes
    readers: dict[int, list[int]] = {}
    for number in windows:
        for content_number in instance.tasks[number].rerun_reads:
            producer = instance.contents[content_number].producer
            if producer in windows:
                readers.setdefault(producer, []).append(number)
    waits: list[_Wait] = []
    wanted: dict[int, list[tuple[int, int]]] = {}  # per task, first and last reads; readers come later
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
    """Per moment with a memory row, the bytes of the budget that the solution leaves unused."""
    program, count = bound.relaxation.program.matrix(), len(bound.relaxation.moments)
    of_memory = program.rows < count
    parts = program.factors[of_memory] * values[program.columns[of_memory]]
    used = np.bincount(program.rows[of_memory], weights=parts, minlength=count)
    left: Numbers = np.maximum(program.at_most[:count] - used, 0.0)
    return left * float(max(instance.limits.ram_budget_bytes or 0, 1))
