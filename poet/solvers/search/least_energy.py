"""The search for least energy: greedy plans at once, then relaxed models for bounds and exact ones for plans.

Every schedule is judged by the simulator before it counts, and every bound is checked against the judged
joules. "Optimal" is reported only if the simulator accepts the plan and a bound for the whole problem
matches it. "Infeasible" is reported only if a lower bound on RAM or time shows it by arithmetic, or if
the relaxed model has no solution and no plan was found.
"""

from __future__ import annotations

import dataclasses
import logging
import math
from collections.abc import Iterator, Sequence

from poet import codec
from poet.problem import Limits, Problem
from poet.schedule import Schedule
from poet.solution import ClassBound, Solution, SolveOptions, Status
from poet.solvers.bounds.copies import CopiesBound, copies_bounds
from poet.solvers.bounds.state_search import state_bounds
from poet.solvers.engines import Effort, Outcome, available_engines, choose_engine, run_engine
from poet.solvers.engines.confirm import Confidence, Confirmation, confirm
from poet.solvers.event_model.emit import schedule_of
from poet.solvers.event_model.model import EventModel, build, matrix_of
from poet.solvers.event_model.start import values_of
from poet.solvers.heuristics.greedy import greedy
from poet.solvers.instance.candidates import candidates, fullest
from poet.solvers.instance.context import Conduct
from poet.solvers.instance.incumbent import Incumbent
from poet.solvers.instance.instance import Metered, instance_of
from poet.solvers.instance.timeline import timeline_of
from poet.solvers.search.after_rounds import Ways, go_on
from poet.solvers.search.best_bound import BestBound, refutes
from poet.solvers.search.bound_rounds import BoundRounds
from poet.solvers.search.finders import (
    COPIES,
    EVERY_OP_ONCE,
    GREEDY,
    LINEAR,
    STATES,
    WHOLE,
    model_by,
    relaxed_by,
)
from poet.solvers.search.large import search_large
from poet.solvers.search.messages import (
    conflict_sentence,
    impossible_sentence,
    no_plan_sentence,
    time_up_sentence,
)
from poet.solvers.search.recorder import Recorder
from poet.solvers.search.slots_of_plans import followed_by, merged, reruns_of, suggested

_log = logging.getLogger(__name__)


def solve(
    problem: Problem,
    limits: Limits | None = None,
    options: SolveOptions | None = None,
    *,
    metered: Metered | None = None,
) -> Solution:
    """The plan of ``problem`` of least energy inside ``limits`` that the time allows, with a bound.

    First runs keep the listed order. Ctrl-C ends the search and keeps the best plan. Other objectives and the
    energy budget are reduced to this search by `poet.solvers.search.objectives`.

    Raises:
        InputError: the engine named in ``options`` is not available.
    """
    search = _Search(problem, limits or Limits(), options or SolveOptions(), metered)
    try:
        return search.run()
    except KeyboardInterrupt:
        search.stopped = True
        return search.solution("Stopped by the user.")


@dataclasses.dataclass(frozen=True, slots=True)
class _Claim:
    """A relaxed model of which an engine said that it has no solution, or none below a bound.

    Attributes:
        model: that was solved.
        engine: whose word it is; a second opinion is another's.
    """

    model: EventModel
    engine: str


class _Search:
    """The state of one search: the best plan, the best bound, and what proves it."""

    def __init__(
        self, problem: Problem, limits: Limits, options: SolveOptions, metered: Metered | None
    ) -> None:
        self.problem, self.limits, self.options = problem, limits, options
        self.tuning = options.tuning.search
        self.clock, self.started = options.clock, options.clock.now()
        self.seed = self.options.seed
        self.recorder = Recorder(self.options.objective, clock=self.clock.now)
        self.phase = self.recorder.phase
        self.engine = choose_engine(options.engine, threads=options.threads, clock=options.clock)
        self.instance = instance_of(problem, limits, metered=metered, tuning=options.tuning)
        # in time even if nothing overlaps
        self.serial = (
            self.instance
            if self.instance.serial
            else instance_of(problem, limits, serial=True, metered=metered, tuning=options.tuning)
        )
        self.baseline_joules = problem.compute_joules
        self.best = Incumbent(
            problem,
            self.limits,
            metered,
            thorough=True,
            rejections=self.recorder.rejections,
            tuning=options.tuning,
            clock=self.clock,
        )
        self.bound = BestBound[_Claim](self.baseline_joules, self.clock)
        _log.info(
            "%s: %d ops, %d tensor versions, engine %s, seed %d, limits %s", problem.name,
            len(self.instance.tasks), len(self.instance.contents), self.engine, self.seed,
            codec.encode(self.limits),
        )  # fmt: skip
        self.recorder.bound(self.bound.joules, EVERY_OP_ONCE)
        self.class_bound: ClassBound | None = None
        self.empty: _Claim | None = None  # which has no solution by an engine's word
        self.refuted_by = ""  # the bound, after it had closed the gap
        self.stopped = False
        self.copies: Iterator[CopiesBound] | None = None
        self.offered: dict[int, tuple[int, ...]] = {}  # reruns that the next relaxed model knows, by stage

    # --- the order of things ---

    def run(self) -> Solution:
        impossible = impossible_sentence(self.problem, self.limits)
        if impossible:
            return self._infeasible(impossible, Confirmation(Confidence.EXACT).words)
        self._start()
        search = self._search
        while True:
            if search() and self.best.trace is None:
                confirmation = self._confirmed_empty()
                if self.best.trace is None and confirmation.confidence is not Confidence.REFUTED:
                    message = conflict_sentence(self.problem, self.limits, confirmation)
                    return self._infeasible(message, confirmation.words)
            if self.stopped:
                return self.solution("Stopped by the user.")
            proof = self._confirmed_bound()
            if self._finished():
                return self.solution("", proof)
            search = self._go_on  # an engine erred, and its word was refuted

    def _start(self) -> None:
        if self.options.start is not None:
            self._consider(self.options.start, self.options.start_by, is_ours=False)
        large = len(self.instance.tasks) > self.tuning.large_ops
        seconds = self.tuning.greedy_large_seconds if large else self.tuning.greedy_small_seconds
        allowed = min(seconds, self.tuning.greedy_share * self._seconds_left())

        def found(schedule: Schedule) -> None:
            self._consider(schedule, GREEDY)
            self._report()

        with self.phase("greedy plans"):
            schedule = greedy(
                self.problem,
                self.limits,
                seconds=allowed,
                most_seconds=self._seconds_left(),
                seed=self.seed,
                rejections=self.recorder.rejections,
                tuning=self.options.tuning,
                clock=self.clock,
                found=found if large else None,
            )
            if schedule is not None:
                found(schedule)

    def _search(self) -> bool:
        """Run the models for this size of problem; true if one shows that there is no plan at all."""
        ops = len(self.instance.tasks)
        if ops > self.tuning.large_ops:
            return not self._search_as_large(1.0, goes_on=True)
        pays = self.tuning.small_ops < ops <= self.tuning.sizeable_ops
        with BoundRounds(self.instance, self._conduct(), pays=pays) as bound_rounds:
            if self._search_in_rounds(bound_rounds):
                return True
            if ops <= self.tuning.small_ops and not self._finished() and self._search_all_reruns():
                return True
            return not self._finished() and go_on(self._ways(bound_rounds), self.offered)

    def _go_on(self) -> bool:
        """Search on after an engine's word was refuted; true if there is no plan at all."""
        if len(self.instance.tasks) > self.tuning.large_ops:
            return not self._search_as_large(1.0, goes_on=True)
        with BoundRounds(self.instance, self._conduct()) as bound_rounds:
            return go_on(self._ways(bound_rounds), self.offered)

    def _search_in_rounds(self, bound_rounds: BoundRounds) -> bool:
        """Relaxed and exact models in turn; true if a relaxed one has no solution, so that there is no plan.

        Each relaxed solution names the versions that it remakes. The reruns that lead to them become slots of
        the exact model, and of the next relaxed model, which then counts their RAM. The next relaxed model
        also gets every slot of the fullest stage, so that what was remade at no slot in the forward pass
        counts there if it is held past that stage.
        """
        for number, chain in enumerate(self.tuning.chain_reruns):
            if self._finished():
                return False
            before = self.bound.joules
            with self.phase(f"round {number + 1}: relaxed event model"):
                model = build(timeline_of(self.instance, self.offered), relaxed=True)
                outcome = self._relax(model)
            if outcome.infeasible:
                return True
            if outcome.values is not None and not self._finished():
                bound_rounds.prepare()
                guide = suggested(model, outcome.values, chain=chain)
                with self.phase(f"round {number + 1}: exact event model"):
                    self._solve_exactly(merged(guide, self._own_reruns()))
                self.offered = merged(self.offered, guide, fullest(self.instance))
            if number == 0:
                tuning = self.options.tuning.states
                seconds = tuning.round_share * min(self._seconds_left(), 1e9)
                self._follow_copies(self.options.tuning.copies.round_share)
                self._follow_states(min(tuning.round_states, int(seconds / tuning.state_seconds)))
            far_off = number == 0 and self._far_off()
            if far_off and not self._search_as_large(self.tuning.large_share):
                return True
            self._refine_bound(bound_rounds, number, before)
        return False

    def _follow_states(self, most_states: int) -> None:
        """Bounds by label-setting, and plans with the reruns of their paths, where states are few."""
        if self.best.trace is None or most_states == 0 or self._finished():
            return
        with self.phase("search over states"):
            below_joules = self.best.trace.joules - self.baseline_joules
            paths = dict[int, tuple[int, ...]]()
            for bound in state_bounds(
                self.instance,
                below_joules=below_joules,
                most_states=most_states,
                clock=self.clock,
                finished=self._finished,
            ):
                self._take_bound(bound.overhead_joules, STATES)
                self._report()
                paths = bound.reruns
            if paths and not self._finished():
                self._solve_exactly(merged(paths, self._own_reruns()))

    def _follow_copies(self, share: float) -> None:
        """Bounds by sets of copies, plans with the reruns of the cheapest, for a share of the time left."""
        if self.best.trace is None or share == 0.0 or self._finished():
            return
        with self.phase("search over copies"):
            overhead_joules = self.best.trace.joules - self.baseline_joules
            most_seconds = self.options.tuning.copies.most_seconds
            end = self.clock.now() + min(share * self._seconds_left(), most_seconds)
            if self.copies is None:
                self.copies = copies_bounds(
                    self.instance, below_joules=overhead_joules, clock=self.clock, finished=self._finished
                )
            paths = dict[int, tuple[int, ...]]()
            for bound in self.copies:
                self._take_bound(bound.overhead_joules, COPIES)
                self._report()
                paths = bound.reruns or paths
                if self._finished() or self.clock.now() >= end:
                    break
            if paths and not self._finished():
                self._solve_exactly(followed_by(paths, self._own_reruns()))

    def _ways(self, bound_rounds: BoundRounds) -> Ways:
        """What can be tried after the rounds."""

        def restart(number: int) -> None:
            self.seed = self.options.seed + number

        small_enough = len(self.instance.tasks) <= self.tuning.sizeable_ops

        def relax(model: EventModel, other_engine: bool) -> Outcome:
            left = self._seconds_left()
            seconds = None if math.isinf(left) else self.options.tuning.restarts.relaxed_share * left
            other = self._second_engine(model) if other_engine else None
            return self._run(model, bounding=True, engine=other, seconds=seconds)

        def look_longer() -> None:
            if small_enough and self.best.trace is not None:
                bound_rounds.long(self.best.trace.joules - self.baseline_joules, -math.inf, 0.0)

        return Ways(
            instance=self.instance,
            conduct=self._conduct(),
            restart=restart,
            standing=lambda: (None if self.best.trace is None else self.best.trace.joules, self.bound.joules),
            follow_copies=self._follow_copies,
            follow_states=self._follow_states,
            relax=relax,
            own_reruns=self._own_reruns,
            solve_exactly=self._solve_exactly,
            look_longer=look_longer,
            search_large=self._search_as_large,
        )

    def _search_all_reruns(self) -> bool:
        """Models with slots for every rerun in every stage; true if there is no plan at all."""
        with self.phase("every rerun in every stage: relaxed event model"):
            everything = build(timeline_of(self.instance, candidates(self.instance, None)), relaxed=True)
            if self._run(everything, bounding=True).infeasible:
                return True
        for passes in (1, 2, 3):
            if self._finished():
                break
            with self.phase(f"every rerun in every stage, {passes} times: exact event model"):
                self._solve_exactly(candidates(self.instance, None, passes=passes))
        return False

    def _refine_bound(self, bound_rounds: BoundRounds, number: int, before: float) -> None:
        """Refine the grids of the windows relaxation for some of the time left.

        Args:
            bound_rounds: the bound refinement of this search.
            number: of the round that they come after.
            before: the best bound in joules before that round.
        """
        if not bound_rounds.pays or self.best.trace is None or self._finished():
            return
        if number == 0:
            bound_rounds.short(self.clock.now() - self.started)
        else:
            above = (self.best.trace.joules, self.bound.joules, before)
            plan, bound, earlier = (joules - self.baseline_joules for joules in above)
            bound_rounds.long(plan, bound, bound - earlier)

    def _far_off(self) -> bool:
        """Whether to search as on large problems: many ops, and a large gap left after the first round."""
        if len(self.instance.tasks) <= self.tuning.sizeable_ops or self._finished():
            return False
        if self.best.trace is None:
            return True
        open_joules = self.best.trace.joules - self.bound.joules
        return open_joules > self.tuning.sizeable_gap_share * (self.best.trace.joules - self.baseline_joules)

    def _search_as_large(self, share: float, *, goes_on: bool = False) -> bool:
        """The search for large problems, in ``share`` of the time left; false if there is no plan at all.

        ``goes_on``: until it is finished, whatever is left to be offered.
        """
        conduct = self._conduct((1.0 - share) * min(self._seconds_left(), 1e9))
        in_time = self.problem.background_storage and self.limits.deadline_seconds is not None
        instances = (self.instance, self.serial if in_time else self.instance)
        schedule = self.best.schedule
        return search_large(self.problem, self.limits, instances, schedule, conduct, goes_on=goes_on)

    def _conduct(self, kept_seconds: float = 0.0) -> Conduct:
        """Clock and functions for a part of the search, which must leave ``kept_seconds`` to others."""

        def found(schedule: Schedule, found_by: str) -> None:
            self._consider(schedule, found_by)
            self._report()

        def bounded(overhead: float, proven: bool) -> bool:
            joules, trace = self.baseline_joules + overhead, self.best.trace
            believed = proven or trace is None or not refutes(trace.joules, joules)
            if believed:
                self._take_bound(overhead, LINEAR if proven else WHOLE, proven=proven)
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
            seed=self.seed,
            phase=self.phase,
            metered=self.best.metered,
            rejections=self.recorder.rejections,
            clock=self.clock,
        )

    def _own_reruns(self) -> dict[int, set[int]]:
        """Per stage, the reruns of the best plan."""
        return {} if self.best.schedule is None else reruns_of(self.instance, self.best.schedule)

    def _solve_exactly(self, offered: dict[int, tuple[int, ...]], other_engine: bool = False) -> bool:
        """The best plan whose reruns all have a slot in ``offered``; whether the engine came to its end."""
        model = build(timeline_of(self.instance, offered))
        engine = self._second_engine(model) if other_engine else None
        done = self._run(model, bounding=False, engine=engine).done
        if self._finished():
            return done
        if self.problem.background_storage and self.limits.deadline_seconds is not None:
            done &= self._run(build(timeline_of(self.serial, offered)), bounding=False).done
        return done

    def _second_engine(self, model: EventModel) -> str | None:
        """CP-SAT, where it is there, HiGHS is the first engine, and the model is one of whole numbers."""
        second = self.options.engine == "auto" and self.engine == "highs" and "cpsat" in available_engines()
        return "cpsat" if second and not model.held else None

    def _relax(self, model: EventModel) -> Outcome:
        """Solve a relaxed model; where HiGHS leaves it open, CP-SAT, which learns from conflicts."""
        seconds, second = self._model_seconds(), self._second_engine(model)
        if second is None or seconds is None:
            return self._run(model, bounding=True)
        outcome = self._run(model, bounding=True, seconds=self.tuning.first_engine_share * seconds)
        if outcome.done or outcome.infeasible or self._finished():
            return outcome
        again = self._run(model, bounding=True, engine=second)
        return again if again.values is not None or again.infeasible else outcome

    def _run(
        self, model: EventModel, *, bounding: bool, engine: str | None = None, seconds: float | None = None
    ) -> Outcome:
        """Solve one model by an engine; takes over its plans and, if it is relaxed, its bound."""
        engine, seconds = engine or self.engine, seconds or self._model_seconds()
        start = None if self.best.schedule is None else values_of(model, self.best.schedule)

        def watch(values: Sequence[float] | None, bound: float) -> bool:
            if values is not None:
                self._consider(schedule_of(model, values), model_by(engine), is_ours=not bounding)
            if bounding:
                self._take_bound(bound, relaxed_by(engine), claim)
            self._report()
            return self._enough()

        claim = _Claim(model, engine)
        outcome = run_engine(engine, matrix_of(model, start), self._effort(seconds), watcher=watch)
        if outcome.values is not None:
            self._consider(schedule_of(model, outcome.values), model_by(engine), is_ours=not bounding)
        if outcome.infeasible:
            self.empty = claim
        elif bounding:
            self._take_bound(outcome.bound_joules, relaxed_by(engine), claim)
        self._report()
        self.stopped = self.stopped or outcome.interrupted
        return outcome

    def _effort(self, seconds: float | None, most_seconds: float | None = None) -> Effort:
        """For an engine; ``most_seconds`` not given: all that is left."""
        return Effort(
            seconds=seconds,
            threads=self.options.threads,
            seed=self.seed,
            absolute_joules=self._engine_gap_joules(),
            relative=0.0,
            most_seconds=self._seconds_left() if most_seconds is None else most_seconds,
            tuning=self.options.tuning,
            clock=self.clock,
        )

    def _consider(self, schedule: Schedule, found_by: str, *, is_ours: bool = True) -> None:
        """Judge a plan; one that takes less than a bound refutes an engine's word for that bound.

        ``is_ours``: the judge should accept it; not so the caller's plans and those of relaxed models.
        """
        better = self.best.consider(schedule, found_by, is_ours=is_ours)
        if better and self.best.trace is not None:
            self.recorder.plan(self.best.trace.joules, found_by)
        if self.best.trace is not None:
            self.bound.meet(self.best.trace.joules)
            self.recorder.bound(self.bound.joules, f"what is left beside a plan by {found_by}")

    def _take_bound(
        self, overhead: float, found_by: str, claim: _Claim | None = None, *, proven: bool = True
    ) -> None:
        """A bound on the overhead, kept if it is the highest."""
        self.bound.take(overhead, claim, proven=proven)
        self.recorder.bound(self.bound.joules, found_by)

    def _confirmed_empty(self) -> Confirmation:
        """A second opinion on the model that has no solution by an engine's word."""
        if self.empty is None:  # it follows from duals of a linear program, summed by our own code
            return Confirmation(Confidence.EXACT)
        with self.phase("second opinion that there is no plan"):
            return self._confirm(self.empty, None)

    def _confirmed_bound(self) -> str:
        """What proves the bound of an optimal plan, in words; empty if it is not proven optimal."""
        if self.best.trace is None or not self._closed(self.bound.joules):
            return ""
        if self.bound.alone:
            return Confirmation(Confidence.ALONE, ("highs",)).words
        claim = self.bound.claim
        if claim is None:
            return Confirmation(Confidence.EXACT).words
        if not self.options.confirm:
            return Confirmation(Confidence.ALONE, (claim.engine,)).words
        joules = self.best.trace.joules
        allowed = joules - self.options.allowed_gap_joules(joules, self.baseline_joules)
        with self.phase("second opinion on the bound"):
            confirmation = self._confirm(claim, allowed - self.baseline_joules)
        if confirmation.confidence is Confidence.REFUTED:
            self.refuted_by = confirmation.words
        refuted_before = self.refuted_by and confirmation.confidence is Confidence.ALONE
        if confirmation.confidence is Confidence.REFUTED or refuted_before:
            self.bound.forget()
            self.recorder.bound(self.bound.joules, EVERY_OP_ONCE)
        return confirmation.words

    def _confirm(self, claim: _Claim, below: float | None) -> Confirmation:
        """A second opinion, in about the time that the search took; plans that contradict it are judged."""
        spent_seconds, left_seconds = self.clock.now() - self.started, self._seconds_left()
        if left_seconds <= 0.0:
            return Confirmation(Confidence.ALONE, (claim.engine,))
        tuning = self.tuning
        proof_seconds = max(tuning.proof_share * spent_seconds, tuning.proof_least_seconds)
        proof_seconds = min(proof_seconds, tuning.proof_most_seconds, tuning.proof_left_share * left_seconds)
        second_seconds = max(spent_seconds, tuning.confirm_least_seconds)
        second_seconds = min(second_seconds, left_seconds - proof_seconds)
        confirmation = confirm(
            matrix_of(claim.model),
            claim.engine,
            self._effort(second_seconds, left_seconds - proof_seconds),
            proof_seconds=proof_seconds,
            below_joules=below,
        )
        if confirmation.values is not None:
            found_by = model_by(confirmation.engines[-1])
            self._consider(schedule_of(claim.model, confirmation.values), found_by, is_ours=False)
        return confirmation

    def _engine_gap_joules(self) -> float:
        """Gap at which an engine may stop: a part of the gap that counts as closed."""
        allowed = self.options.allowed_gap_joules(self.bound.joules, self.baseline_joules)
        return self.tuning.engine_gap_share * allowed

    def _closed(self, bound_joules: float) -> bool:
        """Whether the best plan is within both gaps of ``bound_joules``."""
        if self.best.trace is None:
            return False
        joules = self.best.trace.joules
        return joules - bound_joules <= self.options.allowed_gap_joules(joules, self.baseline_joules)

    def _enough(self) -> bool:
        """Whether the gap is closed, or the options' ``enough_joules`` is reached or out of reach."""
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
        """Seconds that one model may take; ``None``: any."""
        seconds, tuning = self._seconds_left(), self.tuning
        if math.isinf(seconds):
            return None
        floor_seconds = min(seconds, tuning.model_floor_seconds)
        return max(seconds * tuning.model_share, floor_seconds, tuning.model_least_seconds)

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
            record=self.recorder.record(),
        )

    def _open_gap_sentence(self) -> str:
        """Why the search did not close the gap; empty where it stopped at ``enough_joules``."""
        plan_seconds, bound_seconds = self.best.found_after_seconds, self.bound.after_seconds
        if self.refuted_by:
            return f"{self.refuted_by[0].upper()}{self.refuted_by[1:]}: the gap is open again."
        if self._seconds_left() > 0.0:  # `enough_joules` ended it
            return ""
        return time_up_sentence(self.engine, plan_seconds=plan_seconds, bound_seconds=bound_seconds)

    def _infeasible(self, message: str, proof: str) -> Solution:
        self.best.forget()
        return dataclasses.replace(self.solution(message, proof), status=Status.INFEASIBLE)
