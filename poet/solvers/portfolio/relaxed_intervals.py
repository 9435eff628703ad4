"""The relaxed model over retention intervals: bounds for all plans, and which reruns are worth a slot.

A rerun that is no slot of the model happens in no time and in no RAM, so each of its bounds is one for all
plans. Each solution names the versions that it remakes; the chains of reruns that lead to them are slots of
the next one, with all in the fullest stage.
"""

from __future__ import annotations

from poet.solvers.event_model.model import build
from poet.solvers.instance.candidates import candidates, fullest
from poet.solvers.instance.instance import timeline_of
from poet.solvers.portfolio.model_runs import ModelRuns
from poet.solvers.portfolio.slots_of_plans import merged, suggested
from poet.solvers.portfolio.state import GOES_ON, SearchState, Steps

FIRST_CHAIN, LONGEST_CHAIN = 4, 64
"""Reruns that lead to one tensor version; with 1, the bound stands still for as many models."""

MOST_RERUNS = 2000
"""That a model knows; with more, its linear program alone takes longer than a turn."""


HOPELESS_SHARE = 0.5
"""Of the best bound's overhead; a model that shows less leaves its time to others."""


def relaxed_intervals(state: SearchState) -> Steps:
    """Model after model; where one has no solution, there is no plan."""
    instance, runs = state.instance, ModelRuns(state)
    known, chain = dict[int, tuple[int, ...]](), FIRST_CHAIN
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
