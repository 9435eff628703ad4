"""The search where ops have other forms (`poet.problem.Alternative`): which of them a plan takes, and how.

Engines see problems in which that choice is made. A few choices are suggested by the linear relaxation in
which forms are open, by the bytes that they save, and by the plan to start from; the same portfolio searches
each for some of the time, then the best of them for the rest. Few alternatives are searched in all choices.
The bound holds for every choice: the least over all that were searched, or that of a relaxed problem
(`poet.alternatives.relaxed`). Pins hold in the choices that have what they name; one that does not allow them
has no plan.
"""

from __future__ import annotations

import functools
import itertools
import logging
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from poet.alternatives import relaxed, taken_by, with_names, without_names
from poet.errors import InputError, InvalidSchedule
from poet.problem import Limits, Objective, Pins, Problem
from poet.schedule import Schedule
from poet.simulator import simulate
from poet.solution import PROVEN, Progress, Solution, SolveOptions, Start, Status, is_confirmed
from poet.solvers.heuristics.policies import keep_everything
from poet.solvers.instance.feasibility import minimum_ram_bytes
from poet.solvers.portfolio.best_bound import GREEDY
from poet.solvers.portfolio.turns import OP_SECONDS
from poet.solvers.search import objectives, orders
from poet.solvers.search.choices import Choice, Choices, form_guide, suggest_seconds
from poet.solvers.search.messages import STOPPED, impossible_in_all_forms, untried_forms_sentence
from poet.units import IN_ORDER

_log = logging.getLogger(__name__)

_TOLERANCE = 1e-9  # relative, of sums of seconds and joules
_OTHER_CHOICES = (
    f"No plan {IN_ORDER} that saves the same tensors in the same forms costs less; with another choice of "
    "them one may."
)

FEW_CHOICES, MOST_CHOICES = 8, 256
"""All of the first are searched at once, of the latter after a few; with one, none is proven best of all."""

UNLIMITED_SECONDS = 600.0
"""Shared by choices where there is no time limit; without, the first has all, as a proof alone ends it."""


def solve(
    problem: Problem,
    limits: Limits | None = None,
    options: SolveOptions | None = None,
    *,
    any_order: bool = False,
) -> Solution:
    """`poet.solvers.search.objectives.solve` over all choices of alternatives; its schedule names them.

    Ctrl-C ends the search and keeps the best plan. ``any_order``: first runs may leave the listed order where
    ops are few and have no alternatives (`poet.solvers.search.orders`).

    Raises:
        InputError: the engine named in ``options`` is not available.
    """
    limits, options = limits or Limits(), options or SolveOptions()
    if not problem.alternatives:
        return (orders.solve if any_order else objectives.solve)(problem, limits, options)
    search = _Search(problem, limits, options)
    try:
        answer = search.run()
    except KeyboardInterrupt:  # between searches of single choices, which hear it themselves
        search.stopped = True
        answer = search.answer()
    if search.refused and len(search.refused) == len(search.found):
        raise search.refused[0]
    return answer


@dataclass(frozen=True, slots=True)
class _Found:
    """The answer for one choice; ``bound`` is of the objective, in its unit, for that choice alone."""

    choice: Choice
    solution: Solution
    bound: float

    def rank(self) -> tuple[float, float]:
        """The best answer first: by the objective, then by energy."""
        amount, joules = self.solution.amount, self.solution.joules
        return math.inf if amount is None else amount, math.inf if joules is None else joules


class _Search:
    """One search over choices.

    Attributes:
        found: answers for single choices so far, the plan to start from among them.
        least: of the objective, what no schedule of any choice takes less than, by sums of our own.
        relaxed_least, relaxed_proof: likewise by the search of the relaxed problem, and what proves it.
        refused: by choices that lack what pins name, or do not allow them.
        stopped: Ctrl-C was pressed.
        searched_all: every choice was, or costs more than the best plan.
    """

    def __init__(self, problem: Problem, limits: Limits, options: SolveOptions) -> None:
        self.problem, self.limits, self.options = problem, limits, options
        self.started, self.stopped, self.searched_all = options.clock.now(), False, False
        self.seconds_left = objectives.seconds_left(options)
        self.choices = Choices(problem, limits, options)
        self.count = 1 << len(problem.alternatives)
        self.once = functools.cache(self._once)
        self.least, self.relaxed_least, self.relaxed_proof = self._once(None), -math.inf, ""
        self.found, self.refused = list[_Found](), list[InputError]()

    def run(self) -> Solution:
        few, is_pinned = self._begin(), self.limits.pins != Pins()
        impossible = impossible_in_all_forms(self.problem, self.choices.limits)
        if impossible:
            return self.answer(no_plan=impossible)
        few = [*few, *self._suggested()] if not is_pinned else [frozenset(self.choices.names)]
        if not self._may_try_all(FEW_CHOICES):
            for choice in dict.fromkeys(few):
                self._search(choice, objectives.PROBE_SHARE / len(few))
            if not is_pinned and self._is_open() and (self.seconds_left() or not self._has_plan()):
                below = self._relaxed_bound()
                if below.status is Status.INFEASIBLE and not self._has_plan():
                    return self.answer(no_plan=below.message, proof=below.proof)
        if self._may_try_all(MOST_CHOICES) or not self._has_plan():
            self._search_all(few)
        elif self._is_open() and self.seconds_left():
            self._search(self._best().choice, 1.0)
        return self.answer()

    # --- which choices ---

    def _begin(self) -> list[Choice]:
        """The choice of the plan to start from, where it is one within the limits."""
        start = self.options.start
        if start.schedule is None:
            return []
        try:
            choice = taken_by(self.problem, start.schedule)
            self._note_plan(choice, without_names(start.schedule), start.by)
        except (InvalidSchedule, InputError):
            _log.info("the plan to start from is of another problem or outside the limits")
            return []
        return [choice]

    def _suggested(self) -> list[Choice]:
        if self.choices.keeps(self.choices.cheapest):
            return [self.choices.cheapest]
        guide, by_bytes = None, self.choices.by_bytes()
        if self.choices.keeps(by_bytes):
            plan = keep_everything(self.problem.resolved(by_bytes), self.limits)
            self._note_plan(by_bytes, plan or (), GREEDY)
        if self.options.objective is not Objective.RAM:  # a matter of single ops
            seconds = min(suggest_seconds(self.options), self.seconds_left())
            guide = form_guide(self.problem, self.choices.limits, self.options, seconds=seconds)
        if guide is not None and math.isfinite(guide.bound):
            self.least = max(self.least, guide.bound)
        return self.choices.suggested(guide)

    def _search_all(self, few: list[Choice]) -> None:
        """Each choice in equal parts, ``few`` and those near to them before others, those left open once
        more; of many alternatives some choices, until there is a plan.
        """
        near = itertools.islice(_nearest(few[0], self.choices.names), MOST_CHOICES)
        choices = [*dict.fromkeys((*few, *self.choices.extremes(), *near))]
        self.searched_all = len(choices) == self.count
        for again in (False, True):
            waiting = [choice for choice in choices if not self._is_settled(choice)]
            for number, choice in enumerate(waiting):
                has_plan = self._has_plan()
                is_late = not self.seconds_left() and (has_plan or again or number >= FEW_CHOICES)
                if self.stopped or is_late or (has_plan and self.count > MOST_CHOICES):
                    return
                self._search(choice, 1.0 / (len(waiting) - number))

    def _may_try_all(self, most: int) -> bool:
        """Whether choices are no more than ``most``, and there is time for more than first plans of each."""
        needed_seconds = self.count * OP_SECONDS * len(self.problem.ops)
        return self.count <= most and self.seconds_left() >= needed_seconds

    def _is_settled(self, choice: Choice) -> bool:
        """Whether ``choice`` need not be searched."""
        amount, enough = self._best().rank()[0], self.options.enough_joules
        is_enough = enough is not None and self.options.objective is Objective.ENERGY and amount <= enough
        done = (Status.OPTIMAL, Status.INFEASIBLE)
        is_done = any(each.choice == choice and each.solution.status in done for each in self.found)
        return self.stopped or is_enough or is_done or self._bound_of(choice) >= amount

    def _bound_of(self, choice: Choice) -> float:
        """No schedule of ``choice`` takes less."""
        return max((self.once(choice), *(each.bound for each in self.found if each.choice == choice)))

    def _once(self, choice: Choice | None) -> float:
        """Of the objective, what running every op once takes at least; ``None``: in whatever choice."""
        problem, objective = self.problem, self.options.objective
        if choice is not None:
            problem = problem.resolved(choice)
        if objective is Objective.RAM:
            return float(minimum_ram_bytes(problem, self.choices.limits).bytes)
        if objective is Objective.WRITES:
            return 0.0
        return problem.compute_joules if objective is Objective.ENERGY else problem.compute_seconds

    # --- one choice ---

    def _search(self, choice: Choice, share: float) -> None:
        """Search ``choice`` for a share of the time that is left, unless that cannot help."""
        if self._is_settled(choice):
            return
        known = min((each for each in self.found if each.choice == choice), key=_Found.rank, default=None)
        start = Start() if known is None else Start(known.solution.schedule, known.solution.solver)
        try:
            solution = self._solved(self.problem.resolved(choice), share, start, self._progress())
        except InputError as error:
            if self.limits.pins == Pins():
                raise
            self.refused.append(error)
            solution = self._no_solution(Status.INFEASIBLE)
        self.stopped |= solution.was_interrupted
        bound = math.inf if solution.status is Status.INFEASIBLE else solution.bound
        self.found.append(_Found(choice, solution, -math.inf if bound is None else bound))
        _log.info("%d of %d alternatives: %s", len(choice), len(self.choices.names), solution.status.word)

    def _note_plan(self, choice: Choice, schedule: Schedule, found_by: str) -> None:
        """A plan of ``choice`` that no search found; raises where it is not within the limits."""
        trace = simulate(self.problem.resolved(choice), schedule, self.limits)
        plan = replace(self._no_solution(Status.FEASIBLE), schedule=schedule, trace=trace, solver=found_by)
        self.found.append(_Found(choice, plan, -math.inf))

    def _relaxed_bound(self) -> Solution:
        """The answer for the relaxed problem; its bound is one for all choices."""
        below = relaxed(self.problem)
        least = self._solved(below.problem, objectives.PROBE_SHARE, Start(), None)
        self.stopped |= least.was_interrupted
        if least.bound is not None and least.status is not Status.INFEASIBLE:
            above = {Objective.ENERGY: below.joules, Objective.TIME: below.seconds}
            self.relaxed_least = least.bound + above.get(self.options.objective, 0.0)
            self.relaxed_proof = least.proof
        return least

    def _solved(self, problem: Problem, share: float, start: Start, progress: Progress | None) -> Solution:
        allowed, left = self.options.time_limit_seconds, self.seconds_left()
        if allowed is not None or share < 1.0:
            allowed = share * min(left, UNLIMITED_SECONDS if allowed is None else left)
        options = replace(self.options, time_limit_seconds=allowed, start=start, progress=progress)
        return objectives.solve(problem, self.limits, options)

    def _progress(self) -> Progress | None:
        """Of the search of one choice, with the bound of all and the best plan of those before."""
        shown, before = self.options.progress, self._best().rank()[0]
        if shown is None:
            return None

        def show(amount: float | None, _bound: float, _gap: float | None, _seconds: float) -> None:
            best = min(before, math.inf if amount is None else amount)
            known = best if math.isfinite(best) else None
            gap = None if known is None else max(0.0, known - self.least) / max(known, 1e-300)
            shown(known, self.least, gap, self.options.clock.now() - self.started)

        return show

    # --- the answer for all choices ---

    def _best(self) -> _Found:
        """Of what was found."""
        none = _Found(self.choices.lean, self._no_solution(Status.TIMEOUT), -math.inf)
        return min(self.found, key=_Found.rank, default=none)

    def _has_plan(self) -> bool:
        return math.isfinite(self._best().rank()[0])

    def _is_open(self) -> bool:
        return not self.stopped and self._best().rank()[0] > max(self.least, self.relaxed_least)

    def _no_solution(self, status: Status) -> Solution:
        objective, bound = self.options.objective, math.inf if status is Status.INFEASIBLE else 0.0
        return Solution(
            status, None, None, bound, self.problem.compute_joules, 0.0, GREEDY,
            proof=PROVEN if status is Status.INFEASIBLE else "", objective=objective,
            objective_bound=None if objective is Objective.ENERGY else bound,
        )  # fmt: skip

    def answer(self, *, no_plan: str = "", proof: str = PROVEN) -> Solution:
        """The best plan, for all choices; ``no_plan``: why there is none, and ``proof`` of that."""
        best, options, is_energy = self._best(), self.options, self.options.objective is Objective.ENERGY
        solution, amount, compute_joules = best.solution, best.rank()[0], self.problem.compute_joules
        bound = math.inf if no_plan else max(self.least, self.relaxed_least)
        if self.searched_all:
            bound = max(bound, min(map(self._bound_of, _nearest(frozenset(), self.choices.names))))
        if math.isinf(bound) and solution.trace is not None:
            bound = self.least  # an engine erred
        bound, schedule = min(bound, amount), None
        bound_joules = bound if is_energy else compute_joules
        if solution.trace is None:
            status, message, proof = self._without_plan(bound, no_plan, proof)
        else:
            schedule = with_names(self.problem, best.choice, solution.schedule or ())
            bound_joules = min(bound_joules, solution.trace.joules)
            allowed = options.allowed_gap_joules(amount, compute_joules) if is_energy else _TOLERANCE * amount
            if amount - bound <= allowed:
                own = solution.proof or (PROVEN if bound <= self.least else self.relaxed_proof)
                status, message, proof = Status.OPTIMAL, "", self._weakest_proof(own)
            else:
                message = _OTHER_CHOICES if solution.status is Status.OPTIMAL else solution.message
                status, proof = Status.FEASIBLE, ""
        bounds = tuple(each for each in solution.record.bounds if each.amount <= bound)
        return replace(
            solution,
            status=status,
            schedule=schedule,
            bound_joules=bound_joules,
            objective_bound=None if is_energy else bound,
            baseline_joules=compute_joules,
            solve_seconds=options.clock.now() - self.started,
            message=STOPPED if self.stopped and status is not Status.OPTIMAL else message,
            proof=proof,
            was_interrupted=self.stopped,
            record=replace(solution.record, bounds=bounds),
        )

    def _without_plan(self, bound: float, no_plan: str, proof: str) -> tuple[Status, str, str]:
        """Status, message and proof, in words that are true of all choices."""
        if no_plan:
            return Status.INFEASIBLE, no_plan, proof
        if math.isinf(bound):  # each has none
            said = {each.solution.message for each in self.found} - {""}  # pins that a choice does not allow
            message = said.pop() if len(said) == 1 else f"No choice of forms has a plan {IN_ORDER}."
            return Status.INFEASIBLE, message, self._weakest_proof(PROVEN)
        tried, left = {each.choice for each in self.found}, self.seconds_left()
        return (
            Status.TIMEOUT,
            untried_forms_sentence(len(tried), len(self.choices.names), in_time=left > 0.0),
            "",
        )

    def _weakest_proof(self, own: str) -> str:
        """Of all choices that were searched, or ``own``."""
        proofs = [each.solution.proof for each in self.found if each.solution.proof]
        return next((proof for proof in proofs if not is_confirmed(proof)), own)


def _nearest(first: Choice, names: Sequence[str]) -> Iterator[Choice]:
    """All choices, from ``first`` on by how many alternatives are in another form."""
    for count in range(len(names) + 1):
        for others in itertools.combinations(names, count):
            yield first.symmetric_difference(others)
