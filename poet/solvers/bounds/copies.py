"""Which contents get a copy in storage: a search over sets S of copies, each with an exact program over RAM.

`poet.solvers.bounds.ram_program` gives D(F), the least joules of a step beside the page-outs of F. A schedule
that pages in the contents of S takes at least out(S) + D(S), out(S) being their page-outs and what else is
certain of them (see there), and D(S) >= D(F) for each F that S lies in. So with every F whose D is known,
each S has a lower bound; the least of them over all S bounds every schedule, and is exact once it belongs to
an S whose own D is known (a cutting plane method like that of Benders 1962).

- The sets S whose page-outs are below the best plan are listed (`poet.solvers.bounds.copies_list`); copies
  that would make the list too long are taken to be free.
- Searches follow more and more contents (`poet.solvers.bounds.copies_levels`); what one knows of D holds in
  the next one, where the contents that are new are free.
- A level whose bound stands still gives way to the next one before it is over.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass

from poet.clock import Clock
from poet.solvers.bounds.compiled import all_ready, is_loaded
from poet.solvers.bounds.copies_levels import Levels
from poet.solvers.bounds.copies_list import ListSearch
from poet.solvers.bounds.followed import Followed
from poet.solvers.bounds.pace import Pace
from poet.solvers.bounds.ram_paths import CheapestStep
from poet.solvers.bounds.ram_program import RamProgram, Stopped
from poet.solvers.instance.instance import Instance
from poet.tuning.bounds import CopiesTuning


@dataclass(frozen=True, slots=True)
class CopiesBound:
    """What the searches have found so far.

    Attributes:
        overhead_joules: no schedule takes less, above running every op once; at most what was asked for.
        followed_bytes: of the smallest content that is followed.
        ended: the search that follows these is over, and its bound is the least of what it can tell.
        step: the cheapest that the search knows, where that is another than before or the search is over;
            ``None`` where it is not below what was asked for.
    """

    overhead_joules: float
    followed_bytes: int
    ended: bool
    step: CheapestStep | None = None


def _never() -> bool:
    return False


def copies_bounds(
    instance: Instance,
    *,
    below_joules: float,
    clock: Clock,
    finished: Callable[[], bool] = _never,
    seconds_left: Callable[[], float] = lambda: math.inf,
) -> Generator[CopiesBound]:
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
    if seconds_left() < _before_a_loop_runs_seconds(tuning):
        return
    if Followed(instance, 0, budget).fixed_joules >= below_joules:
        yield CopiesBound(below_joules, 0, True)
        return
    joules = 0.0
    with contextlib.suppress(Stopped):
        levels = Levels(instance, budget, below_joules, finished, seconds_left)

        def opened() -> Iterator[_Level]:
            search: ListSearch | None = None
            for program in levels.programs():
                search = ListSearch(instance, program, program.most_joules, search)
                yield _Level(program, search)
                levels.step = search.cheapest()

        turns = _Turns(opened(), tuning, clock)
        while joules < below_joules and (level := turns.next()) is not None:
            program, search = level.program, level.search
            told = program.worked
            more = search.round()
            clock.spend(engine_seconds=tuning.arc_seconds * (program.worked - told))
            found = min(search.bound_joules + program.of.fixed_joules, below_joules)
            if found > joules:
                joules = found
            step = level.step(is_over=not more)
            ended = not more or joules >= below_joules
            yield CopiesBound(joules, program.of.followed_bytes, ended, step)
            turns.tell(found, more=more, leading_joules=joules, below_joules=below_joules)


def _before_a_loop_runs_seconds(tuning: CopiesTuning) -> float:
    """About what it takes until the first loop runs as machine code."""
    if not all_ready():
        return tuning.compile_seconds
    return 0.0 if is_loaded() else tuning.loading_seconds


class _Level:
    """The search of one program.

    Attributes:
        program: see above.
        search: over its sets of copies.
        pace: of its bound.
        joules: that bound, as it was told last.
        least_joules: of the cheapest step that was told.
        is_over: all are.
        has_stalled: its bound hardly rose when it was looked at last.
    """

    def __init__(self, program: RamProgram, search: ListSearch) -> None:
        self.program, self.search, self.pace = program, search, Pace()
        self.joules, self.least_joules = 0.0, math.inf
        self.is_over = self.has_stalled = False

    def step(self, *, is_over: bool) -> CheapestStep | None:
        """The cheapest that is known, unless that was told and the search goes on."""
        least_joules = self.search.own.least_joules
        if not is_over and least_joules >= self.least_joules:
            return None
        self.least_joules = least_joules
        return self.search.cheapest()


class _Turns:
    """Which level's search goes on: one whose bound hardly rises gives way to the next level.

    A level that follows more tells more, but its rounds take longer, and its bound begins anew. Where all
    stand still and no other is left, those that are not far behind go on for longer, the highest first.

    Args:
        unopened: levels, each of which tells more than the one before.
        tuning: when to give way.
        clock: of the search.
    """

    def __init__(self, unopened: Iterator[_Level], tuning: CopiesTuning, clock: Clock) -> None:
        self._unopened, self.tuning, self.clock = unopened, tuning, clock
        self._open = list[_Level]()
        self._now: _Level | None = None
        self._begun, self._patience_seconds = 0.0, tuning.patience_seconds

    def next(self) -> _Level | None:
        """The one whose turn it is; ``None``: all are over."""
        if self._now is not None and not self._now.has_stalled and not self._now.is_over:
            return self._now
        if self._now is not None and self._now.is_over:  # it tells more than any before it
            del self._open[: self._open.index(self._now) + 1]
        if all(level.has_stalled for level in self._open):
            self._open_next()
        if all(level.has_stalled for level in self._open):
            self._patience_seconds *= 2.0
            least = self.tuning.hopeful_share * max((level.joules for level in self._open), default=0.0)
            for level in self._open:
                level.has_stalled = level.joules < least
        waiting = [level for level in self._open if not level.has_stalled]
        self._now = max(waiting, key=lambda level: level.joules, default=None)
        self._begun = self.clock.now()
        return self._now

    def _open_next(self) -> None:
        """One more level, if there is one; the lowest of the others leave where all take too much memory."""
        following = next(self._unopened, None)
        if following is None:
            return
        lowest_first = sorted(self._open, key=lambda level: level.joules)
        allowed = self.tuning.kept_factor * self.tuning.most_arcs - following.program.arcs
        while lowest_first and self._arcs() > allowed:
            self._open.remove(lowest_first.pop(0))
        self._open.append(following)

    def _arcs(self) -> int:
        return sum(level.program.arcs for level in self._open)

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
        level.joules = joules
        if not more:
            level.is_over = True
        elif spent > patience:
            worth_joules = self.tuning.rise_share * (below_joules - leading_joules)
            level.has_stalled = level.pace.after(patience) < leading_joules + worth_joules
            if level.has_stalled:
                level.pace.pause()
