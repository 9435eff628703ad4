"""List schedules that follow the relaxation's solution, or another plan, as far as memory allows.

The solution of the windows relaxation (`poet.solvers.bounds.relaxation`) gives for each tensor version
in which windows it is out of RAM, and whether it comes back by page-in or by recomputation. The list
scheduler, which counts memory exactly, drops that first. Where the relaxation under-counts memory, the
schedule pays for more transfers and reruns; but which tensors are absent at the few moments at which RAM is
short is decided together, by the solution. A solution in whole numbers is a better guide than a fractional
one. A plan that lacks a few bytes is a guide as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from poet.problem import Limits, Problem
from poet.problem.homes import decide, decided
from poet.problem.schedule import Compute, Schedule
from poet.solvers.bounds.relaxation import Bound, Segment
from poet.solvers.engines.program import Numbers, value
from poet.solvers.heuristics.gap_arrays import Way, read_choice
from poet.solvers.heuristics.policies import Planned, Walk, Weights, cheapest_walk, walked
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
    facts, idle = Facts(problem), problem.idle_watts
    weights = Weights(idle, 0.0 if problem.background_storage else idle)
    stretches, marked = bound.relaxation.segments + bound.relaxation.tails, list[dict[tuple[int, int], Way]]()
    wanted = _wanted(facts, instance, stretches, values)
    for surely in SURE_SHARES:
        marks = _absences(facts, instance, stretches, values, surely)
        if marks in marked:  # a solution in whole numbers gives the same for all thresholds
            continue
        marked.append(marks)
        for exponent in PRICE_EXPONENTS:
            schedule = walked(facts, instance.limits, Planned(marks, exponent, wanted), weights)
            if schedule is not None:
                yield schedule


def _absences(
    facts: Facts, instance: Instance, segments: tuple[Segment, ...], values: Numbers, surely: float
) -> dict[tuple[int, int], Way]:
    """Per tensor and op after which the solution keeps less than ``surely`` of it, how it comes back."""
    number = {tensor.name: index for index, tensor in enumerate(facts.problem.tensors)}
    return {
        (number[instance.contents[segment.content].tensor], segment.moments[window]): _way_back(
            segment, window, values
        )
        for segment in segments
        for window, kept in enumerate(segment.kept)
        if value(kept, values) < surely
    }


def _way_back(segment: Segment, window: int, values: Numbers) -> Way:
    """How the version first comes back after it was dropped in ``window``."""
    for paged, made in zip(segment.paged[window:], segment.made[window:], strict=True):
        in_pages, in_runs = value(paged, values), value(made, values)
        if in_pages + in_runs > BACK_SHARE:
            return Way.REMAKE if in_runs > in_pages else Way.PAGE
    return Way.CHEAPER


def _wanted(facts: Facts, instance: Instance, segments: tuple[Segment, ...], values: Numbers) -> list[int]:
    """Per tensor, the last op before which the solution remakes something from it; -1: none."""
    wanted = [-1] * facts.tensor_count
    for segment in segments:
        producer = instance.contents[segment.content].producer
        if producer is not None and any(value(made, values) > BACK_SHARE for made in segment.made):
            for tensor in facts.rerun_inputs[producer]:
                wanted[tensor] = max(wanted[tensor], segment.until)
    return wanted


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
    wanted = _wanted_by(Facts(problem), schedule)
    return cheapest_walk(problem, limits, (_Along(schedule, each, wanted) for each in price_exponents))


class _Along(Planned):
    """Drops first what ``schedule`` has absent."""

    def __init__(self, schedule: Schedule, exponent: float, wanted: Sequence[int]) -> None:
        super().__init__({}, exponent, wanted)
        self.schedule = schedule

    def begin(self, walk: Walk) -> None:
        super().begin(walk)
        read_choice(walk, walk.facts, walk.facts.problem, self.schedule)


def _wanted_by(facts: Facts, schedule: Schedule) -> list[int]:
    """Per tensor, the last op before which ``schedule`` remakes something from it; -1: none."""
    ops = {op.name: index for index, op in enumerate(facts.problem.ops)}
    wanted, position = [-1] * facts.tensor_count, 0
    for step in schedule:
        if isinstance(step, Compute):
            if ops[step.op] < position:
                for index in facts.rerun_inputs[ops[step.op]]:
                    wanted[index] = position
            position = max(position, ops[step.op] + 1)
    return wanted
