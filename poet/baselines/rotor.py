"""Dynamic programming on chains: Beaumont et al., "Optimal Checkpointing for Heterogeneous Chains:
How to Train Deep Neural Networks with Limited Memory" (rotor, 2019), and with offloading Beaumont
et al., "Efficient Combination of Rematerialization and Offloading for Training DNNs" (POFO, 2021).

With ``f`` the price of a stage's forward ops, ``a`` the bytes of the tensor it hands on and ``A`` of
those it saves for backward, the least price of doing stages s to t forward and back in m bytes, what
enters s being there, is

    C(s, t, m) = min( f_s + C(s+1, t, m - A_s),                                 keep what s saves
                      f_s + … + f_r-1 + C(r, t, m - a_r-1) + C(s, r-1, m) )     keep a checkpoint

over all r, each option only where m holds its fullest moment: forward, beside the gradient that waits,
and backward, beside what was saved. POFO may also write instead of keep, at the price of the transfers
and of no memory. Memory is counted in units, sizes rounded up; as that wastes some, and as a step is
rarely quite a chain, the program is also solved with somewhat more and less memory; the simulator decides.
A rerun is left out where its result can stay instead. Where stages are so coarse that no order fits,
what the program keeps guides the list scheduler, which counts memory exactly.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from poet.baselines.chain import Stage, chain_of, needed_runs, schedule_of_runs
from poet.errors import InvalidSchedule
from poet.problem import Limits, Place, Problem
from poet.problem.schedule import Schedule
from poet.problem.simulator import simulate
from poet.solvers.heuristics.gap_arrays import Way
from poet.solvers.heuristics.policies import Policy, Walk, walked
from poet.solvers.instance.incumbent import Incumbent
from poet.solvers.instance.instance import Facts

_Joules = npt.NDArray[np.float64]

MEMORY_UNITS = 500
"""That the program counts memory in (rotor's default); a size is rounded by a fifth of a per cent at most."""

MEMORY_FACTORS = (1.0, 1.01, 1.03, 1.07, 1.15, 0.95, 0.9, 0.8, 0.65)
"""Of the memory, a program each; with 1 alone, what rounding and forks take has no room or is wasted."""

GUIDED_WALKS = 16
"""List schedules by the program, with less and less memory; without, coarse stages have no plan."""

PRUNED_OPS = 10_000
"""Simulated while reruns are left out one by one; without a limit, that grows with the square of a step."""


def rotor(problem: Problem, limits: Limits) -> Schedule | None:
    """Recomputation by the program over the stages, without paging; ``None`` where it does not fit."""
    return _best(problem, limits, [replace(limits, paging=False)])


def pofo(problem: Problem, limits: Limits) -> Schedule | None:
    """Recomputation and paging by the program over the stages; ``None`` where it does not fit."""
    return _best(problem, limits, [replace(limits, paging=False), limits])


def _best(problem: Problem, limits: Limits, permissions: list[Limits]) -> Schedule | None:
    facts, best = Facts(problem), Incumbent(problem, limits)
    stages = chain_of(facts)
    for allowed in permissions:
        for stretch in MEMORY_FACTORS:
            program = _Program(facts, stages, allowed, stretch)
            if not math.isinf(program.least):
                runs = tuple(program.runs())
                for paged in {frozenset(program.paged), frozenset[int]()}:
                    best.consider(_pruned(facts, runs, paged, allowed))
        rough = _Program(facts, stages, allowed, 1.0, exact=False)
        for part in range(GUIDED_WALKS, -1, -1):
            level = MEMORY_UNITS * part // GUIDED_WALKS
            best.consider(walked(facts, allowed, _ByStage(facts, stages, rough.choices(level))))
    return best.schedule


def _pruned(facts: Facts, runs: tuple[int, ...], paged: frozenset[int], limits: Limits) -> Schedule | None:
    """The order as a schedule, without the reruns whose result can stay as well, most expensive first."""
    best = _schedule(facts, runs, paged, limits)
    if best is None:
        return None
    runs = tuple(op for op, _ in needed_runs(facts, runs))
    seen = set[int]()
    again = []
    for place, op in enumerate(runs):
        if op in seen:
            again.append(place)
        seen.add(op)
    left_out = set[int]()
    tries = PRUNED_OPS // max(len(runs), 1)
    for place in sorted(again, key=lambda place: -facts.problem.ops[runs[place]].joules)[:tries]:
        fewer = tuple(op for at, op in enumerate(runs) if at not in left_out and at != place)
        schedule = _schedule(facts, fewer, paged, limits)
        if schedule is not None:
            left_out.add(place)
            best = schedule
    return best


def _schedule(facts: Facts, runs: tuple[int, ...], paged: frozenset[int], limits: Limits) -> Schedule | None:
    """The order as a schedule; ``None`` where the simulator rejects it for more than its time."""
    schedule = schedule_of_runs(facts, runs, paged)
    if schedule is None:
        return None
    try:
        simulate(facts.problem, schedule, replace(limits, deadline_seconds=None))
    except InvalidSchedule:
        return None
    return schedule


@dataclass(frozen=True, slots=True)
class _Choice:
    """While backward is at a stage: forward tensors that stay, and those that wait in storage."""

    kept: frozenset[int]
    paged: frozenset[int]


class _Program:
    """``C`` for all s, t and units of memory, and the option that attains it.

    Attributes:
        least: joules of the forward runs and transfers of the whole chain; infinite: it does not fit.
        paged: tensors that wait in storage, once `runs` has been read to its end.
    """

    def __init__(
        self, facts: Facts, stages: tuple[Stage, ...], limits: Limits, stretch: float, *, exact: bool = True
    ) -> None:
        self.stages, sizes, self.exact = stages, facts.size, exact
        self.paged: set[int] = set()
        budget = sum(sizes) if limits.ram_budget_bytes is None else limits.ram_budget_bytes
        free_bytes = stretch * (budget - sum(sizes[tensor] for tensor in facts.starts_in_ram))
        self.unit = max(free_bytes, 1.0) / MEMORY_UNITS
        self.memory = np.arange(MEMORY_UNITS + 1) * self.unit
        self.saved_bytes = [sum(sizes[t] for t in stage.saved) for stage in stages]
        self.checkpoint_bytes = [sizes[stage.hands_on] if stage.hands_on >= 0 else 0 for stage in stages]
        move = [
            tensor.page_in.joules + tensor.page_out.joules
            if tensor.page_in
            and tensor.page_out
            and (limits.paging or Place.STORAGE in (tensor.initially, tensor.finally_))
            else math.inf
            for tensor in facts.problem.tensors
        ]
        self.saved_price = [sum(move[t] for t in stage.saved) for stage in stages]
        self.checkpoint_price = [move[s.hands_on] if s.hands_on >= 0 else math.inf for s in stages]
        self.may_rerun = limits.recompute
        count = len(stages)
        self.cost = np.zeros((count + 1, count + 1, MEMORY_UNITS + 1))
        self.option = np.zeros((count, count, MEMORY_UNITS + 1), dtype=int)
        for length in range(1, count + 1):
            for first in range(count - length + 1):
                options = np.stack(list(self._options(first, first + length - 1)))
                self.option[first, first + length - 1] = options.argmin(axis=0)
                self.cost[first, first + length] = options.min(axis=0)
        self.least = float(self.cost[0, count, MEMORY_UNITS])

    def _options(self, first: int, last: int) -> Iterator[_Joules]:
        """In turn: keep or page what ``first`` saves; keep or page the checkpoint before each r."""
        stage = self.stages[first]
        waiting = self.stages[last].waiting_bytes
        after = stage.joules + self.cost[first + 1, last + 1]
        most = max(waiting + stage.keeping_bytes, self.saved_bytes[first] + stage.backward_bytes)
        fits = self._holds(most)
        yield self._with_less(after, self.saved_bytes[first]) + fits
        yield after + self.saved_price[first] + fits
        forward, most, rerunnable = 0.0, 0, self.may_rerun
        for r in range(first + 1, last + 1):
            before = self.stages[r - 1]
            entering = self.checkpoint_bytes[r - 2] if r - 1 > first else 0
            forward += before.joules
            rerunnable &= before.rerunnable
            most = max(most, waiting + entering + before.forward_bytes)
            again = forward + self.cost[first, r] if rerunnable else np.full(MEMORY_UNITS + 1, math.inf)
            again = again + self._holds(most)
            rest = self.cost[r, last + 1]
            yield again + self._with_less(rest, self.checkpoint_bytes[r - 1])
            yield again + rest + self.checkpoint_price[r - 1]

    def _holds(self, most_bytes: int) -> _Joules:
        """Nothing, and an infinite price where memory does not hold so much; a rough program ignores it."""
        return np.where((self.memory >= most_bytes) | (not self.exact), 0.0, math.inf)

    def _with_less(self, cost: _Joules, size_bytes: int) -> _Joules:
        """``cost`` as a function of memory, with ``size_bytes`` of it taken."""
        units = math.ceil(size_bytes / self.unit)
        shifted = np.full_like(cost, math.inf)
        if units < len(cost):
            shifted[units:] = cost[: len(cost) - units]
        return shifted

    def runs(self) -> Iterator[int]:
        """The ops in the order that the program decided on."""
        return self._order(0, len(self.stages) - 1, MEMORY_UNITS)

    def _decisions(
        self, first: int, last: int, level: int
    ) -> Iterator[tuple[int, int, int, bool, tuple[int, ...]]]:
        """On the way forward: stage, the stage behind its checkpoint (itself: what it saves is kept instead),
        memory that there is, whether tensors wait in storage, and which.
        """
        stage = first
        while stage <= last:
            option = int(self.option[stage, last, level])
            paging, r = option % 2 == 1, stage + option // 2
            tensors = self.stages[stage].saved if r == stage else (self.stages[r - 1].hands_on,)
            yield stage, r, level, paging, tensors
            if not paging:
                size = self.saved_bytes[stage] if r == stage else self.checkpoint_bytes[r - 1]
                level = max(level - math.ceil(size / self.unit), 0)
            stage = max(r, stage + 1)

    def _order(self, first: int, last: int, level: int) -> Iterator[int]:
        """Forward and back through ``first`` to ``last``."""
        left = []
        for stage, r, room, paging, tensors in self._decisions(first, last, level):
            left.append((stage, r - 1, room))
            for again in range(stage, max(r, stage + 1)):
                yield from self.stages[again].forward
            self.paged.update(tensors if paging else ())
        for begin, end, room in reversed(left):
            if end < begin:
                yield from self.stages[begin].backward
            else:
                yield from self._order(begin, end, room)

    def choices(self, level: int) -> list[_Choice]:
        """Per stage that backward is at, what stays and what waits in storage, with ``level`` memory."""
        choices = [_Choice(frozenset(), frozenset())] * len(self.stages)
        self._choose(0, len(choices) - 1, level, choices[0], choices)
        return choices

    def _choose(self, first: int, last: int, level: int, around: _Choice, choices: list[_Choice]) -> None:
        here, left = around, []
        for stage, r, room, paging, tensors in self._decisions(first, last, level):
            if r > stage:
                left.append((stage, r - 1, room, here))
            more = frozenset(tensors)
            here = _Choice(here.kept, here.paged | more) if paging else _Choice(here.kept | more, here.paged)
        choices[first : last + 1] = [here] * (last + 1 - first)
        for begin, end, room, before in left:
            self._choose(begin, end, room, before, choices)


class _ByStage(Policy):
    """Follows the program: what stays depends on the stage that backward is at."""

    eager = True

    def __init__(self, facts: Facts, stages: tuple[Stage, ...], choices: list[_Choice]) -> None:
        self.choices, self.turn = choices, stages[-1].forward[-1]
        self.stage_of = {
            tensor: number
            for number, stage in enumerate(stages)
            for op in stage.forward
            for tensor in facts.outputs[op]
        }
        self.stage_at = [len(stages) - 1] * (facts.op_count + 1)
        for number, stage in enumerate(stages):
            for op in stage.backward:
                self.stage_at[op] = number
        self.stage_at[facts.op_count] = 0

    def mark(self, walk: Walk, tensor: int) -> Way | None:
        stage, need = self.stage_of.get(tensor), walk.need(tensor)
        at = self.stage_at[walk.position]
        forward = walk.position <= self.turn
        if stage is None or need == walk.position or (forward and need <= self.turn):
            return None
        choice = self.choices[at]
        if (stage >= at and not forward) or tensor in choice.kept:
            return None
        return Way.PAGE if tensor in choice.paged else Way.REMAKE
