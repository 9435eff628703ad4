"""Dynamic programming on chains: Beaumont et al., "Optimal Checkpointing for Heterogeneous Chains:
How to Train Deep Neural Networks with Limited Memory" (rotor, 2019), and with offloading Beaumont
et al., "Efficient Combination of Rematerialization and Offloading for Training DNNs" (POFO, 2021).

The forward pass is cut wherever a single tensor crosses, so a residual block is one stage. With
``f`` the price of a stage's forward ops, ``a`` the bytes of the tensor it hands on and ``A`` those
it saves for backward, the least price of stages s to t in m bytes, what enters s being there, is

    C(s, t, m) = min( f_s + C(s+1, t, m - A_s),                                 keep what s saves
                      f_s + … + f_r-1 + C(r, t, m - a_r-1) + C(s, r-1, m) )     keep a checkpoint

over all r, and POFO may write instead of keep, at the price of the transfers and of no memory. The
papers' programs order whole schedules; here they decide what is kept, and a walk with exact memory
does the rest. The turn from forward to backward is where most bytes wait.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from poet.problem import Limits, Problem
from poet.schedule import Schedule
from poet.solvers.facts import Facts
from poet.solvers.judged import Cheapest, walked
from poet.solvers.walk import Policy, Walk, Way, Weights

_Joules = npt.NDArray[np.float64]

_LEVELS = 64  # of memory, at which the program is tabulated
_MOST_STAGES = 48


def rotor(problem: Problem, limits: Limits) -> Schedule | None:
    """Recomputation by the program over the stages, without paging; ``None`` where it does not fit."""
    return _best(problem, limits, [replace(limits, paging=False)])


def pofo(problem: Problem, limits: Limits) -> Schedule | None:
    """Recomputation and paging by the program over the stages; ``None`` where it does not fit."""
    return _best(problem, limits, [limits, replace(limits, paging=False)])


def _best(problem: Problem, limits: Limits, permissions: list[Limits]) -> Schedule | None:
    facts, best = Facts(problem), Cheapest(problem, limits)
    chain = _Chain(facts)
    for allowed in permissions:
        program = _Program(chain, allowed)
        for level in range(_LEVELS, -1, -_LEVELS // 16):  # the program knows no workspaces and gradients
            best.consider(walked(facts, allowed, _ByStage(chain, program.choices(level))))
    return best.schedule


class _Chain:
    """The forward stages of a problem, and which one backward is at.

    Attributes:
        turn: the last forward op.
        boundary: per stage the tensor that it hands on; -1 for the last.
        saved: per stage the tensors that backward reads, and the boundary.
        joules: per stage of running its forward ops, idle power included.
        rerunnable: per stage whether all of them may run again.
        stage_of: of forward's tensors.
        stage_at: per op the deepest stage whose tensors are still needed.
    """

    def __init__(self, facts: Facts) -> None:
        self.facts = facts
        self.turn = _turn(facts)
        ends = _cuts(facts, self.turn)
        step = -(-len(ends) // _MOST_STAGES)
        cuts = ends[step - 1 :: step] if step > 1 else ends
        self.boundary = [tensor for _, tensor in cuts] + [-1]
        self.saved: list[list[int]] = [[] for _ in self.boundary]
        self.joules = [0.0] * len(self.boundary)
        self.rerunnable = [True] * len(self.boundary)
        self.stage_of: dict[int, int] = {}
        ops, lasts, stage = facts.problem.ops, [op for op, _ in cuts], 0
        for index in range(self.turn + 1):
            stage += stage < len(lasts) and index > lasts[stage]
            self.joules[stage] += ops[index].joules + facts.problem.idle_watts * ops[index].seconds
            self.rerunnable[stage] &= facts.rerun_limit[index] > self.turn or not ops[index].outputs
            for tensor in facts.outputs[index]:
                self.stage_of[tensor] = stage
                later = facts.next_use(tensor, self.turn + 1)
                if later is not None or tensor == self.boundary[stage]:
                    self.saved[stage].append(tensor)
        self.stage_at = self._stage_at()

    def _stage_at(self) -> list[int]:
        last_use = [-1] * len(self.boundary)
        for tensor, stage in self.stage_of.items():
            uses = [use for use in self.facts.uses[tensor] if use < self.facts.op_count]
            last_use[stage] = max([last_use[stage], *uses[-1:]])
        deepest = len(self.boundary) - 1
        stages = []
        for op in range(self.facts.op_count + 1):
            while deepest > 0 and op > self.turn and last_use[deepest] < op:
                deepest -= 1
            stages.append(deepest)
        return stages


def _turn(facts: Facts) -> int:
    """The op during which the most bytes wait for a later use."""
    change = np.zeros(facts.op_count + 2)
    for tensor, producer in enumerate(facts.producer):
        for before, after in itertools.pairwise([producer, *facts.uses[tensor]] if producer >= 0 else []):
            change[before + 1] += facts.size[tensor]
            change[after] -= facts.size[tensor]
    return int(np.argmax(np.cumsum(change)[: max(facts.op_count, 1)]))


def _cuts(facts: Facts, turn: int) -> list[tuple[int, int]]:
    """The forward ops after which a single tensor is handed on, and that tensor."""
    count, names = np.zeros(turn + 2, dtype=int), np.zeros(turn + 2, dtype=int)
    for tensor, producer in enumerate(facts.producer):
        forward = [use for use in facts.uses[tensor] if use <= turn]
        if 0 <= producer < turn and forward:
            for array, amount in ((count, 1), (names, tensor)):
                array[producer] += amount
                array[forward[-1]] -= amount
    counts, sums = np.cumsum(count), np.cumsum(names)
    return [(op, int(sums[op])) for op in range(turn) if counts[op] == 1]


@dataclass(frozen=True, slots=True)
class _Choice:
    """While backward is at a stage: forward tensors that stay, and those that wait in storage."""

    kept: frozenset[int]
    paged: frozenset[int]


class _Program:
    """``C`` for all s, t and levels of memory, and the option that attains it."""

    def __init__(self, chain: _Chain, limits: Limits) -> None:
        self.chain, sizes = chain, chain.facts.size
        budget = limits.ram_budget_bytes
        unit = (sum(sizes) if budget is None else budget) / _LEVELS or 1.0
        saved_bytes = [sum(sizes[t] for t in saved) for saved in chain.saved]
        checkpoint_bytes = [sizes[tensor] if tensor >= 0 else 0 for tensor in chain.boundary]
        self.saved_levels = [math.ceil(size / unit) for size in saved_bytes]
        self.checkpoint_levels = [math.ceil(size / unit) for size in checkpoint_bytes]
        prices = Walk(chain.facts, limits, Policy(), Weights())
        move = [
            prices.in_price[t] + prices.out_price[t] if prices.may_move(t) else math.inf
            for t in range(chain.facts.tensor_count)
        ]
        self.saved_price = [sum(move[t] for t in saved) for saved in chain.saved]
        self.checkpoint_price = [move[tensor] if tensor >= 0 else math.inf for tensor in chain.boundary]
        stages = len(chain.boundary)
        self.cost = np.zeros((stages + 1, stages + 1, _LEVELS + 1))
        self.option = np.zeros((stages, stages, _LEVELS + 1), dtype=int)
        for length in range(1, stages + 1):
            for first in range(stages - length + 1):
                options = np.stack(self._options(first, first + length - 1))
                self.option[first, first + length - 1] = options.argmin(axis=0)
                self.cost[first, first + length] = options.min(axis=0)

    def _options(self, first: int, last: int) -> list[_Joules]:
        """In turn: keep or page what ``first`` saves; keep or page the checkpoint before each r."""
        forward, after = self.chain.joules[first], self.cost[first + 1, last + 1]
        options = [
            forward + _with_less(after, self.saved_levels[first]),
            forward + after + self.saved_price[first],
        ]
        for r in range(first + 1, last + 1):
            again = forward if all(self.chain.rerunnable[first:r]) else math.inf
            again = again + self.cost[first, r]
            rest = self.cost[r, last + 1]
            options.append(again + _with_less(rest, self.checkpoint_levels[r - 1]))
            options.append(again + rest + self.checkpoint_price[r - 1])
            forward += self.chain.joules[r]
        return options

    def choices(self, level: int) -> list[_Choice]:
        """Per stage that backward is at, what stays and what waits in storage, with ``level`` memory."""
        choices = [_Choice(frozenset(), frozenset())] * len(self.chain.boundary)
        self._choose(0, len(choices) - 1, level, _Choice(frozenset(), frozenset()), choices)
        return choices

    def _choose(self, first: int, last: int, level: int, around: _Choice, choices: list[_Choice]) -> None:
        kept, paged = set(around.kept), set(around.paged)
        left: list[tuple[int, int, int, _Choice]] = []
        stage = first
        while stage <= last:
            option = int(self.option[stage, last, level])
            paging, r = option % 2 == 1, stage + option // 2
            if r == stage:
                (paged if paging else kept).update(self.chain.saved[stage])
                level -= 0 if paging else self.saved_levels[stage]
            else:
                left.append((stage, r - 1, level, _Choice(frozenset(kept), frozenset(paged))))
                (paged if paging else kept).add(self.chain.boundary[r - 1])
                level -= 0 if paging else self.checkpoint_levels[r - 1]
            stage, level = max(r, stage + 1), max(level, 0)
        choices[first : last + 1] = [_Choice(frozenset(kept), frozenset(paged))] * (last + 1 - first)
        for begin, end, room, before in left:
            self._choose(begin, end, room, before, choices)


def _with_less(cost: _Joules, levels: int) -> _Joules:
    """``cost`` as a function of memory, with ``levels`` of it taken."""
    shifted = np.full_like(cost, math.inf)
    if levels < len(cost):
        shifted[levels:] = cost[: len(cost) - levels]
    return shifted


class _ByStage(Policy):
    """Follows the program: what stays depends on the stage that backward is at."""

    eager = True

    def __init__(self, chain: _Chain, choices: list[_Choice]) -> None:
        self.chain, self.choices = chain, choices

    def mark(self, walk: Walk, tensor: int) -> Way | None:
        stage, need = self.chain.stage_of.get(tensor), walk.next_need(tensor)
        at = self.chain.stage_at[walk.position]
        forward = walk.position <= self.chain.turn
        if stage is None or need is None or need == walk.position or (forward and need <= self.chain.turn):
            return None
        choice = self.choices[at]
        if (stage >= at and not forward) or tensor in choice.kept:
            return None
        return Way.PAGE if tensor in choice.paged else Way.REMAKE
