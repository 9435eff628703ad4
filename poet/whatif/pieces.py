"""Steps of micro-batches one after the other: two problems, searched apart, that make one point of a sweep.

All pieces of a batch but the last run one schedule, which sums gradients, and the last runs another, which
also updates. Each is a planning problem inside the same RAM, so that the least energy of a step is the sum of
theirs. A deadline is of the whole step: each search gets the share of it that running its ops once has of
running all of them once. That is one way to divide it, so that within a deadline nothing is proven of others;
any two plans that are known, whoever searched for them, make a point whose whole step is in time.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from poet.errors import InvalidSchedule
from poet.problem import Limits
from poet.simulator import simulate
from poet.units import format_seconds
from poet.whatif.knowledge import Candidate, Knowledge, Known, fits, in_time
from poet.whatif.result import Origin, Setting

NO_SHARE = "No plan was found in which each micro-batch keeps to its share of the deadline."
TOO_LATE = "Running every op once takes longer than the deadline."
_ORIGINS = (Origin.NONE, Origin.SEARCH, Origin.CACHE, Origin.NEIGHBOUR, Origin.ARITHMETIC)


@dataclass(frozen=True, slots=True)
class Part:
    """A schedule of a step to be found: its problem, its limits, and how often a step runs it."""

    setting: Setting
    limits: Limits
    times: int


def parts_of(setting: Setting, limits: Limits) -> Iterator[Part]:
    """The schedules of a step inside ``limits``: that which updates, then that which sums, if any."""
    yield Part(setting, _share(setting, limits, setting.problem.compute_seconds), 1)
    beside = setting.accumulating
    if beside is not None:
        seconds = beside.problem.compute_seconds
        yield Part(beside, _share(setting, limits, seconds), setting.accumulating_runs)


def _share(setting: Setting, limits: Limits, seconds: float) -> Limits:
    """``limits`` with the share of the deadline of a schedule whose ops take ``seconds`` once."""
    whole, deadline = setting.compute_seconds, limits.deadline_seconds
    if deadline is None or setting.accumulating is None or not whole:
        return limits
    return replace(limits, deadline_seconds=deadline * (seconds / whole))


@dataclass(frozen=True, slots=True)
class Joined:
    """What is known of a point: of its one schedule, or of the two that its step runs.

    Attributes:
        infeasible: no plan is inside the limits.
        plans: of each part; empty: none is known.
        neighbours: they are not those of the parts inside their shares of a deadline.
        joules: of the step; ``None`` without a plan.
        bound_joules: no step inside the limits costs less.
        closed: nothing is left to find.
        message: why there is no plan, where that is known.
    """

    infeasible: bool
    plans: tuple[Candidate, ...]
    joules: float | None
    bound_joules: float
    closed: bool
    message: str = ""
    neighbours: bool = False


def joined(
    setting: Setting, limits: Limits, known: tuple[Known, ...], knowledge: tuple[Knowledge, ...]
) -> Joined:
    """What is known of a point with these ``limits``, of what is ``known`` of its parts."""
    times = (1, setting.accumulating_runs)[: len(known)]
    plans = tuple(part.plan for part in known if part.plan is not None)
    plans = plans if len(plans) == len(known) and not any(part.infeasible for part in known) else ()
    own = plans
    infeasible, closed = any(part.infeasible for part in known), all(part.closed for part in known)
    message = next((part.message for part in known if part.message), "")
    bounds = [part.bound_joules for part in known]
    if len(known) > 1 and limits.deadline_seconds is not None:
        loose = [each.best(replace(limits, deadline_seconds=None)) for each in knowledge]
        bounds = [part.bound_joules for part in loose]
        plans = _cheapest_pair(own, limits, times, knowledge)
        late = not plans and not in_time(setting.compute_seconds, limits.deadline_seconds)
        proven = late or (not plans and any(part.infeasible for part in loose))
        message = TOO_LATE if late else message if proven else NO_SHARE if infeasible and not plans else ""
        infeasible = proven
        closed = plans == tuple(part.plan for part in loose) and all(part.closed for part in loose)
    bound = sum(n * part for n, part in zip(times, bounds, strict=True))
    joules = _joules(times, plans) if plans else None
    if joules is not None:
        bound = min(bound, joules)
        closed = closed or joules - bound <= 1e-9 * joules
    return Joined(infeasible, plans, joules, bound, closed, message, neighbours=plans != own)


def _joules(times: Sequence[int], plans: Sequence[Candidate]) -> float:
    return sum(n * plan.trace.joules for n, plan in zip(times, plans, strict=True))


def _cheapest_pair(
    own: tuple[Candidate, ...], limits: Limits, times: Sequence[int], knowledge: Sequence[Knowledge]
) -> tuple[Candidate, ...]:
    """Of the plans that are known, two whose step is inside ``limits``, ``own`` where none are cheaper."""
    last, others = (_front(each.plans, limits) for each in knowledge)
    seconds = [plan.trace.seconds for plan in others]
    deadline = limits.deadline_seconds
    assert deadline is not None
    best = own
    for plan in last:
        left = deadline * (1 + 1e-9) - times[0] * plan.trace.seconds
        place = bisect_right(seconds, left / times[1])
        if place and (not best or _joules(times, (plan, others[place - 1])) < _joules(times, best)):
            best = (plan, others[place - 1])
    return best


def _front(plans: Iterable[Candidate], limits: Limits) -> list[Candidate]:
    """Of the plans that fit the RAM, those that no other beats in time and joules, fastest first."""
    inside = replace(limits, deadline_seconds=None)
    fitting = (plan for plan in plans if fits(plan.trace, inside))
    found: list[Candidate] = []
    for plan in sorted(fitting, key=lambda plan: (plan.trace.seconds, plan.trace.joules)):
        if not found or plan.trace.joules < found[-1].trace.joules:
            found.append(plan)
    return found


def judged(setting: Setting, limits: Limits, plans: Sequence[Candidate]) -> None:
    """Every schedule of a step under the RAM and permissions of its point, and all under its deadline.

    Raises:
        InvalidSchedule: one is not inside them, or together they are late.
    """
    seconds = 0.0
    for part, plan in zip(parts_of(setting, limits), plans, strict=True):
        trace = simulate(part.setting.problem, plan.schedule, limits)
        seconds += part.times * trace.seconds
    deadline = limits.deadline_seconds
    if deadline is not None and seconds > deadline * (1 + 2e-9):  # a share is rounded as well
        raise InvalidSchedule(
            f"the step lasts {format_seconds(seconds, exact=True)}, the deadline is "
            f"{format_seconds(deadline, exact=True)}",
            rule="deadline",
            step=len(plans[0].schedule),
        )


def origin_of(origins: tuple[Origin, ...]) -> Origin:
    """Where a point's verdict comes from, of where those of its parts come from."""
    return min(origins, key=_ORIGINS.index)
