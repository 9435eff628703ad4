"""The answer for all choices of alternatives, from what the searches of some of them have found."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from poet.alternatives import with_names
from poet.problem import Objective, Problem
from poet.schedule import Schedule
from poet.simulator import Trace
from poet.solution import PROVEN, Solution, SolveOptions, Status, amount_of, is_confirmed
from poet.solvers.search.choices import Choice
from poet.solvers.search.messages import STOPPED, untried_forms_sentence
from poet.units import IN_ORDER

_TOLERANCE = 1e-9

_OTHER_CHOICES = (
    f"No plan {IN_ORDER} that saves the same tensors in the same forms costs less; with another choice of "
    "them one may."
)


@dataclass(frozen=True, slots=True)
class Found:
    """The answer for one choice; ``bound`` is of the objective, in its unit, for that choice alone."""

    choice: Choice
    solution: Solution
    bound: float

    @property
    def amount(self) -> float:
        amount = self.solution.amount
        return math.inf if amount is None else amount


@dataclass(frozen=True, slots=True)
class Start:
    """The plan to start from, as one of a choice; its trace if it keeps the limits."""

    choice: Choice | None = None
    schedule: Schedule | None = None
    trace: Trace | None = None


class AllChoices:
    """What is known of all choices.

    Args:
        problem: with its alternatives.
        options: of the search.
        start: the plan to start from.
        least: of the objective, what no schedule of any choice takes less than.
        started: when the search began, by its clock.

    Attributes:
        start, least: see above.
        found: answers for single choices so far.
    """

    def __init__(
        self, problem: Problem, options: SolveOptions, start: Start, *, least: float, started: float
    ) -> None:
        self.problem, self.options, self.start = problem, options, start
        self.least, self.started = least, started
        self.names = tuple(each.name for each in problem.alternatives)
        self.found: list[Found] = []

    def best(self) -> Found | None:
        """Of what was found."""
        return min(self.found, key=lambda found: found.amount, default=None)

    def bound_of(self, choice: Choice) -> float:
        """No schedule of ``choice`` takes less, by what was found."""
        return max((each.bound for each in self.found if each.choice == choice), default=-math.inf)

    def schedule_of(self, choice: Choice) -> Schedule | None:
        """The best that was found of ``choice``."""
        of_choice = (each for each in self.found if each.choice == choice)
        best = min(of_choice, key=lambda found: found.amount, default=None)
        return None if best is None else best.solution.schedule

    def settled(self, choice: Choice, once: float) -> bool:
        """Whether ``choice`` need not be searched, whose ops take ``once`` when each runs once."""
        best = self.best()
        amount, enough = math.inf if best is None else best.amount, self.options.enough_joules
        is_enough = enough is not None and self.options.objective is Objective.ENERGY and amount <= enough
        done = (Status.OPTIMAL, Status.INFEASIBLE)
        return (
            is_enough
            or max(once, self.bound_of(choice)) >= amount
            or any(each.choice == choice and each.solution.status in done for each in self.found)
        )

    def raise_least(self, bound: float) -> None:
        """No schedule of any choice takes less than ``bound``."""
        self.least = max(self.least, bound)

    def answer(self, best: Found, bound: float) -> Solution:
        """``best``, or the plan to start from, for all choices, of which none takes less than ``bound``."""
        best = self.not_above_the_start(best)
        solution, problem, objective = best.solution, self.problem, self.options.objective
        of_energy = objective is Objective.ENERGY
        trace, amount = solution.trace, best.amount
        if trace is not None and math.isinf(bound):
            bound = self.least  # an engine erred
        bound = min(bound, amount)
        bounds = tuple(item for item in solution.record.bounds if item.amount <= bound)
        bound_joules = bound if of_energy else problem.compute_joules
        solution = replace(
            solution,
            schedule=None
            if solution.schedule is None
            else with_names(problem, best.choice, solution.schedule),
            bound_joules=bound_joules if trace is None else min(bound_joules, trace.joules),
            objective_bound=None if of_energy else bound,
            baseline_joules=problem.compute_joules,
            solve_seconds=self.options.clock.now() - self.started,
            record=replace(solution.record, bounds=bounds),
        )
        if trace is None:
            return self.without_plan(solution, is_infeasible=math.isinf(bound) and bound > 0)
        gap = (
            self.options.allowed_gap_joules(amount, problem.compute_joules)
            if of_energy
            else _TOLERANCE * amount
        )
        status = Status.OPTIMAL if amount - bound <= gap else Status.FEASIBLE
        message = solution.message
        if status is Status.FEASIBLE and solution.status is Status.OPTIMAL:
            message = _OTHER_CHOICES
        return replace(
            solution,
            status=status,
            proof=self.weakest_proof(solution, bound) if status is Status.OPTIMAL else "",
            message="" if status is Status.OPTIMAL else message,
        )

    def weakest_proof(self, solution: Solution, bound: float) -> str:
        """Of all choices that were searched, or that of ``solution``, or of running every op once."""
        proofs = [each.solution.proof for each in self.found if each.solution.proof]
        own = solution.proof or (PROVEN if bound <= self.least else "")
        return next((proof for proof in proofs if not is_confirmed(proof)), own)

    def not_above_the_start(self, best: Found) -> Found:
        """``best``, or the plan to start from where that takes less, or as much and less energy."""
        trace = self.start.trace
        if trace is None or self.start.choice is None:
            return best
        amount = amount_of(self.options.objective, trace)
        own = best.solution.trace
        if own is not None and (best.amount, own.joules) <= (amount, trace.joules):
            return best
        solution = replace(
            best.solution,
            status=Status.FEASIBLE,
            schedule=self.start.schedule,
            trace=trace,
            solver=self.options.start_by,
            message=best.solution.message if own is not None or best.solution.was_interrupted else "",
        )
        return Found(self.start.choice, solution, best.bound)

    def without_plan(self, solution: Solution, *, is_infeasible: bool) -> Solution:
        """``solution`` of one choice, which has no plan, in words that are true of all."""
        tried = {each.choice for each in self.found}
        if not is_infeasible:
            stopped = solution.was_interrupted or any(each.solution.was_interrupted for each in self.found)
            allowed, spent = self.options.time_limit_seconds, self.options.clock.now() - self.started
            in_time = allowed is None or spent < allowed
            message = untried_forms_sentence(len(tried), len(self.names), in_time=in_time)
            message = STOPPED if stopped else message
            return replace(
                solution, status=Status.TIMEOUT, message=message, proof="", was_interrupted=stopped
            )
        message, proof = solution.message, solution.proof
        if len(tried) == 2 ** len(self.names):  # each has none
            proof = self.weakest_proof(solution, math.inf)
            said = {each.solution.message for each in self.found} - {""}  # pins that a choice does not allow
            message = said.pop() if len(said) == 1 else f"No choice of forms has a plan {IN_ORDER}."
        return replace(solution, status=Status.INFEASIBLE, message=message, proof=proof)
