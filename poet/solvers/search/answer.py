"""What may be said of a search at its end: the best plan, its bound, and why a gap is left."""

from __future__ import annotations

import dataclasses

from poet.solution import Solution, Status
from poet.solvers.search.finders import model_by
from poet.solvers.search.messages import no_plan_sentence, time_up_sentence
from poet.solvers.search.standing import Standing


def answer(
    standing: Standing, engine: str, message: str, *, proof: str = "", refuted_by: str = ""
) -> Solution:
    """What is known now.

    Args:
        standing: of the search.
        engine: that solved its models.
        message: for the user; empty: what more time may bring, where a gap is left.
        proof: who stands behind an optimal answer.
        refuted_by: who refuted the bound after it had closed the gap, in words.
    """
    best, bound_joules = standing.best, standing.bound.joules
    if best.trace is None:
        status, in_time = Status.TIMEOUT, standing.seconds_left() > 0.0
        message = message or no_plan_sentence(standing.problem, standing.limits, in_time=in_time)
    else:
        bound_joules = min(bound_joules, best.trace.joules)
        status = Status.OPTIMAL if standing.closed(standing.bound.joules) else Status.FEASIBLE
        if status is Status.FEASIBLE:
            message = message or _open_gap_sentence(standing, engine, refuted_by)
    return Solution(
        status=status,
        schedule=best.schedule,
        trace=best.trace,
        bound_joules=bound_joules,
        baseline_joules=standing.baseline_joules,
        solve_seconds=standing.clock.now() - standing.started,
        solver=model_by(engine) if best.trace is None else best.found_by,
        message=message,
        proof=proof,
        class_bound=standing.class_bound,
        was_interrupted=standing.stopped,
        record=standing.recorder.record(),
    )


def no_plan(standing: Standing, engine: str, message: str, proof: str) -> Solution:
    """That there is none, and who says so."""
    standing.best.forget()
    return dataclasses.replace(answer(standing, engine, message, proof=proof), status=Status.INFEASIBLE)


def _open_gap_sentence(standing: Standing, engine: str, refuted_by: str) -> str:
    """Why the search did not close the gap; empty where it stopped at ``enough_joules``."""
    plan_seconds, bound_seconds = standing.best.found_after_seconds, standing.bound.after_seconds
    if refuted_by:
        return f"{refuted_by[0].upper()}{refuted_by[1:]}: the gap is open again."
    if standing.seconds_left() > 0.0:  # `enough_joules` ended it
        return ""
    return time_up_sentence(engine, plan_seconds=plan_seconds, bound_seconds=bound_seconds)
