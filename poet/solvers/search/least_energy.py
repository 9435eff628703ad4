"""The search: an incumbent at once, then relaxed models for the bound and exact ones for the plan.

Every schedule is judged by the simulator before it counts, and every bound is checked against the
judged joules. What an engine calls optimal is only repeated where the judge and a bound for the whole
problem confirm it. Infeasible is what the lower bound on RAM or time says by arithmetic, or what the
relaxed model has no solution for, if greedy plans found none either.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from poet.problem import Limits, Problem
from poet.schedule import Schedule
from poet.solution import ClassBound, Solution, SolveOptions, Status
from poet.solvers.engines import Effort, Outcome, available_engines, choose_engine, run_engine
from poet.solvers.engines.confirm import Confidence, Confirmation, confirm
from poet.solvers.event_model.emit import schedule_of
from poet.solvers.event_model.model import Model, build, matrix_of
from poet.solvers.event_model.start import values_of
from poet.solvers.heuristics.greedy import greedy
from poet.solvers.instance.candidates import candidates, fullest
from poet.solvers.instance.context import Conduct
from poet.solvers.instance.incumbent import Incumbent
from poet.solvers.instance.instance import Metered, instance_of
from poet.solvers.instance.timeline import timeline_of
from poet.solvers.search.best_bound import BestBound, refutes
from poet.solvers.search.bound_rounds import Looks
from poet.solvers.search.finders import GREEDY, model_by
from poet.solvers.search.large import search_widely
from poet.solvers.search.messages import (
    conflict_sentence,
    impossible_sentence,
    no_plan_sentence,
    nothing_left_sentence,
    time_up_sentence,
)
from poet.solvers.search.slots_of_plans import merged, reruns_of, suggested

_CHAINS = (3, 8, 8, 8, 16, 16)  # per round, the reruns offered, at most, on the way to one content
_LARGE_TASKS = 400  # above, models are made of few reruns, and plans improved part by part
_SMALL_TASKS = 16  # up to here every rerun is offered in every stage, several times
_SIZEABLE_TASKS = 200  # above, the same is tried after the first round, if the gap is sizeable
_SIZEABLE_GAP = 0.02  # of the overhead
_WIDE_SHARE = 0.5  # of the time left, for that
_GREEDY_SECONDS = (2.0, 1.0)  # of small and of large steps; the plans tried on small ones take less
_SHARE = 0.25  # of the time left that one model may take
_LEAST_SECONDS = 0.01  # of it, where no time is left
_CONFIRM_SECONDS = 2.0  # that a second opinion may take even where the search took less
_FIRST_SHARE = 0.4  # of that for HiGHS, where CP-SAT comes second


def solve(
    problem: Problem,
    limits: Limits | None = None,
    options: SolveOptions | None = None,
    *,
    metered: Metered | None = None,
) -> Solution:
    """The plan of ``problem`` of least energy inside ``limits`` that the time allows, with a bound.

    First runs keep the listed order. Ctrl-C ends the search and keeps the best plan. Other objectives
    and the energy budget are `poet.solvers.search.objectives`'s to translate.

    Raises:
        InputError: the engine asked for is not available.
    """
    search = _Search(problem, limits or Limits(), options or SolveOptions(), metered)
    try:
        return search.run()
    except KeyboardInterrupt:
        search.stopped = True
        return search.solution("Stopped by the user.")


class _Search:
    """The best plan and the best bound so far."""

    def __init__(
        self, problem: Problem, limits: Limits, options: SolveOptions, metered: Metered | None
    ) -> None:
        self.problem, self.limits, self.options = problem, limits, options
        self.clock, self.started = options.clock, options.clock.now()
        self.engine = choose_engine(options.engine, threads=options.threads, clock=options.clock)
        self.instance = instance_of(problem, limits, metered=metered)
        # in time even if nothing overlaps
        self.serial = instance_of(problem, limits, serial=True, metered=metered)
        self.baseline_joules = problem.compute_joules
        self.best = Incumbent(problem, self.limits, metered, thorough=True, clock=self.clock)
        self.bound = BestBound[Model](self.baseline_joules, self.clock)
        self.class_bound: ClassBound | None = None
        self.empty_model: Model | None = None  # that an engine says has no solution
        self.refuted_by = ""  # the bound, after it had closed the gap
        self.stopped = False

    # --- the order of things ---

    def run(self) -> Solution:
        impossible = impossible_sentence(self.problem, self.limits)
        if impossible:
            return self._infeasible(impossible, Confirmation(Confidence.EXACT).words)
        self._start()
        if self._search() and self.best.trace is None:
            confirmation = self._confirmed_empty()
            if self.best.trace is None and confirmation.confidence is not Confidence.REFUTED:
                message = conflict_sentence(self.problem, self.limits, confirmation)
                return self._infeasible(message, confirmation.words)
        if self.stopped:
            return self.solution("Stopped by the user.")
        return self.solution("", self._confirmed_bound())

    def _start(self) -> None:
        if self.options.start is not None:
            self._consider(self.options.start, self.options.start_by, is_ours=False)
        large = len(self.instance.tasks) > _LARGE_TASKS
        allowed = min(_GREEDY_SECONDS[large], 0.25 * self._seconds_left())
        schedule = greedy(
            self.problem,
            self.limits,
            seconds=allowed,
            most_seconds=self._seconds_left(),
            seed=self.options.seed,
            clock=self.clock,
        )
        if schedule is not None:
            self._consider(schedule, GREEDY)
            self._report()

    def _search(self) -> bool:
        """Models of all kinds; true if one shows that there is no plan at all."""
        if len(self.instance.tasks) > _LARGE_TASKS:
            return not self._search_widely(1.0)
        pays = _SMALL_TASKS < len(self.instance.tasks) <= _SIZEABLE_TASKS
        with Looks(self.instance, self._conduct(), pays=pays) as looks:
            if self._search_in_rounds(looks):
                return True
        if len(self.instance.tasks) > _SMALL_TASKS or self._finished():
            return False
        return self._search_all_reruns()

    def _search_in_rounds(self, looks: Looks) -> bool:
        """Relaxed and exact models in turn; true if one shows that there is no plan at all.

        Each relaxed plan names what it would remake. The exact model is offered the reruns that
        lead there, and so is the next relaxed model, which then can no longer pretend; nor that what
        it remade in the forward pass, at no slot, was held past the fullest stage at no cost.
        """
        offered: dict[int, tuple[int, ...]] = {}
        for number, chain in enumerate(_CHAINS):
            if self._finished():
                return False
            before = self.bound.joules
            model = build(timeline_of(self.instance, offered), relaxed=True)
            outcome = self._relax(model)
            if outcome.infeasible:
                return True
            if outcome.values is not None and not self._finished():
                looks.prepare()
                guide = suggested(model, outcome.values, chain=chain)
                self._solve_exactly(merged(guide, self._own_reruns()))
                offered = merged(offered, guide, fullest(self.instance))
            if number == 0 and self._far_off() and not self._search_widely(_WIDE_SHARE):
                return True
            self._look_out(looks, number, before)
        return False

    def _search_all_reruns(self) -> bool:
        """Models that are offered every rerun in every stage; true if there is no plan at all."""
        everything = build(timeline_of(self.instance, candidates(self.instance, None)), relaxed=True)
        if self._run(everything, bounding=True).infeasible:
            return True
        for passes in (1, 2, 3):
            if self._finished():
                break
            self._solve_exactly(candidates(self.instance, None, passes=passes))
        return False

    def _look_out(self, looks: Looks, number: int, before: float) -> None:
        """Relaxations in whole numbers for some of the time left.

        Args:
            looks: of this search.
            number: of the round that they come after.
            before: the best bound in joules before that round.
        """
        if not looks.pays or self.best.trace is None or self._finished():
            return
        if number == 0:
            looks.short(self.clock.now() - self.started)
        else:
            above = (self.best.trace.joules, self.bound.joules, before)
            plan, bound, earlier = (joules - self.baseline_joules for joules in above)
            looks.long(plan, bound, bound - earlier)

    def _far_off(self) -> bool:
        """Whether whole models are too much for the engine: a sizeable problem, and a sizeable gap left."""
        if len(self.instance.tasks) <= _SIZEABLE_TASKS or self._finished():
            return False
        if self.best.trace is None:
            return True
        open_joules = self.best.trace.joules - self.bound.joules
        return open_joules > _SIZEABLE_GAP * (self.best.trace.joules - self.baseline_joules)

    def _search_widely(self, share: float) -> bool:
        """For large problems: linear bounds, and plans made better part by part; false if there is none.

        It may take ``share`` of the time that is left.
        """
        conduct = self._conduct((1.0 - share) * min(self._seconds_left(), 1e9))
        in_time = self.problem.background_storage and self.limits.deadline_seconds is not None
        instances = (self.instance, self.serial if in_time else self.instance)
        return search_widely(self.problem, self.limits, instances, self.best.schedule, conduct)

    def _conduct(self, kept_seconds: float = 0.0) -> Conduct:
        """For a part of the search, which must leave ``kept_seconds`` to others."""

        def found(schedule: Schedule, found_by: str) -> None:
            self._consider(schedule, found_by)
            self._report()

        def bounded(overhead: float, proven: bool) -> bool:
            joules, trace = self.baseline_joules + overhead, self.best.trace
            believed = proven or trace is None or not refutes(trace.joules, joules)
            if believed:
                self.bound.take(overhead, proven=proven)
            self._report()
            return believed

        def classed(overhead: float, reruns: int) -> None:
            self.class_bound = ClassBound(self.baseline_joules + overhead, reruns)

        return Conduct(
            seconds_left=lambda: self._seconds_left() - kept_seconds,
            finished=lambda: self._finished() or self._seconds_left() <= kept_seconds,
            found=found,
            bounded=bounded,
            classed=classed,
            threads=self.options.threads,
            seed=self.options.seed,
            clock=self.clock,
        )

    def _own_reruns(self) -> dict[int, set[int]]:
        return {} if self.best.schedule is None else reruns_of(self.instance, self.best.schedule)

    def _solve_exactly(self, offered: dict[int, tuple[int, ...]]) -> None:
        """The best plan that only reruns what is offered."""
        self._run(build(timeline_of(self.instance, offered)), bounding=False)
        if self._finished():
            return
        if self.problem.background_storage and self.limits.deadline_seconds is not None:
            self._run(build(timeline_of(self.serial, offered)), bounding=False)

    def _relax(self, model: Model) -> Outcome:
        """A relaxed model; where HiGHS leaves it open CP-SAT has a go, which learns from dead ends."""
        seconds = self._model_seconds()
        second = (
            self.options.engine == "auto" and self.engine == "highs" and "cpsat" in available_engines()
        ) and not model.held
        if not second or seconds is None:
            return self._run(model, bounding=True)
        outcome = self._run(model, bounding=True, seconds=_FIRST_SHARE * seconds)
        if outcome.done or outcome.infeasible or self._finished():
            return outcome
        again = self._run(model, bounding=True, engine="cpsat")
        return again if again.values is not None or again.infeasible else outcome

    def _run(
        self, model: Model, *, bounding: bool, engine: str | None = None, seconds: float | None = None
    ) -> Outcome:
        """One model through an engine; takes over its plans and, if it is relaxed, its bound."""
        engine, seconds = engine or self.engine, seconds or self._model_seconds()
        start = None if self.best.schedule is None else values_of(model, self.best.schedule)

        def watch(values: Sequence[float] | None, bound: float) -> bool:
            if values is not None:
                self._consider(schedule_of(model, values), model_by(engine), is_ours=not bounding)
            if bounding:
                self.bound.take(bound, model)
            self._report()
            return self._enough()

        outcome = run_engine(engine, matrix_of(model, start), self._effort(seconds), watcher=watch)
        if outcome.values is not None:
            self._consider(schedule_of(model, outcome.values), model_by(engine), is_ours=not bounding)
        if outcome.infeasible:
            self.empty_model = model
        elif bounding:
            self.bound.take(outcome.bound_joules, model)
        self._report()
        self.stopped = self.stopped or outcome.interrupted
        return outcome

    def _effort(self, seconds: float | None, most_seconds: float | None = None) -> Effort:
        """For an engine; ``most_seconds`` not given: all that is left."""
        return Effort(
            seconds=seconds,
            threads=self.options.threads,
            seed=self.options.seed,
            absolute_joules=self._engine_gap_joules(),
            relative=0.0,
            most_seconds=self._seconds_left() if most_seconds is None else most_seconds,
            clock=self.clock,
        )

    def _consider(self, schedule: Schedule, found_by: str, *, is_ours: bool = True) -> None:
        """Judge a plan; a good one may refute what an engine said.

        Not ours, in the sense that the judge should accept it, are the caller's and those of relaxed models.
        """
        self.best.consider(schedule, found_by, is_ours=is_ours)
        if self.best.trace is not None:
            self.bound.meet(self.best.trace.joules)

    def _confirmed_empty(self) -> Confirmation:
        """Who else says that the model without a solution has none."""
        if self.empty_model is None:  # prices of a linear program say so, summed up by us
            return Confirmation(Confidence.EXACT)
        return self._confirm(self.empty_model, None)

    def _confirmed_bound(self) -> str:
        """Who stands behind the bound of an optimal plan; empty where the plan is not proven optimal."""
        if self.best.trace is None or not self._closed(self.bound.joules):
            return ""
        if self.bound.alone:
            return Confirmation(Confidence.ALONE, ("highs",)).words
        model = self.bound.model
        if model is None:
            return Confirmation(Confidence.EXACT).words
        if not self.options.confirm:
            return Confirmation(Confidence.ALONE, (self.engine,)).words
        joules = self.best.trace.joules
        allowed = joules - self.options.allowed_gap_joules(joules, self.baseline_joules)
        confirmation = self._confirm(model, allowed - self.baseline_joules)
        if confirmation.confidence is Confidence.REFUTED:
            self.refuted_by = confirmation.words
            self.bound.forget()
        return confirmation.words

    def _confirm(self, model: Model, below: float | None) -> Confirmation:
        """A second opinion, in about the time that the search has taken; what refutes it is judged."""
        spent_seconds, left_seconds = self.clock.now() - self.started, self._seconds_left()
        if left_seconds <= 0.0:
            return Confirmation(Confidence.ALONE, (self.engine,))
        proof_seconds = min(max(0.1 * spent_seconds, 0.1), 1.0, 0.5 * left_seconds)
        second_seconds = min(max(spent_seconds, _CONFIRM_SECONDS), left_seconds - proof_seconds)
        confirmation = confirm(
            matrix_of(model),
            self.engine,
            self._effort(second_seconds, left_seconds - proof_seconds),
            proof_seconds=proof_seconds,
            below_joules=below,
        )
        if confirmation.values is not None:
            found_by = model_by(confirmation.engines[-1])
            self._consider(schedule_of(model, confirmation.values), found_by, is_ours=False)
        return confirmation

    def _engine_gap_joules(self) -> float:
        """At which an engine may stop: a part of the gap that the best plan will be allowed."""
        return 0.3 * self.options.allowed_gap_joules(self.bound.joules, self.baseline_joules)

    def _closed(self, bound_joules: float) -> bool:
        """Whether the best plan is within both gaps of ``bound_joules``."""
        if self.best.trace is None:
            return False
        joules = self.best.trace.joules
        return joules - bound_joules <= self.options.allowed_gap_joules(joules, self.baseline_joules)

    def _enough(self) -> bool:
        """Whether nothing is left to find, or nothing that was asked for."""
        enough = self.options.enough_joules
        if enough is not None and (self.best.trace is not None and self.best.trace.joules <= enough):
            return True
        return self._closed(self.bound.joules) or (enough is not None and self.bound.joules > enough)

    def _finished(self) -> bool:
        return self.stopped or self._enough() or self._seconds_left() <= 0.0

    def _seconds_left(self) -> float:
        limit = self.options.time_limit_seconds
        if limit is None:
            return math.inf
        spare_seconds = self.options.spare_seconds if self.best.trace is None else 0.0
        return limit - spare_seconds - (self.clock.now() - self.started)

    def _model_seconds(self) -> float | None:
        """What one model may take; ``None``: any time."""
        seconds = self._seconds_left()
        return None if math.isinf(seconds) else max(seconds * _SHARE, min(seconds, 1.0), _LEAST_SECONDS)

    def _report(self) -> None:
        if self.options.progress is None:
            return
        joules = None if self.best.trace is None else self.best.trace.joules
        gap = None if joules is None else max(0.0, joules - self.bound.joules) / joules if joules else 0.0
        self.options.progress(joules, self.bound.joules, gap, self.clock.now() - self.started)

    # --- answers ---

    def solution(self, message: str, proof: str = "") -> Solution:
        """What is known now."""
        if self.best.trace is None:
            status = Status.TIMEOUT
            in_time = self._seconds_left() > 0.0
            message = message or no_plan_sentence(self.problem, self.limits, in_time=in_time)
        else:
            status = Status.OPTIMAL if self._closed(self.bound.joules) else Status.FEASIBLE
            if status is Status.FEASIBLE:
                message = message or self._open_gap_sentence()
        bound = (
            self.bound.joules if self.best.trace is None else min(self.bound.joules, self.best.trace.joules)
        )
        return Solution(
            status=status,
            schedule=self.best.schedule,
            trace=self.best.trace,
            bound_joules=bound,
            baseline_joules=self.baseline_joules,
            solve_seconds=self.clock.now() - self.started,
            solver=model_by(self.engine) if self.best.trace is None else self.best.found_by,
            message=message,
            proof=proof,
            class_bound=self.class_bound,
            was_interrupted=self.stopped,
        )

    def _open_gap_sentence(self) -> str:
        """Why the search did not close the gap; empty where a plan that is good enough was asked for."""
        plan_seconds, bound_seconds = self.best.found_after_seconds, self.bound.after_seconds
        if self.refuted_by:
            return f"{self.refuted_by[0].upper()}{self.refuted_by[1:]}: the gap is open again."
        if self._seconds_left() <= 0.0:
            return time_up_sentence(self.engine, plan_seconds=plan_seconds, bound_seconds=bound_seconds)
        if self._enough():
            return ""
        return nothing_left_sentence(plan_seconds=plan_seconds, bound_seconds=bound_seconds)

    def _infeasible(self, message: str, proof: str) -> Solution:
        self.best.forget()
        return dataclasses.replace(self.solution(message, proof), status=Status.INFEASIBLE)
