"""Steps of micro-batches one after the other: two problems, searched apart, that make one point of a sweep.

All pieces of a batch but the last run one schedule, which sums gradients, and the last runs another, which
also updates. Each is a planning problem inside the same RAM, so that the least energy of a step is the sum of
theirs. A deadline is of the whole step: each schedule gets the share of it that running its ops once has of
running all of them once. That is one way to divide it, so that within a deadline nothing is proven of others.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from poet.problem import Limits
from poet.whatif.knowledge import Candidate, Knowledge, Known
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


def joined(
    setting: Setting, limits: Limits, known: tuple[Known, ...], knowledge: tuple[Knowledge, ...]
) -> Joined:
    """What is known of a point with these ``limits``, of what is ``known`` of its parts."""
    times = (1, setting.accumulating_runs)[: len(known)]
    plans = tuple(part.plan for part in known if part.plan is not None)
    whole = len(plans) == len(known) and not any(part.infeasible for part in known)
    joules = sum(n * plan.trace.joules for n, plan in zip(times, plans, strict=True)) if whole else None
    infeasible, closed = any(part.infeasible for part in known), all(part.closed for part in known)
    message = next((part.message for part in known if part.message), "")
    bounds = [part.bound_joules for part in known]
    if len(known) > 1 and limits.deadline_seconds is not None:
        late = setting.compute_seconds > limits.deadline_seconds * (1 + 1e-9)
        loose = [each.best(replace(limits, deadline_seconds=None)) for each in knowledge]
        bounds = [part.bound_joules for part in loose]
        proven = late or any(part.infeasible for part in loose)
        message = TOO_LATE if late else message if proven else NO_SHARE if infeasible else ""
        infeasible, closed = proven, False
    bound = sum(n * part for n, part in zip(times, bounds, strict=True))
    if joules is not None:
        bound = min(bound, joules)
        closed = closed or joules - bound <= 1e-9 * joules
    return Joined(infeasible, plans if whole else (), joules, bound, closed, message)


def origin_of(origins: tuple[Origin, ...]) -> Origin:
    """Where a point's verdict comes from, of where those of its parts come from."""
    return min(origins, key=_ORIGINS.index)
