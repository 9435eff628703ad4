"""Schedules that stand beside a plan's training step: in the same RAM and arena, on the same tensors.

What lives across steps stays what it is and where it is. A tensor that the training step never moves is not
moved here either; one that it moves may be, and comes back to its place.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from poet.devices.costs import build_problem, kernels_on
from poet.errors import InputError
from poet.graph import Graph
from poet.homes import DecidedProblem, as_decided
from poet.kernel_facts import KernelFacts
from poet.memory.demand import demand_of
from poet.planning.online_guard import guard
from poet.planning.planned import Planned, outcome_of
from poet.planning.room_beside import arena_around
from poet.plans.page_slots import is_paged
from poet.plans.plan_parts import Arena, Request, SearchOutcome
from poet.plans.training_plan import Plan, make_plan
from poet.problem import Limits, Place, Problem, Tensor
from poet.schedule import Schedule
from poet.simulator import judge
from poet.solution import SolveOptions
from poet.solvers import solve
from poet.solvers.heuristics.keep_everything import keep_everything

SEARCH_SECONDS = 10.0
_LEAST_SECONDS = 1.0
_ROUNDS = 6
_SHRINK = 0.93  # of the bytes, where a schedule leaves too large gaps


def check_comes_first(planned: Planned, what: str) -> None:
    """Do nothing if ``planned`` has no plans for other budgets, each of which would lack ``what``.

    Raises:
        InputError: it has.
    """
    if planned.plan.budgets:
        raise InputError(
            f"{what} are planned before other budgets, whose plans have them too: with_evaluation, "
            "with_shapes, then with_budgets"
        )


def seconds_beside(time_limit_seconds: float | None) -> float:
    """Of a search for what stands beside a plan that was sought for so long: no more than the plan's, or 10.

    One second at least, as without a plan beside it there is no evaluation, or no micro-batches.
    """
    return min(SEARCH_SECONDS, max(_LEAST_SECONDS, time_limit_seconds or SEARCH_SECONDS))


def planned_beside(
    planned: Planned, graph: Graph, host_kernels: KernelFacts, options: SolveOptions
) -> Plan | None:
    """A schedule inside the plan's budget, and in its arena if it has one; ``None``: there is no room.

    Args:
        planned: what `poet.planning.planned.plan_with` gave.
        graph: on the same tensors across steps as the training step.
        host_kernels: what torch's kernels need for it on this machine.
        options: of the search, and of all further ones for arenas together; there is none where everything
            fits. Where it finds nothing in time, or
            with a time limit of 0, an online policy decides (`poet.planning.online_guard`).
    """
    prepared, plan = planned.prepared, planned.plan
    kernels = kernels_on(prepared.profile, graph, host_kernels)
    problem = at_home(build_problem(graph, prepared.profile, kernels), plan)
    return costed_beside(plan, graph, kernels, host_kernels, problem, options)


def costed_beside(
    plan: Plan,
    graph: Graph,
    kernels: KernelFacts,
    host_kernels: KernelFacts,
    problem: DecidedProblem,
    options: SolveOptions,
) -> Plan | None:
    """`planned_beside` where costs are known: ``problem`` is that of ``graph``, see `at_home`."""
    for search in (_search, _guard) if options.time_limit_seconds != 0.0 else (_guard,):
        found = _in_the_arena(plan, kernels, problem, options, search)
        if found is not None:
            schedule, outcome, arena = found
            return plan_beside(
                plan, graph, kernels, host_kernels, problem, schedule=schedule, outcome=outcome, arena=arena
            )
    return None


_Search = Callable[[DecidedProblem, Limits, SolveOptions], tuple[Schedule, SearchOutcome] | None]


def _in_the_arena(
    plan: Plan, kernels: KernelFacts, problem: DecidedProblem, options: SolveOptions, search: _Search
) -> tuple[Schedule, SearchOutcome, Arena | None] | None:
    """What ``search`` finds inside the plan's budget, and in its arena if it has one; ``None``: nothing."""
    limits = limits_beside(plan)
    within_bytes = limits.ram_budget_bytes
    if plan.has_fitting_arena and plan.arena is not None:
        within_bytes = plan.arena.size_bytes
    limit_seconds = options.time_limit_seconds
    again = replace(
        options, time_limit_seconds=None if limit_seconds is None else limit_seconds / (_ROUNDS - 1)
    )
    for _ in range(_ROUNDS):
        found = search(problem, replace(limits, ram_budget_bytes=within_bytes), options)
        if found is None:
            return None
        schedule, outcome = found
        demand = demand_of(problem, schedule, kernels)
        arena = arena_around(plan, problem, schedule, demand, time_limit_seconds=options.time_limit_seconds)
        if arena is not None or not plan.has_fitting_arena:
            return schedule, outcome, arena
        assert within_bytes is not None
        within_bytes = round(_SHRINK * min(within_bytes, judge(problem, schedule, limits).peak_ram_bytes))
        options = again
    return None


def _guard(
    problem: DecidedProblem, limits: Limits, options: SolveOptions
) -> tuple[Schedule, SearchOutcome] | None:
    """A schedule by an online policy; ``None``: none is within ``limits``."""
    solution = guard(problem, limits, options)
    return (
        None if solution is None or solution.schedule is None else (solution.schedule, outcome_of(solution))
    )


def limits_beside(plan: Plan) -> Limits:
    """Those of the plan that hold for what stands beside it: of RAM, and of what a schedule may do."""
    asked = plan.request.limits
    return Limits(ram_budget_bytes=asked.ram_budget_bytes, recompute=asked.recompute, paging=asked.paging)


def plan_beside(
    plan: Plan,
    graph: Graph,
    kernels: KernelFacts,
    host_kernels: KernelFacts,
    problem: DecidedProblem,
    *,
    schedule: Schedule,
    outcome: SearchOutcome,
    arena: Arena | None,
) -> Plan:
    """The parts as a plan, with model, device and optimizer of ``plan``; errors as of `make_plan`."""
    return make_plan(
        model=plan.model,
        request=Request(limits=limits_beside(plan), loss=plan.request.loss, train=plan.request.train),
        device=plan.device,
        outcome=outcome,
        graph=graph,
        kernels=kernels,
        optimizer=plan.optimizer,
        problem=problem,
        schedule=schedule,
        arena=arena,
        host_kernels=host_kernels,
    )


def at_home(problem: Problem, plan: Plan) -> DecidedProblem:
    """``problem`` with what lives across steps where the training step leaves it."""
    before = {tensor.name: tensor for tensor in plan.problem.tensors}
    slotted = {slot.tensor for slot in plan.slots}
    persistent, standing = plan.graph.persistent(), plan.standing
    updated = {name for op in problem.ops for name in op.updates}

    def there(tensor: Tensor) -> Tensor:
        if tensor.name not in persistent:
            return tensor
        begins = before[tensor.name].initially
        if begins is Place.STORAGE:
            ends = Place.STORAGE if tensor.name in updated else None
            return replace(tensor, initially=Place.STORAGE, finally_=ends)
        if tensor.name in standing:
            return replace(tensor, initially=Place.RAM, finally_=Place.RAM, page_in=None, page_out=None)
        is_copied = begins is Place.BOTH and tensor.name in slotted
        return replace(tensor, initially=Place.BOTH if is_copied else Place.RAM, finally_=Place.RAM)

    return as_decided(replace(problem, tensors=tuple(there(tensor) for tensor in problem.tensors)))


def _search(
    problem: DecidedProblem, limits: Limits, options: SolveOptions
) -> tuple[Schedule, SearchOutcome] | None:
    """A schedule within ``limits`` and how it was found; ``None``: there is none."""
    schedule = keep_everything(problem, limits)
    if schedule is not None and not is_paged(schedule):  # every op once and no transfer: nothing takes less
        joules = judge(problem, schedule, limits).joules
        return schedule, SearchOutcome(
            "optimal", joules, "every schedule", joules, 0.0, 0.0, "keep-everything", 0.0
        )
    solution = solve(problem, limits, options)
    return None if solution.schedule is None else (solution.schedule, outcome_of(solution))
