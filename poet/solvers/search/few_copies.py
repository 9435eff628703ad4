"""Exact event models in which few tensors may be written: those that a relaxation writes, given less RAM.

On flash a page-out takes what hundreds of reruns take, so which tensors are written decides a plan, and among
many of them an engine is slow to find that out. With a dozen that may be written an event model is solved to
its end, or shown to have no plan, within seconds. The dozen is what the windows relaxation
(`poet.solvers.bounds.relaxation`) writes, rounded to whole tensors. It counts RAM at some moments only, so
what it writes is often too little for any plan: it is asked with less RAM, by one share of the budget after
the other, and small tensors fill up what is left over. After these come neighbours of the best plan: what it
writes, and some others, large ones first.
"""

from __future__ import annotations

import logging
import math
import random
from collections.abc import Iterator, Mapping
from dataclasses import replace

from poet.homes import decide_some, stored_between_steps, undecided
from poet.problem import Place, Problem
from poet.schedule import PageOut, Schedule
from poet.solvers.heuristics.rounded_copies import rounded_copies
from poet.solvers.instance.candidates import candidates
from poet.solvers.instance.instance import instance_of
from poet.solvers.search.model_runs import ModelRuns
from poet.solvers.search.slots_of_plans import Reruns, followed_by, merged

_log = logging.getLogger(__name__)


class FewCopies:
    """The sets of tensors that were tried, over a search's turns.

    Args:
        runs: solves event models for the search.
    """

    def __init__(self, runs: ModelRuns) -> None:
        self.runs, self.standing = runs, runs.standing
        self.tuning = runs.standing.options.tuning.few_copies
        self._ended = set[tuple[frozenset[str], frozenset[tuple[int, tuple[int, ...]]]]]()
        self._together = set[frozenset[str]]()  # what a step and the best plan write
        self._random = random.Random(self.standing.seed)  # noqa: S311 - a search, not a secret
        self._end = 0.0  # of the turn, by the clock
        self._going = self._sets()
        self._leads = False
        self._others = float(self.tuning.first_others)  # beside the best plan's, in the next neighbour
        self._depth = 1  # of chains of reruns that all models are offered

    @property
    def leads(self) -> bool:
        """Whether the last turn found a better plan."""
        return self._leads

    def turn(self, share: float, offered: Reruns) -> None:
        """Better plans, of reruns that are ``offered`` or the best plan's, for a share of the time left.

        Ends before that when one set after the other brings nothing.
        """
        standing, clock = self.standing, self.standing.clock
        self._leads = False
        if share == 0.0 or standing.finished() or not self.pays():
            return
        self._end = clock.now() + min(share * standing.seconds_left(), self.tuning.most_seconds)
        with standing.recorder.phase("exact event models, few copies"):
            vain, begun_with = 0, standing.best.trace
            for names in self._going:
                trace = standing.best.trace
                own = self.runs.own_reruns() if self._own() <= names else {}
                self._solve(names, merged(offered, own, self._chains()))
                vain = 0 if standing.best.trace is not trace else vain + 1
                if standing.finished() or clock.now() >= self._end or vain >= self.tuning.patience_sets:
                    break
            self._leads = standing.best.trace is not begun_with

    def follow(self, names: frozenset[str], reruns: Mapping[int, tuple[int, ...]]) -> None:
        """The best plan that writes ``names``, or smaller ones beside, of a step's ``reruns`` and others."""
        names |= self._fillers(names)
        own = self.runs.own_reruns() if self._own() <= names else {}
        seconds = min(self.tuning.follow_seconds, self.standing.seconds_left())
        self._end = self.standing.clock.now() + seconds
        if self._solve(names, followed_by(reruns, own)):
            together = names | self._own()
            if together not in self._together:
                self._together.add(together)  # with other reruns they would bring as little in their time
                others = merged(self.runs.own_reruns(), self._chains())
                self._solve(together, followed_by(reruns, others))

    def comes_first(self) -> bool:
        """Whether it pays on a step that is not tiny: a tiny one's model of all copies is soon solved."""
        return len(self.standing.problem.ops) >= self.tuning.fewest_ops and self.pays()

    def pays(self) -> bool:
        """Whether the best plan takes much for page-outs, and much is open."""
        schedule, trace = self.standing.best.schedule, self.standing.best.trace
        if schedule is None or trace is None or not self.standing.limits.paging:
            return False
        contents = self.standing.instance.contents  # whose joules have the power of waiting in them
        outs = {c.tensor: c.page_out.joules for c in contents if c.page_out is not None}
        written = math.fsum(outs[step.tensor] for step in schedule if isinstance(step, PageOut))
        overhead = trace.joules - self.standing.baseline_joules
        is_open = trace.joules - self.standing.bound.joules > self.tuning.open_share * overhead
        is_large = overhead > self.tuning.overhead_share * self.standing.baseline_joules
        return is_open and is_large and written >= self.tuning.written_share * overhead

    def _sets(self) -> Iterator[frozenset[str]]:
        """Tensors that may be written: of the relaxation first, then neighbours of the best plan's."""
        for share in self.tuning.less_ram_shares:
            names = rounded_copies(
                self.standing.instance,
                share,
                clock=self.standing.clock,
                end=self._end,
                finished=self.standing.finished,
            )
            if 0 < len(names) <= self.tuning.most_tensors:
                yield names | self._fillers(names)
        able = {t.name: float(t.bytes + 1) for t in self.standing.problem.tensors if t.page_out and t.page_in}
        while True:
            own = self._own()
            others = [name for name in able if name not in own]
            if not others:
                return
            count = min(int(self._others), len(others))
            weights = [able[name] for name in others]
            begun = self.standing.clock.now()
            yield own | frozenset(self._random.choices(others, weights, k=count))
            share = (self.standing.clock.now() - begun) / self.tuning.model_seconds
            self._resize(share)

    def _resize(self, share: float) -> None:
        """The next neighbour is larger if the last model took little of its time, and is offered longer
        chains of reruns; smaller if it took all.
        """
        if share < self.tuning.easy_share:
            self._others *= self.tuning.growth_factor
            self._depth *= 2
        elif share >= 1.0:
            self._others = max(1.0, self._others / self.tuning.growth_factor)

    def _chains(self) -> Reruns:
        """All chains of `_depth` reruns that lead to what an op reads, in its stage and the calmest one not
        long before; shorter ones where these are too many.
        """
        instance, window = self.standing.instance, self.tuning.ahead_stages
        while self._depth > 1:
            chains = candidates(instance, self._depth, window=window)
            if sum(map(len, chains.values())) <= self.tuning.most_slots:
                return chains
            self._depth //= 2
        return {}

    def _fillers(self, names: frozenset[str]) -> frozenset[str]:
        """One of each size below the largest of ``names`` of what is there when the step begins, none being
        among them: what these leave over is filled up by small ones, not by one more large one.
        """
        problem = self.standing.problem
        made = {name for op in problem.ops for name in op.outputs}
        able = [t for t in problem.tensors if t.page_out and t.page_in and t.name not in made]
        largest = max(t.bytes for t in problem.tensors if t.name in names)
        least = self.tuning.filler_share * largest
        first: dict[int, str] = {t.bytes: t.name for t in reversed(able) if least <= t.bytes < largest}
        there = {t.bytes for t in problem.tensors if t.name in names}
        return frozenset(name for size, name in first.items() if size not in there)

    def _own(self) -> frozenset[str]:
        """What the best plan writes, or has at home in storage."""
        schedule = self.standing.best.schedule
        return frozenset() if schedule is None else _written(self.standing.problem, schedule)

    def _solve(self, names: frozenset[str], offered: dict[int, tuple[int, ...]]) -> bool:
        """The best plan that writes no other tensors, unless that is known; true where none is better than
        the best plan so far.
        """
        key = names, frozenset(offered.items())
        if key in self._ended:
            return True
        seconds = min(self.tuning.model_seconds, self._end - self.standing.clock.now())
        if seconds <= 0.0 or self.standing.finished():
            return False
        problem = storing_only(self.standing.problem, names)
        instance = instance_of(
            problem,
            self.standing.limits,
            serial=self.standing.instance.serial,
            metered=self.standing.best.metered,
            tuning=self.standing.options.tuning,
        )
        outcome = self.runs.improve(instance, offered, seconds, contains_best=self._own() <= names)
        if outcome.done or outcome.infeasible:
            self._ended.add(key)
        word = "no better plan" if outcome.infeasible else "solved" if outcome.done else "cut short"
        _log.info("%d tensors may be written: %s", len(names), word)
        return outcome.infeasible


def storing_only(problem: Problem, names: frozenset[str]) -> Problem:
    """``problem`` where of all tensors that need not be written ``names`` alone may be, or be at home in
    storage.
    """
    choices = undecided(problem)
    problem = decide_some(problem, in_ram=[name for name in choices if name not in names])
    return replace(
        problem,
        tensors=tuple(
            tensor
            if tensor.name in names or Place.STORAGE in (tensor.initially, tensor.finally_)
            else replace(tensor, page_out=None)
            for tensor in problem.tensors
        ),
    )


def _written(problem: Problem, schedule: Schedule) -> frozenset[str]:
    away = stored_between_steps(problem, schedule, undecided(problem))
    return away | {step.tensor for step in schedule if isinstance(step, PageOut)}
