"""What is known of one setting's grid, and what follows from it by monotonicity.

The least joules of a cell never rise with its RAM budget nor with its deadline. So a plan holds in every
cell that it fits into, a bound holds in every tighter cell, and what is infeasible stays so in every
tighter cell. `Knowledge` collects answers; `Knowledge.best` says what they mean for a cell.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from poet.problem import Limits, Problem
from poet.schedule import Schedule
from poet.simulator import Trace
from poet.solution import SolveOptions, Status
from poet.solvers.portfolio.state import refutes
from poet.whatif.cache import SolvedCell


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
    """A judged plan and the index of the cell whose search found it."""

    cell: int
    schedule: Schedule
    trace: Trace
    solver: str


@dataclass(frozen=True, slots=True)
class Known:
    """What follows for a cell.

    Attributes:
        infeasible: no plan exists.
        plan: the cheapest known plan that fits; ``None``: none is known.
        bound_joules: no plan costs less.
        closed: nothing is left to search for.
        message: of the search that showed the infeasibility.
    """

    infeasible: bool
    plan: Candidate | None
    bound_joules: float
    closed: bool
    message: str = ""


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
            return Known(True, None, self.problem.compute_joules, True, message)
        fitting = [plan for plan in self.plans if fits(plan.trace, limits)]
        plan = min(fitting, key=lambda plan: (plan.trace.joules, plan.trace.peak_ram_bytes), default=None)
        bound = self._bound(limits)
        if plan is None:
            return Known(False, None, bound, False)
        bound = min(bound, plan.trace.joules)
        return Known(False, plan, bound, self._closes(plan.trace.joules, bound))

    def _bound(self, limits: Limits) -> float:
        looser = (bound for other, bound in self.bounds if looser_or_equal(other, limits))
        return max(looser, default=self.problem.compute_joules)

    def _impossible(self, limits: Limits) -> str | None:
        ram, deadline = limits.ram_budget_bytes, limits.deadline_seconds
        if ram is not None and ram < self.least_bytes:
            return self.floor_message
        if not in_time(self.problem.compute_seconds, deadline):
            return "Running every op once takes longer than the deadline."
        return next((message for other, message in self.barriers if looser_or_equal(other, limits)), None)

    def _closes(self, joules: float, bound: float) -> bool:
        """Whether a plan counts as optimal: both gaps hold, or rounding says no more."""
        overhead = joules - self.problem.compute_joules
        allowed = min(self.options.relative_gap * joules, self.options.overhead_gap * overhead)
        return joules - bound <= max(allowed, 1e-9 * joules)


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
