"""The auxiliary schedules of a plan: its accumulating step, its evaluation, and steps for other shapes.

Each is planned by `poet.planning.beside`, inside the RAM and the arena of the training step, on its tensors.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from poet.devices.device_problem import build_problem, kernels_on
from poet.errors import Infeasible, InputError, InvalidSchedule, PlanError, PoetError
from poet.ir.graph import Graph
from poet.ir.kernel_facts import KernelFacts
from poet.memory.demand import BEFORE, Demand, demand_of
from poet.planning.beside import (
    SEARCH_SECONDS,
    arena_around,
    at_home,
    check_comes_first,
    limits_beside,
    places_begun,
    plan_beside,
    planned_beside,
)
from poet.planning.planned import Planned
from poet.planning.prepared import Prepared, evaluation_step
from poet.plans.plan_parts import Arena, SearchOutcome
from poet.plans.planned_step import lasting_values
from poet.plans.training_plan import Plan, Shape, shape_words
from poet.problem import Place
from poet.problem.homes import DecidedProblem
from poet.problem.progress import stage
from poet.problem.schedule import Compute, PageOut, Schedule, Step
from poet.problem.simulator import judge
from poet.problem.solution import SolveOptions
from poet.util.units import format_bytes

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
    options = SolveOptions(time_limit_seconds=time_limit_seconds)
    accumulation = planned_beside(planned, step.graph, step.kernels, options)
    if accumulation is None:
        accumulation = _without_updates(planned, step.graph, step.kernels)
    if accumulation is None:
        budget_bytes = plan.request.limits.ram_budget_bytes or plan.arena_ram_bytes
        raise Infeasible(
            f"no schedule was found that sums gradients inside {format_bytes(budget_bytes)}, beside that "
            "which updates; plan with more RAM or more micro-batches"
        )
    request = replace(plan.request, micro=prepared.micro)
    return replace(planned, plan=replace(plan, request=request, accumulation=accumulation))


def _without_updates(planned: Planned, graph: Graph, host_kernels: KernelFacts) -> Plan | None:
    """The updating schedule without its updates, as a plan; ``None``: it is no schedule of ``graph``."""
    plan, prepared = planned.plan, planned.prepared
    kernels = kernels_on(prepared.profile, graph, host_kernels)
    problem = at_home(build_problem(graph, prepared.profile, kernels), plan)
    limits = limits_beside(plan)
    schedule, origins = without_updates(plan, graph, problem)
    try:
        joules = judge(problem, schedule, limits).joules
        least = problem.compute_joules
        gap = (joules - least) / joules if joules else 0.0
        outcome = SearchOutcome(
            "feasible", least, "every schedule", least, gap, float(joules > least), "without-updates", 0.0
        )
        arena = arena_of(plan, problem, schedule, origins, kernels)
        if plan.has_fitting_arena and arena is None:
            return None
        return plan_beside(
            plan, graph, kernels, host_kernels, problem, schedule=schedule, outcome=outcome, arena=arena
        )
    except (InvalidSchedule, PlanError):
        return None


def without_updates(plan: Plan, graph: Graph, problem: DecidedProblem) -> tuple[Schedule, tuple[int, ...]]:
    """The schedule of ``plan`` without its updates, and the step of ``plan`` that each of its steps is.

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
    origins: list[int] = []
    for number, step in enumerate(plan.schedule):
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
            origins.append(number)
    return tuple(steps), tuple(origins)


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


def arena_of(
    plan: Plan, problem: DecidedProblem, schedule: Schedule, origins: tuple[int, ...], kernels: KernelFacts
) -> Arena | None:
    """Places in the plan's arena: those that the plan has for the same requests; ``None``: there are none."""
    layout = plan.layout
    if layout is None or not plan.has_fitting_arena:
        return None
    demand = demand_of(problem, schedule, kernels)
    has_moves = plan.arena is not None and bool(plan.arena.moves)
    theirs = {} if has_moves else _by_step(plan.demand)  # a place that is left is another's
    fixed = places_begun(demand, plan.begun_bytes)
    for step, requests in _by_step(demand).items():
        known = [] if step == BEFORE else theirs.get(origins[step], [])
        if [size for size, _ in requests] == [size for size, _ in known]:
            fixed |= {
                mine: layout.offsets_bytes[other]
                for (_, mine), (_, other) in zip(requests, known, strict=True)
                if mine not in fixed
            }
    return arena_around(plan, problem, schedule, demand, known_bytes=fixed)


def _by_step(demand: Demand) -> dict[int, list[tuple[int, int]]]:
    """Size and block of each request, by its step."""
    found: dict[int, list[tuple[int, int]]] = {}
    for item in demand.requests:
        found.setdefault(item.step, []).append((item.size_bytes, item.block))
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
