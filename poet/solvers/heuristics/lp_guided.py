"""LP-guided list scheduling: schedules that follow the relaxation's solution as far as memory allows.

The solution of the windows relaxation (`poet.solvers.bounds.relaxation`) gives for each tensor version
in which windows it is out of RAM, and whether it comes back by page-in or by recomputation. The list
scheduler (`poet.solvers.heuristics.list_scheduler`), which counts memory exactly, follows it: when it
needs room, it first drops tensors that the solution drops before their next use, and after these the
tensors with most bytes × ops until the next use per joule of coming back. Where the relaxation
under-counts memory, the schedule pays for more transfers and reruns; but which tensors are absent at
the few moments at which RAM is short is decided together, by the solution. A solution in whole numbers
is a better guide than a fractional one. A plan that lacks a few bytes is a guide as well: what it has out of
RAM, when, and how that comes back, is kept.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from poet.homes import decide, decided
from poet.problem import Limits, Problem
from poet.schedule import Compute, Free, PageIn, Schedule
from poet.solvers.bounds.relaxation import Bound, Segment
from poet.solvers.engines.program import Numbers, value
from poet.solvers.heuristics.list_scheduler import Walk, Way, Weights
from poet.solvers.heuristics.policies import ByDistance, cheapest_walk, walked
from poet.solvers.instance.instance import Facts, Instance

SURE_SHARES = (0.5, 0.99)
"""Of a version, from which on it counts as kept, schedules for each; with one, fractions are read one way."""

PRICE_EXPONENTS = (1.4, 1.0, 0.7)
"""Of the joules of coming back in what is dropped first; with one, all schedules weigh them alike."""

BACK_SHARE = 0.3
"""Of a version, above which it counts as made again or paged in; at 0, spread fractions show no place."""


def walks_along(instance: Instance, bound: Bound) -> Iterator[Schedule]:
    """Schedules that follow the solution of ``bound``; none without a solution.

    One for each pair of a threshold in ``SURE_SHARES`` and an exponent in ``PRICE_EXPONENTS``. Where the plan
    chooses homes, they are where the solution has the larger part of each.
    """
    values = bound.answer.values
    if values is None:
        return
    at_home = bound.relaxation.at_home
    in_storage = frozenset(tensor for tensor, column in at_home.items() if value(column, values) < 0.5)
    problem = decide(instance.problem, in_storage)
    facts, told = Facts(problem), set[tuple[tuple[Absence, ...], ...]]()
    idle = problem.idle_watts
    weights = Weights(idle, 0.0 if problem.background_storage else idle)
    for surely in SURE_SHARES:
        stretches = bound.relaxation.segments + bound.relaxation.tails
        absences = _absences(facts, instance, stretches, values, surely)
        if absences in told:  # a solution in whole numbers gives the same for all thresholds
            continue
        told.add(absences)
        wanted = _wanted(facts, instance, stretches, values)
        for bias in PRICE_EXPONENTS:
            schedule = walked(facts, instance.limits, AsRelaxed(absences, wanted, bias), weights)
            if schedule is not None:
                yield schedule


@dataclass(frozen=True, slots=True)
class Absence:
    """A tensor is out of RAM between the first runs of two ops; ``way``: how it comes back."""

    after: int
    until: int
    way: Way


class AsRelaxed(ByDistance):
    """Drops what the solution has out of RAM before its next use, then what frees most per joule.

    Args:
        absences: per tensor, in order of time.
        wanted: per tensor, the last op before which the solution remakes something from it; -1: none.
        bias: exponent of the joules of coming back; above 1 it prefers cheap returns to long gaps.
    """

    def __init__(
        self, absences: tuple[tuple[Absence, ...], ...], wanted: tuple[int, ...], bias: float
    ) -> None:
        super().__init__(bias)
        self.absences, self.wanted = absences, wanted
        self.starts = [[absence.after for absence in mine] for mine in absences]

    def mark(self, walk: Walk, tensor: int) -> Way | None:
        need = walk.next_need(tensor)
        index = bisect.bisect_left(self.starts[tensor], walk.position - 1)
        if index == len(self.starts[tensor]):
            return None
        absence = self.absences[tensor][index]
        return absence.way if need is None or absence.after < need else None

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
    number = {tensor.name: index for index, tensor in enumerate(facts.problem.tensors)}
    absences: list[list[Absence]] = [[] for _ in number]
    for segment in segments:
        tensor = number[instance.contents[segment.content].tensor]
        for window, kept in enumerate(segment.kept):
            if value(kept, values) < surely:
                way = _way_back(segment, window, values)
                absences[tensor].append(Absence(segment.moments[window], segment.ends[window], way))
    return tuple(tuple(sorted(mine, key=lambda absence: absence.after)) for mine in absences)


def _way_back(segment: Segment, window: int, values: Numbers) -> Way:
    """How the version first comes back after it was dropped in ``window``."""
    for paged, made in zip(segment.paged[window:], segment.made[window:], strict=True):
        in_pages, in_runs = value(paged, values), value(made, values)
        if in_pages + in_runs > BACK_SHARE:
            return Way.REMAKE if in_runs > in_pages else Way.PAGE
    return Way.CHEAPER


def _wanted(
    facts: Facts, instance: Instance, segments: tuple[Segment, ...], values: Numbers
) -> tuple[int, ...]:
    """Per tensor, the last op before which the solution remakes something from it; -1: none."""
    wanted = [-1] * facts.tensor_count
    for segment in segments:
        producer = instance.contents[segment.content].producer
        if producer is not None and any(value(made, values) > BACK_SHARE for made in segment.made):
            for tensor in facts.rerun_inputs[producer]:
                wanted[tensor] = max(wanted[tensor], segment.until)
    return tuple(wanted)


# --- along another plan ---


def followed(
    problem: Problem, schedule: Schedule, limits: Limits, price_exponents: Iterable[float] = PRICE_EXPONENTS
) -> Schedule | None:
    """The plan of least energy within ``limits`` that has absent what ``schedule`` has absent, and more.

    Args:
        problem: of ``schedule``.
        schedule: a plan that is not within ``limits``: it takes more RAM.
        limits: of the result.
        price_exponents: of the joules of coming back, a plan for each: the best is taken.

    Returns:
        ``None`` where list schedules get stuck. Tensors are at home where ``schedule`` has them.
    """
    problem = decided(problem, schedule)
    facts = Facts(problem)
    absences, wanted = _absences_in(facts, schedule), _wanted_by(facts, schedule)
    return cheapest_walk(problem, limits, (AsRelaxed(absences, wanted, bias) for bias in price_exponents))


def _absences_in(facts: Facts, schedule: Schedule) -> tuple[tuple[Absence, ...], ...]:
    """Per tensor, between which ops it is out of RAM, and how it comes back."""
    number = {tensor.name: index for index, tensor in enumerate(facts.problem.tensors)}
    ops = {op.name: index for index, op in enumerate(facts.problem.ops)}
    absences: list[list[Absence]] = [[] for _ in number]
    away: dict[int, int] = {}  # tensors that were there and are not, with the op before
    position = 0
    for step in schedule:
        match step:
            case Free(tensor):
                away[number[tensor]] = position - 1
            case PageIn(tensor):
                index = number[tensor]
                absences[index].append(Absence(away.pop(index, -1), position, Way.PAGE))
            case Compute(op):
                for index in facts.outputs[ops[op]]:
                    if index in away:
                        absences[index].append(Absence(away.pop(index), position, Way.REMAKE))
                position = max(position, ops[op] + 1)
            case _:
                pass
    return tuple(map(tuple, absences))


def _wanted_by(facts: Facts, schedule: Schedule) -> tuple[int, ...]:
    """Per tensor, the last op before which ``schedule`` remakes something from it; -1: none."""
    ops = {op.name: index for index, op in enumerate(facts.problem.ops)}
    wanted, position = [-1] * facts.tensor_count, 0
    for step in schedule:
        if isinstance(step, Compute):
            if ops[step.op] < position:
                for index in facts.rerun_inputs[ops[step.op]]:
                    wanted[index] = position
            position = max(position, ops[step.op] + 1)
    return tuple(wanted)
