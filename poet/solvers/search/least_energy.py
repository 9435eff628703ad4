"""The search for least energy: greedy plans at once, then the members of the portfolio in turns.

The simulator validates every schedule before it counts, and every bound is checked against its
joules. "Optimal" is reported only if the simulator accepts the plan and a bound for the whole problem
matches it. "Infeasible" is reported only if a lower bound on RAM or time shows it by arithmetic, or if
a relaxation has no solution and no plan was found.
"""

from __future__ import annotations

from collections.abc import Sequence

from poet.held_memory import counted_from_here
from poet.problem import Limits, Problem
from poet.schedule import Schedule
from poet.solution import Solution, SolveOptions
from poet.solvers.engines import choose_engine
from poet.solvers.engines.proof import Confidence, Confirmation
from poet.solvers.heuristics.greedy import greedy
from poet.solvers.instance.feasibility import Conflict, conflict_in
from poet.solvers.instance.instance import Metered
from poet.solvers.portfolio import turns
from poet.solvers.portfolio.finders import GREEDY
from poet.solvers.portfolio.gap_search import local_search
from poet.solvers.portfolio.linear_relaxation import linear_relaxation
from poet.solvers.portfolio.model_runs import ModelRuns
from poet.solvers.portfolio.neighbourhoods import neighbourhoods
from poet.solvers.portfolio.relaxed_intervals import relaxed_intervals
from poet.solvers.portfolio.resident_sets import resident_sets
from poet.solvers.portfolio.retention_intervals import retention_intervals
from poet.solvers.portfolio.state import SearchState
from poet.solvers.portfolio.whole_relaxation import whole_relaxation
from poet.solvers.search.answer import answer, no_plan
from poet.solvers.search.messages import STOPPED, conflict_sentence, impossible_sentence, returns_sentence
from poet.solvers.search.second_opinion import SecondOpinion

MEMBERS: tuple[turns.Seated, ...] = (
    ("linear relaxation and list schedules along it", linear_relaxation, 2.0),
    ("exact models over retention intervals", retention_intervals, 2.0),
    ("relaxation in whole numbers", whole_relaxation, 2.0),
    ("local search", local_search, 3.0),
    ("neighbourhoods", neighbourhoods, 3.0),
    ("relaxed models over retention intervals", relaxed_intervals, 1.0),
    ("resident sets", resident_sets, 1.0),
)
"""With shares of the time: provers have half of what makers of plans have."""

GREEDY_SECONDS = 1.0
"""For greedy plans at most: what they find by then, other members begin with."""

GREEDY_SHARE = 0.25
"""Of the time for them, so that short searches have a bound as well; half of what is left, for a conflict."""


@counted_from_here()
def solve(
    problem: Problem,
    limits: Limits | None = None,
    options: SolveOptions | None = None,
    *,
    metered: Metered | None = None,
    members: Sequence[turns.Seated] | None = None,
) -> Solution:
    """The plan of ``problem`` of least energy inside ``limits`` that the time allows, with a bound.

    First runs keep the listed order. Ctrl-C ends the search and keeps the best plan. Other objectives and the
    energy budget are reduced to this search by `poet.solvers.search.objectives`. ``members``: of the
    portfolio, if not all; with fewer, plans cost more and bounds are lower, and all that is said holds.

    Raises:
        InputError: the engine named in ``options`` is not available.
    """
    search = _Search(
        problem,
        limits or Limits(),
        options or SolveOptions(),
        metered,
        MEMBERS if members is None else members,
    )
    try:
        return search.run()
    except KeyboardInterrupt:
        search.state.stopped = True
        return search.answer(STOPPED)


class _Search:
    """One search, from the first plan to its answer."""

    def __init__(
        self,
        problem: Problem,
        limits: Limits,
        options: SolveOptions,
        metered: Metered | None,
        members: Sequence[turns.Seated],
    ) -> None:
        self.problem, self.limits, self.options, self.members = problem, limits, options, members
        engine = choose_engine(options.engine, threads=options.threads, clock=options.clock)
        self.state = SearchState(problem, limits, options, engine, metered)
        self.opinion = SecondOpinion(ModelRuns(self.state))

    def run(self) -> Solution:
        state = self.state
        exact = Confirmation(Confidence.EXACT).words
        impossible = impossible_sentence(state.instance)
        if impossible:
            return no_plan(state, state.engine, impossible, exact)
        self._start()
        if state.best.trace is None and (conflict := self._conflict()) is not None:
            return no_plan(state, state.engine, returns_sentence(state.instance, conflict), exact)
        state.first = state.best.schedule
        while True:
            state.refuted = False
            turns.run(state, self.members)
            if state.refuted and state.best.trace is None:
                confirmation = self.opinion.on_no_plan()
                if state.best.trace is None and confirmation.confidence is not Confidence.REFUTED:
                    message = conflict_sentence(self.problem, self.limits, confirmation)
                    return no_plan(state, state.engine, message, confirmation.words)
            if state.stopped:
                return self.answer(STOPPED)
            refuted, state.refuted = state.refuted, False
            proof = self.opinion.on_the_bound()
            if state.finished() or not (refuted or self.opinion.refuted_by):
                return self.answer("", proof)
            # an engine erred, and its word was refuted

    def answer(self, message: str, proof: str = "") -> Solution:
        """What is known now."""
        refuted_by = self.opinion.refuted_by
        return answer(self.state, self.state.engine, message, proof=proof, refuted_by=refuted_by)

    def _start(self) -> None:
        """The caller's plan, and greedy ones."""
        state = self.state
        if self.options.start is not None:
            state.consider(self.options.start, self.options.start_by, is_ours=False)
            if state.finished():  # an earlier search proved it
                return

        def found(schedule: Schedule) -> None:
            state.consider(schedule, GREEDY)
            state.report()

        with state.recorder.phase("greedy plans"):
            schedule = greedy(
                self.problem,
                self.limits,
                seconds=min(GREEDY_SECONDS, GREEDY_SHARE * state.seconds_left()),
                most_seconds=state.seconds_left(),
                seed=state.seed,
                rejections=state.recorder.rejections,
                tuning=self.options.tuning,
                clock=state.clock,
                found=found,
            )
            if schedule is not None:
                found(schedule)

    def _conflict(self) -> Conflict | None:
        """A proof that there is no plan, from when contents can come back into RAM."""
        state = self.state
        end = state.clock.now() + 0.5 * min(state.seconds_left(), 1e9)
        with state.recorder.phase("what can come back into RAM, and when"):
            return conflict_in(state.instance, lambda: state.finished() or state.clock.now() >= end)
