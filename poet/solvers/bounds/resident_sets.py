"""Bounds by dynamic programs over resident sets, for all spill sets: more and more contents are tracked.

A program (`poet.solvers.bounds.ram_program`) gives D(F), the least joules of a step beside the page-outs of
F. A schedule that pages in the contents of S takes at least out(S) + D(S), out(S) being their page-outs, and
D(S) >= D(F) for each F that S lies in. So with every F whose D is known, each S has a lower bound; the least
of them over all S bounds every schedule, and is exact once it belongs to an S whose own D is known (a cutting
plane method like that of Benders 1962). Where page-outs are expensive, as on NOR flash, a plan below the best
one has few spills, and all sets that small can be listed.

The next program tracks all contents of the next smaller size, or as many of them as make few transitions,
those that live longest first. What one program knows holds in the next one, where contents that are new have
copies for nothing. What no plan below the best one pages, and no rerun makes, is not tracked: where it is, is
known. Nor are tensors whose home is chosen.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Generator, Iterable

import numpy as np

from poet.solvers.bounds import stages
from poet.solvers.bounds.compiled import loaded, starts_within
from poet.solvers.bounds.ram_program import RamProgram, Stopped, TooLarge
from poet.solvers.bounds.stages import Joules
from poet.solvers.bounds.tracked import Tracked, bits, certain_joules, too_expensive
from poet.solvers.instance.candidates import last_use_stages, worth_rerunning
from poet.solvers.instance.instance import Instance
from poet.util.clock import Clock

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

MOST_SETS = 2_000_000
"""Of spills that are listed: 24 bytes each, and each round looks at all."""

COLUMNS = 16
"""Sets of spills whose programs are computed at once: with fewer, looking up a transition costs more than
what it is for."""

RESIDENT_STEPS = 16
"""Of joules of residents' page-outs that are listed, beyond which all are free; at 0, residents are."""

_ROUNDING = 2e-9  # of joules that are counted in steps, by which they may be less
_MOST_VALUES = 4_000_000  # sets that fit in one stage times columns: what the fastest caches nearly hold


def resident_sets_bounds(
    instance: Instance,
    *,
    below_joules: float,
    clock: Clock,
    finished: Callable[[], bool] = lambda: False,
    seconds_left: Callable[[], float] = lambda: math.inf,
) -> Generator[float]:
    """Bounds on the overhead by programs that track more and more, until there are too many sets; one after
    each round, at most ``below_joules``.

    Args:
        instance: what to bound.
        below_joules: overhead of the best plan; nothing at or above it is looked at.
        clock: of the search, which hears of the work.
        finished: asked between the parts of a round; whether to stop.
        seconds_left: of ``clock``.
    """
    if instance.limits.ram_budget_bytes is None or not instance.serial or below_joules <= 0.0:
        return
    if not starts_within(seconds_left(), stages):
        return
    loaded(stages)
    certain = certain_joules(instance)
    if certain >= below_joules:
        yield below_joules
        return
    programs = _Programs(instance, below_joules, below_joules - certain, finished, seconds_left)
    best_joules, search, program = 0.0, None, None
    try:
        while best_joules < below_joules and (program := programs.next()) is not None:
            search, more, stalled_seconds = SpillSets(program, search), True, 0.0
            while more and best_joules < below_joules and stalled_seconds <= PATIENCE_SECONDS:
                began, worked = clock.now(), program.worked
                more = search.round()
                clock.spend(engine_seconds=ARC_SECONDS * (program.worked - worked))
                stalled_seconds += clock.now() - began
                found = min(search.bound_joules + certain, below_joules)
                if found > best_joules:
                    best_joules, stalled_seconds = found, 0.0
                yield best_joules
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
        self.tracked = frozenset[int]()
        last_use, known = (
            last_use_stages(instance, worth_rerunning(instance)),
            too_expensive(instance, below_joules),
        )
        able = (c for c in instance.contents if c.bytes and c.home is None and c.number not in known)
        self._order = sorted(able, key=lambda c: (-c.bytes, c.birth - min(last_use[c.number], c.death)))

    def next(self) -> RamProgram | None:
        """The one after the last; ``None``: there are too many sets."""
        left = [content for content in self._order if content.number not in self.tracked]
        sizes = [content.bytes for content in left]
        able, unable, best = 0, len(left) + 1, None
        # all of the next size, with sizes that are about the same; else the most that are few enough
        middle = next((at for at, (a, b) in enumerate(itertools.pairwise([*sizes, 0]), 1) if 1.5 * b <= a), 0)
        while able + 1 < unable and middle:
            found = self._tracking([content.number for content in left[:middle]])
            if found is not None:
                able, best = middle, found
                break
            unable, middle = middle, middle // 2
        while best is not None and able + 1 < unable <= len(left):
            middle = (able + unable) // 2
            found = self._tracking([content.number for content in left[:middle]])
            able, unable = (able, middle) if found is None else (middle, unable)
            best = found or best
        if best is not None:
            self.tracked = frozenset(best.of.number)
        return best

    def _tracking(self, more: Collection[int]) -> RamProgram | None:
        """Of ``more`` than the last one; ``None``: it is too large."""
        timely = PASS_SHARE * self.seconds_left() / (COLUMNS * ARC_SECONDS)
        try:
            return RamProgram(
                Tracked(self.instance, {*self.tracked, *more}),
                most_joules=self.most_joules,
                most_arcs=int(min(MOST_ARCS, timely)),
                finished=self.finished,
            )
        except TooLarge:
            return None


class SpillSets:
    """The sets of spills of one program, and their bounds.

    Each round takes the S of the least bound and computes D for it and for a row of larger and larger sets F
    that hold it, those contents first whose spills have mattered least. The largest F whose D still is high
    enough to exclude S excludes many others with it. Page-outs that would make the list too long are taken to
    be free: those of what is needed shortest. Of residents only the joules of their page-outs are listed, in
    steps: k steps are charged for what frees as much as less than k + 1 steps can.

    Args:
        program: of what is tracked.
        before: of the program before, whose contents are among these.

    Attributes:
        below_joules: no set is looked for at or above it.
        bound_joules: no schedule takes less, beside page-outs that every one makes.
    """

    def __init__(self, program: RamProgram, before: SpillSets | None) -> None:
        self.program, self.of, self.below_joules = program, program.of, program.most_joules
        self.all = (1 << len(self.of.contents)) - 1
        # contents without a copy, and then D at least; below 0: steps of residents' joules that are not taken
        self.known = list[tuple[frozenset[int], float]]()
        self._own = set[int]()  # listed sets whose own D is known
        # of a spill: by how much D rises without it
        self.importance: dict[int, float] = {} if before is None else dict(before.importance)
        self.bound_joules = program.least([self.all], self.below_joules)[0]
        self._columns = max(1, min(COLUMNS, _MOST_VALUES // max(len(one.masks) for one in program.stages)))
        self._steps, self._step_joules, self.spills = 0, 0.0, list[int]()  # bits of a set: steps, then spills
        self._list_sets()
        known = () if before is None else before.known
        # residents of the program before may be tracked in this one
        self._learn((without, joules) for without, joules in known if min(without, default=0) >= 0)
        self._untried = [c for c in self.spills if self._number(c) not in self.importance]

    def round(self) -> bool:
        """Learn of some sets; false once the least bound is some set's own, or nothing is left."""
        if self._untried:
            self._try_singles()
            return True
        if not len(self.masks):
            self.bound_joules = self.below_joules
            return False
        place = int(np.argmin(self.bounds))
        mask = int(self.masks[place])
        self.bound_joules = max(self.bound_joules, float(self.bounds[place]))
        if mask in self._own:
            return False
        self._own.add(mask)
        self._row(mask)
        return True

    def _row(self, mask: int) -> None:
        """D of ``mask``, with that of larger and larger sets."""
        rest = [bit for bit in range(len(self.spills)) if not mask >> self._steps + bit & 1]
        rest.sort(key=lambda bit: self.importance.get(self._number(self.spills[bit]), 0.0))
        columns = min(self._columns, len(rest)) or 1
        lengths = sorted({len(rest) * column // columns for column in range(columns)})
        sets = [mask | sum(1 << self._steps + bit for bit in rest[:length]) for length in lengths]
        taken = (mask & ((1 << self._steps) - 1)).bit_count()
        residents = self.below_joules if taken == self._steps else (taken + 1) * self._step_joules
        joules = self.program.least([self._free(one) for one in sets], residents)
        self._learn(zip(map(self._without, sets), joules, strict=True))
        for place, value in enumerate(joules[:-1]):
            added = rest[lengths[place] : lengths[place + 1]]
            for bit in added if joules[place + 1] < value else ():
                number, fell = self._number(self.spills[bit]), (value - joules[place + 1]) / len(added)
                self.importance[number] = 0.7 * self.importance.get(number, 0.0) + 0.3 * fell
        self._prune()

    def _try_singles(self) -> None:
        """D without each spill by itself: what it matters, to begin with."""
        some, self._untried = self._untried[: self._columns], self._untried[self._columns :]
        joules = self.program.least([self.all & ~(1 << content) for content in some], self.below_joules)
        found = [*zip(map(self._number, some), joules, strict=True)]
        self.importance |= {number: value - self.bound_joules for number, value in found}
        self._learn((frozenset({number}), value) for number, value in found)
        self._prune()

    def _list_sets(self) -> None:
        """All sets of spills that are below in page-outs; spills that would make it too many are free."""
        able_joules = self.below_joules - self.bound_joules
        paged = [one.away_joules for one in self.of.residents.values() if math.isfinite(one.away_joules)]
        if paged and able_joules > 0.0:
            self._step_joules = max(min(paged), able_joules / RESIDENT_STEPS)
            self._steps = int(
                min(RESIDENT_STEPS, sum(paged) / self._step_joules, able_joules / self._step_joules)
            )
        masks = (np.int64(1) << np.arange(self._steps + 1, dtype=np.int64)) - 1
        outs = np.arange(self._steps + 1, dtype=np.float64) * (self._step_joules * (1.0 - _ROUNDING))
        for content in self._spills()[: 62 - self._steps]:
            more = outs + self.of.page_out[content]
            able = more < able_joules
            if len(masks) + int(able.sum()) > MOST_SETS:
                break
            masks = np.concatenate([masks, masks[able] | (1 << len(self.spills) + self._steps)])
            outs = np.concatenate([outs, more[able]])
            self.spills.append(content)
        self.masks, self.outs = masks, outs
        self.bounds: Joules = outs + self.bound_joules

    def _spills(self) -> list[int]:
        """Contents whose copies are to be paid for, those needed longest first."""
        last_use, contents = (
            last_use_stages(self.of.instance, worth_rerunning(self.of.instance)),
            self.of.contents,
        )
        paid = [c for c in bits(self.all) if self.of.page_in[c] < np.inf and self.of.page_out[c] > 0.0]
        return sorted(
            paid, key=lambda c: contents[c].birth - min(last_use[contents[c].number], contents[c].death)
        )

    def _learn(self, news: Iterable[tuple[frozenset[int], float]]) -> None:
        """D without copies of the contents of each is at least its joules."""
        place = {self._number(content): bit for bit, content in enumerate(self.spills, self._steps)}
        place |= {-1 - step: step for step in range(self._steps)}
        cuts = list[tuple[float, int]]()
        for without, joules in news:
            if joules > self.bound_joules or without:
                self.known.append((without, joules))
                if without <= place.keys():
                    cuts.append((joules, sum(1 << place[number] for number in without)))
        if not cuts:
            return
        cuts.sort(reverse=True)
        values = np.array([joules for joules, _ in cuts], dtype=np.float64)
        masks = np.array([mask for _, mask in cuts], dtype=np.int64)
        stages.raise_bounds(self.bounds, self.masks, self.outs, values, masks)

    def _prune(self) -> None:
        left = self.bounds < self.below_joules
        if not left.all():
            self.masks, self.outs, self.bounds = self.masks[left], self.outs[left], self.bounds[left]
        if len(self.bounds):
            self.bound_joules = max(self.bound_joules, float(self.bounds.min()))

    def _free(self, mask: int) -> int:
        """A listed set, and all that is taken to be free, among those tracked."""
        listed = sum(1 << content for content in self.spills)
        return (self.all & ~listed) | sum(1 << self.spills[bit] for bit in bits(mask >> self._steps))

    def _without(self, mask: int) -> frozenset[int]:
        spills = (self._number(c) for bit, c in enumerate(self.spills, self._steps) if not mask >> bit & 1)
        return frozenset((*spills, *(-1 - step for step in range(self._steps) if not mask >> step & 1)))

    def _number(self, content: int) -> int:
        """In the instance, of a tracked content."""
        return self.of.contents[content].number
