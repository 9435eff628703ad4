"""Which alternatives of a problem to take, before any search: by sums, by keeping everything, by relaxation.

What an alternative adds to running every op once is weighed against the bytes that its ops read less. The
windows relaxation with open forms (`poet.solvers.instance.undecided`) weighs all of them at once: what its
linear program costs is a bound for every choice, and the forms that its solution takes for more than half are
a choice, by what each costs and the RAM that it frees, moment by moment.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from poet.alternatives import aligned_sizes, leanest, most_at_once, sizes_with
from poet.interrupts import was_told
from poet.problem import Limits, Objective, Pins, Problem
from poet.schedule import Compute, Free
from poet.solution import SolveOptions
from poet.solvers.bounds.refinement import refined_bounds
from poet.solvers.bounds.relaxation import Bound
from poet.solvers.engines.program import value
from poet.solvers.heuristics.policies import keep_everything
from poet.solvers.instance.feasibility import minimum_ram_bytes
from poet.solvers.instance.undecided import undecided
from poet.solvers.search.objectives import priced

Choice = frozenset[str]
"""Names of the alternatives that are taken."""

SECONDS, JOULES = 0, 1
"""Of `poet.problem.Problem.extra_cost`, and of the limits on running every op once."""

SUGGEST_SECONDS = 5.0
"""For each way to suggest a choice, and a fifth of the time at most; without, only sums suggest one."""


class Choices:
    """Choices of the alternatives of ``problem``, whose pins are left out.

    Attributes:
        of: what the objective counts, seconds or joules.
        names: of all alternatives.
        cheapest: those with which running every op once takes least of the objective.
        lean: those whose ops need no more RAM at once than without them.
    """

    def __init__(self, problem: Problem, limits: Limits, options: SolveOptions) -> None:
        self.problem, self.limits, self.options = problem, replace(limits, pins=Pins()), options
        self.of = SECONDS if options.objective is Objective.TIME else JOULES
        self.allowed = (limits.deadline_seconds, limits.joules_budget)
        self.by_name = {each.name: each for each in problem.alternatives}
        self.costs = {each.name: problem.extra_cost(each) for each in problem.alternatives}
        sizes, ops = aligned_sizes(problem), {op.name: op for op in problem.ops}
        self.ops, self.saved_bytes = ops, dict[str, int]()
        for each in problem.alternatives:  # by how much what its ops read is smaller than without it
            with_it = sizes_with(problem, sizes, each)
            before = sum(sizes[name] for op in each.touched for name in ops[op].inputs)
            after = sum(with_it[name] for op in each.ops for name in op.inputs)
            self.saved_bytes[each.name] = before - after
        self.names = tuple(self.costs)
        self.lean = leanest(problem)
        self.cheapest = self._gains(self.of)

    def suggested(self, guide: FormGuide | None) -> list[Choice]:
        """Choices to begin with: what the guide takes, and what saves bytes.

        Where keeping everything is within the limits with one of them, as few of it as that needs, alone.
        """
        choices = [self.by_bytes()]
        if guide is not None:
            choices.insert(0, self.affordable(guide.taken | (choices[0] - guide.open)))
        keeping = [self._as_few_as_keep(choice) for choice in choices if self.keeps(choice)]
        return [min(keeping, key=self._total)] if keeping else choices

    def extremes(self) -> list[Choice]:
        """Where those have no plan: by bytes, the leanest, the cheapest, all, none; as limits allow."""
        ends = (self.lean, self.cheapest, frozenset(self.names), frozenset[str]())
        return [self.by_bytes(), *map(self.affordable, ends)]

    def keeps(self, choice: Choice) -> bool:
        """Whether each op may run once with nothing moved; asked of least energy and time alone."""
        if self.options.objective not in (Objective.ENERGY, Objective.TIME):
            return False
        self.options.clock.spend(programs=1)
        problem = self.problem.resolved(choice)
        schedule = keep_everything(problem, self.limits)
        return schedule is not None and all(isinstance(step, Compute | Free) for step in schedule)

    def _as_few_as_keep(self, choice: Choice) -> Choice:
        """``choice`` without what keeping everything does not need, the most expensive first."""
        end = self.options.clock.now() + suggest_seconds(self.options)
        for name in sorted(choice, key=lambda name: (-self.costs[name][self.of], name)):
            late = self.options.clock.now() > end or self.costs[name][self.of] <= 0.0
            if not late and self.keeps(choice - {name}):
                choice -= {name}
        return choice

    def affordable(self, choice: Choice) -> Choice:
        """What of ``choice`` running every op once is within the deadline and the energy budget with.

        The most expensive for their bytes go first, last those without which an op does not fit; if that is
        not enough, what gains comes in.
        """
        plain = self.problem.resolved(())
        once = (plain.compute_seconds, plain.compute_joules)
        for of, allowed in enumerate(self.allowed):
            costs, gains = {name: self.costs[name][of] for name in self.names}, self._gains(of)
            total = math.fsum((once[of], *(costs[name] for name in choice)))
            ranks = {
                name: (self._is_needed(name), -costs[name] / max(1, self.saved_bytes[name]), name)
                for name in choice - gains
            }
            leaving, coming = (
                sorted(ranks, key=ranks.__getitem__),
                sorted(gains - choice, key=costs.__getitem__),
            )
            for name in (*leaving, *coming):
                if allowed is None or total <= allowed * (1 + 1e-9):
                    break
                total += -costs[name] if name in choice else costs[name]
                choice ^= {name}
        return choice

    def _gains(self, of: int) -> Choice:
        return frozenset(name for name in self.costs if self.costs[name][of] < 0)

    def _total(self, choice: Choice) -> float:
        return math.fsum(self.costs[name][self.of] for name in choice)

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

    def _is_needed(self, name: str) -> bool:
        """Whether an op of it does not fit in its own form."""
        own, budget_bytes = [self.ops[op] for op in self.by_name[name].touched], self.limits.ram_budget_bytes
        return budget_bytes is not None and most_at_once(self.problem, own) > budget_bytes


def suggest_seconds(options: SolveOptions) -> float:
    """``SUGGEST_SECONDS``, or a fifth of the time limit if that is less."""
    allowed = options.time_limit_seconds
    return SUGGEST_SECONDS if allowed is None else min(SUGGEST_SECONDS, allowed / 5.0)


@dataclass(frozen=True, slots=True)
class FormGuide:
    """What the relaxation says of all choices.

    Attributes:
        bound: of the objective, in its unit, for every choice.
        open: alternatives whose forms it weighed; ``taken``: those of them that it takes.
    """

    bound: float
    open: frozenset[str]
    taken: frozenset[str]


def form_guide(
    problem: Problem, limits: Limits, options: SolveOptions, *, seconds: float
) -> FormGuide | None:
    """The guide of ``problem``, in ``seconds``; ``None``: nothing is to be weighed, or time was too short.

    For least energy, time or writes, within ``limits`` without pins.
    """
    if options.objective is not Objective.ENERGY:
        problem = priced(problem, options.objective)
    of = undecided(problem, limits)
    if not of.names or limits.ram_budget_bytes is None or seconds <= 0.0:
        return None
    solved, bound_joules, end = list[Bound](), 0.0, options.clock.now() + seconds

    def left() -> float:
        return max(end - options.clock.now(), 0.0)

    for bound in refined_bounds(of.instance, left, clock=options.clock):
        bound_joules = max(bound_joules, bound.overhead_joules)
        if bound.answer.values is not None:
            solved.append(bound)
        if not left() or was_told():
            break
    if not solved:
        return None
    last = max(solved, key=lambda bound: bound.overhead_joules)
    assert last.answer.values is not None
    columns = last.relaxation.forms[1::2]
    shares = [value(column, last.answer.values) for column in columns]
    taken = frozenset(name for name, share in zip(of.names, shares, strict=True) if share > 0.5)
    return FormGuide(of.joules + bound_joules, frozenset(of.names), taken)
