"""What a plan costs where the device's figures are off: its price at the ends of their intervals.

For a schedule that stays as it is, seconds and joules grow with every time and every power, so that the ends
of the figures are the ends of the answer. That all figures are off at once, and in one direction, is
unlikely: `likely_ends` takes the groups of figures as independent of each other, each figure's interval as
one that holds nine values of ten, and beside them the error of the cost model itself.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from poet.devices.cost_table import Amounts
from poet.devices.costs import buffer_cost, estimate
from poet.devices.device_problem import with_units
from poet.devices.figures import Count, OpClass, unit_of
from poet.devices.profile import Profile
from poet.errors import ProfileError
from poet.ir.graph import Graph
from poet.problem import Problem, Tensor
from poet.problem.homes import DecidedProblem
from poet.problem.schedule import Schedule
from poet.problem.simulator import judge
from poet.problem.units import on_units
from poet.util.reading import LARGEST_AMOUNT

End = Literal["low", "high"]
Place = tuple[str, ...]
"""Of a figure in a profile, as `Profile.figures` gives it."""


def uncertain_figures(profile: Profile) -> tuple[Place, ...]:
    """Paths of the figures that may be off; whole numbers are chosen or counted, not estimated."""
    return tuple(
        path
        for path, figure in profile.figures()
        if not isinstance(figure, Count) and figure.interval[0] != figure.interval[1]
    )


def corner(profile: Profile, ends: Mapping[Place, End]) -> Profile:
    """``profile`` with each figure of ``ends`` at that end of its interval, and exact there.

    In total accounting an ``active_watts`` holds the idle power. What may be off is what being busy adds, so
    idle power that is off moves every ``active_watts`` with it.

    Raises:
        ValueError: the profile has an ``active_watts`` that may be below its idle power.
    """
    data = profile.model_dump()
    idle_path = ("energy", "idle_watts")
    moved_watts = 0.0
    if profile.energy.accounting == "total" and idle_path in ends:
        idle = profile.energy.idle_watts
        moved_watts = idle.interval[0 if ends[idle_path] == "low" else 1] - idle.value
    for path, figure in profile.figures():
        end = ends.get(path)
        value = figure.value if end is None else figure.interval[0 if end == "low" else 1]
        moved = path[-1] == "active_watts" and moved_watts != 0.0
        if end is not None or moved:
            entry = functools.reduce(_item, path, data)
            value = min(value + moved_watts * moved, LARGEST_AMOUNT)
            entry.update(value=value, range=None, uncertainty=0.0)
    return Profile.model_validate(data)


def _item(table: Any, key: str) -> Any:
    return table[int(key)] if isinstance(table, tuple | list) else table[key]


Side = Literal["good", "bad"]
"""Of a figure's interval: where a step takes less, and where it takes more."""

SIDES: tuple[Side, Side] = ("good", "bad")

_TIMES = ("latency_seconds", "bandwidth_bytes_per_second")

GROUPS: Mapping[str, Callable[[Place], bool]] = {
    "compute": lambda path: path[0] in ("compute", "op_times", "units") and path[-1] != "active_watts",
    "memory": lambda path: path[0] == "memory" and path[-1] == "bandwidth_bytes_per_second",
    "reads": lambda path: path[:2] == ("storage", "read") and path[-1] in _TIMES,
    "writes": lambda path: (
        (path[:2] == ("storage", "write") and path[-1] in _TIMES) or path[-1] == "block_seconds"
    ),
    "power": lambda path: path[-1] in ("active_watts", "idle_watts", "block_joules"),
}
"""Figures that are off together: by one clock, one memory, one card, one meter."""

_ENOUGH_STEPS = 10
"""Of fewer, the largest error says too little of nine cases in ten."""

MODEL_FACTOR = 1.19
"""The cost model's own error: by so much nine of ten steps are off at most, either way, where figures are as
good as a fit makes them: 36 published steps of a Raspberry Pi 4, each left out (results/devices-table)."""


@dataclass(frozen=True, slots=True)
class Price:
    """Of one step."""

    seconds: float
    joules: float


@dataclass(frozen=True, slots=True)
class Spread:
    """A plan's price as stated, and at both ends of each group of figures.

    Attributes:
        stated: at the profile's values.
        groups: by name of `GROUPS`, those that may be off: at the good end and at the bad one.
        all_good, all_bad: with every figure at that end.
        likely_good, likely_bad: between these the truth lies in nine cases of ten; see `likely_ends`.
    """

    stated: Price
    groups: dict[str, tuple[Price, Price]]
    all_good: Price
    all_bad: Price
    likely_good: Price
    likely_bad: Price


def spread(
    problem: DecidedProblem,
    graph: Graph,
    schedule: Schedule,
    profile: Profile,
    *,
    moves: Mapping[int, Sequence[str]] | None = None,
) -> Spread:
    """The price of ``schedule`` for one step of ``graph`` on ``profile``'s device.

    Args:
        problem: that the schedule solves, whose costs are computed again.
        graph: the step.
        schedule: stays as it is at every end.
        profile: of the device.
        moves: of tensors within RAM, by step.

    Raises:
        ProfileError: the problem pages and the device has no storage.
    """
    _check_pages(problem, profile)
    amounts: dict[str, Amounts] = {}  # they follow from the graph alone

    def price(good: bool, *names: str) -> Price:
        there = _moved(profile, dict.fromkeys(names, "good" if good else "bad"))
        found = _recosted(problem, graph, there, amounts)
        trace = judge(DecidedProblem(found), schedule, moves=moves)
        return Price(trace.seconds, trace.joules)

    moved = uncertain_groups(profile)
    stated, whole = price(True), (price(True, *moved), price(False, *moved))
    groups = {name: (price(True, name), price(False, name)) for name in moved}
    factor = model_factor(profile)

    def likely(of: Callable[[Price], float]) -> tuple[float, float]:
        pairs = [(of(good), of(bad)) for good, bad in groups.values()]
        return likely_ends(of(stated), pairs, (of(whole[0]), of(whole[1])), factor)

    seconds, joules = likely(lambda price: price.seconds), likely(lambda price: price.joules)
    good, bad = map(Price, seconds, joules)
    return Spread(stated, groups, *whole, good, bad)


def model_factor(profile: Profile) -> float:
    """By which the cost model is off in nine cases of ten on ``profile``'s device, beside its figures.

    The largest factor in steps that the device's own fit has not seen, if they are few no less than
    `MODEL_FACTOR`; without any, that. A profile of somebody else's model, in which no figure is in doubt, is
    held to be right.
    """
    if not uncertain_groups(profile):
        return 1.0
    made = profile.calibration
    if made is None or made.worst_factor is None:
        return MODEL_FACTOR
    return made.worst_factor if made.steps >= _ENOUGH_STEPS else max(made.worst_factor, MODEL_FACTOR)


def likely_ends(
    stated: float, groups: Iterable[tuple[float, float]], whole: tuple[float, float], factor: float
) -> tuple[float, float]:
    """Between which an answer lies in nine cases of ten.

    Distances from what is stated count as logarithms. Those of independent groups, and of the model, add up
    as the root of the sum of their squares; those of all groups come to that of all at once at most.

    Args:
        stated: the answer by the values of all figures.
        groups: the answer with each group of figures at its good and at its bad end.
        whole: the same with all of them.
        factor: of the model's own error; see `model_factor`.
    """
    if stated <= 0.0:
        return whole
    pairs = list(groups)

    def distance(place: int) -> float:
        moved = math.hypot(*(_distance(stated, pair[place]) for pair in pairs))
        return math.hypot(min(moved, _distance(stated, whole[place])), math.log(factor))

    return stated * math.exp(-distance(0)), stated * math.exp(distance(1))


def _distance(stated: float, end: float) -> float:
    """As a logarithm."""
    if stated == end:
        return 0.0
    return abs(math.log(stated / end)) if end > 0 else math.inf


def uncertain_groups(profile: Profile) -> tuple[str, ...]:
    """Names of the `GROUPS` of which a figure may be off."""
    paths = uncertain_figures(profile)
    return tuple(name for name, holds in GROUPS.items() if any(map(holds, paths)))


def at_ends(problem: Problem, graph: Graph, profile: Profile, ends: Mapping[str, Side]) -> Problem:
    """``problem`` as it is where the figures of groups are at an end: what ops and transfers cost there.

    Args:
        problem: the step of ``graph`` on ``profile``'s device, its homes decided or not.
        graph: the step.
        profile: of the device.
        ends: by name of `GROUPS`; the others stay as stated.

    Raises:
        ProfileError: the problem pages and the device has no storage.
    """
    _check_pages(problem, profile)
    found = _moved(profile, ends)
    return _recosted(problem, graph, found)


def _check_pages(problem: Problem, profile: Profile) -> None:
    if profile.storage is None and any(tensor.page_in is not None for tensor in problem.tensors):
        raise ProfileError(f"the plan may page and {profile.name} has no storage")


def _moved(profile: Profile, ends: Mapping[str, Side]) -> Profile:
    moved = {
        path: good_end(path, good=side == "good")
        for path in uncertain_figures(profile)
        for name, side in ends.items()
        if GROUPS[name](path)
    }
    return corner(profile, moved)


def good_end(path: Place, *, good: bool) -> End:
    """Which end of a figure is the good one: more per second is, more seconds, watts or joules are not."""
    return "high" if path[-1].endswith("per_second") == good else "low"


def _recosted(
    problem: Problem, graph: Graph, profile: Profile, amounts: dict[str, Amounts] | None = None
) -> Problem:
    costs = estimate(graph, profile, amounts)

    def repriced(tensor: Tensor) -> Tensor:
        cost, form = costs.buffers[tensor.name], tensor.page_form
        cost = cost if form is None else buffer_cost(tensor.bytes, profile, form)
        return replace(
            tensor,
            page_in=None if tensor.page_in is None else cost.page_in,
            page_out=None if tensor.page_out is None else cost.page_out,
            move=None if tensor.move is None else cost.move,
        )

    assignment = {op.name: op.unit for op in problem.ops if op.unit}
    ops = tuple(
        replace(op, seconds=costs.ops[op.name].seconds, joules=costs.ops[op.name].joules, unit="")
        for op in problem.ops
    )
    tensors = tuple(map(repriced, problem.tensors))
    found = replace(problem, ops=ops, tensors=tensors, idle_watts=profile.charged_idle_watts)
    if not problem.units:
        return found
    return on_units(with_units(found, graph, profile, amounts), assignment)


# --- two devices ------------------------------------------------------------------------------

Interval = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Stated:
    """A figure of one device, in the unit of its name."""

    value: float
    interval: Interval


@dataclass(frozen=True, slots=True)
class Contrast:
    """One figure of two devices.

    Attributes:
        name: the figure's path; ``active_watts`` are above idle, so that both accountings compare.
        unit: of both.
        first, second: as each states it; ``None``: it does not.
    """

    name: str
    unit: str
    first: Stated | None
    second: Stated | None

    @property
    def verdict(self) -> Literal["differs", "may be equal", "one only"]:
        """``differs``: the intervals have nothing in common."""
        if self.first is None or self.second is None:
            return "one only"
        (low, high), (other_low, other_high) = self.first.interval, self.second.interval
        return "differs" if high < other_low or other_high < low else "may be equal"

    @property
    def factors(self) -> Interval | None:
        """Least and most that the second may be of the first; ``None`` where that is not known or endless."""
        if self.first is None or self.second is None or self.first.interval[0] <= 0:
            return None
        (low, high), (other_low, other_high) = self.first.interval, self.second.interval
        return other_low / high, other_high / low


def contrasts(first: Profile, second: Profile) -> tuple[Contrast, ...]:
    """Every figure that either device states, in the order of the schema.

    The speed of a class of op is what holds for it, from its own table or from its parent's, where either
    device has a table of its own for the class.
    """
    ours, theirs = (_figures(profile) for profile in (first, second))
    names = [*ours, *(name for name in theirs if name not in ours)]
    found = []
    for name in names:
        op_class = _class_of_speed(name)
        left, right = ours.get(name), theirs.get(name)
        if op_class is not None:
            left, right = left or _speed(first, op_class), right or _speed(second, op_class)
        found.append(Contrast(name, unit_of(name.rpartition(".")[2]), left, right))
    return tuple(found)


def _figures(profile: Profile) -> dict[str, Stated]:
    """By path; ``active_watts`` above idle."""
    found, above_watts = {}, profile.energy.idle_watts.value
    for path, figure in profile.figures():
        (low, high), value = figure.interval, figure.value
        if path[-1] == "active_watts" and profile.energy.accounting == "total":
            low, high, value = max(low - above_watts, 0.0), high - above_watts, value - above_watts
        found[".".join(path)] = Stated(value, (low, high))
    return found


def _class_of_speed(name: str) -> OpClass | None:
    parts = name.split(".")
    known = {op_class.value: op_class for op_class in OpClass}
    return known.get(parts[1]) if parts[0] == "compute" and parts[-1] == "flops_per_second" else None


def _speed(profile: Profile, op_class: OpClass) -> Stated | None:
    throughput = profile.compute.throughput(op_class)
    if throughput is None:
        return None
    return Stated(throughput.flops_per_second.value, throughput.flops_per_second.interval)
