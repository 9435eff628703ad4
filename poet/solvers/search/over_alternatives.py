"""The search where ops have other forms (`poet.problem.Alternative`): which of them a plan takes, and how.

Engines see problems in which that choice is made. Where keeping everything fits with some choice, the one
that costs least extra is looked for; else one choice is searched, and what its plan has room for is put back
into its cheaper form. Few alternatives are tried in all choices. The bound holds for every choice: the least
over all that were searched, or that of a relaxed problem (`poet.alternatives.relaxed`).
"""

from __future__ import annotations

import itertools
import logging
import math
from dataclasses import dataclass, replace

from poet.alternatives import (
    leanest,
    most_at_once,
    relaxed,
    taken_by,
    with_names,
    without_names,
)
from poet.errors import InvalidSchedule
from poet.problem import Alternative, Limits, Objective, Pins, Problem
from poet.schedule import Compute, Free, PageIn, PageOut, Schedule
from poet.simulator import simulate
from poet.solution import Progress, Solution, SolveOptions, Status, amount_of, is_confirmed
from poet.solvers.heuristics.keep_everything import keep_everything
from poet.solvers.instance.ram_bound import minimum_ram_bytes
from poet.solvers.search import objectives

_log = logging.getLogger(__name__)

_TOLERANCE = 1e-9

Choice = frozenset[str]


def solve(problem: Problem, limits: Limits | None = None, options: SolveOptions | None = None) -> Solution:
    """`poet.solvers.search.objectives.solve` over all choices of alternatives; its schedule names them.

    Raises:
        InputError: the engine named in ``options`` is not available.
    """
    limits, options = limits or Limits(), options or SolveOptions()
    if not problem.alternatives:
        return objectives.solve(problem, limits, options)
    return _Search(problem, limits, options).run()


@dataclass(frozen=True, slots=True)
class _Found:
    """The answer for one choice; ``bound`` is of the objective, in its unit, for that choice alone."""

    choice: Choice
    solution: Solution
    bound: float

    @property
    def amount(self) -> float:
        amount = self.solution.amount
        return math.inf if amount is None else amount


class _Search:
    """One search over choices."""

    def __init__(self, problem: Problem, limits: Limits, options: SolveOptions) -> None:
        self.problem, self.limits, self.options = problem, limits, options
        self.tuning = options.tuning.alternatives
        self.started = options.clock.now()
        of_time = options.objective is Objective.TIME
        self.extra = {
            each.name: problem.extra_cost(each)[0 if of_time else 1] for each in problem.alternatives
        }
        self.saved_bytes = {each.name: _saved_bytes(problem, each) for each in problem.alternatives}
        self.names = tuple(self.extra)
        self.least = self.once(problem)
        self.found: list[_Found] = []

    def run(self) -> Solution:
        if self.limits.pins != Pins():  # they name tensors, which have to be there
            return self.one_choice(frozenset(self.names))
        budget_bytes = self.limits.ram_budget_bytes
        if budget_bytes is not None and budget_bytes < minimum_ram_bytes(self.problem, self.limits).bytes:
            return self.answer(self.search(leanest(self.problem), 1.0), math.inf)
        if self.options.objective in (Objective.ENERGY, Objective.TIME):
            choice = self.keeping()
            if choice is not None:
                found = self.search(choice, 1.0)  # ends at once: it keeps everything
                is_cheapest = all(self.extra[name] < 0 for name in choice)
                if found.solution.was_interrupted or is_cheapest or len(self.names) > self.tuning.all_choices:
                    return self.answer(found, self.least)
        if len(self.names) <= self.tuning.all_choices:
            return self.all_choices()
        return self.one_choice(self.first_choice())

    # --- keeping everything ---

    def keeping(self) -> Choice | None:
        """The alternatives with which keeping everything fits, at little extra; ``None``: there are none."""
        cheapest = frozenset(name for name in self.names if self.extra[name] < 0)
        if self.keeps(cheapest):
            return cheapest
        others = sorted(
            (name for name in self.names if name not in cheapest and self.saved_bytes[name] > 0),
            key=lambda name: (self.extra[name] / self.saved_bytes[name], name),
        )
        enough = len(others)
        if not self.keeps(cheapest.union(others)):
            lean = leanest(self.problem)
            return lean if self.keeps(lean) else None
        few = 0  # with which it does not fit
        while enough - few > 1:
            middle = (few + enough) // 2
            if self.keeps(cheapest.union(others[:middle])):
                enough = middle
            else:
                few = middle
        choice = cheapest.union(others[:enough])
        allowed, seconds = self.options.time_limit_seconds, self.tuning.fitting_seconds
        if allowed is not None:
            seconds = min(seconds, self.tuning.fitting_share * allowed)
        for name in sorted(others[:enough], key=lambda name: -self.extra[name]):
            if self.options.clock.now() - self.started > seconds:
                break
            if self.keeps(choice - {name}):
                choice -= {name}
        return choice

    def keeps(self, choice: Choice) -> bool:
        self.options.clock.spend(programs=1)
        return keep_everything(self.problem.resolved(choice), self.limits) is not None

    # --- less RAM than that ---

    def all_choices(self) -> Solution:
        """Search each choice; what costs more than the best plan when every op runs once is left out."""
        ways = itertools.product((True, False), repeat=len(self.names))
        choices = [frozenset(itertools.compress(self.names, way)) for way in ways]
        first = self.first_choice()
        choices.sort(key=lambda choice: (choice != first, choice != leanest(self.problem)))
        bound = math.inf
        best = min(self.found, key=lambda found: found.amount, default=None)
        for number, choice in enumerate(choices):
            once = self.once(self.problem.resolved(choice))
            if best is not None and once >= best.amount:
                bound = min(bound, once)
                continue
            found = self.search(choice, 1.0 / (len(choices) - number))
            bound = min(bound, found.bound)
            best = found if best is None or found.amount < best.amount else best
            if found.solution.was_interrupted:
                bound = self.least
                break
        assert best is not None
        return self.answer(best, max(bound, self.least))

    def first_choice(self) -> Choice:
        """That of the plan to start from; else what saves bytes and fits, and what needs less at once."""
        start = self.options.start
        if start is not None:
            try:
                return taken_by(self.problem, start)
            except InvalidSchedule:
                _log.info("the plan to start from is of another problem")
        budget_bytes = self.limits.ram_budget_bytes
        saving = {
            each.name
            for each in self.problem.alternatives
            if self.saved_bytes[each.name] > 0
            and (budget_bytes is None or self.needs_bytes(each) <= budget_bytes)
        }
        return leanest(self.problem) | saving

    def needs_bytes(self, alternative: Alternative) -> float:
        return most_at_once(self.problem.resolved((alternative.name,)), alternative.ops)

    def one_choice(self, choice: Choice) -> Solution:
        """Search ``choice``, then others where it has no plan, and the relaxed problem for a bound."""
        best = self.search(choice, self.tuning.main_share)
        for other in (leanest(self.problem), frozenset(self.names), frozenset[str]()):
            tried = {each.choice for each in self.found}
            if best.solution.schedule is None and other not in tried and not best.solution.was_interrupted:
                best = min(best, self.search(other, 0.5), key=lambda found: found.amount)
        best = self.put_back(best)
        bound, is_infeasible = self.least, False
        if not best.solution.was_interrupted and self.limits.pins == Pins():
            below = relaxed(self.problem)
            least = self.searched(below.problem, 1.0, start=None, progress=None)
            is_infeasible = least.status is Status.INFEASIBLE
            above = {Objective.ENERGY: below.joules, Objective.TIME: below.seconds}
            if least.bound is not None:
                bound = max(bound, least.bound + above.get(self.options.objective, 0.0))
            _log.info("bound over all choices: %g", bound)
            best = replace(best, solution=replace(best.solution, was_interrupted=least.was_interrupted))
        if is_infeasible:
            bound = math.inf
        return self.answer(best, bound)

    def put_back(self, best: _Found) -> _Found:
        """``best`` with ops in their own forms wherever its plan has room for that and takes less then."""
        solution = best.solution
        if solution.schedule is None or self.limits.pins != Pins():
            return best
        dearer = {each.name: each for each in self.problem.alternatives if each.name in best.choice}
        for name in sorted(dearer, key=lambda name: -self.extra[name]):
            if self.extra[name] <= 0:
                break
            assert solution.schedule is not None
            schedule = in_own_form(self.problem, dearer[name], solution.schedule)
            choice = best.choice - {name}
            try:
                trace = (
                    None
                    if schedule is None
                    else simulate(self.problem.resolved(choice), schedule, self.limits)
                )
            except InvalidSchedule:
                continue
            if trace is not None and amount_of(self.options.objective, trace) < best.amount:
                solution = replace(solution, schedule=schedule, trace=trace)
                best = _Found(choice, solution, best.bound)
        return best

    # --- what they share ---

    def search(self, choice: Choice, share: float) -> _Found:
        """Search the problem of ``choice`` for a share of the time that is left."""
        start, own_start = self.options.start, None
        if start is not None:
            try:
                own_start = without_names(start) if taken_by(self.problem, start) == choice else None
            except InvalidSchedule:
                own_start = None
        solution = self.searched(
            self.problem.resolved(choice), share, start=own_start, progress=self.progress()
        )
        bound = math.inf if solution.status is Status.INFEASIBLE else solution.bound
        found = _Found(choice, solution, -math.inf if bound is None else bound)
        self.found.append(found)
        _log.info("%d of %d alternatives taken: %s", len(choice), len(self.names), solution.status.word)
        return found

    def searched(
        self, problem: Problem, share: float, *, start: Schedule | None, progress: Progress | None
    ) -> Solution:
        options, allowed = self.options, self.options.time_limit_seconds
        if allowed is not None:
            left = max(0.0, allowed - (options.clock.now() - self.started))
            allowed = share * left
        elif share < 1.0:  # without an end of its own
            allowed = self.tuning.unlimited_seconds
        return objectives.solve(
            problem,
            self.limits,
            replace(options, time_limit_seconds=allowed, start=start, known_bound=None, progress=progress),
        )

    def progress(self) -> Progress | None:
        """Of the search of one choice, with the bound that holds for all."""
        shown = self.options.progress
        if shown is None:
            return None

        def show(amount: float | None, _bound: float, _gap: float | None, _seconds: float) -> None:
            gap = None if amount is None else max(0.0, amount - self.least) / max(amount, 1e-300)
            shown(amount, self.least, gap, self.options.clock.now() - self.started)

        return show

    def once(self, problem: Problem) -> float:
        """Of the objective, what running every op of ``problem`` once takes at least."""
        match self.options.objective:
            case Objective.ENERGY:
                return problem.compute_joules
            case Objective.TIME:
                return problem.compute_seconds
            case Objective.RAM:
                return float(minimum_ram_bytes(problem, self.limits).bytes)
            case Objective.WRITES:
                return 0.0

    def answer(self, best: _Found, bound: float) -> Solution:
        """``best`` as an answer for all choices, of which none takes less than ``bound``."""
        solution, problem, objective = best.solution, self.problem, self.options.objective
        of_energy = objective is Objective.ENERGY
        trace, amount = solution.trace, best.amount
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
            class_bound=None,
            record=replace(solution.record, bounds=bounds),
        )
        if trace is None:
            is_infeasible = math.isinf(bound) and bound > 0
            status = Status.INFEASIBLE if is_infeasible else Status.TIMEOUT
            return replace(solution, status=status, proof=solution.proof if is_infeasible else "")
        gap = (
            self.options.allowed_gap_joules(amount, problem.compute_joules)
            if of_energy
            else _TOLERANCE * amount
        )
        status = Status.OPTIMAL if amount - bound <= gap else Status.FEASIBLE
        proofs = [each.solution.proof for each in self.found if each.solution.proof]
        weakest = next((proof for proof in proofs if not is_confirmed(proof)), solution.proof)
        message = solution.message
        if status is Status.FEASIBLE and solution.status is Status.OPTIMAL:
            message = _OTHER_CHOICES
        return replace(
            solution,
            status=status,
            proof=weakest if status is Status.OPTIMAL else "",
            message="" if status is Status.OPTIMAL else message,
        )


_OTHER_CHOICES = (
    "No plan that saves the same tensors in the same forms costs less; with another choice of them one may."
)


def _saved_bytes(problem: Problem, alternative: Alternative) -> int:
    """By how much the tensors that its ops read are smaller than those that they read without it."""
    with_it = problem.resolved((alternative.name,))

    def read_bytes(of: Problem) -> int:
        sizes = {tensor.name: of.aligned_bytes(tensor.bytes) for tensor in of.tensors}
        return sum(sizes[name] for op in of.ops if op.name in alternative.touched for name in op.inputs)

    return read_bytes(problem) - read_bytes(with_it)


def in_own_form(problem: Problem, alternative: Alternative, schedule: Schedule) -> Schedule | None:
    """``schedule`` of a problem in which ``alternative`` is taken as one in which it is not.

    What its ops read in the place of one tensor is not made, and that tensor is held as long. ``None`` where
    that is not all there is to it: ops that are left out, several such tensors, transfers or reruns.
    """
    own = {op.name: op for op in problem.ops}
    known = {tensor.name for tensor in problem.tensors}
    new = {tensor.name for tensor in alternative.tensors} - known
    if alternative.omits:
        return None
    if not new:
        return schedule
    instead = {
        name for op in alternative.ops if new & {*op.inputs} for name in {*own[op.name].inputs} - {*op.inputs}
    }
    if len(new) > 1 or len(instead) != 1:
        return None
    (short,), (long,) = new, instead
    makers = [op.name for op in problem.ops if long in op.outputs]
    runs = [step.op for step in schedule if isinstance(step, Compute) and step.op in makers]
    moved = any(isinstance(step, PageIn | PageOut) and step.tensor in (short, long) for step in schedule)
    if moved or len(runs) != 1:
        return None
    freed = [index for index, step in enumerate(schedule) if step in (Free(short), Free(long))]
    last = freed[-1] if len(freed) == 2 else None
    steps: list[Compute | Free | PageIn | PageOut] = []
    for index, step in enumerate(schedule):
        if index == last:
            steps.append(Free(long))
        elif index not in freed:
            steps.append(step)
    return tuple(steps)
