"""Large-neighbourhood search: free a part of a plan, solve that part exactly, keep the rest.

After Shaw (1998) and Danna et al. (2005). The solution of the windows relaxation
(`poet.solvers.bounds.relaxation`) shows where reruns may pay; the event model with slots there, and with the
plan's own, is laid out once. Each round leaves free some
of its decisions whether a content stays in RAM through a gap, fixes the others as in the best plan, and has
HiGHS find the best completion. Free are decisions of gaps that begin or end in a stretch of the step: so a
stretch of the forward pass comes with its mirror image. They lie more often where the plan and the
relaxation's solution differ; in every third round only decisions that differ are free. A round that was easy
makes the next one larger, one that ran out of time smaller. What comes back counts if the simulator accepts
it and it takes fewer joules.
"""

from __future__ import annotations

import bisect
import logging
import random
from dataclasses import dataclass

import numpy as np

from poet.solvers.bounds.relaxation import Bound
from poet.solvers.engines.highs import run_highs
from poet.solvers.engines.program import Choice, Effort, Indices, Job, Matrix, Numbers, part_of, value
from poet.solvers.event_model.decisions import EventModel
from poet.solvers.event_model.model import build, matrix_of, schedule_of, values_of
from poet.solvers.instance.candidates import Reruns, chains_to, merged, reruns_of, worth_rerunning
from poet.solvers.instance.instance import Instance, timeline_of
from poet.solvers.portfolio.state import GOES_ON, ROUNDS, WAITS, SearchState, Steps
from poet.util.interrupts import pass_on

_log = logging.getLogger(__name__)

FIRST_CHAIN, LONGEST_CHAIN = 2, 32
"""Reruns that lead to what the relaxation remakes; with 1, the model has few plans that differ from it."""

MOST_RERUNS = 20_000
"""That a model has; building one of more takes longer than a search."""

VAIN_ROUNDS = 12
"""In a row, after which the next model is made, with chains twice as long; for ever, one model's are all."""

ROUND_SECONDS = 2.0
"""That one neighbourhood may take; one that needs more is made smaller."""

FIRST_DECISIONS = 100
"""That the first round leaves free; with many more, its time is up before it has found anything."""

RESIZE_FACTOR = 1.3
"""Of the decisions from round to round; with 2, rounds take none of their time or all of it in turn."""

DISPUTED_SHARE = 0.01
"""Of a version, by which plan and relaxation differ, and the weight of decisions in which they do not."""

_SOLVED_GAP = 1e-5  # of its joules; less is not seen in the sum of a step
_STRETCHES = (1, 1, 2, 3)  # that a round frees, of which one is drawn: several can trade RAM with each other


def neighbourhoods(state: SearchState) -> Steps:
    """Rounds on model after model, as soon as there is a plan and a solution of the relaxation."""
    instance, chain, seed = state.planned, FIRST_CHAIN, state.options.seed
    exhausted = list[Reruns]()
    while True:
        guide, schedule = state.guide, state.best.schedule
        if guide is None or schedule is None:
            if state.alone:
                return
            yield WAITS
            continue
        reruns = merged(offered_by(instance, guide, chain), reruns_of(instance, schedule))
        if sum(map(len, reruns.values())) > MOST_RERUNS:
            return
        if reruns in exhausted:
            if chain == LONGEST_CHAIN:
                if state.alone:
                    return
                yield WAITS
            chain = min(2 * chain, LONGEST_CHAIN)
            continue
        model = gap_matrix_of(instance, reruns)
        values = values_of(model.model, schedule)
        if values is None:
            return
        rounds = Rounds(model, guide, state, np.array(values), seed=seed)
        number = vain = 0
        while vain < VAIN_ROUNDS and not rounds.exhausted:
            before, size = state.best.trace, rounds.size
            better = rounds.round(min(ROUND_SECONDS, state.turn_left()), disputed=number % 3 == 2)
            number, vain = number + 1, 0 if better else vain + (rounds.size <= size)
            yield GOES_ON
            if state.best.trace is not before and not better:
                break  # the plan is another's, with other reruns
        if rounds.exhausted:
            exhausted.append(reruns)
        seed += 1
        chain = min(2 * chain, LONGEST_CHAIN)


@dataclass(frozen=True, slots=True)
class GapMatrix:
    """A model, its matrix, and what its columns mean.

    Attributes:
        first, last: the stages in which a decision's gap begins and ends, -1 for columns that follow
            from decisions.
    """

    model: EventModel
    matrix: Matrix
    first: Indices
    last: Indices

    @property
    def decided(self) -> Choice:
        """The columns that an engine must choose to be 0 or 1."""
        return self.matrix.integer


def gap_matrix_of(instance: Instance, reruns: Reruns) -> GapMatrix:
    """The event model that may rerun what is offered, as a matrix."""
    model = build(timeline_of(instance, merged(reruns)))
    matrix = matrix_of(model)
    first, last = np.full(len(matrix.costs), -1), np.full(len(matrix.costs), -1)
    slots = model.timeline.slots
    for (content, index), kept in model.keep.items():
        life = model.timeline.events[content]
        for column in kept.terms:
            first[column], last[column] = slots[life[index].slot].stage, slots[life[index + 1].slot].stage
    return GapMatrix(model, matrix, first, last)


class Rounds:
    """Rounds of the search on one model.

    Args:
        arrays: the model.
        guide: its solution is compared with the plan; where they differ, decisions are *in dispute*.
        state: of the search; better plans are put there.
        values: of the model's columns, what the best plan is there.
        seed: of every random choice.

    Attributes:
        size: decisions that the next round leaves free.
        exhausted: a round with everything free came to its end, so no round finds anything more.
    """

    def __init__(
        self, arrays: GapMatrix, guide: Bound, state: SearchState, values: Numbers, *, seed: int
    ) -> None:
        self.arrays, self.state, self.values = arrays, state, values
        self.expected = _expected(arrays, guide)
        self.rng = random.Random(seed)  # noqa: S311 - a search, not a secret
        self.size = FIRST_DECISIONS
        self.exhausted = False

    def round(self, seconds: float, *, disputed: bool = False) -> bool:
        """One round of ``seconds`` at most; whether it found a better plan.

        Args:
            seconds: of the search's clock.
            disputed: free decisions in dispute only.
        """
        clock = self.state.clock
        started, free = clock.now(), self._part(disputed=disputed)
        part, columns = part_of(self.arrays.matrix, free, self.values)
        found = run_highs(Job(part, Effort(seconds, relative_gap=_SOLVED_GAP, clock=clock)))
        if found.interrupted:
            pass_on()
        is_solved = found.done or found.infeasible
        self.exhausted |= is_solved and bool(free[self.arrays.decided].all())
        spent_seconds = clock.now() - started
        better = False
        if found.values is not None:
            together = self.values.copy()
            together[columns] = found.values
            better = self._take(together)
        _log.debug(
            "neighbourhood of %d decisions: %s after %.3f s",
            self.size, "better" if better else "nothing better", spent_seconds,
        )  # fmt: skip
        if not is_solved:
            self.size = max(FIRST_DECISIONS // 2, int(self.size / RESIZE_FACTOR))
        elif spent_seconds < seconds / 3.0:
            self.size = int(self.size * RESIZE_FACTOR) + 1
        return better

    def _take(self, values: Numbers) -> bool:
        """Judge the plan that ``values`` describe; whether it is valid and the best so far."""
        better = self.state.consider(schedule_of(self.arrays.model, values.tolist()), ROUNDS)
        if better:
            self.values = values
        return better

    def _part(self, *, disputed: bool) -> Choice:
        """The decisions to leave free: those nearest to some moments, of all or of those in dispute."""
        arrays = self.arrays
        apart = np.abs(self.values - self.expected) * arrays.decided
        decisions = np.flatnonzero(arrays.decided & (apart > DISPUTED_SHARE) if disputed else arrays.decided)
        if len(decisions) == 0:
            return arrays.decided
        weights = (apart[decisions] + DISPUTED_SHARE).tolist()
        distance = np.full(len(decisions), np.iinfo(np.int64).max)
        stretches = self.rng.choice(_STRETCHES)
        for middle in self.rng.choices(decisions.tolist(), weights, k=stretches):
            moment = int(arrays.first[middle] if self.rng.random() < 0.5 else arrays.last[middle])
            for ends in (arrays.first, arrays.last):
                distance = np.minimum(distance, np.abs(ends[decisions] - moment))
        rank = min(self.size, len(decisions)) - 1
        part = np.zeros(len(apart), dtype=np.bool_)
        part[decisions[distance <= np.partition(distance, rank)[rank]]] = True
        return part


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


# --- which reruns a model is offered: chains of producers that lead to what the relaxation remakes ---

_ROUNDING = 1e-6  # of a version; the relaxation's solution remakes what is more


def offered_by(instance: Instance, bound: Bound, chain: int) -> dict[int, set[int]]:
    """Per stage, reruns that remake what the solution of the windows relaxation remakes before its op.

    Chains of ``chain`` producers in any case, since the plan will differ from the solution. Along chains of
    twice that, what the solution remakes in the same stretch of time: so the first backward op that misses a
    tensor of a segment of the forward pass is offered the whole segment (Chen et al. 2016).
    """
    remade = _Remade(instance, bound)
    worth = worth_rerunning(instance)
    offered = {}
    for stage, contents in remade.by_stage.items():
        tasks = chains_to(instance, worth, stage, contents, chain)
        wanted, segment = contents, set[int]()
        for _ in range(2 * chain):
            makers = {instance.contents[c].producer for c in wanted}
            fresh = {
                maker
                for maker in makers
                if maker in worth and maker < stage <= instance.tasks[maker].last_rerun_stage
            } - segment
            if not fresh:
                break
            segment |= fresh
            reads = {c for maker in fresh for c in instance.tasks[maker].rerun_reads}
            wanted = {c for c in reads if remade.around(c, stage)}
        offered[stage] = tasks | segment
    return offered


class _Remade:
    """Which versions the solution remakes, between which fixed moments."""

    def __init__(self, instance: Instance, bound: Bound) -> None:
        values, least = bound.answer.values, _ROUNDING
        self.by_stage: dict[int, set[int]] = {}
        self.ends: dict[int, list[int]] = {}
        self.made: dict[int, list[bool]] = {}
        for segment in bound.relaxation.segments if values is not None else ():
            assert values is not None
            made = any(value(column, values) > least for column in segment.made)
            self.ends.setdefault(segment.content, []).append(segment.until)
            self.made.setdefault(segment.content, []).append(made)
            producer = instance.contents[segment.content].producer
            if made and producer is not None:  # the last chance may come earlier than the use
                stage = min(segment.until, instance.tasks[producer].last_rerun_stage)
                self.by_stage.setdefault(stage, set()).add(segment.content)

    def around(self, content: int, stage: int) -> bool:
        """Whether the solution remakes ``content`` between the fixed moments around ``stage``.

        True after the last fixed moment, of which the solution's segments say nothing.
        """
        ends = self.ends.get(content, [])
        position = bisect.bisect_left(ends, stage)
        return position == len(ends) or self.made[content][position]
