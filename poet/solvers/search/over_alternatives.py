"""The search where ops have other forms (`poet.problem.Alternative`): which of them a plan takes, and how.

Engines see problems in which that choice is made. Where keeping everything fits with some choice, the one
that costs least extra is looked for; else a few choices are searched in turn, the best of them for longest,
and what its plan has room for is put back into its cheaper form. Few alternatives are tried in all choices,
more of them where time is left then, or where there is no plan. Pins hold in the choices that have what they
name; one that does not allow them has no plan. The bound holds for every choice: the least over all that were
searched, or that of a relaxed problem (`poet.alternatives.relaxed`).
"""

from __future__ import annotations

import functools
import itertools
import logging
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from poet.alternatives import relaxed, taken_by, without_names
from poet.errors import InputError, InvalidSchedule
from poet.problem import Limits, Objective, Pins, Problem
from poet.schedule import Schedule
from poet.simulator import simulate
from poet.solution import PROVEN, Progress, Solution, SolveOptions, Status, amount_of
from poet.solvers.heuristics.keep_everything import keep_everything
from poet.solvers.instance.feasibility import minimum_ram_bytes
from poet.solvers.portfolio.finders import GREEDY
from poet.solvers.search import objectives, orders
from poet.solvers.search.all_choices import AllChoices, Found, Start
from poet.solvers.search.choices import Choice, Choices, least_with_transfers
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
        in_order = orders.solve if options.any_order else objectives.solve
        return in_order(problem, limits, options)
    search = _Search(problem, limits, options)
    try:
        found = search.run()
    except KeyboardInterrupt:  # between searches of single choices, which hear it themselves
        found = search.stopped()
    if search.refused and len(search.refused) == len(search.known.found):
        raise search.refused[0]
    return found


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
        self.refused: list[InputError] = []  # by choices that lack what pins name, or do not allow them
        self.kept: Choice | None = None  # with which keeping everything is within the limits
        self.known = AllChoices(
            problem, options, self.judged_start(), least=self.least_of_all(), started=self.started
        )

    def run(self) -> Solution:
        is_pinned, named = self.limits.pins != Pins(), frozenset(self.names)
        tries_all = self.may_try_all(self.tuning.all_choices)
        impossible = impossible_in_all_forms(self.problem, self.free)
        if impossible and not (is_pinned and tries_all):
            found = self.search(named if is_pinned else self.choices.lean, 1.0)
            if found.solution.status is Status.INFEASIBLE:
                found = replace(found, solution=replace(found.solution, message=impossible))
                return self.known.answer(found, math.inf)
        if is_pinned:
            answer = self.all_choices(named) if tries_all else self.few_choices([named])
            excluded = impossible and answer.status is Status.INFEASIBLE
            return replace(answer, message=impossible) if excluded else answer
        sums = self.options.objective in (Objective.ENERGY, Objective.TIME)
        guide, choice = None, self.choices.keeping() if sums else None
        self.kept = choice
        if choice is not None:
            if choice != self.choices.cheapest:
                guide = self.guided()
                if guide is not None:
                    choice = self.choices.dearer_left_out(choice, self.choices.following(guide))
            if tries_all:
                return self.all_choices(choice)
            found = self.search(choice, 1.0)  # ends at once: it keeps everything
            return self.gone_on(found, self.known.least)
        goes_on = sums and self.known.start.trace is not None
        guide = self.guided()
        rivals = [] if guide is None else [self.choices.following(guide)]
        if goes_on and self.known.start.choice is not None:
            rivals.insert(0, self.known.start.choice)
        rivals.append(self.choices.first())
        if tries_all:
            return self.all_choices(rivals[0])
        if self.reads_rows:
            tuning, is_short = self.tuning, self.seconds_left() < self.tuning.relaxed_short_seconds
            _, bound = self.relaxed_bound(tuning.relaxed_short_share if is_short else tuning.relaxed_share)
            self.known.raise_least(bound)
        return self.few_choices(rivals)

    def may_try_all(self, most: int) -> bool:
        """Whether alternatives are no more than ``most``, and there is time for every choice of them."""
        if self.reads_rows and len(self.problem.ops) > self.tuning.row_read_ops:
            return False
        needed_seconds = 2 ** len(self.names) * self.tuning.choice_op_seconds * len(self.problem.ops)
        return len(self.names) <= most and self.seconds_left() >= needed_seconds

    def gone_on(self, best: Found, bound: float) -> Solution:
        """The answer, or that after the other choices: where it leaves a gap and they are few, or no plan."""
        answer = self.known.answer(best, bound)
        is_over = answer.was_interrupted or not self.seconds_left() or self.tuning.rest_choices == 0
        if is_over or answer.status in (Status.OPTIMAL, Status.INFEASIBLE):
            return answer
        if answer.schedule is not None and not self.may_try_all(self.tuning.rest_choices):
            return answer
        if answer.schedule is not None:  # some ops may have been put back
            as_open = replace(best.solution, status=Status.FEASIBLE, proof="")
            self.known.found.append(Found(best.choice, as_open, -math.inf))
        self.known.raise_least(bound)
        return self.all_choices(best.choice)

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
        """Search each choice for its share of the time, the nearest to ``first`` before others, those that
        are left open once more; of many alternatives some choices, until there is a plan.

        What costs more than the best plan when every op runs once is left out.
        """
        most = 2 ** max(self.tuning.all_choices, self.tuning.rest_choices)
        choices = [*itertools.islice(_nearest(first, self.names), most)]
        once = functools.cache(lambda choice: self.once(self.problem.resolved(choice)))
        for again in (False, True):
            waiting = [choice for choice in choices if not self.known.settled(choice, once(choice))]
            for number, choice in enumerate(waiting):
                if self.is_over(again=again):
                    break
                if not self.known.settled(choice, once(choice)):
                    start = self.known.schedule_of(choice)
                    self.search(choice, 1.0 / (len(waiting) - number), start=start)
        best, bound = self.known.best(), -math.inf
        if len(choices) == 2 ** len(self.names):
            bound = min(max(once(choice), self.known.bound_of(choice)) for choice in choices)
        assert best is not None
        return self.known.answer(best, max(bound, self.known.least))

    def is_over(self, *, again: bool) -> bool:
        """Whether no other choice is searched: Ctrl-C, no time left, a plan of many alternatives."""
        found = self.known.found
        has_plan = any(each.solution.schedule is not None for each in found)
        if found and found[-1].solution.was_interrupted:
            return True
        if not self.seconds_left() and (has_plan or again or len(found) >= 2**self.tuning.all_choices):
            return True
        return has_plan and len(self.names) > max(self.tuning.all_choices, self.tuning.rest_choices)

    def few_choices(self, rivals: Sequence[Choice]) -> Solution:
        """Search ``rivals``, then others where none has a plan, and the relaxed problem for a bound."""
        best = self.leading(rivals)
        for other in self.choices.others():
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
        return self.gone_on(best, bound)

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
        try:
            solution = self.searched(
                self.problem.resolved(choice), share, start=start, progress=self.progress()
            )
        except InputError as error:
            if self.limits.pins == Pins():
                raise
            self.refused.append(error)
            solution = Solution(Status.INFEASIBLE, None, None, math.inf, 0.0, 0.0, GREEDY, proof=PROVEN)
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
        """Of the search of one choice, with the bound of all and the best plan of those before."""
        shown = self.options.progress
        if shown is None:
            return None
        before = min((found.amount for found in self.known.found), default=math.inf)

        def show(amount: float | None, _bound: float, _gap: float | None, _seconds: float) -> None:
            amount = min(before, math.inf if amount is None else amount)
            amount = amount if math.isfinite(amount) else None
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


def _nearest(first: Choice, names: Sequence[str]) -> Iterator[Choice]:
    """All choices, from ``first`` on by how many alternatives are in another form."""
    for count in range(len(names) + 1):
        for others in itertools.combinations(names, count):
            yield first.symmetric_difference(others)
