"""The search where ops have other forms (`poet.problem.Alternative`): which of them a plan takes, and how.

Engines see problems in which that choice is made. Where keeping everything fits with some choice, the one
that costs least extra is looked for; else a few choices are searched in turn, the best of them for longest,
and what its plan has room for is put back into its cheaper form. Few alternatives are tried in all choices.
The bound holds for every choice: the least over all that were searched, or that of a relaxed problem
(`poet.alternatives.relaxed`).
"""

from __future__ import annotations

import itertools
import logging
import math
from collections.abc import Sequence
from dataclasses import replace

from poet.alternatives import relaxed, taken_by, without_names
from poet.errors import InputError, InvalidSchedule
from poet.problem import Limits, Objective, Pins, Problem
from poet.schedule import Schedule
from poet.simulator import simulate
from poet.solution import Progress, Solution, SolveOptions, Status, amount_of
from poet.solvers.heuristics.keep_everything import keep_everything
from poet.solvers.instance.ram_bound import minimum_ram_bytes
from poet.solvers.search import objectives
from poet.solvers.search.all_choices import AllChoices, Found, Start
from poet.solvers.search.choices import Choice, Choices, least_with_transfers
from poet.solvers.search.finders import GREEDY
from poet.solvers.search.form_guide import FormGuide, form_guide
from poet.solvers.search.messages import STOPPED, impossible_in_all_forms
from poet.solvers.search.own_form import in_own_form

_log = logging.getLogger(__name__)


def solve(problem: Problem, limits: Limits | None = None, options: SolveOptions | None = None) -> Solution:
    """`poet.solvers.search.objectives.solve` over all choices of alternatives; its schedule names them.

    Ctrl-C ends the search and keeps the best plan.

    Raises:
        InputError: the engine named in ``options`` is not available.
    """
    limits, options = limits or Limits(), options or SolveOptions()
    if not problem.alternatives:
        return objectives.solve(problem, limits, options)
    search = _Search(problem, limits, options)
    try:
        return search.run()
    except KeyboardInterrupt:  # between searches of single choices, which hear it themselves
        return search.stopped()


class _Search:
    """One search over choices."""

    def __init__(self, problem: Problem, limits: Limits, options: SolveOptions) -> None:
        self.problem, self.limits, self.options = problem, limits, options
        self.tuning = options.tuning.alternatives
        self.started = options.clock.now()
        self.free = replace(limits, pins=Pins())  # pins name tensors that some choices do not have
        self.choices = Choices(problem, limits, options, self.started)
        self.names = self.choices.names
        self.reads_rows = any(op.stored for each in problem.alternatives for op in each.ops)
        self.kept: Choice | None = None  # with which keeping everything is within the limits
        self.known = AllChoices(
            problem, options, self.judged_start(), least=self.least_of_all(), started=self.started
        )

    def run(self) -> Solution:
        is_pinned = self.limits.pins != Pins()  # what they name has to be there
        impossible = impossible_in_all_forms(self.problem, self.free)
        if impossible:
            found = self.search(frozenset(self.names) if is_pinned else self.choices.lean, 1.0)
            if found.solution.status is Status.INFEASIBLE:
                found = replace(found, solution=replace(found.solution, message=impossible))
                return self.known.answer(found, math.inf)
        if is_pinned:
            return self.few_choices([frozenset(self.names)])
        sums = self.options.objective in (Objective.ENERGY, Objective.TIME)
        guide = None
        if sums:
            choice = self.kept = self.choices.keeping()
            if choice is not None and choice != self.choices.cheapest:
                guide = self.guided()
                if guide is not None:
                    choice = self.choices.dearer_left_out(choice, self.choices.following(guide))
            if choice is not None:
                found = self.search(choice, 1.0)  # ends at once: it keeps everything
                is_cheapest = choice == self.choices.cheapest
                if found.solution.was_interrupted or is_cheapest or len(self.names) > self.tuning.all_choices:
                    return self.known.answer(found, self.known.least)
        goes_on = sums and self.known.start.trace is not None
        guide = guide or self.guided()
        rivals = [] if guide is None else [self.choices.following(guide)]
        if goes_on and self.known.start.choice is not None:
            rivals.insert(0, self.known.start.choice)
        rivals.append(self.choices.first())
        if self.may_try_all():
            return self.all_choices(rivals[0])
        if self.reads_rows:
            tuning, is_short = self.tuning, self.seconds_left() < self.tuning.relaxed_short_seconds
            _, bound = self.relaxed_bound(tuning.relaxed_short_share if is_short else tuning.relaxed_share)
            self.known.raise_least(bound)
        return self.few_choices(rivals)

    def may_try_all(self) -> bool:
        """Whether alternatives are so few that there is time for every choice."""
        if self.reads_rows and len(self.problem.ops) > self.tuning.row_read_ops:
            return False
        needed_seconds = 2 ** len(self.names) * self.tuning.choice_op_seconds * len(self.problem.ops)
        return len(self.names) <= self.tuning.all_choices and self.seconds_left() >= needed_seconds

    def stopped(self) -> Solution:
        """The best of what was found until Ctrl-C, or what keeps everything where that is known to fit."""
        self.known.found.append(self.kept_everything())
        best = min(self.known.found, key=lambda found: found.amount)
        solution = replace(best.solution, message=STOPPED, was_interrupted=True)
        return self.known.answer(replace(best, solution=solution), self.known.least)

    def kept_everything(self) -> Found:
        """Plain training in the choice with which it is known to fit; without one, no plan."""
        choice = self.choices.lean if self.kept is None else self.kept
        problem, schedule, trace = self.problem.resolved(choice), None, None
        if self.kept is not None:
            schedule = keep_everything(problem, self.limits)
            trace = None if schedule is None else simulate(problem, schedule, self.limits)
        solution = Solution(
            Status.TIMEOUT if trace is None else Status.FEASIBLE, schedule, trace, 0.0, 0.0, 0.0, GREEDY,
            objective=self.options.objective,
            objective_bound=None if self.options.objective is Objective.ENERGY else 0.0,
        )  # fmt: skip
        return Found(choice, solution, -math.inf)

    def guided(self) -> FormGuide | None:
        """The guide of the open forms, whose bound is that of all choices from now on.

        Least RAM is a matter of single ops, and is not weighed.
        """
        tuning, allowed = self.tuning, self.options.time_limit_seconds
        if self.options.objective is Objective.RAM or tuning.guide_share == 0.0:
            return None
        seconds = (
            tuning.guide_seconds
            if allowed is None
            else min(tuning.guide_seconds, tuning.guide_share * self.seconds_left())
        )
        if seconds < self.options.tuning.large.relaxing_tensor_seconds * len(self.problem.tensors):
            return None
        guide = form_guide(self.problem, self.free, self.options, seconds=seconds)
        if guide is not None and math.isfinite(guide.bound):
            self.known.raise_least(guide.bound)
        return guide

    def seconds_left(self) -> float:
        allowed = self.options.time_limit_seconds
        if allowed is None:
            return math.inf
        return max(0.0, allowed - (self.options.clock.now() - self.started))

    def judged_start(self) -> Start:
        """The plan to start from, as one of a choice, and judged."""
        start = self.options.start
        if start is None:
            return Start()
        try:
            choice = taken_by(self.problem, start)
        except InvalidSchedule:
            _log.info("the plan to start from is of another problem")
            return Start()
        own = without_names(start)
        try:
            return Start(choice, own, simulate(self.problem.resolved(choice), own, self.limits))
        except (InvalidSchedule, InputError):
            return Start(choice, own)

    def all_choices(self, first: Choice) -> Solution:
        """Search each choice; what costs more than the best plan when every op runs once is left out."""
        ways = itertools.product((True, False), repeat=len(self.names))
        choices = [frozenset(itertools.compress(self.names, way)) for way in ways]
        choices.sort(key=lambda choice: (choice != first, choice != self.choices.lean))
        bound = math.inf
        best = self.known.best()
        for number, choice in enumerate(choices):
            once = self.once(self.problem.resolved(choice))
            if best is not None and once >= best.amount:
                bound = min(bound, once)
                continue
            found = self.search(choice, 1.0 / (len(choices) - number))
            bound = min(bound, found.bound)
            best = found if best is None or found.amount < best.amount else best
            is_over = (
                number + 1 < len(choices) and best.solution.schedule is not None and not self.seconds_left()
            )
            if found.solution.was_interrupted or is_over:
                bound = self.known.least
                break
        assert best is not None
        return self.known.answer(best, max(bound, self.known.least))

    def few_choices(self, rivals: Sequence[Choice]) -> Solution:
        """Search ``rivals``, then others where none has a plan, and the relaxed problem for a bound."""
        best = self.leading(rivals)
        for other in self.choices.others() if self.limits.pins == Pins() else ():
            tried = {each.choice for each in self.known.found}
            if best.solution.schedule is None and other not in tried and not best.solution.was_interrupted:
                best = min(best, self.search(other, 0.5), key=lambda found: found.amount)
        best = self.put_back(best)
        bound = self.known.least
        is_over = best.solution.schedule is not None and not self.seconds_left()
        if not (best.solution.was_interrupted or is_over) and self.limits.pins == Pins():
            least, found = self.relaxed_bound(1.0)
            if least.status is Status.INFEASIBLE and best.solution.schedule is None:
                no_plan = replace(best.solution, message=least.message, proof=least.proof)
                return self.known.answer(replace(best, solution=no_plan), math.inf)
            bound = max(bound, found)
            _log.info("bound over all choices: %g", bound)
            best = replace(best, solution=replace(best.solution, was_interrupted=least.was_interrupted))
        return self.known.answer(best, bound)

    def relaxed_bound(self, share: float) -> tuple[Solution, float]:
        """The answer for the relaxed problem in a share of the time left, and its bound on all choices."""
        below = relaxed(self.problem)
        least = self.searched(below.problem, share, start=None, progress=None)
        if least.bound is None or least.status is Status.INFEASIBLE:
            return least, -math.inf
        above = {Objective.ENERGY: below.joules, Objective.TIME: below.seconds}
        return least, least.bound + above.get(self.options.objective, 0.0)

    def leading(self, rivals: Sequence[Choice]) -> Found:
        """The best plan of ``rivals``: each is searched for some of the time, the best of them for the rest.

        What the open forms suggest is by a linear program at some moments, and plans may want less RAM. So
        the last, which saves most bytes, is searched first.
        """
        rivals = list(dict.fromkeys(rivals))[::-1]
        if len(rivals) == 1 or self.tuning.rivals_share == 0.0:
            return self.search(rivals[-1], self.tuning.main_share)
        part = self.tuning.rivals_share / len(rivals)
        tried: list[Found] = []
        for number, choice in enumerate(rivals):
            tried.append(self.search(choice, part / (1.0 - number * part)))
            if tried[-1].solution.was_interrupted:
                return _stopped(min(tried, key=lambda found: found.amount))
        best = min(tried, key=lambda found: found.amount)
        unsettled = [
            found
            for found in tried
            if found.solution.status in (Status.FEASIBLE, Status.TIMEOUT) and found.bound < best.amount
        ]
        if not unsettled:
            return best
        chosen = min(unsettled, key=lambda found: found.amount)
        again = self.search(chosen.choice, self.tuning.main_share, start=chosen.solution.schedule)
        if again.amount <= best.amount:
            return again
        return _stopped(best) if again.solution.was_interrupted else best

    def put_back(self, best: Found) -> Found:
        """``best`` with ops in their own forms wherever its plan has room for that and takes less then."""
        solution = best.solution
        if solution.schedule is None or self.limits.pins != Pins():
            return best
        dearer = {each.name: each for each in self.problem.alternatives if each.name in best.choice}
        for name in sorted(dearer, key=lambda name: -self.choices.added(name)):
            if self.choices.added(name) <= 0:
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
                best = Found(choice, solution, best.bound)
        return best

    # --- what they share ---

    def search(self, choice: Choice, share: float, *, start: Schedule | None = None) -> Found:
        """Search the problem of ``choice`` for a share of the time that is left."""
        if start is None and choice == self.known.start.choice:
            start = self.known.start.schedule
        solution = self.searched(self.problem.resolved(choice), share, start=start, progress=self.progress())
        bound = math.inf if solution.status is Status.INFEASIBLE else solution.bound
        found = Found(choice, solution, -math.inf if bound is None else bound)
        self.known.found.append(found)
        _log.info("%d of %d alternatives taken: %s", len(choice), len(self.names), solution.status.word)
        return found

    def searched(
        self, problem: Problem, share: float, *, start: Schedule | None, progress: Progress | None
    ) -> Solution:
        options, allowed = self.options, self.options.time_limit_seconds
        if allowed is not None:
            allowed = share * self.seconds_left()
        elif share < 1.0:  # without an end of its own
            allowed = share * self.tuning.unlimited_seconds
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
            gap = None if amount is None else max(0.0, amount - self.known.least) / max(amount, 1e-300)
            shown(amount, self.known.least, gap, self.options.clock.now() - self.started)

        return show

    def least_of_all(self) -> float:
        """Of the objective, what no schedule of any choice takes less than, by sums."""
        once, objective = self.once(self.problem), self.options.objective
        if not self.reads_rows or objective not in (Objective.ENERGY, Objective.TIME):
            return once
        return max(once, least_with_transfers(self.problem, self.limits.ram_budget_bytes)[self.choices.of])

    def once(self, problem: Problem) -> float:
        """Of the objective, what running every op of ``problem`` once takes at least."""
        match self.options.objective:
            case Objective.ENERGY:
                return problem.compute_joules
            case Objective.TIME:
                return problem.compute_seconds
            case Objective.RAM:
                return float(minimum_ram_bytes(problem, self.free).bytes)
            case Objective.WRITES:
                return 0.0


def _stopped(found: Found) -> Found:
    """``found`` as what Ctrl-C left."""
    return replace(found, solution=replace(found.solution, message=STOPPED, was_interrupted=True))
