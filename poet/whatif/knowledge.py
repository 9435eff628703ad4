"""What is known of a setting's grid, and what follows from it by monotonicity.

The least joules of a cell never rise with its RAM budget nor with its deadline. So a plan holds in every
cell that it fits into; a bound, and that no plan exists, in every tighter one.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from poet.errors import InvalidSchedule
from poet.planning.cache import SolvedCell
from poet.problem import Limits, Problem
from poet.problem.schedule import Schedule
from poet.problem.simulator import Trace, simulate
from poet.problem.solution import SolveOptions, Status
from poet.solvers.portfolio.state import refutes
from poet.util.units import format_seconds
from poet.whatif.result import Setting

NO_SHARE = "No plan was found in which each micro-batch keeps to its share of the deadline."
TOO_LATE = "Running every op once takes longer than the deadline."


@dataclass(frozen=True, slots=True)
class Cell:
    """A RAM budget and a deadline of one setting.

    Attributes:
        limits: of the search.
        deadline: as it was asked for.
        level: how fine the grid must be for the cell to be part of it; coarse cells come first.
    """

    limits: Limits
    deadline: str | None
    level: int


@dataclass(frozen=True, slots=True)
class Candidate:
    """A validated plan and the index of the cell whose search found it."""

    cell: int
    schedule: Schedule
    trace: Trace
    solver: str


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of a cell: of one schedule, or of the two that its step runs.

    Attributes:
        infeasible: no plan is inside the limits.
        plans: the cheapest known ones that fit, of each schedule; empty: none is known.
        joules: of the step; ``None`` without a plan.
        bound_joules: no step inside the limits costs less.
        closed: nothing is left to search for.
        message: why there is no plan, where that is known.
        neighbours: plans are not those of the schedules inside their shares of a deadline.
    """

    infeasible: bool
    plans: tuple[Candidate, ...]
    joules: float | None
    bound_joules: float
    closed: bool
    message: str = ""
    neighbours: bool = False

    @property
    def plan(self) -> Candidate | None:
        """That of one schedule; ``None``: none is known."""
        return self.plans[0] if self.plans else None


@dataclass(slots=True)
class Knowledge:
    """The answers found so far for one problem; grows while a sweep runs.

    Attributes:
        problem: whose plans they are.
        least_bytes: RAM below which no schedule exists.
        floor_message: the sentence that says so.
        options: of the searches; their gaps say when a plan counts as optimal.
    """

    problem: Problem
    least_bytes: int
    floor_message: str
    options: SolveOptions
    plans: list[Candidate] = field(default_factory=list)
    bounds: list[tuple[Limits, float]] = field(default_factory=list)
    barriers: list[tuple[Limits, str]] = field(default_factory=list)

    def add(self, cell: int, limits: Limits, answer: SolvedCell) -> None:
        """Take over the answer of a cell's search."""
        if answer.status is Status.INFEASIBLE:
            self.barriers.append((limits, answer.message))
            return
        self.bounds.append((limits, answer.bound_joules))
        if answer.schedule is not None and answer.trace is not None:
            self.plans.append(Candidate(cell, answer.schedule, answer.trace, answer.solver))
            self._drop_refuted(answer.trace)

    def refutes(self, limits: Limits, answer: SolvedCell) -> bool:
        """Whether a plan that is known contradicts what ``answer`` says of all plans inside ``limits``."""
        cheapest = min((plan.trace.joules for plan in self.plans if fits(plan.trace, limits)), default=None)
        if cheapest is None:
            return False
        return answer.status is Status.INFEASIBLE or refutes(cheapest, answer.bound_joules)

    def _drop_refuted(self, trace: Trace) -> None:
        """Forget what a plan that does ``trace`` shows to be wrong, whoever said it."""
        self.barriers = [entry for entry in self.barriers if not fits(trace, entry[0])]
        self.bounds = [
            (limits, bound)
            for limits, bound in self.bounds
            if not (fits(trace, limits) and refutes(trace.joules, bound))
        ]

    def best(self, limits: Limits) -> Known:
        """What all answers together say about ``limits``."""
        message = self._impossible(limits)
        if message is not None:
            return Known(True, (), None, self.problem.compute_joules, True, message)
        fitting = [plan for plan in self.plans if fits(plan.trace, limits)]
        plan = min(fitting, key=lambda plan: (plan.trace.joules, plan.trace.peak_ram_bytes), default=None)
        looser = (bound for other, bound in self.bounds if looser_or_equal(other, limits))
        bound = max(looser, default=self.problem.compute_joules)
        if plan is None:
            return Known(False, (), None, bound, False)
        joules = plan.trace.joules
        bound = min(bound, joules)
        allowed = self.options.allowed_gap_joules(joules, self.problem.compute_joules)
        return Known(False, (plan,), joules, bound, joules - bound <= allowed)

    def _impossible(self, limits: Limits) -> str | None:
        ram, deadline = limits.ram_budget_bytes, limits.deadline_seconds
        if ram is not None and ram < self.least_bytes:
            return self.floor_message
        if not in_time(self.problem.compute_seconds, deadline):
            return TOO_LATE
        return next((message for other, message in self.barriers if looser_or_equal(other, limits)), None)


def fits(trace: Trace, limits: Limits) -> bool:
    """Whether a plan that does ``trace`` stays within ``limits``, as the simulator sees it."""
    ram, deadline = limits.ram_budget_bytes, limits.deadline_seconds
    return (ram is None or trace.peak_ram_bytes <= ram) and in_time(trace.seconds, deadline)


def in_time(seconds: float, deadline_seconds: float | None) -> bool:
    """Whether a step that takes ``seconds`` meets a deadline, rounding aside as the simulator has it."""
    return deadline_seconds is None or seconds <= deadline_seconds * (1 + 1e-9)


def looser_or_equal(one: Limits, other: Limits) -> bool:
    """Whether every plan inside ``other`` is inside ``one``; their permissions are the same."""
    return _most(one.ram_budget_bytes) >= _most(other.ram_budget_bytes) and _most(
        one.deadline_seconds
    ) >= _most(other.deadline_seconds)


def _most(limit: float | None) -> float:
    return math.inf if limit is None else limit


def levels(count: int) -> tuple[int, ...]:
    """For each of ``count`` places in a row the round of bisection that reaches it; the ends are 0."""
    found = [0] * count
    parts: Iterable[tuple[int, int]] = [(0, count - 1)]
    level = 1
    while parts := [(low, high) for low, high in parts if high - low > 1]:
        halves = []
        for low, high in parts:
            middle = (low + high) // 2
            found[middle] = level
            halves += [(low, middle), (middle, high)]
        parts, level = halves, level + 1
    return tuple(found)


# --- steps of two schedules -------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Part:
    """A schedule of a step to be found: its problem, its limits, and how often a step runs it."""

    setting: Setting
    limits: Limits
    times: int


def parts_of(setting: Setting, limits: Limits) -> Iterator[Part]:
    """The schedules of a step inside ``limits``: that which updates, then that which sums, if any.

    Each search gets the share of a deadline that running its ops once has. That is one way to divide it, so
    within a deadline nothing is proven of others.
    """
    whole, deadline = setting.compute_seconds, limits.deadline_seconds
    for part, times in setting.schedules:
        inside = limits
        if deadline is not None and whole and setting.accumulating is not None:
            inside = replace(limits, deadline_seconds=deadline * (part.problem.compute_seconds / whole))
        yield Part(part, inside, times)


def joined(
    setting: Setting, limits: Limits, known: tuple[Known, ...], knowledge: tuple[Knowledge, ...]
) -> Known:
    """What is known of a point with these ``limits``, of what is ``known`` of its parts."""
    if len(known) == 1:
        return known[0]
    times = tuple(count for _, count in setting.schedules)
    plans = tuple(part.plan for part in known if part.plan is not None)
    plans = plans if len(plans) == len(known) and not any(part.infeasible for part in known) else ()
    own = plans
    infeasible, closed = any(part.infeasible for part in known), all(part.closed for part in known)
    message = next((part.message for part in known if part.message), "")
    bounds = [part.bound_joules for part in known]
    if limits.deadline_seconds is not None:
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
    return Known(infeasible, plans, joules, bound, closed, message, neighbours=plans != own)


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


def validated(setting: Setting, limits: Limits, plans: Sequence[Candidate]) -> None:
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
