"""The search where ops run on several units (`poet.problem.units`): which one each op is on, and how to plan.

RAM does not ask on which unit an op runs, so a schedule for one choice is one for all, at other costs. The
portfolio plans the problem in which no op takes more than on any unit: its bound, and what running every op
once takes more on any choice of units, hold for every choice. A small program gives the units that are best
for a schedule, which count as often as it runs each op; with those, the portfolio plans again. Where a gap is
left, the windows relaxation with the choice among its columns gives a bound, and a choice to plan with. Few
choices are searched one by one.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from poet.errors import InvalidSchedule
from poet.problem import Limits, Objective, Problem
from poet.problem.pins import permitted
from poet.problem.schedule import Compute, Schedule
from poet.problem.simulator import simulate
from poet.problem.solution import PROVEN, WORD_OF, Solution, SolveOptions, Status
from poet.problem.units import Assignment, assigned_by, on_units, with_units, without_units
from poet.solvers.bounds.refinement import ExtractedStep
from poet.solvers.bounds.relaxation import bound_overhead
from poet.solvers.bounds.unit_columns import UnitColumns, UnitCosts
from poet.solvers.engines import Effort, choose_engine, run_engine
from poet.solvers.engines.highs import minimise
from poet.solvers.engines.program import Matrix, MatrixBuilder, Outcome
from poet.solvers.engines.proof import Confidence, confirm
from poet.solvers.instance.instance import instance_of
from poet.solvers.portfolio.state import Claim
from poet.solvers.search import objectives
from poet.solvers.search.choices import ChoiceSearch
from poet.util.units import IN_ORDER

_log = logging.getLogger(__name__)

MOST_CHOICES = 1024
"""All of so many are searched; with less, problems of four ops on three units keep a gap."""

LEAST_SHARE = 0.3
"""Of the time, for the problem in which ops take the least of all units; with 0, many have no schedule."""

PLAN_SHARE = 0.6
"""Of the time that is then left, to plan with units that are best for its schedule, and with each alone."""

COUNTEREXAMPLES = 8
"""Moments that go on the grids of the relaxation at once."""

PROGRAM_SECONDS = 5.0
"""For one program of the units of a schedule, and a tenth of the time at most."""

Units = tuple[tuple[str, str], ...]
"""The op and the unit of each op that is not on the main one."""


def solve(problem: Problem, limits: Limits, options: SolveOptions) -> Solution:
    """`poet.solvers.search.objectives.solve` over all choices of units; its schedule names them.

    Ctrl-C ends the search and keeps the best plan.

    Raises:
        InputError: the engine named in ``options`` is not available, or pins ask for what is not there.
    """
    if not problem.chooses_units:
        return objectives.solve(problem, limits, options)
    permitted(problem, limits)
    return _Search(problem, limits, options).answer()


class _Search(ChoiceSearch[Units]):
    """One search over units."""

    kind = "units"
    other_choices = f"No plan {IN_ORDER} costs less on the same units; with others one may."
    any_start = True

    def __init__(self, problem: Problem, limits: Limits, options: SolveOptions) -> None:
        super().__init__(problem, limits, options)
        engine = choose_engine(options.engine, threads=1, clock=options.clock)
        self.engine = "highs" if "+" in engine else engine
        self.by_time = options.objective is Objective.TIME
        self.costs = UnitCosts(problem)

    def run(self) -> None:
        self._begin()
        least = self._least_of_all()
        if self.none or self.is_enough:
            return
        best, fastest = self._best_for(None), self._best_for(None, by_time=True)
        firsts = [*dict.fromkeys((self._best_for(least.schedule), best, fastest, *self._singles()))]
        for number, first in enumerate(firsts):
            if first is not None and self.left():
                self.search(first, PLAN_SHARE / (len(firsts) - number))
        if self.options.objective in (Objective.ENERGY, Objective.TIME):
            self._relax()
        if math.prod(map(len, self.costs.forms)) <= MOST_CHOICES:
            self.search_each(sorted(self._every(), key=self.once), of_all=True)
        elif self.best_choice is not None and self.left():
            self.search(self.best_choice, 1.0)

    def _begin(self) -> None:
        start = self.options.start
        if start.schedule is not None:
            try:
                own = assigned_by(self.problem, start.schedule)
                schedule, like = without_units(start.schedule), self.nothing(by=start.by)
                self.note(_key(own), schedule, like)
                self._improve(schedule, like)
            except InvalidSchedule:
                _log.info("the plan to start from is of another problem or outside the limits")

    def _least_of_all(self) -> Solution:
        """The plan of the problem in which no op takes more than on any unit; any choice has use for one."""
        for share in (LEAST_SHARE, 1.0 - LEAST_SHARE):
            asked = replace(self.timed(share), enough_joules=None)
            least = objectives.solve(self.costs.least, self.limits, asked)
            self.stopped |= least.was_interrupted
            if least.schedule is not None or least.status is Status.INFEASIBLE:
                break
        if least.status is Status.INFEASIBLE:
            self.none, self.proof = least.message or f"No choice has a plan {IN_ORDER}.", least.proof
        elif least.bound is not None:
            self._take_bound(least.bound, least.proof)
        self._improve(least.schedule, least)
        return least

    def _take_bound(self, bound: float, proof: str) -> None:
        """``bound`` of the least of all units, and with what first runs take more on any choice of them.

        Beside background transfers these may take as long, and what both add is not their sum.
        """
        if bound > self.least:
            self.least, self.proof = bound, proof or PROVEN
        matrix = self._program(None, by_time=self.by_time)[1]
        if self.options.objective not in (Objective.ENERGY, Objective.TIME) or not len(matrix.costs):
            return
        before = self._once(self.costs.least) if self.problem.background_storage else self.least
        more = minimise(matrix, seconds=self._program_seconds(), clock=self.options.clock).bound
        if math.isfinite(more):
            self.least = max(self.least, before + more)

    def _relax(self) -> None:
        """Bounds for all choices, and some to plan with, by the windows relaxation with unit columns."""
        problem = objectives.priced(self.problem, Objective.TIME) if self.by_time else self.problem
        costs, clock, moments = UnitCosts(problem), self.options.clock, frozenset[int]()
        instance, base = (
            instance_of(permitted(costs.least, self.limits), self.limits),
            self._once(costs.least),
        )
        while not self.is_enough and self.left():
            seconds = self.seconds(0.5)
            bound = bound_overhead(instance, seconds=seconds, moments=moments, clock=clock, units=costs)
            relaxation, columns = bound.relaxation, bound.relaxation.units
            if self.least < base + bound.overhead_joules < math.inf:
                self.least, self.proof = base + bound.overhead_joules, PROVEN
            effort = Effort(self.seconds(0.5), absolute_joules=1e-7 * base, clock=clock)
            outcome = run_engine(self.engine, relaxation.program.matrix(), effort)
            self.stopped |= outcome.interrupted
            if columns is None or outcome.values is None:
                return
            solved = replace(bound, answer=replace(bound.answer, values=np.array(outcome.values)))
            step, key = ExtractedStep(instance, solved), _key(columns.assignment(outcome.values))
            schedule = step.schedule()
            if schedule is not None:
                with contextlib.suppress(InvalidSchedule):
                    self.note(key, schedule, self.nothing(by="relaxation in whole numbers"))
            if key not in self.bounds:
                self.search(key, 0.2)
            claim = Claim(relaxation.program.matrix, self.engine, base + relaxation.fixed_joules)
            self._claim(claim, outcome)
            moments |= (more := step.over_capacity_moments(COUNTEREXAMPLES))
            if not more or not outcome.done:
                return

    def _claim(self, claim: Claim, outcome: Outcome) -> None:
        """Take the bound of one engine, confirmed by a second opinion where it closes the gap."""
        before, options = (self.least, self.proof), self.options
        bound = claim.fixed_joules + outcome.bound_joules
        if self.is_enough or not self.least < bound < math.inf:
            return
        self.least, self.proof = bound, f"{WORD_OF}{self.engine} alone, not proven independently"
        if not self.is_closed or not options.confirm or self.stopped:
            return
        seconds = min(10.0, max(1.0, options.clock.now() - self.started))
        effort, below = Effort(seconds, clock=options.clock), self.amount - self.allowed - claim.fixed_joules
        said = confirm(claim.program(), claim.engine, effort, proof_seconds=seconds / 2.0, below_joules=below)
        self.proof = said.words
        if said.confidence is Confidence.REFUTED:
            self.least, self.proof = before

    # --- units for a schedule ---

    def _improve(self, schedule: Schedule | None, like: Solution) -> None:
        """Keep ``schedule`` on the units that are best for it, where it is valid there."""
        best = None if schedule is None else self._best_for(schedule)
        if schedule is not None and best is not None:
            with contextlib.suppress(InvalidSchedule):
                self.note(best, schedule, like)

    def _best_for(self, schedule: Schedule | None, *, by_time: bool = False) -> Units | None:
        """The units on which ``schedule``, or running every op once, takes least inside the limits."""
        program, matrix = self._program(schedule, by_time=by_time or self.by_time)
        effort = Effort(self._program_seconds(), clock=self.options.clock)
        outcome = run_engine(self.engine, matrix, effort)
        self.stopped |= outcome.interrupted
        return None if outcome.values is None else _key(program.assignment(outcome.values))

    def _program(self, schedule: Schedule | None, *, by_time: bool) -> tuple[UnitColumns, Matrix]:
        """Of the units that take least where ops run as often as in ``schedule``, or once."""
        least, runs = self.costs.least, Counter[str]()
        seconds, joules = least.compute_seconds, least.compute_joules
        if schedule is not None:
            runs.update(step.op for step in schedule if isinstance(step, Compute))
            trace = simulate(least, schedule)
            seconds, joules = trace.seconds, trace.joules
        columns = UnitColumns(self.costs, MatrixBuilder(), by_time=by_time)
        columns.add_first_runs([runs.get(op.name, 1) for op in self.problem.ops])
        for terms, limit, spent in (
            (columns.seconds, self.limits.deadline_seconds, seconds),
            (columns.joules, self.limits.joules_budget, joules),
        ):
            if limit is not None:
                columns.program.row(terms, limit * (1 + 1e-9) - spent)
        return columns, columns.program.matrix()

    def _program_seconds(self) -> float:
        return min(PROGRAM_SECONDS, max(0.1, self.left() / 10.0))

    # --- choices of units ---

    def _singles(self) -> Iterator[Units]:
        """Each unit alone, with what it does not run on the main one: no plan is to be worse than these."""
        for unit in ("", *(each.name for each in self.problem.units)):
            able = zip(self.problem.ops, self.costs.forms, strict=True)
            yield _key({op.name: unit for op, forms in able if unit and unit in forms})

    def _every(self) -> Iterator[Units]:
        for units in itertools.product(*self.costs.forms):
            yield _key({op.name: unit for op, unit in zip(self.problem.ops, units, strict=True) if unit})

    def decided(self, choice: Units) -> Problem:
        return on_units(self.problem, dict(choice))

    def named(self, choice: Units, schedule: Schedule) -> Schedule:
        return with_units(schedule, dict(choice))

    def solved(self, choice: Units, options: SolveOptions) -> Solution:
        found = objectives.solve(self.decided(choice), self.limits, options)
        self._improve(found.schedule, found)
        return found


def _key(assignment: Assignment) -> Units:
    return tuple(sorted(assignment.items()))
