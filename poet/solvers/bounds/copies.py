"""Which contents get a copy in storage: a search over sets S of copies, each with an exact program over RAM.

`poet.solvers.bounds.ram_program` gives D(F), the least joules of a step beside the page-outs of F. A schedule
that pages in the contents of S takes at least out(S) + D(S), out(S) being their page-outs, and D(S) >= D(F)
for each F that S lies in. So with every F whose D is known, each S has a lower bound; the least of them over
all S bounds every schedule, and is exact once it belongs to an S whose own D is known (a cutting plane method
like that of Benders 1962; the master problem is a list of all S). Where page-outs are dear, as on NOR flash,
a plan below the best one has few copies, and all S that small can be listed.

- Each round takes the S of the least bound and computes D for it and for a row of larger and larger sets F
  that hold it, those contents first whose copies have mattered least. The largest F whose D still is high
  enough to exclude S excludes many others with it.
- Page-outs that would make the list too long are taken to be free: those of what is needed shortest.
- Of residents (see there) only the joules of their page-outs are listed, in steps: k steps are charged for
  what frees as much as less than k + 1 steps can.
- Where the list cannot tell all copies apart, `poet.solvers.bounds.copies_master` goes on from what it knows.
- Searches follow more and more contents (`poet.solvers.bounds.copies_levels`); what one knows of D holds in
  the next one, where the contents that are new are free.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from poet.clock import Clock
from poet.solvers.bounds.copies_levels import Levels
from poet.solvers.bounds.copies_master import MasterSearch
from poet.solvers.bounds.followed import Followed, bits
from poet.solvers.bounds.pace import Pace
from poet.solvers.bounds.ram_paths import Paid, cheapest
from poet.solvers.bounds.ram_program import ROUNDING, RamProgram, Stopped
from poet.solvers.bounds.ram_stages import are_compiled
from poet.solvers.engines.small_programs import SmallPrograms
from poet.solvers.instance.candidates import last_use_stages, worth_rerunning
from poet.solvers.instance.instance import Instance
from poet.tuning.bounds import CopiesTuning


@dataclass(frozen=True, slots=True)
class CopiesBound:
    """What the searches have found so far.

    Attributes:
        overhead_joules: no schedule takes less, above running every op once; at most what was asked for.
        followed_bytes: of the smallest content that is followed.
        ended: the search that follows these is over, and its bound is the least of what it can tell.
        reruns: of a search that is over: per stage, those of its cheapest step; empty where that is not below
            what was asked for.
        proven: by sums of our own; else an engine's word on a master program.
    """

    overhead_joules: float
    followed_bytes: int
    ended: bool
    reruns: dict[int, tuple[int, ...]]
    proven: bool = True


def _never() -> bool:
    return False


def copies_bounds(
    instance: Instance,
    *,
    below_joules: float,
    clock: Clock,
    finished: Callable[[], bool] = _never,
    seconds_left: Callable[[], float] = lambda: math.inf,
) -> Iterator[CopiesBound]:
    """Bounds that follow smaller and smaller contents, until there are too many sets; one after each round.

    Args:
        instance: what to bound.
        below_joules: overhead of the best plan; nothing at or above it is looked at.
        clock: of the search, which hears of the work.
        finished: asked between the parts of a round; whether to stop.
        seconds_left: of ``clock``, that the engine of a master program may still take.
    """
    budget, tuning = instance.limits.ram_budget_bytes, instance.tuning.copies
    if budget is None or not instance.serial or below_joules <= 0.0 or tuning.most_arcs == 0:
        return
    if any(content.home is not None and content.page_out is None for content in instance.contents):
        return  # its home is no choice
    if seconds_left() < tuning.compile_seconds and not are_compiled():
        return
    if Followed(instance, 0, budget).fixed_joules >= below_joules:
        yield CopiesBound(below_joules, 0, True, {})
        return
    joules, proven = 0.0, True
    with contextlib.suppress(Stopped), SmallPrograms(clock, instance.tuning.engines) as programs:
        levels = Levels(instance, budget, below_joules, finished, seconds_left)

        def opened() -> Iterator[_Level]:
            search: _Search | MasterSearch | None = None
            for program in levels.programs():
                below = program.most_joules
                level = _Level(
                    program,
                    _searches(instance, program, below, search, levels.anew, programs, seconds_left),
                )
                yield level
                search = level.search

        turns = _Turns(opened(), tuning, clock)
        while joules < below_joules and (level := turns.next()) is not None:
            program, search = level.program, level.search
            told = program.worked
            more = search.round()
            clock.spend(engine_seconds=tuning.arc_seconds * (program.worked - told))
            found = min(search.bound_joules + program.of.fixed_joules, below_joules)
            if found > joules:
                joules, proven = found, search.proven
            reruns = {} if more else search.reruns()
            yield CopiesBound(joules, program.of.followed_bytes, not more, reruns, proven)
            turns.tell(found, more=more, leading_joules=joules, below_joules=below_joules)


class _Level:
    """The searches of one program, one after the other.

    Attributes:
        program: see above.
        search: the one that goes on, or the last one.
        pace: of its bound.
        is_over: all are.
        has_stalled: its bound hardly rose when it was looked at last.
    """

    def __init__(self, program: RamProgram, searches: Iterator[_Search | MasterSearch]) -> None:
        self.program, self._searches = program, searches
        self.search, self.pace = next(searches), Pace()
        self.is_over = self.has_stalled = False

    def go_on(self) -> None:
        """With the next search, as this one is over."""
        following = next(self._searches, None)
        self.is_over = following is None
        self.search, self.pace = following or self.search, Pace()


class _Turns:
    """Which level's search goes on: one whose bound hardly rises gives way to the next level.

    A level that follows more tells more, but its rounds take longer, and its bound begins anew: where both
    stand still and no other is left, the one before is gone back to, for longer.

    Args:
        unopened: levels, each of which tells more than the one before.
        tuning: when to give way.
        clock: of the search.
    """

    def __init__(self, unopened: Iterator[_Level], tuning: CopiesTuning, clock: Clock) -> None:
        self._unopened, self.tuning, self.clock = unopened, tuning, clock
        self._open = list[_Level]()  # the last two at most: each takes memory
        self._now: _Level | None = None
        self._begun, self._patience_seconds = 0.0, tuning.patience_seconds

    def next(self) -> _Level | None:
        """The one whose turn it is; ``None``: all are over."""
        if self._now is not None and not self._now.has_stalled and not self._now.is_over:
            return self._now
        if self._now is not None and self._now.is_over:  # it tells more than any before it
            del self._open[: self._open.index(self._now) + 1]
        following = next((level for level in self._open if not level.has_stalled), None)
        if following is None:
            following = next(self._unopened, None)
            if following is not None:
                self._open = [*self._open[-1:], following]
        if following is None and self._open:
            self._patience_seconds *= 2.0
            for level in self._open:
                level.has_stalled = False
            following = self._open[0]
        self._now, self._begun = following, self.clock.now()
        return following

    def tell(self, joules: float, *, more: bool, leading_joules: float, below_joules: float) -> None:
        """What the last round brought.

        Args:
            joules: bound of the level.
            more: the search has another round.
            leading_joules: the best bound so far.
            below_joules: to which it is to rise.
        """
        level, patience = self._now, self._patience_seconds
        if level is None:
            return
        spent = self.clock.now() - self._begun
        level.pace.add(spent, joules)
        if not more:
            level.go_on()
            self._begun = self.clock.now()
        elif spent > patience:
            worth_joules = self.tuning.rise_share * (below_joules - leading_joules)
            level.has_stalled = level.pace.after(patience) < leading_joules + worth_joules
            if level.has_stalled:
                level.pace.pause()


def _searches(
    instance: Instance,
    program: RamProgram,
    below_joules: float,
    before: _Search | MasterSearch | None,
    anew: bool,
    programs: SmallPrograms,
    seconds_left: Callable[[], float],
) -> Iterator[_Search | MasterSearch]:
    """Of one level: by a list, and where that does not tell all copies apart by a master program.

    After a master program, a list is looked at where it is the last word, or where the program follows what
    cheap steps built upon (``anew``): what was known before tells little of it then.
    """
    listing = _Search(instance, program, below_joules, before)
    if anew or listing.lists_all or not isinstance(before, MasterSearch):
        yield listing
    if not listing.lists_all and listing.bound_joules < below_joules:
        yield MasterSearch(
            program,
            below_joules,
            instance.tuning.copies,
            listing.known,
            step_joules=listing.step_joules,
            programs=programs,
            seconds_left=seconds_left,
        )


class _Search:
    """The sets of copies at one level, and their bounds.

    Args:
        instance: what is bounded.
        program: of the level.
        below_joules: what no set is looked for at or above.
        before: of the level before, whose contents are among these.

    Attributes:
        bound_joules: no schedule takes less, beside page-outs that every one makes.
        lists_all: every copy that costs something is in the list, by itself.
        step_joules: of a step on residents' page-outs; 0: there is none.
    """

    proven = True

    def __init__(
        self,
        instance: Instance,
        program: RamProgram,
        below_joules: float,
        before: _Search | MasterSearch | None,
    ) -> None:
        self.program, self.of, self.below = program, program.of, below_joules
        self.tuning = instance.tuning.copies
        self.all = (1 << len(self.of.followed)) - 1
        self.known = list[tuple[frozenset[int], float]]()  # contents without a copy, and then D at least
        self.importance = dict[int, float]()  # of a copy: by how much D rises without it
        if isinstance(before, _Search):
            self.importance.update(before.importance)
        self._small = 0  # bits, before those of ``dear``: so many steps of joules, on residents' page-outs
        self.bound_joules = program.least([self.all])[0]
        self.dear = self._dear(instance)
        largest = max(map(program.sets_at, range(self.of.end + 1)))
        self._columns = max(1, min(self.tuning.columns, self.tuning.most_values // largest))
        self._row_joules: list[float] = []
        self.lists_all = True
        self._list_sets()
        self._own = dict[int, float]()  # sets whose own D is known, with what they take
        for without, joules in before.known if before is not None else ():
            if min(without, default=0) >= 0:  # residents of the level before may be followed in this one
                self._learn(without, joules)
        self._untried = [c for c in self.dear if self.of.followed[c].number not in self.importance]

    def round(self) -> bool:
        """Learn of some sets; false once the least bound is some set's own, or nothing is left."""
        if self._untried:
            self._try_singles()
            return True
        if not len(self.masks):
            self.bound_joules = self.below
            return False
        place = int(np.argmin(self.bounds))
        mask, out = int(self.masks[place]), float(self.outs[place])
        self.bound_joules = max(self.bound_joules, float(self.bounds[place]))
        if mask in self._own:
            return False
        rest = sorted(
            (bit for bit in range(self._small + len(self.dear)) if not mask >> bit & 1),
            key=lambda bit: self.importance.get(self._number(bit), 0.0),
        )
        target = self.below - out
        kept = self._row(mask, rest, target)
        self._own[mask] = out + self._row_joules[0]
        if self._row_joules[0] >= target and kept < len(rest) - 1:  # what stopped the row goes last
            larger = mask | sum(1 << bit for bit in rest[:kept])
            left = rest[kept:]
            step = max(1, -(-len(rest) // self._columns))
            self._row(larger, left[step:] + left[:step], target)
        self._prune()
        return True

    def reruns(self) -> dict[int, tuple[int, ...]]:
        """Per stage, those of the cheapest step that is known, if there is one."""
        if not self._own:
            return {}
        mask = min(self._own, key=lambda mask: self._own[mask])
        if self._own[mask] >= self.below:
            return {}
        paid = Paid(self._free(mask), self._steps(mask), frozenset(self.program.listed))
        path = cheapest(self.program, paid)
        return {} if path is None else path.reruns

    def _row(self, mask: int, rest: list[int], target: float) -> int:
        """Learn D of ``mask`` and of larger and larger sets, with more and more of ``rest``.

        Returns how many of ``rest`` the largest set has whose D reaches ``target``.
        """
        columns = min(self._columns, len(rest)) or 1
        lengths = sorted({len(rest) * column // columns for column in range(columns)})
        sets = [mask | sum(1 << bit for bit in rest[:length]) for length in lengths]
        joules = self.program.least([self._free(one) for one in sets], [self._steps(one) for one in sets])
        self._row_joules, kept = joules, 0
        for place, (length, value) in enumerate(zip(lengths, joules, strict=True)):
            self._learn(self._without(sets[place]), value)
            if value >= target:
                kept = length
            following = joules[place + 1] if place + 1 < len(joules) else None
            if following is not None and following < value:
                for bit in rest[length : lengths[place + 1]]:
                    self._matters(bit, (value - following) / (lengths[place + 1] - length))
        return kept

    def _try_singles(self) -> None:
        """D without each copy by itself: what it matters, to begin with."""
        some, self._untried = self._untried[: self._columns], self._untried[self._columns :]
        joules = self.program.least([self.all & ~(1 << content) for content in some])
        for content, value in zip(some, joules, strict=True):
            number = self.of.followed[content].number
            self.importance[number] = value - self.bound_joules
            self._learn(frozenset({number}), value)
        self._prune()

    def _matters(self, bit: int, joules: float) -> None:
        number, weight = self._number(bit), self.tuning.lasting_share
        self.importance[number] = weight * self.importance.get(number, 0.0) + (1.0 - weight) * joules

    def _dear(self, instance: Instance) -> list[int]:
        """Contents whose copies are to be paid for, those needed longest first."""
        last_use, content = last_use_stages(instance, worth_rerunning(instance)), self.of.followed
        page_in, page_out = self.of.page_in, self.of.page_out
        dear = [c for c in bits(self.all) if page_in[c] < np.inf and page_out[c] > 0.0]
        return sorted(
            dear, key=lambda c: content[c].birth - min(last_use[content[c].number], content[c].death)
        )

    def _list_sets(self) -> None:
        """All sets of copies that are below in page-outs; copies that would make it too many are free."""
        paged = [one.page_out for one in self.of.residents.values() if one.page_out is not None]
        self.lists_all = not paged and len(self.dear) <= 62
        self.step_joules = 0.0
        able_joules = self.below - self.bound_joules
        most, step = self.tuning.most_residents, 0.0
        if paged and most and able_joules > 0.0:
            step = max(min(paged), able_joules / most)
            self._small = min(most, int(min(sum(paged), able_joules) / step))
            self.program.count_in_steps(step, self._small)
            self.step_joules = step
        masks = (np.int64(1) << np.arange(self._small + 1, dtype=np.int64)) - 1
        outs = np.arange(self._small + 1) * (step * (1.0 - 2.0 * ROUNDING))
        most = 62 - self._small
        for bit, content in enumerate(self.dear[:most]):
            more = outs + self.of.page_out[content]
            able = more < able_joules
            if len(masks) + int(able.sum()) > self.tuning.most_sets:
                self.dear, self.lists_all = self.dear[:bit], False
                break
            masks, outs = (
                np.concatenate([masks, masks[able] | (1 << (bit + self._small))]),
                np.concatenate([outs, more[able]]),
            )
        self.dear = self.dear[:most]
        self.masks, self.outs, self.bounds = masks, outs, outs + self.bound_joules

    def _learn(self, without: frozenset[int], joules: float) -> None:
        """D without copies of ``without`` is at least ``joules``."""
        place = {self._number(bit): bit for bit in range(self._small + len(self.dear))}
        if joules <= self.bound_joules and not without:
            return
        self.known.append((without, joules))
        if not without <= place.keys():
            return
        mask = sum(1 << place[number] for number in without)
        reached = np.flatnonzero((self.masks & mask) == 0)
        self.bounds[reached] = np.maximum(self.bounds[reached], self.outs[reached] + joules)

    def _prune(self) -> None:
        left = self.bounds < self.below
        if not left.all():
            self.masks, self.outs, self.bounds = self.masks[left], self.outs[left], self.bounds[left]
        if len(self.bounds):
            self.bound_joules = max(self.bound_joules, float(self.bounds.min()))

    def _free(self, mask: int) -> int:
        """A listed set, and all that is taken to be free, among those followed."""
        listed = sum(1 << content for content in self.dear)
        return (self.all & ~listed) | sum(1 << self.dear[bit] for bit in bits(mask >> self._small))

    def _steps(self, mask: int) -> int | None:
        """Of joules on residents' page-outs, in a listed set; ``None``: any."""
        steps = (mask & ((1 << self._small) - 1)).bit_count()
        return None if steps == self._small else steps

    def _without(self, mask: int) -> frozenset[int]:
        return frozenset(
            self._number(bit) for bit in range(self._small + len(self.dear)) if not mask >> bit & 1
        )

    def _number(self, bit: int) -> int:
        """Of the content that a bit stands for; below 0: one more resident."""
        return self.of.followed[self.dear[bit - self._small]].number if bit >= self._small else -1 - bit
