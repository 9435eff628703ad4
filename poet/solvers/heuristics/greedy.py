"""Greedy: cover the excess of RAM by the cheapest gaps, then schedule with exact memory.

A cover says which tensors to drop in which gaps between their uses, and the list scheduler turns it into a
schedule with exact memory. The simulator picks the best of several. That is fast enough for a first
incumbent: well under a second for 2,000 ops.
"""

from __future__ import annotations

import itertools
import logging
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from poet.problem import Limits, Problem, Tensor
from poet.problem.homes import decide, undecided
from poet.problem.schedule import Schedule
from poet.solvers.heuristics.gap_arrays import Way
from poet.solvers.heuristics.gap_cover import Cover
from poet.solvers.heuristics.policies import ByStaleness, Planned, Weights, walked
from poet.solvers.instance.incumbent import Incumbent, Rejections
from poet.solvers.instance.instance import Facts
from poet.util.clock import WALL, Clock

_log = logging.getLogger(__name__)

HOME_SHARES = (0.0, 1.0, 0.5, 0.25, 0.75)
"""Of the bytes whose home is a choice, how much is in RAM between steps; without, all is away."""

WORK_ITEMS = 10_000
"""Ops and tensors planned over all tries; without a limit, plans of thousands of ops take seconds."""

REMAKE_FACTORS = (1.3, 2.0, 1e6)
"""Of a recomputation's price, a plan each; with 1 alone, inputs that it holds seem to cost nothing."""

HURRY_FACTORS = (0.3, 1.0, 3.0, 10.0, 100.0)
"""Of the typical watts, added per second, a plan each; without, few plans keep a short deadline."""


def greedy(
    problem: Problem,
    limits: Limits,
    *,
    seconds: float = math.inf,
    most_seconds: float = math.inf,
    rejections: Rejections | None = None,
    clock: Clock = WALL,
    found: Callable[[Schedule], None] | None = None,
) -> Schedule | None:
    """The cheapest valid schedule among several greedy plans; ``None`` if none is within ``limits``.

    How many are tried depends on the problem's size, so that without ``seconds`` the same arguments
    give the same schedule: some twenty for ten ops, two or three for thousands.

    Args:
        problem: what to plan.
        limits: what to stay within.
        seconds: of ``clock``, after which no further plan is tried once there is one.
        most_seconds: of ``clock``, after which no further plan is tried, whether there is one or not.
        rejections: where to count what the simulator rejects.
        clock: of the search.
        found: called with the first plan.
    """
    best = Incumbent(problem, limits, rejections=rejections, clock=clock)
    began, settled = clock.now(), list(_settled_homes(problem))
    for number, one in enumerate(settled, 1):
        facts = Facts(one)
        tries = max(3, WORK_ITEMS // (facts.op_count + facts.tensor_count))
        for index, variant in enumerate(_variants(one, limits)):
            spent, has_plan = clock.now() - began, best.schedule is not None
            is_late = index and has_plan and spent > seconds * number / len(settled)
            if is_late or (index and spent > most_seconds) or (index >= tries and has_plan):
                break
            best.consider(variant.schedule(facts, limits), "greedy")
            if found is not None and not has_plan and best.schedule is not None:
                found(best.schedule)
            if best.trace is not None and best.trace.joules <= problem.compute_joules * (1 + 1e-12):
                return best.schedule  # everything ran once and nothing moved
    joules = "none" if best.trace is None else f"{best.trace.joules:.9g} J"
    _log.info("greedy plans: the best takes %s, after %.3f s", joules, clock.now() - began)
    return best.schedule


def _settled_homes(problem: Problem) -> Iterator[Problem]:
    """``problem`` with a few choices of homes, those most expensive to page in RAM first."""
    choices = frozenset(undecided(problem))

    def price(tensor: Tensor) -> float:
        moves = (tensor.page_in, tensor.page_out)
        return -sum(cost.joules for cost in moves if cost is not None) / (tensor.bytes + 1)

    by_price = sorted((t for t in problem.tensors if t.name in choices), key=price)
    held = list(itertools.accumulate(tensor.bytes for tensor in by_price))
    for share in HOME_SHARES if choices else ():
        yield decide(
            problem, [t.name for t, most in zip(by_price, held, strict=True) if most > share * held[-1]]
        )
    if not choices:
        yield problem


@dataclass(frozen=True, slots=True)
class _Variant:
    """A list schedule.

    Attributes:
        weights: of seconds and of recomputation against joules.
        bias: of the cover, exponent of the bytes relieved; 0: without a cover.
        online: by what was not used for long, and so it comes back; ``None``: by what is ahead.
    """

    weights: Weights
    bias: float = 1.0
    online: Way | None = None

    def schedule(self, facts: Facts, limits: Limits) -> Schedule | None:
        if self.online is not None:
            allowed = replace(limits, paging=limits.paging and self.online is Way.CHEAPER)
            return walked(facts, allowed, ByStaleness(self.online), self.weights)
        marks: dict[tuple[int, int], Way] = {}
        if self.bias and limits.ram_budget_bytes is not None:
            marks = Cover(facts, limits, self.weights, bias=self.bias).marks()
        return walked(facts, limits, Planned(marks), self.weights)


def _variants(problem: Problem, limits: Limits) -> list[_Variant]:
    """The plans to try, in order."""
    costs = [(op.joules, op.seconds) for op in problem.ops]
    for tensor in problem.tensors:
        costs += [(cost.joules, cost.seconds) for cost in (tensor.page_in, tensor.page_out) if cost]
    joules, seconds = map(sum, zip(*costs, strict=True))
    watts = joules / seconds if seconds > 0 else 1.0  # typical, to weigh a deadline with
    idle = problem.idle_watts
    hidden = 0.0 if problem.background_storage else idle
    plain, chooses = Weights(idle, hidden), limits.recompute and limits.paging
    first = [*(_Variant(plain, online=way) for way in (Way.CHEAPER, Way.REMAKE)), _Variant(plain)]
    usual = [_Variant(plain, bias=0.7), _Variant(plain, bias=0.0)]
    usual += [_Variant(replace(plain, remake_factor=each)) for each in REMAKE_FACTORS if chooses]
    hurries = [hurry * watts for hurry in HURRY_FACTORS]
    sparing = [_Variant(Weights(idle + hurry, hidden)) for hurry in hurries[1::2]]
    if limits.deadline_seconds is None:  # a step that computes less may have to page less, too
        return [*first, *usual, *(sparing if chooses else ())]
    hasty = [_Variant(Weights(idle + hurry, hidden + hurry)) for hurry in hurries]
    saving = [_Variant(Weights(idle, hidden + hurry)) for hurry in hurries[1::2]]
    return [*first, *hasty, *sparing, *saving, *usual]
