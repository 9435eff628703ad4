"""A plan's steps for batches of other shapes, which are auxiliary schedules (`poet.planning.beside`)."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from poet.errors import Infeasible, InputError, PlanError, PoetError
from poet.planning.beside import SEARCH_SECONDS, check_comes_first, planned_beside
from poet.planning.planned import Planned
from poet.planning.prepared import Prepared, evaluation_step
from poet.plans.lasting_values import lasting_values
from poet.plans.training_plan import Plan, Shape, shape_words
from poet.progress import stage
from poet.solution import SolveOptions
from poet.units import format_bytes

if TYPE_CHECKING:
    from poet.frontend.trace import TrainingStep


def with_shapes(
    planned: Planned,
    others: Sequence[Prepared],
    *,
    evaluation: bool = True,
    time_limit_seconds: float = SEARCH_SECONDS,
) -> Planned:
    """``planned``, its plan with a training step for each of ``others``, inside its RAM and arena.

    What lives across steps has one place and one home in all of them. Deadlines and other limits but those of
    RAM, of recomputing and of paging are those of the plan's own step alone.

    Args:
        planned: for the largest shape.
        others: the same model, prepared for other shapes.
        evaluation: whether each gets a forward pass in evaluation mode as well, where that can be had.
        time_limit_seconds: of each search; there is none where everything fits.

    Raises:
        InputError: the model is not the same in every shape, or the plan has micro-batches or plans for other
            budgets.
        Infeasible: there is no room for a shape where the plan has its tensors.
    """
    if others:
        check_comes_first(planned, "other shapes")
    options = SolveOptions(time_limit_seconds=time_limit_seconds)
    made, remark = list(planned.plan.shapes), planned.evaluation_remark
    for number, prepared in enumerate(others, 1):
        stage(f"shape {number} of {len(others)}")
        step = _step_beside(planned, prepared, options)
        try:
            forward = _evaluation_beside(planned, prepared, options) if evaluation else None
        except PoetError as error:
            forward = None
            remark = remark or f"no evaluation is planned for {shape_words(step.graph, step.model)}: {error}"
        made.append(Shape(step, forward))
    try:
        return replace(planned, plan=replace(planned.plan, shapes=tuple(made)), evaluation_remark=remark)
    except PlanError as error:
        raise InputError(f"the shapes have no plan together: {error}") from None


def _step_beside(planned: Planned, prepared: Prepared, options: SolveOptions) -> Plan:
    plan, step = planned.plan, prepared.step
    where = shape_words(step.graph, prepared.model)
    _check_same(planned.prepared.step, step, where)
    found = planned_beside(planned, step.graph, step.kernels, options)
    if found is None:
        budget_bytes = plan.request.limits.ram_budget_bytes or plan.arena_ram_bytes
        raise Infeasible(
            f"no schedule was found for {where} inside {format_bytes(budget_bytes)}, where the plan for "
            f"{shape_words(plan.graph, plan.model)} has its tensors; plan with more RAM, or leave it out"
        )
    return replace(found, model=replace(plan.model, binding=prepared.model.binding))


def _evaluation_beside(planned: Planned, prepared: Prepared, options: SolveOptions) -> Plan:
    """The forward pass of another shape.

    Raises:
        PoetError: it cannot be had.
    """
    step = evaluation_step(prepared)
    found = planned_beside(planned, step.graph, step.kernels, options)
    if found is None:
        raise PlanError("no room for it in the arena of training; plan with more RAM")
    return replace(found, model=replace(planned.plan.model, binding=prepared.model.binding))


def _check_same(step: TrainingStep, other: TrainingStep, where: str) -> None:
    """The tensors that live across steps are the same, and constants hold the same.

    Raises:
        InputError: they are not.
    """
    from poet.runtime.trials.trial_bench import same_bits

    ours, theirs = lasting_values(step.graph), lasting_values(other.graph)
    if ours != theirs:
        name = min(name for name, _ in {*ours.items()} ^ {*theirs.items()})
        raise InputError(f"for {where} the model has another {name} than for the largest shape")
    for name, _ in step.graph.constants:
        if not same_bits(step.tensors[name].contiguous(), other.tensors[name].contiguous()):
            raise InputError(
                f"for {where} the model computes with another content of {name} than for the largest shape; "
                "make it in forward(), or give it every size"
            )


def bindings_of(shapes: Mapping[str, Sequence[int]]) -> tuple[dict[str, int], list[dict[str, int]]]:
    """The largest shape, and every other: each dimension's sizes with each of the others'."""
    every = [dict(zip(shapes, sizes, strict=True)) for sizes in itertools.product(*shapes.values())]
    largest = {name: max(sizes) for name, sizes in shapes.items()}
    return largest, [shape for shape in every if shape != largest]
