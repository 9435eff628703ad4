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

from poet.clock import Clock
from poet.errors import InvalidSchedule
from poet.homes import decide, stored_between_steps, undecided
from poet.problem import Limits, Problem
from poet.schedule import PageOut, Schedule
from poet.simulator import simulate
from poet.solvers.heuristics.judged import walked
from poet.solvers.heuristics.list_scheduler import Policy, Walk, Way
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

    def value(self, walk: Walk, tensor: int) -> float:
        """Bytes × ops until the next need, per joule."""
        need = walk.next_need(tensor)
        ops = (walk.facts.op_count if need is None else need) - walk.position + 0.5
        return walk.facts.size[tensor] * ops / (math.pow(self._price(walk, tensor), self.exponent) + 1e-30)

    def _price(self, walk: Walk, tensor: int) -> float:
        if tensor in self.copies:
            return walk.page_price(tensor)
        price = float(walk.prices[tensor])
        if math.isnan(price):
            price = walk.prices[tensor] = walk.remake_price(tensor)
        return price


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
    generator = random.Random(seed)  # noqa: S311 - a search, not a secret
    index = {tensor.name: number for number, tensor in enumerate(problem.tensors)}
    choices = frozenset(index[name] for name in undecided(problem))

    @lru_cache(maxsize=tuning.facts_kept)
    def facts(homes: frozenset[int]) -> Facts:
        return Facts(decide(problem, frozenset(problem.tensors[number].name for number in homes)))

    def scheduled(asked: _Asked) -> Schedule | None:
        clock.spend(schedules=tuning.try_schedules)
        return walked(facts(asked.homes), limits, Allowed(asked.copies, asked.exponent))

    able = {
        index[t.name]: t.bytes for t in problem.tensors if t.page_out is not None and t.page_in is not None
    }
    if not any(able.values()):
        return
    least_joules = simulate(problem, start, limits).joules
    stored = stored_between_steps(problem, start, [problem.tensors[number].name for number in choices])
    homes = frozenset(index[name] for name in stored)
    here = best = _Walked(math.inf, _Asked(_written(start, index) | homes, tuning.exponents[0], homes))
    tries, by_size = 0, _by_size(problem, able, choices, tuning) if anew else []
    while by_size and not finished():
        asked = by_size.pop(0)
        schedule = scheduled(asked)
        joules = _joules(problem, limits, schedule)
        if schedule is not None and joules is not None and joules < min(best.joules, least_joules):
            here = best = _Walked(joules, asked)
            yield schedule
    while tries < tuning.patience_tries and not finished():
        tries += 1
        begun = math.isfinite(here.joules)
        asked = here.asked.neighbour(able, choices, generator, tuning) if begun else here.asked
        schedule = scheduled(asked)
        joules = _joules(problem, limits, schedule)
        if schedule is None or joules is None:
            if not begun:
                return  # list scheduling finds no plan here
            continue
        if joules <= here.joules * (1.0 + tuning.worse_share * generator.random()):
            here = _Walked(joules, asked._replace(copies=_written(schedule, index) | asked.homes))
        if joules < best.joules * (1.0 - 1e-9):
            best, tries = here, 0
            if joules < least_joules:
                yield schedule
        elif tries % tuning.return_tries == 0:
            here = best


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


def _joules(problem: Problem, limits: Limits, schedule: Schedule | None) -> float | None:
    """By the judge; ``None`` where it does not accept the schedule."""
    try:
        return None if schedule is None else simulate(problem, schedule, limits).joules
    except InvalidSchedule:
        return None
