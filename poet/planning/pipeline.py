"""From a request to its plan: prepare, search, lay out, and plan the auxiliary schedules."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from poet.errors import Infeasible, OutOfTime
from poet.ir.micro import MicroBatches
from poet.planning.auxiliary import with_accumulation, with_evaluation, with_shapes
from poet.planning.beside import TimeShares
from poet.planning.budgets import with_budgets
from poet.planning.planned import Planned, Stages, plan_step
from poet.planning.request import PlanRequest
from poet.planning.step_search import without_choice
from poet.problem.progress import showing
from poet.problem.solution import SolveOptions


@dataclass(frozen=True, slots=True)
class Candidate:
    """One number of micro-batches that was tried.

    Attributes:
        micro: the pieces; ``None``: the batch as a whole.
        joules, seconds: of a whole step; ``None`` where there is no plan.
        why: there is none; empty where there is one.
    """

    micro: MicroBatches | None
    joules: float | None
    seconds: float | None
    why: str = ""


def planned_as(request: PlanRequest, stages: Stages | None = None) -> tuple[Planned, tuple[Candidate, ...]]:
    """The plan that ``request`` asks for, and the numbers of micro-batches that were tried for it.

    Args:
        request: what to plan.
        stages: of the search for each training step.

    Raises:
        InputError: the model, the device or an option is not usable.
        Infeasible: no plan exists inside the limits; the message names what binds.
        OutOfTime: the time limit passed before any plan was found.
    """
    counts, asked = request.counts(), request.search_options
    each_shape = 1 + request.evaluation
    others = each_shape * len(request.shapes)
    beside = (request.pieces is not None) + request.evaluation + others + len(request.budgets)
    shares = TimeShares(asked.time_limit_seconds, beside, asked.clock)
    with showing(
        request.progress, objective=asked.objective, limit_seconds=asked.time_limit_seconds
    ) as shown:
        options = replace(asked, progress=shown or asked.progress)
        shapes = request.other_shapes()  # a shape that the model does not take, before a long search
        make = partial(_step, request, options, shares, len(counts), stages)
        planned, tried = least_energy(counts, make)
        if request.evaluation:
            planned = with_evaluation(planned, time_limit_seconds=shares.each(1))
        planned = with_shapes(
            planned,
            shapes,
            evaluation=planned.plan.evaluation is not None,
            time_limit_seconds=shares.each(others),
        )
        seconds = shares.each(len(request.budgets))
        return with_budgets(planned, request.budgets, time_limit_seconds=seconds, options=options), tried


def _step(
    request: PlanRequest,
    options: SolveOptions,
    shares: TimeShares,
    tried: int,
    stages: Stages | None,
    micro: MicroBatches | None,
) -> Planned:
    """The training step in ``micro``-batches; ``tried`` numbers of them share the time."""
    prepared, limits = request.inside(request.prepared(micro))
    seconds = shares.first()
    if seconds is not None:
        options = replace(options, time_limit_seconds=seconds / tried)
    planned = plan_step(without_choice(prepared) if request.budgets else prepared, limits, options, stages)
    return with_accumulation(planned, time_limit_seconds=shares.each(request.pieces is not None) / tried)


def least_energy(
    counts: Sequence[MicroBatches | None], make: Callable[[MicroBatches | None], Planned]
) -> tuple[Planned, tuple[Candidate, ...]]:
    """The plan of least energy per step among several numbers of micro-batches, and what each took.

    Args:
        counts: numbers of micro-batches, at least one.
        make: a plan with so many; raises `Infeasible` or `OutOfTime` where there is none.

    Raises:
        Infeasible, OutOfTime: no number of pieces has a plan; the last reason.
    """
    best: Planned | None = None
    tried: list[Candidate] = []
    why: Infeasible | OutOfTime | None = None
    for micro in counts:
        try:
            planned = make(micro)
        except (Infeasible, OutOfTime) as error:
            why = error
            tried.append(Candidate(micro, None, None, str(error)))
            continue
        tried.append(Candidate(micro, planned.plan.step_joules, planned.plan.step_seconds))
        if best is None or planned.plan.step_joules < best.plan.step_joules:
            best = planned
    if best is None:
        assert why is not None
        raise why
    return best, tuple(tried)
