"""Greedy: cover the excess of RAM by the cheapest gaps, then schedule with exact memory.

With everything kept, each op needs so many bytes more than the budget. A gap is the time between two
neighbouring uses of a tensor; dropping the tensor in it relieves the ops between, at the price of a page-in
(and one page-out per tensor version) or of a recomputation. The plan takes gaps by the least price per byte
of excess relieved until none is left, gives back those that turned out needless, and the list scheduler
turns it into a schedule with exact memory. Several plans are tried, the judge picks the best. It is fast
enough for a first incumbent: well under a second for 2,000 ops.
"""

from __future__ import annotations

import bisect
import heapq
import itertools
import logging
import math
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import numpy.typing as npt

from poet.clock import WALL, Clock
from poet.homes import decide, undecided
from poet.problem import Limits, Problem, Tensor
from poet.schedule import Schedule
from poet.solvers.heuristics.judged import walked
from poet.solvers.heuristics.list_scheduler import Policy, Walk, Way, Weights
from poet.solvers.heuristics.policies import ByStaleness
from poet.solvers.instance.incumbent import Incumbent, Rejections
from poet.solvers.instance.indexed import Facts
from poet.tuning import DEFAULT, GreedyTuning, Tuning

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Variant:
    """One way to plan.

    Attributes:
        weights: of seconds and of recomputation against joules.
        bias: exponent of the bytes relieved; below 1 it prefers small prices to long gaps.
        noise: standard deviation of the logarithm of a random factor on each price.
        cover: plan ahead; else decide only when room is needed.
    """

    weights: Weights
    bias: float = 1.0
    noise: float = 0.0
    cover: bool = True


def greedy(
    problem: Problem,
    limits: Limits,
    *,
    seconds: float | None = None,
    most_seconds: float = math.inf,
    seed: int = 0,
    rejections: Rejections | None = None,
    tuning: Tuning = DEFAULT,
    clock: Clock = WALL,
    found: Callable[[Schedule], None] | None = None,
) -> Schedule | None:
    """The cheapest valid schedule among several greedy plans; ``None`` if none is within ``limits``.

    How many are tried depends on the problem's size, so that without ``seconds`` the same arguments
    give the same schedule: hundreds for ten ops, two or three for thousands.

    Args:
        problem: what to plan.
        limits: what to stay within.
        seconds: of ``clock``, after which no further plan is tried once there is one.
        most_seconds: of ``clock``, after which no further plan is tried, whether there is one or not.
        seed: of the random plans.
        rejections: where to count what the judge rejects.
        tuning: which plans, and how many.
        clock: of the search.
        found: called with the first plan, where planning ahead takes so long that a caller may not want to
            wait for it; what online policies do is then tried first.
    """
    choices = undecided(problem)
    if choices:
        return _at_some_home(
            problem,
            limits,
            choices,
            seconds=seconds,
            most_seconds=most_seconds,
            seed=seed,
            rejections=rejections,
            tuning=tuning,
            clock=clock,
            found=found,
        )
    how = tuning.greedy
    facts, best = Facts(problem), Incumbent(problem, limits, rejections=rejections, clock=clock)
    began = clock.now()
    end, last = began + (math.inf if seconds is None else seconds), began + most_seconds
    generator = random.Random(seed)  # noqa: S311 - a search, not a secret
    planned = _variants(problem, limits, how)

    def ahead() -> Schedule | None:
        return _schedule(facts, limits, planned[0], how, seed=0)

    def online(way: Way) -> Schedule | None:
        allowed = replace(limits, paging=limits.paging and way is Way.CHEAPER)
        return walked(facts, allowed, ByStaleness(way), planned[0].weights)

    policies: list[Callable[[], Schedule | None]]
    policies = [partial(online, way) for way in (Way.CHEAPER, Way.REMAKE)]  # cheap to try
    first = [ahead, *policies] if found is None else [*policies, ahead]
    for number, plan in enumerate(first):
        late = found is not None and best.schedule is not None and clock.now() > end
        if number and (late or clock.now() > last):
            return best.schedule
        before = best.schedule
        best.consider(plan(), "greedy")
        if found is not None and before is None and best.schedule is not None:
            found(best.schedule)
    favourite = planned[0]
    tries = how.work_items // (facts.op_count + facts.tensor_count)
    tries = max(how.least_tries, min(how.most_tries, tries))
    for index in range(1, max(tries, len(planned))):
        now = clock.now()
        if now > last or (best.schedule is not None and (index >= tries or now > end)):
            break
        variant = planned[index] if index < len(planned) else _varied(generator, favourite, planned, how)
        if best.consider(_schedule(facts, limits, variant, how, seed=index), "greedy") and variant.cover:
            favourite = variant
        if best.trace is not None and best.trace.joules <= problem.compute_joules * (1 + 1e-12):
            break  # everything ran once and nothing moved
    joules = "none" if best.trace is None else f"{best.trace.joules:.9g} J"
    _log.info("greedy plans: the best takes %s, after %.3f s", joules, clock.now() - began)
    return best.schedule


def _at_some_home(
    problem: Problem,
    limits: Limits,
    choices: tuple[str, ...],
    *,
    seconds: float | None,
    most_seconds: float,
    seed: int,
    rejections: Rejections | None,
    tuning: Tuning,
    clock: Clock,
    found: Callable[[Schedule], None] | None,
) -> Schedule | None:
    """The best of `greedy` over a few ways to settle where tensors are at home."""

    def cheapness(tensor: Tensor) -> float:
        moves = (tensor.page_in, tensor.page_out)
        return -sum(cost.joules for cost in moves if cost is not None) / (tensor.bytes + 1)

    by_price = sorted((t for t in problem.tensors if t.name in set(choices)), key=cheapness)
    held = list(itertools.accumulate(tensor.bytes for tensor in by_price))
    best = Incumbent(problem, limits, rejections=rejections, clock=clock)
    last = clock.now() + most_seconds
    shares = tuning.greedy.home_shares
    for share in shares:
        away = [t.name for t, most in zip(by_price, held, strict=True) if most > share * held[-1]]
        part = None if seconds is None else seconds / len(shares)
        left = last - clock.now()
        schedule = greedy(
            decide(problem, away),
            limits,
            seconds=part,
            most_seconds=left,
            seed=seed,
            rejections=rejections,
            tuning=tuning,
            clock=clock,
            found=found if best.schedule is None else None,
        )
        best.consider(schedule, "greedy")
    return best.schedule


def _typical_watts(problem: Problem) -> float:
    """Joules per second of this problem's ops and transfers, to weigh a deadline with."""
    costs = [(op.joules, op.seconds) for op in problem.ops]
    for tensor in problem.tensors:
        costs += [(cost.joules, cost.seconds) for cost in (tensor.page_in, tensor.page_out) if cost]
    joules, seconds = map(sum, zip(*costs, strict=True))
    return joules / seconds if seconds > 0 else 1.0


def _variants(problem: Problem, limits: Limits, how: GreedyTuning) -> list[Variant]:
    """The plans to try first, in order."""
    idle, watts = problem.idle_watts, _typical_watts(problem)
    hidden = 0.0 if problem.background_storage else idle
    plain = Weights(idle, hidden)
    usual = [Variant(plain), Variant(plain, bias=how.cover_bias)]
    if limits.recompute and limits.paging:
        factors = (*how.remake_factors, math.inf)
        usual += [Variant(replace(plain, remake_factor=factor)) for factor in factors]
    hasty = []
    if limits.deadline_seconds is not None:
        hurries = [hurry * watts for hurry in how.hurry_factors]
        hasty += [Variant(Weights(idle + hurry, hidden + hurry)) for hurry in hurries]
        hasty += [Variant(Weights(idle + hurry, hidden)) for hurry in hurries[1::2]]
        hasty += [Variant(Weights(idle, hidden + hurry)) for hurry in hurries[1::2]]
    return [usual[0], *hasty, *usual[1:], Variant(plain, cover=False)]


def _varied(
    generator: random.Random, favourite: Variant, planned: list[Variant], how: GreedyTuning
) -> Variant:
    """A random variation of the best variant so far, sometimes of another."""
    base = favourite if generator.random() < how.favourite_share else generator.choice(planned)
    factor = base.weights.remake_factor * math.exp(generator.gauss(0.0, how.remake_deviation))
    least_factor, most_factor = how.remake_range
    least_bias, most_bias = how.bias_range
    return Variant(
        replace(base.weights, remake_factor=min(max(factor, least_factor), most_factor)),
        bias=min(max(base.bias + generator.gauss(0.0, how.bias_deviation), least_bias), most_bias),
        noise=generator.choice(how.noise_deviations),
    )


def _schedule(
    facts: Facts, limits: Limits, variant: Variant, how: GreedyTuning, *, seed: int
) -> Schedule | None:
    marks: dict[tuple[int, int], Way] = {}
    if variant.cover and limits.ram_budget_bytes is not None:
        generator = random.Random(seed)  # noqa: S311 - a search, not a secret
        marks = _Cover(facts, limits, variant, how, generator).marks()
    return walked(facts, limits, _Planned(marks), variant.weights)


class _Planned(Policy):
    """Drops what a cover chose, when room is needed, and beyond that what relieves most per joule."""

    def __init__(self, marks: dict[tuple[int, int], Way]) -> None:
        self.marks = marks

    def mark(self, walk: Walk, tensor: int) -> Way | None:
        return self.marks.get((tensor, walk.position - 1))

    def value(self, walk: Walk, tensor: int) -> float | None:
        need = walk.next_need(tensor)
        distance = (walk.facts.op_count + 1 if need is None else need) - walk.position + 1
        price = walk.return_price(tensor)
        return walk.facts.size[tensor] * distance / (price + 1e-30)


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
        factor: random, times its price, so that tries differ.
        way: how it comes back; ``None``: it is not dropped.
    """

    tensor: int
    before: int
    after: int
    back: int
    content: int
    factor: float
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


class _Cover:
    """Which gaps to drop; an approximation of memory and of what recomputation finds in RAM."""

    def __init__(
        self, facts: Facts, limits: Limits, variant: Variant, how: GreedyTuning, rng: random.Random
    ) -> None:
        self.facts, self.variant, self.how = facts, variant, how
        self.walk = Walk(facts, limits, Policy(), variant.weights)  # for its prices and permissions
        assert limits.ram_budget_bytes is not None
        self.events = self._events()
        self.gaps = self._gaps(rng)
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

    def _gaps(self, rng: random.Random) -> list[_Gap]:
        gaps = []
        for tensor, events in enumerate(self.events):
            for before, after in itertools.pairwise(events):
                if after - before > 1 and self.facts.size[tensor] and tensor not in self.walk.kept:
                    content = bisect.bisect_right(self.facts.update_ops[tensor], before)
                    factor = math.exp(rng.gauss(0.0, self.variant.noise)) if self.variant.noise else 1.0
                    gaps.append(_Gap(tensor, before, after, after, content, factor))
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
        remake = self._remake(
            tensor, gap.after, most_joules=self.how.refund_factor * paging
        )  # a part may be refunded
        remaking = remake.price + sum(self._remake(tensor, op).price for op in inside)
        best = _Choice(self._per_byte(gap, paging, relieved), Way.PAGE)
        if remaking < paging:
            best = _Choice(self._per_byte(gap, remaking, relieved), Way.REMAKE, remake)
        if remake.shared:
            # what is remade on the way and was to be remade later anyway: keep it from here on
            refund, kept_bytes = 0.0, 0.0
            for other in remake.shared:
                refund += self.walk.op_price[self.facts.producer[other.tensor]]
                held = self.excess[gap.after : other.back] + self.facts.size[other.tensor]
                kept_bytes += float(np.clip(held, 0.0, self.facts.size[other.tensor]).sum())
            if relieved > kept_bytes:
                ratio = self._per_byte(gap, max(remaking - refund, 0.0), relieved - kept_bytes)
                if ratio < best.ratio:
                    best = _Choice(ratio, Way.REMAKE, remake, shares=True)
        return best

    def _per_byte(self, gap: _Gap, price: float, relieved: float) -> float:
        return float(gap.factor * price / relieved**self.variant.bias)

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
            if price > most_joules or math.isinf(price) or len(ops) > self.how.longest_remake_ops:
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
        """Keep after all what fits, dearest first."""
        taken = [gap for gap in self.gaps if gap.way is not None]
        for gap in sorted(taken, key=lambda gap: -self._price(gap)):
            window = self.excess[gap.before + 1 : gap.back]
            # nothing lies between where a recomputation for another tensor gives it back right away
            if float(window.max(initial=-np.inf)) + self.facts.size[gap.tensor] <= 0.0:
                window += self.facts.size[gap.tensor]
                gap.way = None
