"""Bounds by dynamic programs over resident sets, for all spill sets: more and more contents are tracked.

Each program (`poet.solvers.bounds.ram_program`) has a search over spill sets of its own
(`poet.solvers.bounds.spill_sets`). What one knows holds in the next one, where contents that are new have
copies for nothing. The next program tracks

- all contents of the next smaller size, while that makes few transitions;
- else what the cheapest step that is known has no room for: a few contents of a size tell it from plans
  where all of them would be too many (counterexamples: Clarke, Grumberg, Jha, Lu and Veith, CAV 2000).

What no plan below the best one pages, and no rerun makes, is not tracked: where it is, is known.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Callable, Collection, Generator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from poet.clock import Clock
from poet.solvers.bounds import stages
from poet.solvers.bounds.compiled import loaded, starts_within
from poet.solvers.bounds.ram_program import CheapestStep, RamProgram, Stopped, TooLarge
from poet.solvers.bounds.spill_sets import COLUMNS, SpillSets
from poet.solvers.bounds.tracked import Tracked, certain_joules, too_expensive, with_homes
from poet.solvers.instance.instance import Instance

MOST_ARCS = 12_000_000
"""Transitions between sets that fit into RAM, over all stages: they take some 4 bytes each, the sets more,
and memory is to stay below 500 MB."""

PASS_SHARE = 0.02
"""Of the time left, that one look at all transitions in all columns may take: a search has some twenty
rounds, and a program of one round tells little."""

ARC_SECONDS = 1e-9
"""That a transition counts in each column where work is counted, about what it takes."""

PATIENCE_SECONDS = 10.0
"""Of work after which a search that has not raised the best bound gives way to a program that tracks more; it
begins below the one before, and takes seconds to reach that. Without it, one search may take all the time."""


@dataclass(frozen=True, slots=True)
class ResidentSetsBound:
    """What the searches have found so far.

    Attributes:
        overhead_joules: no schedule takes less, above running every op once; at most what was asked for.
        step: the cheapest that the search knows, where that is another than before; ``None``: it is not, or
            not below what was asked for.
    """

    overhead_joules: float
    step: CheapestStep | None = None


def resident_sets_bounds(
    instance: Instance,
    *,
    below_joules: float,
    clock: Clock,
    finished: Callable[[], bool] = lambda: False,
    seconds_left: Callable[[], float] = lambda: math.inf,
) -> Generator[ResidentSetsBound]:
    """Bounds of programs that track more and more, until there are too many sets; one after each round.

    Args:
        instance: what to bound.
        below_joules: overhead of the best plan; nothing at or above it is looked at.
        clock: of the search, which hears of the work.
        finished: asked between the parts of a round; whether to stop.
        seconds_left: of ``clock``.
    """
    if instance.limits.ram_budget_bytes is None or not instance.serial or below_joules <= 0.0:
        return
    if any(content.home is not None and content.page_out is None for content in instance.contents):
        return  # its placement is no choice
    if not starts_within(seconds_left(), stages):
        return
    loaded(stages)
    certain = certain_joules(instance)
    if certain >= below_joules:
        yield ResidentSetsBound(below_joules)
        return
    programs = _Programs(instance, below_joules, below_joules - certain, finished, seconds_left)
    best_joules, search = 0.0, None
    try:
        program = programs.next(None)
        while program is not None and best_joules < below_joules:
            search, more, following = SpillSets(program, search), True, None
            step, least_joules, stalled_seconds = None, math.inf, 0.0
            while more and best_joules < below_joules and following is None:
                began, worked, told = clock.now(), program.worked, None
                more = search.round()
                clock.spend(engine_seconds=ARC_SECONDS * (program.worked - worked))
                stalled_seconds += clock.now() - began
                found = min(search.bound_joules + certain, below_joules)
                if found > best_joules:
                    best_joules, stalled_seconds = found, 0.0
                if search.least_joules < least_joules:
                    least_joules, told = search.least_joules, search.cheapest()
                    step = told or step
                yield ResidentSetsBound(best_joules, told)
                if stalled_seconds > PATIENCE_SECONDS:
                    following, stalled_seconds = programs.next(step), -math.inf
            program = following or programs.next(step)
    except (Stopped, OSError):
        return  # an error: what was compiled cannot be kept, as the disk is full


class _Programs:
    """See the module's docstring; costs are capped at ``most_joules``, the rest is as in the search."""

    def __init__(
        self,
        instance: Instance,
        below_joules: float,
        most_joules: float,
        finished: Callable[[], bool],
        seconds_left: Callable[[], float],
    ) -> None:
        self.instance, self.most_joules = instance, most_joules
        self.finished, self.seconds_left = finished, seconds_left
        self._known = too_expensive(instance, below_joules)
        self._tracked = frozenset[int]()
        self._program: RamProgram | None = None

    def next(self, step: CheapestStep | None) -> RamProgram | None:
        """The one after that of a step; ``None``: there are too many sets."""
        program = self._tracking(self._next_size()) or self._with_most(self._without_room(step))
        if program is not None:
            self._program, self._tracked = program, frozenset(program.of.number)
        return program

    def _next_size(self) -> list[int]:
        """What is not tracked yet of the largest size, and of sizes that are about the same."""
        left = [
            content
            for content in self.instance.contents
            if content.bytes and content.number not in self._tracked | self._known
        ]
        sizes = sorted({content.bytes for content in left}, reverse=True)
        least = next((a for a, b in itertools.pairwise([*sizes, 0]) if 1.5 * b <= a), 0)
        return [content.number for content in left if content.bytes >= least]

    def _without_room(self, step: CheapestStep | None) -> list[list[int]]:
        """What the step of the last program has no room for, in groups."""
        if step is None or self._program is None:
            return []
        found = [
            one._replace(contents=tuple(c for c in one.contents if c not in self._known))
            for one in over_capacity(self._program, step)
        ]
        return to_track(found, self._program.of.size_of)

    def _with_most(self, groups: list[list[int]]) -> RamProgram | None:
        """The program that tracks the most of ``groups`` from the first on, by bisection; ``None``: none."""
        able, unable, best = 0, len(groups) + 1, None
        while able + 1 < unable:
            middle = (able + unable) // 2
            found = self._tracking([c for group in groups[:middle] for c in group])
            able, unable = (able, middle) if found is None else (middle, unable)
            best = found or best
        return best

    def _tracking(self, more: Collection[int]) -> RamProgram | None:
        """Of ``more`` than the last one; ``None``: of nothing more, or it is too large."""
        if not more:
            return None
        contents = with_homes(self.instance, {*self._tracked, *more})
        timely = PASS_SHARE * self.seconds_left() / (COLUMNS * ARC_SECONDS)
        try:
            return RamProgram(
                Tracked(self.instance, contents),
                most_joules=self.most_joules,
                most_arcs=int(min(MOST_ARCS, timely)),
                finished=self.finished,
            )
        except TooLarge:
            return None


class OverCapacity(NamedTuple):
    """A run or a page-in of a step for which RAM lacks ``lacking_bytes``.

    ``contents``: that are there beside it and are not counted, the largest first.
    """

    lacking_bytes: int
    contents: tuple[int, ...]


def over_capacity(program: RamProgram, step: CheapestStep) -> list[OverCapacity]:
    """All such moves of a step, from its start on.

    A program counts a content that it does not track beside the runs that read or make it. From the run that
    makes it to the last one that reads it, before it is made again, it is there as well.
    """
    of, found = program.of, list[OverCapacity]()
    instance, sizes = of.instance, of.size_of
    after = {content.number for content in instance.contents if content.ends_in_ram}
    for move in reversed(step.moves):
        task = None if move.task is None else instance.tasks[move.task]
        if task is None:
            reads, makes = set[int](), {move.content}
        elif move.task == move.stage:
            reads, makes = set(task.reads), {*task.outputs, *task.updated}
        else:
            reads, makes = set(task.rerun_reads), set(task.outputs)
        beside = after - reads - makes
        resident = program.residents.at(move.stage)
        uncounted = {c for c in beside if c not in of.number and of.stands_for(c) not in resident}
        unneeded = move.held - beside - reads - makes
        lacking_bytes = sum(sizes[c] for c in uncounted) - move.room_bytes - sum(sizes[c] for c in unneeded)
        if lacking_bytes > 0:
            largest_first = sorted(uncounted, key=lambda c: (-sizes[c], c))
            found.append(OverCapacity(lacking_bytes, tuple(c for c in largest_first if sizes[c])))
        after = (after - makes) | reads
    return found[::-1]


def to_track(found: Sequence[OverCapacity], sizes: Sequence[int]) -> list[list[int]]:
    """Contents in groups: where the first is tracked, some move of a step has no room, with each more, more.

    What is large comes first: it leaves few sets, and what has no room for it has none for much else.
    """
    covers = list[list[int]]()
    for one in found:
        reached_bytes = [*itertools.accumulate(sizes[c] for c in one.contents)]
        many = bisect.bisect_left(reached_bytes, one.lacking_bytes) + 1
        if many <= len(reached_bytes):
            covers.append(list(one.contents[:many]))
    groups, chosen = list[list[int]](), set[int]()
    for cover in sorted(covers, key=lambda cover: -sizes[cover[-1]]):
        if not chosen.issuperset(cover):
            groups.append([c for c in cover if c not in chosen])
            chosen.update(cover)
    return groups
