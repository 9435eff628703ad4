"""The search on large problems: a bound at once, then event models with few rerun slots, solved in parts.

1. The windows relaxation as a linear program bounds every plan within a second or a few.
2. Where blocks of the network repeat, the plan is improved with all of them decided alike
   (`poet.solvers.search.symmetry`): a small program, and a good plan soon.
3. Those of its numbers that say what is written, of which there are few and which decide where page-outs
   are dear, are made whole. LP-guided list scheduling (`poet.solvers.heuristics.lp_guided`) rounds each of
   the relaxation's solutions to a plan.
4. The linear program with more moments on its grids (`poet.solvers.bounds.refinement`) gives a stronger
   bound where recomputation is deep. With these moments, where they bring much, all is made whole
   (`poet.solvers.search.whole_relaxation`): a still stronger bound, and a solution that shows better what
   to rerun.
5. The event model gets slots for the reruns in the relaxation's solution, for those of a step that takes
   it at its word (`poet.solvers.bounds.played`) where that lacks little RAM, and for those of the best
   plan (and of the best LP-guided plan, where 2. found the best one). These make a *class* of plans: those
   that rerun nothing else.
6. A few rounds of large-neighbourhood search improve the plan quickly.
7. The model is solved as a whole, in a process of its own: its bound holds for the class.
8. More rounds, until they bring nothing; then a larger class, while there is time.
9. After the largest class that is tuned, where the caller asks for that: restarts. Each has another seed,
   adds moments to the grids of the linear program, and offers chains twice as long as the one before.

With two threads the whole programs run beside the rounds, else in turn. At every moment the caller has
the best plan and the bounds, whoever stops the search and however.
"""

from __future__ import annotations

import itertools
import logging
import math
from collections.abc import Callable
from dataclasses import replace

from poet.problem import Limits, Problem
from poet.schedule import Schedule
from poet.solvers.bounds.played import Played
from poet.solvers.bounds.refinement import priced_bound, tightest_bound
from poet.solvers.bounds.windows_bound import Bound, taken_up
from poet.solvers.engines.highs_process import HighsProcess
from poet.solvers.heuristics.lp_guided import walks_along
from poet.solvers.instance.context import Conduct
from poet.solvers.instance.incumbent import Incumbent
from poet.solvers.instance.instance import Instance
from poet.solvers.search.finders import CLASS, TIED, WALKS
from poet.solvers.search.neighbourhood import Rounds, offering
from poet.solvers.search.patience import Patience
from poet.solvers.search.slots_of_plans import Reruns, merged, reruns_of
from poet.solvers.search.slots_of_relaxation import Offer, offered_by
from poet.solvers.search.symmetry import repeats, tied
from poet.solvers.search.whole_relaxation import WholeRelaxation

_log = logging.getLogger(__name__)


def search_large(
    problem: Problem,
    limits: Limits,
    instances: tuple[Instance, Instance],
    schedule: Schedule | None,
    conduct: Conduct,
    *,
    goes_on: bool = False,
) -> bool:
    """Improve ``schedule`` and the bounds while `Conduct` allows; false if there is no plan at all.

    Args:
        problem: for the judge.
        limits: for the judge.
        instances: the one that bounds are for, and the one whose plans are made; they differ where
            transfers run beside compute and a deadline must hold even if none does.
        schedule: a valid one to begin with, if there is any.
        conduct: the caller's clock, and the functions that take plans and bounds.
        goes_on: whether to restart until ``conduct`` is finished, rather than to end with the largest class.
    """
    best = Incumbent(problem, limits, conduct.metered, rejections=conduct.rejections, clock=conduct.clock)
    best.consider(schedule)
    return _LargeSearch(*instances, best, conduct).run(goes_on=goes_on)


def _moments(bound: Bound | None) -> frozenset[int]:
    return frozenset() if bound is None else bound.moments


class _LargeSearch:
    """The search's state: the best plan, the last bound of the linear program, and time spent."""

    def __init__(self, bounded: Instance, planned: Instance, best: Incumbent, conduct: Conduct) -> None:
        self.bounded, self.planned, self.best, self.conduct = bounded, planned, best, conduct
        self.tuning = planned.tuning
        self.heard: Bound | None = None
        self.followed: Bound | None = None  # a solution in whole numbers that lacks little RAM
        self.whole = WholeRelaxation(bounded, best, conduct, self._walk_along, self._tell)
        # of the LP-guided plans
        self.walked = Incumbent(best.problem, best.limits, conduct.metered, clock=conduct.clock)
        self.tied_first = False  # the best plan came from the tied program, before any whole-number solution
        tensors = len(planned.problem.tensors)
        self.building_seconds = self.tuning.large.building_tensor_seconds * tensors  # of the last model
        self.built_slots = len(planned.tasks)  # of the last model
        self.relaxing_seconds = self.tuning.large.relaxing_tensor_seconds * tensors

    def run(self, *, goes_on: bool) -> bool:
        """All parts in turn; false if there is no plan at all. See `search_large`."""
        conduct, tuning = self.conduct, self.tuning.large
        if self.best.schedule is not None and conduct.seconds_left() < self.relaxing_seconds:
            return True
        with conduct.phase("windows relaxation: linear program, walks along it"):
            seconds = self._share(tuning.bound_share)
            guide = priced_bound(
                self.bounded,
                seconds=seconds,
                watcher=self._hear,
                clock=conduct.clock,
                finished=conduct.finished,
            )
            if guide.overhead_joules == math.inf:
                return False
            self._hear(guide)
        if not conduct.finished():
            with conduct.phase("identical blocks decided once"):
                rounds = self._decide_alike(guide)
            if not conduct.finished():
                guide = self._take_up(guide)
            if guide.overhead_joules == math.inf:
                return False
            if not conduct.finished():
                guide = self._bound_in_whole_numbers(guide, rounds)
        for offer in self._offers():
            self._search_while_better(guide, offer)
        for number in itertools.count(1):
            if not goes_on or conduct.finished():
                break
            self._restart(number, guide)
        return True

    def _take_up(self, bound: Bound) -> Bound:
        """``bound`` where its linear program was solved to its end, else with more time for that."""
        if bound.answer.done:
            return bound
        with self.conduct.phase("windows relaxation: linear program, taken up again"):
            seconds = self._share(self.tuning.large.class_share)
            bound = taken_up(bound, seconds=seconds, clock=self.conduct.clock)
            self._hear(bound)
        return bound

    def _bound_in_whole_numbers(self, guide: Bound, rounds: Rounds | None) -> Bound:
        """Copies in whole numbers, more moments, then all in whole numbers; what plans are to follow.

        With more moments the program grows: those that raise the bound by little are left out of it.
        """
        conduct, tuning = self.conduct, self.tuning.large
        if guide.answer.done and tuning.copies_share > 0.0:
            with conduct.phase("windows relaxation: copies in whole numbers, walks along it"):
                share, copies = self._share(tuning.copies_share), guide.relaxation.copies
                self.whole.bounded(guide, share, self._beside(rounds), copies)
        if conduct.finished():
            return guide
        refined, least_joules = self._refine(guide), (1.0 + tuning.moments_share) * guide.overhead_joules
        raised = refined.answer.done and refined.overhead_joules > least_joules
        begin = refined if raised else guide
        if not begin.answer.done or conduct.finished():
            return begin
        with conduct.phase("windows relaxation: whole numbers, walks along it"):
            found = self.whole.tightened(begin, self._share(tuning.whole_share), self._beside(rounds))
        if found is not begin and self.whole.is_nearly_a_plan(found):
            self.followed = found
        return found

    def _refine(self, begin: Bound) -> Bound:
        """The best bound of the linear program with more moments than ``begin``, and walks along all."""
        conduct = self.conduct
        begin = self._take_up(begin)
        if conduct.finished():
            return begin
        with conduct.phase("windows relaxation: refinement, walks along it"):
            return tightest_bound(
                self.bounded,
                seconds=self._share(self.tuning.large.bound_share),
                watcher=self._hear,
                begin=begin,
                clock=conduct.clock,
                finished=conduct.finished,
            )

    def _search_while_better(self, guide: Bound, offer: Offer) -> None:
        """One class, again while it brings a better plan."""
        again = True
        while again and not self.conduct.finished():
            before = self.best.trace
            self._search_class(guide, offer)
            again = self.best.trace is not before

    def _restart(self, number: int, guide: Bound) -> None:
        """More moments, another seed, and longer chains than in any class or restart before.

        Classes follow the last refined solution and that of ``guide`` in turn.
        """
        before, bound = self.best.trace, self.heard
        self.conduct.clock.spend(programs=1)  # so that restarts with nothing to solve end by any clock
        self.conduct = replace(self.conduct, seed=self.conduct.seed + 1)
        self._refine(self.heard or guide)
        doublings = min(number, self.tuning.restarts.most_doublings)
        longest = self._offers()[-1]
        offer = Offer(longest.chain * 2**doublings, longest.depth * 2**doublings)
        self._search_while_better((self.heard or guide) if number % 2 else guide, offer)
        brought = [
            what
            for what, is_new in (("a better plan", self.best.trace is not before),
                                 ("more moments", _moments(self.heard) != _moments(bound)))
            if is_new
        ]  # fmt: skip
        _log.info("restart %d: %s", number, " and ".join(brought) or "nothing better")

    def _offers(self) -> list[Offer]:
        return [Offer(*sizes) for sizes in self.tuning.large.offer_reruns]

    def _decide_alike(self, guide: Bound) -> Rounds | None:
        """Solve the program in which blocks that repeat are decided alike; returns the model that was built.

        Only with a plan to begin with, time for it, and ops that repeat; ``None`` where no model was built.
        """
        tuning = self.tuning.large
        enough = self._share(tuning.alike_share) > tuning.alike_least_seconds
        repeating = enough and self.best.schedule is not None and repeats(self.planned)
        rounds = self._rounds(guide, self._offers()[0]) if repeating or self.conduct.threads > 1 else None
        if repeating and rounds is not None:
            tie = tied(rounds.arrays, rounds.values)
            with HighsProcess(self.tuning, self.conduct.clock) as child:
                is_small = len(tie.matrix.costs) <= tuning.small_alike_columns
                share = max(tuning.alike_share, tuning.small_alike_share if is_small else 0.0)
                gap = self.tuning.rounds.gap_share
                child.begin(tie.matrix, self._share(share), relative_gap=gap)
                while not child.news.ended and not self.conduct.finished():
                    found = child.news.values if child.listen(tuning.listen_seconds) else None
                    if found is not None and rounds.take(tie.whole(found), TIED):
                        self.tied_first = True
                        self._tell()
        return rounds

    def _hear(self, bound: Bound) -> None:
        """Record a bound of the linear program, and round its solution to schedules."""
        if bound is not self.heard:
            self.heard = bound
            self.conduct.bounded(bound.overhead_joules, True)
            self._walk_along(bound)

    def _walk_along(self, guide: Bound) -> None:
        """Offer the LP-guided schedules that follow the solution of ``guide``."""
        for schedule in walks_along(self.planned, guide):
            if self.best.consider(schedule, WALKS):
                self._tell()
            self.walked.consider(schedule, WALKS)
            if self.conduct.finished():
                break

    def _share(self, share: float) -> float:
        """Seconds: this share of the time left, at most ``longest_program_seconds``."""
        return min(share * self.conduct.seconds_left(), self.tuning.large.longest_program_seconds)

    def _search_class(self, guide: Bound, offer: Offer) -> None:
        """The best plan of one class, as far as time allows."""
        rounds = self._rounds(guide, offer)
        if rounds is None:
            return
        which = f"chains of {offer.chain}, depth {offer.depth}"
        tuning = self.tuning.large
        with self.conduct.phase(f"neighbourhood search, {which}"):
            self._improve(rounds, self._share(tuning.quick_share), patience=tuning.quick_rounds)
        if not self.conduct.finished():
            with self.conduct.phase(f"event model of a class of plans, {which}"):
                exhausted = self._solve_as_a_whole(rounds)
            if not exhausted and not self.conduct.finished():
                with self.conduct.phase(f"neighbourhood search again, {which}"):
                    self._improve(rounds, self._share(1.0))

    def _rounds(self, guide: Bound, offer: Offer) -> Rounds | None:
        """The event model of a class that contains the best plan, ready for neighbourhood search.

        ``None`` without a plan to begin with, or without time to build it.
        """
        reruns = self._affordable(guide, offer)
        if reruns is None:
            return None
        began = self.conduct.clock.now()
        arrays = offering(self.planned, reruns)
        rounds = Rounds(arrays, guide, self.best, seed=self.conduct.seed)
        self.building_seconds = self.conduct.clock.now() - began
        self.built_slots = self._slots(reruns)
        had_plan = self.best.schedule is not None
        if not rounds.begin(self.conduct.clock.now() + self._share(self.tuning.large.class_share)):
            return None
        if not had_plan:
            self._tell()
        return rounds

    def _affordable(self, guide: Bound, offer: Offer) -> Reruns | None:
        """What ``offer`` and the best plan rerun, along shorter chains where that is too much for memory or
        for the time left; ``None`` where even the plan's own are.
        """
        own = [self.best.schedule, self.walked.schedule if self.tied_first else None]
        plans: list[Reruns] = [reruns_of(self.planned, schedule) for schedule in own if schedule is not None]
        if guide is self.followed:
            plans.append(Played(self.bounded, guide).reruns())
        tuning = self.tuning.large
        if self.conduct.seconds_left() < tuning.build_factor * self.building_seconds:
            return None
        slot_seconds = self.building_seconds / self.built_slots
        while True:
            reruns = merged(offered_by(self.planned, guide, offer), *plans)
            slots = self._slots(reruns)
            seconds = tuning.build_factor * slot_seconds * slots
            fits = slots - len(self.planned.tasks) <= tuning.most_reruns
            if fits and seconds <= self.conduct.seconds_left():
                return reruns
            if offer == Offer(0, 0):
                _log.info("no class of plans is looked at: %d slots are too many", slots)
                return None
            offer = Offer(offer.chain // 2, offer.depth // 2)

    def _slots(self, reruns: Reruns) -> int:
        """Of a model that is offered these."""
        return len(self.planned.tasks) + sum(len(tuple(tasks)) for tasks in reruns.values())

    def _improve(self, rounds: Rounds, seconds: float, **patience: int) -> None:
        def stop(better: Schedule) -> bool:
            self._tell()
            return self.conduct.finished()

        end = self.conduct.clock.now() + seconds
        rounds.run(end, stop, finished=self.conduct.finished, **patience)

    def _tell(self) -> None:
        """Pass the best plan on to the caller."""
        if self.best.schedule is not None:
            self.conduct.found(self.best.schedule, self.best.found_by)

    def _solve_as_a_whole(self, rounds: Rounds) -> bool:
        """Solve the class's model with nothing fixed; whether it was solved to optimality."""
        arrays = rounds.arrays
        reruns = sum(not slot.mandatory for slot in arrays.model.timeline.slots)
        matrix = replace(arrays.matrix, start=rounds.values)
        tuning, clock = self.tuning.large, self.conduct.clock
        patience = Patience(clock, self._share(tuning.class_patience_share), tuning.closing_share)
        with HighsProcess(self.tuning, clock) as child:
            child.begin(matrix, self._share(tuning.class_share))
            while not child.news.ended and not self.conduct.finished():
                found = child.news.values if self._wait_for(child, rounds) else None
                is_better = found is not None and rounds.take(found, CLASS)
                if is_better:
                    self._tell()
                if math.isfinite(child.news.bound_joules) and self.planned.serial == self.bounded.serial:
                    self.conduct.classed(child.news.bound_joules, reruns)
                left_joules = matrix.joules(rounds.values) - child.news.bound_joules
                if patience.is_over(left_joules, has_news=is_better) and math.isfinite(left_joules):
                    break
            return child.news.exhausted

    def _wait_for(self, child: HighsProcess, rounds: Rounds | None) -> bool:
        """Give the child process time, with two threads for one round; whether it has a new solution."""
        tuning = self.tuning.large
        if self.conduct.threads < 2 or rounds is None or rounds.exhausted:
            return child.listen(tuning.listen_seconds)
        late = self.conduct.seconds_left() < tuning.late_seconds
        if rounds.round(min(tuning.beside_seconds, self._share(1.0)), late=late):
            self._tell()
        return child.listen(0.0)

    def _beside(self, rounds: Rounds | None) -> Callable[[HighsProcess], bool]:
        """`_wait_for` with ``rounds``."""
        return lambda child: self._wait_for(child, rounds)
