"""The search where ops run on several units (`poet.problem.units`): which one each op is on, and how to plan.

RAM does not ask on which unit an op runs, so a schedule for one choice is one for all, at other costs. The
portfolio plans the problem in which no op takes more than on any unit: its bound holds for every choice. A
small program then gives the units that are best for the schedule found, which count as often as it runs each
op; with those, the portfolio plans again. Where a gap is left, few choices are searched one by one; of
many, the windows relaxation with the choice among its columns gives bounds, and choices to plan with.
"""

from __future__ import annotations

import itertools
import logging
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np

from poet.errors import InvalidSchedule
from poet.problem import Limits, Objective, Problem
from poet.problem.pins import permitted
from poet.problem.schedule import Compute, Schedule
from poet.problem.simulator import Trace, simulate
from poet.problem.solution import (
    PROVEN,
    WORD_OF,
    Solution,
    SolveOptions,
    Start,
    Status,
    amount_of,
    is_confirmed,
)
from poet.problem.units import Assignment, assigned_by, on_units, with_units, without_units
from poet.solvers.bounds.refinement import ExtractedStep
from poet.solvers.bounds.relaxation import bound_overhead
from poet.solvers.bounds.unit_columns import UnitColumns, UnitCosts
from poet.solvers.engines import Effort, choose_engine, run_engine
from poet.solvers.engines.program import MatrixBuilder
from poet.solvers.engines.proof import Confidence, confirm
from poet.solvers.instance.instance import instance_of
from poet.solvers.portfolio.state import Claim
from poet.solvers.search import objectives
from poet.solvers.search.messages import STOPPED, time_up_sentence
from poet.util.units import IN_ORDER

_log = logging.getLogger(__name__)

FEW_CHOICES = 64
"""All of so many are searched one by one; with 1, some small problems keep a gap that the relaxation has."""

MANY_CHOICES = 1024
"""Of so many, all after the relaxation; with less, problems of four ops on three units keep a gap."""

LEAST_SHARE = 0.3
"""Of the time, for the problem in which ops take the least of all units; with 0, many have no schedule."""

PLAN_SHARE = 0.6
"""Of the time that is then left, to plan with units that are best for its schedule, and with each alone."""

PROGRAM_SECONDS = 5.0
"""For one program of the units of a schedule, and a tenth of the time at most."""

COUNTEREXAMPLES = 8
"""Moments that go on the grids of the relaxation at once."""

_Key = tuple[tuple[str, str], ...]
"""An assignment that can be looked up."""

_OTHER_UNITS = f"No plan {IN_ORDER} costs less on the same units; with others one may."


def solve(problem: Problem, limits: Limits, options: SolveOptions) -> Solution:
    """`poet.solvers.search.objectives.solve` over all choices of units; its schedule names them.

    Ctrl-C ends the search and keeps the best plan.

    Raises:
        InputError: the engine named in ``options`` is not available, or pins ask for what is not there.
    """
    if not problem.chooses_units:
        return objectives.solve(problem, limits, options)
    permitted(problem, limits)
    search = _Search(problem, limits, options)
    try:
        search.run()
        search.confirm()
    except KeyboardInterrupt:  # between searches of single choices, which hear it themselves
        search.stopped = True
    return search.answer()


class _Search:
    """One search over units.

    Attributes:
        best: the plan that takes least of the objective, then of energy; ``None``: none so far.
        bound: of the objective, what no plan takes less than; ``proof``: who says so.
        searched: by choice, what no plan on those units takes less than.
        none: why there is no plan on any units.
    """

    def __init__(self, problem: Problem, limits: Limits, options: SolveOptions) -> None:
        self.problem, self.limits, self.options = problem, limits, options
        self.started, self.left = options.clock.now(), objectives.seconds_left(options)
        self.engine = choose_engine(options.engine, threads=1, clock=options.clock)
        self.engine = "highs" if "+" in self.engine else self.engine
        self.by_time = options.objective is Objective.TIME
        self.costs = UnitCosts(problem)
        self.best: Solution | None = None
        self.template: Solution | None = None
        self.bound, self.proof = -math.inf, PROVEN
        self.searched: dict[_Key, float] = {}
        self.none, self.stopped = "", False
        self.claim: Claim | None = None
        self._word = f"{WORD_OF}{self.engine} alone, not proven independently"

    def run(self) -> None:
        self._begin()
        least = objectives.solve(self.costs.least, self.limits, self._options(LEAST_SHARE))
        self.template, self.stopped = least, least.was_interrupted
        self._take_bound(math.inf if least.status is Status.INFEASIBLE else least.bound, least.proof)
        if least.status is Status.INFEASIBLE:
            self.none = least.message
            return
        if least.schedule is None:  # any choice has use for one
            least = objectives.solve(self.costs.least, self.limits, self._options(1.0 - LEAST_SHARE))
            self.stopped |= least.was_interrupted
            self._take_bound(least.bound, least.proof)
        self._take(least.schedule, least.solver, self._best_for(least.schedule))
        if self._is_over():
            return
        if self._count() <= FEW_CHOICES:
            self._search_all()
            return
        firsts = [self._best_for(least.schedule), self._best_for(None), self._fastest(), *self._singles()]
        for number, first in enumerate(firsts):
            if first is not None and _key(first) not in self.searched:
                self._plan(first, PLAN_SHARE / (len(firsts) - number))
        if self.options.objective in (Objective.ENERGY, Objective.TIME) and not self._is_over():
            self._relax()
        if self._count() <= MANY_CHOICES:
            self._search_all()
        elif self.best is not None and not self._is_over():
            self._plan(self._units_of(self.best), 1.0)

    # --- plans ---

    def _begin(self) -> None:
        start = self.options.start
        if start.schedule is not None:
            try:
                schedule, own = without_units(start.schedule), assigned_by(self.problem, start.schedule)
                self._take(schedule, start.by, own)
                self._take(schedule, start.by, self._best_for(schedule))
            except InvalidSchedule:
                _log.info("the plan to start from is of another problem or outside the limits")

    def _units_of(self, solution: Solution) -> dict[str, str]:
        return assigned_by(self.problem, solution.schedule or ())

    def _take(self, schedule: Schedule | None, by: str, assignment: Assignment | None) -> None:
        """Keep ``schedule`` on the units of ``assignment`` if it is valid and the best."""
        if schedule is None or assignment is None:
            return
        named = with_units(schedule, assignment)
        try:
            trace = simulate(self.problem, named, self.limits)
        except InvalidSchedule as verdict:
            _log.info("a schedule on other units is passed over: %s", verdict)
            return
        known = None if self.best is None else self.best.trace
        if known is not None and self._rank(trace) >= self._rank(known):
            return
        template = self.template or self._nothing()
        self.best = replace(template, schedule=named, trace=trace, solver=by)
        if self.options.progress is not None:
            amount, bound = self._rank(trace)[0], max(self.bound, 0.0)
            gap = max(0.0, amount - bound) / max(amount, 1e-300)
            self.options.progress(amount, bound, gap, self.options.clock.now() - self.started)

    def _rank(self, trace: Trace) -> tuple[float, float]:
        return amount_of(self.options.objective, trace), trace.joules

    def _plan(self, assignment: Assignment | None, share: float) -> str:
        """Have the portfolio plan on these units, then take the units that are best for its schedule.

        Returns:
            who proves what it says of these units; empty: nobody.
        """
        if assignment is None or self._is_over():
            return ""
        start = Start()
        if self.best is not None:
            start = Start(without_units(self.best.schedule or ()), self.best.solver)
        options = replace(self._options(share), start=start)
        found = objectives.solve(on_units(self.problem, assignment), self.limits, options)
        self.stopped |= found.was_interrupted
        bound = math.inf if found.status is Status.INFEASIBLE else found.bound
        if bound is not None:
            self.searched[_key(assignment)] = bound
        self._take(found.schedule, found.solver, assignment)
        self._take(found.schedule, found.solver, self._best_for(found.schedule))
        return found.proof

    def _options(self, share: float) -> SolveOptions:
        left = self.left()
        limit = (
            None
            if math.isinf(left) and share == 1.0
            else share * min(left, 60.0 if math.isinf(left) else left)
        )
        return replace(
            self.options, time_limit_seconds=limit, start=Start(), progress=None, enough_joules=None
        )

    # --- units for a schedule ---

    def _best_for(self, schedule: Schedule | None) -> dict[str, str] | None:
        """The units on which ``schedule``, or running every op once, takes least inside the limits."""
        trace, runs = None, Counter[str]()
        if schedule is not None:
            runs.update(step.op for step in schedule if isinstance(step, Compute))
            trace = simulate(self.costs.least, without_units(schedule))
        return self._chosen(runs, trace, by_time=self.by_time)

    def _singles(self) -> Iterator[dict[str, str]]:
        """Each unit alone, with what it does not run on the main one: no plan is to be worse than these."""
        for unit in ("", *(each.name for each in self.problem.units)):
            able = zip(self.problem.ops, self.costs.forms, strict=True)
            yield {op.name: unit for op, forms in able if unit and unit in forms}

    def _fastest(self) -> dict[str, str] | None:
        return self._chosen(Counter(), None, by_time=True)

    def _chosen(
        self, runs: Mapping[str, int], trace: Trace | None, *, by_time: bool
    ) -> dict[str, str] | None:
        """The units that take least where ops run so often; ``trace``: at least, of all else."""
        least, program = self.costs.least, MatrixBuilder()
        columns = UnitColumns(self.costs, program, by_time=by_time)
        columns.add_first_runs([runs.get(op.name, 1) for op in self.problem.ops])
        seconds = least.compute_seconds if trace is None else trace.seconds
        joules = least.compute_joules if trace is None else trace.joules
        for terms, limit, spent in (
            (columns.seconds, self.limits.deadline_seconds, seconds),
            (columns.joules, self.limits.joules_budget, joules),
        ):
            if limit is not None:
                program.row(terms, limit * (1 + 1e-9) - spent)
        seconds_left = min(PROGRAM_SECONDS, max(0.1, self.left() / 10.0))
        outcome = run_engine(self.engine, program.matrix(), Effort(seconds_left, clock=self.options.clock))
        self.stopped |= outcome.interrupted
        if trace is None and outcome.done and not by_time and self.options.objective is Objective.ENERGY:
            claim = Claim(program.matrix, self.engine, least.compute_joules)
            self._take_bound(claim.fixed_joules + outcome.bound_joules, self._word, claim)
        return None if outcome.values is None else columns.assignment(outcome.values)

    # --- bounds ---

    def _take_bound(self, bound: float | None, proof: str, claim: Claim | None = None) -> None:
        """``claim``: of the engine whose bound it is, to be confirmed where it closes the gap."""
        if bound is not None and bound > self.bound:
            self.bound, self.proof, self.claim = bound, proof or PROVEN, claim

    def confirm(self) -> None:
        """A second opinion on the bound of an engine that closes the gap."""
        claim, amount = self.claim, self._amount()
        if claim is None or not self._closed() or not self.options.confirm or self.stopped:
            return
        seconds = min(10.0, max(1.0, self.options.clock.now() - self.started))
        effort = Effort(seconds, clock=self.options.clock)
        below = amount - self._allowed() - claim.fixed_joules
        said = confirm(claim.program(), claim.engine, effort, proof_seconds=seconds / 2.0, below_joules=below)
        self.proof = said.words
        if said.confidence is Confidence.REFUTED:
            self.bound, self.proof = self.costs.least.compute_joules, ""

    def _count(self) -> int:
        return math.prod(len(forms) for forms in self.costs.forms)

    def _once(self, assignment: Assignment) -> float:
        """What running every op once takes on these units, of energy or time; else nothing is known."""
        problem = on_units(self.problem, assignment)
        if self.options.objective is Objective.ENERGY:
            return problem.compute_joules
        return problem.compute_seconds if self.by_time else -math.inf

    def _choices(self) -> Iterator[dict[str, str]]:
        names = [op.name for op in self.problem.ops]
        for units in itertools.product(*self.costs.forms):
            yield {name: unit for name, unit in zip(names, units, strict=True) if unit}

    def _search_all(self) -> None:
        """Every choice, the cheapest for running every op once first, but those that cannot be better."""
        once = {_key(each): self._once(each) for each in self._choices()}
        weakest = PROVEN
        for _ in range(2):
            waiting = [key for key in once if self._least_of(key, once) < self._amount()]
            for number, key in enumerate(sorted(waiting, key=once.__getitem__)):
                if self._least_of(key, once) < self._amount() and not self._is_over():
                    proof = self._plan(dict(key), 1.0 / (len(waiting) - number))
                    weakest = proof if proof and not is_confirmed(proof) else weakest
        bound = min(self._least_of(key, once) for key in once)
        if self.best is None and bound == math.inf:
            self.none = f"On no choice of units there is a plan {IN_ORDER}."
        self._take_bound(min(bound, self._amount()), weakest)

    def _least_of(self, key: _Key, once: Mapping[_Key, float]) -> float:
        return max(once[key], self.searched.get(key, -math.inf))

    def _relax(self) -> None:
        """Bounds for all choices, and choices to plan with, by the windows relaxation with unit columns."""
        costs, problem = self.costs, self.problem
        if self.by_time:
            problem = objectives.priced(problem, Objective.TIME)
            costs = UnitCosts(problem)
        instance = instance_of(permitted(costs.least, self.limits), self.limits)
        base, moments = costs.least.compute_joules, frozenset[int]()
        while not self._is_over():
            bound = bound_overhead(
                instance, seconds=self.left() / 2.0, moments=moments, clock=self.options.clock, units=costs
            )
            if math.isfinite(bound.overhead_joules):
                self._take_bound(base + bound.overhead_joules, PROVEN)
            relaxation, matrix = bound.relaxation, bound.relaxation.program.matrix()
            effort = Effort(
                None if math.isinf(self.left()) else self.left() / 2.0,
                absolute_joules=1e-7 * base,
                clock=self.options.clock,
            )
            outcome = run_engine(self.engine, matrix, effort)
            self.stopped |= outcome.interrupted
            claim = Claim(relaxation.program.matrix, self.engine, base + relaxation.fixed_joules)
            self._take_bound(claim.fixed_joules + outcome.bound_joules, self._word, claim)
            if outcome.values is None or relaxation.units is None:
                return
            solved = replace(bound, answer=replace(bound.answer, values=np.array(outcome.values)))
            step, assignment = ExtractedStep(instance, solved), relaxation.units.assignment(outcome.values)
            schedule = step.schedule()
            self._take(schedule, "relaxation in whole numbers", assignment)
            if _key(assignment) not in self.searched and not self._is_over():
                self._plan(assignment, 0.2)
            more = step.over_capacity_moments(COUNTEREXAMPLES)
            if not more or not outcome.done:
                return
            moments |= more

    # --- the answer ---

    def _amount(self) -> float:
        if self.best is None or self.best.trace is None:
            return math.inf
        return self._rank(self.best.trace)[0]

    def _allowed(self) -> float:
        amount = self._amount()
        if self.options.objective is Objective.ENERGY:
            return self.options.allowed_gap_joules(amount, self.costs.least.compute_joules)
        return (self.options.relative_gap if self.by_time else 1e-9) * amount

    def _is_over(self) -> bool:
        amount, enough = self._amount(), self.options.enough_joules
        is_enough = enough is not None and self.options.objective is Objective.ENERGY and amount <= enough
        return self.stopped or is_enough or self._closed() or self.left() <= 0.0

    def _closed(self) -> bool:
        amount = self._amount()
        return math.isfinite(amount) and amount - self.bound <= self._allowed()

    def _nothing(self) -> Solution:
        objective = self.options.objective
        return Solution(
            Status.TIMEOUT,
            None,
            None,
            0.0,
            self.problem.compute_joules,
            0.0,
            self.engine,
            objective=objective,
        )

    def answer(self) -> Solution:
        """The best plan, for all units."""
        options, amount = self.options, self._amount()
        is_energy, once = options.objective is Objective.ENERGY, self.problem.compute_joules
        found, bound = self.best or self.template or self._nothing(), min(self.bound, amount)
        status, message, proof = Status.FEASIBLE, _OTHER_UNITS, ""
        if self.best is None:
            found = replace(found, schedule=None, trace=None)
            status, message = Status.TIMEOUT, "No plan was found on the units that were tried."
            if self.none:
                status, message, proof = Status.INFEASIBLE, self.none, self.proof
        elif self._closed():
            status, message, proof = Status.OPTIMAL, "", self.proof
        elif self.left() <= 0.0:
            seconds = options.clock.now() - self.started
            message = time_up_sentence(self.engine, plan_seconds=seconds, bound_seconds=seconds)
        return replace(
            found,
            status=status,
            bound_joules=max(once, bound) if is_energy else once,
            objective_bound=None if is_energy else bound,
            baseline_joules=once,
            solve_seconds=options.clock.now() - self.started,
            message=STOPPED if self.stopped and status is not Status.OPTIMAL else message,
            proof=proof,
            was_interrupted=self.stopped,
            objective=options.objective,
        )


def _key(assignment: Assignment) -> _Key:
    return tuple(sorted(assignment.items()))
