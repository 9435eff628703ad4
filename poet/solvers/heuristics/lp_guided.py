"""LP-guided list scheduling: schedules that follow the relaxation's solution as far as memory allows.

The solution of the windows relaxation (`poet.solvers.bounds.relaxation`) gives for each tensor version
in which windows it is out of RAM, and whether it comes back by page-in or by recomputation. The list
scheduler (`poet.solvers.heuristics.list_scheduler`), which counts memory exactly, follows it: when it
needs room, it first drops tensors that the solution drops before their next use, and after these the
tensors with most bytes × ops until the next use per joule of coming back. Where the relaxation
under-counts memory, the schedule pays for more transfers and reruns; but which tensors are absent at
the few moments at which RAM is short is decided together, by the solution. A solution in whole numbers
is a better guide than a fractional one.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from poet.homes import decide
from poet.schedule import Schedule
from poet.solvers.bounds.relaxation import Bound, Segment
from poet.solvers.engines.program import Numbers, value
from poet.solvers.heuristics.judged import walked
from poet.solvers.heuristics.list_scheduler import Policy, Tensors, Values, Walk, Way, Weights
from poet.solvers.instance.instance import Facts, Instance


def walks_along(instance: Instance, bound: Bound) -> Iterator[Schedule]:
    """Schedules that follow the solution of ``bound``; none without a solution.

    One for each pair of a threshold in ``sure_shares`` and an exponent in ``price_exponents``. Where the plan
    chooses homes, they are where the solution has the larger part of each.
    """
    values, tuning = bound.answer.values, instance.tuning.walks
    if values is None:
        return
    at_home = bound.relaxation.at_home
    in_storage = frozenset(tensor for tensor, column in at_home.items() if value(column, values) < 0.5)
    problem = decide(instance.problem, in_storage)
    facts, told = Facts(problem), set[tuple[tuple[Absence, ...], ...]]()
    idle = problem.idle_watts
    weights = Weights(idle, 0.0 if problem.background_storage else idle)
    for surely in tuning.sure_shares:
        stretches = bound.relaxation.segments + bound.relaxation.tails
        absences = _absences(facts, instance, stretches, values, surely)
        if absences in told:  # a solution in whole numbers gives the same for all thresholds
            continue
        told.add(absences)
        wanted = _wanted(facts, instance, stretches, values)
        for bias in tuning.price_exponents:
            schedule = walked(facts, instance.limits, AsRelaxed(absences, wanted, bias), weights)
            if schedule is not None:
                yield schedule


@dataclass(frozen=True, slots=True)
class Absence:
    """A tensor is out of RAM between the first runs of two ops; ``way``: how it comes back."""

    after: int
    until: int
    way: Way


class AsRelaxed(Policy):
    """Drops what the solution has out of RAM before its next use, then what frees most per joule.

    Args:
        absences: per tensor, in order of time.
        wanted: per tensor, the last op before which the solution remakes something from it; -1: none.
        bias: exponent of the joules of coming back; above 1 it prefers cheap returns to long gaps.
    """

    def __init__(
        self, absences: tuple[tuple[Absence, ...], ...], wanted: tuple[int, ...], bias: float
    ) -> None:
        self.absences, self.wanted, self.bias = absences, wanted, bias
        self.starts = [[absence.after for absence in mine] for mine in absences]

    def mark(self, walk: Walk, tensor: int) -> Way | None:
        need = walk.next_need(tensor)
        index = bisect.bisect_left(self.starts[tensor], walk.position - 1)
        if index == len(self.starts[tensor]):
            return None
        absence = self.absences[tensor][index]
        return absence.way if need is None or absence.after < need else None

    def value(self, walk: Walk, tensor: int) -> float:
        """Bytes × ops until the next use, per joule of coming back to the power of the bias."""
        need = walk.next_need(tensor)
        distance = (walk.facts.op_count + 1 if need is None else need) - walk.position + 1
        return float(walk.facts.size[tensor] * distance / (walk.return_price(tensor) ** self.bias + 1e-30))

    def values(self, walk: Walk, tensors: Tensors) -> Values:
        """See `value`."""
        # one by one: numpy's power differs in the last bit with what the processor can do, and so would plans
        prices = np.array([price**self.bias for price in walk.return_prices(tensors).tolist()])
        return walk.facts.sizes[tensors] * walk.distances(tensors) / (prices + 1e-30)

    def lingers(self, walk: Walk, tensor: int) -> int:
        """Last op before which the solution remakes something from ``tensor``.

        -1 where ``tensor`` can be made again itself, or is out of RAM in the solution now.
        """
        if walk.may_rerun(walk.facts.producer[tensor], walk.position):
            return -1
        index = bisect.bisect_left(self.starts[tensor], walk.position) - 1
        away = index >= 0 and walk.position <= self.absences[tensor][index].until
        return -1 if away else self.wanted[tensor]


def _absences(
    facts: Facts, instance: Instance, segments: tuple[Segment, ...], values: Numbers, surely: float
) -> tuple[tuple[Absence, ...], ...]:
    """Per tensor, the windows of all versions through which the solution keeps less than ``surely``."""
    back = instance.tuning.walks.back_share
    number = {tensor.name: index for index, tensor in enumerate(facts.problem.tensors)}
    absences: list[list[Absence]] = [[] for _ in number]
    for segment in segments:
        tensor = number[instance.contents[segment.content].tensor]
        for window, kept in enumerate(segment.kept):
            if value(kept, values) < surely:
                way = _way_back(segment, window, values, back)
                absences[tensor].append(Absence(segment.moments[window], segment.ends[window], way))
    return tuple(tuple(sorted(mine, key=lambda absence: absence.after)) for mine in absences)


def _way_back(segment: Segment, window: int, values: Numbers, back: float) -> Way:
    """How the version first comes back, by more than ``back`` of it, after it was dropped in ``window``."""
    for paged, made in zip(segment.paged[window:], segment.made[window:], strict=True):
        in_pages, in_runs = value(paged, values), value(made, values)
        if in_pages + in_runs > back:
            return Way.REMAKE if in_runs > in_pages else Way.PAGE
    return Way.CHEAPER


def _wanted(
    facts: Facts, instance: Instance, segments: tuple[Segment, ...], values: Numbers
) -> tuple[int, ...]:
    """Per tensor, the last op before which the solution remakes something from it; -1: none."""
    wanted, back = [-1] * facts.tensor_count, instance.tuning.walks.back_share
    for segment in segments:
        producer = instance.contents[segment.content].producer
        if producer is not None and any(value(made, values) > back for made in segment.made):
            for tensor in facts.rerun_inputs[producer]:
                wanted[tensor] = max(wanted[tensor], segment.until)
    return tuple(wanted)
