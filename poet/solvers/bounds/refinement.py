"""Which moments to add to the grids of the windows relaxation, after Boland et al. (2017).

At every moment the relaxation (`poet.solvers.bounds.relaxation`) counts in RAM what is held through a
window; but what is made again in a window is counted at the window's end only. Two kinds of moments are
worth a place on the grids:

- *priced* moments, whose memory row has a dual price in the linear program. With windows from use to
  use, the program recomputes at moments at which RAM is plentiful;
- moments *over capacity*, where a solution, rounded and simulated as a step, needs more RAM than there is
  (counterexamples: Clarke, Grumberg, Jha, Lu and Veith, CAV 2000). A chain of reruns holds results inside
  windows, uncounted. In whole numbers, where none is over capacity, the solution is a schedule, and none
  is cheaper.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import numpy as np

from poet.problem.schedule import Compute, Free, PageIn, PageOut, Schedule, Step
from poet.solvers.bounds.relaxation import Bound, bound_overhead, taken_up
from poet.solvers.engines.program import Numbers, value
from poet.solvers.instance.candidates import fullest_stage, last_use_stages, worth_rerunning
from poet.solvers.instance.instance import Instance
from poet.util.clock import WALL, Clock

VAIN_GRIDS = 3
"""In a row that hardly raise the bound, after which finer ones are left to whole numbers."""

PROGRESS_SHARE = 0.001
"""Of the bound, by which a grid must raise it; at 0 the last grids take most of the time."""

PRICED_MOMENTS = 6
"""Added at once, those with the largest prices: each adds a row and columns to the program."""

_CHOSEN = 0.5  # a column above it is 1


def refined_bounds(
    instance: Instance, seconds_left: Callable[[], float], *, clock: Clock = WALL
) -> Iterator[Bound]:
    """Bounds by grid after grid, each with more moments, until they stand still.

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
        more = priced_moments(bound) | ExtractedStep(instance, bound).over_capacity_moments(1)
        if not more:
            return
        moments |= more


def priced_moments(bound: Bound) -> frozenset[int]:
    """New moments at which more RAM would save most joules, by the duals of the memory rows."""
    moments = bound.relaxation.moments
    prices = bound.answer.prices[: len(moments)]
    largest = [row for row in np.argsort(-prices, kind="stable") if moments[row] not in bound.moments]
    return frozenset(
        moments[row] for row in largest[:PRICED_MOMENTS] if prices[row] > PROGRESS_SHARE * prices.sum()
    )


class Act(NamedTuple):
    """In a stage a task runs, first where it is the stage's own and else again, or a content is paged in."""

    stage: int
    task: int | None
    content: int = -1

    @property
    def is_first(self) -> bool:
        """The first run of the stage's op."""
        return self.task == self.stage


class _Window(NamedTuple):
    """Of a task that is run again, or of a content that is paged in: after one moment, up to another."""

    number: int
    after: int
    until: int


class ExtractedStep:
    """The step that a solution in whole numbers describes.

    The solution says in which window something is made again or paged in, not when. Here each rerun and
    page-in comes as late in its window as those allow that read what it brings, everything is in RAM from
    there to its last read, and RAM is counted beside every run.

    Args:
        instance: whose relaxation was solved.
        bound: with values of its columns in whole numbers; rounded where they are not.

    Attributes:
        acts: in order, frees left out.
        bytes: of RAM, that are taken beside each.
        ends: contents that each act has in RAM and that nothing after it needs.
    """

    def __init__(self, instance: Instance, bound: Bound) -> None:
        self.instance, self.tasks, self.contents = instance, instance.tasks, instance.contents
        self.moments = bound.moments
        values = bound.answer.values
        at_home = bound.relaxation.at_home.items()
        away = set[str]() if values is None else {t for t, c in at_home if value(c, values) < _CHOSEN}
        self._at_home = {c.number for c in self.contents if c.home is not None and c.tensor not in away}
        self.acts = [] if values is None else list(self._in_order(*_windows(instance, bound, values)))
        self.bytes, self.ends = list[int](), list[frozenset[int]]()
        self._needed_at_start = self._counted_back()

    def over_capacity_moments(self, most: int) -> frozenset[int]:
        """Moments that are not on the grids: of the ``most`` stretches most over capacity, the worst one.

        Where a rerun or page-in is over capacity and its stage ends with a moment that is, the moment before.
        """
        budget, worst = self.instance.limits.ram_budget_bytes, dict[int, tuple[int, int]]()
        if budget is None:
            return frozenset()
        stretch = 0
        for act, taken in zip(self.acts, self.bytes, strict=True):
            if taken <= budget:
                stretch += 1
                continue
            moment = act.stage if act.is_first or act.stage not in self.moments else act.stage - 1
            if moment > 0 and moment not in self.moments and taken > worst.get(stretch, (0, 0))[0]:
                worst[stretch] = taken, moment
        return frozenset(moment for _, moment in sorted(worst.values(), reverse=True)[:most])

    def schedule(self) -> Schedule | None:
        """Of these acts; ``None``: RAM is too little for them, or there is no solution.

        The simulator decides whether it is valid: the relaxation lets a tensor that is in RAM between steps,
        and that no op updates, be read from storage.
        """
        budget = self.instance.limits.ram_budget_bytes
        if not self.acts or (budget is not None and max(self.bytes) > budget):
            return None
        return tuple(self._steps())

    def _in_order(self, runs: set[_Window], pages: set[_Window]) -> Iterator[Act]:
        """All first runs, and reruns and page-ins before those that read what they bring."""
        read_in = defaultdict[int, list[int]](list)  # by content, stages in which reruns read it
        again, paged = defaultdict[int, list[int]](list), defaultdict[int, list[int]](list)
        for window in sorted(runs, reverse=True):  # what reads an op's outputs comes after it
            task = self.tasks[window.number]
            stage = _latest(window, (at for c in task.outputs for at in read_in[c]))
            again[stage].append(task.number)
            for content in task.rerun_reads:
                read_in[content].append(stage)
        for window in pages:
            paged[_latest(window, read_in[window.number])].append(window.number)
        for stage in range(len(self.tasks) + 1):
            waiting = sorted(paged[stage])
            for number in sorted(again[stage]):
                yield from (Act(stage, None, c) for c in waiting if c in self.tasks[number].rerun_reads)
                waiting = [c for c in waiting if c not in self.tasks[number].rerun_reads]
                yield Act(stage, number)
            yield from (Act(stage, None, c) for c in waiting)
            if stage < len(self.tasks):
                yield Act(stage, stage)

    def _counted_back(self) -> frozenset[int]:
        """Count bytes, and what ends, from the last act to the first; what is needed before all."""
        live = {c.number for c in self.contents if c.ends_in_ram or self._comes_home(c.number)}
        live_bytes = self._bytes(live)
        for act in reversed(self.acts):
            reads, made, updated, workspace_bytes = self._parts(act)
            there = reads | made
            in_place_bytes = self._bytes(live & updated)  # in the bytes of what it was
            more_bytes = self._bytes(there - live) + workspace_bytes
            self.bytes.append(live_bytes - in_place_bytes + more_bytes)
            self.ends.append((there | updated) - live)
            gone, come = live & ((made | updated) - reads), reads - live
            live_bytes += self._bytes(come) - self._bytes(gone)
            live -= gone
            live |= come
        self.bytes.reverse()
        self.ends.reverse()
        return frozenset(live)

    def _parts(self, act: Act) -> tuple[frozenset[int], frozenset[int], frozenset[int], int]:
        """What an act reads, makes or pages in, and updates, and the bytes that it works in."""
        if act.task is None:
            return frozenset(), frozenset((act.content,)), frozenset(), 0
        task = self.tasks[act.task]
        reads, updated = (task.reads, task.updated) if act.is_first else (task.rerun_reads, ())
        return frozenset(reads), frozenset(task.outputs), frozenset(updated), task.workspace_bytes

    def _bytes(self, contents: Iterable[int]) -> int:
        return sum(self.contents[content].bytes for content in contents)

    def _comes_home(self, content: int) -> bool:
        """Whether it must be in RAM at the end as its tensor is at home there."""
        return self.contents[content].comes_home and content in self._at_home

    def _steps(self) -> Iterator[Step]:
        contents = self.contents
        in_ram = {
            c.number
            for c in contents
            if c.starts_in_ram or (c.home == c.number and c.number in self._at_home)
        }
        yield from self._copied(c.number for c in contents if c.birth == -1)
        yield from self._freed(in_ram, in_ram - self._needed_at_start)
        for act, ends in zip(self.acts, self.ends, strict=True):
            task = None if act.task is None else self.tasks[act.task]
            wanted = (act.content,) if task is None else task.reads if act.is_first else task.rerun_reads
            for content in sorted({*wanted} - in_ram):  # of the negligible, too, that no column speaks of
                yield PageIn(contents[content].tensor)
                in_ram.add(content)
            if task is not None:
                yield Compute(task.name)
                in_ram.update(task.outputs)
            if task is not None and act.is_first:
                in_ram -= {c for c in task.reads if contents[c].death == task.number}
                in_ram.update(task.updated)
                yield from self._copied((*task.outputs, *task.updated))
            yield from self._freed(in_ram, in_ram & ends)

    def _copied(self, born: Iterable[int]) -> Iterator[Step]:
        """Page-outs of those that are paged in later, or placed in storage in the end."""
        paged = {act.content for act in self.acts}
        for number in born:
            content = self.contents[number]
            away = content.home is not None and number not in self._at_home
            is_there = content.starts_stored or (away and content.home == number)
            if not is_there and (number in paged or content.ends_stored or (away and content.comes_home)):
                yield PageOut(content.tensor)

    def _freed(self, in_ram: set[int], ended: set[int]) -> Iterator[Step]:
        """Frees of what has ended, which ``in_ram`` loses."""
        for number in sorted(ended):
            yield Free(self.contents[number].tensor)
            in_ram.remove(number)


def _latest(window: _Window, read_in: Iterable[int]) -> int:
    """The last stage of a window that is no later than any in which it is read within the window."""
    return min((stage for stage in read_in if window.after < stage <= window.until), default=window.until)


def _windows(instance: Instance, bound: Bound, values: Numbers) -> tuple[set[_Window], set[_Window]]:
    """In which the solution runs tasks again, and pages contents in."""
    runs, pages = set[_Window](), set[_Window]()
    for segment in bound.relaxation.segments + bound.relaxation.tails:
        producer = instance.contents[segment.content].producer
        windows = zip(segment.moments, segment.ends, segment.made, segment.paged, strict=True)
        for after, until, made, paged in windows:
            if producer is not None and value(made, values) > _CHOSEN:
                runs.add(_Window(producer, after, min(until, instance.tasks[producer].last_rerun_stage)))
            if value(paged, values) > _CHOSEN:
                pages.add(_Window(segment.content, after, until))
    return runs, pages
