"""What may be said of a search at its end: the best plan, its bound, and why a gap is left."""

from __future__ import annotations

import dataclasses

from poet.solution import Solution, Status
from poet.solvers.portfolio.finders import model_by
from poet.solvers.portfolio.state import SearchState
from poet.solvers.search.messages import no_plan_sentence, time_up_sentence


def answer(
    state: SearchState, engine: str, message: str, *, proof: str = "", refuted_by: str = ""
) -> Solution:
    """What is known now.

    Args:
        state: of the search.
        engine: that solved its models.
        message: for the user; empty: what more time may bring, where a gap is left.
        proof: who stands behind an optimal answer.
        refuted_by: who refuted the bound after it had closed the gap, in words.
    """
    best, bound_joules = state.best, state.bound.joules
    if best.trace is None:
        status, in_time = Status.TIMEOUT, state.seconds_left() > 0.0
        message = message or no_plan_sentence(state.problem, state.limits, in_time=in_time)
    else:
        bound_joules = min(bound_joules, best.trace.joules)
        status = Status.OPTIMAL if state.closed(state.bound.joules) else Status.FEASIBLE
        if status is Status.FEASIBLE:
            message = message or _open_gap_sentence(state, engine, refuted_by)
    return Solution(
        status=status,
        schedule=best.schedule,
        trace=best.trace,
        bound_joules=bound_joules,
        baseline_joules=state.baseline_joules,
        solve_seconds=state.clock.now() - state.started,
        solver=model_by(engine) if best.trace is None else best.found_by,
        message=message,
        proof=proof,
        was_interrupted=state.stopped,
        record=state.recorder.record(),
    )


def no_plan(state: SearchState, engine: str, message: str, proof: str) -> Solution:
    """That there is none, and who says so."""
    state.best.forget()
    return dataclasses.replace(answer(state, engine, message, proof=proof), status=Status.INFEASIBLE)


def _open_gap_sentence(state: SearchState, engine: str, refuted_by: str) -> str:
    """Why the search did not close the gap; empty where it stopped at ``enough_joules``."""
    plan_seconds, bound_seconds = state.best.found_after_seconds, state.bound.after_seconds
    if refuted_by:
        return f"{refuted_by[0].upper()}{refuted_by[1:]}: the gap is open again."
    if state.seconds_left() > 0.0:  # `enough_joules` ended it
        return ""
    return time_up_sentence(engine, plan_seconds=plan_seconds, bound_seconds=bound_seconds)
