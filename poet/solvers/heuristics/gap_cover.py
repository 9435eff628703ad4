"""Which gaps to drop: a cover of the excess of RAM at the least price per byte relieved.

With everything kept, each op needs so many bytes more than the budget. A gap is the time between two
neighbouring uses of a tensor; dropping the tensor in it relieves the ops between, at the price of a page-in
(and one page-out per tensor version) or of a recomputation. The cover takes gaps by the least price per byte
of excess relieved until none is left, and gives back those that turned out needless.
"""

from __future__ import annotations

import bisect
import heapq
import itertools
import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from poet.problem import Limits
from poet.solvers.heuristics.gap_arrays import IN_COST, KEPT, MOVABLE, OUT_COST, OWES, Floats, Way
from poet.solvers.heuristics.list_scheduler import begin, may_rerun
from poet.solvers.heuristics.policies import Weights, walk_of
from poet.solvers.instance.instance import Facts

LONGEST_REMAKE_OPS = 24
"""Of one recomputation; without, its price takes long to find, and paging is mostly cheaper."""


@dataclass(slots=True, eq=False)
class _Gap:
    """The time between two neighbouring uses of a tensor, in which it may be dropped from RAM.

    Attributes:
        tensor: its number.
        before, after: the ops of the two uses.
        content: the tensor version that it holds meanwhile.
        way: how it comes back; ``None``: it is not dropped.
    """

    tensor: int
    before: int
    after: int
    content: int
    way: Way | None = None


class _Remake(NamedTuple):
    """Recomputing a tensor: joules, the ops that have to run, and the tensors that they find in RAM."""

    price: float
    ops: list[int]
    found: list[int]


_IMPOSSIBLE = _Remake(math.inf, [], [])


class Cover:
    """Which gaps to drop; an approximation of memory and of what recomputation finds in RAM.

    Args:
        facts: of the problem.
        limits: with a RAM budget.
        weights: of seconds and of recomputation against joules.
        bias: exponent of the bytes relieved; below 1 it prefers small prices to long gaps.
    """

    def __init__(self, facts: Facts, limits: Limits, weights: Weights, *, bias: float = 1.0) -> None:
        assert limits.ram_budget_bytes is not None
        self.facts, self.bias = facts, bias
        self.walk = walk_of(facts, limits, weights=weights)  # for its prices and permissions
        begin(self.walk, math.inf)
        self.in_price, self.out_price = self.walk.x[IN_COST], self.walk.x[OUT_COST]
        self.op_price, self.may_move = self.walk.y[0], self.walk.t[MOVABLE]
        self.events = self._events()
        self.of_tensor = [self._gaps(tensor) for tensor in range(facts.tensor_count)]
        self.gaps = [gap for gaps in self.of_tensor for gap in gaps]
        self.starts = [[gap.before for gap in gaps] for gaps in self.of_tensor]
        self.paged = {(tensor, 0) for tensor in facts.starts_stored}
        self.relied: dict[int, set[int]] = {}  # per tensor, ops at which others are remade from it
        self.excess = self._memory() - float(limits.ram_budget_bytes)

    def marks(self) -> dict[tuple[int, int], Way]:
        """Per (tensor, op after which), the way in which to drop it."""
        ratios = ((self._choice(gap)[0], number) for number, gap in enumerate(self.gaps))
        heap = [each for each in ratios if not math.isinf(each[0])]
        heapq.heapify(heap)
        while heap and (self.excess > 0.0).any():
            gap = self.gaps[number := heapq.heappop(heap)[1]]
            ratio, way, remake = self._choice(gap)
            if heap and heap[0][0] * (1 + 1e-9) < ratio < math.inf:  # it relieves less than it did
                heapq.heappush(heap, (ratio, number))
            elif not math.isinf(ratio):
                self._take(gap, way, remake)
        self._give_back()
        return {(gap.tensor, gap.before): gap.way for gap in self.gaps if gap.way is not None}

    def _events(self) -> list[list[int]]:
        """Per tensor, the ops that make or read it, and -1 where it is there from the start."""
        events: list[list[int]] = [[] for _ in range(self.facts.tensor_count)]
        for tensor in self.facts.starts_in_ram:
            events[tensor].append(-1)
        for tensor, producer in enumerate(self.facts.producer):
            if producer >= 0:
                events[tensor].append(producer)
            events[tensor].extend(self.facts.uses[tensor])
        return events

    def _gaps(self, tensor: int) -> list[_Gap]:
        if not self.facts.size[tensor] or self.walk.t[KEPT][tensor]:
            return []
        updates = self.facts.update_ops[tensor]
        return [
            _Gap(tensor, before, after, bisect.bisect_right(updates, before))
            for before, after in itertools.pairwise(self.events[tensor])
            if after - before > 1
        ]

    def _memory(self) -> Floats:
        """Bytes that each op holds with every tensor kept from its first to its last event."""
        change = np.zeros(self.facts.op_count + 2)
        for tensor, events in enumerate(self.events):
            if events:
                change[max(events[0], 0)] += self.facts.size[tensor]
                change[events[-1] + 1] -= self.facts.size[tensor]
        memory: Floats = np.cumsum(change)[:-2] + np.array(self.facts.workspace, dtype=np.float64)
        return memory

    def _choice(self, gap: _Gap) -> tuple[float, Way, _Remake]:
        """The cheaper way to drop ``gap``: joules per byte of excess relieved, the way, the recomputation."""
        tensor, window = gap.tensor, self.excess[gap.before + 1 : gap.after]
        relieved = float(np.minimum(np.maximum(window, 0.0), self.facts.size[tensor]).sum())
        if relieved <= 0.0:
            return math.inf, Way.PAGE, _IMPOSSIBLE
        inside = [op for op in self.relied.get(tensor, ()) if gap.before < op < gap.after]
        paging = self._paging_price(tensor, gap.content) + len(inside) * self.in_price[tensor]
        remake = self._remake(tensor, gap.after, most_joules=paging)
        remaking = remake.price + sum(self._remake(tensor, op).price for op in inside)
        if remaking < paging:
            return remaking / relieved**self.bias, Way.REMAKE, remake
        return paging / relieved**self.bias, Way.PAGE, _IMPOSSIBLE

    def _paging_price(self, tensor: int, content: int) -> float:
        if not self.may_move[tensor]:
            return math.inf
        is_owed = self.walk.t[OWES][tensor] and content == len(self.facts.update_ops[tensor])
        is_written = (tensor, content) in self.paged or is_owed
        return float(self.in_price[tensor] + (0.0 if is_written else self.out_price[tensor]))

    def _remake(self, tensor: int, need: int, most_joules: float = math.inf) -> _Remake:
        """What it takes to remake ``tensor`` before op ``need``, if not more than ``most_joules``."""
        pending, price = [tensor], 0.0
        ops, found = list[int](), list[int]()
        while pending:
            current = pending.pop()
            if current != tensor:
                if self._is_in_ram(current, need):
                    found.append(current)
                    continue
                content = bisect.bisect_left(self.facts.update_ops[current], need)
                if (current, content) in self.paged and self.may_move[current]:
                    price += self.in_price[current]
                    continue
            op = self.facts.producer[current]
            if not may_rerun(self.walk, op, need):
                price += math.inf if current == tensor else self._paging_price(current, 0)
            elif op not in ops:
                ops.append(op)
                price += self.op_price[op]
                pending.extend(self.facts.rerun_inputs[op])
            if price > most_joules or math.isinf(price) or len(ops) > LONGEST_REMAKE_OPS:
                return _IMPOSSIBLE
        return _Remake(price, ops, found)

    def _is_in_ram(self, tensor: int, op: int) -> bool:
        """Whether ``tensor`` is alive at ``op``, and in no dropped gap there."""
        events = self.events[tensor]
        if not events or not events[0] <= op <= events[-1]:
            return False
        index = bisect.bisect_left(self.starts[tensor], op) - 1
        gap = self.of_tensor[tensor][index] if index >= 0 else None
        return gap is None or gap.way is None or op >= gap.after

    def _take(self, gap: _Gap, way: Way, remake: _Remake) -> None:
        gap.way, facts = way, self.facts
        self.excess[gap.before + 1 : gap.after] -= facts.size[gap.tensor]
        if way is Way.PAGE:
            self.paged.add((gap.tensor, gap.content))
            return
        for leaf in remake.found:
            self.relied.setdefault(leaf, set()).add(gap.after)
        if gap.after < facts.op_count and remake.ops:
            # at its fullest moment recomputing takes this much more than the op that it is for
            more = sum(facts.size[t] for op in remake.ops for t in facts.outputs[op])
            more += max(facts.workspace[op] for op in remake.ops) - facts.size[gap.tensor]
            more -= sum(facts.size[t] for t in facts.outputs[gap.after]) + facts.workspace[gap.after]
            self.excess[gap.after] += max(more, 0)

    def _give_back(self) -> None:
        """Keep after all what fits, most expensive first."""
        prices = {
            gap: min(self._paging_price(gap.tensor, gap.content), self._remake(gap.tensor, gap.after).price)
            for gap in self.gaps
            if gap.way is not None
        }
        for gap in sorted(prices, key=lambda gap: -prices[gap]):
            window = self.excess[gap.before + 1 : gap.after]
            if float(window.max(initial=-np.inf)) + self.facts.size[gap.tensor] <= 0.0:
                window += self.facts.size[gap.tensor]
                gap.way = None
