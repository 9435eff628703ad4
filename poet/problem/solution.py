"""What every planner answers with, and the options that it takes.

A `Solution` is only made of a schedule that the simulator accepted: its joules and seconds are the
judge's, never an engine's. The overhead is the energy above running every op once; it is often a
thousandth of the total, so a gap is given on both.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from poet.problem import Limits, Objective, Problem
from poet.problem.alternatives import chosen_by
from poet.problem.homes import homes_of
from poet.problem.rounded import rounded_pages
from poet.problem.schedule import Schedule
from poet.problem.search_record import NO_SEARCH, SearchRecord
from poet.problem.simulator import Trace
from poet.util import codec
from poet.util.brief import brief, shortened, told
from poet.util.clock import WALL, Clock
from poet.util.units import IN_ORDER, format_above, format_bytes, format_gap, format_joules, format_seconds

WHOLE_PROBLEM = "whole problem"

LISTED, OWN, EVERY = "listed", "own", "every"
"""The ``order`` of first runs that an answer is about: as listed, that of its plan, or all orders."""

_IN_ORDERS = {LISTED: IN_ORDER, OWN: "in the plan's order", EVERY: "in any order"}

PROVEN = "proven in exact arithmetic"
"""The ``proof`` of an answer that sums or fractions of our own prove."""

WORD_OF = "the word of "
"""Begins the ``proof`` of an answer that rests on one engine's search, which nobody else confirmed."""

SAYS_FILE = "says the file: "
"""Before all that a plan file says of its search: it is not proven again. Amounts are simulated again."""


class Status(enum.Enum):
    """How a search ended; the value is the sentence the user reads."""

    OPTIMAL = f"The plan is optimal: no valid plan {IN_ORDER} costs less."
    FEASIBLE = f"The plan is valid; a cheaper one {IN_ORDER} may exist within the gap."
    INFEASIBLE = f"No plan {IN_ORDER} exists inside the limits."
    TIMEOUT = f"No plan was found, nor a proof that there is none {IN_ORDER}."

    @property
    def word(self) -> str:
        """The word of the ``--json`` answer: ``optimal``, ``feasible``, ``infeasible`` or ``timeout``."""
        return self.name.lower()


Progress = Callable[[float | None, float, float | None, float], None]
"""Called with the best plan's joules (or ``None``), the bound's joules, the gap (or ``None``) and the
seconds since the start."""


@dataclass(frozen=True, slots=True)
class KnownBound:
    """What an earlier search learnt of the energy that a step takes at least.

    Attributes:
        problem: that was searched.
        limits: inside which no plan takes less.
        joules: of a step.
        proof: who stood behind it, where it closed the gap; empty: nobody was asked.
    """

    problem: Problem
    limits: Limits
    joules: float
    proof: str = ""

    def holds_for(self, problem: Problem, limits: Limits) -> bool:
        """Whether it is a bound for ``problem`` inside ``limits``: not where these are wider."""
        return limits.are_within(self.limits) and problem == self.problem

    @property
    def words(self) -> str:
        """The ``proof`` of an answer that rests on it."""
        return self.proof or f"{WORD_OF}an earlier search alone, not proven independently"


@dataclass(frozen=True, slots=True)
class Start:
    """What a search begins with; what the limits do not allow, or does not hold there, is passed over.

    Attributes:
        schedule: such as the plan of a neighbouring budget.
        by: who made it, for the answer's ``solver`` where nothing better is found.
        bound: of an earlier search.
    """

    schedule: Schedule | None = None
    by: str = "the plan given as a start"
    bound: KnownBound | None = None


@dataclass(frozen=True, slots=True)
class SolveOptions:
    """How long and how hard to search; nothing here changes what a plan may do.

    Attributes:
        time_limit_seconds: wall clock; ``None``: until proven.
        threads: that an engine may use.
        engine: a name in `poet.solvers.engines.ENGINES`, the name of any solver that PuLP has, or ``"auto"``:
            HiGHS, on two threads beside CP-SAT.
        relative_gap: of the total joules at which a plan counts as optimal.
        overhead_gap: of the joules above running every op once; both must hold.
        seed: of every random choice.
        objective: what a plan should take the least of.
        enough_joules: a plan that takes no more ends the search, and so does the proof that there is none.
        confirm: ask for a second opinion on the bound of an optimal plan, by exact arithmetic or another
            engine. That there is no plan at all is always confirmed.
        start: a plan and a bound to begin with.
        progress: called at each new plan or bound.
        clock: by which seconds of the search are counted.
    """

    time_limit_seconds: float | None = 20.0
    threads: int = 1
    engine: str = "auto"
    relative_gap: float = 1e-6
    overhead_gap: float = 1e-3
    seed: int = 0
    objective: Objective = Objective.ENERGY
    enough_joules: float | None = None
    confirm: bool = True
    start: Start = Start()
    progress: Progress | None = None
    clock: Clock = WALL

    def allowed_gap_joules(self, joules: float, baseline_joules: float) -> float:
        """Below which a plan of ``joules`` counts as optimal: both gaps hold, or rounding says no more."""
        overhead = joules - baseline_joules
        return max(min(self.relative_gap * joules, self.overhead_gap * overhead), 1e-9 * joules)


@dataclass(frozen=True, slots=True)
class LowerBound:
    """RAM below which no schedule exists.

    Attributes:
        bytes: the bound.
        op: the op at which it is reached, or ``None`` before the first or after the last.
        tensors: what must be in RAM at that moment, largest first.
        workspace_bytes: of ``op``, part of ``bytes``.
    """

    bytes: int
    op: str | None
    tensors: tuple[str, ...]
    workspace_bytes: int = 0

    __repr__ = brief


@dataclass(frozen=True, slots=True)
class Solution:
    """The outcome of a search.

    Attributes:
        status: how it ended.
        schedule, trace: the best plan found and what the simulator says it does; ``None`` without one.
        bound_joules: no plan costs less whose first runs keep the listed order, and that takes no more
            of the objective where that is another.
        baseline_joules: of running every op once with no transfer.
        solve_seconds: wall clock of the search.
        solver: who found the plan.
        bound_scope: what ``bound_joules`` holds for.
        order: of first runs, that bounds and proofs hold for: `LISTED`, `OWN` or `EVERY`.
        bound_ram_bytes: of a budget that leaves a page buffer, what plans that page have and that bound
            holds for; ``None``: all of it.
        message: for the user: why it is infeasible, or what would help.
        proof: who stands behind an optimal or infeasible answer, beside the engine that found it.
        objective: what the plan takes the least of.
        objective_bound: where that is not energy: no plan whose first runs keep the listed order takes
            less of it, in seconds or bytes.
        was_interrupted: Ctrl-C ended the search.
        record: what the search did and when; amounts are of the objective.
        says: `SAYS_FILE` where a plan file says all this but ``schedule`` and ``trace``; else empty.
    """

    status: Status
    schedule: Schedule | None
    trace: Trace | None
    bound_joules: float
    baseline_joules: float
    solve_seconds: float
    solver: str
    bound_scope: str = WHOLE_PROBLEM
    bound_ram_bytes: int | None = None
    order: str = LISTED
    message: str = ""
    proof: str = ""
    objective: Objective = Objective.ENERGY
    objective_bound: float | None = None
    was_interrupted: bool = False
    record: SearchRecord = NO_SEARCH
    says: str = ""

    @property
    def is_confirmed(self) -> bool:
        """Whether exact arithmetic or a second engine stands behind an optimal or infeasible answer."""
        return is_confirmed(self.proof)

    @property
    def is_energy_confirmed(self) -> bool:
        """Whether that holds for ``bound_joules``; of other objectives only their own bound is confirmed."""
        return self.is_confirmed and self.objective is Objective.ENERGY

    @property
    def sentence(self) -> str:
        """What the user reads of the status; optimal by a single solver says so, and which."""
        return self.in_words(
            sentence_of(self.status, self.proof, says=self.says, ends=(self.amount, self.bound))
        )

    @property
    def why_no_plan(self) -> str:
        """What the user reads where there is none: the status, and the message."""
        return " ".join(filter(None, (self.in_words(self.status.value), self.message)))

    def in_words(self, text: str) -> str:
        """``text`` about plans in the listed order, about those that the answer is about."""
        return text.replace(IN_ORDER, _IN_ORDERS[self.order])

    def __repr__(self) -> str:
        found = f"{self.status.word}, by {self.solver}"
        if self.trace is None or self.gap is None:
            return told(self, f"{found}: no plan; {shortened(self.message)}" if self.message else found)
        takes = f"{format_bytes(self.trace.peak_ram_bytes)} of RAM, {format_joules(self.trace.joules)}"
        optimal = self.status is Status.OPTIMAL
        gap = format_gap(self.gap, optimal=optimal, confirmed=self.is_energy_confirmed)
        return told(self, f"{found}: {takes}, {format_seconds(self.trace.seconds)}; energy gap {gap}")

    @property
    def joules(self) -> float | None:
        """Of the plan, as judged."""
        return None if self.trace is None else self.trace.joules

    @property
    def overhead_joules(self) -> float | None:
        """Of the plan, above running every op once."""
        return None if self.trace is None else self.trace.joules - self.baseline_joules

    @property
    def amount(self) -> float | None:
        """What the plan takes of the objective: joules, seconds or bytes."""
        return None if self.trace is None else amount_of(self.objective, self.trace)

    @property
    def bound(self) -> float | None:
        """No plan within the limits takes less of the objective; ``None``: nothing is known."""
        return self.bound_joules if self.objective is Objective.ENERGY else self.objective_bound

    @property
    def objective_gap(self) -> float | None:
        """How far the plan may be above the least of the objective, as a share of what it takes."""
        if self.amount is None or self.bound is None:
            return None
        return _share(self.amount - self.bound, self.amount)

    @property
    def gap(self) -> float | None:
        """How far the plan may be above the best, as a share of its joules."""
        return (
            None if self.trace is None else _share(self.trace.joules - self.bound_joules, self.trace.joules)
        )

    @property
    def overhead_gap(self) -> float | None:
        """How far the plan may be above the best, as a share of its overhead."""
        if self.trace is None:
            return None
        return _share(self.trace.joules - self.bound_joules, self.trace.joules - self.baseline_joules)


def is_confirmed(proof: str) -> bool:
    """Whether a ``proof`` is by exact arithmetic or by two engines."""
    return bool(proof) and not proof.startswith(WORD_OF)


def sentence_of(
    status: Status, proof: str, *, says: str = "", ends: tuple[float | None, float | None] = (None, None)
) -> str:
    """What the user reads of an answer; optimal by a single solver says so, and which.

    ``ends``: what the plan takes of the objective and its bound; a feasible one says how near they are.
    """
    sentence, (amount, bound) = status.value, ends
    if status is Status.FEASIBLE and amount is not None and bound:
        above = format_above(max(0.0, amount / bound - 1.0), f"the best {IN_ORDER}")
        sentence = f"A plan, at most {above}."
    if status is Status.OPTIMAL and proof.startswith(WORD_OF):
        sentence = f"The plan is optimal {IN_ORDER} only by {proof}."
    return f"{says.capitalize()}{sentence}"


TITLES = {
    Objective.ENERGY: "energy",
    Objective.TIME: "time",
    Objective.RAM: "RAM",
    Objective.WRITES: "written to storage",
}


def format_amount(objective: Objective, amount: float) -> str:
    """``amount`` of an objective in its unit."""
    if not math.isfinite(amount):
        return "unknown"
    if objective is Objective.ENERGY:
        return format_joules(amount)
    return format_seconds(amount) if objective is Objective.TIME else format_bytes(amount)


def amount_of(objective: Objective, trace: Trace) -> float:
    """What one step takes of ``objective``: joules, seconds or bytes."""
    return {
        Objective.ENERGY: trace.joules,
        Objective.TIME: trace.seconds,
        Objective.RAM: float(trace.peak_ram_bytes),
        Objective.WRITES: float(trace.written_bytes),
    }[objective]


def solution_to_json(problem: Problem, solution: Solution) -> dict[str, Any]:
    """The ``--json`` answer of any search (docs/file-formats.md)."""
    trace = solution.trace
    return {
        "problem": problem.name,
        "status": solution.status.word,
        "objective": solution.objective.value,
        "amount": solution.amount,
        "bound": _finite(solution.bound),
        "objective_gap": solution.objective_gap,
        "joules": solution.joules,
        "bound_joules": _finite(solution.bound_joules),
        "bound_scope": solution.bound_scope,
        "order": solution.order,
        "gap": solution.gap,
        "overhead_joules": solution.overhead_joules,
        "overhead_gap": solution.overhead_gap,
        "seconds": None if trace is None else trace.seconds,
        "peak_ram_bytes": None if trace is None else trace.peak_ram_bytes,
        "compute_joules": None if trace is None else trace.compute_joules,
        "page_in_joules": None if trace is None else trace.page_in_joules,
        "page_out_joules": None if trace is None else trace.page_out_joules,
        "idle_joules": None if trace is None else trace.idle_joules,
        "recomputed_runs": None if trace is None else trace.recomputed_runs,
        "read_bytes": None if trace is None else trace.read_bytes,
        "written_bytes": None if trace is None else trace.written_bytes,
        "solve_seconds": solution.solve_seconds,
        "solver": solution.solver,
        "message": solution.message,
        "homes": homes_of(problem, solution.schedule) if solution.schedule is not None else None,
        "proof": solution.proof,
        "record": codec.encode(solution.record),
        "rounded": _rounded(problem, solution.schedule),
        "schedule": codec.encode(solution.schedule),
    }


def _rounded(problem: Problem, schedule: Schedule | None) -> dict[str, dict[str, str]]:
    """Tensors that come back rounded from storage: their forms, and how far off numbers may be."""
    found = rounded_pages(*chosen_by(problem, schedule)) if schedule is not None else {}
    return {name: {"form": form.value, "error": form.error} for name, form in found.items()}


def _finite(bound: float | None) -> float | None:
    """``bound``; ``None`` where it is infinite, as there is no plan: JSON has no such number."""
    return bound if bound is not None and math.isfinite(bound) else None


def _share(part: float, whole: float) -> float:
    if part <= 0.0:
        return 0.0
    return part / whole if whole > 0.0 else 1.0
