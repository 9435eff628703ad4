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

import numpy as np
import numpy.typing as npt

from poet.problem import Limits
from poet.solvers.heuristics.list_scheduler import Policy, Walk, Way, Weights
from poet.solvers.instance.instance import Facts

LONGEST_REMAKE_OPS = 24
"""Of one recomputation; without, its price takes long to find, and paging is mostly cheaper."""

REFUND_FACTOR = 4.0
"""Times the price of paging that a recomputation may take; with 1, none is taken that others share."""

_Bytes = npt.NDArray[np.float64]


@dataclass(slots=True, eq=False)
class _Gap:
    """The time between two neighbouring uses of a tensor, in which it may be dropped from RAM.

    Attributes:
        tensor: its number.
        before, after: the ops of the two uses.
        back: the op for which it is in RAM again, if it is dropped: ``after``; or an earlier op, for which
            another tensor is recomputed from this one, and this one then stays.
        content: the tensor version that it holds meanwhile.
        way: how it comes back; ``None``: it is not dropped.
    """

    tensor: int
    before: int
    after: int
    back: int
    content: int
    way: Way | None = None


@dataclass(frozen=True, slots=True)
class _Remake:
    """What recomputing a tensor takes.

    Attributes:
        price: joules.
        ops: that have to run.
        found: tensors that they find in RAM.
        shared: dropped gaps of tensors that are made on the way.
    """

    price: float
    ops: list[int]
    found: list[int]
    shared: list[_Gap]


_IMPOSSIBLE = _Remake(math.inf, [], [], [])


@dataclass(frozen=True, slots=True)
class _Choice:
    """A way to drop a gap: joules per byte relieved; ``shares``: what is remade on the way stays."""

    ratio: float
    way: Way
    remake: _Remake = _IMPOSSIBLE
    shares: bool = False


_NONE = _Choice(math.inf, Way.PAGE)


class Cover:
    """Which gaps to drop; an approximation of memory and of what recomputation finds in RAM.

    Args:
        facts: of the problem.
        limits: with a RAM budget.
        weights: of seconds and of recomputation against joules.
        bias: exponent of the bytes relieved; below 1 it prefers small prices to long gaps.
    """

    def __init__(
        self,
        facts: Facts,
        limits: Limits,
        weights: Weights,
        *,
        bias: float = 1.0,
    ) -> None:
        self.facts, self.bias = facts, bias
        self.walk = Walk(facts, limits, Policy(), weights)  # for its prices and permissions
        assert limits.ram_budget_bytes is not None
        self.events = self._events()
        self.gaps = self._gaps()
        self.of_tensor: list[list[_Gap]] = [[] for _ in range(facts.tensor_count)]
        for gap in self.gaps:
            self.of_tensor[gap.tensor].append(gap)
        self.starts = [[gap.before for gap in gaps] for gaps in self.of_tensor]
        self.paged = {(tensor, 0) for tensor in facts.starts_stored}
        self.relied: dict[int, set[int]] = {}  # per tensor, ops at which others are remade from it
        self.excess = self._memory() - float(limits.ram_budget_bytes)
        self.remake_bytes = [
            sum(facts.size[t] for t in facts.outputs[op]) + facts.workspace[op]
            for op in range(facts.op_count)
        ]

    def marks(self) -> dict[tuple[int, int], Way]:
        """Per (tensor, op after which), the way in which to drop it."""
        heap = []
        for number, gap in enumerate(self.gaps):
            ratio = self._choice(gap).ratio
            if not math.isinf(ratio):
                heap.append((ratio, number))
        heapq.heapify(heap)
        left = int((self.excess > 0).sum())
        while heap and left:
            _, number = heapq.heappop(heap)
            gap = self.gaps[number]
            ratio = self._choice(gap).ratio
            if math.isinf(ratio):
                continue
            if heap and ratio > heap[0][0] * (1 + 1e-9):
                heapq.heappush(heap, (ratio, number))
                continue
            self._take(gap)
            left = int((self.excess > 0).sum())
        self._give_back()
        return {(gap.tensor, gap.before): gap.way for gap in self.gaps if gap.way is not None}

    def _events(self) -> list[list[int]]:
        events: list[list[int]] = [[] for _ in range(self.facts.tensor_count)]
        for tensor in self.facts.starts_in_ram:
            events[tensor].append(-1)
        for tensor, producer in enumerate(self.facts.producer):
            if producer >= 0:
                events[tensor].append(producer)
            events[tensor].extend(self.facts.uses[tensor])
        return events

    def _gaps(self) -> list[_Gap]:
        gaps = []
        for tensor, events in enumerate(self.events):
            for before, after in itertools.pairwise(events):
                if after - before > 1 and self.facts.size[tensor] and tensor not in self.walk.kept:
                    content = bisect.bisect_right(self.facts.update_ops[tensor], before)
                    gaps.append(_Gap(tensor, before, after, after, content))
        return gaps

    def _memory(self) -> _Bytes:
        """Bytes that each op holds with every tensor kept from its first to its last event."""
        change = np.zeros(self.facts.op_count + 2)
        for tensor, events in enumerate(self.events):
            if events:
                change[max(events[0], 0)] += self.facts.size[tensor]
                change[events[-1] + 1] -= self.facts.size[tensor]
        memory: _Bytes = np.cumsum(change)[:-2] + np.array(self.facts.workspace, dtype=np.float64)
        return memory

    def _choice(self, gap: _Gap) -> _Choice:
        """The way to drop ``gap`` of least price per byte of excess relieved."""
        size = self.facts.size[gap.tensor]
        window = self.excess[gap.before + 1 : gap.after]
        relieved = float(np.minimum(np.maximum(window, 0.0), size).sum())
        if relieved <= 0.0:
            return _NONE
        tensor = gap.tensor
        inside = [op for op in self.relied.get(tensor, ()) if gap.before < op < gap.after]
        paging = self._paging_price(tensor, gap.content) + len(inside) * self.walk.in_price[tensor]
        remake = self._remake(tensor, gap.after, most_joules=REFUND_FACTOR * paging)  # a part may be refunded
        remaking = remake.price + sum(self._remake(tensor, op).price for op in inside)
        best = _Choice(self._per_byte(paging, relieved), Way.PAGE)
        if remaking < paging:
            best = _Choice(self._per_byte(remaking, relieved), Way.REMAKE, remake)
        if remake.shared:
            # what is remade on the way and was to be remade later anyway: keep it from here on
            refund, kept_bytes = 0.0, 0.0
            for other in remake.shared:
                refund += self.walk.op_price[self.facts.producer[other.tensor]]
                held = self.excess[gap.after : other.back] + self.facts.size[other.tensor]
                kept_bytes += float(np.clip(held, 0.0, self.facts.size[other.tensor]).sum())
            if relieved > kept_bytes:
                ratio = self._per_byte(max(remaking - refund, 0.0), relieved - kept_bytes)
                if ratio < best.ratio:
                    best = _Choice(ratio, Way.REMAKE, remake, shares=True)
        return best

    def _per_byte(self, price: float, relieved: float) -> float:
        return float(price / relieved**self.bias)

    def _price(self, gap: _Gap) -> float:
        paging = self._paging_price(gap.tensor, gap.content)
        return min(paging, self._remake(gap.tensor, gap.after).price)

    def _paging_price(self, tensor: int, content: int) -> float:
        if not self.walk.may_move(tensor):
            return math.inf
        known = (tensor, content) in self.paged or self._written_anyway(tensor, content)
        return self.walk.in_price[tensor] + (0.0 if known else self.walk.out_price[tensor])

    def _written_anyway(self, tensor: int, content: int) -> bool:
        return self.walk.owed[tensor] and content == len(self.facts.update_ops[tensor])

    def _remake(self, tensor: int, need: int, most_joules: float = math.inf) -> _Remake:
        """What it takes to remake ``tensor`` before op ``need``, if not more than ``most_joules``."""
        pending, price = [tensor], 0.0
        ops, found, shared = list[int](), list[int](), list[_Gap]()
        while pending:
            current = pending.pop()
            if current != tensor:
                gap = self._gap_at(current, need)
                if gap is None and self._alive_at(current, need):
                    found.append(current)
                    continue
                content = bisect.bisect_left(self.facts.update_ops[current], need)
                if (current, content) in self.paged and self.walk.may_move(current):
                    price += self.walk.in_price[current]
                    continue
                if gap is not None and gap.way is Way.REMAKE and gap not in shared:
                    shared.append(gap)
            op = self.facts.producer[current]
            if not self.walk.may_rerun(op, need):
                price += math.inf if current == tensor else self._paging_price(current, 0)
            elif op not in ops:
                ops.append(op)
                price += self.walk.op_price[op]
                pending.extend(self.facts.rerun_inputs[op])
            if price > most_joules or math.isinf(price) or len(ops) > LONGEST_REMAKE_OPS:
                return _IMPOSSIBLE
        return _Remake(price, ops, found, shared)

    def _alive_at(self, tensor: int, op: int) -> bool:
        events = self.events[tensor]
        return bool(events) and events[0] <= op <= events[-1]

    def _gap_at(self, tensor: int, op: int) -> _Gap | None:
        """The dropped gap in which ``tensor`` is absent at ``op``, if any."""
        index = bisect.bisect_left(self.starts[tensor], op) - 1
        if index < 0:
            return None
        gap = self.of_tensor[tensor][index]
        return gap if gap.way is not None and op < gap.back else None

    def _take(self, gap: _Gap) -> None:
        choice = self._choice(gap)
        gap.way = choice.way
        self.excess[gap.before + 1 : gap.after] -= self.facts.size[gap.tensor]
        if choice.way is Way.PAGE:
            self.paged.add((gap.tensor, gap.content))
            return
        ops = choice.remake.ops
        for leaf in choice.remake.found:
            self.relied.setdefault(leaf, set()).add(gap.after)
        for other in choice.remake.shared if choice.shares else ():
            self.excess[gap.after : other.back] += self.facts.size[other.tensor]
            other.back = gap.after
        if gap.after < self.facts.op_count and ops:
            # at its worst moment recomputing takes this much more than the op that it is for
            more = sum(self.facts.size[t] for op in ops for t in self.facts.outputs[op])
            more += max(self.facts.workspace[op] for op in ops) - self.remake_bytes[gap.after]
            more -= self.facts.size[gap.tensor]
            self.excess[gap.after] = max(self.excess[gap.after], self.excess[gap.after] + more)

    def _give_back(self) -> None:
        """Keep after all what fits, most expensive first."""
        taken = [gap for gap in self.gaps if gap.way is not None]
        for gap in sorted(taken, key=lambda gap: -self._price(gap)):
            window = self.excess[gap.before + 1 : gap.back]
            # nothing lies between where a recomputation for another tensor gives it back right away
            if float(window.max(initial=-np.inf)) + self.facts.size[gap.tensor] <= 0.0:
                window += self.facts.size[gap.tensor]
                gap.way = None
