"""The same training inside less RAM, from a plan alone: its graph and its costs, without model and profile.

A plan file may have plans for several budgets, to go to between steps. An app gives `plan_again` to
`poet.runtime.Trainer.set_budget`; it needs what planning needs (the extra ``plan``), and memory of its own
for the search, which no plan counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from poet.errors import Infeasible, InputError, OutOfTime
from poet.planning.arena import Fitted, fit, is_mapped, searching
from poet.planning.beside import at_home, costed_beside, guard
from poet.planning.planned import Planned, outcome_of, price_range
from poet.planning.step_search import answered_beside
from poet.plans.plan_parts import Request
from poet.plans.training_plan import Auxiliary, Plan, make_plan, shape_words
from poet.problem import Limits, Problem
from poet.problem.progress import stage
from poet.problem.solution import SolveOptions, Start, Status
from poet.solvers import minimum_ram_bytes
from poet.util.units import IN_ORDER, format_bytes, parse_bytes

SEARCH_SECONDS = 10.0


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
    if fitted is None:
        fitted = guarded(plan, limits, options)
    if fitted is None or fitted.solution.schedule is None:
        raise OutOfTime(why)
    return make_plan(
        model=plan.model,
        request=Request(limits, plan.request.loss, plan.request.train, plan.request.gradients),
        device=plan.device,
        outcome=outcome_of(fitted.solution),
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
