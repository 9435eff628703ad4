"""The search where ops have other forms (`poet.problem.Alternative`): which of them a plan takes, and how.

Engines see problems in which that choice is made. The first choices are suggested by the bytes that forms
save for their price, and by the plan to start from; the same portfolio searches each for some of the time,
then the best of them for the rest. Few alternatives are searched in all choices. The bound holds for every
choice: the least over all of them, or that of a problem that is below them all
(`poet.problem.alternatives.relaxed`). A choice that does not have what pins name has no plan.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import logging
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from poet.errors import InputError, InvalidSchedule
from poet.problem import Limits, Objective, Pins, Problem
from poet.problem.alternatives import (
    aligned_sizes,
    leanest,
    most_at_once,
    relaxed,
    sizes_with,
    taken_by,
    with_names,
    without_names,
)
from poet.problem.schedule import Compute, Free, PageOut, Schedule
from poet.problem.simulator import simulate
from poet.problem.solution import PROVEN, Progress, Solution, SolveOptions, Start, Status, is_confirmed
from poet.solvers.bounds.refinement import refined_bounds
from poet.solvers.heuristics.policies import keep_everything
from poet.solvers.instance.feasibility import minimum_ram_bytes
from poet.solvers.instance.instance import instance_of
from poet.solvers.portfolio.state import GREEDY
from poet.solvers.search import objectives, orders, units
from poet.solvers.search.least_energy import OP_SECONDS
from poet.solvers.search.messages import STOPPED, impossible_in_all_forms, untried_forms_sentence
from poet.util.interrupts import was_told
from poet.util.units import IN_ORDER

_log = logging.getLogger(__name__)

Choice = frozenset[str]
"""Names of the alternatives that are taken."""

MOST_CHOICES = 256
"""All of so many are searched; with one, none is proven best of all."""

UNLIMITED_SECONDS = 600.0
"""Shared by choices where there is no time limit; without, the first has all, as a proof alone ends it."""

SUGGEST_SECONDS = 5.0
"""For each of two things before the search, and a fifth of the time at most: to look which forms keep all in
RAM, and for a bound for all choices; without, the first takes long where alternatives are many."""

_OTHER_CHOICES = (
    f"No plan {IN_ORDER} that saves the same tensors in the same forms costs less; with another choice of "
    "them one may."
)


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
        by_order = any_order and not problem.chooses_units
        return (orders.solve if by_order else units.solve)(problem, limits, options)
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
    bound: float = -math.inf

    def rank(self) -> tuple[float, float]:
        """The best answer first: by the objective, then by energy."""
        amount, joules = self.solution.amount, self.solution.joules
        return math.inf if amount is None else amount, math.inf if joules is None else joules


class _Search:
    """One search over choices.

    Attributes:
        found: answers for single choices so far, the plan to start from among them.
        least: of the objective, what no schedule of any choice takes less than.
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
        self.least = self._once(None)
        self.found, self.refused = list[_Found](), list[InputError]()

    def run(self) -> Solution:
        few = self._begin()
        impossible = impossible_in_all_forms(self.problem, self.choices.limits)
        if impossible:
            return self.answer(no_plan=impossible)
        few += self._suggested() if self.limits.pins == Pins() else [frozenset(self.choices.names)]
        few = [*dict.fromkeys(few)]
        for choice in few:
            self._search(choice, objectives.PROBE_SHARE / len(few))
        first_plans_seconds = self.count * OP_SECONDS * len(self.problem.ops)
        may_try_all = self.count <= MOST_CHOICES and self.seconds_left() >= first_plans_seconds
        if may_try_all or not self._has_plan():
            self._search_all(few)
        elif self.seconds_left():
            self._choose_pages()
            self._search(self._best().choice, 1.0)
        self._choose_pages()
        return self.answer()

    def _choose_pages(self) -> None:
        """Of each tensor that the best plan pages the form with which the same schedule takes less."""
        best = self._best()
        paged = {step.tensor for step in best.solution.schedule or () if isinstance(step, PageOut)}
        for each in self.problem.alternatives:
            if not each.ops and paged.intersection(tensor.name for tensor in each.tensors):
                with contextlib.suppress(InvalidSchedule):
                    choice = best.choice ^ {each.name}
                    self._note_plan(choice, best.solution.schedule or (), best.solution.solver)
                best = self._best()

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
        by_bytes = self.choices.by_bytes()
        if self.choices.keeps(by_bytes):
            self._note_plan(
                by_bytes, keep_everything(self.problem.resolved(by_bytes), self.limits) or (), GREEDY
            )
        self.least = max(self.least, self._common_bound())
        return self.choices.suggested(by_bytes)

    def _common_bound(self) -> float:
        """Of the objective, what no schedule of any choice takes less than, by the windows relaxation."""
        options, problem, best = self.options, self.problem, 0.0
        if options.objective is Objective.RAM:  # a matter of single ops
            return 0.0
        if options.objective is not Objective.ENERGY:
            problem = objectives.priced(problem, options.objective)
        below, end = relaxed(problem), options.clock.now() + suggest_seconds(options)

        def left() -> float:
            return max(end - options.clock.now(), 0.0)

        instance = instance_of(below.problem, self.choices.limits)
        for bound in refined_bounds(instance, left, clock=options.clock):
            if math.isfinite(bound.overhead_joules):
                best = max(best, bound.overhead_joules)
            if not left() or was_told():
                break
        return below.problem.compute_joules + below.joules + best

    def _search_all(self, few: list[Choice]) -> None:
        """Each choice in equal parts, ``few`` and those near to them before others, those left open once
        more; of many alternatives some choices, until there is a plan.
        """
        first = [*dict.fromkeys((*few, *self.choices.extremes()))]
        near = itertools.islice(_nearest(few[0], self.choices.names), MOST_CHOICES)
        choices = [*dict.fromkeys((*first, *near))]
        self.searched_all = len(choices) == self.count
        for again in (False, True):
            waiting = [choice for choice in choices if not self._is_settled(choice)]
            for number, choice in enumerate(waiting):
                has_plan = self._has_plan()
                is_late = not self.seconds_left() and (has_plan or again or choice not in first)
                if self.stopped or is_late or (has_plan and self.count > MOST_CHOICES):
                    return
                self._search(choice, 1.0 / (len(waiting) - number))

    def _is_settled(self, choice: Choice) -> bool:
        """Whether ``choice`` need not be searched."""
        amount, enough = self._best().rank()[0], self.options.enough_joules
        is_enough = enough is not None and self.options.objective is Objective.ENERGY and amount <= enough
        done = (Status.OPTIMAL, Status.INFEASIBLE)
        is_done = any(each.choice == choice and each.solution.status in done for each in self.found)
        return self.stopped or is_enough or is_done or max(self.least, self._bound_of(choice)) >= amount

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
        allowed, left = self.options.time_limit_seconds, self.seconds_left()
        if allowed is not None or share < 1.0:
            allowed = share * min(left, UNLIMITED_SECONDS if allowed is None else left)
        options = replace(
            self.options,
            time_limit_seconds=allowed,
            start=Start() if known is None else Start(known.solution.schedule, known.solution.solver),
            progress=self._progress(),
        )
        try:
            solution = units.solve(self.problem.resolved(choice), self.limits, options)
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
        self.found.append(_Found(choice, plan))

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
        none = _Found(self.choices.lean, self._no_solution(Status.TIMEOUT))
        return min(self.found, key=_Found.rank, default=none)

    def _has_plan(self) -> bool:
        return math.isfinite(self._best().rank()[0])

    def _no_solution(self, status: Status) -> Solution:
        objective, bound = self.options.objective, math.inf if status is Status.INFEASIBLE else 0.0
        return Solution(
            status, None, None, bound, self.problem.compute_joules, 0.0, GREEDY,
            proof=PROVEN if status is Status.INFEASIBLE else "", objective=objective,
            objective_bound=None if objective is Objective.ENERGY else bound,
        )  # fmt: skip

    def answer(self, *, no_plan: str = "") -> Solution:
        """The best plan, for all choices; ``no_plan``: why there is none."""
        best, options, is_energy = self._best(), self.options, self.options.objective is Objective.ENERGY
        solution, amount, compute_joules = best.solution, best.rank()[0], self.problem.compute_joules
        bound = math.inf if no_plan else self.least
        if self.searched_all:
            bound = max(bound, min(map(self._bound_of, _nearest(frozenset(), self.choices.names))))
        if math.isinf(bound) and solution.trace is not None:
            bound = self.least  # an engine erred
        bound, schedule, proof = min(bound, amount), None, ""
        bound_joules = bound if is_energy else compute_joules
        if solution.trace is None:
            status, message, proof = self._without_plan(bound, no_plan)
        else:
            schedule = with_names(self.problem, best.choice, solution.schedule or ())
            bound_joules = min(bound_joules, solution.trace.joules)
            allowed = options.allowed_gap_joules(amount, compute_joules) if is_energy else 1e-9 * amount
            if amount - bound <= allowed:
                status, message, proof = Status.OPTIMAL, "", self._weakest_proof(solution.proof or PROVEN)
            else:
                message = _OTHER_CHOICES if solution.status is Status.OPTIMAL else solution.message
                status = Status.FEASIBLE
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

    def _without_plan(self, bound: float, no_plan: str) -> tuple[Status, str, str]:
        """Status, message and proof, in words that are true of all choices."""
        if no_plan:
            return Status.INFEASIBLE, no_plan, PROVEN
        if math.isinf(bound):  # each has none
            said = {each.solution.message for each in self.found} - {""}  # pins that a choice does not allow
            message = said.pop() if len(said) == 1 else f"No choice of forms has a plan {IN_ORDER}."
            return Status.INFEASIBLE, message, self._weakest_proof(PROVEN)
        tried, in_time = {each.choice for each in self.found}, self.seconds_left() > 0.0
        return (
            Status.TIMEOUT,
            untried_forms_sentence(len(tried), len(self.choices.names), in_time=in_time),
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


# --- which choices to begin with ---


class Choices:
    """Choices of the alternatives of ``problem``, whose pins are left out.

    Attributes:
        names: of all alternatives.
        costs: what each adds to running every op once: seconds and joules.
        saved_bytes: by how much what its ops read is smaller with each.
        cheapest: those with which running every op once takes least of the objective.
        lean: those whose ops need no more RAM at once than without them.
    """

    def __init__(self, problem: Problem, limits: Limits, options: SolveOptions) -> None:
        self.problem, self.limits, self.options = problem, replace(limits, pins=Pins()), options
        self.by_name = {each.name: each for each in problem.alternatives}
        self.costs = {each.name: problem.extra_cost(each) for each in problem.alternatives}
        sizes, self.ops = aligned_sizes(problem), {op.name: op for op in problem.ops}
        self.saved_bytes = dict[str, int]()
        for each in problem.alternatives:
            with_it = sizes_with(problem, sizes, each)
            before = sum(sizes[name] for op in each.touched for name in self.ops[op].inputs)
            after = sum(with_it[name] for op in each.ops for name in op.inputs)
            self.saved_bytes[each.name] = before - after
        self.names, self.lean = tuple(self.costs), leanest(problem)
        self._counted = 0 if options.objective is Objective.TIME else 1  # of `costs`, by the objective
        self.cheapest = self._gains(self._counted)

    def suggested(self, by_bytes: Choice) -> list[Choice]:
        """Choices to begin with: what saves bytes, the half of it that costs least for them, and the quarter.

        Where keeping everything is within the limits with the first, as few of it as that needs, alone.
        """
        if self.keeps(by_bytes):
            return [self._as_few_as_keep(by_bytes)]
        costs = {name: self.costs[name][self._counted] / max(1, self.saved_bytes[name]) for name in by_bytes}
        cheap = sorted(by_bytes, key=lambda name: (costs[name], name))
        parts = (frozenset(cheap[: len(cheap) // part]) for part in (2, 4))
        return [by_bytes, *(self.affordable(self.lean | part) for part in parts)]

    def extremes(self) -> list[Choice]:
        """Where those have no plan: the leanest, the cheapest, all, none; as limits allow."""
        return [*map(self.affordable, (self.lean, self.cheapest, frozenset(self.names), frozenset[str]()))]

    def keeps(self, choice: Choice) -> bool:
        """Whether each op may run once with nothing moved; asked of least energy and time alone."""
        if self.options.objective not in (Objective.ENERGY, Objective.TIME):
            return False
        self.options.clock.spend(programs=1)
        schedule = keep_everything(self.problem.resolved(choice), self.limits)
        return schedule is not None and all(isinstance(step, Compute | Free) for step in schedule)

    def _as_few_as_keep(self, choice: Choice) -> Choice:
        """``choice`` without what keeping everything does not need, the most expensive first."""
        end = self.options.clock.now() + suggest_seconds(self.options)
        for name in sorted(choice, key=lambda name: (-self.costs[name][self._counted], name)):
            late = self.options.clock.now() > end or self.costs[name][self._counted] <= 0.0
            if not late and self.keeps(choice - {name}):
                choice -= {name}
        return choice

    def affordable(self, choice: Choice) -> Choice:
        """What of ``choice`` running every op once is within the deadline and the energy budget with.

        The most expensive for their bytes go first, last those without which an op does not fit; if that is
        not enough, what gains comes in.
        """
        plain = self.problem.resolved(())
        once = plain.compute_seconds, plain.compute_joules
        for of, allowed in enumerate((self.limits.deadline_seconds, self.limits.joules_budget)):
            costs, gains = {name: self.costs[name][of] for name in self.names}, self._gains(of)
            ranks = {
                name: (self._is_needed(name), -costs[name] / max(1, self.saved_bytes[name]), name)
                for name in choice - gains
            }
            total = math.fsum((once[of], *(costs[name] for name in choice)))
            for name in (
                *sorted(ranks, key=ranks.__getitem__),
                *sorted(gains - choice, key=costs.__getitem__),
            ):
                if allowed is None or total <= allowed * (1 + 1e-9):
                    break
                total += -costs[name] if name in choice else costs[name]
                choice ^= {name}
        return choice

    def by_bytes(self) -> Choice:
        """What saves bytes and fits, and what needs less at once, as far as time and energy allow.

        Where least RAM is asked for, what fits is what does not need more at once than the leanest choice.
        """
        fits_bytes = self.limits.ram_budget_bytes
        if self.options.objective is Objective.RAM:
            fits_bytes = minimum_ram_bytes(self.problem.resolved(self.lean), self.limits).bytes
        saving = {
            name
            for name, each in self.by_name.items()
            if self.saved_bytes[name] > 0
            and (fits_bytes is None or most_at_once(self.problem, each.ops, alternative=each) <= fits_bytes)
        }
        return self.affordable(self.lean | saving)

    def _gains(self, of: int) -> Choice:
        return frozenset(name for name in self.costs if self.costs[name][of] < 0)

    def _is_needed(self, name: str) -> bool:
        """Whether an op of it does not fit in its own form."""
        own, budget_bytes = [self.ops[op] for op in self.by_name[name].touched], self.limits.ram_budget_bytes
        return budget_bytes is not None and most_at_once(self.problem, own) > budget_bytes


def suggest_seconds(options: SolveOptions) -> float:
    """``SUGGEST_SECONDS``, or a fifth of the time limit if that is less."""
    allowed = options.time_limit_seconds
    return SUGGEST_SECONDS if allowed is None else min(SUGGEST_SECONDS, allowed / 5.0)
