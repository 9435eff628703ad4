"""Greedy: cover the excess of RAM by the cheapest gaps, then schedule with exact memory.

A cover says which tensors to drop in which gaps between their uses, and the list scheduler turns it into a
schedule with exact memory. Several plans are tried, the judge picks the best. It is fast enough for a first
incumbent: well under a second for 2,000 ops.
"""

from __future__ import annotations

import itertools
import logging
import math
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from poet.clock import WALL, Clock
from poet.homes import decide, undecided
from poet.problem import Limits, Problem, Tensor
from poet.schedule import Schedule
from poet.solvers.heuristics.gap_cover import Cover
from poet.solvers.heuristics.judged import walked
from poet.solvers.heuristics.list_scheduler import Policy, Tensors, Values, Walk, Way, Weights
from poet.solvers.heuristics.policies import ByStaleness
from poet.solvers.instance.incumbent import Incumbent, Rejections
from poet.solvers.instance.instance import Facts
from poet.tuning import DEFAULT, Tuning
from poet.tuning.heuristics import GreedyTuning

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
    hurries = [hurry * watts for hurry in how.hurry_factors]
    sparing = [Variant(Weights(idle + hurry, hidden)) for hurry in hurries[1::2]]
    last = Variant(plain, cover=False)
    if limits.deadline_seconds is None:  # a step that computes less may have to page less, too
        return [*usual, last, *(sparing if limits.recompute and limits.paging else ())]
    hasty = [
        *(Variant(Weights(idle + hurry, hidden + hurry)) for hurry in hurries),
        *sparing,
        *(Variant(Weights(idle, hidden + hurry)) for hurry in hurries[1::2]),
    ]
    return [usual[0], *hasty, *usual[1:], last]


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
        marks = Cover(
            facts, limits, variant.weights, how, bias=variant.bias, noise=variant.noise, seed=seed
        ).marks()
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

    def values(self, walk: Walk, tensors: Tensors) -> Values:
        """See `value`."""
        sizes = walk.facts.sizes[tensors]
        return sizes * walk.distances(tensors) / (walk.return_prices(tensors) + 1e-30)
