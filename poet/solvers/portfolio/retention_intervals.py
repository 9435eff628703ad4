"""Models over retention intervals, exact ones for plans and relaxed ones for bounds: two members.

The intervals are those of MOCCASIN (Bartan, Li, Teague, Lott and Dilkina 2023). Exact models are offered the
reruns of the best plan and what other members ask for, beside all chains of reruns of some length, longer and
longer. In a relaxed one a rerun that is no slot of the model happens in no time and in no RAM, so each of its
bounds is one for all plans. Each solution names the versions that it remakes; the chains of reruns that lead
to them are slots of the next one, with all in the fullest stage.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from poet.solvers.engines import Effort, Outcome, available_engines, run_engine
from poet.solvers.event_model.decisions import EventModel
from poet.solvers.event_model.model import build, matrix_of, schedule_of, values_of
from poet.solvers.instance.candidates import candidates, fullest
from poet.solvers.instance.instance import timeline_of
from poet.solvers.portfolio.best_bound import model_by, relaxed_by
from poet.solvers.portfolio.rerun_slots import followed_by, merged, reruns_of, suggested
from poet.solvers.portfolio.state import GOES_ON, Claim, SearchState, Steps

FIRST_CHAIN, LONGEST_CHAIN = 2, 64
"""Reruns that lead to one tensor version; with 1, most plans of little RAM are none of the first model's."""

MOST_RERUNS = 2500
"""That a model is offered; with more, an engine finds no plan in minutes."""

MOST_PASSES = 3
"""How often a stage may go through every rerun in order, in the last exact models."""

HOPELESS_SHARE = 0.5
"""Of the best bound's overhead; a relaxed model that shows less leaves its time to others."""

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
            seed=state.options.seed,
            absolute_joules=ENGINE_GAP_SHARE * allowed_joules,
            most_seconds=state.seconds_left() if most_seconds is None else most_seconds,
            clock=state.clock,
        )


def retention_intervals(state: SearchState) -> Steps:
    """Exact model after model, a turn each; one that is not solved in its turn gets a longer one later."""
    runs, open_chains = ModelRuns(state), list(_offers(state))
    while open_chains or state.asked:
        if state.asked:
            path = state.asked.pop()
            runs.solve_exactly(followed_by(path, runs.own_reruns()), state.turn_left())
            yield GOES_ON
            continue
        offered = merged(open_chains[0], *state.wanted, runs.own_reruns())
        if sum(map(len, offered.values())) > MOST_RERUNS:
            offered = merged(open_chains[0], runs.own_reruns())
        if runs.solve_exactly(offered, state.turn_left()):
            del open_chains[0]
        else:
            open_chains.append(open_chains.pop(0))
        yield GOES_ON


def _offers(state: SearchState) -> Iterator[dict[int, tuple[int, ...]]]:
    """The chains that models are offered; none that is more than an engine can do with."""
    before: dict[int, tuple[int, ...]] | None = None
    chain = FIRST_CHAIN
    while chain <= LONGEST_CHAIN:
        offered = candidates(state.instance, chain)
        if sum(map(len, offered.values())) > MOST_RERUNS:
            return
        if offered != before:
            yield offered
        before, chain = offered, 2 * chain
    for passes in range(1, MOST_PASSES + 1):
        every = candidates(state.instance, None, passes=passes)
        if sum(map(len, every.values())) > MOST_RERUNS:
            return
        yield every


def relaxed_intervals(state: SearchState) -> Steps:
    """Relaxed model after relaxed model; where one has no solution, there is no plan."""
    instance, runs = state.instance, ModelRuns(state)
    known, chain = dict[int, tuple[int, ...]](), 2 * FIRST_CHAIN
    while sum(map(len, known.values())) <= MOST_RERUNS:
        model = build(timeline_of(instance, known), relaxed=True)
        outcome = runs.relax(model, state.turn_left())
        if outcome.infeasible:
            state.refuted = True
            return
        hopeful_joules = HOPELESS_SHARE * (state.bound.joules - state.baseline_joules)
        if state.best.trace is not None and outcome.bound_joules < hopeful_joules:
            return
        before = known
        if outcome.values is not None:
            guide = suggested(model, outcome.values, chain=chain)
            state.wanted = [merged(*state.wanted, guide)]
            known = merged(known, guide, fullest(instance))
        if outcome.done and known == before:
            every = merged(known, candidates(instance, chain if chain < LONGEST_CHAIN else None))
            if every == known and chain >= LONGEST_CHAIN:
                return
            known = every
        chain = min(2 * chain, LONGEST_CHAIN)
        yield GOES_ON
