"""The search where ops have other forms (`poet.problem.Alternative`): which of them a plan takes, and how.

Engines see problems in which that choice is made. The first choices are suggested by the bytes that forms
save for their price, and by the plan to start from; the same portfolio searches each for some of the time,
then the best of them for the rest. Few alternatives are searched in all choices. The bound holds for every
choice: the least over all of them, or that of a problem that is below them all
(`poet.problem.alternatives.relaxed`). A choice that does not have what pins name has no plan.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

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
from poet.problem.solution import Solution, SolveOptions, Status
from poet.solvers.bounds.refinement import refined_bounds
from poet.solvers.heuristics.policies import keep_everything
from poet.solvers.instance.feasibility import minimum_ram_bytes
from poet.solvers.instance.instance import instance_of
from poet.solvers.search import objectives, orders, units
from poet.solvers.search.choices import ChoiceSearch
from poet.solvers.search.least_energy import OP_SECONDS
from poet.solvers.search.messages import impossible_in_all_forms
from poet.util.interrupts import was_told
from poet.util.units import IN_ORDER

_log = logging.getLogger(__name__)

Choice = frozenset[str]
"""Names of the alternatives that are taken."""

MOST_CHOICES = 256
"""All of so many are searched; with one, none is proven best of all."""

SUGGEST_SECONDS = 5.0
"""For each of two things before the search, and a fifth of the time at most: to look which forms keep all in
RAM, and for a bound for all choices; without, the first takes long where alternatives are many."""


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
    answer = search.answer()
    if search.refused and search.refused.keys() == search.found.keys():
        raise next(iter(search.refused.values()))
    return answer


class _Search(ChoiceSearch[Choice]):
    """One search over forms; ``refused`` are choices that lack what pins name, or do not allow them."""

    kind = "forms of the ops"
    other_choices = (
        f"No plan {IN_ORDER} that saves the same tensors in the same forms costs less; with another choice "
        "of them one may."
    )

    def __init__(self, problem: Problem, limits: Limits, options: SolveOptions) -> None:
        super().__init__(problem, limits, options)
        self.choices, self.refused = Choices(problem, limits, options), dict[Choice, InputError]()
        self.count = 1 << len(problem.alternatives)

    def run(self) -> None:
        few = self._begin()
        self.none = impossible_in_all_forms(self.problem, self.choices.limits)
        if self.none:
            return
        few += self._suggested() if self.limits.pins == Pins() else [frozenset(self.choices.names)]
        few = [*dict.fromkeys(few)]
        for choice in few:
            self.search(choice, objectives.PROBE_SHARE / len(few))
        first_plans_seconds = self.count * OP_SECONDS * len(self.problem.ops)
        may_try_all = self.count <= MOST_CHOICES and self.left() >= first_plans_seconds
        if may_try_all or self.best_choice is None:
            first = [*dict.fromkeys((*few, *self.choices.extremes()))]
            near = itertools.islice(_nearest(few[0], self.choices.names), MOST_CHOICES)
            every = [*dict.fromkeys((*first, *near))]
            self.search_each(every, first=first, of_all=len(every) == self.count)
        elif self.left():
            self._choose_pages()
            self.search(self.best_choice, 1.0)
        self._choose_pages()

    def _choose_pages(self) -> None:
        """Of each tensor that the best plan pages the form with which the same schedule takes less."""
        for each in self.problem.alternatives:
            choice, best = self.best_choice, self.best
            if choice is None or best is None or each.ops:
                continue
            paged = {step.tensor for step in best.schedule or () if isinstance(step, PageOut)}
            if paged.intersection(tensor.name for tensor in each.tensors):
                with contextlib.suppress(InvalidSchedule):
                    self.note(choice ^ {each.name}, best.schedule or (), self.nothing(by=best.solver))

    def _begin(self) -> list[Choice]:
        """The choice of the plan to start from, where it is one within the limits."""
        start = self.options.start
        if start.schedule is None:
            return []
        try:
            choice = taken_by(self.problem, start.schedule)
            self.note(choice, without_names(start.schedule), self.nothing(by=start.by))
        except (InvalidSchedule, InputError):
            _log.info("the plan to start from is of another problem or outside the limits")
            return []
        return [choice]

    def _suggested(self) -> list[Choice]:
        if self.choices.keeps(self.choices.cheapest):
            return [self.choices.cheapest]
        by_bytes = self.choices.by_bytes()
        if self.choices.keeps(by_bytes):
            schedule = keep_everything(self.decided(by_bytes), self.limits) or ()
            self.note(by_bytes, schedule, self.nothing())
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

    # --- choices of forms ---

    def decided(self, choice: Choice) -> Problem:
        return self.problem.resolved(choice)

    def named(self, choice: Choice, schedule: Schedule) -> Schedule:
        return with_names(self.problem, choice, schedule)

    def solved(self, choice: Choice, options: SolveOptions) -> Solution:
        try:
            return units.solve(self.decided(choice), self.limits, options)
        except InputError as error:
            if self.limits.pins == Pins():
                raise
            self.refused[choice] = error
            return self.nothing(Status.INFEASIBLE)


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
