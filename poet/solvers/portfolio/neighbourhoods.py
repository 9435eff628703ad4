"""Large-neighbourhood search: free a part of a plan, solve that part exactly, keep the rest.

After Shaw (1998) and Danna et al. (2005). The solution of the windows relaxation
(`poet.solvers.bounds.relaxation`) shows where reruns may pay; the event model with slots there
(`poet.solvers.portfolio.slots_of_relaxation`), and with the plan's own, is laid out once. Each round leaves
free some of its decisions whether a content stays in RAM through a gap, fixes the others as in the best
plan, and has HiGHS find the best completion. Free are decisions of gaps that begin or end in a stretch of
the step: so a stretch of the forward pass comes with its mirror image. Several stretches together can trade
RAM with each other. They lie more often where the plan and the relaxation's solution differ; in every third
round only decisions that differ are free. A round that was easy makes the next one larger, one that ran out
of time smaller. What comes back counts if the simulator accepts it and it takes fewer joules.
"""

from __future__ import annotations

import bisect
import logging
import random

import numpy as np

from poet.solvers.bounds.relaxation import Bound
from poet.solvers.engines.highs import Found, solve
from poet.solvers.engines.highs_process import HighsProcess
from poet.solvers.engines.program import Choice, Numbers, Part, part_of, value
from poet.solvers.event_model.families import CUTS, FAMILIES, again
from poet.solvers.event_model.model import build, schedule_of, values_of
from poet.solvers.instance.incumbent import Incumbent
from poet.solvers.instance.instance import Instance, timeline_of
from poet.solvers.portfolio.finders import ROUNDS
from poet.solvers.portfolio.gap_matrix import GapMatrix, gap_matrix_of
from poet.solvers.portfolio.slots_of_plans import Reruns, merged, reruns_of
from poet.solvers.portfolio.slots_of_relaxation import Offer, offered_by
from poet.solvers.portfolio.state import GOES_ON, WAITS, SearchState, Steps

_log = logging.getLogger(__name__)


FIRST_CHAIN, LONGEST_CHAIN = 2, 32
"""Reruns that lead to what the relaxation remakes; with 1, the model has few plans that differ from it."""

MOST_RERUNS = 20_000
"""That a model has; building one of more takes longer than a search."""

VAIN_ROUNDS = 12
"""In a row, after which the next model is made, with chains twice as long; for ever, one model's are all."""

ROUND_SECONDS = 2.0
"""That one neighbourhood may take; one that needs more is made smaller."""

DISPUTED_EVERY = 3
"""In each such round only decisions are free in which plan and relaxation differ; in all, rounds repeat."""


def neighbourhoods(state: SearchState) -> Steps:
    """Rounds on model after model, as soon as there is a plan and a solution of the relaxation."""
    instance, chain, seed = state.planned, FIRST_CHAIN, state.seed
    while True:
        guide, schedule = state.guide, state.best.schedule
        if guide is None:
            if state.is_alone():
                return
            yield WAITS
            continue
        own = {} if schedule is None else reruns_of(instance, schedule)
        reruns = merged(offered_by(instance, guide, Offer(chain, 2 * chain)), own)
        if sum(map(len, reruns.values())) > MOST_RERUNS:
            return
        rounds = Rounds(offering(instance, reruns), guide, state.best, seed=seed)
        if not rounds.begin(state.clock.now() + state.turn_left()):
            state.clock.spend(programs=1)
            yield GOES_ON
            continue
        number = vain = 0
        while vain < VAIN_ROUNDS and not rounds.exhausted:
            before, size = state.best.trace, rounds.size
            seconds = min(ROUND_SECONDS, state.turn_left())
            better = rounds.round(seconds, disputed=number % DISPUTED_EVERY == DISPUTED_EVERY - 1)
            if better:
                state.noted(ROUNDS)
            number, vain = number + 1, 0 if better else vain + (rounds.size <= size)
            yield GOES_ON
            if state.best.trace is not before and not better:
                break  # the plan is another's, with other reruns
        seed += 1
        chain = min(2 * chain, LONGEST_CHAIN)


def offering(instance: Instance, reruns: Reruns) -> GapMatrix:
    """The event model that may rerun what is offered, with the cuts for many reruns, as a matrix."""
    families = (*FAMILIES, *CUTS, again)
    return gap_matrix_of(build(timeline_of(instance, merged(reruns)), families=families))


class Rounds:
    """Rounds of the search on one model.

    Args:
        arrays: the model.
        guide: its solution is compared with the plan; where they differ, decisions are *in dispute*.
        best: the best plan; better ones are put there.
        seed: of every random choice.

    Attributes:
        exhausted: a round with everything free came to its end, so no round finds anything more.
    """

    def __init__(self, arrays: GapMatrix, guide: Bound, best: Incumbent, *, seed: int = 0) -> None:
        self.arrays, self.best, self.clock = arrays, best, best.clock
        self.tuning = arrays.model.timeline.instance.tuning
        self.expected = _expected(arrays, guide)
        self.values = np.zeros(0)
        self.rng = random.Random(seed)  # noqa: S311 - a search, not a secret
        self.size = self.tuning.rounds.first_decisions
        self.exhausted = False

    def begin(self, end: float) -> bool:
        """Take the best plan's values; where there is none, round the linear program's. False without any."""
        if self.best.schedule is not None:
            values = values_of(self.arrays.model, self.best.schedule)
            self.values = np.array(values or ())
            return values is not None
        everything = part_of(self.arrays.matrix, self.arrays.decided, None)
        relaxed = self._solve_here(everything, self._share(end), integer=False).values
        if relaxed is None:
            return False
        for surely in (0.5, 0.0):  # at first, whole numbers of the linear program are kept; then only its 1s
            free = self.arrays.decided & (np.abs(relaxed - surely) < 1.0 - surely - 1e-6)
            part = part_of(self.arrays.matrix, free, relaxed)
            found = self._solve_in_child(part, self._share(end)).values
            if found is not None and self.take(found):
                return True
        return False

    def round(self, seconds: float, *, disputed: bool = False) -> bool:
        """One round of ``seconds`` at most; whether it found a better plan.

        Args:
            seconds: of the incumbent's clock.
            disputed: free decisions in dispute only.
        """
        started = self.clock.now()
        free = self._part(disputed=disputed)
        part = part_of(self.arrays.matrix, free, self.values)
        found = self._solve_here(part, seconds)
        self.exhausted |= found.exhausted and bool(free[self.arrays.decided].all())
        spent_seconds = self.clock.now() - started
        better = found.values is not None and self.take(found.values)
        _log.debug(
            "neighbourhood of %d decisions: %s after %.3f s",
            self.size, "better" if better else "nothing better", spent_seconds,
        )  # fmt: skip
        self._resize(found, spent_seconds / seconds)
        return better

    def take(self, values: Numbers) -> bool:
        """Judge the plan that ``values`` describe; whether it is valid and the best so far."""
        better = self.best.consider(schedule_of(self.arrays.model, values.tolist()), ROUNDS)
        if better:
            self.values = values
        return better

    def _part(self, *, disputed: bool) -> Choice:
        """The decisions to leave free: those nearest to some moments, of all or of those in dispute."""
        arrays, tuning = self.arrays, self.tuning.rounds
        apart = np.abs(self.values - self.expected) * arrays.decided
        decisions = np.flatnonzero(
            arrays.decided & (apart > tuning.disputed_share) if disputed else arrays.decided
        )
        if len(decisions) == 0:
            return arrays.decided
        weights = (apart[decisions] + tuning.least_weight).tolist()
        distance = np.full(len(decisions), np.iinfo(np.int64).max)
        stretches = self.rng.choice(tuning.stretch_counts)
        for middle in self.rng.choices(decisions.tolist(), weights, k=stretches):
            moment = int(arrays.first[middle] if self.rng.random() < 0.5 else arrays.last[middle])
            for ends in (arrays.first, arrays.last):
                distance = np.minimum(distance, np.abs(ends[decisions] - moment))
        rank = min(self.size, len(decisions)) - 1
        part = np.zeros(len(apart), dtype=np.bool_)
        part[decisions[distance <= np.partition(distance, rank)[rank]]] = True
        return part

    def _resize(self, found: Found, share: float) -> None:
        tuning = self.tuning.rounds
        if found.exhausted and share < tuning.easy_share:
            self.size = int(self.size * tuning.growth_factor) + 1
        elif not found.exhausted:
            self.size = max(tuning.least_decisions, int(self.size * tuning.shrink_factor))

    def _solve_here(self, part: Part, seconds: float, *, integer: bool = True) -> Found:
        gap = self.tuning.rounds.gap_share
        found = solve(part.matrix, seconds, integer=integer, relative_gap=gap, clock=self.clock)
        return found if found.values is None else Found(part.all_columns(found.values), found.exhausted)

    def _solve_in_child(self, part: Part, seconds: float) -> Found:
        with HighsProcess(self.clock) as child:
            child.begin(part.matrix, seconds, relative_gap=self.tuning.rounds.gap_share)
            while not child.news.ended:
                child.listen(self.tuning.rounds.listen_seconds)
            values = child.news.values
            return Found(None if values is None else part.all_columns(values), child.news.exhausted)

    def _share(self, end: float) -> float:
        return self.tuning.rounds.begin_share * (end - self.clock.now())


def _expected(arrays: GapMatrix, guide: Bound) -> Numbers:
    """For each decision, whether the relaxation keeps the content between the fixed moments around."""
    expected, values = np.full(len(arrays.decided), 0.5), guide.answer.values
    if values is None:
        return expected
    starts: dict[int, list[int]] = {}
    shares: dict[int, list[float]] = {}
    for segment in guide.relaxation.segments:
        kept = min(value(column, values) for column in segment.kept)
        starts.setdefault(segment.content, []).append(segment.after)
        shares.setdefault(segment.content, []).append(kept)
    for (content, _), gap in arrays.model.keep.items():
        for column in gap.terms if content in starts else ():
            position = bisect.bisect_right(starts[content], int(arrays.first[column])) - 1
            expected[column] = shares[content][max(position, 0)]
    return expected
