"""Local search over which tensors may be written to storage: list scheduling makes a plan of each such set.

On flash a page-out may cost as much as whole steps, and whatever its size at least a sector's; so which
tensors are written decides a plan in little RAM, more than when each of them leaves. What is not in the set
is remade; how, and what has to leave at which moment, the list scheduler finds by exact memory. Neighbours of
a set have a tensor more or less, another one in its place, or weigh prices against bytes differently.
The first sets are those of what was there before the step, such as parameters, from a size on: no rerun makes
them, and large ones give most bytes for a sector. Where the plan chooses homes, a tensor that may be written
may be at home in storage as well, and neighbours differ in that too.
Slightly worse plans are gone on from as well (threshold accepting: Dueck and Scheuer 1990).
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from poet.clock import Clock
from poet.errors import InvalidSchedule
from poet.homes import decide, stored_between_steps, undecided
from poet.problem import Limits, Problem
from poet.schedule import PageOut, Schedule
from poet.simulator import simulate
from poet.solvers.heuristics.judged import walked
from poet.solvers.heuristics.list_scheduler import Policy, Tensors, Values, Walk, Way
from poet.solvers.instance.indexed import Facts
from poet.tuning.heuristics import CopiesSearchTuning


class Allowed(Policy):
    """Writes what is in ``copies`` when it has to leave, and remakes the rest where that can be.

    What is large, needed late and cheap to have back leaves first.

    Args:
        copies: tensors by index that may be written.
        exponent: of the joules of coming back; below 1 the bytes count for more.
    """

    unplanned = Way.REMAKE

    def __init__(self, copies: frozenset[int], exponent: float) -> None:
        self.copies, self.exponent = copies, exponent

    def mark(self, walk: Walk, tensor: int) -> Way | None:
        """Paged, where it may be written."""
        return Way.PAGE if tensor in self.copies else None

    def values(self, walk: Walk, tensors: Tensors) -> Values:
        """Bytes × ops until the next need, per joule; of all at once, as a search asks for many plans."""
        until = np.minimum(walk.distances(tensors) - 1, walk.facts.op_count - walk.position) + 0.5
        # one by one: numpy's power differs in the last bit with what the processor can do, and so would plans
        prices = [math.pow(price, self.exponent) for price in self._prices(walk, tensors)]
        return walk.facts.sizes[tensors] * until / (np.array(prices) + 1e-30)

    def _prices(self, walk: Walk, tensors: Tensors) -> list[float]:
        """Joules of coming back: those of `copies` by page-in, what else there is by being made again."""
        prices: list[float] = walk.prices[tensors].tolist()
        for place, tensor in enumerate(tensors.tolist()):
            if tensor in self.copies:
                prices[place] = walk.page_price(tensor)
            elif math.isnan(prices[place]):
                prices[place] = walk.prices[tensor] = walk.remake_price(tensor)
        return prices


def better_copies(
    problem: Problem,
    limits: Limits,
    start: Schedule,
    tuning: CopiesSearchTuning,
    *,
    seed: int,
    clock: Clock,
    finished: Callable[[], bool],
    anew: bool = True,
) -> Iterator[Schedule]:
    """Schedules of less and less energy, each better than ``start``, until many tries brought none.

    Args:
        problem: what to plan.
        limits: what to stay within.
        start: a valid plan, whose copies come first.
        tuning: how long to go on.
        seed: of the random choices.
        clock: that hears of each try.
        finished: asked before each try; whether to stop.
        anew: whether to try the sets by size first.
    """
    if tuning.patience_tries == 0 or not limits.paging:
        return
    search = _Search(problem, limits, start, tuning, clock)
    if any(search.able.values()):
        if anew:
            yield from search.by_size(finished)
        yield from search.walk(random.Random(seed), finished)  # noqa: S311 - a search, not a secret


class _Search:
    """Sets that were tried: where a walk from one to the next stands, and the best one.

    Args:
        problem, limits, start, tuning, clock: of `better_copies`.

    Attributes:
        able: tensors that may be written, and their bytes.
    """

    def __init__(
        self, problem: Problem, limits: Limits, start: Schedule, tuning: CopiesSearchTuning, clock: Clock
    ) -> None:
        self.problem, self.limits, self.tuning, self.clock = problem, limits, tuning, clock
        self._index = {tensor.name: number for number, tensor in enumerate(problem.tensors)}
        self.able = {
            self._index[t.name]: t.bytes
            for t in problem.tensors
            if t.page_out is not None and t.page_in is not None
        }
        self._choices = frozenset(self._index[name] for name in undecided(problem))
        self._facts = lru_cache(maxsize=tuning.facts_kept)(self._facts_of)
        self._least_joules = simulate(problem, start, limits).joules
        stored = stored_between_steps(
            problem, start, [problem.tensors[number].name for number in self._choices]
        )
        homes = frozenset(self._index[name] for name in stored)
        first = _Asked(_written(start, self._index) | homes, tuning.exponents[0], homes)
        self._here = self._best = _Walked(math.inf, first)

    def by_size(self, finished: Callable[[], bool]) -> Iterator[Schedule]:
        """Better schedules, of what is there when the step begins, from a size on."""
        for asked in _by_size(self.problem, self.able, self._choices, self.tuning):
            if finished():
                return
            schedule, joules = self._tried(asked, min(self._best.joules, self._least_joules))
            if schedule is not None:
                self._here = self._best = _Walked(joules, asked)
                yield schedule

    def walk(self, generator: random.Random, finished: Callable[[], bool]) -> Iterator[Schedule]:
        """Better schedules, from one set to its neighbours, until many tries brought none."""
        tries = 0
        while tries < self.tuning.patience_tries and not finished():
            tries += 1
            asked, begun = self._here.asked, math.isfinite(self._here.joules)
            if begun:
                asked = asked.neighbour(self.able, self._choices, generator, self.tuning)
            worse = 1.0 + self.tuning.worse_share * generator.random()
            schedule, joules = self._tried(asked, self._here.joules * worse)
            if schedule is None and not begun:
                return  # list scheduling finds no plan here
            if schedule is not None:
                written = _written(schedule, self._index)
                self._here = _Walked(joules, asked._replace(copies=written | asked.homes))
            if schedule is not None and joules < self._best.joules * (1.0 - 1e-9):
                self._best, tries = self._here, 0
                if joules < self._least_joules:
                    yield schedule
            elif tries % self.tuning.return_tries == 0:
                self._here = self._best

    def _tried(self, asked: _Asked, most_joules: float) -> tuple[Schedule | None, float]:
        """What list scheduling makes of it, and its joules by the judge; ``None`` where there is no plan of
        ``most_joules``.
        """
        self.clock.spend(schedules=self.tuning.try_schedules)
        policy = Allowed(asked.copies, asked.exponent)
        schedule = walked(self._facts(asked.homes), self.limits, policy, most_joules=most_joules)
        try:
            joules = math.inf if schedule is None else simulate(self.problem, schedule, self.limits).joules
        except InvalidSchedule:
            joules = math.inf
        return (schedule, joules) if joules <= most_joules else (None, math.inf)

    def _facts_of(self, homes: frozenset[int]) -> Facts:
        return Facts(decide(self.problem, frozenset(self.problem.tensors[number].name for number in homes)))


def _by_size(
    problem: Problem, able: dict[int, int], choices: frozenset[int], tuning: CopiesSearchTuning
) -> list[_Asked]:
    """Sets of what is there when the step begins, of each size and above, with exponents of prices; where
    homes are chosen, at home in RAM and in storage.
    """
    made = {tensor for op in problem.ops for tensor in op.outputs}
    there = {number: size for number, size in able.items() if problem.tensors[number].name not in made}
    sizes = sorted({size for size in there.values() if size}, reverse=True)
    sets = [frozenset(number for number in there if there[number] >= size) for size in sizes]
    return [
        _Asked(some, exponent, homes)
        for some in sets
        for homes in dict.fromkeys((frozenset[int](), some & choices))
        for exponent in tuning.first_exponents
    ]


class _Asked(NamedTuple):
    """What list scheduling is given.

    Attributes:
        copies: tensors that may be written.
        exponent: of `Allowed`.
        homes: those of ``copies`` that are at home in storage, where that is chosen.
    """

    copies: frozenset[int]
    exponent: float
    homes: frozenset[int]

    def neighbour(
        self,
        able: dict[int, int],
        choices: frozenset[int],
        generator: random.Random,
        tuning: CopiesSearchTuning,
    ) -> _Asked:
        """A set with a tensor less, one more, or another one, large ones first; or another exponent."""
        (more,) = generator.choices(list(able), list(able.values()))
        if generator.random() < tuning.exponent_share:
            return self._replace(exponent=generator.choice(tuning.exponents))
        kind = generator.randrange(3) if self.copies else 1
        without = self.copies - {generator.choice(sorted(self.copies))} if kind != 1 else self.copies
        copies = without | {more} if kind else without
        homes = self.homes & copies
        if kind and more in choices and generator.random() < tuning.home_share:
            homes ^= {more}
        return _Asked(copies, self.exponent, homes)


@dataclass(frozen=True, slots=True)
class _Walked:
    """What list scheduling made a plan of, and the plan's joules."""

    joules: float
    asked: _Asked


def _written(schedule: Schedule, index: dict[str, int]) -> frozenset[int]:
    return frozenset(index[step.tensor] for step in schedule if isinstance(step, PageOut))
