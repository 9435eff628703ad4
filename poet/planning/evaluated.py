"""The evaluation of a plan: an auxiliary schedule of its training step, see `poet.planning.beside`."""

from __future__ import annotations

from dataclasses import replace

from poet.errors import PoetError
from poet.planning.beside import SEARCH_SECONDS, check_comes_first, planned_beside
from poet.planning.planned import Planned
from poet.planning.prepared import evaluation_step
from poet.progress import stage
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
    check_comes_first(planned, "evaluations")
    stage("evaluation")
    try:
        step = evaluation_step(planned.prepared)
        options = SolveOptions(time_limit_seconds=time_limit_seconds)
        evaluation = planned_beside(planned, step.graph, step.kernels, options)
    except PoetError as error:
        return replace(planned, evaluation_remark=f"no evaluation is planned: {error}")
    if evaluation is None:
        remark = "no evaluation is planned: no room for it in the arena of training; plan with more RAM"
        return replace(planned, evaluation_remark=remark)
    return replace(planned, plan=replace(planned.plan, evaluation=evaluation))
