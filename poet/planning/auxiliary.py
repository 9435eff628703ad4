"""The auxiliary schedules of a plan (accumulation, evaluation, other shapes), and plans for other budgets.

Auxiliary schedules are planned by `poet.planning.beside`, inside the RAM and the arena of the training step,
on its tensors.

The same training inside less RAM is planned from a plan alone: its graph and its costs, without model and
profile. A plan file may have plans for several budgets, to go to between steps. An app gives `plan_again` to
`poet.runtime.Trainer.set_budget`; it needs what planning needs (the extra ``plan``), and memory of its own
for the search, which no plan counts.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from poet.devices.device_problem import build_problem, kernels_on
from poet.errors import Infeasible, InputError, InvalidSchedule, OutOfTime, PlanError, PoetError
from poet.ir.graph import Graph
from poet.planning.arena import Fitted, fit, is_mapped, searching
from poet.planning.beside import (
    SEARCH_SECONDS,
    at_home,
    check_comes_first,
    costed_beside,
    guard,
    limits_beside,
    planned_beside,
)
from poet.planning.planned import Planned, outcome_of, price_range
from poet.planning.prepared import Prepared, evaluation_step
from poet.planning.step_search import answered_beside
from poet.plans.plan_parts import Request
from poet.plans.planned_step import lasting_values
from poet.plans.training_plan import Auxiliary, Plan, Shape, make_plan, shape_words
from poet.problem import Limits, Place, Problem
from poet.problem.homes import DecidedProblem
from poet.problem.progress import stage
from poet.problem.schedule import Compute, PageOut, Schedule, Step
from poet.problem.simulator import judge
from poet.problem.solution import SolveOptions, Start, Status
from poet.solvers import minimum_ram_bytes
from poet.util.units import IN_ORDER, format_bytes, parse_bytes

if TYPE_CHECKING:
    from poet.frontend.trace import TrainingStep


def with_accumulation(planned: Planned, *, time_limit_seconds: float = SEARCH_SECONDS) -> Planned:
    """``planned``, its plan with the schedule of all micro-batches of a step but the last.

    Without micro-batches, ``planned`` itself.

    Args:
        planned: what `poet.planning.planned.plan_with` gave.
        time_limit_seconds: of each search; there is none where everything fits.

    Raises:
        Infeasible: there is no room for it where the updating step has its tensors.
    """
    prepared, plan = planned.prepared, planned.plan
    step = prepared.step.accumulation
    if step is None or prepared.micro is None:
        return planned
    stage("accumulation")
    kernels = kernels_on(prepared.profile, step.graph, step.kernels)
    problem = at_home(build_problem(step.graph, prepared.profile, kernels), plan)
    options = SolveOptions(time_limit_seconds=time_limit_seconds)
    start = without_updates(plan, step.graph, problem)
    with contextlib.suppress(InvalidSchedule):
        judge(problem, start, limits_beside(plan))
        options = replace(options, start=Start(start, "without-updates"))
    accumulation = costed_beside(plan, step.graph, kernels, step.kernels, problem, options)
    if accumulation is None:
        budget_bytes = plan.request.limits.ram_budget_bytes or plan.arena_ram_bytes
        raise Infeasible(
            f"no schedule was found that sums gradients inside {format_bytes(budget_bytes)}, beside that "
            "which updates; plan with more RAM or more micro-batches"
        )
    request = replace(plan.request, micro=prepared.micro)
    return replace(planned, plan=replace(plan, request=request, accumulation=accumulation))


def without_updates(plan: Plan, graph: Graph, problem: DecidedProblem) -> Schedule:
    """The schedule of ``plan`` without its updates.

    An op that sums and updates in strips becomes that which only sums. Where the two graphs have other ops in
    common, it is no valid schedule: who uses it asks the simulator.

    Args:
        plan: that updates.
        graph: that sums the same gradients and updates nothing.
        problem: of ``graph``.
    """
    names = _counterparts(plan.graph, graph)
    updates = {op.name: op.updates for op in problem.ops}
    versions = dict.fromkeys((tensor.name for tensor in problem.tensors), 0)
    stored = {t.name: {0} for t in problem.tensors if t.initially in (Place.STORAGE, Place.BOTH)}
    ran: set[str] = set()
    steps: list[Step] = []
    for step in plan.schedule:
        kept: Step | None = step
        if isinstance(step, Compute):
            name = names.get(step.op)
            kept = None if name is None else Compute(name)
            for tensor in () if name is None or name in ran else updates[name]:
                versions[tensor] += 1
            ran.add(name or "")
        elif step.tensor not in versions:
            kept = None  # it was made for an update
        elif isinstance(step, PageOut):
            copies = stored.setdefault(step.tensor, set())
            kept = None if versions[step.tensor] in copies else step
            copies.add(versions[step.tensor])
        if kept is not None:
            steps.append(kept)
    return tuple(steps)


def _counterparts(updating: Graph, summing: Graph) -> dict[str, str]:
    """The summing graph's name of each op of the updating graph that it has."""
    there = {op.name for op in summing.ops}
    adders = {name: op.name for op in summing.ops for name in op.updates}
    found = {op.name: op.name for op in updating.ops if op.name in there}
    for op in updating.ops:
        if op.strip is not None and op.name not in found:
            adder = next((adders[name] for name in op.updates if name in adders), None)
            found |= {} if adder is None else {op.name: adder}
    return found


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
    from poet.runtime.trials.trial import same_bits

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


# --- plans for other budgets ------------------------------------------------------------------


def plan_again(
    plan: Plan,
    ram_bytes: int,
    *,
    time_limit_seconds: float = SEARCH_SECONDS,
    options: SolveOptions | None = None,
) -> Plan:
    """What ``plan`` computes, with its auxiliary schedules, inside ``ram_bytes``.

    It takes the least of what ``plan`` takes the least of. Homes between steps stay as they are, and so do
    the other limits; ranges of figures are not known.

    Args:
        plan: for another budget; what it has for further budgets is left out.
        ram_bytes: the budget.
        time_limit_seconds: of each search. One that ends with no plan leaves the step to an online policy
            (`poet.planning.beside.guard`), and so does 0, at once.
        options: of the step's search otherwise: engine, threads, seed, gaps. Its objective is the plan's.

    Raises:
        Infeasible: no plan exists inside the budget, or a part of it has no room beside the step.
        OutOfTime: none was found in time, and the online policies run out of memory.
    """
    limits = replace(plan.request.limits, ram_budget_bytes=ram_bytes)
    options = replace(
        options or SolveOptions(),
        time_limit_seconds=time_limit_seconds,
        objective=plan.outcome.objective,
        enough_joules=None,
        start=Start(),
    )
    made = _step_again(plan, limits, options)

    others = []
    for other in plan.auxiliaries:
        found = _part_again(other.plan, plan, made, SolveOptions(time_limit_seconds=time_limit_seconds))
        if found is None:
            raise Infeasible(
                f"inside {format_bytes(ram_bytes)} there is no room for {_words(other)}; use more RAM"
            )
        others.append(replace(other, plan=found))
    return made.with_auxiliaries(others, request=replace(plan.request, limits=limits))


def _words(other: Auxiliary) -> str:
    """For people."""
    if other.is_evaluation:
        return "the evaluation" if other.shape is None else "the evaluation of each shape"
    if other.shape is None:
        return "the step that sums gradients"
    return f"the step for {shape_words(other.plan.graph, other.plan.model)}"


def _step_again(plan: Plan, limits: Limits, options: SolveOptions) -> Plan:
    """The step of ``plan`` inside other limits, with nothing beside it; raises as `plan_again`."""
    fitted, why = _searched(plan, limits, options)
    is_online = fitted is None
    if fitted is None:
        fitted = guarded(plan, limits, options)
    if fitted is None or fitted.solution.schedule is None:
        raise OutOfTime(why)
    return make_plan(
        model=plan.model,
        request=Request(limits, plan.request.loss, plan.request.train, plan.request.gradients),
        device=plan.device,
        outcome=replace(outcome_of(fitted.solution), is_online=is_online),
        graph=plan.graph,
        kernels=plan.kernels,
        optimizer=plan.optimizer,
        problem=fitted.problem,
        schedule=fitted.solution.schedule,
        plain_peak_ram_bytes=plan.prediction.plain_peak_ram_bytes,
        lower_bound_ram_bytes=plan.prediction.lower_bound_ram_bytes,
        arena=fitted.arena,
        host_kernels=plan.replayed_kernels,
        measured=plan.prediction.measured,
    )


def guarded(plan: Plan, limits: Limits, options: SolveOptions) -> Fitted | None:
    """What `guard` has for the step of ``plan``, in an arena; nothing is searched but places."""
    found, at_once = guard(plan.problem, limits, options), replace(options, time_limit_seconds=0.0)
    return None if found is None else fit(plan.problem, limits, found, at_once, kernels=plan.kernels)


def _searched(plan: Plan, limits: Limits, options: SolveOptions) -> tuple[Fitted | None, str]:
    """What a search finds for the step of ``plan``, and why it finds nothing.

    Raises:
        Infeasible: nothing exists inside ``limits``.
    """
    if options.time_limit_seconds == 0.0:
        least_bytes, budget_bytes = minimum_ram_bytes(plan.problem, limits).bytes, limits.ram_budget_bytes
        if budget_bytes is not None and budget_bytes < least_bytes:
            raise Infeasible(
                f"no plan {IN_ORDER} exists inside {format_bytes(budget_bytes, exact=True)}: a step needs at "
                f"least {format_bytes(least_bytes, exact=True)} of RAM"
            )
        return None, "no plan was found at once; give a search some time"
    first = searching(options, limits)
    solution = answered_beside(plan.problem, limits, first, in_whole_pages=is_mapped(plan.kernels))
    if solution.status is Status.INFEASIBLE:
        raise Infeasible(solution.why_no_plan)
    fitted = fit(plan.problem, limits, solution, options, kernels=plan.kernels)
    return fitted, solution.why_no_plan


def _part_again(part: Plan, before: Plan, made: Plan, options: SolveOptions) -> Plan | None:
    """``part``, which stood beside one plan, beside another."""
    lasting = {tensor.name: tensor for tensor in before.problem.tensors}
    persistent = before.graph.persistent()
    problem = replace(
        part.problem,
        tensors=tuple(
            lasting[tensor.name] if tensor.name in persistent else tensor for tensor in part.problem.tensors
        ),
    )
    found = costed_beside(
        made, part.graph, part.kernels, part.replayed_kernels, at_home(problem, made), options
    )
    return None if found is None else replace(found, model=part.model)


def with_budgets(
    planned: Planned,
    budgets: Sequence[str | int],
    *,
    time_limit_seconds: float = SEARCH_SECONDS,
    options: SolveOptions | None = None,
) -> Planned:
    """``planned``, its plan with one for each of ``budgets``, each with its auxiliary schedules.

    Those inside which none is found are left out, and a remark says why: the plan so far is kept.

    Args:
        planned: for the largest budget, with its evaluation and its other shapes.
        budgets: the others, in bytes or as text.
        time_limit_seconds: of each search.
        options: of each search otherwise, see `plan_again`.

    Raises:
        InputError: a budget is not smaller than that of ``planned``, or is given twice.
    """
    made, remarks = [], []
    for size_bytes in smaller_budgets(planned.plan.request.limits.ram_budget_bytes, budgets):
        stage(f"budget of {format_bytes(size_bytes)}")
        try:
            other = plan_again(
                planned.plan, size_bytes, time_limit_seconds=time_limit_seconds, options=options
            )
        except (Infeasible, OutOfTime) as error:
            remarks.append(f"no plan for the budget of {format_bytes(size_bytes)}: {error}")
            continue
        made.append(_priced(planned, other))
    plan = replace(planned.plan, budgets=tuple(made))
    return replace(planned, plan=plan, budgets_remark="; ".join(remarks))


def _priced(planned: Planned, other: Plan) -> Plan:
    """``other`` with what it takes at the ends of the device's figures."""
    prepared = replace(planned.prepared, problem=other.problem)
    found = price_range(prepared, other.schedule, other.arena)
    return replace(other, prediction=replace(other.prediction, range=found))


def check_reachable(problem: Problem, limits: Limits, budgets: Sequence[str | int]) -> None:
    """Do nothing if every one of ``budgets`` may have a schedule; before a long search for the largest.

    Raises:
        InputError: as of `smaller_budgets`.
        Infeasible: no schedule takes so little.
    """
    sizes = smaller_budgets(limits.ram_budget_bytes, budgets)
    if not sizes:
        return
    least_bytes = minimum_ram_bytes(problem, limits).bytes
    for size_bytes in sizes:
        if size_bytes < least_bytes:
            least, budget = (format_bytes(each, exact=True) for each in (least_bytes, size_bytes))
            raise Infeasible(
                f"no plan {IN_ORDER} exists inside the budget of {budget}: a step needs at least {least} of "
                "RAM; leave it out, or give more"
            )


def smaller_budgets(largest: str | int | None, budgets: Sequence[str | int]) -> list[int]:
    """The other budgets of a plan, in bytes; ``largest`` is its own, ``None``: there is none.

    Raises:
        InputError: one is not smaller, or is given twice.
    """
    largest_bytes = parse_bytes(largest) if isinstance(largest, str) else largest
    sizes = [parse_bytes(item) if isinstance(item, str) else item for item in budgets]
    for number, size_bytes in enumerate(sizes):
        if (largest_bytes is not None and size_bytes >= largest_bytes) or size_bytes in sizes[:number]:
            raise InputError(
                f"a plan for several budgets has the largest first and each once; {format_bytes(size_bytes)} "
                "is neither smaller nor new"
            )
    return sizes
