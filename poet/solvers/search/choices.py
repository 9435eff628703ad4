"""A search over choices, each of which makes another problem: single ones are searched, the best is kept.

For each choice it is known what no plan of it takes less than, so that those which cannot help are passed
over. Where all were searched, the least of these bounds holds for all.
"""

from __future__ import annotations

import abc
import functools
import logging
import math
from collections.abc import Container, Hashable, Sequence
from dataclasses import replace
from typing import Generic, TypeVar

from poet.problem import Limits, Objective, Pins, Problem
from poet.problem.schedule import Schedule
from poet.problem.simulator import simulate
from poet.problem.solution import PROVEN, Progress, Solution, SolveOptions, Start, Status, is_confirmed
from poet.solvers.instance.feasibility import minimum_ram_bytes
from poet.solvers.portfolio.state import GREEDY
from poet.solvers.search import objectives
from poet.solvers.search.messages import STOPPED, untried_sentence
from poet.util.units import IN_ORDER

_log = logging.getLogger(__name__)

UNLIMITED_SECONDS = 600.0
"""Shared by choices where there is no time limit; without, the first has all, as a proof alone ends it."""

C = TypeVar("C", bound=Hashable)


class ChoiceSearch(abc.ABC, Generic[C]):
    """One search over choices.

    Attributes:
        kind: of what there are choices.
        other_choices: what there is to say where a plan is the best of its own choice.
        any_start: whether a plan of one choice is one of any other.
        found: the best answer for each choice, of the problem in which it is made.
        best_choice: whose plan takes least of the objective, then of energy; ``None``: there is no plan.
        bounds: by choice, of the objective, what no plan of it takes less than.
        least: the same of every choice; ``proof``: who says so.
        none: why no choice has a plan; empty: one may.
        stopped: Ctrl-C was pressed.
    """

    kind, other_choices, any_start = "", "", False

    def __init__(self, problem: Problem, limits: Limits, options: SolveOptions) -> None:
        self.problem, self.limits, self.options = problem, limits, options
        self.started, self.left = options.clock.now(), objectives.seconds_left(options)
        self.best_choice: C | None = None
        self.found, self.bounds, self._settled = dict[C, Solution](), dict[C, float](), set[C]()
        self.once = functools.cache(lambda choice: self._once(self.decided(choice)))
        self.least, self.proof = self._once(problem), PROVEN
        self.none, self.stopped = "", False

    @abc.abstractmethod
    def run(self) -> None:
        """Search some choices."""

    @abc.abstractmethod
    def decided(self, choice: C) -> Problem:
        """The problem in which ``choice`` is made."""

    @abc.abstractmethod
    def named(self, choice: C, schedule: Schedule) -> Schedule:
        """``schedule`` of that problem as one of the whole problem."""

    @abc.abstractmethod
    def solved(self, choice: C, options: SolveOptions) -> Solution:
        """The search of one choice."""

    # --- single choices ---

    def search(self, choice: C, share: float) -> None:
        """Search ``choice`` for a share of the time that is left, unless that cannot help."""
        if self.is_settled(choice):
            return
        known = self.best if self.any_start else self.found.get(choice)
        start = Start() if known is None else Start(known.schedule, known.solver)
        options = replace(self.timed(share), start=start, progress=self._progress())
        solution = self.solved(choice, options)
        self.stopped |= solution.was_interrupted
        bound = math.inf if solution.status is Status.INFEASIBLE else solution.bound
        if bound is not None:
            self.bounds[choice] = max(bound, self.bounds.get(choice, -math.inf))
        if solution.status in (Status.OPTIMAL, Status.INFEASIBLE):
            self._settled.add(choice)
        self.keep(choice, solution)
        _log.info("a choice, of %d searched: %s", len(self.found), solution.status.word)

    def search_each(self, choices: Sequence[C], *, first: Container[C] = (), of_all: bool) -> None:
        """Search ``choices`` in equal parts of the time, those that are left open once more.

        Args:
            choices: the most promising first.
            first: those that are searched without time as well, until there is a plan.
            of_all: they are all that there are; else the first plan ends it.
        """
        self._search_each(choices, first, of_all=of_all)
        bound = min(map(self.bound_of, choices))
        is_empty = math.isinf(bound) and self.best is None
        if not of_all or not (is_empty or self.least < bound < math.inf):  # else an engine erred
            return
        proofs = (each.proof for each in self.found.values() if each.proof)
        self.proof = next((proof for proof in proofs if not is_confirmed(proof)), PROVEN)
        if is_empty:
            said = {each.message for each in self.found.values()} - {""}
            self.none = said.pop() if len(said) == 1 else f"No choice of {self.kind} has a plan {IN_ORDER}."
        else:
            self.least = bound

    def _search_each(self, choices: Sequence[C], first: Container[C], *, of_all: bool) -> None:
        for again in (False, True):
            waiting = [choice for choice in choices if not self.is_settled(choice)]
            for number, choice in enumerate(waiting):
                has_plan = self.best is not None
                is_late = not self.left() and (has_plan or again or choice not in first)
                if self.stopped or is_late or (has_plan and not of_all):
                    return
                self.search(choice, 1.0 / (len(waiting) - number))

    def keep(self, choice: C, solution: Solution) -> None:
        """Keep ``solution`` of ``choice`` if it is the best."""
        if choice not in self.found or _rank(solution) < _rank(self.found[choice]):
            self.found[choice] = solution
        if _rank(solution) < _rank(self.best):
            self.best_choice = choice

    def note(self, choice: C, schedule: Schedule, like: Solution) -> None:
        """Keep a plan of ``choice`` that no search of it found; ``like``: whose it is.

        Raises:
            InvalidSchedule: it is not within the limits.
        """
        trace = simulate(self.decided(choice), schedule, self.limits)
        plan = replace(like, status=Status.FEASIBLE, schedule=schedule, trace=trace, proof="", message="")
        self.keep(choice, plan)

    def timed(self, share: float) -> SolveOptions:
        """Options of a search that has a share of the time that is left."""
        is_endless = self.options.time_limit_seconds is None and share == 1.0
        seconds = None if is_endless else self.seconds(share)
        return replace(self.options, time_limit_seconds=seconds, start=Start(), progress=None)

    def seconds(self, share: float) -> float:
        """A share of the time that is left."""
        return share * (UNLIMITED_SECONDS if math.isinf(self.left()) else self.left())

    def _progress(self) -> Progress | None:
        """Of the search of one choice, with the bound of all and the best plan of those before."""
        shown, before = self.options.progress, self.amount
        if shown is None:
            return None

        def show(amount: float | None, _bound: float, _gap: float | None, _seconds: float) -> None:
            best = min(before, math.inf if amount is None else amount)
            known = best if math.isfinite(best) else None
            gap = None if known is None else max(0.0, known - self.least) / max(known, 1e-300)
            shown(known, self.least, gap, self.options.clock.now() - self.started)

        return show

    # --- what is known ---

    @property
    def best(self) -> Solution | None:
        """The best plan, of the problem in which its choice is made."""
        return None if self.best_choice is None else self.found[self.best_choice]

    @property
    def amount(self) -> float:
        """What it takes of the objective."""
        return _rank(self.best)[0]

    @property
    def allowed(self) -> float:
        """So far above the bound it counts as optimal."""
        options = self.options
        if options.objective is Objective.ENERGY:
            return options.allowed_gap_joules(self.amount, self.problem.compute_joules)
        return (options.relative_gap if options.objective is Objective.TIME else 1e-9) * self.amount

    @property
    def is_closed(self) -> bool:
        """Whether it does."""
        return math.isfinite(self.amount) and self.amount - self.least <= self.allowed

    @property
    def is_enough(self) -> bool:
        """Whether nothing more is to be searched."""
        enough = self.options.enough_joules if self.options.objective is Objective.ENERGY else None
        has_enough = enough is not None and self.best is not None and self.amount <= enough
        return self.stopped or self.is_closed or has_enough

    def is_settled(self, choice: C) -> bool:
        """Whether ``choice`` need not be searched."""
        return self.is_enough or choice in self._settled or self.bound_of(choice) >= self.amount

    def bound_of(self, choice: C) -> float:
        """No schedule of ``choice`` takes less."""
        return max(self.once(choice), self.bounds.get(choice, -math.inf))

    def _once(self, problem: Problem) -> float:
        """Of the objective, what running every op once takes at least."""
        objective = self.options.objective
        if objective is Objective.RAM:
            return float(minimum_ram_bytes(problem, replace(self.limits, pins=Pins())).bytes)
        if objective is Objective.WRITES:
            return 0.0
        return problem.compute_joules if objective is Objective.ENERGY else problem.compute_seconds

    # --- the answer ---

    def nothing(self, status: Status = Status.TIMEOUT, *, by: str = GREEDY) -> Solution:
        """An answer without a plan."""
        objective, bound = self.options.objective, math.inf if status is Status.INFEASIBLE else 0.0
        return Solution(
            status, None, None, bound, self.problem.compute_joules, 0.0, by,
            proof=PROVEN if status is Status.INFEASIBLE else "", objective=objective,
            objective_bound=None if objective is Objective.ENERGY else bound,
        )  # fmt: skip

    def answer(self) -> Solution:
        """The best plan of all choices; Ctrl-C ends the search and keeps it."""
        try:
            self.run()
        except KeyboardInterrupt:  # between searches of single choices, which hear it themselves
            self.stopped = True
        found, schedule = self.best or next(iter(self.found.values()), self.nothing()), None
        bound, proof = math.inf if self.none else min(self.least, self.amount), ""
        if self.none:
            status, message, proof = Status.INFEASIBLE, self.none, self.proof
        elif self.best_choice is None:
            message = untried_sentence(len(self.found), self.kind, in_time=self.left() > 0.0)
            status = Status.TIMEOUT
        else:
            schedule = self.named(self.best_choice, found.schedule or ())
            status, message, proof = Status.OPTIMAL, "", self.proof
            if not self.is_closed:
                message = self.other_choices if found.status is Status.OPTIMAL else found.message
                status, proof = Status.FEASIBLE, ""
        is_energy, once = self.options.objective is Objective.ENERGY, self.problem.compute_joules
        bounds = tuple(each for each in found.record.bounds if each.amount <= bound)
        return replace(
            found,
            status=status,
            schedule=schedule,
            bound_joules=bound if is_energy else once,
            objective_bound=None if is_energy else bound,
            baseline_joules=once,
            solve_seconds=self.options.clock.now() - self.started,
            message=STOPPED if self.stopped and status is not Status.OPTIMAL else message,
            proof=proof,
            was_interrupted=self.stopped,
            record=replace(found.record, bounds=bounds),
        )


def _rank(solution: Solution | None) -> tuple[float, float]:
    """The best answer first: by the objective, then by energy."""
    if solution is None or solution.trace is None:
        return math.inf, math.inf
    return solution.amount or 0.0, solution.trace.joules
