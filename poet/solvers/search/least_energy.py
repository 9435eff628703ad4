"""The search for least energy: greedy plans at once, then relaxed models for bounds and exact ones for plans.

Every schedule is judged by the simulator before it counts, and every bound is checked against the judged
joules. "Optimal" is reported only if the simulator accepts the plan and a bound for the whole problem
matches it. "Infeasible" is reported only if a lower bound on RAM or time shows it by arithmetic, or if
the relaxed model has no solution and no plan was found.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

from poet.held_memory import counted_from_here
from poet.problem import Limits, Problem
from poet.schedule import Schedule
from poet.solution import ClassBound, Solution, SolveOptions
from poet.solvers.bounds.state_search import state_bounds
from poet.solvers.bounds.timed_search import timed_bound
from poet.solvers.engines import choose_engine
from poet.solvers.engines.confirm import Confidence, Confirmation
from poet.solvers.event_model.model import EventModel, build
from poet.solvers.heuristics.greedy import greedy
from poet.solvers.instance.candidates import candidates, fullest
from poet.solvers.instance.context import Conduct
from poet.solvers.instance.instance import Metered
from poet.solvers.instance.timeline import timeline_of
from poet.solvers.search.after_rounds import Ways, go_on
from poet.solvers.search.answer import answer, no_plan
from poet.solvers.search.best_bound import refutes
from poet.solvers.search.bound_rounds import BoundRounds
from poet.solvers.search.copies_turns import CopiesTurns
from poet.solvers.search.few_copies import FewCopies
from poet.solvers.search.finders import CLOCKS, GREEDY, LINEAR, STATES, WHOLE
from poet.solvers.search.first_plan import FirstPlan
from poet.solvers.search.large import search_large
from poet.solvers.search.messages import STOPPED, conflict_sentence, impossible_sentence, returns_sentence
from poet.solvers.search.model_runs import ModelRuns
from poet.solvers.search.second_opinion import SecondOpinion
from poet.solvers.search.slots_of_plans import merged, suggested
from poet.solvers.search.standing import Standing
from poet.solvers.search.varied_copies import VariedCopies


@counted_from_here()
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
    with search.copies, search.first_plan:
        try:
            return search.run()
        except KeyboardInterrupt:
            search.standing.stopped = True
            return search.answer(STOPPED)


class _Search:
    """The order of one search: which part runs next, and with what."""

    def __init__(
        self, problem: Problem, limits: Limits, options: SolveOptions, metered: Metered | None
    ) -> None:
        self.problem, self.limits, self.options = problem, limits, options
        self.tuning = options.tuning.search
        self.engine = choose_engine(options.engine, threads=options.threads, clock=options.clock)
        self.standing = Standing(problem, limits, options, self.engine, metered)
        self.instance, self.best, self.clock = self.standing.instance, self.standing.best, options.clock
        self.baseline_joules, self.phase = problem.compute_joules, self.standing.recorder.phase
        self.runs = ModelRuns(self.standing, self.engine)
        self.opinion = SecondOpinion(self.runs)
        self.few_copies = FewCopies(self.runs)
        self.copies = CopiesTurns(self.runs, self.few_copies)
        self.first_plan = FirstPlan(self.runs)
        self.varied = VariedCopies(self.standing)
        self.offered: dict[int, tuple[int, ...]] = {}  # reruns that the next relaxed model knows, by stage

    def run(self) -> Solution:
        impossible = impossible_sentence(self.instance)
        if impossible:
            return no_plan(self.standing, self.engine, impossible, Confirmation(Confidence.EXACT).words)
        self._start()
        if self.best.trace is None and (conflict := self.first_plan.conflict()) is not None:
            message = returns_sentence(self.instance, conflict)
            return no_plan(self.standing, self.engine, message, Confirmation(Confidence.EXACT).words)
        search = self._search
        while True:
            if search() and self.best.trace is None:
                confirmation = self.opinion.on_no_plan()
                if self.best.trace is None and confirmation.confidence is not Confidence.REFUTED:
                    message = conflict_sentence(self.problem, self.limits, confirmation)
                    return no_plan(self.standing, self.engine, message, confirmation.words)
            if self.standing.stopped:
                return self.answer(STOPPED)
            proof = self.opinion.on_the_bound()
            if self.standing.finished():
                return self.answer("", proof)
            search = self._go_on  # an engine erred, and its word was refuted

    def answer(self, message: str, proof: str = "") -> Solution:
        """What is known now."""
        refuted_by = self.opinion.refuted_by
        return answer(self.standing, self.engine, message, proof=proof, refuted_by=refuted_by)

    def _amounts(self) -> tuple[float | None, float]:
        """Joules of the best plan, if there is one, and of the best bound."""
        return (None if self.best.trace is None else self.best.trace.joules), self.standing.bound.joules

    def _start(self) -> None:
        if self.options.start is not None:
            self.standing.consider(self.options.start, self.options.start_by, is_ours=False)
            if self.standing.finished():  # an earlier search proved it
                return
        large = len(self.instance.tasks) > self.tuning.large_ops
        seconds = self.tuning.greedy_large_seconds if large else self.tuning.greedy_small_seconds
        allowed = min(seconds, self.tuning.greedy_share * self.standing.seconds_left())

        def found(schedule: Schedule) -> None:
            self.standing.consider(schedule, GREEDY)
            self.standing.report()

        with self.phase("greedy plans"):
            schedule = greedy(
                self.problem,
                self.limits,
                seconds=allowed,
                most_seconds=self.standing.seconds_left(),
                seed=self.standing.seed,
                rejections=self.standing.recorder.rejections,
                tuning=self.options.tuning,
                clock=self.clock,
                found=found if large else None,
            )
            if schedule is not None:
                found(schedule)

    def _search(self) -> bool:
        """Run the models for this size of problem; true if one shows that there is no plan at all."""
        ops = len(self.instance.tasks)
        if self.first_plan.turn(self.tuning.first_plan_share):
            return True
        if ops > self.tuning.large_ops:
            if self.varied.transfers_decide():
                tuning = self.options.tuning.copies_search
                self.varied.turn(tuning.round_share, most_share=tuning.large_share)
            return not self._search_as_large(1.0, goes_on=True)
        is_sizeable = ops > self.tuning.sizeable_ops
        left, first_share = self.standing.seconds_left(), self.tuning.sizeable_first_share
        if is_sizeable and first_share > 0.0 and not self.standing.finished():
            share = min(first_share, self.tuning.sizeable_first_seconds / left)
            if not math.isinf(left) and not self._search_as_large(share):
                return True
        with BoundRounds(self.instance, self._conduct(), pays=ops > self.tuning.small_ops) as bound_rounds:
            if (not is_sizeable and not bound_rounds.first()) or self._search_in_rounds(bound_rounds):
                return True
            if ops <= self.tuning.small_ops and not self.standing.finished() and self._search_all_reruns():
                return True
            return not self.standing.finished() and go_on(self._ways(bound_rounds), self.offered)

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
        counts there if it is held past that stage. Where page-outs decide, the local search over copies and
        exact models of few copies come first, and the exact model of all waits while these find better plans.
        """
        for number, chain in enumerate(self.tuning.chain_reruns):
            if self.standing.finished():
                return False
            before = self.standing.bound.joules
            with self.phase(f"round {number + 1}: relaxed event model"):
                model = build(timeline_of(self.instance, self.offered), relaxed=True)
                outcome = self.runs.relax(model)
            if outcome.infeasible:
                return True
            vary = number == 0 or self.varied.leads
            copies_first = self.few_copies.comes_first()
            if vary and copies_first:
                self.varied.turn(self.options.tuning.copies_search.round_share)
            if outcome.values is not None and not self.standing.finished():
                bound_rounds.prepare()
                guide = suggested(model, outcome.values, chain=chain)
                led = copies_first and self._write_few(model, outcome.values, chain)
                if copies_first and number == 0:
                    self._bound_by_copies(decisive=True)
                if not led and not self.standing.finished():
                    with self.phase(f"round {number + 1}: exact event model"):
                        self.runs.solve_exactly(merged(guide, self.runs.own_reruns()))
                self.offered = merged(self.offered, guide, fullest(self.instance))
            if vary and not copies_first:
                self.varied.turn(self.options.tuning.copies_search.round_share)
            if number == 0:
                tuning = self.options.tuning.states
                seconds = tuning.round_share * min(self.standing.seconds_left(), 1e9)
                if not self.copies.has_begun:
                    self._bound_by_copies(decisive=False)
                self._follow_states(min(tuning.round_states, int(seconds / tuning.state_seconds)))
                timed = self.options.tuning.timed
                seconds = timed.round_share * min(self.standing.seconds_left(), 1e9)
                if not self.instance.serial and self._follow_clocks(
                    min(timed.round_labels, int(seconds / timed.label_seconds))
                ):
                    return True
            elif self.copies.leads:
                self.copies.turn(self.options.tuning.copies.round_share)
            self._refine_bound(bound_rounds, number, before)
            far_off = number == 0 and not self.copies.leads and self._far_off()
            if far_off and not self._search_as_large(self.tuning.large_share):
                return True
        return False

    def _bound_by_copies(self, *, decisive: bool) -> None:
        """The first turn of the search over copies; a short one where nothing may be written, and a longer
        one after it where copies decide and it leads.
        """
        tuning = self.options.tuning.copies
        if tuning.unwritten_share > 0.0 and all(each.page_out is None for each in self.instance.contents):
            self.copies.turn(tuning.unwritten_share, goes_on=False)
            return
        self.copies.turn(tuning.round_share)
        if decisive and self.copies.leads:
            self.copies.turn(tuning.decisive_share)

    def _write_few(self, model: EventModel, values: Sequence[float], chain: int) -> bool:
        """Models in which few tensors may be written, with what a relaxed solution remakes; whether the last
        of them found a better plan.
        """
        tuning = self.options.tuning.few_copies
        longest, is_sizeable = max(chain, tuning.chain), len(self.instance.tasks) > self.tuning.sizeable_ops
        offered = suggested(model, values, chain=longest, window=tuning.ahead_stages)
        self.few_copies.turn(tuning.sizeable_share if is_sizeable else tuning.round_share, offered)
        return self.few_copies.leads

    def _follow_states(self, most_states: int) -> None:
        """Bounds by label-setting, and plans with the reruns of their paths, where states are few."""
        if self.best.trace is None or most_states == 0 or self.standing.finished():
            return
        with self.phase("search over states"):
            below_joules = self.best.trace.joules - self.baseline_joules
            paths = dict[int, tuple[int, ...]]()
            for bound in state_bounds(
                self.instance,
                below_joules=below_joules,
                most_states=most_states,
                clock=self.clock,
                finished=self.standing.finished,
            ):
                self.standing.take_bound(bound.overhead_joules, STATES)
                self.standing.report()
                paths = bound.reruns or paths
            if paths and not self.standing.finished():
                self.runs.solve_exactly(merged(paths, self.runs.own_reruns()))

    def _follow_clocks(self, most_labels: int) -> bool:
        """Plan and bound by label-setting beside background storage; true if there is no plan at all."""
        if most_labels == 0 or self.standing.finished():
            return False
        with self.phase("search with two clocks"):
            trace = self.best.trace
            found = timed_bound(
                self.instance,
                below_joules=math.inf if trace is None else trace.joules - self.baseline_joules,
                most_labels=most_labels,
                clock=self.clock,
                finished=self.standing.finished,
            )
            if found is None:
                return False
            if found.schedule is not None:
                self.standing.consider(found.schedule, CLOCKS)
            self.standing.take_bound(found.overhead_joules, CLOCKS)
            self.standing.report()
            return math.isinf(found.overhead_joules)

    def _ways(self, bound_rounds: BoundRounds) -> Ways:
        """What can be tried after the rounds."""

        def restart(number: int) -> None:
            self.standing.seed = self.options.seed + number

        def look_longer() -> None:
            if self.best.trace is not None:
                bound_rounds.long(self.best.trace.joules - self.baseline_joules, -math.inf, 0.0)

        return Ways(
            instance=self.instance,
            conduct=self._conduct(),
            restart=restart,
            standing=self._amounts,
            find_first=partial(self.first_plan.turn, self.tuning.first_plan_share),
            vary_copies=self.varied.turn,
            few_copies=partial(self.few_copies.turn, self.options.tuning.few_copies.restart_share),
            follow_copies=self.copies.turn,
            follow_states=self._follow_states,
            follow_clocks=self._follow_clocks,
            relax=partial(self.runs.relax_for, self.options.tuning.restarts.relaxed_share),
            own_reruns=self.runs.own_reruns,
            solve_exactly=self.runs.solve_exactly,
            look_longer=look_longer,
            search_large=self._search_as_large,
        )

    def _search_all_reruns(self) -> bool:
        """Models with slots for every rerun in every stage; true if there is no plan at all."""
        with self.phase("every rerun in every stage: relaxed event model"):
            everything = build(timeline_of(self.instance, candidates(self.instance, None)), relaxed=True)
            if self.runs.run(everything, bounding=True).infeasible:
                return True
        for passes in (1, 2, 3):
            if self.standing.finished():
                break
            with self.phase(f"every rerun in every stage, {passes} times: exact event model"):
                self.runs.solve_exactly(candidates(self.instance, None, passes=passes))
        return False

    def _refine_bound(self, bound_rounds: BoundRounds, number: int, before: float) -> None:
        """Refine the grids of the windows relaxation for some of the time left.

        Args:
            bound_rounds: the bound refinement of this search.
            number: of the round that they come after.
            before: the best bound in joules before that round.
        """
        if not bound_rounds.pays or self.best.trace is None or self.standing.finished():
            return
        if number == 0:
            overhead_joules = self.standing.bound.joules - self.baseline_joules
            bound_rounds.short(self.clock.now() - self.standing.started, overhead_joules)
        else:
            above = (self.best.trace.joules, self.standing.bound.joules, before)
            plan, bound, earlier = (joules - self.baseline_joules for joules in above)
            bound_rounds.long(plan, bound, bound - earlier)

    def _far_off(self) -> bool:
        """Whether to search as on large problems: many ops, and a large gap left after the first round."""
        if len(self.instance.tasks) <= self.tuning.sizeable_ops or self.standing.finished():
            return False
        if self.best.trace is None:
            return True
        open_joules = self.best.trace.joules - self.standing.bound.joules
        return open_joules > self.tuning.sizeable_gap_share * (self.best.trace.joules - self.baseline_joules)

    def _search_as_large(self, share: float, *, goes_on: bool = False) -> bool:
        """The search for large problems, in ``share`` of the time left; false if there is no plan at all.

        ``goes_on``: until it is finished, whatever is left to be offered.
        """
        conduct = self._conduct((1.0 - share) * min(self.standing.seconds_left(), 1e9))
        in_time = self.problem.background_storage and self.limits.deadline_seconds is not None
        instances = (self.instance, self.standing.serial if in_time else self.instance)
        schedule = self.best.schedule
        return search_large(self.problem, self.limits, instances, schedule, conduct, goes_on=goes_on)

    def _conduct(self, kept_seconds: float = 0.0) -> Conduct:
        """Clock and functions for a part of the search, which must leave ``kept_seconds`` to others."""

        def found(schedule: Schedule, found_by: str) -> None:
            self.standing.consider(schedule, found_by)
            self.standing.report()

        def bounded(overhead: float, proven: bool) -> bool:
            joules, trace = self.baseline_joules + overhead, self.best.trace
            believed = proven or trace is None or not refutes(trace.joules, joules)
            if believed:
                self.standing.take_bound(overhead, LINEAR if proven else WHOLE, proven=proven)
            self.standing.report()
            return believed

        def classed(overhead: float, reruns: int) -> None:
            self.standing.class_bound = ClassBound(self.baseline_joules + overhead, reruns)

        return Conduct(
            seconds_left=lambda: self.standing.seconds_left() - kept_seconds,
            finished=lambda: self.standing.finished() or self.standing.seconds_left() <= kept_seconds,
            found=found,
            bounded=bounded,
            classed=classed,
            threads=self.options.threads,
            seed=self.standing.seed,
            phase=self.phase,
            metered=self.best.metered,
            rejections=self.standing.recorder.rejections,
            clock=self.clock,
        )
