"""Which figures of a device decide: whether a plan stays good, and in time, where a group of them is off.

Each group of `poet.devices.spread.GROUPS` is put to its good and to its bad end, the others as stated, and
the step is planned again: what the plan takes more than the new one is its regret.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from poet.devices.costs import estimate
from poet.devices.figures import OpClass
from poet.devices.profile import Profile
from poet.devices.spread import SIDES, Side, at_ends, uncertain_groups
from poet.errors import InvalidSchedule
from poet.graph import Graph
from poet.homes import DecidedProblem
from poet.problem import Limits, Transfer
from poet.schedule import Schedule
from poet.simulator import judge
from poet.units import format_share
from poet.whatif.robust import Report
from poet.whatif.searches import Solver, Wanted

NOTABLE = 1e-3
"""A smaller regret is that of the search, not of the figures."""

MOST_FACTOR = 1000.0
"""Slower than this is told as any factor."""

_BISECTIONS = 24

WORDS: dict[OpClass, str] = {
    OpClass.MATMUL: "matrix products",
    OpClass.CONVOLUTION: "convolutions",
    OpClass.ELEMENTWISE: "elementwise ops",
    OpClass.REDUCTION: "sums and norms",
    OpClass.TRANSCENDENTAL: "exponentials",
    OpClass.MOVEMENT: "copies",
    OpClass.CONVOLUTION_BACKWARD: "gradients of convolutions",
    OpClass.DEPTHWISE: "depthwise convolutions",
    OpClass.DEPTHWISE_BACKWARD: "gradients of depthwise convolutions",
    OpClass.GROUPED: "grouped convolutions",
    OpClass.POINTWISE: "pointwise convolutions",
    OpClass.POINTWISE_BACKWARD: "gradients of pointwise convolutions",
    OpClass.POOLING: "pooling ops",
    OpClass.GELU: "GELUs",
    OpClass.TANH: "hyperbolic tangents",
    OpClass.SHORT_ROWS: "softmaxes of short rows",
}
"""What is slower, for "holds until convolutions are 1.4 times slower"."""


@dataclass(frozen=True, slots=True)
class Shift:
    """One group at one end.

    Attributes:
        group, side: which.
        joules, seconds: of the plan there.
        in_time: it meets the deadline there.
        best_joules: of the best plan known there; ``None``: none is within the limits.
        bound_joules: no plan takes less there.
    """

    group: str
    side: Side
    joules: float
    seconds: float
    in_time: bool
    best_joules: float | None
    bound_joules: float

    @property
    def regret(self) -> float:
        """The share that the plan takes more than the best known."""
        return self.joules / self.best_joules - 1.0 if self.best_joules else 0.0

    @property
    def regret_at_most(self) -> float:
        """The same against what no plan can beat."""
        return self.joules / self.bound_joules - 1.0 if self.bound_joules else math.inf


@dataclass(frozen=True, slots=True)
class Slack:
    """How much slower ``what`` may be until the deadline is missed; ``None``: by any factor."""

    what: str
    factor: float | None


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """What the intervals of a device's figures mean for a plan.

    Attributes:
        shifts: both ends of each group that may be off; less where Ctrl-C ended the searches.
        slacks: per class of op and transfer, least first; empty without a deadline.
        complete: no Ctrl-C ended the searches.
    """

    shifts: tuple[Shift, ...]
    slacks: tuple[Slack, ...]
    complete: bool

    def decides(self, group: str) -> bool:
        """Whether at an end of the group another plan is better by more than `NOTABLE`, or alone in time."""
        return any(
            (shift.regret > NOTABLE if shift.in_time else shift.best_joules is not None)
            for shift in self.shifts
            if shift.group == group
        )


def sensitivity(
    problem: DecidedProblem,
    graph: Graph,
    profile: Profile,
    limits: Limits,
    schedule: Schedule,
    solver: Solver,
    *,
    report: Report | None = None,
) -> Sensitivity:
    """Plan ``problem`` again at both ends of each group of ``profile``'s figures, and find the slack.

    Args:
        problem: the step of ``graph`` on ``profile``'s device, whose homes stay as they are.
        graph: the step.
        profile: of the device.
        limits: of every plan.
        schedule: the plan in question; searches begin with it.
        solver: makes and keeps the searches.
        report: told, before each search, what is searched.
    """
    ends = [(group, side) for group in uncertain_groups(profile) for side in SIDES]
    problems, bounds, found = {}, {}, [schedule]
    complete = True
    try:
        for group, side in ends:
            moved = at_ends(problem, graph, profile, {group: side})
            name = f"{group} at the {side} end"
            if report is not None:
                report(name)
            (answer,) = solver.solve([Wanted(moved, limits, name, schedule)])
            problems[group, side] = DecidedProblem(moved)
            bounds[group, side] = 0.0 if answer is None else answer.bound_joules
            if answer is not None and answer.schedule is not None and answer.schedule not in found:
                found.append(answer.schedule)
    except KeyboardInterrupt:
        complete = False
    shifts = tuple(
        _shift(end, problems[end], bounds[end], limits, schedule, found) for end in ends if end in problems
    )
    return Sensitivity(shifts, slacks(problem, graph, profile, limits, schedule), complete)


def _shift(
    end: tuple[str, Side],
    moved: DecidedProblem,
    bound_joules: float,
    limits: Limits,
    schedule: Schedule,
    found: Iterable[Schedule],
) -> Shift:
    group, side = end
    trace = judge(moved, schedule)
    known = [joules for plan in found if (joules := _joules_inside(moved, limits, plan)) is not None]
    return Shift(
        group=group,
        side=side,
        joules=trace.joules,
        seconds=trace.seconds,
        in_time=_joules_inside(moved, limits, schedule) is not None,
        best_joules=min(known, default=None),
        bound_joules=bound_joules,
    )


def _joules_inside(problem: DecidedProblem, limits: Limits, schedule: Schedule) -> float | None:
    try:
        return judge(problem, schedule, limits).joules
    except InvalidSchedule:
        return None


def slacks(
    problem: DecidedProblem, graph: Graph, profile: Profile, limits: Limits, schedule: Schedule
) -> tuple[Slack, ...]:
    """How much slower each class of op, all of them, and transfers may be until the deadline is missed."""
    deadline_seconds = limits.deadline_seconds
    if deadline_seconds is None:
        return ()
    class_of = {name: cost.op_class for name, cost in estimate(graph, profile).ops.items()}

    def ops_slower(classes: frozenset[OpClass]) -> Callable[[float], DecidedProblem]:
        def slower(factor: float) -> DecidedProblem:
            ops = tuple(
                replace(op, seconds=op.seconds * factor) if class_of[op.name] in classes else op
                for op in problem.ops
            )
            return DecidedProblem(replace(problem, ops=ops))

        return slower

    def transfers_slower(direction: str) -> Callable[[float], DecidedProblem]:
        def slower(factor: float) -> DecidedProblem:
            def scaled(cost: Transfer | None) -> Transfer | None:
                return None if cost is None else replace(cost, seconds=cost.seconds * factor)

            tensors = tuple(
                replace(tensor, page_in=scaled(tensor.page_in))
                if direction == "in"
                else replace(tensor, page_out=scaled(tensor.page_out))
                for tensor in problem.tensors
            )
            return DecidedProblem(replace(problem, tensors=tensors))

        return slower

    trace = judge(problem, schedule)
    present = sorted(set(class_of.values()), key=lambda item: item.value)
    asked: dict[str, Callable[[float], DecidedProblem]] = {"all ops": ops_slower(frozenset(OpClass))}
    asked |= {WORDS[op_class]: ops_slower(frozenset({op_class})) for op_class in present}
    if trace.read_bytes:
        asked["page-ins"] = transfers_slower("in")
    if trace.written_bytes:
        asked["page-outs"] = transfers_slower("out")
    found = (Slack(what, _slack(slower, schedule, deadline_seconds)) for what, slower in asked.items())
    return tuple(sorted(found, key=lambda slack: math.inf if slack.factor is None else slack.factor))


def _slack(
    slower: Callable[[float], DecidedProblem], schedule: Schedule, deadline_seconds: float
) -> float | None:
    """The largest factor at which the step is in time, by bisection: its duration grows with the factor."""

    def late(factor: float) -> bool:
        return judge(slower(factor), schedule).seconds > deadline_seconds

    if not late(MOST_FACTOR):
        return None
    low, high = 1.0, 2.0
    while not late(high):
        low, high = high, 2.0 * high
    for _ in range(_BISECTIONS):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if late(middle) else (middle, high)
    return low


def slack_words(slack: Slack) -> str:
    """The sentence of one slack."""
    if slack.factor is None:
        return f"holds however slow {slack.what} are"
    if slack.factor < 1.01:
        return f"holds only while {slack.what} are no more than {format_share(slack.factor - 1.0)} slower"
    return f"holds until {slack.what} are {slack.factor:.3g} times slower"
