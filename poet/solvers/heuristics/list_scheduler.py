"""List scheduling with an eviction policy: first runs in the listed order, and exact memory.

All heuristics share it (compare DTR, Kirisame et al. 2021). The scheduler runs the ops in the order of
the problem. Before each it brings the inputs into RAM, by page-in or by recomputing the ops that lead
to them, and makes room by dropping other tensors; the policy decides what to drop, when, and how it is
to come back. A tensor is dropped only if it can: it is stored, or it is written first, or it is remade
from tensors that are then held until it is needed. So with paging allowed everywhere a schedule is found
in every budget in which the largest op fits.

The result is a proposal: the simulator judges it.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from poet.pins import pinned
from poet.problem import Limits, Transfer
from poet.schedule import Compute, Free, PageIn, PageOut, Schedule, Step
from poet.solvers.heuristics.gap_arrays import MOST_CHAIN
from poet.solvers.instance.instance import Facts

Tensors = npt.NDArray[np.int64]
Values = npt.NDArray[np.float64]


class Way(enum.Enum):
    """How a dropped tensor comes back."""

    PAGE = "page"
    REMAKE = "recompute"
    CHEAPER = "whichever costs less"


class Stuck(Exception):
    """The policy leaves no next step inside the limits."""


@dataclass(frozen=True, slots=True)
class Weights:
    """Joules that a second counts for, so that page-ins and recomputations compare by one number.

    Attributes:
        compute_watts: per second of an op.
        transfer_watts: per second of a transfer.
        remake_factor: multiplies the joules of recomputation; above 1 it prefers paging.
    """

    compute_watts: float = 0.0
    transfer_watts: float = 0.0
    remake_factor: float = 1.0


class Policy:
    """The decisions that the list scheduler leaves open. This one never drops what is still needed."""

    eager = False
    """Whether marked tensors are dropped at once; else only when room is needed."""

    unplanned = Way.CHEAPER
    """How a tensor that `value` picked and `mark` did not mark is to come back."""

    def mark(self, walk: Walk, tensor: int) -> Way | None:
        """How ``tensor``, which has just been used or made and is needed later, is to come back once dropped.

        ``None``: it is not marked for dropping.
        """
        return None

    def value(self, walk: Walk, tensor: int) -> float | None:
        """Priority of dropping ``tensor`` now, the highest first; ``None``: it must stay.

        Marked tensors are dropped before all others.
        """
        return None

    def values(self, walk: Walk, tensors: Tensors) -> Values:
        """`value` of each of ``tensors``; -inf: it must stay.

        A victim is sought among all that is in RAM, thousands of tensors in the largest steps.
        """
        each = [self.value(walk, tensor) for tensor in tensors.tolist()]
        return np.array([-math.inf if one is None else one for one in each], dtype=np.float64)

    def lingers(self, walk: Walk, tensor: int) -> int:
        """Last op before which a dead tensor is kept as input of a planned recomputation; -1: free it now."""
        return -1


class Walk:
    """One schedule in the making: the state of RAM and storage after the steps so far.

    Args:
        facts, limits: what is planned.
        policy: what to drop.
        weights: what seconds count for.
    """

    def __init__(self, facts: Facts, limits: Limits, policy: Policy, weights: Weights) -> None:
        problem = facts.problem
        self.facts, self.limits, self.policy = facts, limits, policy
        self.budget = math.inf if limits.ram_budget_bytes is None else limits.ram_budget_bytes
        self.position = 0  # the next op to run for the first time
        self.steps: list[Step] = []
        self.step_limit = 60 * facts.op_count + 10 * facts.tensor_count + 1000
        self.present = [False] * facts.tensor_count
        self.in_ram = np.zeros(facts.tensor_count, dtype=bool)  # those present that take room
        self.stored = [False] * facts.tensor_count  # with the current content
        self.held_until = [-1] * facts.tensor_count  # something is to be remade from it before this op
        self.released: list[list[int]] = [[] for _ in range(facts.op_count + 1)]
        self.marked: dict[int, Way] = {}
        self.pinned: set[int] = set()
        self.protected: dict[int, int] = {}  # uses left in the recomputation in flight
        self.in_price = [self._transfer(t.page_in, weights) for t in problem.tensors]
        self.out_price = [self._transfer(t.page_out, weights) for t in problem.tensors]
        self.prices = np.full(facts.tensor_count, np.nan)  # of coming back; not a number: not computed
        self.needs = np.zeros(facts.tensor_count, dtype=np.int64)  # of those present, `next_need`
        self.op_price = [
            op.joules * weights.remake_factor + weights.compute_watts * op.seconds for op in problem.ops
        ]
        for tensor in facts.starts_in_ram:
            self._appear(tensor)
        for tensor in facts.starts_stored:
            self.stored[tensor] = True
        pins = pinned(problem, limits)
        self.kept = {t for t, tensor in enumerate(problem.tensors) if tensor.name in pins.kept}
        self.dropped = {t for t, tensor in enumerate(problem.tensors) if tensor.name in pins.dropped}
        self.seconds = 0.0  # as blocking transfers and ops add up
        self.used_at = np.zeros(facts.tensor_count)  # seconds
        self.ram_bytes = sum(facts.size[tensor] for tensor in facts.starts_in_ram)
        capacity = problem.storage_capacity_bytes
        self.room_in_storage = math.inf if capacity is None else capacity
        self.room_in_storage -= sum(facts.stored_size[tensor] for tensor in facts.starts_stored)
        if limits.written_budget_bytes is not None:
            left_bytes = limits.written_budget_bytes - problem.row_written_bytes
            self.room_in_storage = min(self.room_in_storage, left_bytes)
        self.owed = [False] * facts.tensor_count  # its last content has yet to be written
        for tensor in facts.ends_stored:
            self.owed[tensor] = not self.stored[tensor] or bool(facts.update_ops[tensor])
        self.owed_bytes = sum(facts.stored_size[tensor] for tensor in facts.ends_stored if self.owed[tensor])

    @staticmethod
    def _transfer(cost: Transfer | None, weights: Weights) -> float:
        return math.inf if cost is None else cost.joules + weights.transfer_watts * cost.seconds

    def run(self) -> Schedule:
        """The schedule.

        Raises:
            Stuck: the policy leaves no next step inside the limits.
        """
        facts = self.facts
        if self.ram_bytes > self.budget:
            raise Stuck
        for tensor in facts.starts_in_ram:
            self._settle(tensor)
        for op in range(facts.op_count):
            self._obtain(facts.inputs[op])
            self._make_room(sum(facts.size[t] for t in facts.outputs[op]) + facts.workspace[op])
            self._compute(op)
            self.position = op + 1
            for tensor in facts.updates[op]:
                self.stored[tensor] = False
            self.pinned.clear()
            for tensor in (*facts.inputs[op], *facts.outputs[op], *self.released[op]):
                self._settle(tensor)
        self._obtain(tuple(facts.ends_in_ram))
        for tensor in facts.ends_stored:
            if self.owed[tensor]:  # it was held to the end
                self._page_out(tensor)
        return tuple(self.steps)

    # --- what policies may call ---

    def next_need(self, tensor: int) -> int | None:
        """The next op for which ``tensor`` must be in RAM, as its input or to remake another tensor."""
        use = self.facts.next_use(tensor, self.position)
        held = self.held_until[tensor]
        if held < self.position:
            return use
        return held if use is None else min(use, held)

    def page_price(self, tensor: int) -> float:
        """Joules of writing ``tensor``, unless it has a copy, and reading it once.

        Infinite where it must not move.
        """
        if self._readable(tensor):
            return self.in_price[tensor]
        return self.in_price[tensor] + self.out_price[tensor] if self.may_page_out(tensor) else math.inf

    def remake_price(self, tensor: int) -> float:
        """Joules of recomputing ``tensor`` for its next use, estimated.

        What is in RAM now counts as there then if it is used or held at least as long and not marked.
        """
        need = self._horizon(tensor)
        facts, price = self.facts, 0.0
        pending, ops = [tensor], set[int]()
        while pending:
            current = pending.pop()
            if current != tensor:
                if self.present[current] and current not in self.marked:
                    last = facts.uses[current][-1:] or [-1]
                    if max(last[0], self.held_until[current]) >= need:
                        continue
                if self._readable(current):
                    price += self.in_price[current]
                    continue
                if self.present[current] and not self.may_rerun(facts.producer[current], need):
                    price += min(self.page_price(current), self.in_price[current])
                    continue
            op = facts.producer[current]
            if not self.may_rerun(op, need) or len(ops) > MOST_CHAIN:
                return math.inf
            if op not in ops:
                ops.add(op)
                price += self.op_price[op]
                pending.extend(facts.rerun_inputs[op])
        return price

    def return_price(self, tensor: int) -> float:
        """Joules of having ``tensor`` back, the cheaper way; computed once after each use, then kept."""
        price = float(self.prices[tensor])
        if math.isnan(price):
            price = self.prices[tensor] = min(self.page_price(tensor), self.remake_price(tensor))
        return price

    def return_prices(self, tensors: Tensors) -> Values:
        """`return_price` of each."""
        prices = self.prices[tensors]
        unknown = np.isnan(prices)
        if unknown.any():
            prices[unknown] = [self.return_price(tensor) for tensor in tensors[unknown].tolist()]
        return prices

    def distances(self, tensors: Tensors) -> Tensors:
        """Ops from now until `next_need` of each, that one included; one more than the ops left: none."""
        return self.needs[tensors] - (self.position - 1)

    def may_page_out(self, tensor: int) -> bool:
        """Whether the present content may be written, with room left for what must be written yet."""
        if self.stored[tensor] or not self.may_move(tensor) or math.isinf(self.out_price[tensor]):
            return False
        pays = self.owed[tensor] and not self._updates_ahead(tensor)
        owed = self.owed_bytes - (self.facts.stored_size[tensor] if pays else 0)
        return self.room_in_storage >= self.facts.stored_size[tensor] + owed

    # --- dropping ---

    def drop(self, tensor: int, way: Way) -> bool:
        """Give the RAM of ``tensor`` back so that it can return; ``False`` where it cannot."""
        if not self._readable(tensor):
            if self.owed[tensor] and not self._updates_ahead(tensor):
                way = Way.PAGE
            if way is Way.CHEAPER:
                way = Way.PAGE if self.page_price(tensor) <= self.remake_price(tensor) else Way.REMAKE
            ways = (self._store, self._rely) if way is Way.PAGE else (self._rely, self._store)
            if not any(prepare(tensor) for prepare in ways):
                return False
        self._free(tensor)
        return True

    def _store(self, tensor: int) -> bool:
        """Write ``tensor``; ``False`` where it may not move there and back."""
        if not self.may_page_out(tensor) or math.isinf(self.in_price[tensor]):
            return False
        self._page_out(tensor)
        return True

    def _readable(self, tensor: int) -> bool:
        return self.stored[tensor] and self.may_move(tensor) and not math.isinf(self.in_price[tensor])

    def _rely(self, tensor: int) -> bool:
        """Hold what ``tensor`` can be remade from until its next use; ``False`` where it cannot be."""
        need = self._horizon(tensor)
        pending, ops, leaves = [tensor], set[int](), []
        if tensor in self.protected:  # it serves the recomputation in flight, which would not end
            return False
        if self.owed[tensor] and self.facts.next_use(tensor, self.position) is None:
            return False
        while pending:
            current = pending.pop()
            if current != tensor and (self.present[current] or self._readable(current)):
                leaves.append(current)
                continue
            op = self.facts.producer[current]
            if not self.may_rerun(op, need):
                return False
            if op not in ops:
                ops.add(op)
                pending.extend(self.facts.rerun_inputs[op])
        for leaf in leaves:
            self._hold(leaf, need)
        return True

    def _hold(self, tensor: int, need: int) -> None:
        """Keep ``tensor`` in RAM or able to come back until op ``need``."""
        if self.held_until[tensor] < need:
            self.held_until[tensor] = need
            self.released[need].append(tensor)
            self._look_ahead(tensor)

    def _horizon(self, tensor: int) -> int:
        """The op of the next use of ``tensor``; without one, that until which it is held."""
        use = self.facts.next_use(tensor, self.position)
        return self.held_until[tensor] if use is None else use

    def may_rerun(self, op: int, position: int) -> bool:
        if op < 0 or not self.limits.recompute:
            return False
        return self.facts.rerun_limit[op] >= position and self.facts.rerun_need[op] <= self.budget

    def may_move(self, tensor: int) -> bool:
        return self.limits.paging or self.facts.must_move[tensor]

    def _updates_ahead(self, tensor: int) -> bool:
        updates = self.facts.update_ops[tensor]
        return bool(updates) and updates[-1] >= self.position

    def _make_room(self, new_bytes: int) -> None:
        hopeless: set[int] = set()
        while self.ram_bytes + new_bytes > self.budget:
            victim, way = self._victim(hopeless)
            if not self.drop(victim, way):
                hopeless.add(victim)

    def _victim(self, hopeless: set[int]) -> tuple[int, Way]:
        """The tensor to drop next and how it comes back: marked first, each kind by the policy's value."""
        barred = np.zeros(self.facts.tensor_count, dtype=bool)
        barred[[*self.pinned, *self.protected, *hopeless, *self.kept]] = True
        marked = np.fromiter(self.marked, dtype=np.int64, count=len(self.marked))
        for tensors, is_marked in (
            (marked[~barred[marked]], True),
            (np.flatnonzero(self.in_ram & ~barred), False),
        ):
            values = self.policy.values(self, tensors)
            if len(values) and values.max() > -math.inf:
                best = int(tensors[values.argmax()])
                return best, self.marked[best] if is_marked else self.policy.unplanned
        for tensor in self.protected:
            if self.present[tensor] and tensor not in self.pinned and tensor not in hopeless:
                return tensor, Way.PAGE
        raise Stuck

    def _settle(self, tensor: int) -> None:
        """After a use: free ``tensor`` if nothing needs it any more, else apply the policy to it."""
        self.used_at[tensor] = self.seconds
        self._look_ahead(tensor)
        if not self.present[tensor] or tensor in self.protected or tensor in self.pinned:
            return
        self.marked.pop(tensor, None)
        self.prices[tensor] = np.nan
        if self.next_need(tensor) is None:
            self._hold(tensor, min(self.policy.lingers(self, tensor), self.facts.op_count - 1))
        if self.next_need(tensor) is None:
            if self.owed[tensor]:
                self._page_out(tensor)
            self._free(tensor)
            return
        idle = tensor in self.dropped and self.next_need(tensor) != self.position
        if idle and self.drop(tensor, Way.CHEAPER):
            return
        way = self.policy.mark(self, tensor)
        if way is not None and not (self.policy.eager and self.drop(tensor, way)):
            self.marked[tensor] = way

    # --- bringing back ---

    def _obtain(self, needed: tuple[int, ...]) -> None:
        """Bring ``needed`` into RAM, all at once, and pin them."""
        missing = [tensor for tensor in needed if not self.present[tensor]]
        if missing:
            ops = self._to_rerun(missing)
            for tensor in (*needed, *(t for op in ops for t in self.facts.rerun_inputs[op])):
                self.protected[tensor] = self.protected.get(tensor, 0) + 1
            for op in ops:
                self._rerun(op)
            self.protected.clear()
        self.pinned.update(tensor for tensor in needed if self.present[tensor])
        for tensor in needed:
            self._page_in(tensor)

    def _to_rerun(self, missing: list[int]) -> list[int]:
        """The ops that lead from what is in RAM or stored to ``missing``, in order."""
        pending, ops = list(missing), set[int]()
        while pending:
            current = pending.pop()
            op = self.facts.producer[current]
            if self.present[current] or op in ops:
                continue
            if self._readable(current) and not self._cheap(current):
                continue
            if not self.may_rerun(op, self.position):
                raise Stuck
            ops.add(op)
            pending.extend(self.facts.rerun_inputs[op])
        return sorted(ops)

    def _cheap(self, tensor: int) -> bool:
        """Whether a stored tensor is cheaper to remake from what is in RAM than to read."""
        op = self.facts.producer[tensor]
        return (
            self.may_rerun(op, self.position)
            and self.op_price[op] < self.in_price[tensor]
            and all(self.present[i] for i in self.facts.rerun_inputs[op])
        )

    def _rerun(self, op: int) -> None:
        facts = self.facts
        self.pinned.update(tensor for tensor in facts.rerun_inputs[op] if self.present[tensor])
        for tensor in facts.rerun_inputs[op]:
            self._page_in(tensor)
        for tensor in facts.outputs[op]:
            if self.present[tensor]:
                self._free(tensor)
        self._make_room(sum(facts.size[t] for t in facts.outputs[op]) + facts.workspace[op])
        self._compute(op)
        self.pinned.clear()
        for tensor in facts.rerun_inputs[op]:
            self.protected[tensor] -= 1
            if not self.protected[tensor]:
                del self.protected[tensor]
        for tensor in (*facts.rerun_inputs[op], *facts.outputs[op]):
            self._settle(tensor)

    # --- the four steps ---

    def _appear(self, tensor: int) -> None:
        self.present[tensor] = True
        self.in_ram[tensor] = self.facts.size[tensor] > 0
        self._look_ahead(tensor)

    def _look_ahead(self, tensor: int) -> None:
        need = self.next_need(tensor)
        self.needs[tensor] = self.facts.op_count + 1 if need is None else need

    def _compute(self, op: int) -> None:
        if len(self.steps) > self.step_limit:
            raise Stuck
        what = self.facts.problem.ops[op]
        self.steps.append(Compute(what.name))
        self.seconds += what.seconds
        for tensor in self.facts.outputs[op]:
            self._appear(tensor)
            self.ram_bytes += self.facts.size[tensor]

    def _page_in(self, tensor: int) -> None:
        if self.present[tensor]:
            return
        if not self._readable(tensor):
            raise Stuck
        self._make_room(self.facts.size[tensor])
        what = self.facts.problem.tensors[tensor]
        self.steps.append(PageIn(what.name))
        if what.page_in is not None:
            self.seconds += what.page_in.seconds
        self._appear(tensor)
        self.ram_bytes += self.facts.size[tensor]
        self.pinned.add(tensor)

    def _page_out(self, tensor: int) -> None:
        if not self.may_page_out(tensor):
            raise Stuck
        what = self.facts.problem.tensors[tensor]
        self.steps.append(PageOut(what.name))
        if what.page_out is not None:
            self.seconds += what.page_out.seconds
        self.stored[tensor] = True
        self.room_in_storage -= self.facts.stored_size[tensor]
        if self.owed[tensor] and not self._updates_ahead(tensor):
            self.owed[tensor] = False
            self.owed_bytes -= self.facts.stored_size[tensor]

    def _free(self, tensor: int) -> None:
        self.steps.append(Free(self.facts.problem.tensors[tensor].name))
        self.present[tensor] = False
        self.in_ram[tensor] = False
        self.ram_bytes -= self.facts.size[tensor]
        self.marked.pop(tensor, None)
