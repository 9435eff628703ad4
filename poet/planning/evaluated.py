"""The evaluation that a plan carries: planned beside its training step, see `poet.planning.beside`."""

from __future__ import annotations

from dataclasses import replace

from poet.errors import PoetError
from poet.planning.beside import SEARCH_SECONDS, check_comes_first, planned_beside
from poet.planning.planned import Planned
from poet.solution import SolveOptions


def with_evaluation(planned: Planned, *, time_limit_seconds: float = SEARCH_SECONDS) -> Planned:
    """``planned``, its plan with an evaluation; where that cannot be had, with a remark that says why.

    Traces the model in evaluation mode and plans its forward pass. The training step stays as it is.

    Args:
        planned: what `poet.planning.planned.plan_with` gave.
        time_limit_seconds: of each search; there is none where everything fits.

    Raises:
        InputError: ``planned`` has plans for other budgets already.
    """
    from poet.frontend.evaluation import trace_evaluation

    check_comes_first(planned, "evaluations")
    prepared, plan = planned.prepared, planned.plan
    if prepared.module is None:
        return replace(planned, evaluation_remark="no evaluation is planned: the model is not at hand")
    try:
        measures = prepared.step.kernels.threads is not None
        step = trace_evaluation(*prepared.module, prepared.step, measure=measures)
        options = SolveOptions(time_limit_seconds=time_limit_seconds)
        evaluation = planned_beside(planned, step.graph, step.kernels, options)
    except PoetError as error:
        return replace(planned, evaluation_remark=f"no evaluation is planned: {error}")
    if evaluation is None:
        remark = "no evaluation is planned: no room for it in the arena of training; plan with more RAM"
        return replace(planned, evaluation_remark=remark)
    return replace(planned, plan=replace(plan, evaluation=evaluation))
