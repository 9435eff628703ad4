"""Event models solved for one search: relaxed ones for bounds, exact ones for plans."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from poet.solvers.engines import Effort, Outcome, available_engines, run_engine
from poet.solvers.event_model.decisions import EventModel
from poet.solvers.event_model.model import build, matrix_of, schedule_of, values_of
from poet.solvers.instance.instance import timeline_of
from poet.solvers.portfolio.finders import model_by, relaxed_by
from poet.solvers.portfolio.slots_of_plans import reruns_of
from poet.solvers.portfolio.state import Claim, SearchState

ENGINE_GAP_SHARE = 0.3
"""Of the gap that is allowed in the end, at which an engine may stop: rounding needs the rest."""


class ModelRuns:
    """Solves models by the search's engine; what comes of them goes to ``state``."""

    def __init__(self, state: SearchState) -> None:
        self.state = state
        self._ended = set[frozenset[tuple[int, tuple[int, ...]]]]()  # see `solve_exactly`
        self._turn = 0

    def own_reruns(self) -> dict[int, set[int]]:
        """Per stage, the reruns of the best plan."""
        schedule = self.state.best.schedule
        return {} if schedule is None else reruns_of(self.state.instance, schedule)

    def solve_exactly(self, offered: dict[int, tuple[int, ...]], seconds: float) -> bool:
        """The best plan whose reruns all have a slot in ``offered``; whether the engine came to its end.

        A model of the same slots is not solved again once it was.
        """
        state, key = self.state, frozenset(offered.items())
        if key in self._ended:
            return True
        model = build(timeline_of(state.instance, offered))
        outcome = self.run(model, seconds, bounding=False)
        done = outcome.done or outcome.infeasible
        if state.planned is not state.instance and not state.finished():
            in_time = build(timeline_of(state.planned, offered))
            outcome = self.run(in_time, state.turn_left(), bounding=False)
            done &= outcome.done or outcome.infeasible
        if done:
            self._ended.add(key)
        return done

    def relax(self, model: EventModel, seconds: float) -> Outcome:
        """Solve a relaxed model: by HiGHS and by CP-SAT, which learns from conflicts, in turn."""
        self._turn += 1
        is_auto = self.state.options.engine == "auto" and self.state.engine == "highs"
        is_whole = is_auto and "cpsat" in available_engines() and not model.held
        engine = "cpsat" if is_whole and self._turn % 2 == 0 else None
        return self.run(model, seconds, bounding=True, engine=engine)

    def run(self, model: EventModel, seconds: float, *, bounding: bool, engine: str | None = None) -> Outcome:
        """Solve one model by an engine; takes over its plans and, if it is relaxed, its bound."""
        state, schedule = self.state, self.state.best.schedule
        engine = engine or state.engine
        matrix = matrix_of(model, None if schedule is None else values_of(model, schedule))

        def watch(values: Sequence[float] | None, bound: float) -> bool:
            if values is not None:
                state.consider(schedule_of(model, values), model_by(engine), is_ours=not bounding)
            if bounding:
                state.take_bound(bound, relaxed_by(engine), claim)
            state.report()
            return state.enough()

        claim = Claim(partial(matrix_of, model), engine, plan=partial(schedule_of, model))
        outcome = run_engine(engine, matrix, self.effort(seconds), watcher=watch)
        if outcome.values is not None:
            state.consider(schedule_of(model, outcome.values), model_by(engine), is_ours=not bounding)
        if outcome.infeasible and bounding:
            state.empty = claim
        elif bounding:
            state.take_bound(outcome.bound_joules, relaxed_by(engine), claim)
        state.report()
        state.stopped = state.stopped or outcome.interrupted
        return outcome

    def effort(self, seconds: float | None, most_seconds: float | None = None) -> Effort:
        """For an engine; ``most_seconds`` not given: all that is left."""
        state, options = self.state, self.state.options
        # the gap at which an engine may stop: a part of the gap that counts as closed
        allowed_joules = options.allowed_gap_joules(state.bound.joules, state.baseline_joules)
        return Effort(
            seconds=seconds,
            threads=options.threads,
            seed=state.seed,
            absolute_joules=ENGINE_GAP_SHARE * allowed_joules,
            most_seconds=state.seconds_left() if most_seconds is None else most_seconds,
            clock=state.clock,
        )
