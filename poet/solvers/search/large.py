"""The search on large problems: a bound at once, then a model of few reruns, in parts and as a whole.

1. The relaxation as a linear program bounds every plan within a second or a few.
2. Where blocks repeat themselves, the plan is improved with all of them decided alike
   (`poet.solvers.search.symmetry`): a small program, a good plan soon.
3. In whole numbers the relaxation gives a stronger bound, and says better what to rerun. Walks
   follow each of its answers (`poet.solvers.heuristics.lp_guided`), which gives good plans at once.
4. The linear program that looks at more moments (`poet.solvers.bounds.refinement`) gives a stronger
bound yet,
   where recomputation is deep.
5. The event model is laid out with the reruns that the relaxation asks for, and those of the best
   plan (and walk, where 2. found it). These make a *class* of plans: those that rerun nothing else.
6. A few rounds of neighbourhood search make the plan better quickly.
7. The model is solved as a whole, in a process of its own: its bound is one for the class.
8. More rounds, until they bring nothing; then a larger class, while there is time.

With two threads the whole programs run beside the rounds, else in turn. At every moment the best
plan and the bounds are with the caller, whoever stops the search and however.
"""

from __future__ import annotations

import math
from dataclasses import replace

from poet.problem import Limits, Problem
from poet.schedule import Schedule
from poet.solvers.bounds.refinement import priced_bound, tightest_bound
from poet.solvers.bounds.relaxation import Bound
from poet.solvers.engines.highs_process import HighsProcess
from poet.solvers.heuristics.lp_guided import walks_along
from poet.solvers.instance.context import Conduct
from poet.solvers.instance.incumbent import Incumbent
from poet.solvers.instance.instance import Instance
from poet.solvers.search.finders import CLASS, TIED, WALKS
from poet.solvers.search.neighbourhood import RELATIVE_GAP, Rounds, offering
from poet.solvers.search.slots_of_plans import merged, reruns_of
from poet.solvers.search.slots_of_relaxation import Offer, offered_by
from poet.solvers.search.symmetry import repeats, tied

_OFFERS = tuple(Offer(*sizes) for sizes in ((1, 6), (4, 6), (4, 12), (8, 40)))
_LONGEST_SECONDS = 600.0  # of one program where there is no time limit
_LISTEN_SECONDS = 0.05
_LATE_SECONDS = 12.0  # before the end, from which on no round may overrun its time
_QUICK_ROUNDS = 8  # without a better plan, before whole programs are tried
_ALIKE_SHARE, _QUICK_SHARE, _BOUND_SHARE, _CLASS_SHARE = 0.06, 0.15, 0.25, 0.5  # of the time left
_PATIENCE_SHARE = 0.1  # of it, without news after the first, after which a bound in whole numbers is given up
_ALIKE_LEAST_SECONDS = 1.0  # with less, twins are not decided alike


def search_widely(
    problem: Problem,
    limits: Limits,
    instances: tuple[Instance, Instance],
    schedule: Schedule | None,
    conduct: Conduct,
) -> bool:
    """Improve ``schedule`` and the bounds as long as `Conduct` allows; false if there is no plan at all.

    Args:
        problem: for the judge.
        limits: for the judge.
        instances: the one that bounds are for, and the one whose plans are made; they differ where
            transfers run beside compute and a deadline must hold even if none does.
        schedule: a valid one to begin with, if there is any.
        conduct: the caller's side.
    """
    best = Incumbent(problem, limits, clock=conduct.clock)
    best.consider(schedule)
    return _Wide(*instances, best, conduct).run()


class _Wide:
    def __init__(self, bounded: Instance, planned: Instance, best: Incumbent, conduct: Conduct) -> None:
        self.bounded, self.planned, self.best, self.conduct = bounded, planned, best, conduct
        self.heard: Bound | None = None
        # among the walks along answers
        self.walked = Incumbent(best.problem, best.limits, clock=conduct.clock)
        self.tied_first = False  # the best plan came from twins decided alike, before other answers
        self.building_seconds = 0.0  # of the last model

    def run(self) -> bool:
        conduct = self.conduct
        seconds = self._share(_BOUND_SHARE)
        guide = priced_bound(self.bounded, seconds=seconds, watcher=self._hear, clock=conduct.clock)
        if guide.overhead_joules == math.inf:
            return False
        self._hear(guide)
        if not conduct.finished():
            rounds = self._decide_alike(guide)
            whole = self._bound_in_whole_numbers(guide, rounds)
            if not conduct.finished():
                tightest_bound(
                    self.bounded,
                    seconds=self._share(_BOUND_SHARE),
                    watcher=self._hear,
                    begin=guide,
                    clock=conduct.clock,
                )
            guide = whole
        for offer in _OFFERS:
            again = True
            while again and not conduct.finished():
                before = self.best.trace
                self._search_class(guide, offer)
                again = self.best.trace is not before
        return True

    def _decide_alike(self, guide: Bound) -> Rounds | None:
        """A good plan soon where blocks repeat themselves, if there is one to begin with; the model used."""
        enough = self._share(_ALIKE_SHARE) > _ALIKE_LEAST_SECONDS
        twins = enough and self.best.schedule is not None and repeats(self.planned)
        rounds = self._rounds(guide, _OFFERS[0]) if twins or self.conduct.threads > 1 else None
        if twins and rounds is not None:
            tie = tied(rounds.arrays, rounds.values)
            with HighsProcess(self.conduct.clock) as child:
                child.begin(tie.matrix, self._share(_ALIKE_SHARE), relative_gap=RELATIVE_GAP)
                while not child.news.ended and not self.conduct.finished():
                    found = child.news.values if child.listen(_LISTEN_SECONDS) else None
                    if found is not None and rounds.take(tie.whole(found), TIED):
                        self.tied_first = True
                        self._tell()
        return rounds

    def _hear(self, bound: Bound) -> None:
        """Take over a bound of the linear program, and follow its answer."""
        if bound is not self.heard:
            self.heard = bound
            self.conduct.bounded(bound.overhead_joules, True)
            self._walk_along(bound)

    def _walk_along(self, guide: Bound) -> None:
        """Plans that do what the relaxation's answer does, as far as they can."""
        for schedule in walks_along(self.planned, guide):
            if self.best.consider(schedule, WALKS):
                self._tell()
            self.walked.consider(schedule, WALKS)
            if self.conduct.finished():
                break

    def _share(self, share: float) -> float:
        return min(share * self.conduct.seconds_left(), _LONGEST_SECONDS)

    def _search_class(self, guide: Bound, offer: Offer) -> None:
        """The best plan of one class, as far as time allows."""
        rounds = self._rounds(guide, offer)
        if rounds is None:
            return
        self._improve(rounds, self._share(_QUICK_SHARE), patience=_QUICK_ROUNDS)
        if not self.conduct.finished():
            exhausted = self._solve_as_a_whole(rounds)
            if not exhausted and not self.conduct.finished():
                self._improve(rounds, self._share(1.0))

    def _rounds(self, guide: Bound, offer: Offer) -> Rounds | None:
        """A model of a class that the best plan is of; ``None`` without a plan to begin with, or time."""
        if self.conduct.seconds_left() < 2.0 * self.building_seconds:
            return None
        began = self.conduct.clock.now()
        own = [self.best.schedule, self.walked.schedule if self.tied_first else None]
        reruns = [reruns_of(self.planned, schedule) for schedule in own if schedule is not None]
        arrays = offering(self.planned, merged(offered_by(self.planned, guide, offer), *reruns))
        rounds = Rounds(arrays, guide, self.best, seed=self.conduct.seed)
        self.building_seconds = self.conduct.clock.now() - began
        had_plan = self.best.schedule is not None
        if not rounds.begin(self.conduct.clock.now() + self._share(_CLASS_SHARE)):
            return None
        if not had_plan:
            self._tell()
        return rounds

    def _improve(self, rounds: Rounds, seconds: float, **patience: int) -> None:
        def stop(better: Schedule) -> bool:
            self._tell()
            return self.conduct.finished()

        rounds.run(self.conduct.clock.now() + seconds, stop, **patience)

    def _tell(self) -> None:
        if self.best.schedule is not None:
            self.conduct.found(self.best.schedule, self.best.found_by)

    def _bound_in_whole_numbers(self, guide: Bound, rounds: Rounds | None) -> Bound:
        """The relaxation without fractions, for a bound and for plans; the guide that it gives."""
        fixed = guide.relaxation.fixed_joules
        patience, heard = self._share(_PATIENCE_SHARE), (self.conduct.clock.now(), -math.inf)
        with HighsProcess(self.conduct.clock) as child:
            child.begin(guide.relaxation.program.matrix(), self._share(_BOUND_SHARE))
            while not child.news.ended and not self.conduct.finished():
                better = self._wait_for(child, rounds)
                if better or child.news.bound_joules > heard[1]:
                    heard = (self.conduct.clock.now(), child.news.bound_joules)
                elif math.isfinite(heard[1]) and self.conduct.clock.now() - heard[0] > patience:
                    break
                if child.news.bound_joules > 0.0:
                    self.conduct.bounded(fixed + child.news.bound_joules, False)
                if better:
                    guide = replace(guide, answer=replace(guide.answer, values=child.news.values))
                    self._walk_along(guide)
        return guide

    def _solve_as_a_whole(self, rounds: Rounds) -> bool:
        """The class's model with all its decisions; whether nothing better is in it."""
        arrays = rounds.arrays
        reruns = sum(not slot.mandatory for slot in arrays.model.timeline.slots)
        matrix = replace(arrays.matrix, start=rounds.values)
        with HighsProcess(self.conduct.clock) as child:
            child.begin(matrix, self._share(_CLASS_SHARE))
            while not child.news.ended and not self.conduct.finished():
                found = child.news.values if self._wait_for(child, rounds) else None
                if found is not None and rounds.take(found, CLASS):
                    self._tell()
                if math.isfinite(child.news.bound_joules) and self.planned.serial == self.bounded.serial:
                    self.conduct.classed(child.news.bound_joules, reruns)
            return child.news.exhausted

    def _wait_for(self, child: HighsProcess, rounds: Rounds | None) -> bool:
        """Let the child work a while, beside a round if there are threads; whether it found a solution."""
        if self.conduct.threads < 2 or rounds is None:
            return child.listen(_LISTEN_SECONDS)
        if rounds.round(min(1.0, self._share(1.0)), late=self.conduct.seconds_left() < _LATE_SECONDS):
            self._tell()
        return child.listen(0.0)
